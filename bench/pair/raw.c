#include "pair.h"

#include "nixl_api.h"

#include <dlfcn.h>

typedef struct nixl_dlist_handle nixl_dlist_handle_t;

static nixl_api_t api;
static int (*prep_xfer_dlist)(nixl_agent_t *, const char *, nixl_xfer_list_t *, nixl_dlist_handle_t **, nixl_opt_args_t *);
static int (*make_xfer_req)(nixl_agent_t *, int, nixl_dlist_handle_t *, const int *, size_t, nixl_dlist_handle_t *, const int *,
                            size_t, nixl_xfer_t **, nixl_opt_args_t *);

static nixl_agent_t *agents[RANKS_MAX]; /* of P one a rank; D has the first alone, as is meant by agent */
static uint32_t agents_n;
#define agent (agents[0])
static nixl_notifs_t *notifs;
static nixl_opt_args_t *with_notif;
static nixl_xfer_list_t *local_lists[RANKS_MAX], *remote_lists[RANKS_MAX];
static nixl_dlist_handle_t *local_all[RANKS_MAX], *remote_all[RANKS_MAX];
static char *peer_names[RANKS_MAX]; /* of D: P's ranks, each with its part of every block */
static uint32_t peers_n;

const char *const raw_names[RAW_WAYS] = {"plain", "merged", "prepared", "fenced"};

static void ok(int status, const char *what)
{
	if (status < 0)
		die("NIXL %s: status %d", what, status);
}

static void *symbol(void *lib, const char *name)
{
	void *at = dlsym(lib, name);
	if (at == NULL)
		die("NIXL has no symbol %s", name);
	return at;
}

void raw_open(const char *name, void *kv, size_t bytes)
{
	const char *file = getenv("KVLEASE_NIXL");
	void *lib = dlopen(file != NULL ? file : "libnixl_capi.so", RTLD_NOW | RTLD_LOCAL);
	if (lib == NULL)
		die("%s", dlerror());
	void *at;
#define LOOK_UP(result, symbol_name, args) \
	at = symbol(lib, "nixl_capi_" #symbol_name); \
	memcpy(&api.symbol_name, &at, sizeof at);
	NIXL_SYMBOLS(LOOK_UP)
#undef LOOK_UP
	at = symbol(lib, "nixl_capi_prep_xfer_dlist");
	memcpy(&prep_xfer_dlist, &at, sizeof at);
	at = symbol(lib, "nixl_capi_make_xfer_req");
	memcpy(&make_xfer_req, &at, sizeof at);

	nixl_agent_t *one;
	nixl_backend_t *backend;
	nixl_agent_config_t c;
	memset(&c, 0, sizeof c);
	c.progress_thread = true;
	c.thread_sync = NIXL_SYNC_RW;
	c.num_workers = 1;
	c.progress_delay_us = 100000;
	c.listen_delay_us = 100000;
	ok(api.create_configured_agent(name, &c, &one), "agent");
	nixl_mem_list_t *mems;
	nixl_params_t *params;
	ok(api.get_plugin_params(one, "UCX", &mems, &params), "plugin");
	ok(api.create_backend(one, "UCX", params, &backend), "backend");
	nixl_reg_list_t *regs;
	ok(api.create_reg_dlist(NIXL_DRAM, &regs), "list");
	ok(api.reg_dlist_add_desc(regs, (uintptr_t)kv, bytes, 0, NULL, 0), "region");
	ok(api.register_mem(one, regs, NULL), "register");
	agents[agents_n++] = one;
	if (agents_n > 1)
		return;
	ok(api.create_notif_map(&notifs), "map");
	ok(api.create_opt_args(&with_notif), "arguments");
	ok(api.opt_args_set_has_notif(with_notif, true), "arguments");
	ok(api.opt_args_set_notif_msg(with_notif, "request-0000:1", 14), "arguments");
	for (uint32_t i = 0; i < RANKS_MAX; i++) {
		ok(api.create_xfer_dlist(NIXL_DRAM, &local_lists[i]), "list");
		ok(api.create_xfer_dlist(NIXL_DRAM, &remote_lists[i]), "list");
	}
}

size_t raw_metadata(uint32_t rank, void *out, size_t cap)
{
	void *blob;
	size_t n;
	if (agents[rank] == NULL)
		return 0;
	ok(api.get_local_md(agents[rank], &blob, &n), "metadata");
	if (n > cap)
		die("metadata of %zu bytes", n);
	memcpy(out, blob, n);
	free(blob);
	return n;
}

void raw_load(const void *metadata, size_t n)
{
	if (n > 0)
		ok(api.load_remote_md(agent, metadata, n, &peer_names[peers_n++]), "load");
}

static void add(uint32_t peer, uint64_t local, uint64_t remote, uint64_t len)
{
	ok(api.xfer_dlist_add_desc(local_lists[peer], local, len, 0), "descriptor");
	ok(api.xfer_dlist_add_desc(remote_lists[peer], remote, len, 0), "descriptor");
}

static void clear(uint32_t peer)
{
	ok(api.xfer_dlist_clear(local_lists[peer]), "clear");
	ok(api.xfer_dlist_clear(remote_lists[peer]), "clear");
}

void raw_prepare(uint64_t local, const uint64_t *remote, uint64_t block_len, uint32_t blocks)
{
	uint64_t part = block_len / peers_n;
	for (uint32_t r = 0; r < peers_n; r++) {
		clear(r);
		for (uint32_t i = 0; i < blocks; i++)
			add(r, local + i * block_len + r * part, remote[r] + i * part, part);
		ok(prep_xfer_dlist(agent, "", local_lists[r], &local_all[r], NULL), "prepare");
		ok(prep_xfer_dlist(agent, peer_names[r], remote_lists[r], &remote_all[r], NULL), "prepare");
	}
}

/* Posts the transfers of all peers, and waits for all. */
static void finish(nixl_xfer_t **xfers)
{
	int st[RANKS_MAX];
	for (uint32_t r = 0; r < peers_n; r++)
		st[r] = api.post_xfer_req(agent, xfers[r], NULL);
	for (uint32_t r = 0; r < peers_n; r++) {
		while (st[r] == NIXL_IN_PROGRESS)
			st[r] = api.get_xfer_status(agent, xfers[r]);
		ok(st[r], "read");
		ok(api.release_xfer_req(agent, xfers[r]), "release");
		ok(api.destroy_xfer_req(xfers[r]), "destroy");
	}
}

static void build(nixl_xfer_t **xfer, uint32_t peer, nixl_opt_args_t *args)
{
	ok(api.create_xfer_req(agent, NIXL_READ, local_lists[peer], remote_lists[peer], peer_names[peer], xfer, args), "create");
}

void raw_read(enum raw_way way, uint64_t local, const uint64_t *remote, uint64_t block_len, const uint32_t *local_ids,
              const uint32_t *remote_ids, uint32_t n)
{
	nixl_xfer_t *xfers[RANKS_MAX];
	uint64_t part = block_len / peers_n;
	for (uint32_t r = 0; r < peers_n; r++) {
		if (way == RAW_PREPARED || way == RAW_FENCED) {
			ok(make_xfer_req(agent, NIXL_READ, local_all[r], (const int *)local_ids, n, remote_all[r], (const int *)remote_ids, n,
			                 &xfers[r], with_notif), "make");
			continue;
		}
		clear(r);
		for (uint32_t i = 0, run; i < n; i += run) {
			for (run = 1; way == RAW_MERGED && part == block_len && i + run < n && local_ids[i + run] == local_ids[i] + run &&
			              remote_ids[i + run] == remote_ids[i] + run; run++) {
			}
			add(r, local + local_ids[i] * block_len + r * part, remote[r] + remote_ids[i] * part, run * part);
		}
		build(&xfers[r], r, with_notif);
	}
	finish(xfers);
	if (way != RAW_FENCED)
		return;
	for (uint32_t r = 0; r < peers_n; r++) {
		clear(r);
		add(r, local + local_ids[0] * block_len + r * part, remote[r] + remote_ids[0] * part, 8);
		build(&xfers[r], r, NULL);
	}
	finish(xfers);
}

void raw_send(const void *msg, size_t n)
{
	ok(api.gen_notif(agent, peer_names[0], msg, n, NULL), "notification");
}

uint32_t raw_poll(void)
{
	size_t n = 0;
	if (agents_n == 0)
		return 0;
	for (uint32_t i = 0; i < agents_n; i++)
		ok(api.get_notifs(agents[i], notifs, NULL), "poll");
	ok(api.notif_map_size(notifs, &n), "poll");
	if (n > 0)
		ok(api.notif_map_clear(notifs), "poll");
	return (uint32_t)n;
}
