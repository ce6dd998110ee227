/* kvl_wait_fd: readable when there is something to poll or to step for, and not otherwise. */
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "check.h"
#include "fakecore.h"

static const uint32_t ids[] = {1};
static const kvl_blocks_t blocks = {ids, 1, 0};

static int ready(int fd, int ms)
{
	struct pollfd pf = {fd, POLLIN, 0};
	return poll(&pf, 1, ms) == 1;
}

/* Not readable so soon after a step at `since`; a machine that was busy meanwhile for a whole tick proves nothing. */
static void quiet(int fd, uint64_t since, uint64_t tick_ms)
{
	int rang = ready(fd, 0);
	CHECK(!rang || boot_ns() - since >= tick_ms * 1000000u);
}

static int wait_fd(kvl_ctx_t *ctx)
{
	int fd = -1, again = -1;
	CHECK_STATUS(kvl_wait_fd(ctx, &fd), KVL_OK);
	CHECK_STATUS(kvl_wait_fd(ctx, &again), KVL_OK);
	CHECK(fd >= 0 && fd == again);
	return fd;
}

static void it_sleeps_while_nothing_is_held(void)
{
	kvl_ctx_t *ctx = open_ctx("{\"idle_tick_ms\":20}");
	int fd = wait_fd(ctx);
	CHECK(ready(fd, 1000)); /* once, for the first step to find out */
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK(!ready(fd, 60)); /* shows C66.3 */
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

static void it_ticks_while_something_is_held_and_fires_for_events(void)
{
	kvl_ctx_t *ctx = open_ctx("{\"idle_tick_ms\":250}");
	kvl_producer_t *p = open_producer(ctx);
	kvl_grant_t g = grant_of("r", &blocks, 1, 0);
	kvl_lease_t lease[3];
	kvl_event_t ev;
	uint64_t stepped;
	int fd = wait_fd(ctx);
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK(!ready(fd, 0));
	for (int i = 0; i < 3; i++)
		CHECK_STATUS(kvl_grant(p, &g, &lease[i]), KVL_OK);
	CHECK(ready(fd, 0)); /* work was published while the timer rested */
	stepped = boot_ns();
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	quiet(fd, stepped, 250);
	for (int i = 0; i < 3; i++) {
		CHECK(ready(fd, 2000)); /* shows C66.1: the tick */
		CHECK_STATUS(kvl_step(ctx), KVL_OK);
	}
	for (int i = 0; i < 3; i++)
		CHECK_STATUS(kvl_cancel(p, lease[i]), KVL_OK);
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK_STATUS(kvl_step(ctx), KVL_OK); /* nothing is held any more: no tick hides behind what follows */
	for (int i = 0; i < 3; i++) {
		CHECK(ready(fd, 0)); /* events are left */
		CHECK_EQ(kvl_poll(ctx, &ev, sizeof ev, 1), 1);
	}
	CHECK_EQ(kvl_poll(ctx, &ev, sizeof ev, 1), 0);
	CHECK(!ready(fd, 0));
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

static void a_poisoned_context_is_readable_until_all_is_told(void)
{
	kvl_ctx_t *ctx = open_ctx("{\"duration_ms\":50,\"pump\":1}");
	kvl_producer_t *p = open_producer(ctx);
	kvl_grant_t g = grant_of("r", &blocks, 1, 0);
	kvl_lease_t lease[2];
	kvl_event_t ev;
	int fd = wait_fd(ctx), freed = 0, poisoned = 0;
	CHECK(!ready(fd, 0));
	for (int i = 0; i < 2; i++)
		CHECK_STATUS(kvl_grant(p, &g, &lease[i]), KVL_OK);
	fake_step(fake_last());
	fake_last()->args.slots[0].flags = 0;
	CHECK_STATUS(kvl_fence_all(ctx), KVL_OK);
	while (freed < 2) {
		CHECK(ready(fd, 2000)); /* the unchecked one: when its time has come */
		if (kvl_poll(ctx, &ev, sizeof ev, 1) != 1)
			continue;
		poisoned += ev.kind == KVL_EV_POISONED;
		freed += ev.kind == KVL_EV_FREED;
	}
	CHECK_EQ(poisoned, 1);
	CHECK_EQ(kvl_poll(ctx, &ev, sizeof ev, 1), 0);
	CHECK_EQ(kvl_poll(ctx, &ev, sizeof ev, 1), 0);
	CHECK(!ready(fd, 0));
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

static void what_a_step_has_left_in_the_rings_is_not_slept_over(void)
{
	kvl_ctx_t *ctx = open_ctx("{\"idle_tick_ms\":600000}");
	kvl_producer_t *p = open_producer(ctx);
	kvl_grant_t g = grant_of("r", &blocks, 1, 0);
	kvl_lease_t lease;
	int fd = wait_fd(ctx);
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	for (int i = 0; i < 3; i++)
		CHECK_STATUS(kvl_grant(p, &g, &lease), KVL_OK);
	fake_last()->take_max = 1;
	for (int i = 0; i < 3; i++) {
		CHECK(ready(fd, 0));
		CHECK_STATUS(kvl_step(ctx), KVL_OK);
	}
	CHECK(!ready(fd, 0));
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

/* Another thread fences and polls while a step runs. The report waits for the step, and the step's end may not lose it. */
static kvl_ctx_t *fenced;
static void fence_and_poll(void)
{
	kvl_event_t ev;
	CHECK_STATUS(kvl_fence_all(fenced), KVL_OK);
	CHECK_EQ(kvl_poll(fenced, &ev, sizeof ev, 1), 0);
}

static void a_poisoning_within_a_step_is_told_after_it(void)
{
	kvl_event_t ev;
	int fd;
	fenced = open_ctx("{\"idle_tick_ms\":20}");
	fd = wait_fd(fenced);
	fake_last()->inside = fence_and_poll;
	CHECK_STATUS(kvl_step(fenced), KVL_ERR_POISONED);
	CHECK(ready(fd, 2000));
	CHECK_EQ(kvl_poll(fenced, &ev, sizeof ev, 1), 1);
	CHECK_EQ(ev.kind, KVL_EV_POISONED);
	CHECK_STATUS(kvl_close(fenced, 0), KVL_OK);
}

/* A loop that only waits, and a thread that submits: none of its records may sleep in the ring. */
static struct {
	kvl_ctx_t *ctx;
	uint32_t rounds;
} loop;

static void *submitting(void *arg)
{
	kvl_producer_t *p = open_producer(loop.ctx);
	kvl_remote_t r = remote_of("r");
	(void)arg;
	for (uint32_t i = 0; i < loop.rounds;) {
		kvl_track_t t;
		if (kvl_track(p, 1, &r, str(""), 0, &t) != KVL_OK)
			continue;
		CHECK_STATUS(kvl_untrack(p, t), KVL_OK);
		i++;
	}
	return NULL;
}

static void no_submission_sleeps_while_the_loop_waits(void)
{
	pthread_t t;
	fake_core_t *f;
	int fd;
	loop.ctx = open_ctx("{\"idle_tick_ms\":600000}"); /* only a wake can help */
	loop.rounds = 3000;
	f = fake_last();
	fd = wait_fd(loop.ctx);
	pthread_create(&t, NULL, submitting, NULL);
	while (f->log_n < 2 * loop.rounds) {
		CHECK(ready(fd, 20000));
		CHECK_STATUS(kvl_step(loop.ctx), KVL_OK);
	}
	pthread_join(t, NULL);
	CHECK_STATUS(kvl_close(loop.ctx, 0), KVL_OK);
}

int main(void)
{
	RUN(it_sleeps_while_nothing_is_held);
	RUN(it_ticks_while_something_is_held_and_fires_for_events);
	RUN(a_poisoned_context_is_readable_until_all_is_told);
	RUN(what_a_step_has_left_in_the_rings_is_not_slept_over);
	RUN(a_poisoning_within_a_step_is_told_after_it);
	RUN(no_submission_sleeps_while_the_loop_waits);
	return 0;
}
