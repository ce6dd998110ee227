/* Four producers, a step thread, a poll thread, all at once: every handle ends once, nothing overtakes, and two threads
 * are never inside the same call. For the thread sanitizer. */
#include <pthread.h>
#include <sched.h>

#include "check.h"
#include "fakecore.h"

enum { PRODUCERS = 4, ROUNDS = 2000 };
static kvl_ctx_t *ctx;
static kvl_producer_t *producers[PRODUCERS]; /* 0 is the owner's, which tracks nothing */
static uint32_t counts[PRODUCERS];           /* leases, or reads, by producer */
static uint32_t stop, in_step;
static uint32_t freed, read_done, busy;
static const uint32_t ids[] = {1, 2};
static const kvl_blocks_t blocks = {ids, 2, 0};

static void *reader(void *arg)
{
	kvl_producer_t *p = producers[(uint32_t *)arg - counts] = open_producer(ctx);
	kvl_remote_t r = remote_of("r");
	kvl_read_t read = {sizeof read, 1, &blocks, &blocks};
	uint32_t *reads = arg;
	for (uint32_t i = 0; i < ROUNDS;) {
		kvl_track_t t;
		int32_t st = kvl_track(p, 1, &r, str("l"), i, &t);
		if (st == KVL_ERR_FULL) {
			sched_yield();
			continue;
		}
		CHECK_STATUS(st, KVL_OK);
		i++;
		if (i % 2 == 0 && kvl_read(p, t, &read) == KVL_OK)
			++*reads;
		else
			CHECK_STATUS(kvl_untrack(p, t), KVL_OK);
	}
	return NULL;
}

static void *owner(void *arg)
{
	kvl_producer_t *p = open_producer(ctx);
	uint32_t *grants = arg;
	for (uint32_t i = 0; i < ROUNDS;) {
		kvl_grant_t g = grant_of("r", &blocks, 1, i);
		kvl_lease_t lease;
		int32_t st;
		g.expected = 0;
		if (i % 2 == 0 && kvl_expect(p, str("r"), &g.expected) != KVL_OK)
			g.expected = 0;
		st = kvl_grant(p, &g, &lease);
		if (st == KVL_ERR_FULL) {
			if (g.expected != 0)
				kvl_cancel(p, g.expected);
			sched_yield();
			continue;
		}
		CHECK_STATUS(st, KVL_OK);
		i++;
		++*grants;
		CHECK_STATUS(i % 3 == 0 ? kvl_revoke(p, lease) : kvl_cancel(p, lease), KVL_OK);
	}
	return NULL;
}

static void *stepper(void *arg)
{
	(void)arg;
	while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
		int32_t st = kvl_step(ctx);
		if (st == KVL_ERR_BUSY)
			sched_yield(), __atomic_fetch_add(&busy, 1, __ATOMIC_RELAXED);
		else
			CHECK_STATUS(st, KVL_OK);
	}
	return NULL;
}

static void take_events(void)
{
	kvl_event_t evs[32];
	int32_t n = kvl_poll(ctx, evs, sizeof *evs, 32);
	CHECK(n >= 0);
	for (int32_t i = 0; i < n; i++) {
		freed += evs[i].kind == KVL_EV_FREED;
		read_done += evs[i].kind == KVL_EV_READ_DONE;
	}
}

/* Every tracking slot is still there to be taken, however the producers' lists and the core's have crossed. */
static uint32_t slots_left(void)
{
	kvl_remote_t r = remote_of("remote");
	uint32_t n = 0;
	for (int i = 1; i < PRODUCERS; i++) {
		for (;;) {
			kvl_track_t t;
			int32_t st = kvl_track(producers[i], 1, &r, str("l"), 0, &t);
			if (st == KVL_ERR_FULL && strstr(kvl_last_error(), "tracked_max") != NULL)
				break;
			n += st == KVL_OK;
			if (st != KVL_OK)
				CHECK_STATUS(kvl_step(ctx), KVL_OK);
		}
	}
	return n;
}

/* While a step runs, what steps by itself is refused. */
static void call_what_steps(void)
{
	CHECK_STATUS(kvl_step(ctx), KVL_ERR_BUSY);
	CHECK_STATUS(kvl_drain(ctx, 0), KVL_ERR_BUSY);
	CHECK_STATUS(kvl_unregister(ctx), KVL_ERR_BUSY);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_ERR_BUSY);
	in_step = 1;
}

int main(void)
{
	pthread_t t[PRODUCERS], steps[2];
	uint32_t running = PRODUCERS;
	fake_core_t *f;
	ctx = open_ctx("{\"leases\":32,\"tracks\":300,\"ring_bytes\":4096,\"events_bytes\":1048576}");
	f = fake_last();
	for (int i = 0; i < 2; i++) /* two, of which one is always refused */
		pthread_create(&steps[i], NULL, stepper, NULL);
	pthread_create(&t[0], NULL, owner, &counts[0]);
	for (int i = 1; i < PRODUCERS; i++)
		pthread_create(&t[i], NULL, reader, &counts[i]);
	while (running > 0) {
		take_events();
		sched_yield();
		if (pthread_tryjoin_np(t[PRODUCERS - running], NULL) == 0)
			running--;
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < 2; i++)
		pthread_join(steps[i], NULL);
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	take_events();
	for (uint32_t before = UINT32_MAX; before != freed + read_done;) {
		before = freed + read_done;
		take_events();
	}
	CHECK_EQ(freed, counts[0]);
	CHECK_EQ(read_done, counts[1] + counts[2] + counts[3]);
	CHECK(read_done > 0);
	CHECK_EQ(f->live_tracks, 0);
	CHECK_EQ(slots_left(), 300);
	f->inside = call_what_steps;
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK(in_step);
	CHECK_EQ(f->overlaps, 0);
	printf("%u leases, %u reads, %u steps refused\n", freed, read_done, busy);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
	return 0;
}
