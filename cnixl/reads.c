#include "agent.h"

#include <time.h>

static int64_t clock_ns(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static read_t *get_read(agent_t *a, uint64_t xfer)
{
	uint64_t i = (xfer & 0xffffffff) - 1;
	if (i >= a->reads_max)
		return NULL;
	read_t *r = &a->reads[i];
	return r->used && r->generation == (uint32_t)(xfer >> 32) ? r : NULL;
}

/* Whether one registered region of this agent holds the whole range. NIXL finds that out, too, but answers with the
 * status of a lost connection, and a wrong block id must not look like one. */
static int covered(const agent_t *a, uint32_t mem, uint32_t device, uint64_t addr, uint64_t len, uint32_t *hint)
{
	for (uint32_t n = 0, i = *hint; n < a->regions_n; n++, i = i + 1 < a->regions_n ? i + 1 : 0) {
		const kvlx_region_t *r = &a->regions[i];
		if (r->mem == mem && r->device == device && addr >= r->addr && len <= r->bytes && addr - r->addr <= r->bytes - len) {
			*hint = i; /* neighbours in a list lie in one region most of the time */
			return 1;
		}
	}
	return 0;
}

static int locals_covered(agent_t *a, uint32_t mem, const kvlx_desc_t *descs, size_t n)
{
	int ok = 1;
	uint32_t hint = 0;
	pthread_mutex_lock(&a->regions_lock);
	for (size_t i = 0; i < n && ok; i++) {
		const kvlx_desc_t *d = &descs[i];
		ok = d->len > 0 && d->remote + d->len > d->remote && covered(a, mem, d->local_device, d->local, d->len, &hint);
	}
	pthread_mutex_unlock(&a->regions_lock);
	return ok;
}

static int32_t create(agent_t *a, const char *peer, nixl_xfer_list_t *local, nixl_xfer_list_t *remote, const kvlx_desc_t *descs,
                      size_t n, const void *notif, size_t notif_len, nixl_xfer_t **request_out)
{
	const nixl_api_t *api = a->api;
	api->xfer_dlist_clear(local);
	api->xfer_dlist_clear(remote);
	for (size_t i = 0; i < n; i++) {
		const kvlx_desc_t *d = &descs[i];
		if (api->xfer_dlist_add_desc(local, d->local, d->len, d->local_device) != NIXL_OK ||
		    api->xfer_dlist_add_desc(remote, d->remote, d->len, d->remote_device) != NIXL_OK)
			return KVLX_INVALID;
	}
	nixl_opt_args_t *args = NULL;
	if (notif_len > 0) {
		args = a->with_notif;
		if (api->opt_args_set_notif_msg(args, notif, notif_len) != NIXL_OK)
			return KVLX_INVALID;
	}
	if (api->create_xfer_req(a->agent, NIXL_READ, local, remote, peer, request_out, args) == NIXL_OK)
		return KVLX_OK;
	/* One status for everything: ask whether the agent is still known and whether it has these ranges. */
	if (api->check_remote_md(a->agent, peer, NULL) != NIXL_OK)
		return KVLX_PEER;
	return api->check_remote_md(a->agent, peer, remote) == NIXL_OK ? KVLX_PEER : KVLX_RANGE;
}

static void discard(agent_t *a, nixl_xfer_t *request)
{
	if (a->api->release_xfer_req(a->agent, request) == NIXL_OK)
		a->api->destroy_xfer_req(request);
}

int32_t kvlx_post(int32_t handle, uint32_t peer, uint32_t local_mem, uint32_t remote_mem, const kvlx_desc_t *descs, size_t n,
                  const void *notif, size_t notif_len, uint64_t *xfer_out, int64_t *took_ns_out)
{
	int64_t start = took_ns_out != NULL ? clock_ns(CLOCK_THREAD_CPUTIME_ID) : 0;
	agent_t *a = kvlx_agent(handle);
	if (a == NULL)
		return KVLX_CLOSED;
	const char *name = NULL;
	uint32_t index = 0;
	int32_t st = kvlx_peer_hold(a, peer, &name, &index);
	if (st != KVLX_OK)
		return st;
	nixl_xfer_t *request = NULL;
	if (n == 0 || local_mem >= NIXL_MEMS || remote_mem >= NIXL_MEMS || !locals_covered(a, local_mem, descs, n))
		st = KVLX_INVALID;
	else if (a->reads_free_n == 0)
		st = KVLX_FULL;
	else
		st = create(a, name, a->local[local_mem], a->remote[remote_mem], descs, n, notif, notif_len, &request);
	if (st != KVLX_OK) {
		if (st == KVLX_PEER)
			a->counters.sends_failed++;
		kvlx_peer_free(a, index, st == KVLX_PEER);
		return st;
	}
	int posted = a->api->post_xfer_req(a->agent, request, NULL);
	/* UCX's "invalid parameter" of any descriptor comes through as NIXL's own: memory of ours, or what we asked, and not the connection. */
	int ours = posted == NIXL_INVALID_PARAM;
	if (posted < 0) {
		a->counters.sends_failed += !ours;
		if (posted == NIXL_NOT_FOUND || (n == 1 && ours)) { /* nothing was started */
			discard(a, request);
			kvlx_peer_free(a, index, !ours);
			return ours ? KVLX_INVALID : KVLX_PEER;
		}
		/* What was asked may be on its way, a part of it or all, since NIXL flushes the endpoint behind the last get and then asks whether the
		 * connection stands: the read exists and has failed, so that its blocks are set aside. */
		a->counters.posts_partly++;
		if (!ours)
			kvlx_peer_lost(a, index);
	}
	uint32_t i = a->reads_free[--a->reads_free_n];
	read_t *r = &a->reads[i];
	r->used = 1;
	r->generation++;
	r->peer = index;
	r->request = request;
	r->status = ours ? KVLX_FAILED_HERE : posted < 0 ? KVLX_FAILED : posted == NIXL_OK ? KVLX_DONE : KVLX_PENDING;
	*xfer_out = (uint64_t)r->generation << 32 | (i + 1);
	if (took_ns_out != NULL)
		*took_ns_out = clock_ns(CLOCK_THREAD_CPUTIME_ID) - start;
	return KVLX_OK;
}

static void look(agent_t *a, read_t *r)
{
	if (r->status != KVLX_PENDING)
		return;
	int st = a->api->get_xfer_status(a->agent, r->request);
	if (st == NIXL_OK) {
		r->status = KVLX_DONE;
	} else if (st == NIXL_BACKEND) {
		r->status = KVLX_FAILED;
		kvlx_peer_lost(a, r->peer);
	} else if (st == NIXL_INVALID_PARAM) { /* UCX's, of a get that it had put off: NIXL keeps it, and would say so for ever */
		r->status = KVLX_FAILED_HERE;
	} else if (st != NIXL_IN_PROGRESS) {
		a->counters.status_agent++; /* the agent's opinion, not the transfer's: bytes may still land */
	}
}

int kvlx_read_pending(agent_t *a, read_t *r)
{
	look(a, r);
	return r->status == KVLX_PENDING;
}

void kvlx_poll_reads(int32_t handle, const uint64_t *xfers, uint8_t *status_out, size_t n, int64_t spin_ns)
{
	agent_t *a = kvlx_agent(handle);
	int64_t until = 0;
	for (;;) {
		int ended = 0;
		for (size_t i = 0; i < n; i++) {
			read_t *r = a != NULL ? get_read(a, xfers[i]) : NULL;
			if (r != NULL)
				look(a, r);
			status_out[i] = r != NULL ? r->status : KVLX_FAILED;
			ended |= status_out[i] != KVLX_PENDING;
		}
		if (ended || n == 0 || spin_ns <= 0)
			return;
		int64_t now = clock_ns(CLOCK_MONOTONIC);
		if (until == 0)
			until = now + spin_ns;
		else if (now >= until)
			return;
	}
}

int32_t kvlx_release(int32_t handle, uint64_t xfer)
{
	agent_t *a = kvlx_agent(handle);
	if (a == NULL)
		return KVLX_CLOSED;
	read_t *r = get_read(a, xfer);
	if (r == NULL)
		return KVLX_INVALID;
	if (kvlx_read_pending(a, r)) /* NIXL would release it, and its bytes would land all the same */
		return KVLX_INVALID;
	discard(a, r->request);
	r->used = 0;
	r->request = NULL;
	a->reads_free[a->reads_free_n++] = (uint32_t)(r - a->reads);
	kvlx_peer_free(a, r->peer, 0);
	return KVLX_OK;
}
