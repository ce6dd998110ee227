/* The part of the NIXL C API that kvlease uses, in own declarations.
 *
 * Checked against the library of the wheel 1.5.1: names by its symbol table, the layout of the configuration by the offsets
 * that nixl_capi_create_configured_agent loads (0, 1, 4, 8, 12, 16, 24, 32) and by how an agent made with it behaves.
 * The same layout stands in every release since 1.0. third_party/nixl_symbols.txt lists the names; a test compares.
 */
#ifndef KVLEASE_CNIXL_NIXL_API_H
#define KVLEASE_CNIXL_NIXL_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	NIXL_OK = 0,
	NIXL_IN_PROGRESS = 1,
	NIXL_INVALID_PARAM = -1,
	NIXL_BACKEND = -2, /* also a lost connection: the C API folds "remote disconnected" into it */
	NIXL_INVALID_STATE = -3,
	NIXL_EXCEPTION = -4,
	NIXL_NOT_FOUND = -6, /* of the agent layer: says nothing about a transfer */
};

enum { NIXL_DRAM = 0, NIXL_VRAM = 1, NIXL_MEMS = 2 };
enum { NIXL_READ = 0 };
enum { NIXL_SYNC_NONE = 0, NIXL_SYNC_STRICT = 1, NIXL_SYNC_RW = 2 };

typedef struct {
	bool progress_thread;
	bool listen_thread;
	int32_t listen_port;
	int32_t thread_sync;
	uint32_t num_workers;
	uint64_t progress_delay_us;
	uint64_t listen_delay_us;
	bool telemetry;
	uint8_t pad[7];
} nixl_agent_config_t;
_Static_assert(sizeof(nixl_agent_config_t) == 40, "size of the agent's configuration");
_Static_assert(offsetof(nixl_agent_config_t, listen_port) == 4, "listen_port");
_Static_assert(offsetof(nixl_agent_config_t, thread_sync) == 8, "thread_sync");
_Static_assert(offsetof(nixl_agent_config_t, num_workers) == 12, "num_workers");
_Static_assert(offsetof(nixl_agent_config_t, progress_delay_us) == 16, "progress_delay_us");
_Static_assert(offsetof(nixl_agent_config_t, listen_delay_us) == 24, "listen_delay_us");
_Static_assert(offsetof(nixl_agent_config_t, telemetry) == 32, "telemetry");

typedef struct nixl_agent nixl_agent_t;
typedef struct nixl_mem_list nixl_mem_list_t;
typedef struct nixl_params nixl_params_t;
typedef struct nixl_backend nixl_backend_t;
typedef struct nixl_opt_args nixl_opt_args_t;
typedef struct nixl_reg_list nixl_reg_list_t;
typedef struct nixl_xfer_list nixl_xfer_list_t;
typedef struct nixl_xfer nixl_xfer_t;
typedef struct nixl_notifs nixl_notifs_t;

/* X(result, name, arguments): the symbol is nixl_capi_<name>. */
#define NIXL_SYMBOLS(X) \
	X(bool, is_stub, (void)) \
	X(int, create_configured_agent, (const char *name, const nixl_agent_config_t *, nixl_agent_t **)) \
	X(int, destroy_agent, (nixl_agent_t *)) \
	X(int, get_plugin_params, (nixl_agent_t *, const char *plugin, nixl_mem_list_t **, nixl_params_t **)) \
	X(int, destroy_mem_list, (nixl_mem_list_t *)) \
	X(int, params_add, (nixl_params_t *, const char *key, const char *value)) \
	X(int, destroy_params, (nixl_params_t *)) \
	X(int, create_backend, (nixl_agent_t *, const char *plugin, nixl_params_t *, nixl_backend_t **)) \
	X(int, destroy_backend, (nixl_backend_t *)) \
	X(int, create_opt_args, (nixl_opt_args_t **)) \
	X(int, destroy_opt_args, (nixl_opt_args_t *)) \
	X(int, opt_args_set_notif_msg, (nixl_opt_args_t *, const void *, size_t)) \
	X(int, opt_args_set_has_notif, (nixl_opt_args_t *, bool)) \
	X(int, create_reg_dlist, (int mem, nixl_reg_list_t **)) \
	X(int, destroy_reg_dlist, (nixl_reg_list_t *)) \
	X(int, reg_dlist_add_desc, (nixl_reg_list_t *, uintptr_t, size_t, uint64_t device, const void *meta, size_t)) \
	X(int, register_mem, (nixl_agent_t *, nixl_reg_list_t *, nixl_opt_args_t *)) \
	X(int, deregister_mem, (nixl_agent_t *, nixl_reg_list_t *, nixl_opt_args_t *)) \
	X(int, get_local_md, (nixl_agent_t *, void **malloced, size_t *)) \
	X(int, load_remote_md, (nixl_agent_t *, const void *, size_t, char **malloced_name)) \
	X(int, invalidate_remote_md, (nixl_agent_t *, const char *name)) \
	X(int, check_remote_md, (nixl_agent_t *, const char *name, nixl_xfer_list_t *)) \
	X(int, create_notif_map, (nixl_notifs_t **)) \
	X(int, destroy_notif_map, (nixl_notifs_t *)) \
	X(int, get_notifs, (nixl_agent_t *, nixl_notifs_t *, nixl_opt_args_t *)) \
	X(int, notif_map_size, (nixl_notifs_t *, size_t *)) \
	X(int, notif_map_get_agent_at, (nixl_notifs_t *, size_t, const char **)) \
	X(int, notif_map_get_notifs_size, (nixl_notifs_t *, const char *agent, size_t *)) \
	X(int, notif_map_get_notif, (nixl_notifs_t *, const char *agent, size_t, const void **, size_t *)) \
	X(int, notif_map_clear, (nixl_notifs_t *)) \
	X(int, gen_notif, (nixl_agent_t *, const char *peer, const void *, size_t, nixl_opt_args_t *)) \
	X(int, create_xfer_dlist, (int mem, nixl_xfer_list_t **)) \
	X(int, destroy_xfer_dlist, (nixl_xfer_list_t *)) \
	X(int, xfer_dlist_add_desc, (nixl_xfer_list_t *, uintptr_t, size_t, uint64_t device)) \
	X(int, xfer_dlist_clear, (nixl_xfer_list_t *)) \
	X(int, create_xfer_req, (nixl_agent_t *, int op, nixl_xfer_list_t *local, nixl_xfer_list_t *remote, const char *peer, nixl_xfer_t **, nixl_opt_args_t *)) \
	X(int, post_xfer_req, (nixl_agent_t *, nixl_xfer_t *, nixl_opt_args_t *)) \
	X(int, get_xfer_status, (nixl_agent_t *, nixl_xfer_t *)) \
	X(int, release_xfer_req, (nixl_agent_t *, nixl_xfer_t *)) \
	X(int, destroy_xfer_req, (nixl_xfer_t *))

/* One table per opened library, filled by kvlx_library_open and read-only afterwards. */
typedef struct {
#define NIXL_FIELD(result, name, args) result(*name) args;
	NIXL_SYMBOLS(NIXL_FIELD)
#undef NIXL_FIELD
} nixl_api_t;

#endif
