/* kvl_read: blocks are matched by position, neighbours are merged, all parts appear at once. */
#include "check.h"
#include "fakecore.h"

static kvl_ctx_t *ctx;
static kvl_producer_t *p;
static fake_core_t *f;

static kvl_track_t track_one(void)
{
	kvl_remote_t r = remote_of("r");
	kvl_track_t t = 0;
	CHECK_STATUS(kvl_track(p, 1, &r, str("l"), 0, &t), KVL_OK);
	return t;
}

static void open_fake(const char *config)
{
	ctx = open_ctx(config);
	p = open_producer(ctx);
	f = fake_last();
}

static void close_fake(void) { CHECK_STATUS(kvl_close(ctx, 0), KVL_OK); }

static kvl_event_t done(void)
{
	kvl_event_t ev;
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK_EQ(kvl_poll(ctx, &ev, sizeof ev, 1), 1);
	CHECK_EQ(ev.kind, KVL_EV_READ_DONE);
	return ev;
}

static void neighbours_on_both_sides_become_one_run(void)
{
	static const uint32_t l0[] = {10, 11, 12, 20, 21, 5}, r0[] = {100, 101, 102, 103, 104, 105};
	static const uint32_t l1[] = {7, 8, 9}, r1[] = {50, 51, 60};
	const kvl_blocks_t local[] = {{l0, 6, 0}, {NULL, 0, 0}, {l1, 3, 0}}, remote[] = {{r0, 6, 0}, {NULL, 0, 0}, {r1, 3, 0}};
	static const kvl_run_t want[] = {{0, 10, 100, 3}, {0, 20, 103, 2}, {0, 5, 105, 1}, {2, 7, 50, 2}, {2, 9, 60, 1}};
	kvl_read_t read = {sizeof read, 3, local, remote};
	kvl_track_t t;
	open_fake("{}");
	t = track_one();
	CHECK_STATUS(kvl_read(p, t, &read), KVL_OK);
	CHECK_STATUS(kvl_read(p, t, &read), KVL_ERR_BUSY);
	CHECK_EQ(done().value0, 9);
	CHECK_EQ(f->runs_n, 5);
	CHECK(memcmp(f->runs, want, sizeof want) == 0);
	CHECK_STATUS(kvl_read(p, t, &read), KVL_ERR_STALE);
	close_fake();
}

static void blocks_are_matched_by_position(void)
{
	static const uint32_t l[] = {3, 4}, r[] = {70, 71, 72, 73, 74};
	const kvl_blocks_t local = {l, 2, 12}, remote = {r, 5, 10}; /* D has the first twelve itself */
	kvl_read_t read = {sizeof read, 1, &local, &remote};
	open_fake("{}");
	CHECK_STATUS(kvl_read(p, track_one(), &read), KVL_OK);
	CHECK_EQ(done().value0, 2);
	CHECK(f->runs_n == 1 && f->runs[0].local == 3 && f->runs[0].remote == 72 && f->runs[0].n == 2);
	close_fake();
}

static void ids_at_the_end_of_their_range_do_not_wrap_into_a_run(void)
{
	static const uint32_t l[] = {4294967295u, 0}, r[] = {5, 6};
	const kvl_blocks_t local = {l, 2, 0}, remote = {r, 2, 0};
	kvl_read_t read = {sizeof read, 1, &local, &remote};
	open_fake("{}");
	CHECK_STATUS(kvl_read(p, track_one(), &read), KVL_OK);
	CHECK_EQ(done().value0, 2);
	CHECK_EQ(f->runs_n, 2);
	close_fake();
}

static void a_read_of_nothing_ends_like_any_other(void)
{
	kvl_read_t read = {sizeof read, 0, NULL, NULL};
	open_fake("{}");
	CHECK_STATUS(kvl_read(p, track_one(), &read), KVL_OK);
	CHECK_EQ(done().value0, 0);
	close_fake();
}

static uint32_t many[4000], other[4000];

static void all_parts_are_published_at_once_or_none(void)
{
	const kvl_blocks_t local = {many, 1000, 0}, remote = {other, 1000, 0};
	kvl_read_t read = {sizeof read, 1, &local, &remote};
	kvl_remote_t big = remote_of("r");
	kvl_track_t t, filler;
	char id[330];
	memset(id, 'x', sizeof id);
	big.id = (kvl_bytes_t){id, sizeof id};
	for (uint32_t i = 0; i < 4000; i++) {
		many[i] = i * 2;
		other[i] = 9000 - i;
	}
	open_fake("{\"ring_bytes\":32768}");
	t = track_one();
	CHECK_STATUS(kvl_read(p, t, &read), KVL_OK);
	CHECK_EQ(done().value0, 1000);
	CHECK_EQ(f->log_n, 1 + 4); /* 253 runs a part */
	CHECK_EQ(f->runs_n, 1000);
	for (uint32_t i = 0; i < 1000; i++)
		CHECK(f->runs[i].local == many[i] && f->runs[i].remote == other[i] && f->runs[i].n == 1);

	/* room for some parts only: the read has not begun, the track is untouched */
	f->deaf = 1;
	t = track_one();
	for (int i = 0; i < 50; i++) /* leaves about 12 KiB of 32 */
		CHECK_STATUS(kvl_track(p, 1, &big, str(""), 0, &filler), KVL_OK);
	CHECK_STATUS(kvl_read(p, t, &read), KVL_ERR_FULL);
	f->deaf = 0;
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	f->log_n = 0;
	CHECK_STATUS(kvl_read(p, t, &read), KVL_OK);
	CHECK_EQ(done().value0, 1000);
	close_fake();
}

static void a_read_that_never_fits_is_said_to_be_too_large(void)
{
	const kvl_blocks_t local = {many, 4000, 0}, remote = {other, 4000, 0};
	kvl_read_t read = {sizeof read, 1, &local, &remote};
	open_fake("{\"ring_bytes\":65536}");
	CHECK_STATUS(kvl_read(p, track_one(), &read), KVL_ERR_INVALID);
	CHECK_ERROR("never fit");
	close_fake();
}

static void what_a_ring_can_hold_fits_wherever_the_ring_stands(void)
{
	kvl_blocks_t local = {many, 126, 0}, remote = {other, 126, 0}; /* 2,048 bytes: half of the smallest ring */
	kvl_read_t read = {sizeof read, 1, &local, &remote};
	open_fake("{\"ring_bytes\":4096}");
	for (int i = 0; i < 600; i++) { /* 80 + 2,048 bytes each time, so all places */
		kvl_track_t t = track_one();
		CHECK_STATUS(kvl_step(ctx), KVL_OK);
		CHECK_STATUS(kvl_read(p, t, &read), KVL_OK);
		CHECK_EQ(done().value0, 126);
	}
	local.n = remote.n = 127;
	CHECK_STATUS(kvl_read(p, track_one(), &read), KVL_ERR_INVALID);
	CHECK_ERROR("never fit");
	close_fake();
}

static void an_untracked_request_is_not_read(void)
{
	static const uint32_t ids[] = {1};
	const kvl_blocks_t one = {ids, 1, 0};
	kvl_read_t read = {sizeof read, 1, &one, &one};
	kvl_track_t t;
	open_fake("{}");
	t = track_one();
	CHECK_STATUS(kvl_untrack(p, t), KVL_OK);
	CHECK_STATUS(kvl_read(p, t, &read), KVL_ERR_STALE);
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK_EQ(f->log_n, 2); /* track, untrack */
	close_fake();
}

int main(void)
{
	RUN(neighbours_on_both_sides_become_one_run);
	RUN(blocks_are_matched_by_position);
	RUN(ids_at_the_end_of_their_range_do_not_wrap_into_a_run);
	RUN(a_read_of_nothing_ends_like_any_other);
	RUN(all_parts_are_published_at_once_or_none);
	RUN(what_a_ring_can_hold_fits_wherever_the_ring_stands);
	RUN(a_read_that_never_fits_is_said_to_be_too_large);
	RUN(an_untracked_request_is_not_read);
	return 0;
}
