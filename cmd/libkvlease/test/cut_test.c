/* kvl_close beside kvl_register on another thread, over the fake core. core_cut_test.c has the real one, which cuts off. */
#include <pthread.h>
#include <sched.h>

#include "check.h"
#include "fakecore.h"

static kvl_ctx_t *ctx;
static int entered, leave, gone; /* atomic */

static void set(int *flag) { __atomic_store_n(flag, 1, __ATOMIC_RELEASE); }
static int is_set(int *flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }

static void wait_for(int *flag)
{
	while (!is_set(flag))
		sched_yield();
}

static void *register_it(void *status)
{
	const kvl_region_t r = {.addr = 4096, .bytes = 4096, .block_len = 64, .block_stride = 64, .blocks = 8, .group = -1};
	*(int32_t *)status = kvl_register(ctx, &r, sizeof r, 1);
	return NULL;
}

/* A thread inside kvl_register, with what happens there. */
static pthread_t begin(void (*registering)(void), int32_t *status)
{
	pthread_t t;
	ctx = open_ctx("{}");
	fake_last()->registering = registering;
	entered = leave = gone = 0;
	CHECK(pthread_create(&t, NULL, register_it, status) == 0);
	wait_for(&entered);
	return t;
}

static void until_told(void)
{
	set(&entered);
	wait_for(&leave);
}

static void who_asks_with_nothing_learns_that_a_thread_is_inside(void)
{
	int32_t st = KVL_ERR_FULL;
	pthread_t t = begin(until_told, &st);
	CHECK_STATUS(kvl_register(ctx, NULL, sizeof(kvl_region_t), 0), KVL_ERR_BUSY);
	fake_last()->close_busy = 1;
	CHECK_STATUS(kvl_close(ctx, 0), KVL_ERR_BUSY);
	set(&leave);
	CHECK(pthread_join(t, NULL) == 0);
	CHECK_STATUS(st, KVL_OK);
	CHECK_STATUS(kvl_register(ctx, NULL, sizeof(kvl_region_t), 0), KVL_ERR_INVALID);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

/* The core has closed, and the context must not go under the feet of who is still inside. */
static void until_closed(void)
{
	set(&entered);
	wait_for(&fake_last()->closed);
	for (int i = 0; i < 50; i++) {
		const struct timespec ms = {0, 1000000};
		nanosleep(&ms, NULL);
		CHECK(!is_set(&gone));
	}
}

static void a_close_that_succeeds_waits_for_who_is_on_the_way_out(void)
{
	int32_t st = KVL_ERR_FULL;
	pthread_t t = begin(until_closed, &st);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
	set(&gone);
	CHECK(pthread_join(t, NULL) == 0);
	CHECK_STATUS(st, KVL_ERR_CLOSED);
}

/* Whoever comes late is told so, and the next context is another one. */
static void a_closed_context_is_refused_by_every_call(void)
{
	const kvl_region_t r = {.addr = 4096, .bytes = 4096, .block_len = 64, .block_stride = 64, .blocks = 8, .group = -1};
	kvl_engine_desc_t desc = {.size = sizeof desc, .engine_id = str("P"), .ranks = 1};
	kvl_ctx_t *old = open_ctx("{}");
	kvl_producer_t *p;
	kvl_engine_t engine;
	kvl_event_t event;
	uint32_t port;
	size_t len;
	char buf[64];
	int fd;
	CHECK_STATUS(kvl_close(old, 0), KVL_OK);
	CHECK_STATUS(kvl_close(old, 0), KVL_ERR_CLOSED);
	CHECK_ERROR("kvl_close has closed the context");
	CHECK_STATUS(kvl_register(old, &r, sizeof r, 1), KVL_ERR_CLOSED);
	CHECK_STATUS(kvl_register(old, NULL, sizeof r, 0), KVL_ERR_CLOSED);
	CHECK_STATUS(kvl_unregister(old), KVL_ERR_CLOSED);
	CHECK_STATUS(kvl_producer_open(old, &p), KVL_ERR_CLOSED);
	CHECK_STATUS(kvl_engine_add(old, &desc, &engine), KVL_ERR_CLOSED);
	CHECK_STATUS(kvl_engine_remove(old, 1), KVL_ERR_CLOSED);
	CHECK_STATUS(kvl_handshake_get(old, 0, buf, sizeof buf, &len), KVL_ERR_CLOSED);
	CHECK_STATUS(kvl_step(old), KVL_ERR_CLOSED);
	CHECK_STATUS(kvl_step_long(old), KVL_ERR_CLOSED);
	CHECK_STATUS(kvl_pass(old), KVL_ERR_CLOSED);
	CHECK_STATUS(kvl_pause(old, 1), KVL_ERR_CLOSED);
	CHECK_STATUS(kvl_poll(old, &event, sizeof event, 1), KVL_ERR_CLOSED);
	CHECK_STATUS(kvl_wait_fd(old, &fd), KVL_ERR_CLOSED);
	CHECK_STATUS(kvl_drain(old, 0), KVL_ERR_CLOSED);
	CHECK_STATUS(kvl_stats(old, buf, sizeof buf, &len), KVL_ERR_CLOSED);
	CHECK_STATUS(kvl_log_take(old, buf, sizeof buf, &len), KVL_ERR_CLOSED);
	CHECK_STATUS(kvl_metrics_listen(old, "127.0.0.1:0", &port), KVL_ERR_CLOSED);
	CHECK_STATUS(kvl_delta_lost(old, 0), KVL_ERR_CLOSED);
	CHECK_STATUS(kvl_fence_all(old), KVL_ERR_INVALID);
	for (int i = 0; i < 100; i++) {
		kvl_ctx_t *another = open_ctx("{}");
		CHECK(another != old);
		CHECK_STATUS(kvl_close(another, 0), KVL_OK);
	}
}

static void *step_and_poll(void *arg)
{
	kvl_event_t event;
	char buf[4096];
	size_t len;
	int32_t st = KVL_OK;
	(void)arg;
	set(&entered);
	while (st != KVL_ERR_CLOSED) {
		if ((st = kvl_step(ctx)) != KVL_ERR_CLOSED)
			st = kvl_poll(ctx, &event, sizeof event, 1);
		if (st != KVL_ERR_CLOSED)
			st = kvl_stats(ctx, buf, sizeof buf, &len);
		CHECK(st == KVL_OK || st == KVL_ERR_BUSY || st == KVL_ERR_CLOSED || st == KVL_ERR_SPACE);
	}
	return NULL;
}

/* A host that asks nothing first: kvl_register begins before, while and after the context is closed, and so do the calls of a loop. */
static void a_close_goes_under_nobodys_feet(void)
{
	int late = 0;
	for (int i = 0; i < 100; i++) {
		int32_t st = KVL_ERR_FULL;
		pthread_t t[2];
		ctx = open_ctx("{}");
		entered = 0;
		CHECK(pthread_create(&t[0], NULL, step_and_poll, NULL) == 0);
		wait_for(&entered);
		CHECK(pthread_create(&t[1], NULL, register_it, &st) == 0);
		for (int spin = i % 30 * 40; spin > 0; spin--)
			__asm__ volatile("" ::: "memory");
		while (kvl_close(ctx, 0) == KVL_ERR_BUSY)
			sched_yield();
		for (int k = 0; k < 2; k++)
			CHECK(pthread_join(t[k], NULL) == 0);
		CHECK(st == KVL_OK || st == KVL_ERR_CLOSED);
		late += st == KVL_ERR_CLOSED;
	}
	printf("  %d of 100 came late\n", late);
}

int main(void)
{
	RUN(who_asks_with_nothing_learns_that_a_thread_is_inside);
	RUN(a_close_that_succeeds_waits_for_who_is_on_the_way_out);
	RUN(a_closed_context_is_refused_by_every_call);
	RUN(a_close_goes_under_nobodys_feet);
	return 0;
}
