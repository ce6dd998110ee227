/* Whom a hook wakes: only a pump that would sleep past what may not wait. Wakes are counted at the descriptor. */
#include <unistd.h>

#include "check.h"
#include "fakecore.h"

static const uint32_t ids[] = {5};
static const kvl_blocks_t blocks = {ids, 1, 0};

/* What a record may be about: made and taken before. */
typedef struct bench {
	kvl_producer_t *p;
	kvl_lease_t lease, hope;
	kvl_track_t track, reader;
} bench_t;

static kvl_lease_t granted(const bench_t *b, const char *id, kvl_lease_t expected)
{
	kvl_grant_t g = grant_of(id, &blocks, 1, 1);
	kvl_lease_t lease = 0;
	g.expected = expected;
	CHECK_STATUS(kvl_grant(b->p, &g, &lease), KVL_OK);
	return lease;
}

static kvl_lease_t expected(const bench_t *b, const char *id)
{
	kvl_lease_t lease = 0;
	CHECK_STATUS(kvl_expect(b->p, str(id), &lease), KVL_OK);
	return lease;
}

static kvl_track_t tracked(const bench_t *b)
{
	kvl_remote_t r = remote_of("remote");
	kvl_track_t track = 0;
	CHECK_STATUS(kvl_track(b->p, 1, &r, str(""), 0, &track), KVL_OK);
	return track;
}

static void expect(bench_t *b) { expected(b, "r"); }
static void grant(bench_t *b) { granted(b, "r", 0); }
static void grant_hope(bench_t *b) { granted(b, "hope", b->hope); }
static void expect_and_grant(bench_t *b) { granted(b, "r", expected(b, "r")); }
static void cancel_hope(bench_t *b) { CHECK_STATUS(kvl_cancel(b->p, b->hope), KVL_OK); }
static void grant_in_place(bench_t *b)
{
	cancel_hope(b);
	CHECK(granted(b, "r", b->hope) != b->hope);
}
static void cancel_lease(bench_t *b) { CHECK_STATUS(kvl_cancel(b->p, b->lease), KVL_OK); }
static void revoke_lease(bench_t *b) { CHECK_STATUS(kvl_revoke(b->p, b->lease), KVL_OK); }
static void pressure(bench_t *b) { CHECK_STATUS(kvl_pressure(b->p, 1), KVL_OK); }
static void track(bench_t *b) { tracked(b); }
static void untrack(bench_t *b) { CHECK_STATUS(kvl_untrack(b->p, b->track), KVL_OK); }
static void reject(bench_t *b)
{
	kvl_remote_t r = remote_of("remote");
	CHECK_STATUS(kvl_reject(b->p, 1, &r), KVL_OK);
}
static void read_blocks(bench_t *b)
{
	kvl_read_t r = {.size = sizeof r, .groups_n = 1, .local = &blocks, .remote = &blocks};
	CHECK_STATUS(kvl_read(b->p, b->reader, &r), KVL_OK);
}

/* Wakes since the last look. */
static uint64_t wakes(void)
{
	uint64_t count = 0;
	return read(fake_last()->args.control->wake_fd, &count, sizeof count) == sizeof count ? count : 0;
}

static void sleeps(uint32_t how) { __atomic_store_n(&fake_last()->args.control->asleep, how, __ATOMIC_SEQ_CST); }

static const struct {
	const char *name;
	uint32_t engine, host; /* the lightest sleep that it ends, by the role of the context */
	void (*say)(bench_t *b);
} records[] = {
	{"expect", KVL_LISTENS, KVL_LISTENS, expect},
	{"a grant that was not expected", KVL_LISTENS, KVL_DOZES, grant},
	{"a grant whose expectation was taken", KVL_LISTENS, KVL_LISTENS, grant_hope},
	{"a grant whose expectation is on its way", KVL_LISTENS, KVL_DOZES, expect_and_grant},
	{"a grant in place of an expectation that was cancelled", KVL_LISTENS, KVL_DOZES, grant_in_place},
	{"the cancel of an expectation", KVL_LISTENS, KVL_LISTENS, cancel_hope},
	{"the cancel of a lease", KVL_DOZES, KVL_DOZES, cancel_lease},
	{"revoke", KVL_DOZES, KVL_DOZES, revoke_lease},
	{"pressure", KVL_DOZES, KVL_DOZES, pressure},
	{"track", KVL_SLEEPS, KVL_SLEEPS, track},
	{"untrack", KVL_DOZES, KVL_DOZES, untrack},
	{"reject", KVL_DOZES, KVL_DOZES, reject},
	{"read", KVL_DOZES, KVL_DOZES, read_blocks},
};

static void a_record_ends_a_sleep_only_if_it_may_not_wait(void)
{
	for (size_t i = 0; i < sizeof records / sizeof *records; i++)
		for (int host = 0; host < 2; host++)
			for (uint32_t how = KVL_DOZES; how <= KVL_LISTENS; how++) {
				uint32_t least = host ? records[i].host : records[i].engine;
				kvl_ctx_t *ctx = open_ctx(host ? "{\"pump\":1,\"role\":1,\"ranks\":2}" : "{\"pump\":1}");
				bench_t b = {.p = open_producer(ctx)};
				b.lease = granted(&b, "lease", 0);
				b.hope = expected(&b, "hope");
				b.track = tracked(&b);
				b.reader = tracked(&b);
				fake_step(fake_last());
				CHECK_EQ(wakes(), 0); /* it was awake */
				sleeps(how);
				printf("%s, %s, sleep %u\n", records[i].name, host ? "host" : "engine", how);
				records[i].say(&b);
				CHECK_EQ(wakes(), how >= least);
				CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
			}
}

static void a_sleep_is_ended_once(void)
{
	kvl_ctx_t *ctx = open_ctx("{\"pump\":1}");
	bench_t b = {.p = open_producer(ctx)};
	b.track = tracked(&b);
	sleeps(KVL_SLEEPS);
	untrack(&b);
	reject(&b);
	tracked(&b);
	CHECK_EQ(wakes(), 1);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

/* New work is refused while the ring is full, and an engine that is refused a lease loses a prefill. */
static void what_may_wait_does_not_fill_the_ring_of_a_pump_that_sleeps(void)
{
	kvl_ctx_t *ctx = open_ctx("{\"pump\":1,\"ring_bytes\":4096,\"leases\":4096,\"tracks\":4096}");
	bench_t b = {.p = open_producer(ctx)};
	for (int round = 0; round < 20; round++) {
		int said = 0;
		sleeps(KVL_DOZES);
		for (uint64_t n = 0; n == 0; said++) {
			if (round % 2 == 0)
				expect(&b);
			else
				grant(&b);
			n = wakes();
		}
		CHECK(said > 4);
		fake_step(fake_last());
	}
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

int main(void)
{
	RUN(a_record_ends_a_sleep_only_if_it_may_not_wait);
	RUN(a_sleep_is_ended_once);
	RUN(what_may_wait_does_not_fill_the_ring_of_a_pump_that_sleeps);
	return 0;
}
