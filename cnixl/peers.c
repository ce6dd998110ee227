#include "agent.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int region_valid(const kvlx_region_t *r)
{
	return r->addr != 0 && r->bytes != 0 && r->addr + r->bytes > r->addr && r->mem < NIXL_MEMS;
}

static int32_t result_of(int status)
{
	switch (status) {
	case NIXL_OK:
		return KVLX_OK;
	case NIXL_BACKEND:
		return KVLX_PEER;
	default:
		return KVLX_INVALID;
	}
}

/* Runs call (register_mem or deregister_mem) over the regions of one kind. */
static int each_kind(agent_t *a, int mem, const kvlx_region_t *regions, size_t n,
                     int (*call)(nixl_agent_t *, nixl_reg_list_t *, nixl_opt_args_t *))
{
	nixl_reg_list_t *list = NULL;
	int st = a->api->create_reg_dlist(mem, &list);
	if (st != NIXL_OK)
		return st;
	size_t found = 0;
	for (size_t i = 0; i < n && st == NIXL_OK; i++) {
		if (regions[i].mem == mem) {
			st = a->api->reg_dlist_add_desc(list, regions[i].addr, regions[i].bytes, regions[i].device, NULL, 0);
			found++;
		}
	}
	if (st == NIXL_OK && found > 0)
		st = call(a->agent, list, NULL);
	a->api->destroy_reg_dlist(list);
	return st;
}

int32_t kvlx_register(int32_t handle, const kvlx_region_t *regions, size_t n)
{
	agent_t *a = kvlx_agent(handle);
	if (a == NULL)
		return KVLX_CLOSED;
	for (size_t i = 0; i < n; i++) {
		if (!region_valid(&regions[i]))
			return KVLX_INVALID;
	}
	pthread_mutex_lock(&a->regions_lock);
	int32_t result = KVLX_FULL;
	if (n <= a->regions_max - a->regions_n) {
		result = KVLX_INVALID;
		if (each_kind(a, NIXL_DRAM, regions, n, a->api->register_mem) == NIXL_OK) {
			if (each_kind(a, NIXL_VRAM, regions, n, a->api->register_mem) == NIXL_OK)
				result = KVLX_OK;
			else if (each_kind(a, NIXL_DRAM, regions, n, a->api->deregister_mem) != NIXL_OK)
				result = KVLX_STUCK;
		}
		for (size_t i = 0; i < n; i++) {
			if (result == KVLX_OK || (result == KVLX_STUCK && regions[i].mem == NIXL_DRAM))
				a->regions[a->regions_n++] = regions[i];
		}
	}
	pthread_mutex_unlock(&a->regions_lock);
	return result;
}

static int64_t find_region(const agent_t *a, const kvlx_region_t *r, const uint8_t *taken)
{
	for (uint32_t i = 0; i < a->regions_n; i++) {
		const kvlx_region_t *have = &a->regions[i];
		if (!taken[i] && have->addr == r->addr && have->bytes == r->bytes && have->device == r->device && have->mem == r->mem)
			return i;
	}
	return -1;
}

int32_t kvlx_unregister(int32_t handle, const kvlx_region_t *regions, size_t n)
{
	agent_t *a = kvlx_agent(handle);
	if (a == NULL)
		return KVLX_CLOSED;
	int32_t result = KVLX_OK;
	pthread_mutex_lock(&a->regions_lock);
	uint8_t *taken = kvlx_calloc(a->regions_n + 1, 1);
	if (taken == NULL)
		result = KVLX_FULL;
	for (size_t i = 0; i < n && result == KVLX_OK; i++) {
		int64_t at = find_region(a, &regions[i], taken);
		if (at < 0)
			result = KVLX_INVALID;
		else
			taken[at] = 1;
	}
	if (result == KVLX_OK) {
		for (int mem = 0; mem < NIXL_MEMS; mem++) {
			if (each_kind(a, mem, regions, n, a->api->deregister_mem) != NIXL_OK)
				result = KVLX_INVALID; /* it is gone from our table all the same: nothing reads through it any more */
		}
		uint32_t left = 0;
		for (uint32_t i = 0; i < a->regions_n; i++) {
			if (!taken[i])
				a->regions[left++] = a->regions[i];
		}
		a->regions_n = left;
	}
	free(taken);
	pthread_mutex_unlock(&a->regions_lock);
	return result;
}

int32_t kvlx_metadata(int32_t handle, void *buf, size_t cap, size_t *len_out)
{
	agent_t *a = kvlx_agent(handle);
	if (a == NULL)
		return KVLX_CLOSED;
	void *blob = NULL;
	size_t len = 0;
	int st = a->api->get_local_md(a->agent, &blob, &len);
	if (st != NIXL_OK)
		return KVLX_INVALID;
	if (len <= cap)
		memcpy(buf, blob, len);
	*len_out = len;
	free(blob); /* NIXL's own malloc */
	return KVLX_OK;
}

/* Whether an agent is loaded: its own name is what counts, not the alias. Under peers_lock. */
static int is_loaded(const agent_t *a, const char *name, size_t base)
{
	for (uint32_t i = 0; i < a->peers_max; i++) {
		const peer_t *p = &a->peers[i];
		if ((p->state == PEER_LOADED || p->state == PEER_DROPPING) && p->base == base && memcmp(p->name, name, base) == 0)
			return 1;
	}
	return 0;
}

/* Whether NIXL has something under this name for us. Under peers_lock. */
static int in_use(const agent_t *a, const char *name)
{
	for (uint32_t i = 0; i < a->peers_max; i++) {
		const peer_t *p = &a->peers[i];
		if (p->state != PEER_FREE && p->state != PEER_RETIRED && strcmp(p->name, name) == 0)
			return 1;
	}
	return 0;
}

static int32_t add_peer(agent_t *a, const char *name, uint32_t base, uint32_t *peer_out)
{
	for (uint32_t i = 0; i < a->peers_max; i++) {
		peer_t *p = &a->peers[i];
		if (p->state != PEER_FREE)
			continue;
		p->state = PEER_LOADED;
		p->generation++;
		p->lost = 0;
		p->open = 0;
		p->base = base;
		memcpy(p->name, name, strlen(name) + 1);
		*peer_out = p->generation << PEER_INDEX_BITS | (i + 1);
		return KVLX_OK;
	}
	return KVLX_FULL;
}

/* Takes a peer out of NIXL. Under peers_lock, which is free meanwhile: the state keeps the name and stops sends. */
static void invalidate(agent_t *a, peer_t *p)
{
	p->state = PEER_DROPPING;
	pthread_mutex_unlock(&a->peers_lock);
	a->api->invalidate_remote_md(a->agent, p->name); /* NOT_FOUND: NIXL has forgotten it by itself */
	pthread_mutex_lock(&a->peers_lock);
	p->state = p->generation + 1 < PEER_GENERATIONS ? PEER_FREE : PEER_RETIRED;
}

int32_t kvlx_alias(int32_t handle, const void *name, size_t len)
{
	agent_t *a = kvlx_agent(handle);
	if (a == NULL)
		return KVLX_CLOSED;
	if (len == 0 || len > KVLX_NAME_MAX)
		return KVLX_INVALID;
	char alias[NAME_ROOM];
	memcpy(alias, name, len);
	alias[len] = 0;
	pthread_mutex_lock(&a->peers_lock);
	for (uint32_t i = 0; i < a->peers_max; i++) {
		if (a->peers[i].state == PEER_ABANDONED && a->peers[i].open == 0)
			invalidate(a, &a->peers[i]);
	}
	/* NIXL must not be asked: a second blob under a name that differs in one key takes all keys of the first from it, under reads
	 * that use them. */
	int32_t n = is_loaded(a, alias, len) ? KVLX_INVALID : a->alias_from;
	for (; n >= 0; n++) { /* ends: there are only so many peers */
		if (n > 0)
			snprintf(alias + len, sizeof alias - len, "~%d", (int)n);
		if (!in_use(a, alias))
			break;
	}
	pthread_mutex_unlock(&a->peers_lock);
	return n;
}

/* NIXL 1.5 connects first and reads the memory section then. When that fails, since the connection was refused meanwhile or the section
 * is no good, it forgets the agent and leaves the connection under its name, which nothing in its API removes: each later load of
 * that name is an invalid parameter. */
static int32_t burn(agent_t *a, int32_t alias)
{
	pthread_mutex_lock(&a->peers_lock);
	if (alias >= a->alias_from && alias < INT32_MAX)
		a->alias_from = alias + 1;
	pthread_mutex_unlock(&a->peers_lock);
	return KVLX_BURNT;
}

int32_t kvlx_load(int32_t handle, const void *blob, size_t len, uint32_t base, int32_t alias, uint32_t *peer_out)
{
	agent_t *a = kvlx_agent(handle);
	if (a == NULL)
		return KVLX_CLOSED;
	if (len == 0)
		return KVLX_INVALID;
	char *name = NULL;
	int st = a->api->load_remote_md(a->agent, blob, len, &name);
	if (st == NIXL_INVALID_PARAM && alias >= 0)
		return burn(a, alias);
	if (st != NIXL_OK)
		return result_of(st);
	size_t name_len = strlen(name);
	int32_t result = KVLX_INVALID;
	int loaded_before = 0;
	if (base > 0 && base <= KVLX_NAME_MAX && name_len >= base && name_len < NAME_ROOM) {
		pthread_mutex_lock(&a->peers_lock);
		loaded_before = is_loaded(a, name, base) || in_use(a, name);
		if (!loaded_before)
			result = add_peer(a, name, base, peer_out);
		pthread_mutex_unlock(&a->peers_lock);
	}
	if (result != KVLX_OK && !loaded_before)
		a->api->invalidate_remote_md(a->agent, name);
	free(name); /* NIXL's own strdup */
	return result;
}

/* The peer behind a handle, or NULL. Under peers_lock. */
static peer_t *get_peer(agent_t *a, uint32_t peer)
{
	uint32_t i = (peer & ((1u << PEER_INDEX_BITS) - 1)) - 1;
	if (i >= a->peers_max)
		return NULL;
	peer_t *p = &a->peers[i];
	return p->state == PEER_LOADED && p->generation == peer >> PEER_INDEX_BITS ? p : NULL;
}

int32_t kvlx_drop(int32_t handle, uint32_t peer)
{
	agent_t *a = kvlx_agent(handle);
	if (a == NULL)
		return KVLX_CLOSED;
	int32_t result = KVLX_INVALID;
	pthread_mutex_lock(&a->peers_lock);
	peer_t *p = get_peer(a, peer);
	if (p != NULL && p->open == 0) {
		invalidate(a, p);
		result = KVLX_OK;
	}
	pthread_mutex_unlock(&a->peers_lock);
	return result;
}

/* NIXL keeps an agent with open reads: once its name was invalidated or loaded again, it answers "not found" for ever for
 * requests of before, and nobody would learn when their bytes have landed. */
int32_t kvlx_abandon(int32_t handle, uint32_t peer)
{
	agent_t *a = kvlx_agent(handle);
	if (a == NULL)
		return KVLX_CLOSED;
	int32_t result = KVLX_INVALID;
	pthread_mutex_lock(&a->peers_lock);
	peer_t *p = get_peer(a, peer);
	if (p != NULL) {
		if (p->open > 0)
			p->state = PEER_ABANDONED;
		else
			invalidate(a, p);
		result = KVLX_OK;
	}
	pthread_mutex_unlock(&a->peers_lock);
	return result;
}

int32_t kvlx_send(int32_t handle, uint32_t peer, const void *msg, size_t len)
{
	agent_t *a = kvlx_agent(handle);
	if (a == NULL)
		return KVLX_CLOSED;
	int32_t result = KVLX_INVALID;
	pthread_mutex_lock(&a->peers_lock);
	peer_t *p = get_peer(a, peer);
	if (p != NULL && p->lost) {
		result = KVLX_PEER;
	} else if (p != NULL) {
		int st = a->api->gen_notif(a->agent, p->name, len > 0 ? msg : "", len, NULL);
		result = KVLX_OK;
		if (st == NIXL_INVALID_PARAM) { /* UCX's, of the message: nothing of the connection */
			a->counters.sends_failed++;
			result = KVLX_INVALID;
		} else if (st != NIXL_OK && st != NIXL_IN_PROGRESS) {
			/* Backend error, or NIXL has forgotten the agent after a disconnect: loading again is the probe for life. */
			p->lost = 1;
			a->counters.sends_failed++;
			result = KVLX_PEER;
		}
	}
	pthread_mutex_unlock(&a->peers_lock);
	return result;
}

int32_t kvlx_peer_hold(agent_t *a, uint32_t peer, const char **name_out, uint32_t *index_out)
{
	int32_t result = KVLX_INVALID;
	pthread_mutex_lock(&a->peers_lock);
	peer_t *p = get_peer(a, peer);
	if (p != NULL && p->lost) {
		result = KVLX_PEER;
	} else if (p != NULL) {
		p->open++; /* from here on drop is refused, so the name stays */
		*name_out = p->name;
		*index_out = (uint32_t)(p - a->peers);
		result = KVLX_OK;
	}
	pthread_mutex_unlock(&a->peers_lock);
	return result;
}

void kvlx_peer_free(agent_t *a, uint32_t index, int lost)
{
	pthread_mutex_lock(&a->peers_lock);
	a->peers[index].open--;
	if (lost)
		a->peers[index].lost = 1;
	pthread_mutex_unlock(&a->peers_lock);
}

void kvlx_peer_lost(agent_t *a, uint32_t index)
{
	pthread_mutex_lock(&a->peers_lock);
	a->peers[index].lost = 1;
	pthread_mutex_unlock(&a->peers_lock);
}
