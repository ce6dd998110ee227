/* The shim between Go and the NIXL C API. It translates; what the statuses mean is decided here, once.
 *
 * Threads: send, poll, backlog, post, poll_reads and release of one agent belong to its stepping thread; register,
 * unregister, metadata, load, drop and abandon may run beside them on another thread; close comes last.
 * Handles are integers. Memory that NIXL reads later belongs to C. Go memory is used during a call only.
 */
#ifndef KVLEASE_CNIXL_SHIM_H
#define KVLEASE_CNIXL_SHIM_H

#include <stddef.h>
#include <stdint.h>

/* Results; negative ones map to the errors of package transport. */
enum {
	KVLX_OK = 0,
	KVLX_UNAVAILABLE = -1,
	KVLX_PEER = -2,
	KVLX_INVALID = -3,
	KVLX_CLOSED = -4,
	KVLX_FULL = -5,
	KVLX_RANGE = -6, /* not in the peer's metadata */
	KVLX_BURNT = -7, /* NIXL can never load this name again, though nothing is loaded under it: another alias may do */
	KVLX_STUCK = -8, /* refused, and what of it was done does not come back: the agent has the memory until it is closed */
};

/* Status of a read, as in package transport. */
enum { KVLX_PENDING = 0, KVLX_DONE = 1, KVLX_FAILED = 2, KVLX_FAILED_HERE = 3 };

enum {
	KVLX_NAME_MAX = 255, /* bytes of an agent's name */
	KVLX_AGENTS_MAX = 64,
	KVLX_LIBRARIES_MAX = 16,
};

typedef struct {
	uint64_t addr, bytes;
	uint32_t device;
	uint8_t mem;
	uint8_t pad[3]; /* Go leaves anything in it */
} kvlx_region_t;
_Static_assert(sizeof(kvlx_region_t) == 24, "transport.Region");

typedef struct {
	uint64_t local, remote, len;
	uint32_t local_device, remote_device;
} kvlx_desc_t;
_Static_assert(sizeof(kvlx_desc_t) == 32, "transport.Desc");

typedef struct {
	int32_t progress_thread; /* 1 or 0 */
	int32_t thread_sync;     /* NIXL's value: 0 none, 1 strict, 2 read-write */
	uint64_t progress_delay_us;
	uint32_t peers_max, reads_max, regions_max;
	uint32_t pad;
	const char *engine;  /* NIXL's engine_config for its UCX backend, settings of UCX split by ","; NULL: none */
	const char *devices; /* and its device_list, names of NICs split by ", "; NULL: none */
} kvlx_config_t;
_Static_assert(sizeof(kvlx_config_t) == 48, "kvlx_config_t");

/* Counters of one agent. */
typedef struct {
	uint64_t sends_failed;  /* gen_notif or post that NIXL refused */
	uint64_t status_agent;  /* statuses of the agent layer that say nothing about a transfer: the read stays pending */
	uint64_t notifs_broken; /* notifications that NIXL listed and then could not give */
	uint64_t polls_failed;  /* get_notifs that NIXL refused */
	uint64_t posts_partly;  /* posts that failed and may have begun: reported as a failed read, since some of it may land */
	uint64_t maps_merged;   /* polls that found every map of the backlog in use */
} kvlx_counters_t;

/* Sets the environment that NIXL and UCX read once, where the user has not: plugins may be NULL. */
void kvlx_environment(const char *plugins);

/* Opens file and looks up every symbol. The text says which file and symbol are missing. */
int32_t kvlx_library_open(const char *file, int32_t *library_out, char *text, size_t text_cap);

/* The file that an opened library came from, and a variable of the C environment (Go keeps a copy of its own, made when
 * it was loaded). Both write at most cap bytes with the end mark; false: there is none. */
int kvlx_library_file(int32_t library, char *out, size_t cap);
int kvlx_getenv(const char *name, char *out, size_t cap);

/* The i-th symbol that is looked up, or NULL past the end. */
const char *kvlx_symbol(uint32_t i);

/* Makes an agent with a UCX backend. Takes 0.5 s of a core the first time in a process, 50 ms later. */
int32_t kvlx_open(int32_t library, const char *name, const kvlx_config_t *config, int32_t *agent_out, char *text, size_t text_cap);
/* KVLX_INVALID: a read is in flight. */
int32_t kvlx_may_close(int32_t agent);
/* KVLX_INVALID while a read is in flight: nothing was changed. Unregisters what is still registered. */
int32_t kvlx_close(int32_t agent);

/* All or none; KVLX_STUCK: some, which close takes back. */
int32_t kvlx_register(int32_t agent, const kvlx_region_t *regions, size_t n);
int32_t kvlx_unregister(int32_t agent, const kvlx_region_t *regions, size_t n);
/* The metadata's length in len_out; copied if it fits into cap. */
int32_t kvlx_metadata(int32_t agent, void *buf, size_t cap, size_t *len_out);
/* The number of the alias under which an agent of that name is to be loaded: 0, its own name; n: name~n, since NIXL still has
 * the name for reads of an abandoned one or has lost it. KVLX_INVALID: it is loaded. Gives back what abandoned agents no longer need. */
int32_t kvlx_alias(int32_t agent, const void *name, size_t len);
/* The first base bytes of the name in the blob are the agent's own, and alias is the number that kvlx_alias gave. After KVLX_BURNT
 * kvlx_alias gives a higher one. */
int32_t kvlx_load(int32_t agent, const void *blob, size_t len, uint32_t base, int32_t alias, uint32_t *peer_out);
int32_t kvlx_drop(int32_t agent, uint32_t peer);
int32_t kvlx_abandon(int32_t agent, uint32_t peer);

int32_t kvlx_send(int32_t agent, uint32_t peer, const void *msg, size_t len);

/* Writes notifications, name then body, one after the other into buf and their lengths in pairs into lens, at most max of
 * them. One longer than whole (the size of an empty inbox) is dropped and counted in too_long_out. Returns how many were
 * written, or a negative result; *backlog_out: how many had arrived and wait. */
int32_t kvlx_poll(int32_t agent, void *buf, size_t cap, size_t whole, uint32_t *lens, uint32_t max, uint64_t *backlog_out,
                  uint64_t *too_long_out);

/* took_ns_out, unless NULL: the thread's processor time of the call, set where a read was made. */
int32_t kvlx_post(int32_t agent, uint32_t peer, uint32_t local_mem, uint32_t remote_mem, const kvlx_desc_t *descs, size_t n,
                  const void *notif, size_t notif_len, uint64_t *xfer_out, int64_t *took_ns_out);
/* Looks at all reads; if none has ended, again for at most spin_ns. */
void kvlx_poll_reads(int32_t agent, const uint64_t *xfers, uint8_t *status_out, size_t n, int64_t spin_ns);
int32_t kvlx_release(int32_t agent, uint64_t xfer);

int32_t kvlx_counters(int32_t agent, kvlx_counters_t *out);
/* Allocations that this shim has made in this process. A step adds none. */
uint64_t kvlx_mallocs(void);

#endif
