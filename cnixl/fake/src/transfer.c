/* Reads of the fake. A read is copied when its status is asked for, as the real one may be. */
#include "fake.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

xfer_t *released;

remote_t *find_remote(agent_t *a, const char *name)
{
	for (remote_t *r = a->remotes; r != NULL; r = r->next) {
		if (strcmp(r->name, name) == 0 && !r->burnt)
			return r;
	}
	return NULL;
}

agent_t *reach(agent_t *a, const char *name)
{
	remote_t *r = find_remote(a, name);
	if (r == NULL || r->cut)
		return NULL;
	for (agent_t *to = agents; to != NULL; to = to->next) { /* by its address: the name here may be an alias */
		if (!to->dead && to->epoch == r->epoch)
			return to;
	}
	return NULL;
}

typedef struct {
	int mem;
	ranges_t ranges;
} list_t;

int nixl_capi_create_xfer_dlist(int mem, list_t **out);
int nixl_capi_create_xfer_dlist(int mem, list_t **out)
{
	SCRIPTED("create_xfer_dlist");
	*out = calloc(1, sizeof **out);
	(*out)->mem = mem;
	return OK;
}

int nixl_capi_destroy_xfer_dlist(list_t *l);
int nixl_capi_destroy_xfer_dlist(list_t *l)
{
	free(l->ranges.at);
	free(l);
	return OK;
}

int nixl_capi_xfer_dlist_clear(list_t *l);
int nixl_capi_xfer_dlist_clear(list_t *l)
{
	l->ranges.n = 0;
	return OK;
}

int nixl_capi_xfer_dlist_add_desc(list_t *l, uintptr_t addr, size_t len, uint64_t device);
int nixl_capi_xfer_dlist_add_desc(list_t *l, uintptr_t addr, size_t len, uint64_t device)
{
	add_range(&l->ranges, addr, len, device, l->mem);
	return OK;
}

static bool all_covered(const ranges_t *by, const ranges_t *r)
{
	for (size_t i = 0; i < r->n; i++) {
		if (!covered(by, &r->at[i]))
			return false;
	}
	return true;
}

int nixl_capi_check_remote_md(agent_t *a, const char *name, list_t *l);
int nixl_capi_check_remote_md(agent_t *a, const char *name, list_t *l)
{
	SCRIPTED("check_remote_md");
	pthread_mutex_lock(&lock);
	remote_t *r = find_remote(a, name);
	int st = r != NULL && (l == NULL || all_covered(&r->ranges, &l->ranges)) ? OK : NOT_FOUND;
	pthread_mutex_unlock(&lock);
	return st;
}

static void copy_ranges(ranges_t *to, const ranges_t *from)
{
	for (size_t i = 0; i < from->n; i++)
		add_range(to, from->at[i].addr, from->at[i].len, from->at[i].device, from->at[i].mem);
}

int nixl_capi_create_xfer_req(agent_t *a, int op, list_t *local, list_t *remote, const char *peer, xfer_t **out, opt_args_t *args);
int nixl_capi_create_xfer_req(agent_t *a, int op, list_t *local, list_t *remote, const char *peer, xfer_t **out, opt_args_t *args)
{
	SCRIPTED("create_xfer_req");
	pthread_mutex_lock(&lock);
	remote_t *r = find_remote(a, peer);
	bool ok = op == 0 && r != NULL && local->ranges.n == remote->ranges.n && all_covered(&a->ranges, &local->ranges) &&
	          all_covered(&r->ranges, &remote->ranges);
	for (size_t i = 0; ok && i < local->ranges.n; i++)
		ok = local->ranges.at[i].len == remote->ranges.at[i].len;
	if (ok) {
		xfer_t *x = calloc(1, sizeof *x);
		x->agent = a;
		strcpy(x->peer, peer);
		x->epoch = r->epoch;
		x->load = r->load;
		copy_ranges(&x->local, &local->ranges);
		copy_ranges(&x->remote, &remote->ranges);
		if (args != NULL && args->has) {
			x->has_notif = true;
			x->notif = malloc(args->len + 1);
			x->notif_len = args->len;
			memcpy(x->notif, args->at, args->len);
		}
		*out = x;
	}
	pthread_mutex_unlock(&lock);
	return ok ? OK : BACKEND;
}

typedef int (*to_host_t)(void *, uint64_t, size_t);
typedef int (*from_host_t)(uint64_t, const void *, size_t);

/* A function of the CUDA driver that the process has, as UCX's module would find it; NULL: it has none. */
static void *driver(const char *symbol)
{
	const char *file = getenv("KVLEASE_CUDA");
	void *handle = dlopen(file != NULL ? file : "libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	void *at = handle != NULL ? dlsym(handle, symbol) : NULL;
	if (handle != NULL)
		dlclose(handle);
	return at;
}

/* Device memory is the driver's to copy, if there is one; else it is memory of this process that a test calls so. */
static bool copy(const range_t *to, const range_t *from)
{
	void *at_to = (void *)(uintptr_t)to->addr, *at_from = (void *)(uintptr_t)from->addr, *page = NULL;
	to_host_t to_host = NULL;
	from_host_t from_host = NULL;
	if (from->mem != 0)
		*(void **)&to_host = driver("cuMemcpyDtoH_v2");
	if (to->mem != 0)
		*(void **)&from_host = driver("cuMemcpyHtoD_v2");
	if (to_host == NULL && from_host == NULL) {
		memcpy(at_to, at_from, to->len);
		return true;
	}
	if (to_host != NULL && from_host != NULL)
		page = malloc(to->len);
	void *between = page != NULL ? page : to_host != NULL ? at_to : at_from;
	bool ok = (to_host == NULL || to_host(between, from->addr, from->len) == 0) && (from_host == NULL || from_host(to->addr, between, to->len) == 0);
	free(page);
	return ok;
}

bool land(xfer_t *x)
{
	bool ok = true;
	for (size_t i = 0; i < x->local.n; i++)
		ok &= copy(&x->local.at[i], &x->remote.at[i]);
	return ok;
}

int nixl_capi_post_xfer_req(agent_t *a, xfer_t *x, opt_args_t *args);
int nixl_capi_post_xfer_req(agent_t *a, xfer_t *x, opt_args_t *args)
{
	(void)args;
	SCRIPTED("post_xfer_req");
	pthread_mutex_lock(&lock);
	int st = find_remote(a, x->peer) == NULL ? NOT_FOUND : reach(a, x->peer) == NULL ? BACKEND : IN_PROGRESS;
	x->status = st;
	x->posted = true;
	if (st == BACKEND)
		forget_remote(a, x->peer); /* as the real one, which calls that a disconnect before it is folded */
	else if (st == IN_PROGRESS && a->choked)
		st = BACKEND;
	pthread_mutex_unlock(&lock);
	return st;
}

int nixl_capi_get_xfer_status(agent_t *a, xfer_t *x);
int nixl_capi_get_xfer_status(agent_t *a, xfer_t *x)
{
	SCRIPTED("get_xfer_status");
	pthread_mutex_lock(&lock);
	remote_t *r = find_remote(a, x->peer);
	if (x->status == IN_PROGRESS && (r == NULL || r->load != x->load)) {
		pthread_mutex_unlock(&lock);
		return NOT_FOUND; /* the agent's opinion, also once it is loaded again; the transfer goes on */
	}
	if (x->status == IN_PROGRESS && !a->hold) {
		agent_t *to = reach(a, x->peer);
		if (to == NULL || to->epoch != x->epoch) {
			x->status = BACKEND;
		} else if (!to->stopped) {
			x->status = land(x) ? OK : BACKEND;
			if (x->status == OK && x->has_notif)
				push(to, a->name, strlen(a->name), x->notif, x->notif_len);
		}
	}
	int st = x->status;
	pthread_mutex_unlock(&lock);
	return st;
}

int nixl_capi_release_xfer_req(agent_t *a, xfer_t *x);
int nixl_capi_release_xfer_req(agent_t *a, xfer_t *x)
{
	(void)a;
	SCRIPTED("release_xfer_req");
	pthread_mutex_lock(&lock);
	if (x->status == IN_PROGRESS) { /* as the real one: released, and it lands all the same */
		xfer_t *late = malloc(sizeof *late);
		*late = *x;
		late->next = released;
		released = late;
		x->local = x->remote = (ranges_t){0};
	}
	x->posted = false;
	pthread_mutex_unlock(&lock);
	return OK;
}

int nixl_capi_destroy_xfer_req(xfer_t *x);
int nixl_capi_destroy_xfer_req(xfer_t *x)
{
	free(x->local.at);
	free(x->remote.at);
	free(x->notif);
	free(x);
	return OK;
}
