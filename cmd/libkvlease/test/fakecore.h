/* What the tests see of the fake core: a stand-in for libkvlease-core.so in C, so that the C library runs under the
 * sanitizers without Go. It takes records in the order in which the real one must, and keeps a log of them. */
#ifndef FAKECORE_H
#define FAKECORE_H

#include <stdint.h>

#include "kvlease/ring.h"
#include "../src/core.h"

enum { FAKE_LOG = 1 << 17, FAKE_PRODUCERS = 16 };

typedef struct fake_entry {
	uint32_t tag;
	uint32_t producer;
	uint64_t handle;
	uint64_t a, b; /* GRANT: key, said_ns; TRACK: engine, said_ns; READ: part, runs; EXPECT: id_len */
	uint64_t c;    /* GRANT: ttl_ns; TRACK: expires_ns */
	uint32_t flags; /* GRANT */
	uint64_t event; /* GRANT: ready_event */
	char id[40];   /* the first bytes of the (remote) id */
} fake_entry_t;

typedef struct fake_core {
	kvl_core_args_t args;
	kvl_core_sizes_t sizes;
	kvl_ring_consumer_t rings[FAKE_PRODUCERS], overflows[FAKE_PRODUCERS];
	kvl_ring_producer_t events;
	uint32_t log_n;
	fake_entry_t log[FAKE_LOG];
	kvl_run_t runs[4096]; /* of the last read */
	uint32_t runs_n;
	uint64_t live_leases, live_tracks;
	kvl_region_t region; /* the last one registered */
	uint8_t delta[256];
	uint64_t delta_n;
	/* knobs */
	int deaf;            /* a step takes no records */
	uint32_t take_max;   /* records that a step takes of a producer; 0: all */
	int panic;           /* the next step poisons */
	void (*inside)(void); /* what happens while the next step runs */
	void (*registering)(void); /* what happens while the next registration runs */
	int keep_slots;      /* ended leases stay ENDED, their events unpublished */
	int close_busy;      /* so many times kvlgo_close answers BUSY */
	int closed;          /* atomic */
	uint64_t stepping_threads; /* atomic: threads inside step: never more than one */
	uint64_t overlaps;
} fake_core_t;

fake_core_t *fake_last(void);         /* the one opened last */
void fake_step(fake_core_t *f);       /* one step, whatever the mode */
void fake_lapse(fake_core_t *f, uint64_t lease); /* an expectation has waited too long */
void fake_era(fake_core_t *f, uint64_t epoch, uint64_t secret); /* memory is registered again: another engine to readers */
void fake_ready(fake_core_t *f, uint64_t lease); /* its event has fired */
void fake_check_all(fake_core_t *f);  /* all held leases: every reader checks the fence */
void fake_publish(fake_core_t *f, const kvl_event_t *ev);

#endif
