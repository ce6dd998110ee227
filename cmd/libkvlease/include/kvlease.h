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
	KVL_FREED_CLOSED = 7,    /* kvl_unregister or kvl_close ended it */
	KVL_FREED_LOST = 8       /* host context: the rank's process is gone, or the stream to it is, since one duration */
};

/** How a read ended: status of KVL_EV_READ_DONE (OK) and KVL_EV_READ_FAILED (the others). */
enum {
	KVL_READ_OK = 0,
	KVL_READ_STALE = 1,     /* the fence shows that the lease had ended: the data must not be used */
	KVL_READ_UNPROVEN = 2,  /* no proof that the lease stood: the data must not be used */
	KVL_READ_FAILED = 3,    /* the transport reported an error, or refused the post; the log says if for a reason of this side */
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
	KVL_EV_POISONED = 9,    /* the context is broken; reads not reported must be taken as failed with blocks held, leases as held until
				 * KVL_EV_FREED, which of a host context comes only when no rank's row is open (kvl_fence_all) */
	KVL_EV_EXPECT_LAPSED = 10, /* handle = lease of kvl_expect: no grant within expect_max, early messages are dropped */
	KVL_EV_RANK_UP = 11,    /* host context: handle = rank: it is attached and has registered its memory */
	KVL_EV_RANK_DOWN = 12,  /* host context: handle = rank: its process is gone, or it has unregistered (status 0: unregistered, 1: gone) */
	KVL_EV_ENGINE_DRAINS = 14, /* handle = engine: it is about to exit; what it holds can be read until it ends, send it nothing new */
	KVL_EV_HOST_DOWN = 13   /* rank context: status 0: the host is gone: nothing new comes, what is held here ends at its deadline; 1: it does not take this rank, kvl_handshake_get says why */
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
	uint32_t rank;     /* whose report; host context, one event for all ranks: the first rank whose report decided the status */
	uint64_t handle;   /* lease, track or engine by kind */
	uint64_t user;     /* as given with the grant, track or engine */
	uint64_t value0;   /* by kind */
	uint64_t value1;   /* by kind */
	uint64_t time_ns;  /* CLOCK_BOOTTIME of the step that made it */
	uint64_t reasons;  /* KVL_EV_FREED: KVL_FREED_* of each rank, 4 bits each, rank 0 lowest; ranks past 15 only in status. Else 0 */
} kvl_event_t;

/**
 * One region of KV cache: `blocks` blocks, the first at addr, one each block_stride bytes.
 *
 * A block is `parts` pieces of equal length (2 if keys and values lie one after the other, else 1), and a piece is one run of
 * bytes per KV head, heads in order: [parts][heads of this rank][tokens][head size]. So the heads of a rank of another size
 * are one run of bytes in each piece. With KVL_REGION_REPLICATED every rank holds the whole block (MLA).
 */
typedef struct kvl_region {
	uint64_t addr;         /* host or device address */
	uint64_t bytes;        /* whole extent that is registered */
	uint64_t block_len;    /* bytes of one block in this region */
	uint64_t block_stride; /* bytes from one block to the next, >= block_len */
	uint32_t blocks;       /* block ids are 0 .. blocks-1 */
	int32_t group;         /* transfer group whose ids address it; -1: every group's ids do */
	uint32_t device;       /* GPU ordinal, one for all device memory of a context; of no meaning for host memory */
	uint32_t mem;          /* KVL_MEM_* */
	kvl_bytes_t name;      /* layer; with pipeline stages regions of two engines are matched by it, else by their order; may be empty */
	uint32_t parts;        /* pieces of a block; 0 counts as 1 */
	uint32_t flags;        /* KVL_REGION_* */
} kvl_region_t;
enum { KVL_MEM_DRAM = 0, KVL_MEM_VRAM = 1 };
enum { KVL_REGION_REPLICATED = 1 };

/** Block ids of one transfer group. */
typedef struct kvl_blocks {
	const uint32_t *ids;
	uint32_t n;
	uint32_t first; /* position (in blocks) of ids[0] within the request; blocks are matched by position */
} kvl_blocks_t;

/** A grant: the blocks of one finished prefill. */
typedef struct kvl_grant {
	uint32_t size;      /* sizeof(kvl_grant_t) */
	uint32_t flags;     /* KVL_GRANT_* */
	kvl_bytes_t id;     /* the owner's request id, 1..KVL_ID_MAX bytes */
	const kvl_blocks_t *groups;
	uint32_t groups_n;
	uint32_t tokens;    /* computed tokens */
	uint64_t ttl_ns;    /* first term; 0: the configured duration */
	kvl_lease_t expected; /* from kvl_expect, or 0 */
	uint64_t ready_event; /* CUevent or cudaEvent_t recorded behind the last write into the blocks; 0: they are written. See kvl_grant */
	uint64_t user;      /* comes back in the event */
} kvl_grant_t;
/** A fixed life: no heartbeat renews it (blocks kept for a second turn). ttl_ns 0 is decoder_kv_blocks_ttl; the parameters name the end. */
enum { KVL_GRANT_FIXED = 1 };

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
	uint64_t expires_ns;  /* remote_blocks_expiry_time: a fixed life ends then, in CLOCK_MONOTONIC of the owner's host; 0: heartbeats renew it */
	uint32_t pp_size;     /* remote pipeline stages, at least 1 */
	uint32_t reserved;    /* 0 */
} kvl_remote_t;

/** A remote engine. */
typedef struct kvl_engine_desc {
	uint32_t size;         /* sizeof(kvl_engine_desc_t) */
	uint32_t ranks;        /* transfer ranks of one stage of the engine (tp_size), 1.. */
	kvl_bytes_t engine_id;
	kvl_bytes_t host;      /* side channel: the library fetches the handshake itself; empty: it travels out of band */
	uint32_t port;
	uint32_t pp_size;      /* pipeline stages; 0 counts as 1 */
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
 * Open a context. What it is says the key `role`: engine (one rank: agent, leases, tracking, reads, requests), host (requests, and
 * what all ranks have said of them), or rank (agent, leases and reads of one). docs/embedding.md says which process opens which.
 * Opens libkvlease-core.so from the folder of libkvlease.so (or KVLEASE_CORE). Takes about 0.5 s the first time with the nixl
 * transport, but on a host context. Open after fork.
 *
 * @param config   [in] JSON object, UTF-8, at most 1 MiB; the README lists the keys. Unknown keys are errors.
 * @param len      [in] bytes of config.
 * @param ctx_out  [out] set on success.
 * @param err      [out] text of the error, zero-terminated, cut to err_cap (512 are enough); may be NULL with err_cap 0.
 * @return KVL_OK; KVL_ERR_CONFIG, KVL_ERR_UNAVAILABLE, KVL_ERR_NOMEM, KVL_ERR_TRANSPORT, KVL_ERR_INVALID, KVL_ERR_FORKED:
 *         nothing is open, err says what is wrong.
 */
KVL_API int32_t kvl_open(const char *config, size_t len, kvl_ctx_t **ctx_out, char *err, size_t err_cap);

/**
 * Close a context. Waits at most timeout_ns for reads of ours, since a transfer may still write their local blocks; steps by
 * itself meanwhile. From the call on, new work gets KVL_ERR_CLOSED. On success every row is fenced, leases still held end
 * without an event (drain and poll first to hear of each), and ctx is gone. A poisoned context does not step, but its transfers are
 * followed to their ends here; with one that never ends, only the end of the process is safe. A kvl_register that has begun on another
 * thread is cut off; the context does not go before that thread has left it. A call on a closed context gets KVL_ERR_CLOSED, from
 * kvl_fence_all KVL_ERR_INVALID.
 *
 * @return KVL_OK; KVL_ERR_BUSY: a read may still write, or another thread is inside: the context stays open, step on;
 *         KVL_ERR_TRANSPORT: the agent does not go, memory is still registered: call again.
 */
KVL_API int32_t kvl_close(kvl_ctx_t *ctx, uint64_t timeout_ns);

/**
 * Get ready to exit: new work gets KVL_ERR_CLOSED, owners are told what will not be read here, readers that nothing new comes
 * (KVL_EV_ENGINE_DRAINS there), and each tracked request that is not being read gets KVL_EV_LEASE_GONE. Then waits at most
 * timeout_ns, stepping by itself, until no lease is held, no read in flight and no message owed. Our own leases are not cut short:
 * they end when read, or at their deadline. After KVL_OK the end of this process, with kvl_close or without, is no death to
 * its readers. With ranks: on the host context, which tells them; in inline mode their loops must step
 * meanwhile.
 *
 * @return KVL_OK: nothing is left; KVL_ERR_TIMEOUT: something is, the text says what: call again, or close;
 *         KVL_ERR_CLOSED: a kvl_close of another thread has succeeded meanwhile; KVL_ERR_INVALID: ctx is a rank context;
 *         KVL_ERR_BUSY, KVL_ERR_POISONED.
 */
KVL_API int32_t kvl_drain(kvl_ctx_t *ctx, uint64_t timeout_ns);

KVL_API const char *kvl_version(void);     /* "0.1.0"; no context needed */
KVL_API uint32_t kvl_abi_version(void);    /* KVL_ABI_VERSION of the library that was loaded */
KVL_API const char *kvl_status_name(int32_t status); /* "KVL_ERR_FULL"; "unknown status" for other numbers */

/** Text of the calling thread's last failed call on any context, "" if none. Valid until the thread's next call. */
KVL_API const char *kvl_last_error(void);

/* ---- producers --------------------------------------------------------------------------------------------------- */

/**
 * Give the calling thread a submission ring. All calls about one request go through the producer of its first. Lives as long as the
 * context.
 *
 * @return KVL_OK; KVL_ERR_FULL: producers_max are open; KVL_ERR_INVALID: also for a rank context: requests go through the host context.
 */
KVL_API int32_t kvl_producer_open(kvl_ctx_t *ctx, kvl_producer_t **producer_out);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/**
 * Register the KV cache with the transport, once, before peers connect: all of it or nothing. It must stay mapped until
 * kvl_unregister or kvl_close has succeeded. With ranks: each registers its own. Large memory takes long: steps go on beside it, and kvl_close
 * cuts it off (KVL_ERR_CLOSED here). It ends with a page of each region read back as a peer would.
 *
 * Device memory (KVL_MEM_VRAM) must be of a device with which this process has begun: its primary context is used and never made. NIXL is told
 * which NICs are the device's, unless the user has told UCX (transport_settings): for that the context's first agent is made anew, 50 ms.
 *
 * @param regions      [in] n regions, 1 to 4,096, that do not overlap, and of which those on a device are on one; copied.
 * @param region_size  [in] sizeof(kvl_region_t) of the caller. An older, shorter one is taken, with 0 for what it lacks; a newer
 *                     one if what we do not know of it is 0.
 *
 * @return KVL_OK; KVL_ERR_INVALID: the text names the region, or memory is registered already, or ctx is a host context;
 *         KVL_ERR_UNAVAILABLE: driver or device lack what device memory needs, the text names cause and remedy;
 *         KVL_ERR_TRANSPORT: NIXL refuses, more would be locked than RLIMIT_MEMLOCK allows, or peers could not read it;
 *         KVL_ERR_BUSY: another registration is under way, whatever the arguments; KVL_ERR_NOMEM, KVL_ERR_CLOSED, KVL_ERR_POISONED. None of these regions is registered then.
 */
KVL_API int32_t kvl_register(kvl_ctx_t *ctx, const kvl_region_t *regions, size_t region_size, uint32_t n);

/**
 * Fence and end every lease (KVL_FREED_CLOSED), tell owners that what is tracked will not be read (KVL_EV_LEASE_GONE), and destroy the
 * agent; after success, and only then, the memory may be unmapped. Waits up to 0.1 s for reads of ours that are about to end. The
 * context lives on: kvl_register makes a new agent, board and era, for peers another engine, and parameters of before are void.
 *
 * @return KVL_OK; KVL_ERR_BUSY: a read of ours is in flight, or a registration, nothing has changed; KVL_ERR_INVALID: nothing is registered, or ctx is
 *         a host context; KVL_ERR_TRANSPORT: leases have ended, but the agent does not go and memory is still registered: call again.
 */
KVL_API int32_t kvl_unregister(kvl_ctx_t *ctx);

/* ---- peers ------------------------------------------------------------------------------------------------------- */

/**
 * Name a remote engine. The same id gives the same handle while the engine is known. With a host the library fetches the handshake
 * there, tries again as long as the engine is known, and holds a death wire; KVL_EV_ENGINE_UP says that reads can begin. Requests may
 * be tracked before. Never waits for the network.
 *
 * @return KVL_OK; KVL_ERR_FULL: engines_max are known; KVL_ERR_INVALID: also for our own id, for sizes of which neither divides the
 *         other, and on a rank context; KVL_ERR_CLOSED, KVL_ERR_POISONED, KVL_ERR_BUSY.
 */
KVL_API int32_t kvl_engine_add(kvl_ctx_t *ctx, const kvl_engine_desc_t *desc, kvl_engine_t *engine_out);

/** Forget a remote engine. Its tracked requests are lost: KVL_EV_LEASE_GONE, reads of them end as KVL_READ_LOST. KVL_ERR_STALE: it is not known. */
KVL_API int32_t kvl_engine_remove(kvl_ctx_t *ctx, kvl_engine_t engine);

/**
 * Hand in the handshake map of one rank of an engine, when it travelled out of band. Checked here, loaded by the next steps
 * (KVL_EV_ENGINE_UP). A map with another boot epoch or metadata than the one known makes the engine a new one.
 *
 * @param map  [in] msgpack, 1 byte to 1 MiB; copied.
 * @return KVL_OK; KVL_ERR_INVALID: it cannot be read, is another engine's, does not fit our cache, or kvl_register has not
 *         been called; KVL_ERR_STALE: the engine is not known.
 */
KVL_API int32_t kvl_engine_handshake(kvl_ctx_t *ctx, kvl_engine_t engine, uint32_t rank, kvl_bytes_t map);

/**
 * Our own handshake map of a rank (msgpack, with the kvlease key): what the side channel serves. On a host context of any rank that
 * has registered, on a rank context of its own.
 *
 * @param len_out  [out] bytes written; with KVL_ERR_SPACE the bytes needed.
 * @return KVL_OK; KVL_ERR_SPACE; KVL_ERR_INVALID: that rank has not registered, or there is none such; on a rank context that has
 *         registered the text says what it waits for.
 */
KVL_API int32_t kvl_handshake_get(kvl_ctx_t *ctx, uint32_t rank, void *buf, size_t cap, size_t *len_out);

/**
 * An engine's own handshake map of a rank, for engines that make theirs themselves: served on the side channel, and given by
 * kvl_handshake_get, in place of ours until that rank unregisters. Our key is put in, all else stays as it is. Before the rank has
 * registered it waits for that. On the context that has the side channel: the host's, with ranks. Any one thread; parses and
 * copies, off the hot path.
 *
 * @param map  [in] msgpack, 1 byte to 1 MiB; copied.
 * @return KVL_OK; KVL_ERR_INVALID: it cannot be read, is another engine's, there is no such rank, or ctx is a rank context;
 *         KVL_ERR_CLOSED, KVL_ERR_BUSY.
 */
KVL_API int32_t kvl_handshake_set(kvl_ctx_t *ctx, uint32_t rank, kvl_bytes_t map);

/* ---- host and ranks on different nodes (carrier "delta"): bytes that the engine carries in its own step messages --------- */

#define KVL_DELTA_MIN 8192u  /* least cap of kvl_delta_take */
#define KVL_DELTA_MAX 65536u /* longest message */

/**
 * The next message of this end for the other one: on the host context for that rank, on a rank context (with its own rank) for the
 * host. Take one for each step message that goes there, after kvl_step: what does not fit comes with the next, and until the other
 * end has answered each take gives at least a short one. A message that is lost, doubled or late is noticed and healed: the host
 * then says its whole state for that rank again. The rank speaks first. Any one thread; a copy, no allocation, no wait for a step.
 *
 * @param rank     [in] pp_rank * tp_size + tp_rank.
 * @param cap      [in] bytes of buf, at least KVL_DELTA_MIN; more than KVL_DELTA_MAX are not used.
 * @param len_out  [out] bytes written; 0: there is nothing to say.
 * @return KVL_OK; KVL_ERR_INVALID: another carrier is configured, or no such rank; KVL_ERR_BUSY, KVL_ERR_CLOSED.
 */
KVL_API int32_t kvl_delta_take(kvl_ctx_t *ctx, uint32_t rank, void *buf, size_t cap, size_t *len_out);

/**
 * Hand in a message that kvl_delta_take of the other end has given: on the host context one of that rank, on a rank context (with
 * its own rank) one of the host. The next step acts on it. Any one thread; a copy, no allocation, no wait for a step.
 *
 * @param bytes  [in] one whole message, at most KVL_DELTA_MAX bytes; copied. None: nothing happens.
 * @return KVL_OK, also for a message that comes twice or late; KVL_ERR_INVALID: no message of this stream, another carrier is
 *         configured, or no such rank: nothing changed; KVL_ERR_FULL: the step is behind: put it in again, or drop it; KVL_ERR_STALE:
 *         the other end is not the context that was attached: one that was started again needs a new other end; KVL_ERR_BUSY,
 *         KVL_ERR_CLOSED.
 */
KVL_API int32_t kvl_delta_put(kvl_ctx_t *ctx, uint32_t rank, kvl_bytes_t bytes);

/**
 * Say that the process of the other end is gone for good, which nobody else can know: on the host context that of a rank, on a rank
 * context (with its own rank) that of the host. What follows is as with the other carriers: KVL_EV_RANK_DOWN with status 1, or
 * KVL_EV_HOST_DOWN. Say it, too, when the rank's context was closed. As kvl_delta_put, and not beside one.
 *
 * @return KVL_OK, also a second time; KVL_ERR_INVALID: another carrier is configured, or no such rank; KVL_ERR_BUSY, KVL_ERR_CLOSED.
 */
KVL_API int32_t kvl_delta_lost(kvl_ctx_t *ctx, uint32_t rank);

/* ---- owner (prefill): one producer per context, the first that expects or grants; others get KVL_ERR_PRODUCER ------ */

/**
 * A request has started to run here: messages about it that come before the grant are kept. Ends by kvl_grant, kvl_cancel, or
 * expect_max after it (KVL_EV_EXPECT_LAPSED). Stays in C: one ring record.
 *
 * @param id  [in] 1..KVL_ID_MAX bytes; copied.
 * @return KVL_OK; KVL_ERR_FULL: nothing changed, go on without; KVL_ERR_INVALID, KVL_ERR_PRODUCER, KVL_ERR_CLOSED, KVL_ERR_POISONED.
 */
KVL_API int32_t kvl_expect(kvl_producer_t *p, kvl_bytes_t id, kvl_lease_t *lease_out);

/**
 * Hold the blocks of a finished request under a lease from now on, until its KVL_EV_FREED. Stays in C: one ring record.
 *
 * @param grant  [in] copied. With `expected` the lease is that one, unless it has lapsed meanwhile. Once regions are
 *               registered, block ids must be theirs (a host context does not know them). A flag that is not known is refused.
 *               With ready_event the lease begins now and is offered when the event has fired: kvl_params answers KVL_ERR_BUSY before.
 *               Steps ask for it (pump: each 1 ms); kvl_wait_fd becomes readable when it has. It must live until then or until
 *               KVL_EV_FREED. Only with device memory registered on this context, so not with a host context.
 * @return KVL_OK; KVL_ERR_FULL: nothing changed, free the blocks yourself; KVL_ERR_BUSY: memory is being registered again just now,
 *         call again; KVL_ERR_INVALID, KVL_ERR_PRODUCER, KVL_ERR_CLOSED, KVL_ERR_POISONED.
 */
KVL_API int32_t kvl_grant(kvl_producer_t *p, const kvl_grant_t *grant, kvl_lease_t *lease_out);

/** The parameters never left: end the expectation or the grant. A cancelled grant is reported as freed (revoked). Never refused for room. KVL_ERR_STALE: it has ended. */
KVL_API int32_t kvl_cancel(kvl_producer_t *p, kvl_lease_t lease);

/** Take the blocks back: at once if every reader checks the fence, else when that turns out, else at the deadline. Never refused for room. KVL_ERR_STALE: it has ended. */
KVL_API int32_t kvl_revoke(kvl_producer_t *p, kvl_lease_t lease);

/** Take leases back until about blocks_wanted blocks are free: first those that linger past their deadline for a stock reader, then those whose readers check the fence, longest known first. Any producer. KVL_ERR_FULL: call again after a step. */
KVL_API int32_t kvl_pressure(kvl_producer_t *p, uint32_t blocks_wanted);

/**
 * Transfer parameters for a granted lease: the JSON object of vLLM's kv_transfer_params with the kvlease key. Stays in C, any thread.
 * Of a fixed lease remote_blocks_expiry_time is the end, in seconds of CLOCK_MONOTONIC, counted from the grant; else it is null.
 *
 * @param grant    [in] as it was granted; its id must be UTF-8.
 * @param buf      [out] zero-terminated.
 * @param len_out  [out] bytes without the zero; with KVL_ERR_SPACE what they would be.
 * @return KVL_OK; KVL_ERR_SPACE; KVL_ERR_STALE: the lease has ended, or is only expected; KVL_ERR_BUSY as kvl_grant, or the grant's
 *         ready_event has not fired: call again after a step; KVL_ERR_INVALID, KVL_ERR_POISONED.
 */
KVL_API int32_t kvl_params(kvl_ctx_t *ctx, kvl_lease_t lease, const kvl_grant_t *grant, char *buf, size_t cap, size_t *len_out);

/** Only the value of the "kvlease" key, for engines that make the rest themselves. Otherwise as kvl_params. */
KVL_API int32_t kvl_params_key(kvl_ctx_t *ctx, kvl_lease_t lease, char *buf, size_t cap, size_t *len_out);

/* ---- reader (decode) --------------------------------------------------------------------------------------------- */

/**
 * Read transfer parameters. Needs no context; any thread.
 *
 * @param json        [in] len bytes of UTF-8, at most 4 MiB; ABI.md says how strictly.
 * @param remote_out  [in] its size, set by the caller; [out] the rest, as far as that size goes.
 * @param buf         [out] strings and block ids that remote_out points to; keep it as long as remote_out.
 * @param need_out    [out] with KVL_ERR_SPACE the size of buf that is needed.
 * @return KVL_OK; KVL_ERR_SPACE; KVL_ERR_INVALID: kvl_last_error names the key.
 */
KVL_API int32_t kvl_params_read(const char *json, size_t len, kvl_remote_t *remote_out, void *buf, size_t cap, size_t *need_out);

/**
 * Start heartbeats for a request from the next step on. Stays in C: no allocation, no lock, one ring record.
 *
 * @param engine    [in] from kvl_engine_add; if it is not known any more, KVL_EV_LEASE_GONE says so.
 * @param remote    [in] from kvl_params_read; copied.
 * @param local_id  [in] the engine's own id, up to KVL_ID_MAX bytes; copied.
 * @return KVL_OK; KVL_ERR_FULL: no room in ring or table (tracked_max), call again after a step; KVL_ERR_INVALID,
 *         KVL_ERR_CLOSED, KVL_ERR_POISONED.
 */
KVL_API int32_t kvl_track(kvl_producer_t *p, kvl_engine_t engine, const kvl_remote_t *remote, kvl_bytes_t local_id, uint64_t user, kvl_track_t *track_out);

/** The request ended or was aborted: stop heartbeats, tell the owner if it was not read. Never refused for room. A read in flight is cancelled: its blocks come back by event. KVL_ERR_STALE: it has ended, its event is there or was. */
KVL_API int32_t kvl_untrack(kvl_producer_t *p, kvl_track_t track);

/** Refused before admission: tell the owner at once that nobody will read. KVL_ERR_FULL only when the ring and 1 MiB of overflow are full of rejects. */
KVL_API int32_t kvl_reject(kvl_producer_t *p, kvl_engine_t engine, const kvl_remote_t *remote);

/**
 * Read the blocks of a tracked request. One outcome event; then the tracking has ended. Stays in C: ring records.
 *
 * @param read  [in] positions of local blocks lie within those of the remote ones of the same group, local ids within the
 *              registered regions; copied.
 * @return KVL_OK; KVL_ERR_FULL: no room in the ring, call again after a step; KVL_ERR_BUSY: it is being read; KVL_ERR_STALE: it
 *         has ended; KVL_ERR_INVALID: also for more runs than an empty ring holds; KVL_ERR_PRODUCER, KVL_ERR_CLOSED, KVL_ERR_POISONED.
 */
KVL_API int32_t kvl_read(kvl_producer_t *p, kvl_track_t track, const kvl_read_t *read);

/* ---- loop -------------------------------------------------------------------------------------------------------- */

/** inline mode: run one step now. pump mode: the same as kvl_pass. KVL_ERR_BUSY: another thread steps, drains or closes; KVL_ERR_POISONED. */
KVL_API int32_t kvl_step(kvl_ctx_t *ctx);

/**
 * Whether the next kvl_step may take milliseconds: a connection is due to be made or dropped (inside NIXL up to 60 ms), or another
 * thread is inside kvl_register. For hosts with a lock that others wait for, like Python's: they keep it over short steps. A hint: what a step
 * itself finds out, a request that needs a broken connection, may take as long. Stays in C.
 *
 * @return 1 or 0, always 0 in pump mode; or a negative status.
 */
KVL_API int32_t kvl_step_long(kvl_ctx_t *ctx);

/** pump mode: the forward loop is alive; the pump beats for it while passes are no further apart than stall_cover. Stays in C. */
KVL_API int32_t kvl_pass(kvl_ctx_t *ctx);

/** The engine will not step on purpose for at most max_ns: beats go on as if it did (pump mode). Stays in C. */
KVL_API int32_t kvl_pause(kvl_ctx_t *ctx, uint64_t max_ns);

/** Take up to n events of event_size bytes each (64). Stays in C. @return number of events, or a negative status. */
KVL_API int32_t kvl_poll(kvl_ctx_t *ctx, kvl_event_t *events, size_t event_size, uint32_t n);

/**
 * A descriptor for poll(2), readable while kvl_poll has events and, in inline mode, when kvl_step has work: something was
 * submitted since the last step, a rank or the host has said something, and every idle_tick while anything is held. So a loop that
 * wakes calls both. Owned by the context; do not read or close it.
 *
 * @return KVL_OK; KVL_ERR_BUSY: the first call must not meet a step or poll; KVL_ERR_NOMEM.
 */
KVL_API int32_t kvl_wait_fd(kvl_ctx_t *ctx, int *fd_out);

/* ---- failure and watching ---------------------------------------------------------------------------------------- */

/**
 * Close every row for ever: no reader will accept data of this context any more. The context is poisoned. A host context has no rows:
 * its ranks close theirs when they hear of it, and its ends are told one lease duration after the last of them has said so, or has
 * ended. A rank that stands still, or that the host's core cannot tell since it hangs, keeps all blocks held: end its process, and with
 * carrier delta say so (kvl_delta_lost). Called on rank contexts, in their processes, it closes their rows at once.
 * Async-signal-safe, any thread; leaves no text for kvl_last_error.
 */
KVL_API int32_t kvl_fence_all(kvl_ctx_t *ctx);

/**
 * Counters and gauges as one flat JSON object, zero-terminated: numbers, lists of numbers, and side_failing, a list of texts.
 * KVL_ERR_SPACE: *len_out is the length without the zero.
 */
KVL_API int32_t kvl_stats(kvl_ctx_t *ctx, char *buf, size_t cap, size_t *len_out);

/** The configuration in force, defaults filled in, as JSON. Otherwise as kvl_stats. */
KVL_API int32_t kvl_config_json(kvl_ctx_t *ctx, char *buf, size_t cap, size_t *len_out);

/**
 * All metrics of this context in Prometheus' text format, for engines with an exporter of their own: docs/metrics.md lists them.
 * Reads the stats page, takes no lock of a step, and costs it nothing; some 100 KiB that grow with the peers, so call again with more
 * room. Histograms have classic buckets here; native ones only kvl_metrics_listen has. Otherwise as kvl_stats.
 *
 * @return also KVL_ERR_UNAVAILABLE: there is no memory for a stats page.
 */
KVL_API int32_t kvl_metrics_text(kvl_ctx_t *ctx, char *buf, size_t cap, size_t *len_out);

/**
 * Serve the same at http://HOST:PORT/metrics until kvl_close, native histograms for whoever asks for them. Once a context; each
 * context of a process has its own. Off unless called. Threads of the core answer, one scrape at a time, never a step.
 *
 * @param addr      [in] "HOST:PORT", zero-terminated, at most 255 bytes. HOST is an IP address of this machine; none and localhost are
 *                  127.0.0.1. Whoever reaches the port can read all metrics: another address than loopback must be said, as 0.0.0.0.
 *                  PORT 0 takes any that is free.
 * @param port_out  [out] the port; may be NULL.
 * @return KVL_OK; KVL_ERR_INVALID: no such address, or it listens already, the text says where; KVL_ERR_UNAVAILABLE: the port is taken or
 *         needs privileges, or there is no stats page: nothing listens, and all else goes on.
 */
KVL_API int32_t kvl_metrics_listen(kvl_ctx_t *ctx, const char *addr, uint32_t *port_out);

/**
 * Take what the context has to say since the call before: lines of JSON, each with its newline, whole ones only, as many as fit,
 * zero-terminated; docs/logging.md says what is in them. Take until *len_out is 0. Unless the key log says otherwise, lines go to
 * stderr until the first call, and to the host alone from then on. A line has some hundred bytes, none more than
 * 8 KiB. Takes no lock of a step; works on a poisoned context, too.
 *
 * @return KVL_OK, *len_out is 0: there is nothing, or the key log is "off"; KVL_ERR_SPACE: *len_out is the length of the first line
 *         without the zero, and it stays.
 */
KVL_API int32_t kvl_log_take(kvl_ctx_t *ctx, char *buf, size_t cap, size_t *len_out);

#ifdef __cplusplus
}
#endif
#endif
