/* Agents, registration and metadata of the fake. The blob has the form that the real library writes. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

agent_t *agents;

agent_t *find_agent(const char *name)
{
	for (agent_t *a = agents; a != NULL; a = a->next) {
		if (!a->dead && strcmp(a->name, name) == 0)
			return a;
	}
	return NULL;
}

void add_range(ranges_t *r, uint64_t addr, uint64_t len, uint64_t device, int mem)
{
	if (r->n == r->cap) {
		r->cap = r->cap == 0 ? 16 : 2 * r->cap;
		r->at = realloc(r->at, r->cap * sizeof *r->at);
	}
	r->at[r->n++] = (range_t){addr, len, device, mem};
}

bool covered(const ranges_t *r, const range_t *x)
{
	for (size_t i = 0; i < r->n; i++) {
		const range_t *c = &r->at[i];
		if (c->mem == x->mem && c->device == x->device && x->addr >= c->addr && x->len <= c->len && x->addr - c->addr <= c->len - x->len)
			return true;
	}
	return false;
}

void push(agent_t *to, const void *name, size_t name_len, const void *body, size_t len)
{
	message_t *m = calloc(1, sizeof *m + len);
	memcpy(m->name, name, name_len);
	m->name_len = name_len;
	m->len = len;
	memcpy(m->body, body, len);
	*to->last = m;
	to->last = &m->next;
}

bool nixl_capi_is_stub(void);
bool nixl_capi_is_stub(void)
{
	return is_stub();
}

int nixl_capi_create_configured_agent(const char *name, const void *config, agent_t **out);
int nixl_capi_create_configured_agent(const char *name, const void *config, agent_t **out)
{
	static uint64_t epochs;
	SCRIPTED("create_configured_agent");
	if (name == NULL || config == NULL || strlen(name) >= NAME)
		return INVALID;
	pthread_mutex_lock(&lock);
	agent_t *a = NULL;
	if (find_agent(name) == NULL) {
		a = calloc(1, sizeof *a);
		strcpy(a->name, name);
		a->epoch = ++epochs;
		a->last = &a->first;
		memcpy(&a->sync, (const char *)config + 8, sizeof a->sync);
		a->telemetry = ((const char *)config)[32] != 0;
		a->next = agents;
		agents = a;
	}
	pthread_mutex_unlock(&lock);
	*out = a;
	return a != NULL ? OK : BACKEND;
}

static void free_remote(remote_t *r)
{
	free(r->ranges.at);
	free(r->blob);
	free(r);
}

int nixl_capi_destroy_agent(agent_t *a);
int nixl_capi_destroy_agent(agent_t *a)
{
	SCRIPTED("destroy_agent");
	pthread_mutex_lock(&lock);
	for (agent_t **at = &agents; *at != NULL; at = &(*at)->next) {
		if (*at == a) {
			*at = a->next;
			break;
		}
	}
	while (a->remotes != NULL) {
		remote_t *r = a->remotes;
		a->remotes = r->next;
		free_remote(r);
	}
	while (a->first != NULL) {
		message_t *m = a->first;
		a->first = m->next;
		free(m);
	}
	free(a->ranges.at);
	free(a);
	pthread_mutex_unlock(&lock);
	return OK;
}

int nixl_capi_get_plugin_params(agent_t *a, const char *plugin, void **mems, void **params);
int nixl_capi_get_plugin_params(agent_t *a, const char *plugin, void **mems, void **params)
{
	(void)a;
	SCRIPTED("get_plugin_params");
	if (strcmp(plugin, "UCX") != 0)
		return BACKEND;
	*mems = malloc(1);
	*params = calloc(1, sizeof(params_t));
	return OK;
}

int nixl_capi_destroy_mem_list(void *p);
int nixl_capi_destroy_mem_list(void *p)
{
	free(p);
	return OK;
}

int nixl_capi_params_add(params_t *p, const char *key, const char *value);
int nixl_capi_params_add(params_t *p, const char *key, const char *value)
{
	SCRIPTED("params_add");
	char *to = strcmp(key, "engine_config") == 0 ? p->engine : strcmp(key, "device_list") == 0 ? p->devices : NULL;
	if (to == NULL || strlen(value) >= sizeof p->engine)
		return INVALID;
	strcpy(to, value);
	return OK;
}

int nixl_capi_destroy_params(void *p);
int nixl_capi_destroy_params(void *p)
{
	free(p);
	return OK;
}

int nixl_capi_create_backend(agent_t *a, const char *plugin, params_t *params, void **out);
int nixl_capi_create_backend(agent_t *a, const char *plugin, params_t *params, void **out)
{
	(void)plugin;
	SCRIPTED("create_backend");
	a->params = *params;
	a->backend = true;
	*out = malloc(1);
	return OK;
}

int nixl_capi_destroy_backend(void *p);
int nixl_capi_destroy_backend(void *p)
{
	free(p);
	return OK;
}

typedef struct {
	int mem;
	ranges_t ranges;
} list_t;

int nixl_capi_create_reg_dlist(int mem, list_t **out);
int nixl_capi_create_reg_dlist(int mem, list_t **out)
{
	SCRIPTED("create_reg_dlist");
	*out = calloc(1, sizeof **out);
	(*out)->mem = mem;
	return OK;
}

int nixl_capi_destroy_reg_dlist(list_t *l);
int nixl_capi_destroy_reg_dlist(list_t *l)
{
	free(l->ranges.at);
	free(l);
	return OK;
}

int nixl_capi_reg_dlist_add_desc(list_t *l, uintptr_t addr, size_t len, uint64_t device, const void *meta, size_t meta_len);
int nixl_capi_reg_dlist_add_desc(list_t *l, uintptr_t addr, size_t len, uint64_t device, const void *meta, size_t meta_len)
{
	(void)meta;
	(void)meta_len;
	SCRIPTED("reg_dlist_add_desc");
	add_range(&l->ranges, addr, len, device, l->mem);
	return OK;
}

int nixl_capi_register_mem(agent_t *a, list_t *l, void *args);
int nixl_capi_register_mem(agent_t *a, list_t *l, void *args)
{
	(void)args;
	SCRIPTED("register_mem");
	gate("register_mem");
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < l->ranges.n; i++) {
		range_t *r = &l->ranges.at[i];
		add_range(&a->ranges, r->addr, r->len, r->device, r->mem);
	}
	pthread_mutex_unlock(&lock);
	return OK;
}

static bool same(const range_t *x, const range_t *y)
{
	return x->addr == y->addr && x->len == y->len && x->device == y->device && x->mem == y->mem;
}

int nixl_capi_deregister_mem(agent_t *a, list_t *l, void *args);
int nixl_capi_deregister_mem(agent_t *a, list_t *l, void *args)
{
	(void)args;
	SCRIPTED("deregister_mem");
	int st = OK;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < l->ranges.n; i++) {
		size_t j = 0;
		while (j < a->ranges.n && !same(&a->ranges.at[j], &l->ranges.at[i]))
			j++;
		if (j == a->ranges.n)
			st = NOT_FOUND;
		else
			a->ranges.at[j] = a->ranges.at[--a->ranges.n];
	}
	pthread_mutex_unlock(&lock);
	return st;
}

typedef struct {
	uint8_t *at;
	size_t n;
} bytes_t;

static void put(bytes_t *b, const void *p, size_t n)
{
	b->at = realloc(b->at, b->n + n);
	memcpy(b->at + b->n, p, n);
	b->n += n;
}

static void field(bytes_t *b, const char *tag, const void *p, uint64_t n)
{
	put(b, tag, strlen(tag));
	put(b, &n, 8);
	put(b, p, n);
	put(b, "|", 1);
}

int nixl_capi_get_local_md(agent_t *a, void **out, size_t *len);
int nixl_capi_get_local_md(agent_t *a, void **out, size_t *len)
{
	SCRIPTED("get_local_md");
	bytes_t b = {0};
	uint64_t one = 1, zero = 0;
	uint32_t mem = 0;
	pthread_mutex_lock(&lock);
	put(&b, "nixlSerDes|", 11);
	field(&b, "Agent", a->name, strlen(a->name));
	field(&b, "Conns", &one, 8);
	field(&b, "t", "UCX", 3);
	field(&b, "c", &a->epoch, 8);
	field(&b, "", "MemSection", 10);
	field(&b, "nixlSecElms", a->ranges.n > 0 ? &one : &zero, 8);
	if (a->ranges.n > 0) {
		field(&b, "bknd", "UCX", 3);
		field(&b, "nixlDList", "nixlSDList", 10);
		field(&b, "t", &mem, 4);
		uint64_t n = a->ranges.n;
		field(&b, "n", &n, 8);
		for (size_t i = 0; i < a->ranges.n; i++)
			field(&b, "", &a->ranges.at[i], sizeof(range_t));
	}
	pthread_mutex_unlock(&lock);
	*out = b.at;
	*len = b.n;
	return OK;
}

/* Reads a field; the shim has checked that it is whole. */
static const uint8_t *next(const uint8_t **at, const uint8_t *end, const char *tag, uint64_t *n)
{
	size_t t = strlen(tag);
	if ((size_t)(end - *at) < t + 8 || memcmp(*at, tag, t) != 0)
		return NULL;
	memcpy(n, *at + t, 8);
	const uint8_t *p = *at + t + 8;
	if (*n >= (uint64_t)(end - p))
		return NULL;
	*at = p + *n + 1;
	return p;
}

static remote_t *parse(const uint8_t *blob, size_t len)
{
	const uint8_t *at = blob + 11, *end = blob + len, *p;
	uint64_t n, count = 0, descs = 0;
	if (len < 11 || memcmp(blob, "nixlSerDes|", 11) != 0)
		return NULL;
	remote_t *r = calloc(1, sizeof *r);
	if ((p = next(&at, end, "Agent", &n)) == NULL || n >= NAME)
		goto bad;
	memcpy(r->name, p, n);
	if (next(&at, end, "Conns", &n) == NULL || next(&at, end, "t", &n) == NULL || (p = next(&at, end, "c", &n)) == NULL || n != 8)
		goto bad;
	memcpy(&r->epoch, p, 8);
	if (next(&at, end, "", &n) == NULL || (p = next(&at, end, "nixlSecElms", &n)) == NULL)
		goto bad;
	memcpy(&count, p, 8);
	if (count > 0) {
		if (next(&at, end, "bknd", &n) == NULL || next(&at, end, "nixlDList", &n) == NULL || next(&at, end, "t", &n) == NULL ||
		    (p = next(&at, end, "n", &n)) == NULL)
			goto bad;
		memcpy(&descs, p, 8);
	}
	for (uint64_t i = 0; i < descs; i++) {
		range_t g;
		if ((p = next(&at, end, "", &n)) == NULL || n != sizeof g)
			goto bad;
		memcpy(&g, p, sizeof g);
		add_range(&r->ranges, g.addr, g.len, g.device, g.mem);
	}
	r->blob = malloc(len);
	r->blob_len = len;
	memcpy(r->blob, blob, len);
	return r;
bad:
	free_remote(r);
	return NULL;
}

int nixl_capi_load_remote_md(agent_t *a, const void *blob, size_t len, char **name);
int nixl_capi_load_remote_md(agent_t *a, const void *blob, size_t len, char **name)
{
	SCRIPTED("load_remote_md");
	gate("load_remote_md");
	remote_t *r = parse(blob, len);
	if (r == NULL)
		return BACKEND;
	if (strcmp(r->name, a->name) == 0) {
		free_remote(r);
		return INVALID;
	}
	*name = strdup(r->name);
	pthread_mutex_lock(&lock);
	for (remote_t *o = a->remotes; o != NULL; o = o->next) {
		if (strcmp(o->name, r->name) == 0 && o->burnt) {
			pthread_mutex_unlock(&lock);
			free_remote(r);
			free(*name);
			return INVALID;
		}
		if (strcmp(o->name, r->name) == 0) {
			bool same = o->blob_len == r->blob_len && memcmp(o->blob, r->blob, r->blob_len) == 0;
			pthread_mutex_unlock(&lock);
			free_remote(r);
			if (!same)
				free(*name);
			return same ? OK : BACKEND;
		}
	}
	static uint64_t loads;
	r->load = ++loads;
	r->next = a->remotes;
	a->remotes = r;
	r->burnt = strcmp(a->burns, r->name) == 0;
	if (r->burnt) {
		a->burns[0] = 0;
		free(*name);
	}
	int st = r->burnt ? BACKEND : OK;
	pthread_mutex_unlock(&lock);
	return st;
}

bool forget_remote(agent_t *a, const char *name)
{
	for (remote_t **at = &a->remotes; *at != NULL; at = &(*at)->next) {
		if (strcmp((*at)->name, name) == 0 && !(*at)->burnt) {
			remote_t *r = *at;
			*at = r->next;
			free_remote(r);
			return true;
		}
	}
	return false;
}

int nixl_capi_invalidate_remote_md(agent_t *a, const char *name);
int nixl_capi_invalidate_remote_md(agent_t *a, const char *name)
{
	SCRIPTED("invalidate_remote_md");
	pthread_mutex_lock(&lock);
	int st = forget_remote(a, name) ? OK : NOT_FOUND;
	pthread_mutex_unlock(&lock);
	return st;
}
