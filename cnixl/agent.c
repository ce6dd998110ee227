#include "agent.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static agent_t *agents[KVLX_AGENTS_MAX]; /* never freed, so that a late call finds a closed agent and not freed memory */

enum { AGENT_INDEX = KVLX_AGENTS_MAX, AGENT_GENERATIONS = 1 << 20 };

agent_t *kvlx_agent(int32_t handle)
{
	if (handle <= 0)
		return NULL;
	/* A2: acquire; pairs with A1 in kvlx_open. */
	agent_t *a = __atomic_load_n(&agents[handle % AGENT_INDEX], __ATOMIC_ACQUIRE);
	if (a == NULL || !__atomic_load_n(&a->open, __ATOMIC_ACQUIRE) || a->generation != (uint32_t)(handle / AGENT_INDEX))
		return NULL;
	return a;
}

static void free_tables(agent_t *a)
{
	const nixl_api_t *api = a->api;
	for (uint32_t i = 0; i < MAPS; i++) {
		if (a->maps[i].map != NULL)
			api->destroy_notif_map(a->maps[i].map);
	}
	for (int mem = 0; mem < NIXL_MEMS; mem++) {
		if (a->local[mem] != NULL)
			api->destroy_xfer_dlist(a->local[mem]);
		if (a->remote[mem] != NULL)
			api->destroy_xfer_dlist(a->remote[mem]);
	}
	if (a->with_notif != NULL)
		api->destroy_opt_args(a->with_notif);
	free(a->peers);
	free(a->reads);
	free(a->reads_free);
	free(a->regions);
	if (a->agent != NULL)
		api->destroy_agent(a->agent);
	if (a->backend != NULL)
		api->destroy_backend(a->backend); /* frees the handle only */
	uint32_t generation = a->generation;
	memset(a, 0, sizeof *a);
	a->generation = generation;
}

static int make_tables(agent_t *a)
{
	const nixl_api_t *api = a->api;
	a->peers = kvlx_calloc(a->peers_max, sizeof *a->peers);
	a->reads = kvlx_calloc(a->reads_max, sizeof *a->reads);
	a->reads_free = kvlx_calloc(a->reads_max, sizeof *a->reads_free);
	a->regions = kvlx_calloc(a->regions_max, sizeof *a->regions);
	if (a->peers == NULL || a->reads == NULL || a->reads_free == NULL || a->regions == NULL)
		return 0;
	for (uint32_t i = 0; i < a->reads_max; i++)
		a->reads_free[i] = a->reads_max - 1 - i;
	a->reads_free_n = a->reads_max;
	for (uint32_t i = 0; i < MAPS; i++) {
		if (api->create_notif_map(&a->maps[i].map) != NIXL_OK)
			return 0;
	}
	for (int mem = 0; mem < NIXL_MEMS; mem++) {
		if (api->create_xfer_dlist(mem, &a->local[mem]) != NIXL_OK || api->create_xfer_dlist(mem, &a->remote[mem]) != NIXL_OK)
			return 0;
	}
	return api->create_opt_args(&a->with_notif) == NIXL_OK && api->opt_args_set_has_notif(a->with_notif, true) == NIXL_OK;
}

static int32_t make_backend(agent_t *a, const kvlx_config_t *config, char *text, size_t text_cap)
{
	const nixl_api_t *api = a->api;
	nixl_mem_list_t *mems = NULL;
	nixl_params_t *params = NULL;
	int st = api->get_plugin_params(a->agent, "UCX", &mems, &params);
	if (st != NIXL_OK) {
		const char *dir = getenv("NIXL_PLUGIN_DIR");
		kvlx_text(text, text_cap, "NIXL finds no UCX plugin (status %d, NIXL_PLUGIN_DIR=%s)", st, dir != NULL ? dir : "unset");
		return KVLX_UNAVAILABLE;
	}
	if (config->engine != NULL)
		st = api->params_add(params, "engine_config", config->engine);
	if (st == NIXL_OK && config->devices != NULL)
		st = api->params_add(params, "device_list", config->devices);
	if (st == NIXL_OK)
		st = api->create_backend(a->agent, "UCX", params, &a->backend);
	api->destroy_params(params);
	api->destroy_mem_list(mems);
	if (st != NIXL_OK) {
		const char *tls = getenv("UCX_TLS");
		kvlx_text(text, text_cap, "NIXL cannot make its UCX backend (status %d, UCX_TLS=%s)", st, tls != NULL ? tls : "unset");
		return KVLX_UNAVAILABLE;
	}
	return KVLX_OK;
}

/* An agent takes 14 to 20 descriptors, and UCX ends the process when it finds none for one of its threads. */
enum { AGENT_DESCRIPTORS = 32 };

static int descriptors_free(void)
{
	int fd[AGENT_DESCRIPTORS], n = 0;
	while (n < AGENT_DESCRIPTORS && (fd[n] = eventfd(0, EFD_CLOEXEC)) >= 0)
		n++;
	for (int i = 0; i < n; i++)
		close(fd[i]);
	return n == AGENT_DESCRIPTORS;
}

static int32_t fill(agent_t *a, const char *name, const kvlx_config_t *config, char *text, size_t text_cap)
{
	nixl_agent_config_t c;
	memset(&c, 0, sizeof c);
	c.progress_thread = config->progress_thread != 0;
	c.thread_sync = config->thread_sync;
	c.num_workers = 1;
	c.progress_delay_us = config->progress_delay_us;
	c.listen_delay_us = 100000;
	if (!descriptors_free()) {
		kvlx_text(text, text_cap, "NIXL needs %d descriptors for an agent: raise `ulimit -n`", AGENT_DESCRIPTORS);
		return KVLX_UNAVAILABLE;
	}
	int st = a->api->create_configured_agent(name, &c, &a->agent);
	if (st != NIXL_OK) {
		kvlx_text(text, text_cap, "NIXL cannot make agent %s (status %d)", name, st);
		return KVLX_UNAVAILABLE;
	}
	int32_t r = make_backend(a, config, text, text_cap);
	if (r != KVLX_OK)
		return r;
	if (!make_tables(a)) {
		kvlx_text(text, text_cap, "no memory for the tables of agent %s", name);
		return KVLX_UNAVAILABLE;
	}
	return KVLX_OK;
}

/* Takes a free place of the table and its next generation, under kvlx_tables. */
static agent_t *take_place(int32_t *index_out)
{
	for (int32_t i = 0; i < KVLX_AGENTS_MAX; i++) {
		agent_t *a = agents[i];
		if (a == NULL) {
			a = kvlx_calloc(1, sizeof *a);
			if (a == NULL)
				return NULL;
			__atomic_store_n(&agents[i], a, __ATOMIC_RELEASE);
		}
		if (a->api != NULL || a->generation + 1 >= AGENT_GENERATIONS)
			continue;
		a->generation++;
		*index_out = i;
		return a;
	}
	return NULL;
}

int32_t kvlx_open(int32_t library, const char *name, const kvlx_config_t *config, int32_t *agent_out, char *text, size_t text_cap)
{
	const nixl_api_t *api = kvlx_library(library);
	size_t len = strlen(name);
	if (api == NULL || len == 0 || len > KVLX_NAME_MAX || config->peers_max == 0 || config->peers_max > PEERS_MAX ||
	    config->reads_max == 0 || config->regions_max == 0) {
		kvlx_text(text, text_cap, "name of %zu bytes, %u peers, %u reads, %u regions", len, config->peers_max, config->reads_max,
		          config->regions_max);
		return KVLX_INVALID;
	}
	int32_t index = 0;
	pthread_mutex_lock(&kvlx_tables);
	agent_t *a = take_place(&index);
	if (a != NULL)
		a->api = api;
	pthread_mutex_unlock(&kvlx_tables);
	if (a == NULL) {
		kvlx_text(text, text_cap, "%d agents are open in this process", KVLX_AGENTS_MAX);
		return KVLX_FULL;
	}
	a->peers_max = config->peers_max;
	a->reads_max = config->reads_max;
	a->regions_max = config->regions_max;
	pthread_mutex_init(&a->peers_lock, NULL);
	pthread_mutex_init(&a->regions_lock, NULL);
	int32_t st = fill(a, name, config, text, text_cap);
	if (st != KVLX_OK) {
		pthread_mutex_lock(&kvlx_tables);
		free_tables(a);
		pthread_mutex_unlock(&kvlx_tables);
		return st;
	}
	__atomic_store_n(&a->open, 1, __ATOMIC_RELEASE); /* A1: release; pairs with A2 in kvlx_agent. The tables are written before. */
	*agent_out = (int32_t)a->generation * AGENT_INDEX + index;
	return KVLX_OK;
}

/* Deregisters everything, one list per kind of memory. */
static void forget_regions(agent_t *a)
{
	for (int mem = 0; mem < NIXL_MEMS; mem++) {
		nixl_reg_list_t *list = NULL;
		if (a->api->create_reg_dlist(mem, &list) != NIXL_OK)
			continue;
		uint32_t n = 0;
		for (uint32_t i = 0; i < a->regions_n; i++) {
			kvlx_region_t *r = &a->regions[i];
			if (r->mem == mem) {
				a->api->reg_dlist_add_desc(list, r->addr, r->bytes, r->device, NULL, 0);
				n++;
			}
		}
		if (n > 0)
			a->api->deregister_mem(a->agent, list, NULL);
		a->api->destroy_reg_dlist(list);
	}
	a->regions_n = 0;
}

int32_t kvlx_may_close(int32_t handle)
{
	agent_t *a = kvlx_agent(handle);
	for (uint32_t i = 0; a != NULL && i < a->reads_max; i++) {
		read_t *r = &a->reads[i];
		if (r->used && kvlx_read_pending(a, r))
			return KVLX_INVALID;
	}
	return KVLX_OK;
}

int32_t kvlx_close(int32_t handle)
{
	agent_t *a = kvlx_agent(handle);
	if (a == NULL)
		return KVLX_OK;
	const nixl_api_t *api = a->api;
	if (kvlx_may_close(handle) != KVLX_OK)
		return KVLX_INVALID;
	__atomic_store_n(&a->open, 0, __ATOMIC_RELEASE);
	for (uint32_t i = 0; i < a->reads_max; i++) {
		read_t *r = &a->reads[i];
		if (r->used && r->request != NULL && api->release_xfer_req(a->agent, r->request) == NIXL_OK)
			api->destroy_xfer_req(r->request);
	}
	forget_regions(a);
	for (uint32_t i = 0; i < a->peers_max; i++) {
		if (a->peers[i].state == PEER_LOADED)
			api->invalidate_remote_md(a->agent, a->peers[i].name);
	}
	pthread_mutex_destroy(&a->peers_lock);
	pthread_mutex_destroy(&a->regions_lock);
	pthread_mutex_lock(&kvlx_tables);
	free_tables(a); /* destroying the agent ends its worker: after it nothing of this process writes to registered memory */
	pthread_mutex_unlock(&kvlx_tables);
	return KVLX_OK;
}

int32_t kvlx_counters(int32_t handle, kvlx_counters_t *out)
{
	agent_t *a = kvlx_agent(handle);
	if (a == NULL)
		return KVLX_CLOSED;
	*out = a->counters;
	return KVLX_OK;
}
