/* Remote engines, and handshake maps: theirs and ours. */
#include "internal.h"

#define HANDSHAKE_MAX (1u << 20) /* as docs/protocol.md bounds the handshake map */

/* Engines are known to the context where requests enter, which tells its ranks. */
#define REFUSE_RANK(ctx)                                                                                               \
	do {                                                                                                           \
		if ((ctx)->sizes.role == KVL_ROLE_RANK)                                                                \
			return kvl_fail(KVL_ERR_INVALID, "ctx: a rank context: engines are added to the host context");  \
	} while (0)

KVL_API int32_t kvl_engine_add(kvl_ctx_t *ctx, const kvl_engine_desc_t *desc, kvl_engine_t *engine_out)
{
	uint64_t engine = 0;
	int32_t st;
	KVL_ENTER(ctx);
	REFUSE_RANK(ctx);
	if (desc == NULL || (uintptr_t)desc % _Alignof(kvl_engine_desc_t) != 0)
		return kvl_fail(KVL_ERR_INVALID, "desc: is NULL or not aligned");
	if (desc->size < sizeof *desc)
		return kvl_fail(KVL_ERR_INVALID, "desc.size: %u, at least %zu", desc->size, sizeof *desc);
	if (desc->ranks == 0 || desc->ranks > UINT16_MAX)
		return kvl_fail(KVL_ERR_INVALID, "desc.ranks: 1 to %u", UINT16_MAX);
	if (desc->pp_size > UINT16_MAX)
		return kvl_fail(KVL_ERR_INVALID, "desc.pp_size: at most %u", UINT16_MAX);
	if (!kvl_bytes_ok(desc->engine_id, 1, 4096))
		return kvl_fail(KVL_ERR_INVALID, "desc.engine_id: 1 to 4096 bytes");
	if (!kvl_bytes_ok(desc->host, 0, 4096))
		return kvl_fail(KVL_ERR_INVALID, "desc.host: at most 4096 bytes");
	if (desc->port > UINT16_MAX)
		return kvl_fail(KVL_ERR_INVALID, "desc.port: at most %u", UINT16_MAX);
	if (desc->host.len != 0 && desc->port == 0)
		return kvl_fail(KVL_ERR_INVALID, "desc.port: is 0, and a host is named");
	if (engine_out == NULL)
		return kvl_fail(KVL_ERR_INVALID, "engine_out: is NULL");
	KVL_BEGIN(ctx, KVL_CALL_ENGINE_ADD);
	if (kvl_shut(ctx))
		st = kvl_fail_gate(ctx);
	else
		st = kvl_core_said("engine_add", kvl_core.engine_add(ctx->core, desc, &engine, kvl_error_text(), KVL_ERR_TEXT));
	kvl_call_end(ctx, KVL_CALL_ENGINE_ADD);
	if (st == KVL_OK)
		*engine_out = engine;
	return st;
}

KVL_API int32_t kvl_engine_remove(kvl_ctx_t *ctx, kvl_engine_t engine)
{
	int32_t st;
	KVL_ENTER(ctx);
	REFUSE_RANK(ctx);
	if (engine == 0)
		return kvl_fail(KVL_ERR_INVALID, "engine: is 0");
	KVL_BEGIN(ctx, KVL_CALL_ENGINE_REMOVE);
	st = kvl_core_said("engine_remove", kvl_core.engine_remove(ctx->core, engine));
	kvl_call_end(ctx, KVL_CALL_ENGINE_REMOVE);
	return st;
}

KVL_API int32_t kvl_engine_handshake(kvl_ctx_t *ctx, kvl_engine_t engine, uint32_t rank, kvl_bytes_t map)
{
	int32_t st;
	KVL_ENTER(ctx);
	REFUSE_RANK(ctx);
	if (engine == 0)
		return kvl_fail(KVL_ERR_INVALID, "engine: is 0");
	if (!kvl_bytes_ok(map, 1, HANDSHAKE_MAX))
		return kvl_fail(KVL_ERR_INVALID, "map: 1 byte to 1 MiB");
	KVL_BEGIN(ctx, KVL_CALL_ENGINE_HANDSHAKE);
	st = kvl_core_said("engine_handshake", kvl_core.engine_handshake(ctx->core, engine, rank, map.data, map.len,
									 kvl_error_text(), KVL_ERR_TEXT));
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
	KVL_BEGIN(ctx, KVL_CALL_HANDSHAKE_GET);
	st = kvl_core_said("handshake_get",
			   kvl_core.handshake_get(ctx->core, rank, buf, cap, &len, kvl_error_text(), KVL_ERR_TEXT));
	kvl_call_end(ctx, KVL_CALL_HANDSHAKE_GET);
	if (st == KVL_OK || st == KVL_ERR_SPACE)
		*len_out = (size_t)len;
	return st;
}

KVL_API int32_t kvl_handshake_set(kvl_ctx_t *ctx, uint32_t rank, kvl_bytes_t map)
{
	int32_t st;
	KVL_ENTER(ctx);
	if (!kvl_bytes_ok(map, 1, HANDSHAKE_MAX))
		return kvl_fail(KVL_ERR_INVALID, "map: 1 byte to 1 MiB");
	KVL_BEGIN(ctx, KVL_CALL_HANDSHAKE_SET);
	st = kvl_core_said("handshake_set",
			   kvl_core.handshake_set(ctx->core, rank, map.data, map.len, kvl_error_text(), KVL_ERR_TEXT));
	kvl_call_end(ctx, KVL_CALL_HANDSHAKE_SET);
	return st;
}
