/* Reads: ours with list building and fence, each way of raw NIXL, and memcpy of the same blocks, in turn. */
#include "pair.h"

#include <sys/mman.h>

static uint32_t local_ids[BLOCKS_MAX], remote_ids[BLOCKS_MAX];
static uint64_t seed; /* by the clock: a pair makes one round */

static uint64_t chance(uint64_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed % below;
}

/* n different blocks, in random order or in a row. */
static void choose(uint32_t *ids, uint32_t n, uint32_t blocks, int scattered)
{
	static uint32_t all[BLOCKS_MAX];
	uint32_t first = (uint32_t)chance(blocks - n + 1);
	for (uint32_t i = 0; i < blocks; i++)
		all[i] = i;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t j = i + (uint32_t)chance(blocks - i), t = all[i];
		all[i] = all[j];
		all[j] = t;
		ids[i] = scattered ? all[i] : first + i;
	}
}

/* The longest pass of the last read of ours, with the call that begins it: in the thread's processor time, since on a few cores the
 * rest is other threads' turns. */
static uint64_t longest;

static uint64_t cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void wait_done(struct side *d, kvl_track_t track)
{
	kvl_event_t e;
	for (uint64_t start = cpu_ns(), end;; start = cpu_ns()) {
		must(kvl_step(d->ctx), "kvl_step");
		if ((end = cpu_ns()) - start > longest)
			longest = end - start;
		while (kvl_poll(d->ctx, &e, sizeof e, 1) == 1) {
			if (e.handle != track)
				continue;
			if (e.kind == KVL_EV_READ_DONE)
				return;
			if (e.kind == KVL_EV_READ_FAILED)
				die("read failed, status %d", e.status);
		}
	}
}

static uint64_t ours(const struct plan *plan, struct side *d, const struct peer *p, uint32_t n)
{
	static uint8_t buf[REPLY_MAX];
	kvl_remote_t remote;
	kvl_track_t track;
	ask_grant(p, remote_ids, n, &remote, buf, sizeof buf);
	must(kvl_track(d->producer, p->engine, &remote, (kvl_bytes_t){"local", 5}, 0, &track), "kvl_track");
	for (uint64_t end = now_ns() + 2000000; now_ns() < end;) /* first beat and row are out before the read */
		must(kvl_step(d->ctx), "kvl_step");
	uint64_t part = plan->block_len / plan->ranks;
	for (uint32_t i = 0; i < n * plan->ranks; i++)
		memset(d->kv + local_ids[i / plan->ranks] * plan->block_len + i % plan->ranks * part, 0xff, 8);

	kvl_blocks_t local = {local_ids, n, 0}, theirs = {remote_ids, n, 0};
	kvl_read_t read = {.size = sizeof read, .groups_n = 1, .local = &local, .remote = &theirs};
	uint64_t start = now_ns(), cpu = cpu_ns();
	must(kvl_read(d->producer, track, &read), "kvl_read");
	longest = cpu_ns() - cpu;
	wait_done(d, track);
	uint64_t took = now_ns() - start;

	for (uint32_t i = 0; i < n * plan->ranks; i++) {
		uint32_t local = local_ids[i / plan->ranks], remote = remote_ids[i / plan->ranks], r = i % plan->ranks;
		uint64_t got;
		memcpy(&got, d->kv + local * plan->block_len + r * part, sizeof got);
		if (got != (uint64_t)remote * RANKS_MAX + r)
			die("block %u holds in part %u what was in %llu, not in %u", local, r, (unsigned long long)got / RANKS_MAX, remote);
	}
	ask(p, OP_FREED, 0);
	return took;
}

static uint64_t raw(enum raw_way way, const struct plan *plan, struct side *d, const struct peer *p, uint32_t n)
{
	uint64_t start = now_ns();
	raw_read(way, (uint64_t)(uintptr_t)d->kv, p->base, plan->block_len, local_ids, remote_ids, n);
	return now_ns() - start;
}

static uint64_t copied(const struct plan *plan, struct side *d, const uint8_t *from, uint32_t n)
{
	uint64_t start = now_ns();
	for (uint32_t i = 0; i < n; i++)
		memcpy(d->kv + local_ids[i] * plan->block_len, from + remote_ids[i] * plan->block_len, plan->block_len);
	return now_ns() - start;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

enum { OURS = RAW_WAYS, MEMCPY, WAYS, STEP = WAYS, KINDS, INNER_MAX = 20, SETTLE_NS = 500000 };

static uint64_t one_way(int way, const struct plan *plan, struct side *d, const struct peer *p, const uint8_t *from, uint32_t n)
{
	sleep_ns(SETTLE_NS); /* P has put away what came before, whatever it was */
	switch (way) {
	case OURS:
		return ours(plan, d, p, n);
	case MEMCPY:
		return copied(plan, d, from, n);
	default:
		return raw((enum raw_way)way, plan, d, p, n);
	}
}

/* One round of one shape: every way reads the same blocks, in random order, since what went before leaves P and its caches
 * busy or not; the median of a few is the sample. */
static void one_round(const struct plan *plan, struct side *d, const struct peer *p, const uint8_t *from, uint32_t n, int scattered, int count)
{
	static uint64_t took[KINDS][INNER_MAX];
	uint32_t inner = n == 1 ? 20 : n * plan->block_len <= 16 << 20 ? 5 : 1;
	for (uint32_t i = 0; i < inner; i++) {
		choose(local_ids, n, plan->blocks, scattered);
		choose(remote_ids, n, plan->blocks, scattered);
		uint32_t order[WAYS];
		choose(order, WAYS, WAYS, 1);
		for (uint32_t k = 0; k < WAYS; k++) {
			int way = (int)order[k];
			took[way][i] = one_way(way, plan, d, p, from, n);
			if (way == OURS)
				took[STEP][i] = longest;
		}
	}
	for (int way = 0; count && way < KINDS; way++) {
		char name[96];
		qsort(took[way], inner, sizeof took[way][0], by_value);
		snprintf(name, sizeof name, "reads.%llu.%u.%s.%s", (unsigned long long)plan->block_len, n,
		         n == 1 ? "one" : scattered ? "scattered" : "contiguous",
		         way < RAW_WAYS ? raw_names[way] : way == OURS ? "ours" : way == MEMCPY ? "memcpy" : "step");
		say(name, (double)took[way][inner / 2] / 1000);
	}
}

void reads_run(const struct plan *plan, struct side *d, const struct peer *p)
{
	static const uint32_t counts[] = {1, 256, 4096};
	uint8_t *from = mmap(NULL, plan->block_len * plan->blocks, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (from == MAP_FAILED)
		die("no memory");
	seed = now_ns() | 1;
	raw_prepare((uint64_t)(uintptr_t)d->kv, p->base, plan->block_len, plan->blocks);
	for (uint32_t round = 0; round <= plan->rounds; round++) { /* the first warms up */
		for (uint32_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
			uint32_t n = counts[c] < plan->blocks ? counts[c] : plan->blocks;
			one_round(plan, d, p, from, n, 0, round > 0);
			if (n > 1)
				one_round(plan, d, p, from, n, 1, round > 0);
		}
	}
}
