/* How a value is kept: in the histogram of its stage and pair of engines, in that of its stage for all others where there is no room, and
 * in the ring of outliers if it is long enough.
 *
 * A handler can be preempted by another one on its CPU, hence the atomics on memory that is a CPU's own.
 */
#ifndef KVL_BPF_VALUES_H
#define KVL_BPF_VALUES_H

ALWAYS_INLINE void count(u32 counter)
{
	u64 *n = map_lookup(&counters, &counter);
	if (n)
		__sync_fetch_and_add(n, 1);
}

ALWAYS_INLINE u32 bucket_of(u64 v)
{
	u32 e = 0;
	if (v < 4)
		return (u32)v;
	if (v >> 32)
		e += 32;
	if (v >> (e + 16))
		e += 16;
	if (v >> (e + 8))
		e += 8;
	if (v >> (e + 4))
		e += 4;
	if (v >> (e + 2))
		e += 2;
	if (v >> (e + 1))
		e += 1;
	u32 i = 4 * (e - 1) + ((u32)(v >> (e - 2)) & 3);
	return i < BUCKETS ? i : BUCKETS - 1;
}

ALWAYS_INLINE struct histogram *histogram_of(u64 from, u64 to, u32 stage)
{
	struct series key = {.from = from, .to = to, .stage = stage};
	struct histogram *h = map_lookup(&histograms, &key);
	if (h)
		return h;
	u32 first = 0;
	void *nothing = map_lookup(&zero, &first);
	if (!nothing)
		return 0;
	map_update(&histograms, &key, nothing, UPDATE_NOEXIST); /* or another CPU has */
	h = map_lookup(&histograms, &key);
	if (h)
		return h;
	count(COUNTER_FOLDED);
	struct series others = {.stage = stage}; /* put there before anything is attached */
	h = map_lookup(&histograms, &others);
	if (!h)
		count(COUNTER_VALUES_LOST);
	return h;
}

ALWAYS_INLINE void add(struct histogram *h, u64 v)
{
	__sync_fetch_and_add(&h->count, 1);
	__sync_fetch_and_add(&h->sum, v);
	u32 i = bucket_of(v);
	if (i < BUCKETS) /* for the verifier */
		__sync_fetch_and_add(&h->buckets[i], 1);
	for (int tries = 0; tries < 4; tries++) {
		u64 max = h->max;
		if (v <= max || __sync_val_compare_and_swap(&h->max, max, v) == max)
			break;
	}
}

/* One hit of a site. */
struct hit {
	u64 a, b, c, d;
	u64 what; /* of an outlier */
	u64 now;
	u64 thread;
	u64 context; /* of a, where that is a context's number */
	u32 process;
};

/* A value of a stage that is long enough to be told. */
static __attribute__((noinline)) int tell(const struct hit *hit, u64 from, u64 to, u32 stage, u64 took)
{
	if (took < outlier_ns)
		return 0;
	struct outlier o = {
		.end = hit->now, .took = took, .from = from, .to = to, .what = hit->what,
		.stage = stage, .process = hit->process, .thread = (u32)hit->thread,
	};
	if (ringbuf_output(&outliers, &o, sizeof(o), 0))
		count(COUNTER_OUTLIERS_LOST);
	return 0;
}

static __attribute__((noinline)) int value(const struct hit *hit, u64 from, u64 to, u32 stage, u64 took)
{
	struct histogram *h = histogram_of(from, to, stage);
	if (h)
		add(h, took);
	return tell(hit, from, to, stage, took);
}

#endif
