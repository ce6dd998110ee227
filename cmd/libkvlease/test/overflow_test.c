/* The overflow ring: what is said while the main one has no room, and its order. */
#include "check.h"
#include "fakecore.h"

static const uint32_t ids[] = {5, 6, 7};
static const kvl_blocks_t blocks = {ids, 3, 0};

static void what_may_not_be_lost_overflows_and_keeps_its_order(void)
{
	kvl_ctx_t *ctx = open_ctx("{\"leases\":4096,\"tracks\":4096,\"ring_bytes\":4096}");
	kvl_producer_t *p = open_producer(ctx);
	fake_core_t *f = fake_last();
	kvl_remote_t r = remote_of("remote");
	kvl_grant_t g = grant_of("r", &blocks, 1, 1);
	static kvl_track_t tracks[4096];
	uint32_t n = 0, at = 0;
	kvl_lease_t lease;
	int32_t st;
	f->deaf = 1;
	CHECK_STATUS(kvl_grant(p, &g, &lease), KVL_OK);
	while ((st = kvl_track(p, 1, &r, str("l"), 0, &tracks[n])) == KVL_OK)
		n++;
	CHECK_STATUS(st, KVL_ERR_FULL);
	CHECK_ERROR("ring is full");
	CHECK_EQ(f->args.control->refused_ring, 1);
	CHECK(n > 10);
	for (uint32_t i = 0; i < n; i++) {
		CHECK_STATUS(kvl_untrack(p, tracks[i]), KVL_OK);
		CHECK_STATUS(kvl_untrack(p, tracks[i]), KVL_OK);
	}
	/* the first entry waits for all that stands in the main ring */
	CHECK(((const kvl_rec_overflow_t *)(const void *)(f->overflows[0].records + 8))->after == f->rings[0].ring->head);
	CHECK_STATUS(kvl_revoke(p, lease), KVL_OK);
	CHECK_STATUS(kvl_cancel(p, lease), KVL_OK);
	CHECK_STATUS(kvl_reject(p, 1, &r), KVL_OK);
	CHECK_STATUS(kvl_track(p, 1, &r, str("l"), 0, &tracks[n]), KVL_ERR_FULL);
	f->deaf = 0;
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	/* grant, tracks, untracks, revoke, cancel, reject: as said */
	CHECK_EQ(f->log_n, 1 + 2 * n + 3);
	CHECK_EQ(f->log[at++].tag, KVL_REC_GRANT);
	for (uint32_t i = 0; i < n; i++, at++)
		CHECK(f->log[at].tag == KVL_REC_TRACK && f->log[at].handle == tracks[i]);
	for (uint32_t i = 0; i < n; i++, at++)
		CHECK(f->log[at].tag == KVL_REC_UNTRACK && f->log[at].handle == tracks[i]);
	CHECK_EQ(f->log[at++].tag, KVL_REC_REVOKE);
	CHECK_EQ(f->log[at++].tag, KVL_REC_CANCEL);
	CHECK_EQ(f->log[at++].tag, KVL_REC_REJECT);
	CHECK_STATUS(kvl_track(p, 1, &r, str("l"), 0, &tracks[0]), KVL_OK); /* the list is empty: new work again */
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

/* The main ring has room again, but an entry is still waiting: whatever is said now must queue behind it. */
static void nothing_overtakes_an_entry_that_waits(void)
{
	kvl_ctx_t *ctx = open_ctx("{\"tracks\":1024,\"ring_bytes\":4096}");
	kvl_producer_t *p = open_producer(ctx);
	fake_core_t *f = fake_last();
	kvl_remote_t r = remote_of("remote");
	static kvl_track_t tracks[1024], more;
	uint32_t n = 0, k;
	f->deaf = 1;
	while (kvl_track(p, 1, &r, str("l"), 0, &tracks[n]) == KVL_OK)
		n++;
	/* an untrack is shorter than a track: the last gap takes some */
	for (k = 0; f->overflows[0].ring->head == 0; k++)
		CHECK_STATUS(kvl_untrack(p, tracks[k]), KVL_OK);
	k--; /* this one waits */
	f->deaf = 0;
	f->take_max = n / 2;
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK_EQ(f->log_n, n / 2);
	CHECK_STATUS(kvl_untrack(p, tracks[k + 1]), KVL_OK);
	CHECK_STATUS(kvl_reject(p, 1, &r), KVL_OK);
	CHECK_STATUS(kvl_track(p, 1, &r, str("l"), 0, &more), KVL_ERR_FULL);
	CHECK_ERROR("overflow");
	while (f->log_n < n + k + 3)
		CHECK_STATUS(kvl_step(ctx), KVL_OK);
	n += k;
	CHECK(f->log[n].tag == KVL_REC_UNTRACK && f->log[n].handle == tracks[k]);
	CHECK(f->log[n + 1].tag == KVL_REC_UNTRACK && f->log[n + 1].handle == tracks[k + 1]);
	CHECK(f->log[n + 2].tag == KVL_REC_REJECT);
	CHECK_STATUS(kvl_track(p, 1, &r, str("l"), 0, &more), KVL_OK);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

static void only_rejects_can_run_out_of_overflow(void)
{
	kvl_ctx_t *ctx = open_ctx("{\"leases\":8,\"tracks\":1024,\"ring_bytes\":4096}");
	kvl_producer_t *p = open_producer(ctx);
	fake_core_t *f = fake_last();
	char id[1025];
	static kvl_track_t tracks[1024];
	kvl_remote_t r;
	uint32_t n = 0, rejects = 0;
	memset(id, 'x', sizeof id - 1);
	id[1024] = 0;
	r = remote_of("small");
	f->deaf = 1;
	while (kvl_track(p, 1, &r, str("l"), 0, &tracks[n]) == KVL_OK)
		n++;
	r = remote_of(id);
	while (kvl_reject(p, 1, &r) == KVL_OK)
		rejects++;
	CHECK_ERROR("rejects");
	CHECK(rejects > 900 && rejects < 1024); /* 1 MiB of them */
	for (uint32_t i = 0; i < n; i++)
		CHECK_STATUS(kvl_untrack(p, tracks[i]), KVL_OK);
	f->deaf = 0;
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK_EQ(f->log_n, 2 * n + rejects);
	f->deaf = 1; /* and as many again */
	for (uint32_t i = 0; i < rejects; i++)
		CHECK_STATUS(kvl_reject(p, 1, &r), KVL_OK);
	f->deaf = 0;
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK_EQ(f->log_n, 2 * n + 2 * rejects);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

int main(void)
{
	RUN(what_may_not_be_lost_overflows_and_keeps_its_order);
	RUN(nothing_overtakes_an_entry_that_waits);
	RUN(only_rejects_can_run_out_of_overflow);
	return 0;
}
