#include "agent.h"

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
		int st = each_kind(a, NIXL_DRAM, regions, n, a->api->register_mem);
		if (st == NIXL_OK) {
			st = each_kind(a, NIXL_VRAM, regions, n, a->api->register_mem);
			if (st != NIXL_OK)
				each_kind(a, NIXL_DRAM, regions, n, a->api->deregister_mem);
		}
		result = st == NIXL_OK ? KVLX_OK : KVLX_INVALID;
		if (st == NIXL_OK) {
			memcpy(&a->regions[a->regions_n], regions, n * sizeof *regions);
			a->regions_n += (uint32_t)n;
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

static peer_t *find_name(agent_t *a, const char *name)
{
	for (uint32_t i = 0; i < a->peers_max; i++) {
		peer_t *p = &a->peers[i];
		if ((p->state == PEER_LOADED || p->state == PEER_DROPPING) && strcmp(p->name, name) == 0)
			return p;
	}
	return NULL;
}

static int32_t add_peer(agent_t *a, const char *name, uint32_t *peer_out)
{
	for (uint32_t i = 0; i < a->peers_max; i++) {
		peer_t *p = &a->peers[i];
		if (p->state != PEER_FREE)
			continue;
		p->state = PEER_LOADED;
		p->generation++;
		p->lost = 0;
		p->open = 0;
		memcpy(p->name, name, strlen(name) + 1);
		*peer_out = p->generation << PEER_INDEX_BITS | (i + 1);
		return KVLX_OK;
	}
	return KVLX_FULL;
}

int32_t kvlx_load(int32_t handle, const void *blob, size_t len, uint32_t *peer_out)
{
	agent_t *a = kvlx_agent(handle);
	if (a == NULL)
		return KVLX_CLOSED;
	if (len == 0)
		return KVLX_INVALID;
	char *name = NULL;
	int st = a->api->load_remote_md(a->agent, blob, len, &name);
	if (st != NIXL_OK)
		return result_of(st);
	size_t name_len = strlen(name);
	int32_t result = KVLX_INVALID;
	int loaded_before = 0;
	if (name_len > 0 && name_len <= KVLX_NAME_MAX) {
		pthread_mutex_lock(&a->peers_lock);
		loaded_before = find_name(a, name) != NULL;
		if (!loaded_before)
			result = add_peer(a, name, peer_out);
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

/* Gives a slot back once no read uses it. Under peers_lock. */
static void tidy(peer_t *p)
{
	if (p->open > 0)
		p->state = PEER_ABANDONED;
	else
		p->state = p->generation + 1 < PEER_GENERATIONS ? PEER_FREE : PEER_RETIRED;
}

static int32_t forget(int32_t handle, uint32_t peer, int under_reads)
{
	agent_t *a = kvlx_agent(handle);
	if (a == NULL)
		return KVLX_CLOSED;
	pthread_mutex_lock(&a->peers_lock);
	peer_t *p = get_peer(a, peer);
	if (p == NULL || (p->open > 0 && !under_reads)) {
		pthread_mutex_unlock(&a->peers_lock);
		return KVLX_INVALID;
	}
	p->state = PEER_DROPPING; /* keeps the name and stops sends while NIXL is at work without our lock */
	pthread_mutex_unlock(&a->peers_lock);
	a->api->invalidate_remote_md(a->agent, p->name); /* NOT_FOUND: NIXL has forgotten it by itself */
	pthread_mutex_lock(&a->peers_lock);
	tidy(p);
	pthread_mutex_unlock(&a->peers_lock);
	return KVLX_OK;
}

int32_t kvlx_drop(int32_t handle, uint32_t peer)
{
	return forget(handle, peer, 0);
}

int32_t kvlx_abandon(int32_t handle, uint32_t peer)
{
	return forget(handle, peer, 1);
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
		if (st != NIXL_OK && st != NIXL_IN_PROGRESS) {
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
	peer_t *p = &a->peers[index];
	p->open--;
	if (lost)
		p->lost = 1;
	if (p->state == PEER_ABANDONED)
		tidy(p);
	pthread_mutex_unlock(&a->peers_lock);
}

void kvlx_peer_lost(agent_t *a, uint32_t index)
{
	pthread_mutex_lock(&a->peers_lock);
	a->peers[index].lost = 1;
	pthread_mutex_unlock(&a->peers_lock);
}
