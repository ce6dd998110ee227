/* Submission: order, refusal, who may say what, and how slots are chosen. */
#include <unistd.h>

#include "check.h"
#include "fakecore.h"

static const uint32_t ids[] = {5, 6, 7};
static const kvl_blocks_t blocks = {ids, 3, 0};

static kvl_event_t next_event(kvl_ctx_t *ctx)
{
	kvl_event_t ev;
	memset(&ev, 0, sizeof ev);
	CHECK_EQ(kvl_poll(ctx, &ev, sizeof ev, 1), 1);
	return ev;
}

static void no_event(kvl_ctx_t *ctx)
{
	kvl_event_t ev;
	CHECK_EQ(kvl_poll(ctx, &ev, sizeof ev, 1), 0);
}

static void a_grant_carries_what_was_said_and_ends_once(void)
{
	kvl_ctx_t *ctx = open_ctx("{}");
	kvl_producer_t *p = open_producer(ctx);
	fake_core_t *f = fake_last();
	kvl_grant_t g = grant_of("request-1", &blocks, 1, 42);
	kvl_lease_t lease = 0;
	kvl_event_t ev;
	uint64_t before = boot_ns();
	CHECK_STATUS(kvl_grant(p, &g, &lease), KVL_OK);
	CHECK(lease != 0);
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK_EQ(f->log_n, 1);
	CHECK_EQ(f->log[0].tag, KVL_REC_GRANT);
	CHECK(f->log[0].handle == lease);
	CHECK(f->log[0].b >= before && f->log[0].b <= boot_ns());
	CHECK(strcmp(f->log[0].id, "request-1") == 0);
	CHECK_STATUS(kvl_cancel(p, lease), KVL_OK);
	CHECK_STATUS(kvl_cancel(p, lease), KVL_OK); /* said before: nothing is written */
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK_EQ(f->log_n, 2);
	ev = next_event(ctx);
	CHECK_EQ(ev.kind, KVL_EV_FREED);
	CHECK_EQ(ev.status, KVL_FREED_REVOKED);
	CHECK(ev.handle == lease);
	CHECK_EQ(ev.user, 42);
	CHECK_EQ(ev.value0, 3);
	no_event(ctx);
	CHECK_STATUS(kvl_cancel(p, lease), KVL_ERR_STALE);
	CHECK_STATUS(kvl_revoke(p, lease), KVL_ERR_STALE);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

/* Whole ticks of the coarse clock, which hooks take. */
static void ticks_pass(void)
{
	const struct timespec some = {0, 25000000};
	nanosleep(&some, NULL);
}

static void tracks_that_wait_together_carry_the_time_of_the_first(void)
{
	kvl_ctx_t *ctx = open_ctx("{}");
	kvl_producer_t *p = open_producer(ctx), *other = open_producer(ctx);
	fake_core_t *f = fake_last();
	kvl_remote_t r = remote_of("r");
	kvl_track_t t;
	uint64_t start = boot_ns(), first, second, third;
	ticks_pass();
	CHECK_STATUS(kvl_track(p, 1, &r, str("l"), 0, &t), KVL_OK);
	first = boot_ns();
	ticks_pass();
	CHECK_STATUS(kvl_track(p, 1, &r, str("l"), 0, &t), KVL_OK);
	CHECK_STATUS(kvl_track(other, 1, &r, str("l"), 0, &t), KVL_OK); /* it has its own */
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK_EQ(f->log_n, 3);
	CHECK(f->log[0].b >= start && f->log[0].b <= first);
	CHECK(f->log[1].b == f->log[0].b);
	CHECK(f->log[2].b > first);
	second = boot_ns(); /* what was taken is told no more */
	ticks_pass();
	CHECK_STATUS(kvl_track(p, 1, &r, str("l"), 0, &t), KVL_OK);
	third = boot_ns();
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK_EQ(f->log_n, 4);
	CHECK(f->log[3].b >= second && f->log[3].b <= third);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

static void an_expectation_becomes_the_grant_and_a_lapsed_one_is_replaced(void)
{
	kvl_ctx_t *ctx = open_ctx("{}");
	kvl_producer_t *p = open_producer(ctx);
	fake_core_t *f = fake_last();
	kvl_grant_t g = grant_of("r", &blocks, 1, 1);
	kvl_lease_t expected = 0, lease = 0;
	CHECK_STATUS(kvl_expect(p, str("r"), &expected), KVL_OK);
	CHECK_STATUS(kvl_revoke(p, expected), KVL_ERR_STALE); /* nothing is granted that could be taken back */
	g.expected = expected;
	CHECK_STATUS(kvl_grant(p, &g, &lease), KVL_OK);
	CHECK(lease == expected);
	CHECK_STATUS(kvl_step(ctx), KVL_OK);

	CHECK_STATUS(kvl_expect(p, str("s"), &expected), KVL_OK);
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	fake_lapse(f, expected);
	g.expected = expected;
	CHECK_STATUS(kvl_grant(p, &g, &lease), KVL_OK);
	CHECK(lease != expected);
	CHECK_EQ(next_event(ctx).kind, KVL_EV_EXPECT_LAPSED);

	CHECK_STATUS(kvl_expect(p, str("t"), &expected), KVL_OK);
	CHECK_STATUS(kvl_cancel(p, expected), KVL_OK);
	g.expected = expected;
	CHECK_STATUS(kvl_grant(p, &g, &lease), KVL_OK);
	CHECK(lease != expected); /* a cancelled expectation is not granted under its handle */
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

static void a_full_table_refuses_and_changes_nothing(void)
{
	kvl_ctx_t *ctx = open_ctx("{\"leases\":2,\"tracks\":2}");
	kvl_producer_t *p = open_producer(ctx);
	fake_core_t *f = fake_last();
	kvl_grant_t g = grant_of("r", &blocks, 1, 1);
	kvl_remote_t r = remote_of("r");
	kvl_lease_t a, b, c = 77;
	kvl_track_t t, u, v = 78;
	CHECK_STATUS(kvl_grant(p, &g, &a), KVL_OK);
	CHECK_STATUS(kvl_grant(p, &g, &b), KVL_OK);
	CHECK_STATUS(kvl_grant(p, &g, &c), KVL_ERR_FULL);
	CHECK_ERROR("requests_max");
	CHECK_STATUS(kvl_expect(p, str("x"), &c), KVL_ERR_FULL);
	CHECK_EQ(c, 77);
	CHECK_STATUS(kvl_track(p, 1, &r, str("x"), 0, &t), KVL_OK);
	CHECK_STATUS(kvl_track(p, 1, &r, str("x"), 0, &u), KVL_OK);
	CHECK_STATUS(kvl_track(p, 1, &r, str("x"), 0, &v), KVL_ERR_FULL);
	CHECK_ERROR("tracked_max");
	CHECK_EQ(v, 78);
	CHECK_EQ(fake_last()->args.control->refused_table, 3); /* counted for kvl_stats */
	CHECK_EQ(fake_last()->args.control->refused_ring, 0);
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK_EQ(f->log_n, 4); /* what was refused left no record */
	CHECK_STATUS(kvl_untrack(p, t), KVL_OK);
	CHECK_STATUS(kvl_cancel(p, a), KVL_OK);
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK_STATUS(kvl_track(p, 1, &r, str("x"), 0, &v), KVL_OK);
	CHECK(v != t && (uint32_t)v == (uint32_t)t); /* the same slot, another use */
	CHECK_STATUS(kvl_untrack(p, t), KVL_ERR_STALE);
	CHECK_STATUS(kvl_grant(p, &g, &c), KVL_OK);
	CHECK(c != a && (uint32_t)c == (uint32_t)a);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

static void a_slot_whose_uses_are_used_up_is_left_out(void)
{
	const uint64_t used_up = 0xFFFFFFFFull << 32 | KVL_S_FREE;
	kvl_ctx_t *ctx = open_ctx("{\"leases\":2,\"tracks\":2}");
	kvl_producer_t *p = open_producer(ctx);
	fake_core_t *f = fake_last();
	kvl_grant_t g = grant_of("r", &blocks, 1, 1);
	kvl_remote_t r = remote_of("r");
	kvl_lease_t first, lease;
	kvl_track_t track = 77;
	CHECK_STATUS(kvl_grant(p, &g, &first), KVL_OK);
	CHECK_STATUS(kvl_cancel(p, first), KVL_OK);
	CHECK_STATUS(kvl_step(ctx), KVL_OK); /* given back */
	f->args.slots[KVL_HANDLE_SLOT(first)].state = used_up;
	CHECK_STATUS(kvl_grant(p, &g, &lease), KVL_OK);
	CHECK(KVL_HANDLE_SLOT(lease) != KVL_HANDLE_SLOT(first));
	CHECK_STATUS(kvl_grant(p, &g, &lease), KVL_ERR_FULL);
	CHECK_ERROR("requests_max");
	f->args.tracks[0].state = used_up;
	CHECK_STATUS(kvl_track(p, 1, &r, str("l"), 0, &track), KVL_ERR_FULL);
	CHECK_ERROR("call again");
	CHECK_EQ(track, 77);
	CHECK_STATUS(kvl_track(p, 1, &r, str("l"), 0, &track), KVL_OK);
	CHECK_EQ(KVL_HANDLE_SLOT(track), 1);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

static void records_of_a_request_go_through_its_first_producer(void)
{
	kvl_ctx_t *ctx = open_ctx("{\"producers\":2}");
	kvl_producer_t *a = open_producer(ctx), *b = open_producer(ctx), *c = NULL;
	kvl_grant_t g = grant_of("r", &blocks, 1, 1);
	kvl_remote_t r = remote_of("r");
	kvl_read_t read = {sizeof read, 1, &blocks, &blocks};
	kvl_lease_t lease = 0, other = 0;
	kvl_track_t track = 0;
	CHECK_STATUS(kvl_producer_open(ctx, &c), KVL_ERR_FULL);
	CHECK_ERROR("producers_max");
	CHECK_STATUS(kvl_cancel(a, 1ull << 32), KVL_ERR_STALE); /* nobody has granted */
	CHECK_STATUS(kvl_grant(a, &g, &lease), KVL_OK);
	CHECK_STATUS(kvl_grant(b, &g, &other), KVL_ERR_PRODUCER);
	CHECK_STATUS(kvl_expect(b, str("x"), &other), KVL_ERR_PRODUCER);
	CHECK_STATUS(kvl_cancel(b, lease), KVL_ERR_PRODUCER);
	CHECK_STATUS(kvl_revoke(b, lease), KVL_ERR_PRODUCER);
	CHECK_STATUS(kvl_pressure(b, 10), KVL_OK);
	CHECK_STATUS(kvl_track(b, 1, &r, str("l"), 0, &track), KVL_OK);
	CHECK_STATUS(kvl_untrack(a, track), KVL_ERR_PRODUCER);
	CHECK_STATUS(kvl_read(a, track, &read), KVL_ERR_PRODUCER);
	CHECK_STATUS(kvl_untrack(b, track), KVL_OK);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

static void a_producer_does_not_sit_on_all_free_slots(void)
{
	kvl_ctx_t *ctx = open_ctx("{\"tracks\":1000}");
	kvl_producer_t *a = open_producer(ctx), *b = open_producer(ctx);
	kvl_remote_t r = remote_of("r");
	static kvl_track_t tracks[1000], more;
	uint32_t n;
	for (n = 0; n < 1000; n++) {
		if (n % 100 == 0)
			CHECK_STATUS(kvl_step(ctx), KVL_OK);
		CHECK_STATUS(kvl_track(a, 1, &r, str("l"), 0, &tracks[n]), KVL_OK);
	}
	for (n = 0; n < 1000; n++)
		CHECK_STATUS(kvl_untrack(a, tracks[n]), KVL_OK);
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK_STATUS(kvl_track(a, 1, &r, str("l"), 0, &more), KVL_OK); /* takes the list, keeps 64 */
	for (n = 0; kvl_track(b, 1, &r, str("l"), 0, &more) == KVL_OK; n++)
		if (n % 100 == 0)
			CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK_EQ(n, 1000 - 64);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

static void two_contexts_share_nothing(void)
{
	kvl_ctx_t *one = open_ctx("{\"leases\":4}"), *two;
	fake_core_t *f = fake_last(), *h;
	kvl_grant_t g = grant_of("r", &blocks, 1, 1);
	kvl_lease_t a = 0, b = 0;
	two = open_ctx("{\"leases\":8}");
	h = fake_last();
	CHECK_STATUS(kvl_grant(open_producer(one), &g, &a), KVL_OK);
	CHECK_STATUS(kvl_grant(open_producer(two), &g, &b), KVL_OK);
	CHECK_STATUS(kvl_step(one), KVL_OK);
	CHECK(f->log_n == 1 && h->log_n == 0);
	CHECK(f->args.epoch != h->args.epoch && f->args.secret[0] != h->args.secret[0]);
	CHECK(f->args.base < 1ull << 62 && h->args.base < 1ull << 62);
	CHECK_STATUS(kvl_fence_all(one), KVL_OK);
	CHECK_STATUS(kvl_step(one), KVL_ERR_POISONED);
	CHECK_STATUS(kvl_step(two), KVL_OK);
	CHECK_EQ(h->log_n, 1);
	CHECK_STATUS(kvl_close(one, 0), KVL_OK);
	CHECK_STATUS(kvl_step(two), KVL_OK);
	CHECK_STATUS(kvl_close(two, 0), KVL_OK);
}

static void close_answers_busy_and_keeps_the_context(void)
{
	kvl_ctx_t *ctx = open_ctx("{}");
	fake_last()->close_busy = 1;
	CHECK_STATUS(kvl_close(ctx, 0), KVL_ERR_BUSY);
	CHECK(strstr(kvl_last_error(), "have not ended") != NULL);
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
	CHECK(fake_last()->closed);
}

static void a_draining_context_takes_ends_but_no_new_work(void)
{
	kvl_ctx_t *ctx = open_ctx("{}");
	kvl_producer_t *p = open_producer(ctx);
	kvl_grant_t g = grant_of("r", &blocks, 1, 1);
	kvl_remote_t r = remote_of("r");
	kvl_lease_t lease = 0;
	kvl_track_t track = 0;
	CHECK_STATUS(kvl_grant(p, &g, &lease), KVL_OK);
	CHECK_STATUS(kvl_track(p, 1, &r, str(""), 0, &track), KVL_OK);
	CHECK_STATUS(kvl_drain(ctx, 0), KVL_ERR_TIMEOUT);
	CHECK(strstr(kvl_last_error(), "leases held or expected: 1") != NULL); /* what is left */
	CHECK_STATUS(kvl_grant(p, &g, &lease), KVL_ERR_CLOSED);
	CHECK_STATUS(kvl_expect(p, str("x"), &lease), KVL_ERR_CLOSED);
	CHECK_STATUS(kvl_track(p, 1, &r, str(""), 0, &track), KVL_ERR_CLOSED);
	CHECK_STATUS(kvl_pressure(p, 1), KVL_ERR_CLOSED);
	CHECK_STATUS(kvl_untrack(p, track), KVL_OK);
	CHECK_STATUS(kvl_cancel(p, lease), KVL_OK);
	CHECK_STATUS(kvl_drain(ctx, 1), KVL_OK);
	CHECK_EQ(next_event(ctx).status, KVL_FREED_REVOKED);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

static void in_pump_mode_a_step_is_a_pass(void)
{
	kvl_ctx_t *ctx = open_ctx("{\"pump\":1}");
	fake_core_t *f = fake_last();
	kvl_lease_t lease;
	CHECK_STATUS(kvl_expect(open_producer(ctx), str("r"), &lease), KVL_OK);
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK_EQ(f->log_n, 0);
	CHECK(f->args.control->pass_ns != 0);
	CHECK_STATUS(kvl_pause(ctx, 1000000000), KVL_OK);
	CHECK(f->args.control->pause_until_ns > boot_ns());
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

int main(void)
{
	RUN(a_grant_carries_what_was_said_and_ends_once);
	RUN(tracks_that_wait_together_carry_the_time_of_the_first);
	RUN(an_expectation_becomes_the_grant_and_a_lapsed_one_is_replaced);
	RUN(a_full_table_refuses_and_changes_nothing);
	RUN(a_slot_whose_uses_are_used_up_is_left_out);
	RUN(records_of_a_request_go_through_its_first_producer);
	RUN(a_producer_does_not_sit_on_all_free_slots);
	RUN(two_contexts_share_nothing);
	RUN(close_answers_busy_and_keeps_the_context);
	RUN(a_draining_context_takes_ends_but_no_new_work);
	RUN(in_pump_mode_a_step_is_a_pass);
	return 0;
}
