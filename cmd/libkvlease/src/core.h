/* The hooks of libkvlease-core.so. All return a KVL_* status; a core is named by an int64.
 *
 * No hook is called twice at once for the same core, but different hooks may run at the same time: one thread steps
 * while another registers. `err` takes a zero-terminated text cut to `cap`, written on failure only.
 */
#ifndef KVL_CORE_H
#define KVL_CORE_H

#include <stdint.h>

#include "kvlease.h"
#include "layout.h"

#define KVL_CORE_HOOKS(X)                                                                                              \
	/* read a configuration: what memory it needs */                                                               \
	X(config, "config", (const char *cfg, uint64_t len, kvl_core_sizes_t *sizes_out, char *err, uint64_t cap))               \
	X(open, "open", (const kvl_core_args_t *args, int64_t *core_out, char *err, uint64_t cap))                             \
	/* KVL_OK: the core will not touch the memory of open again */                                                 \
	X(close, "close", (int64_t core, uint64_t timeout_ns, char *err, uint64_t cap))                                              \
	X(drain, "drain", (int64_t core, uint64_t timeout_ns, char *err, uint64_t cap))                                              \
	X(step, "step", (int64_t core, uint64_t now_ns))                                                                     \
	X(register_, "register", (int64_t core, const kvl_region_t *regions, uint32_t n, char *err, uint64_t cap))                  \
	X(unregister, "unregister", (int64_t core, char *err, uint64_t cap))                                                         \
	X(engine_add, "engine_add", (int64_t core, const kvl_engine_desc_t *desc, uint64_t *engine_out, char *err, uint64_t cap))    \
	X(engine_remove, "engine_remove", (int64_t core, uint64_t engine))                                                              \
	X(engine_handshake, "engine_handshake", (int64_t core, uint64_t engine, uint32_t rank, const void *data, uint64_t len, char *err,  \
			     uint64_t cap))                                                                            \
	/* the getters: KVL_ERR_SPACE and *len_out is the length needed; no terminating zero */                        \
	X(handshake_get, "handshake_get", (int64_t core, uint32_t rank, void *buf, uint64_t cap, uint64_t *len_out, char *err,          \
			  uint64_t err_cap))                                                                           \
	X(handshake_set, "handshake_set", (int64_t core, uint32_t rank, const void *data, uint64_t len, char *err, uint64_t cap))     \
	/* the delta carrier: take writes at most cap bytes, and 0 if there is nothing to say */                       \
	X(delta_take, "delta_take", (int64_t core, uint32_t rank, void *buf, uint64_t cap, uint64_t *len_out, char *err,             \
		       uint64_t err_cap))                                                                              \
	X(delta_put, "delta_put", (int64_t core, uint32_t rank, const void *data, uint64_t len, char *err, uint64_t cap))             \
	X(delta_lost, "delta_lost", (int64_t core, uint32_t rank, char *err, uint64_t cap))                                          \
	X(stats, "stats", (int64_t core, char *buf, uint64_t cap, uint64_t *len_out))                                           \
	/* all metrics as text; and a listener for scrapers, once, until close */                                     \
	X(metrics_text, "metrics_text", (int64_t core, char *buf, uint64_t cap, uint64_t *len_out))                             \
	X(metrics_listen, "metrics_listen", (int64_t core, const char *addr, uint64_t len, uint32_t *port_out, char *err, uint64_t cap)) \
	/* whole lines of what goes wrong, as many as fit; KVL_ERR_SPACE: the first does not */                        \
	X(log_take, "log_take", (int64_t core, char *buf, uint64_t cap, uint64_t *len_out))                                        \
	X(config_json, "config_json", (int64_t core, char *buf, uint64_t cap, uint64_t *len_out))                                     \
	/* the parts of transfer parameters that are the same for every lease, as a JSON object */                     \
	X(params_info, "params_info", (int64_t core, char *buf, uint64_t cap, uint64_t *len_out))

typedef struct kvl_core_hooks {
#define KVL_CORE_FIELD(name, symbol, args) int32_t(*name) args;
	KVL_CORE_HOOKS(KVL_CORE_FIELD)
#undef KVL_CORE_FIELD
} kvl_core_hooks_t;

#endif
