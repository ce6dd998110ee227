#include "pair.h"
#include "raw.h"

#include "nixl_api.h"

#include <dlfcn.h>

typedef struct nixl_dlist_handle nixl_dlist_handle_t;

static nixl_api_t api;
static int (*prep_xfer_dlist)(nixl_agent_t *, const char *, nixl_xfer_list_t *, nixl_dlist_handle_t **, nixl_opt_args_t *);
static int (*make_xfer_req)(nixl_agent_t *, int, nixl_dlist_handle_t *, const int *, size_t, nixl_dlist_handle_t *, const int *,
                            size_t, nixl_xfer_t **, nixl_opt_args_t *);

static nixl_agent_t *agent;
static nixl_backend_t *backend;
static nixl_notifs_t *notifs;
static nixl_opt_args_t *with_notif;
static nixl_xfer_list_t *local_list, *remote_list;
static nixl_dlist_handle_t *local_all, *remote_all;
static char *peer_name;

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

	nixl_agent_config_t c;
	memset(&c, 0, sizeof c);
	c.progress_thread = true;
	c.thread_sync = NIXL_SYNC_RW;
	c.num_workers = 1;
	c.progress_delay_us = 100000;
	c.listen_delay_us = 100000;
	ok(api.create_configured_agent(name, &c, &agent), "agent");
	nixl_mem_list_t *mems;
	nixl_params_t *params;
	ok(api.get_plugin_params(agent, "UCX", &mems, &params), "plugin");
	ok(api.create_backend(agent, "UCX", params, &backend), "backend");
	nixl_reg_list_t *regs;
	ok(api.create_reg_dlist(NIXL_DRAM, &regs), "list");
	ok(api.reg_dlist_add_desc(regs, (uintptr_t)kv, bytes, 0, NULL, 0), "region");
	ok(api.register_mem(agent, regs, NULL), "register");
	ok(api.create_notif_map(&notifs), "map");
	ok(api.create_opt_args(&with_notif), "arguments");
	ok(api.opt_args_set_has_notif(with_notif, true), "arguments");
	ok(api.opt_args_set_notif_msg(with_notif, "request-0000:1", 14), "arguments");
	ok(api.create_xfer_dlist(NIXL_DRAM, &local_list), "list");
	ok(api.create_xfer_dlist(NIXL_DRAM, &remote_list), "list");
}

size_t raw_metadata(void *out, size_t cap)
{
	void *blob;
	size_t n;
	if (agent == NULL)
		return 0;
	ok(api.get_local_md(agent, &blob, &n), "metadata");
	if (n > cap)
		die("metadata of %zu bytes", n);
	memcpy(out, blob, n);
	free(blob);
	return n;
}

void raw_load(const void *metadata, size_t n)
{
	if (n > 0)
		ok(api.load_remote_md(agent, metadata, n, &peer_name), "load");
}

static void add(uint64_t local, uint64_t remote, uint64_t len)
{
	ok(api.xfer_dlist_add_desc(local_list, local, len, 0), "descriptor");
	ok(api.xfer_dlist_add_desc(remote_list, remote, len, 0), "descriptor");
}

static void clear(void)
{
	ok(api.xfer_dlist_clear(local_list), "clear");
	ok(api.xfer_dlist_clear(remote_list), "clear");
}

void raw_prepare(uint64_t local, uint64_t remote, uint64_t block_len, uint32_t blocks)
{
	clear();
	for (uint32_t i = 0; i < blocks; i++)
		add(local + i * block_len, remote + i * block_len, block_len);
	ok(prep_xfer_dlist(agent, "", local_list, &local_all, NULL), "prepare");
	ok(prep_xfer_dlist(agent, peer_name, remote_list, &remote_all, NULL), "prepare");
}

static void finish(nixl_xfer_t *xfer)
{
	int st = api.post_xfer_req(agent, xfer, NULL);
	while (st == NIXL_IN_PROGRESS)
		st = api.get_xfer_status(agent, xfer);
	ok(st, "read");
	ok(api.release_xfer_req(agent, xfer), "release");
	ok(api.destroy_xfer_req(xfer), "destroy");
}

void raw_read(enum raw_way way, uint64_t local, uint64_t remote, uint64_t block_len, const uint32_t *local_ids,
              const uint32_t *remote_ids, uint32_t n)
{
	nixl_xfer_t *xfer;
	if (way == RAW_PREPARED || way == RAW_FENCED) {
		ok(make_xfer_req(agent, NIXL_READ, local_all, (const int *)local_ids, n, remote_all, (const int *)remote_ids, n, &xfer,
		                 with_notif), "make");
	} else {
		clear();
		for (uint32_t i = 0, run; i < n; i += run) {
			for (run = 1; way == RAW_MERGED && i + run < n && local_ids[i + run] == local_ids[i] + run &&
			              remote_ids[i + run] == remote_ids[i] + run; run++) {
			}
			add(local + local_ids[i] * block_len, remote + remote_ids[i] * block_len, run * block_len);
		}
		ok(api.create_xfer_req(agent, NIXL_READ, local_list, remote_list, peer_name, &xfer, with_notif), "create");
	}
	finish(xfer);
	if (way == RAW_FENCED) {
		clear();
		add(local + local_ids[0] * block_len, remote + remote_ids[0] * block_len, 8);
		ok(api.create_xfer_req(agent, NIXL_READ, local_list, remote_list, peer_name, &xfer, NULL), "create");
		finish(xfer);
	}
}

void raw_send(const void *msg, size_t n)
{
	ok(api.gen_notif(agent, peer_name, msg, n, NULL), "notification");
}

uint32_t raw_poll(void)
{
	size_t n = 0;
	if (agent == NULL)
		return 0;
	ok(api.get_notifs(agent, notifs, NULL), "poll");
	ok(api.notif_map_size(notifs, &n), "poll");
	if (n > 0)
		ok(api.notif_map_clear(notifs), "poll");
	return (uint32_t)n;
}
