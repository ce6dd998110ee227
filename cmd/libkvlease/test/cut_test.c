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

int main(void)
{
	RUN(who_asks_with_nothing_learns_that_a_thread_is_inside);
	RUN(a_close_that_succeeds_waits_for_who_is_on_the_way_out);
	return 0;
}
