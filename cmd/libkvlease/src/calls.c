/* Calls that are checked here and carried out by the core. */
#include "internal.h"

/* As docs/protocol.md bounds the handshake map, and dataplane/read the groups of a layout. */
#define HANDSHAKE_MAX (1u << 20)
#define REGIONS_MAX 4096u

/* A core's failure leaves its text in the thread's error text; a hook without text gets the status's name. */
static int32_t done(const char *call, int32_t st)
{
	if (st != KVL_OK && kvl_error_text()[0] == 0)
		return kvl_fail(st, "%s: %s", call, kvl_status_name(st));
	return st;
}

#define BEGIN(ctx, call)                                                                                               \
	do {                                                                                                           \
		if (!kvl_call_begin((ctx), (call)))                                                                    \
			return kvl_fail_busy();                                                                        \
		kvl_error_text()[0] = 0;                                                                               \
	} while (0)

/* Calls that step by themselves in inline mode keep the host's steps out; in pump mode the pump has its own lock. */
static int32_t begin_stepping(kvl_ctx_t *ctx, enum kvl_call call)
{
	BEGIN(ctx, call);
	if (ctx->sizes.pump || kvl_call_begin(ctx, KVL_CALL_STEP))
		return KVL_OK;
	kvl_call_end(ctx, call);
	return kvl_fail(KVL_ERR_BUSY, "a step runs");
}

static void end_stepping(kvl_ctx_t *ctx, enum kvl_call call)
{
	if (!ctx->sizes.pump)
		kvl_call_end(ctx, KVL_CALL_STEP);
	kvl_call_end(ctx, call);
}

static int32_t check_region(const kvl_region_t *r, uint32_t i)
{
	if (r->addr == 0 || r->bytes == 0 || r->addr + r->bytes < r->addr)
		return kvl_fail(KVL_ERR_INVALID, "regions[%u]: address and bytes are not a range", i);
	if (r->block_len == 0 || r->blocks == 0 || r->block_stride < r->block_len)
		return kvl_fail(KVL_ERR_INVALID, "regions[%u]: needs blocks, block_len, and a block_stride not below it", i);
	if (r->block_len > r->bytes || (r->bytes - r->block_len) / r->block_stride < r->blocks - 1)
		return kvl_fail(KVL_ERR_INVALID, "regions[%u]: %u blocks do not fit into its bytes", i, r->blocks);
	if (r->mem != KVL_MEM_DRAM && r->mem != KVL_MEM_VRAM)
		return kvl_fail(KVL_ERR_INVALID, "regions[%u].mem: not a KVL_MEM_*", i);
	if (r->group < -1 || r->group >= (int32_t)KVL_REGION_GROUPS)
		return kvl_fail(KVL_ERR_INVALID, "regions[%u].group: -1 to %u", i, KVL_REGION_GROUPS - 1);
	if (!kvl_bytes_ok(r->name, 0, 4096))
		return kvl_fail(KVL_ERR_INVALID, "regions[%u].name: at most 4096 bytes", i);
	return KVL_OK;
}

/* A block id is good if every region that its group addresses has it. */
static void keep_limits(kvl_ctx_t *ctx, const kvl_region_t *regions, uint32_t n)
{
	for (uint32_t g = 0; g < KVL_REGION_GROUPS; g++) {
		uint32_t limit = 0;
		for (uint32_t i = 0; i < n; i++) {
			if ((regions[i].group == -1 || (uint32_t)regions[i].group == g) && (limit == 0 || regions[i].blocks < limit))
				limit = regions[i].blocks;
		}
		KVL_STORE(&ctx->block_limits[g], limit, RELAXED);
	}
	KVL_STORE(&ctx->registered, 1, RELEASE);
}

KVL_API int32_t kvl_register(kvl_ctx_t *ctx, const kvl_region_t *regions, uint32_t n)
{
	int32_t st = KVL_OK;
	KVL_ENTER(ctx);
	if (n == 0 || n > REGIONS_MAX || regions == NULL || (uintptr_t)regions % _Alignof(kvl_region_t) != 0)
		return kvl_fail(KVL_ERR_INVALID, "regions: NULL, not aligned, none, or more than %u", REGIONS_MAX);
	for (uint32_t i = 0; i < n && st == KVL_OK; i++)
		st = check_region(&regions[i], i);
	if (st != KVL_OK)
		return st;
	if (KVL_LOAD(&ctx->control->poisoned, ACQUIRE) || KVL_LOAD(&ctx->control->draining, ACQUIRE))
		return kvl_fail_gate(ctx);
	BEGIN(ctx, KVL_CALL_REGISTER);
	st = done("register", kvl_core.register_(ctx->core, regions, n, kvl_error_text(), KVL_ERR_TEXT));
	if (st == KVL_OK)
		keep_limits(ctx, regions, n);
	kvl_call_end(ctx, KVL_CALL_REGISTER);
	return st;
}

KVL_API int32_t kvl_unregister(kvl_ctx_t *ctx)
{
	int32_t st;
	KVL_ENTER(ctx);
	if ((st = begin_stepping(ctx, KVL_CALL_UNREGISTER)) != KVL_OK)
		return st;
	st = done("unregister", kvl_core.unregister(ctx->core, kvl_error_text(), KVL_ERR_TEXT));
	end_stepping(ctx, KVL_CALL_UNREGISTER);
	return st;
}

KVL_API int32_t kvl_drain(kvl_ctx_t *ctx, uint64_t timeout_ns)
{
	int32_t st;
	KVL_ENTER(ctx);
	if ((st = begin_stepping(ctx, KVL_CALL_DRAIN)) != KVL_OK)
		return st;
	KVL_STORE(&ctx->control->draining, 1, RELEASE);
	st = done("drain", kvl_core.drain(ctx->core, timeout_ns));
	end_stepping(ctx, KVL_CALL_DRAIN);
	return st;
}

KVL_API int32_t kvl_engine_add(kvl_ctx_t *ctx, const kvl_engine_desc_t *desc, kvl_engine_t *engine_out)
{
	uint64_t engine = 0;
	int32_t st;
	KVL_ENTER(ctx);
	if (desc == NULL || (uintptr_t)desc % _Alignof(kvl_engine_desc_t) != 0)
		return kvl_fail(KVL_ERR_INVALID, "desc: is NULL or not aligned");
	if (desc->size < sizeof *desc)
		return kvl_fail(KVL_ERR_INVALID, "desc.size: %u, at least %zu", desc->size, sizeof *desc);
	if (desc->ranks == 0 || desc->ranks > UINT16_MAX)
		return kvl_fail(KVL_ERR_INVALID, "desc.ranks: 1 to %u", UINT16_MAX);
	if (!kvl_bytes_ok(desc->engine_id, 1, 4096))
		return kvl_fail(KVL_ERR_INVALID, "desc.engine_id: 1 to 4096 bytes");
	if (!kvl_bytes_ok(desc->host, 0, 4096))
		return kvl_fail(KVL_ERR_INVALID, "desc.host: at most 4096 bytes");
	if (desc->port > UINT16_MAX)
		return kvl_fail(KVL_ERR_INVALID, "desc.port: at most %u", UINT16_MAX);
	if (desc->reserved != 0)
		return kvl_fail(KVL_ERR_INVALID, "desc.reserved: must be 0");
	if (engine_out == NULL)
		return kvl_fail(KVL_ERR_INVALID, "engine_out: is NULL");
	if (KVL_LOAD(&ctx->control->poisoned, ACQUIRE) || KVL_LOAD(&ctx->control->draining, ACQUIRE))
		return kvl_fail_gate(ctx);
	BEGIN(ctx, KVL_CALL_ENGINE_ADD);
	st = done("engine_add", kvl_core.engine_add(ctx->core, desc, &engine, kvl_error_text(), KVL_ERR_TEXT));
	kvl_call_end(ctx, KVL_CALL_ENGINE_ADD);
	if (st == KVL_OK)
		*engine_out = engine;
	return st;
}

KVL_API int32_t kvl_engine_remove(kvl_ctx_t *ctx, kvl_engine_t engine)
{
	int32_t st;
	KVL_ENTER(ctx);
	if (engine == 0)
		return kvl_fail(KVL_ERR_INVALID, "engine: is 0");
	BEGIN(ctx, KVL_CALL_ENGINE_REMOVE);
	st = done("engine_remove", kvl_core.engine_remove(ctx->core, engine));
	kvl_call_end(ctx, KVL_CALL_ENGINE_REMOVE);
	return st;
}

KVL_API int32_t kvl_engine_handshake(kvl_ctx_t *ctx, kvl_engine_t engine, uint32_t rank, kvl_bytes_t map)
{
	int32_t st;
	KVL_ENTER(ctx);
	if (engine == 0)
		return kvl_fail(KVL_ERR_INVALID, "engine: is 0");
	if (!kvl_bytes_ok(map, 1, HANDSHAKE_MAX))
		return kvl_fail(KVL_ERR_INVALID, "map: 1 byte to 1 MiB");
	BEGIN(ctx, KVL_CALL_ENGINE_HANDSHAKE);
	st = done("engine_handshake", kvl_core.engine_handshake(ctx->core, engine, rank, map.data, map.len, kvl_error_text(),
								 KVL_ERR_TEXT));
	kvl_call_end(ctx, KVL_CALL_ENGINE_HANDSHAKE);
	return st;
}

KVL_API int32_t kvl_handshake_get(kvl_ctx_t *ctx, uint32_t rank, void *buf, size_t cap, size_t *len_out)
{
	uint64_t len = 0;
	int32_t st;
	KVL_ENTER(ctx);
	if (len_out == NULL || (buf == NULL && cap != 0))
		return kvl_fail(KVL_ERR_INVALID, "%s: is NULL", len_out == NULL ? "len_out" : "buf");
	BEGIN(ctx, KVL_CALL_HANDSHAKE_GET);
	st = done("handshake_get",
		  kvl_core.handshake_get(ctx->core, rank, buf, cap, &len, kvl_error_text(), KVL_ERR_TEXT));
	kvl_call_end(ctx, KVL_CALL_HANDSHAKE_GET);
	if (st == KVL_OK || st == KVL_ERR_SPACE)
		*len_out = (size_t)len;
	return st;
}

/* A text of the core, zero-terminated. */
static int32_t get_text(kvl_ctx_t *ctx, enum kvl_call call, const char *name,
			int32_t (*hook)(int64_t, char *, uint64_t, uint64_t *), char *buf, size_t cap, size_t *len_out)
{
	uint64_t len = 0;
	int32_t st;
	if (len_out == NULL || (buf == NULL && cap != 0))
		return kvl_fail(KVL_ERR_INVALID, "%s: is NULL", len_out == NULL ? "len_out" : "buf");
	BEGIN(ctx, call);
	st = hook(ctx->core, buf, cap == 0 ? 0 : cap - 1, &len);
	kvl_call_end(ctx, call);
	if (st == KVL_OK && cap == 0)
		st = KVL_ERR_SPACE; /* an empty text has no room for its zero either */
	if (st == KVL_OK)
		buf[len] = 0;
	if (st == KVL_OK || st == KVL_ERR_SPACE)
		*len_out = (size_t)len;
	return st == KVL_ERR_SPACE ? kvl_fail(st, "buf: %zu bytes, at least %llu", cap, (unsigned long long)len + 1)
				   : done(name, st);
}

KVL_API int32_t kvl_stats(kvl_ctx_t *ctx, char *buf, size_t cap, size_t *len_out)
{
	KVL_ENTER(ctx);
	return get_text(ctx, KVL_CALL_STATS, "stats", kvl_core.stats, buf, cap, len_out);
}

KVL_API int32_t kvl_config_json(kvl_ctx_t *ctx, char *buf, size_t cap, size_t *len_out)
{
	KVL_ENTER(ctx);
	return get_text(ctx, KVL_CALL_CONFIG_JSON, "config_json", kvl_core.config_json, buf, cap, len_out);
}
