/* What the files of the shim share. Not for Go. */
#ifndef KVLEASE_CNIXL_AGENT_H
#define KVLEASE_CNIXL_AGENT_H

#include "nixl_api.h"
#include "shim.h"

#include <pthread.h>

/* A slot of a table is named by index + 1 and generation; a generation that has run out retires its slot. */
enum {
	PEER_INDEX_BITS = 13,
	PEERS_MAX = (1 << PEER_INDEX_BITS) - 2,
	PEER_GENERATIONS = 1 << (32 - PEER_INDEX_BITS),
	NAME_ROOM = KVLX_NAME_MAX + 13,
	MAPS = 8, /* polls whose rest can wait before two are merged */
};

enum {
	PEER_FREE = 0,
	PEER_LOADED = 1,
	PEER_DROPPING = 2,  /* NIXL is at work; the name stays */
	PEER_ABANDONED = 3, /* forgotten by the caller, kept in NIXL for its open reads; the agent may be loaded again under an alias */
	PEER_RETIRED = 4,
};

typedef struct {
	uint32_t generation; /* of the present or last use; the first is 1 */
	uint8_t state;
	uint8_t lost;  /* NIXL has refused a send or post: nothing more is tried until drop and load */
	uint32_t open; /* reads not released */
	uint32_t base;         /* bytes of the name that are the agent's own */
	char name[NAME_ROOM]; /* as NIXL knows it here: an alias has "~" and a number behind */
} peer_t;

typedef struct {
	uint32_t generation;
	uint8_t used;
	uint8_t status;
	uint32_t peer; /* index */
	nixl_xfer_t *request;
} read_t;

/* One map that get_notifs has filled. */
typedef struct {
	nixl_notifs_t *map;
	uint64_t waiting; /* not yet taken */
	size_t agents;
	size_t agent, notif; /* the next one */
} map_t;

typedef struct {
	const nixl_api_t *api;
	uint32_t generation;
	uint8_t open;
	nixl_agent_t *agent;
	nixl_backend_t *backend;
	nixl_opt_args_t *with_notif;
	nixl_xfer_list_t *local[NIXL_MEMS], *remote[NIXL_MEMS];

	pthread_mutex_t peers_lock; /* guards peers and alias_from; held for table work, and over a send or post, never over a load */
	peer_t *peers;
	uint32_t peers_max;
	int32_t alias_from; /* the least number of an alias: NIXL has burnt a lower one of some name, and one number for all names needs no list */

	pthread_mutex_t regions_lock; /* guards regions */
	kvlx_region_t *regions;
	uint32_t regions_n, regions_max;

	read_t *reads; /* of the stepping thread */
	uint32_t *reads_free;
	uint32_t reads_free_n, reads_max;

	map_t maps[MAPS]; /* of the stepping thread: oldest first from map_first */
	uint32_t map_first, map_n;

	kvlx_counters_t counters;
} agent_t;

extern pthread_mutex_t kvlx_tables;
void *kvlx_calloc(size_t n, size_t size);
void kvlx_text(char *text, size_t cap, const char *format, ...) __attribute__((format(printf, 3, 4)));
const nixl_api_t *kvlx_library(int32_t library);
/* The agent behind a handle, or NULL if it was closed. */
agent_t *kvlx_agent(int32_t agent);

/* Keeps a peer from being dropped while a read uses it. KVLX_PEER: it is lost. */
int32_t kvlx_peer_hold(agent_t *a, uint32_t peer, const char **name_out, uint32_t *index_out);
void kvlx_peer_free(agent_t *a, uint32_t index, int lost);
void kvlx_peer_lost(agent_t *a, uint32_t index);

/* Asks NIXL once more. */
int kvlx_read_pending(agent_t *a, read_t *r);

#endif
