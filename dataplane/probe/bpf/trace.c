//go:build ignore

/* The in-kernel half of `kvlease trace`: one program for all trace sites. It times the ways between sites and keeps a
 * histogram for each stage and pair of engines; the other half (package probe) reads the maps.
 *
 * Bounds: every map has a size. Those of what is on its way (lru_*) forget the entry that was used least; histograms that find no room
 * are added to the one of their stage for all others. Both are counted. Struct and enum names are the ones that Go sees.
 */
#include "kernel.h"

/* Low half of a cookie: the site, in the order of dataplane/trace. High half: the process, as our pid namespace calls it; 0 where a
 * probe is for all processes of a file. */
enum site {
	SITE_HOOK_SUBMIT = 0,
	SITE_HOOK_DRAINED = 1,
	SITE_STEP_BEGIN = 2,
	SITE_STEP_END = 3,
	SITE_BATCH_POSTED = 4,
	SITE_NOTIFICATION_SEEN = 5,
	SITE_BATCH_EXTENDED = 6,
	SITE_READ_POSTED = 9,
	SITE_DATA_ARRIVED = 10,
	SITE_FENCE_CHECKED = 11,
	SITE_READ_REPORTED = 12,
	SITE_STALL_GAP = 14,
};

enum stage {
	STAGE_DRAINED,   /* hook -> its record taken from the ring */
	STAGE_POSTED,    /* the step's last drained ring, its begin without one -> a message of heartbeats posted */
	STAGE_SEEN,      /* posted -> the receiver begins to apply it */
	STAGE_EXTENDED,  /* seen -> applied */
	STAGE_RENEWED,   /* posted -> applied */
	STAGE_SLACK,     /* no way: what the shortest lease of a message had left */
	STAGE_ARRIVED,   /* read posted -> all its data is there */
	STAGE_FENCED,    /* data -> the fence has answered */
	STAGE_REPORTED,  /* fence -> told to the host */
	STAGE_READ,      /* read posted -> told to the host, accepted */
	STAGE_READ_FAIL, /* the same, not accepted */
	STAGE_STEP,      /* begin -> end of a step */
	STAGE_STALL,     /* no way: gaps between steps above stall_gap */
	STAGE_COUNT,
};

enum counter {
	COUNTER_HITS,
	COUNTER_OUTLIERS_LOST,  /* the ring of outliers was full */
	COUNTER_FOLDED,         /* values added to the histogram of all others */
	COUNTER_VALUES_LOST,    /* no histogram at all */
	COUNTER_HOOKS_SKIPPED,  /* more hooks between two drains than are timed */
	COUNTER_POST_NO_STEP,   /* posted, and the begin of the step is not known */
	COUNTER_POST_UNSEEN,    /* posted, and its number came up again before anybody saw it */
	COUNTER_SEEN_NO_POST,   /* seen, and its post is not known */
	COUNTER_SEEN_DIFFERS,   /* seen with another count of requests than the post of that number had */
	COUNTER_EXTENDED_NO_SEEN,
	COUNTER_READ_NO_POST,   /* a later point of a read whose post is not known */
	COUNTER_STEP_NO_BEGIN,
	COUNTER_ADDED_POSTS,    /* entries put into each lru_* map and taken out again: what is neither there nor taken was evicted */
	COUNTER_TAKEN_POSTS,
	COUNTER_ADDED_SEEN,
	COUNTER_TAKEN_SEEN,
	COUNTER_ADDED_READS,
	COUNTER_TAKEN_READS,
	COUNTER_ADDED_STEPS,
	COUNTER_ADDED_THREADS,
	COUNTER_ADDED_PRODUCERS,
	COUNTER_ADDED_SELVES,
	COUNTER_COUNT,
};

/* Values up to 2^41 ns, about 36 minutes: four buckets between powers of two. */
#define BUCKETS 160

/* A context: its process << 32 | its number there. */
struct series {
	u64 from; /* sender's hash; the context's where a stage is inside one */
	u64 to;   /* receiver's hash, owner's hash, 0 */
	u32 stage;
	u32 pad;
};

struct histogram {
	u64 count, sum, max;
	u64 buckets[BUCKETS];
};

struct message {
	u64 from, to, ranks, number;
};

struct post {
	u64 at;
	u64 requests;
};

struct application {
	u64 thread, from, to, number;
};

struct seen {
	u64 at;
	u64 posted; /* 0: not known */
};

struct track {
	u64 context, track;
};

struct transfer {
	u64 posted, arrived, fenced, owner;
};

struct step {
	u64 begin; /* 0: none runs */
	u64 drained;
};

struct producer {
	u64 context, producer;
};

#define HOOKS 64
struct hooks {
	u64 pushed, popped;
	struct {
		u64 position, at;
	} entries[HOOKS];
};

struct self {
	u64 context, hash;
};

struct outlier {
	u64 end, took, from, to;
	u64 what; /* of messages number << 32 | requests, of reads the track, of steps the work done, of gaps the backlog */
	u32 stage, process, thread, pad;
};

/* Set before the program is loaded. */
volatile const u64 outlier_ns = ~0ULL; /* values from here on go into the ring */
volatile const u64 pidns_dev, pidns_ino; /* our pid namespace; 0: it is the first one, whose numbers are the kernel's own */

struct {
	MAP_UINT(type, MAP_PERCPU_ARRAY);
	MAP_UINT(max_entries, COUNTER_COUNT);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u64);
} counters SEC(".maps");

struct {
	MAP_UINT(type, MAP_PERCPU_HASH);
	MAP_UINT(max_entries, 4096);
	MAP_UINT(map_flags, MAP_NO_PREALLOC);
	MAP_TYPE(key, struct series);
	MAP_TYPE(value, struct histogram);
} histograms SEC(".maps");

/* What new entries begin with: too large for the stack. */
struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct histogram);
} zero SEC(".maps");

struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, 16384);
	MAP_TYPE(key, struct message);
	MAP_TYPE(value, struct post);
} lru_posts SEC(".maps");

struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, 16384);
	MAP_TYPE(key, struct application);
	MAP_TYPE(value, struct seen);
} lru_seen SEC(".maps");

struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, 16384);
	MAP_TYPE(key, struct track);
	MAP_TYPE(value, struct transfer);
} lru_reads SEC(".maps");

struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, 4096);
	MAP_TYPE(key, u64); /* context */
	MAP_TYPE(value, struct step);
} lru_steps SEC(".maps");

struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, 4096);
	MAP_TYPE(key, u64);   /* thread */
	MAP_TYPE(value, u64); /* the context whose step it ran last */
} lru_threads SEC(".maps");

struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, 1024);
	MAP_TYPE(key, struct producer);
	MAP_TYPE(value, struct hooks);
} lru_producers SEC(".maps");

/* Under which hashes a context sends and receives: its engine's, in stock text its agent's. */
struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, 4096);
	MAP_TYPE(key, struct self);
	MAP_TYPE(value, u64); /* when first */
} lru_selves SEC(".maps");

struct {
	MAP_UINT(type, MAP_RINGBUF);
	MAP_UINT(max_entries, 1 << 18);
} outliers SEC(".maps");

/* Named by a variable, so that the generated Go has these types. */
const struct {
	struct outlier outlier;
	enum site site;
	enum stage stage;
	enum counter counter;
} *types __attribute__((unused));

/* A handler can be preempted by another one on its CPU, hence the atomics on memory that is a CPU's own. */

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

/* Clocks of two CPUs may differ by some ns. */
ALWAYS_INLINE u64 since(u64 then, u64 now) { return now > then ? now - then : 0; }

/* A full barrier, which an addition whose result nobody uses is not on every processor. */
ALWAYS_INLINE void advance(u64 *n, u64 from) { __sync_val_compare_and_swap(n, from, from + 1); }

ALWAYS_INLINE void hook_submit(const struct hit *hit)
{
	struct producer key = {.context = hit->context, .producer = hit->b};
	struct hooks *p = map_lookup(&lru_producers, &key);
	if (!p) {
		u32 first = 0;
		void *nothing = map_lookup(&zero, &first);
		if (!nothing)
			return;
		if (!map_update(&lru_producers, &key, nothing, UPDATE_NOEXIST))
			count(COUNTER_ADDED_PRODUCERS);
		p = map_lookup(&lru_producers, &key);
		if (!p)
			return;
	}
	u64 n = p->pushed;
	if (n != p->popped && (s64)(hit->c - p->entries[(n - 1) % HOOKS].position) < 0) /* its process died, and another one has its number */
		p->popped = n;
	if (n - p->popped >= HOOKS) {
		count(COUNTER_HOOKS_SKIPPED);
		return;
	}
	p->entries[n % HOOKS].position = hit->c;
	p->entries[n % HOOKS].at = hit->now;
	advance(&p->pushed, n); /* one thread pushes, one pops */
}

ALWAYS_INLINE void hook_drained(const struct hit *hit)
{
	struct step *step = map_lookup(&lru_steps, &hit->context);
	if (step)
		step->drained = hit->now;
	struct producer key = {.context = hit->context, .producer = hit->b};
	struct hooks *p = map_lookup(&lru_producers, &key);
	if (!p)
		return;
	struct histogram *h = 0;
	u64 pushed = __sync_val_compare_and_swap(&p->pushed, 0, 0); /* entries below it are seen */
	for (int i = 0; i < HOOKS; i++) {
		u64 n = p->popped;
		if (n == pushed || (s64)(hit->c - p->entries[n % HOOKS].position) < 0)
			break;
		if (!h)
			h = histogram_of(hit->context, 0, STAGE_DRAINED);
		u64 took = since(p->entries[n % HOOKS].at, hit->now);
		if (h)
			add(h, took);
		tell(hit, hit->context, 0, STAGE_DRAINED, took);
		advance(&p->popped, n);
	}
}

ALWAYS_INLINE void step_begin(const struct hit *hit)
{
	u64 *context = map_lookup(&lru_threads, &hit->thread);
	if (context) {
		*context = hit->context;
	} else if (!map_update(&lru_threads, &hit->thread, &hit->context, UPDATE_ANY)) {
		count(COUNTER_ADDED_THREADS);
	}
	struct step *step = map_lookup(&lru_steps, &hit->context);
	if (step) {
		step->begin = step->drained = hit->now;
		return;
	}
	struct step fresh = {.begin = hit->now, .drained = hit->now};
	if (!map_update(&lru_steps, &hit->context, &fresh, UPDATE_ANY))
		count(COUNTER_ADDED_STEPS);
}

ALWAYS_INLINE void step_end(const struct hit *hit)
{
	struct step *step = map_lookup(&lru_steps, &hit->context);
	if (!step || !step->begin) {
		count(COUNTER_STEP_NO_BEGIN);
		return;
	}
	value(hit, hit->context, 0, STAGE_STEP, since(step->begin, hit->now));
	step->begin = 0;
}

/* The context whose step this thread runs goes by this hash. */
ALWAYS_INLINE u64 known_as(const struct hit *hit, u64 hash)
{
	u64 *context = map_lookup(&lru_threads, &hit->thread);
	if (!context)
		return 0;
	struct self key = {.context = *context, .hash = hash};
	if (!map_lookup(&lru_selves, &key) && !map_update(&lru_selves, &key, &hit->now, UPDATE_ANY))
		count(COUNTER_ADDED_SELVES);
	return key.context;
}

ALWAYS_INLINE void batch_posted(const struct hit *hit)
{
	u64 context = known_as(hit, hit->a);
	struct step *step = map_lookup(&lru_steps, &context);
	if (step && step->begin)
		value(hit, hit->a, hit->b, STAGE_POSTED, since(step->drained, hit->now));
	else
		count(COUNTER_POST_NO_STEP);

	struct message key = {.from = hit->a, .to = hit->b, .ranks = hit->c, .number = hit->d >> 32};
	struct post fresh = {.at = hit->now, .requests = (u32)hit->d};
	struct post *old = map_lookup(&lru_posts, &key);
	if (old) {
		count(COUNTER_POST_UNSEEN);
		*old = fresh;
	} else if (!map_update(&lru_posts, &key, &fresh, UPDATE_ANY)) {
		count(COUNTER_ADDED_POSTS);
	}
}

ALWAYS_INLINE void notification_seen(const struct hit *hit)
{
	known_as(hit, hit->b);
	struct message message = {.from = hit->a, .to = hit->b, .ranks = hit->c, .number = hit->d >> 32};
	struct application key = {.thread = hit->thread, .from = hit->a, .to = hit->b, .number = hit->d >> 32};
	struct seen fresh = {.at = hit->now};
	struct post *post = map_lookup(&lru_posts, &message);
	if (!post) {
		count(COUNTER_SEEN_NO_POST);
	} else {
		u32 posted = (u32)post->requests, seen = (u32)hit->d;
		if (posted && seen && posted != seen) {
			count(COUNTER_SEEN_DIFFERS);
		} else {
			fresh.posted = post->at;
			value(hit, hit->a, hit->b, STAGE_SEEN, since(post->at, hit->now));
		}
		if (!map_delete(&lru_posts, &message))
			count(COUNTER_TAKEN_POSTS);
	}
	struct seen *old = map_lookup(&lru_seen, &key);
	if (old)
		*old = fresh;
	else if (!map_update(&lru_seen, &key, &fresh, UPDATE_ANY))
		count(COUNTER_ADDED_SEEN);
}

ALWAYS_INLINE void batch_extended(const struct hit *hit)
{
	struct application key = {.thread = hit->thread, .from = hit->a, .to = hit->b, .number = hit->c >> 32};
	struct seen *seen = map_lookup(&lru_seen, &key);
	if (!seen) {
		count(COUNTER_EXTENDED_NO_SEEN);
	} else {
		value(hit, hit->a, hit->b, STAGE_EXTENDED, since(seen->at, hit->now));
		if (seen->posted)
			value(hit, hit->a, hit->b, STAGE_RENEWED, since(seen->posted, hit->now));
		if (!map_delete(&lru_seen, &key))
			count(COUNTER_TAKEN_SEEN);
	}
	s64 slack = (s64)hit->d;
	if (hit->d == ~0ULL >> 1) /* no lease was moved */
		return;
	struct histogram *h = histogram_of(hit->a, hit->b, STAGE_SLACK);
	if (h)
		add(h, slack > 0 ? (u64)slack : 0);
}

ALWAYS_INLINE void read_posted(const struct hit *hit)
{
	struct track key = {.context = hit->context, .track = hit->b};
	struct transfer fresh = {.posted = hit->now, .owner = hit->c};
	struct transfer *old = map_lookup(&lru_reads, &key);
	if (old)
		*old = fresh;
	else if (!map_update(&lru_reads, &key, &fresh, UPDATE_ANY))
		count(COUNTER_ADDED_READS);
}

ALWAYS_INLINE void data_arrived(const struct hit *hit)
{
	struct track key = {.context = hit->context, .track = hit->b};
	struct transfer *t = map_lookup(&lru_reads, &key);
	if (!t) {
		count(COUNTER_READ_NO_POST);
		return;
	}
	t->arrived = hit->now;
	value(hit, hit->context, t->owner, STAGE_ARRIVED, since(t->posted, hit->now));
}

ALWAYS_INLINE void fence_checked(const struct hit *hit)
{
	struct track key = {.context = hit->context, .track = hit->b};
	struct transfer *t = map_lookup(&lru_reads, &key);
	if (!t) {
		count(COUNTER_READ_NO_POST);
		return;
	}
	if (!t->arrived) /* of one rank, while data of another is on its way */
		return;
	t->fenced = hit->now;
	value(hit, hit->context, t->owner, STAGE_FENCED, since(t->arrived, hit->now));
}

ALWAYS_INLINE void read_reported(const struct hit *hit)
{
	struct track key = {.context = hit->context, .track = hit->b};
	struct transfer *t = map_lookup(&lru_reads, &key);
	if (!t) {
		if (hit->d) /* 0: nothing was posted */
			count(COUNTER_READ_NO_POST);
		return;
	}
	if (t->fenced)
		value(hit, hit->context, t->owner, STAGE_REPORTED, since(t->fenced, hit->now));
	value(hit, hit->context, t->owner, hit->c ? STAGE_READ_FAIL : STAGE_READ, since(t->posted, hit->now));
	if (!map_delete(&lru_reads, &key))
		count(COUNTER_TAKEN_READS);
}

SEC("uprobe.multi")
int fired(struct pt_regs *regs)
{
	u64 cookie = attach_cookie(regs);
	u32 site = (u32)cookie;
	struct hit hit = {
		.a = ARG_A(regs), .b = ARG_B(regs), .c = ARG_C(regs), .d = ARG_D(regs),
		.now = ktime_ns(), .thread = pid_tgid(), .process = cookie >> 32,
	};
	if (!hit.process) {
		struct pidns_info here;
		if (pidns_ino && !ns_pid_tgid(pidns_dev, pidns_ino, &here, sizeof(here)))
			hit.process = here.tgid;
		else
			hit.process = hit.thread >> 32;
	}
	hit.context = (u64)hit.process << 32 | (u32)hit.a;
	if (site == SITE_BATCH_POSTED || site == SITE_NOTIFICATION_SEEN || site == SITE_STALL_GAP)
		hit.what = hit.d;
	else
		hit.what = site >= SITE_READ_POSTED ? hit.b : hit.c;
	count(COUNTER_HITS);
	switch (site) {
	case SITE_HOOK_SUBMIT:
		hook_submit(&hit);
		break;
	case SITE_HOOK_DRAINED:
		hook_drained(&hit);
		break;
	case SITE_STEP_BEGIN:
		step_begin(&hit);
		break;
	case SITE_STEP_END:
		step_end(&hit);
		break;
	case SITE_BATCH_POSTED:
		batch_posted(&hit);
		break;
	case SITE_NOTIFICATION_SEEN:
		notification_seen(&hit);
		break;
	case SITE_BATCH_EXTENDED:
		batch_extended(&hit);
		break;
	case SITE_READ_POSTED:
		read_posted(&hit);
		break;
	case SITE_DATA_ARRIVED:
		data_arrived(&hit);
		break;
	case SITE_FENCE_CHECKED:
		fence_checked(&hit);
		break;
	case SITE_READ_REPORTED:
		read_reported(&hit);
		break;
	case SITE_STALL_GAP:
		value(&hit, hit.context, 0, STAGE_STALL, hit.b);
		break;
	}
	return 0;
}

/* Not a licence that helpers ask for: none of those used is GPL-only. */
const char licence[] SEC("license") = "Apache-2.0";
