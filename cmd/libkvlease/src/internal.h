/* What the parts of libkvlease.so share. Nothing in here leaves the library. Compiled with _GNU_SOURCE. */
#ifndef KVL_INTERNAL_H
#define KVL_INTERNAL_H

#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "../sites/sites.h"
#include "core.h"
#include "kvlease.h"
#include "kvlease/ring.h"
#include "layout.h"

#define KVL_LIKELY(x) __builtin_expect(!!(x), 1)
#define KVL_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define KVL_COLD __attribute__((noinline, cold))

#define KVL_CTX_MAGIC 0x786c766bu      /* 'kvlx' */
#define KVL_CTX_CLOSED 0x7a6c766bu     /* 'kvlz': of a context that kvl_close has ended */
#define KVL_PRODUCER_MAGIC 0x706c766bu /* 'kvlp' */
#define KVL_ERR_TEXT 512u              /* bytes of an error text, with the zero */
#define KVL_REGION_GROUPS 32u          /* transfer groups that regions may name: 0 .. 31 */
#define KVL_ADDR_MAX 255u              /* bytes of HOST:PORT */
#define KVL_GROUPS_MAX 4096u           /* transfer groups of one request */

#define KVL_LOAD(p, order) __atomic_load_n((p), __ATOMIC_##order)
#define KVL_STORE(p, v, order) __atomic_store_n((p), (v), __ATOMIC_##order)

/* Calls that may not run twice at once on a context. */
/* What is registered with a context. */
enum { KVL_REGISTERED_HOST = 1, KVL_REGISTERED_DEVICE /* also device memory: events can be asked */ };

enum kvl_call {
	KVL_CALL_STEP,
	KVL_CALL_POLL,
	KVL_CALL_CLOSE,
	KVL_CALL_DRAIN,
	KVL_CALL_REGISTER,
	KVL_CALL_UNREGISTER,
	KVL_CALL_ENGINE_ADD,
	KVL_CALL_ENGINE_REMOVE,
	KVL_CALL_ENGINE_HANDSHAKE,
	KVL_CALL_HANDSHAKE_GET,
	KVL_CALL_HANDSHAKE_SET,
	KVL_CALL_DELTA_TAKE,
	KVL_CALL_DELTA_PUT,
	KVL_CALL_STATS,
	KVL_CALL_CONFIG_JSON,
	KVL_CALL_LOG_TAKE,
	KVL_CALL_METRICS_LISTEN,
	KVL_CALL_METRICS_TEXT,
	KVL_CALL_WAIT_FD,
	KVL_CALLS
};

/* One thread's way in. Only that thread touches it. */
struct kvl_producer {
	uint32_t magic;
	uint32_t index;
	kvl_ctx_t *ctx;
	kvl_ring_producer_t ring;
	uint32_t overflowing; /* 1 until the overflow ring has been seen empty */
	uint32_t track_list;  /* own free tracking slots */
	uint64_t said_ns;     /* what the tracks that wait in the ring carry: when the first of them was said */
	uint64_t said_tail;   /* the ring's tail then; once it has moved, that one may have been taken */
	kvl_ring_producer_t overflow;
	uint32_t rejects; /* bytes of rejects in the overflow ring since it was last empty */
} __attribute__((aligned(128)));

/* Bits of kvl_ctx.nudge: who waits for a publish. */
enum {
	KVL_NUDGE_PUMP = 1, /* pump mode: the pump may be asleep */
	KVL_NUDGE_LOOP = 2  /* inline mode: the host's loop may wait on kvl_wait_fd */
};

struct kvl_ctx {
	/* read by every hook, written at open */
	uint32_t magic; /* atomic: KVL_CTX_MAGIC, at the end KVL_CTX_CLOSED */
	uint32_t nudge; /* atomic: KVL_NUDGE_* */
	kvl_control_t *control;
	kvl_slot_t *slots;
	kvl_track_slot_t *tracks;
	uint8_t *board;
	struct kvl_producer *producers;
	kvl_core_sizes_t sizes;
	uint64_t *fixed_ends; /* by lease slot: CLOCK_MONOTONIC of the end of its present use, if that is fixed; else never touched */
	int64_t boot_ns; /* atomic: CLOCK_BOOTTIME - CLOCK_MONOTONIC at the last step or pass */

	/* slot allocation */
	uint32_t lease_fresh __attribute__((aligned(64))); /* granting producer only: slots never used begin here */
	uint32_t lease_list;                               /* granting producer only */
	uint32_t granter;        /* atomic: index + 1 of the producer that grants; 0: none yet */
	uint32_t track_fresh;    /* atomic */
	uint32_t producers_open; /* atomic */

	/* what kvl_register said, for the block ids of hooks */
	uint32_t registered;                        /* atomic: KVL_REGISTERED_*; not 0: the limits below hold */
	uint32_t block_limits[KVL_REGION_GROUPS];   /* atomic: ids of a group must be below it; 0: no region has the group */

	/* off the hot path */
	int64_t core __attribute__((aligned(64)));
	uint8_t busy[KVL_CALLS]; /* atomic */
	kvl_ring_consumer_t events;
	char *params_info; /* members of the JSON object, without braces; "" if it is empty */
	size_t params_info_len;
	uint8_t *arena;
	size_t arena_bytes;

	/* kvl_wait_fd */
	int epoll_fd; /* -1 until asked for */
	int timer_fd;
	uint32_t kicked;      /* atomic, KVL_KICK_*: published since the last step began, and the timer made readable for it */
	uint32_t tick_stale;  /* the stepping thread's: the timer does not stand at tick_due_ns */
	uint64_t tick_due_ns; /* the stepping thread's; 0: the timer rests */

	struct kvl_ctx *closed; /* of the list of closed contexts: the one before */

	/* the report after a poisoning, under KVL_CALL_POLL */
	uint32_t report;      /* KVL_REPORT_* */
	uint32_t report_slot; /* next slot to look at */
	uint32_t report_left; /* unchecked leases that wait for their time */
};

/* ---- abi.c: errors and entry ---- */

/* Keep the text for kvl_last_error and return the status. */
int32_t kvl_fail(int32_t status, const char *format, ...) __attribute__((format(printf, 2, 3), cold, noinline));
/* The calling thread's error text, KVL_ERR_TEXT bytes, for hooks that write their own. */
char *kvl_error_text(void);
int32_t kvl_fail_ctx(const kvl_ctx_t *ctx) KVL_COLD;
int32_t kvl_fail_producer(const kvl_producer_t *p) KVL_COLD;
/* Why new work is refused now: poisoned, draining, or the overflow list. */
int32_t kvl_fail_gate(const kvl_ctx_t *ctx) KVL_COLD;

/* ---- fork.c ---- */
extern const volatile uint32_t *kvl_fork_word; /* 1, and 0 in a child of a process that had opened a context */
int32_t kvl_fork_arm(void);
int32_t kvl_fail_forked(void) KVL_COLD;

#define KVL_ENTER_ANY()                                                                                                \
	do {                                                                                                           \
		if (KVL_UNLIKELY(*KVL_LOAD(&kvl_fork_word, ACQUIRE) == 0))                                                                 \
			return kvl_fail_forked();                                                                      \
	} while (0)

#define KVL_ENTER(ctx)                                                                                                 \
	do {                                                                                                           \
		KVL_ENTER_ANY();                                                                                       \
		if (KVL_UNLIKELY((ctx) == NULL || (uintptr_t)(ctx) % 64 != 0 ||                                        \
				 KVL_LOAD(&(ctx)->magic, ACQUIRE) != KVL_CTX_MAGIC))                                   \
			return kvl_fail_ctx(ctx);                                                                      \
	} while (0)

#define KVL_ENTER_PRODUCER(p)                                                                                          \
	do {                                                                                                           \
		KVL_ENTER_ANY();                                                                                       \
		if (KVL_UNLIKELY((p) == NULL || (uintptr_t)(p) % 128 != 0 || (p)->magic != KVL_PRODUCER_MAGIC))        \
			return kvl_fail_producer(p);                                                                   \
	} while (0)

/* Refuses a hook for want of room, and counts it in a word of the control page. */
#define kvl_fail_full(ctx, word, ...)                                                                                  \
	(__atomic_fetch_add(&(ctx)->control->word, 1, __ATOMIC_RELAXED), kvl_fail(KVL_ERR_FULL, __VA_ARGS__))

static inline int kvl_call_begin(kvl_ctx_t *ctx, enum kvl_call call)
{
	return __atomic_exchange_n(&ctx->busy[call], 1, __ATOMIC_ACQUIRE) == 0;
}

static inline void kvl_call_end(kvl_ctx_t *ctx, enum kvl_call call) { KVL_STORE(&ctx->busy[call], 0, RELEASE); }

/* What a call meets that another thread is inside; for good, if that is a kvl_close that has succeeded. */
int32_t kvl_fail_busy(const kvl_ctx_t *ctx) KVL_COLD;

/* For calls that the core carries out: one at a time, and an empty text, so that a core's own is known from none. */
#define KVL_BEGIN(ctx, call)                                                                                           \
	do {                                                                                                           \
		if (!kvl_call_begin((ctx), (call)))                                                                    \
			return kvl_fail_busy(ctx);                                                                     \
		kvl_error_text()[0] = 0;                                                                               \
	} while (0)

/* ---- calls.c ---- */
/* A hook's failure leaves its text in the thread's error text; one without text gets the status's name. */
int32_t kvl_core_said(const char *call, int32_t st);
/* Calls that step by themselves in inline mode keep the host's steps out; in pump mode the pump has its own lock. */
int32_t kvl_begin_stepping(kvl_ctx_t *ctx, enum kvl_call call);
void kvl_end_stepping(kvl_ctx_t *ctx, enum kvl_call call);

/* Bytes of kvl_remote_t in its first version: callers built then do not know what follows. */
#define KVL_REMOTE_FIRST offsetof(kvl_remote_t, expires_ns)

/* data may be NULL only without bytes */
static inline int kvl_bytes_ok(kvl_bytes_t b, size_t min, size_t max)
{
	return b.len >= min && b.len <= max && (b.data != NULL || b.len == 0);
}

/* n groups of block ids, aligned and not NULL where they have ids. Sets the number of blocks. */
int32_t kvl_check_groups(const char *what, const kvl_blocks_t *groups, uint32_t n, uint32_t *blocks_out);

/* Our own block ids against the regions, once these are registered. After kvl_check_groups. */
int32_t kvl_check_ids(kvl_ctx_t *ctx, const char *what, const kvl_blocks_t *groups, uint32_t n);

/* Copies an id. Ids are short: a few moves here cost less than the call of memcpy, whose length nobody knows. */
static inline void kvl_copy(void *to, const void *from, size_t n)
{
	uint8_t *t = to;
	const uint8_t *f = from;
	if (n >= 16) {
		size_t last = n - 16;
		for (size_t i = 0; i < last; i += 16)
			memcpy(t + i, f + i, 16);
		memcpy(t + last, f + last, 16); /* overlaps what is there */
	} else if (n >= 8) {
		memcpy(t, f, 8);
		memcpy(t + n - 8, f + n - 8, 8);
	} else {
		for (size_t i = 0; i < n; i++)
			t[i] = f[i];
	}
}

static inline uint64_t kvl_clock(clockid_t id)
{
	struct timespec t;
	clock_gettime(id, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- producer.c ---- */

/* Room for a control record that may not be lost, in the main ring or the overflow ring; *overflow_out says which. */
void *kvl_control_reserve(kvl_producer_t *p, uint32_t tag, uint32_t n, int *overflow_out);
void kvl_control_publish(kvl_producer_t *p, uint32_t tag, uint32_t sleep, int overflow);
void kvl_control_discard(kvl_producer_t *p, int overflow);
/* Whether the overflow ring still holds entries. */
int kvl_overflowing(kvl_producer_t *p) KVL_COLD;
/* Say CANCEL, REVOKE or UNTRACK once: the bit in the state word, then the record. `states` is a mask of 1 << KVL_S_*; what is said of
 * an expectation ends no sleep. */
int32_t kvl_say(kvl_producer_t *p, uint64_t *state, uint64_t handle, uint32_t bit, uint32_t tag, uint32_t states);
/* After a publish: `sleep` is the lightest sleep of the pump, KVL_DOZES and so on, that the record ends. ABI.md has the table. */
void kvl_nudge(kvl_producer_t *p, uint32_t who, uint32_t sleep);
/* Runs through the site hook__submit. */
void kvl_trace_submit(const kvl_producer_t *p, uint32_t tag) KVL_COLD;

/* Whether the context takes new work no more: it is poisoned, or drains. The two words are neighbours: one load. */
static inline int kvl_shut(const kvl_ctx_t *ctx)
{
	_Static_assert(offsetof(kvl_control_t, poisoned) % 8 == 0, "");
	_Static_assert(offsetof(kvl_control_t, draining) == offsetof(kvl_control_t, poisoned) + 4, "");
	return KVL_LOAD((const uint64_t *)(const void *)&ctx->control->poisoned, ACQUIRE) != 0;
}

/* New work of a producer: 0 if it may go on. */
static inline int32_t kvl_gate(kvl_producer_t *p)
{
	if (KVL_UNLIKELY(kvl_shut(p->ctx) || (p->overflowing && kvl_overflowing(p))))
		return kvl_fail_gate(p->ctx);
	return KVL_OK;
}

/* Publish what was reserved in the main ring, records of one tag, and wake whoever waits for it. */
static inline void kvl_publish(kvl_producer_t *p, uint32_t tag, uint32_t sleep)
{
	uint32_t nudge = KVL_LOAD(&p->ctx->nudge, RELAXED);
	if (kvl_site_on(KVL_SITE_hook__submit)) /* before: nobody has drained it yet */
		kvl_trace_submit(p, tag);
	kvl_ring_publish(&p->ring);
	if (KVL_UNLIKELY(nudge != 0))
		kvl_nudge(p, nudge, sleep);
}

/* ---- loader.c ---- */
typedef struct kvl_early { /* what must be known before the core is loaded */
	cpu_set_t cpus;
	int has_cpus;
	uint32_t threads;
} kvl_early_t;

/* Reads the keys `cpus` and `threads`. */
int32_t kvl_early_read(const char *config, size_t len, kvl_early_t *early_out);
/* Runs fn on a thread of its own, whose affinity is that of the core. Text of a failure in err. */
int32_t kvl_on_core_thread(const kvl_early_t *early, int32_t (*fn)(void *arg), void *arg);
/* Loads the core once per process. To be called on the core's thread, under the open lock. */
int32_t kvl_core_load(const kvl_early_t *early, char *err, size_t cap);
extern kvl_core_hooks_t kvl_core;

/* ---- room.c ---- */
/* KVL_ERR_NOMEM and a text if a Go runtime would find too little of something and end the process. */
int32_t kvl_room_for_core(uint32_t threads, char *err, size_t cap);

/* ---- siphash.c ---- */
uint64_t kvl_siphash(const uint64_t key[2], uint64_t message);

/* Who we are to readers: what the parameters of a lease are made with. */
typedef struct kvl_era {
	uint64_t epoch, secret[2];
} kvl_era_t;

/* E2: the words between two equal even values of the counter. Pairs with E1 in the core, which makes the counter odd before it
 * writes them and even after that (release). 0: it writes just now, off the hot path, while memory is registered again. */
static inline int kvl_era_read(const kvl_ctx_t *ctx, kvl_era_t *era_out)
{
	const kvl_control_t *c = ctx->control;
	for (int tries = 0; tries < 1000; tries++) { /* three stores; more only if that thread has lost its CPU */
		uint64_t before = KVL_LOAD(&c->era, ACQUIRE);
		era_out->epoch = KVL_LOAD(&c->epoch, RELAXED);
		era_out->secret[0] = KVL_LOAD(&c->secret[0], RELAXED);
		era_out->secret[1] = KVL_LOAD(&c->secret[1], RELAXED);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (KVL_LIKELY((before & 1) == 0 && KVL_LOAD(&c->era, RELAXED) == before))
			return 1;
	}
	return 0;
}
int32_t kvl_fail_era(void) KVL_COLD;

/* The key of a slot's use: SipHash-2-4 over slot u32, g u32, little-endian. */
static inline uint64_t kvl_slot_key(const kvl_era_t *era, uint32_t slot, uint32_t g)
{
	return kvl_siphash(era->secret, (uint64_t)g << 32 | slot);
}

/* ---- events.c, fence.c, waitfd.c ---- */
enum { KVL_REPORT_NONE = 0, KVL_REPORT_CHECKED, KVL_REPORT_UNCHECKED, KVL_REPORT_DONE };
enum { KVL_KICK_NONE = 0, KVL_KICK_BEGUN /* its timer is being set */, KVL_KICK_SET };
void kvl_fence(kvl_ctx_t *ctx);
/* Of a broken host or rank context in inline mode: what the other ends of its carriers are told, and have said. */
void kvl_step_broken(kvl_ctx_t *ctx, uint64_t now);
void kvl_event_signal(kvl_ctx_t *ctx);
void kvl_wake_heard(kvl_ctx_t *ctx);
void kvl_tick_before_step(kvl_ctx_t *ctx);
void kvl_tick_after_step(kvl_ctx_t *ctx, uint64_t now);
void kvl_tick_kick(kvl_ctx_t *ctx);
void kvl_tick_at(kvl_ctx_t *ctx, uint64_t when);
void kvl_wait_close(kvl_ctx_t *ctx);

/* ---- owner.c, reader.c ---- */
/* The lease's slot index, or KVL_NONE if the handle cannot be one of this context. */
static inline uint32_t kvl_lease_slot(const kvl_ctx_t *ctx, uint64_t lease)
{
	uint32_t slot = KVL_HANDLE_SLOT(lease);
	return lease >> 32 != 0 && slot < ctx->sizes.leases ? slot : KVL_NONE;
}

#endif
