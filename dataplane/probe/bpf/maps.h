/* What the program keeps: its sites, stages and counters, and the maps that package probe reads. Struct and enum names are the ones that
 * Go sees.
 *
 * Bounds: every map has a size. Those of what is on its way (lru_*) forget the entry that was used least.
 */
#ifndef KVL_BPF_MAPS_H
#define KVL_BPF_MAPS_H

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
	u64 what; /* of messages number << 32 | requests, of reads the track, of hooks the ring's position, of steps the work done, of gaps the
	           * backlog */
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

#endif
