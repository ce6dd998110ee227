/* Memory that the C library and the Go core share, and the records of the submission stream.
 * The same offsets stand in dataplane/record; a test on each side holds them together.
 *
 * All little-endian, all fixed. The stream is what crosses between processes later, so a record carries everything:
 * nothing in it is a pointer.
 */
#ifndef KVL_LAYOUT_H
#define KVL_LAYOUT_H

#include <stdint.h>

#define KVL_LAYOUT_VERSION 1u
#define KVL_CORE_ABI 9u /* of kvl_core_args_t and the kvlgo_* hooks: raised with every change of either */
#define KVL_NONE 0xFFFFFFFFu /* end of a free list */

/* ---- handles: (use + 1) << 32 | slot, so that 0 is none ---- */
#define KVL_HANDLE(slot, use) ((((uint64_t)(use) + 1) << 32) | (uint32_t)(slot))
#define KVL_HANDLE_SLOT(h) ((uint32_t)(h))
#define KVL_HANDLE_USE(h) ((uint32_t)(((h) >> 32) - 1))

/* ---- state words: use << 32 | bits ---- */
enum {
	KVL_S_FREE = 0,     /* in the free list, or never used */
	KVL_S_EXPECTED = 1, /* leases: kvl_expect */
	KVL_S_GRANTED = 2,  /* leases: kvl_grant */
	KVL_S_ENDED = 3,    /* leases: the core has ended it, the event is still to come */
	KVL_S_TRACKED = 4,  /* tracks: kvl_track */
	KVL_S_READING = 5,  /* tracks: kvl_read was called */
	KVL_S_LAPSED = 6,   /* leases: the core has forgotten an expectation, the event is still to come; no lease, no blocks */
	KVL_S_MASK = 0xFF,
	KVL_S_CANCEL = 0x100, /* host has said cancel or untrack: said once */
	KVL_S_REVOKE = 0x200  /* host has said revoke: said once */
};

/* One lease slot, 128 bytes. The host sets FREE -> EXPECTED/GRANTED and the said bits; all else is the core's. */
typedef struct kvl_slot {
	uint64_t state;     /* atomic: use << 32 | KVL_S_*; the core writes (use + 1) << 32 | FREE when it gives the slot back */
	uint32_t next;      /* free list link */
	uint32_t flags;     /* atomic: KVL_SF_* */
	uint64_t user;      /* of the grant */
	uint32_t blocks;    /* of the grant */
	uint16_t id_len;    /* 1..1024; > 96: id[0..3] is the index in the long pool */
	uint16_t reason;    /* KVL_FREED_* once ENDED */
	uint8_t id[96];
} kvl_slot_t;
enum {
	KVL_SF_UNCHECKED = 1, /* a reader that does not check the fence may hold the parameters (L12) */
	KVL_SF_UNREADY = 2    /* a device may be writing the blocks: no parameters are made. The core takes it away when the event has fired */
};

/* One tracking slot, 16 bytes. The host sets FREE -> TRACKED -> READING and the said bit. */
typedef struct kvl_track_slot {
	uint64_t state;
	uint32_t next;
	uint32_t producer; /* host only: index of the producer of its first record */
} kvl_track_slot_t;

/* Board: 64-byte header, then one 32-byte row per slot. Registered with the transport, never moved. */
typedef struct kvl_board_header {
	uint32_t version; /* 1 */
	uint32_t flags;   /* KVL_BF_* */
	uint64_t duration_ns;
	uint64_t base;    /* fence word of use 0 */
	uint64_t epoch;
	uint64_t zero[4];
} kvl_board_header_t;
enum { KVL_BF_DRAINING = 1, KVL_BF_CLOSED = 2 };

typedef struct kvl_row {
	uint64_t fence;       /* w0: base + g while use g may be read; only ever raised */
	uint64_t deadline_us; /* w1: this rank's CLOCK_BOOTTIME, for people and tools */
	uint32_t generation;  /* w2 low */
	uint32_t beats;       /* w2 high: beats applied, also those that moved nothing */
	uint64_t zero;        /* w3 */
} kvl_row_t;

/* Words that both sides look at; one page. */
typedef struct kvl_control {
	uint32_t magic;   /* 'kvlC' */
	uint32_t version; /* KVL_LAYOUT_VERSION */
	/* free lists: the core pushes one slot, the host takes the whole list by exchange; no ABA */
	uint32_t lease_free; /* atomic */
	uint32_t track_free; /* atomic */
	uint32_t poisoned;   /* atomic: 0, or 1 once every row is fenced and no step runs any more */
	uint32_t draining;   /* atomic: new work is refused */
	uint32_t asleep;     /* atomic: 0, or how the pump sleeps on wake_fd: KVL_DOZES, KVL_SLEEPS */
	int32_t wake_fd;     /* eventfd that ends the pump's sleep; inline mode: carriers write it, kvl_wait_fd listens and kvl_step empties it */
	int32_t event_fd;    /* eventfd written by the core after it published events */
	uint32_t held;       /* atomic: leases expected or held + requests tracked + reads in flight, by the last step */
	uint64_t poison_ns;  /* CLOCK_BOOTTIME of the poisoning */
	uint64_t pass_ns;    /* atomic: CLOCK_BOOTTIME of the last kvl_pass */
	uint64_t pause_until_ns; /* atomic */
	uint64_t steps;      /* atomic: steps run */
	uint64_t duration_ns; /* lease duration in force, for the poison report of unchecked leases */
	uint32_t stepping;    /* atomic: 1 while the core is inside a step; set before it looks at poisoned (seq_cst) */
	uint32_t rows_closed; /* atomic: of a broken host context 1 once no row of any rank has been open for one lease duration */
	/* The era: who we are to readers until the memory is unregistered. Written by the core while no lease is granted; era is
	 * odd meanwhile. kvl_params reads it between two equal even values. */
	uint64_t era;       /* atomic: eras begun, times two */
	uint64_t epoch;     /* boot epoch, not 0 */
	uint64_t secret[2]; /* keys of the slots */
	uint64_t long_at_ns; /* atomic: from this CLOCK_BOOTTIME on a step may take long (kvl_step_long); 0: now, INT64_MAX: never */
	/* atomic: hooks that answered KVL_ERR_FULL, for want of room in a ring, and of a slot */
	uint64_t refused_ring, refused_table;
} kvl_control_t;
enum { KVL_DOZES = 1 /* for a few ms */, KVL_SLEEPS = 2, KVL_LISTENS = 3 /* whoever steps wants to hear of every record */ };

/* ---- records: the tag is the ring record's tag ---- */
enum {
	KVL_REC_EXPECT = 1,
	KVL_REC_GRANT = 2,
	KVL_REC_CANCEL = 3,
	KVL_REC_REVOKE = 4,
	KVL_REC_PRESSURE = 5,
	KVL_REC_TRACK = 16,
	KVL_REC_UNTRACK = 17,
	KVL_REC_REJECT = 18,
	KVL_REC_READ = 19, /* one part */

	/* Between a host context and its ranks only (dataplane/stream); the core makes and reads them. */
	KVL_REC_ENGINE = 32,      /* host -> rank: a remote engine is known under this handle */
	KVL_REC_ENGINE_GONE = 33, /* host -> rank: forget it */
	KVL_REC_BLOB = 34,        /* both: a piece of something long: a peer rank's map, our own map */
	KVL_REC_PAUSE = 35,       /* host -> rank: kvl_pause, time left */
	KVL_REC_ERA = 36,         /* host -> rank: epoch and secret from now on */
	KVL_REC_FULL = 37,        /* host -> rank: what follows is all that the rank has not reported ended; a mark at its end */
	KVL_REC_DRAIN = 38,       /* host -> rank: tell owners what will not be read */
	KVL_REC_POISON = 39,      /* host -> rank: close every row for ever */
	KVL_REC_READER_DEAD = 40, /* host -> rank: a reader engine's death wire fell (L12) */
	KVL_REC_HOST_LEAVES = 41, /* host -> rank: it closes its context */
	KVL_REC_EVENT = 64,       /* rank -> host: a kvl_event_t, of this rank alone */
	KVL_REC_RETIRED = 65,     /* rank -> host: nothing is left of a tracked request here */
	KVL_REC_READER_HEARD = 67, /* rank -> host: a reader has said who its death wire is, or that it leaves */
	KVL_REC_STATE = 66,       /* rank -> host: registered or not, counters */
	KVL_REC_TROUBLE = 68      /* rank -> host: how it finds a remote engine */
};

typedef struct kvl_rec_expect { /* then id */
	uint64_t lease;
	uint32_t id_len;
	uint32_t zero;
} kvl_rec_expect_t;

typedef struct kvl_rec_grant { /* then id */
	uint64_t lease;
	uint64_t key;     /* SipHash-2-4(boot secret, slot u32 | g u32) */
	uint64_t user;
	uint64_t ttl_ns;  /* time left when said; 0: the configured duration */
	uint64_t said_ns; /* CLOCK_BOOTTIME when said, this host's; 0 on carriers between hosts */
	uint64_t ready_event;
	uint32_t blocks;
	uint32_t tokens;
	uint32_t flags;
	uint32_t id_len;
} kvl_rec_grant_t;

typedef struct kvl_rec_handle { /* CANCEL, REVOKE, UNTRACK, RETIRED */
	uint64_t handle;
} kvl_rec_handle_t;

typedef struct kvl_rec_pressure {
	uint32_t blocks;
	uint32_t zero;
} kvl_rec_pressure_t;

typedef struct kvl_rec_track { /* TRACK, REJECT (track = 0); then remote id, then local id */
	uint64_t track;
	uint64_t engine;
	uint64_t epoch;
	uint64_t key;
	uint64_t user;
	uint64_t said_ns;    /* CLOCK_BOOTTIME when said; 0 on carriers between hosts */
	uint64_t expires_ns; /* fixed leases: the end, in CLOCK_MONOTONIC of the owner's host; 0: heartbeats renew it */
	uint64_t left_ns;    /* fixed leases on a stream: time from said_ns (0: from the arrival) to the certain end, by the host; 0: not converted */
	uint32_t slot;
	uint32_t generation;
	uint32_t native;  /* 1: epoch, key, slot and generation are set */
	uint16_t remote_len;
	uint16_t local_len;
} kvl_rec_track_t;

typedef struct kvl_run {
	uint32_t group;
	uint32_t local;  /* first local block id */
	uint32_t remote; /* first remote block id */
	uint32_t n;      /* blocks, contiguous on both sides */
} kvl_run_t;

typedef struct kvl_rec_read { /* then n runs; the parts of one read are published together */
	uint64_t track;
	uint32_t part;  /* 0 .. parts-1 */
	uint32_t parts; /* at least 1; a read of no blocks has one part with no run */
	uint32_t n;
	uint32_t zero;
} kvl_rec_read_t;
#define KVL_READ_RUNS_MAX 253u /* (4,096 - 8 - 24) / 16 */

/* What sits in an overflow ring: the position that the main ring must be drained to first, then the record. */
typedef struct kvl_rec_overflow {
	uint64_t after;
} kvl_rec_overflow_t;

/* ---- between a host context and its ranks ---- */
typedef struct kvl_rec_engine { /* then id; ENGINE_GONE is the handle alone */
	uint64_t engine; /* handle that the host chose */
	uint64_t user;
	uint32_t tp_size;
	uint32_t pp_size;
	uint32_t id_len;
	uint32_t zero;
} kvl_rec_engine_t;

typedef struct kvl_rec_engine_gone {
	uint64_t engine;
} kvl_rec_engine_gone_t;

typedef struct kvl_rec_blob { /* then a piece: the rest of the record. Pieces come in order, offset 0 begins anew */
	uint32_t kind;   /* KVL_BLOB_* */
	uint32_t rank;   /* whose map; of none: why, as heartbeat.Over */
	uint64_t handle; /* PEER: the engine */
	uint32_t total;  /* bytes of the whole; 0 with no piece: there is none any more */
	uint32_t offset; /* of this piece */
} kvl_rec_blob_t;
enum {
	KVL_BLOB_PEER = 1, /* host -> rank: handshake map of a rank of a remote engine */
	KVL_BLOB_OWN = 2   /* rank -> host: its own handshake map */
};
#define KVL_BLOB_PIECE_MAX 4064u /* 4,096 - 8 - 24 */

typedef struct kvl_rec_pause {
	uint64_t left_ns; /* 0: the pause is over */
} kvl_rec_pause_t;

typedef struct kvl_rec_era {
	uint64_t era; /* eras begun */
	uint64_t epoch;
	uint64_t secret[2];
	uint64_t duration_ns; /* kv_lease_duration of the host: a rank with another one takes no part */
} kvl_rec_era_t;

typedef struct kvl_rec_full {
	uint64_t incarnation; /* of the stream: grows with each full state; the end carries the number of its start */
	uint32_t mark;        /* KVL_FULL_* */
	uint32_t zero;
} kvl_rec_full_t;
enum { KVL_FULL_START = 1, KVL_FULL_END = 2 };

typedef struct kvl_rec_drain {
	uint64_t left_ns; /* time to do it in */
} kvl_rec_drain_t;

typedef struct kvl_rec_poison {
	uint64_t zero;
} kvl_rec_poison_t;

typedef struct kvl_rec_host_leaves {
	uint64_t zero;
} kvl_rec_host_leaves_t;

typedef struct kvl_rec_reader_dead {
	uint64_t reader; /* hash of the reader engine's id, as in native messages */
	uint64_t epoch;
} kvl_rec_reader_dead_t;

typedef struct kvl_rec_reader_heard {
	uint64_t reader;
	uint64_t epoch;
	uint8_t nonce[16];
	uint32_t left; /* 1: it leaves on purpose; nonce is 0 */
	uint32_t zero;
} kvl_rec_reader_heard_t;

typedef struct kvl_rec_trouble {
	uint64_t engine;
	uint64_t for_ns; /* it fails for so long; 0: it does not, or no longer */
} kvl_rec_trouble_t;

typedef struct kvl_rec_rank_state { /* sent when a word changed; counts are gauges of the rank's last step */
	uint32_t flags; /* KVL_RS_* */
	uint32_t held;  /* leases expected or held */
	uint32_t tracked;
	uint32_t reads;         /* in flight */
	uint64_t era;           /* the last that an ERA has told it */
	uint64_t incarnation;   /* of the last full state taken up to its end */
	uint64_t registrations; /* how often memory was registered: each is a new agent and base */
	uint64_t steps;
} kvl_rec_rank_state_t;
enum { KVL_RS_REGISTERED = 1, KVL_RS_POISONED = 2, KVL_RS_DRAINED = 4 };

/* ---- what the C library hands the core ---- */
enum { KVL_ROLE_ENGINE = 0, KVL_ROLE_HOST = 1, KVL_ROLE_RANK = 2 };

typedef struct kvl_core_sizes { /* from kvlgo_config */
	uint32_t size;
	uint32_t leases;       /* requests_max */
	uint32_t tracks;       /* tracked_max */
	uint32_t producers;    /* producers_max */
	uint32_t ring_bytes;   /* capacity of a submission ring */
	uint32_t overflow_bytes; /* capacity of an overflow ring */
	uint32_t events_bytes; /* capacity of the completion ring */
	uint32_t landing_bytes; /* rows read from peers land here */
	uint32_t long_ids;
	uint32_t pump;         /* 1: pump mode */
	uint64_t idle_tick_ns;
	uint32_t role;  /* KVL_ROLE_* */
	uint32_t ranks; /* of this engine, all stages together: 1 to 64 */
	uint64_t blocks_ttl_ns; /* life of a fixed lease that names none */
} kvl_core_sizes_t;

typedef struct kvl_core_args { /* to kvlgo_open; all memory is the C library's and outlives the core's use */
	uint32_t size;
	uint32_t abi;
	const char *config;
	uint64_t config_len;
	kvl_control_t *control;
	kvl_slot_t *slots;
	kvl_track_slot_t *tracks;
	uint8_t *board; /* header and rows */
	uint8_t *landing;
	uint8_t *events;  /* ring memory */
	uint8_t **rings;  /* producers x ring memory, all formatted */
	uint8_t **overflows;
	uint64_t secret[2]; /* boot secret: keys of the slots */
	uint64_t epoch;     /* boot epoch, not 0 */
	uint64_t base;      /* below 2^62 */
} kvl_core_args_t;

#ifdef __cplusplus
#define KVL_ASSERT(x) static_assert(x, #x)
#else
#define KVL_ASSERT(x) _Static_assert(x, #x)
#endif
KVL_ASSERT(sizeof(kvl_slot_t) == 128);
KVL_ASSERT(sizeof(kvl_track_slot_t) == 16);
KVL_ASSERT(sizeof(kvl_board_header_t) == 64);
KVL_ASSERT(sizeof(kvl_row_t) == 32);
KVL_ASSERT(sizeof(kvl_control_t) == 144);
KVL_ASSERT(sizeof(kvl_rec_expect_t) == 16);
KVL_ASSERT(sizeof(kvl_rec_grant_t) == 64);
KVL_ASSERT(sizeof(kvl_rec_track_t) == 80);
KVL_ASSERT(sizeof(kvl_rec_read_t) == 24);
KVL_ASSERT(sizeof(kvl_run_t) == 16);
KVL_ASSERT(sizeof(kvl_rec_engine_t) == 32);
KVL_ASSERT(sizeof(kvl_rec_blob_t) == 24);
KVL_ASSERT(sizeof(kvl_rec_era_t) == 40);
KVL_ASSERT(sizeof(kvl_rec_full_t) == 16);
KVL_ASSERT(sizeof(kvl_rec_host_leaves_t) == 8);
KVL_ASSERT(sizeof(kvl_rec_reader_dead_t) == 16);
KVL_ASSERT(sizeof(kvl_rec_reader_heard_t) == 40);
KVL_ASSERT(sizeof(kvl_rec_trouble_t) == 16);
KVL_ASSERT(sizeof(kvl_rec_rank_state_t) == 48);
KVL_ASSERT(sizeof(kvl_core_sizes_t) == 64);
KVL_ASSERT(sizeof(kvl_core_args_t) == 120);
#endif
