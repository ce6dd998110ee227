/**
 * kvlease.h: leases, heartbeats and fenced reads of KV cache blocks between inference engines.
 *
 * C11 and C++ clean. ABI.md says what holds for threads, fork, signals and lifetime; this header says it per function.
 * Every function checks its pointers and returns a status; nothing unwinds, exits or calls back into the host.
 *
 * Threads. A producer belongs to one thread. kvl_step, kvl_poll, kvl_register and the rest of "any one thread" may be
 * called from any thread, but not two of the same function at once: the second gets KVL_ERR_BUSY.
 * kvl_fence_all may be called from anywhere, signal handlers included.
 */
#ifndef KVLEASE_H
#define KVLEASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef KVL_API
#define KVL_API __attribute__((visibility("default")))
#endif

#define KVL_ABI_VERSION 1u
#define KVL_ID_MAX 1024u /* bytes of a request id */

/** What a call answers. 0 is success; names of the negatives by kvl_status_name. */
enum {
	KVL_OK = 0,
	KVL_ERR_FULL = -1,        /* no room for new work now: nothing changed, call again after a step */
	KVL_ERR_INVALID = -2,     /* an argument is wrong: nothing changed, kvl_last_error names it */
	KVL_ERR_STALE = -3,       /* the handle's object has ended */
	KVL_ERR_BUSY = -4,        /* another thread is inside, or work is still in flight */
	KVL_ERR_FORKED = -5,      /* a fork of a process that had opened a context: exec, or open only after the fork */
	KVL_ERR_POISONED = -6,    /* the core is broken: every row is fenced, poll tells the ends */
	KVL_ERR_UNAVAILABLE = -7, /* a library or symbol is missing: the error text names it */
	KVL_ERR_CLOSED = -8,      /* the context is draining or closed */
	KVL_ERR_CONFIG = -9,      /* a key or value of the configuration is wrong: the error text names it */
	KVL_ERR_NOMEM = -10,      /* the system refused memory */
	KVL_ERR_TRANSPORT = -11,  /* the transport refused: the error text says what */
	KVL_ERR_SPACE = -12,      /* the caller's buffer is too small: the needed length is in the output */
	KVL_ERR_PRODUCER = -13,   /* the request belongs to another producer */
	KVL_ERR_TIMEOUT = -14     /* the time given has passed */
};

/** Why a lease ended: status of KVL_EV_FREED. */
enum {
	KVL_FREED_COMPLETED = 1, /* all readers of one engine have read */
	KVL_FREED_RELEASED = 2,  /* a reader said that it never will */
	KVL_FREED_REVOKED = 3,   /* the owner took it back (kvl_revoke, kvl_pressure) */
	KVL_FREED_EXPIRED = 4,   /* the deadline passed, looked at twice */
	KVL_FREED_POISONED = 5,  /* the core broke, or kvl_fence_all was called */
	KVL_FREED_DUPLICATE = 6, /* granted under an id that already holds a lease: this grant never stood */
	KVL_FREED_CLOSED = 7     /* kvl_unregister or kvl_close ended it */
};

/** How a read ended: status of KVL_EV_READ_DONE (OK) and KVL_EV_READ_FAILED (the others). */
enum {
	KVL_READ_OK = 0,
	KVL_READ_STALE = 1,     /* the fence shows that the lease had ended: the data must not be used */
	KVL_READ_UNPROVEN = 2,  /* no proof that the lease stood: the data must not be used */
	KVL_READ_FAILED = 3,    /* the transport reported an error, or refused the post */
	KVL_READ_TIMEOUT = 4,   /* read_timeout passed; blocks stay held until KVL_EV_BLOCKS_BACK */
	KVL_READ_CANCELLED = 5, /* kvl_untrack while the read was in flight */
	KVL_READ_LOST = 6       /* the engine is gone, replaced, or never connected in time */
};

/** Event kinds. */
enum {
	KVL_EV_FREED = 1,       /* handle = lease, status = KVL_FREED_*, value0 = blocks, value1 = ns held since the grant */
	KVL_EV_READ_DONE = 2,   /* handle = track, status = KVL_READ_OK, value0 = bytes, value1 = ns since the post */
	KVL_EV_READ_FAILED = 3, /* handle = track, status = KVL_READ_*, flag KVL_EVF_BLOCKS_HELD, value0, value1 as above */
	KVL_EV_BLOCKS_BACK = 4, /* handle = track: the local blocks of a failed read can be given out again */
	KVL_EV_LEASE_GONE = 5,  /* handle = track: the row shows another use; recompute, then kvl_untrack */
	KVL_EV_AT_RISK = 6,     /* handle = track: beats go out, the row does not move; value0 = ns left to the certain end */
	KVL_EV_ENGINE_UP = 7,   /* handle = engine: connected */
	KVL_EV_ENGINE_DOWN = 8, /* handle = engine: sends fail, or it was replaced; value0 = tracked requests touched */
	KVL_EV_POISONED = 9,    /* the context is broken; reads not reported must be taken as failed with blocks held */
	KVL_EV_EXPECT_LAPSED = 10 /* handle = lease of kvl_expect: no grant within expect_max, early messages are dropped */
};
#define KVL_EVF_BLOCKS_HELD 1u /* a transfer may still write the local blocks: wait for KVL_EV_BLOCKS_BACK */

typedef struct kvl_ctx kvl_ctx_t;
typedef struct kvl_producer kvl_producer_t;
typedef uint64_t kvl_lease_t;  /* a slot and its use; 0 is none */
typedef uint64_t kvl_engine_t; /* a remote engine; 0 is none */
typedef uint64_t kvl_track_t;  /* a tracked request; 0 is none */

/** Bytes that the callee copies before it returns. Not zero-terminated. */
typedef struct kvl_bytes {
	const void *data;
	size_t len;
} kvl_bytes_t;

/** 64 bytes for ever. */
typedef struct kvl_event {
	uint16_t kind;     /* KVL_EV_* */
	uint16_t reserved; /* 0 */
	uint32_t flags;    /* KVL_EVF_* */
	int32_t status;    /* by kind */
	uint32_t rank;     /* whose report; 0 with one rank */
	uint64_t handle;   /* lease, track or engine by kind */
	uint64_t user;     /* as given with the grant, track or engine */
	uint64_t value0;   /* by kind */
	uint64_t value1;   /* by kind */
	uint64_t time_ns;  /* CLOCK_BOOTTIME of the step that made it */
	uint64_t zero;     /* 0, kept */
} kvl_event_t;

/** One region of KV cache: `blocks` blocks, the first at addr, one each block_stride bytes. */
typedef struct kvl_region {
	uint64_t addr;         /* host or device address */
	uint64_t bytes;        /* whole extent that is registered */
	uint64_t block_len;    /* bytes of one block in this region */
	uint64_t block_stride; /* bytes from one block to the next, >= block_len */
	uint32_t blocks;       /* block ids are 0 .. blocks-1 */
	int32_t group;         /* transfer group whose ids address it; -1: every group's ids do */
	uint32_t device;       /* GPU ordinal; 0 for host memory */
	uint32_t mem;          /* KVL_MEM_* */
	kvl_bytes_t name;      /* layer, for people; may be empty */
} kvl_region_t;
enum { KVL_MEM_DRAM = 0, KVL_MEM_VRAM = 1 };

/** Block ids of one transfer group. */
typedef struct kvl_blocks {
	const uint32_t *ids;
	uint32_t n;
	uint32_t first; /* position (in blocks) of ids[0] within the request; blocks are matched by position */
} kvl_blocks_t;

/** A grant: the blocks of one finished prefill. */
typedef struct kvl_grant {
	uint32_t size;      /* sizeof(kvl_grant_t) */
	uint32_t flags;     /* 0 */
	kvl_bytes_t id;     /* the owner's request id, 1..KVL_ID_MAX bytes */
	const kvl_blocks_t *groups;
	uint32_t groups_n;
	uint32_t tokens;    /* computed tokens */
	uint64_t ttl_ns;    /* first term; 0: the configured duration */
	kvl_lease_t expected; /* from kvl_expect, or 0 */
	uint64_t ready_event; /* 0; device event of the fill, with GPU memory */
	uint64_t user;      /* comes back in the event */
} kvl_grant_t;

/** What a reader knows of a lease, read out of the transfer parameters. Strings and ids point into the buffer given to kvl_params_read. */
typedef struct kvl_remote {
	uint32_t size;        /* sizeof(kvl_remote_t) */
	uint32_t native;      /* 1: the parameters carry the kvlease key */
	kvl_bytes_t id;       /* remote_request_id */
	kvl_bytes_t engine_id;
	kvl_bytes_t host;
	uint32_t port;
	uint32_t tp_size;     /* remote transfer ranks, at least 1 */
	uint32_t tokens;      /* remote_num_tokens */
	uint32_t groups_n;
	const kvl_blocks_t *groups; /* remote_block_ids, first = 0 */
	uint64_t epoch;       /* boot epoch of the owner */
	uint32_t slot;
	uint32_t generation;  /* g */
	uint64_t key;
} kvl_remote_t;

/** A remote engine. */
typedef struct kvl_engine_desc {
	uint32_t size;         /* sizeof(kvl_engine_desc_t) */
	uint32_t ranks;        /* transfer ranks of the engine, 1.. */
	kvl_bytes_t engine_id;
	kvl_bytes_t host;      /* side channel; may be empty when the handshake travels out of band */
	uint32_t port;
	uint32_t reserved;
	uint64_t user;
} kvl_engine_desc_t;

/** A read: local blocks to fill from the remote blocks at the same positions. */
typedef struct kvl_read {
	uint32_t size; /* sizeof(kvl_read_t) */
	uint32_t groups_n;
	const kvl_blocks_t *local;  /* groups_n entries */
	const kvl_blocks_t *remote; /* groups_n entries */
} kvl_read_t;

/* ---- open and close ---------------------------------------------------------------------------------------------- */

/**
 * Open a context: one engine rank with its agent, leases, tracking and reads. Opens libkvlease-core.so from the folder of
 * libkvlease.so (or KVLEASE_CORE). Takes about 0.5 s the first time with the nixl transport. Open after fork.
 *
 * @param config   [in] JSON object, UTF-8; the README lists the keys. Unknown keys are errors.
 * @param len      [in] bytes of config.
 * @param ctx_out  [out] set on success.
 * @param err      [out] text of the error, zero-terminated, cut to err_cap; may be NULL with err_cap 0.
 * @return KVL_OK, KVL_ERR_CONFIG, KVL_ERR_UNAVAILABLE, KVL_ERR_NOMEM, KVL_ERR_TRANSPORT, KVL_ERR_INVALID.
 */
KVL_API int32_t kvl_open(const char *config, size_t len, kvl_ctx_t **ctx_out, char *err, size_t err_cap);

/**
 * Close a context. Reads in flight keep their memory: while one may still write, KVL_ERR_BUSY is returned after the
 * timeout and the context stays open. Leases still held end as KVL_FREED_CLOSED and can be polled until the call that succeeds.
 * After success the handle is gone.
 */
KVL_API int32_t kvl_close(kvl_ctx_t *ctx, uint64_t timeout_ns);

/** Tell every peer what will never be read or served, end all leases that may be ended, wait for readers at most timeout_ns. New work gets KVL_ERR_CLOSED. */
KVL_API int32_t kvl_drain(kvl_ctx_t *ctx, uint64_t timeout_ns);

KVL_API const char *kvl_version(void);     /* "0.1.0"; no context needed */
KVL_API uint32_t kvl_abi_version(void);    /* KVL_ABI_VERSION of the library that was loaded */
KVL_API const char *kvl_status_name(int32_t status);

/** Text of the calling thread's last error on any context; "" if none. Valid until the thread's next call. */
KVL_API const char *kvl_last_error(void);

/* ---- producers --------------------------------------------------------------------------------------------------- */

/** Give the calling thread a submission ring (at most producers_max). All calls about one request go through the producer of its first. Lives as long as the context. */
KVL_API int32_t kvl_producer_open(kvl_ctx_t *ctx, kvl_producer_t **producer_out);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/** Register the KV cache with the transport, once, before peers connect. All or nothing. */
KVL_API int32_t kvl_register(kvl_ctx_t *ctx, const kvl_region_t *regions, uint32_t n);

/** Fence and end every lease, wait for own reads, destroy the agent; only then may the memory be unmapped. KVL_ERR_BUSY: a read is still in flight, nothing was unregistered. */
KVL_API int32_t kvl_unregister(kvl_ctx_t *ctx);

/* ---- peers ------------------------------------------------------------------------------------------------------- */

/** Name a remote engine. The same id gives the same handle while the engine is known. */
KVL_API int32_t kvl_engine_add(kvl_ctx_t *ctx, const kvl_engine_desc_t *desc, kvl_engine_t *engine_out);
KVL_API int32_t kvl_engine_remove(kvl_ctx_t *ctx, kvl_engine_t engine);

/** Hand in the handshake map of one rank of an engine, when it travelled out of band. Loaded by the next steps. */
KVL_API int32_t kvl_engine_handshake(kvl_ctx_t *ctx, kvl_engine_t engine, uint32_t rank, kvl_bytes_t map);

/** Our own handshake map of a rank (msgpack, with the kvlease key), after kvl_register. KVL_ERR_SPACE: *len_out is the length needed. */
KVL_API int32_t kvl_handshake_get(kvl_ctx_t *ctx, uint32_t rank, void *buf, size_t cap, size_t *len_out);

/* ---- owner (prefill) --------------------------------------------------------------------------------------------- */

/** A request has started to run here: messages about it that come before the grant are kept. Ends by kvl_grant, kvl_cancel or expect_max. */
KVL_API int32_t kvl_expect(kvl_producer_t *p, kvl_bytes_t id, kvl_lease_t *lease_out);

/** Hold the blocks of a finished request under a lease from now on. Stays in C: one ring record. KVL_ERR_FULL: nothing changed, free the blocks yourself. */
KVL_API int32_t kvl_grant(kvl_producer_t *p, const kvl_grant_t *grant, kvl_lease_t *lease_out);

/** The parameters never left: end the expectation or the grant. A cancelled grant is reported as freed (revoked). Never refused for room. */
KVL_API int32_t kvl_cancel(kvl_producer_t *p, kvl_lease_t lease);

/** Take the blocks back. Carried out at once if every reader checks the fence, else the deadline decides. Never refused for room. */
KVL_API int32_t kvl_revoke(kvl_producer_t *p, kvl_lease_t lease);

/** Take back leases of readers that check the fence, worth least first, until about blocks_wanted blocks are free. */
KVL_API int32_t kvl_pressure(kvl_producer_t *p, uint32_t blocks_wanted);

/** Transfer parameters for a granted lease: the JSON object of vLLM's kv_transfer_params with the kvlease key. Zero-terminated; *len_out without the zero. */
KVL_API int32_t kvl_params(kvl_ctx_t *ctx, kvl_lease_t lease, const kvl_grant_t *grant, char *buf, size_t cap, size_t *len_out);

/** Only the value of the "kvlease" key, for engines that make the rest themselves. */
KVL_API int32_t kvl_params_key(kvl_ctx_t *ctx, kvl_lease_t lease, char *buf, size_t cap, size_t *len_out);

/* ---- reader (decode) --------------------------------------------------------------------------------------------- */

/** Read transfer parameters. Needs no context. buf takes strings and block ids; KVL_ERR_SPACE: *need_out is the size needed. KVL_ERR_INVALID: kvl_last_error names the key. */
KVL_API int32_t kvl_params_read(const char *json, size_t len, kvl_remote_t *remote_out, void *buf, size_t cap, size_t *need_out);

/** Start heartbeats for a request from the next step on. Stays in C: no allocation, no lock, one ring record. */
KVL_API int32_t kvl_track(kvl_producer_t *p, kvl_engine_t engine, const kvl_remote_t *remote, kvl_bytes_t local_id, uint64_t user, kvl_track_t *track_out);

/** The request ended or was aborted: stop heartbeats, tell the owner if it was not read. Never refused for room. A read in flight is cancelled: its blocks come back by event. KVL_ERR_STALE: it has ended, its event is there or was. */
KVL_API int32_t kvl_untrack(kvl_producer_t *p, kvl_track_t track);

/** Refused before admission: tell the owner at once that nobody will read. KVL_ERR_FULL only when the ring and 1 MiB of overflow are full of rejects. */
KVL_API int32_t kvl_reject(kvl_producer_t *p, kvl_engine_t engine, const kvl_remote_t *remote);

/** Read the blocks of a tracked request. One outcome event; then the tracking has ended. */
KVL_API int32_t kvl_read(kvl_producer_t *p, kvl_track_t track, const kvl_read_t *read);

/* ---- loop -------------------------------------------------------------------------------------------------------- */

/** inline mode: run one step now. pump mode: the same as kvl_pass. */
KVL_API int32_t kvl_step(kvl_ctx_t *ctx);

/** pump mode: the forward loop is alive; the pump beats for it while passes are no further apart than stall_cover. */
KVL_API int32_t kvl_pass(kvl_ctx_t *ctx);

/** The engine will not step on purpose for at most max_ns: beats go on as if it did (pump mode). */
KVL_API int32_t kvl_pause(kvl_ctx_t *ctx, uint64_t max_ns);

/** Take up to n events of event_size bytes each (64). @return number of events, or a negative status. */
KVL_API int32_t kvl_poll(kvl_ctx_t *ctx, kvl_event_t *events, size_t event_size, uint32_t n);

/** A descriptor that is readable when kvl_poll has events or, in inline mode, kvl_step has work (each idle_tick). Owned by the context. */
KVL_API int32_t kvl_wait_fd(kvl_ctx_t *ctx, int *fd_out);

/* ---- failure and watching ---------------------------------------------------------------------------------------- */

/** Close every row for ever: no reader will accept data of this context any more. Async-signal-safe, any thread. */
KVL_API int32_t kvl_fence_all(kvl_ctx_t *ctx);

/** Counters as JSON. KVL_ERR_SPACE: *len_out is the length needed. */
KVL_API int32_t kvl_stats(kvl_ctx_t *ctx, char *buf, size_t cap, size_t *len_out);

/** The configuration in force, defaults filled in, as JSON. */
KVL_API int32_t kvl_config_json(kvl_ctx_t *ctx, char *buf, size_t cap, size_t *len_out);

#ifdef __cplusplus
}
#endif
#endif
