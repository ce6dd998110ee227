/* The delta carrier's ends: what goes between a host context and a rank on another node, as bytes that the engine carries. */
#include "internal.h"

KVL_API int32_t kvl_delta_take(kvl_ctx_t *ctx, uint32_t rank, void *buf, size_t cap, size_t *len_out)
{
	uint64_t len = 0;
	int32_t st;
	KVL_ENTER(ctx);
	if (len_out == NULL || buf == NULL)
		return kvl_fail(KVL_ERR_INVALID, "%s: is NULL", len_out == NULL ? "len_out" : "buf");
	if (cap < KVL_DELTA_MIN)
		return kvl_fail(KVL_ERR_INVALID, "cap: %zu, at least %u", cap, KVL_DELTA_MIN);
	KVL_BEGIN(ctx, KVL_CALL_DELTA_TAKE);
	st = kvl_core_said("delta_take", kvl_core.delta_take(ctx->core, rank, buf, cap, &len, kvl_error_text(), KVL_ERR_TEXT));
	kvl_call_end(ctx, KVL_CALL_DELTA_TAKE);
	if (st == KVL_OK)
		*len_out = (size_t)len;
	return st;
}

KVL_API int32_t kvl_delta_put(kvl_ctx_t *ctx, uint32_t rank, kvl_bytes_t bytes)
{
	int32_t st;
	KVL_ENTER(ctx);
	if (!kvl_bytes_ok(bytes, 0, KVL_DELTA_MAX))
		return kvl_fail(KVL_ERR_INVALID, "bytes: NULL, or more than %u", KVL_DELTA_MAX);
	KVL_BEGIN(ctx, KVL_CALL_DELTA_PUT);
	st = bytes.len == 0 ? KVL_OK
			    : kvl_core_said("delta_put", kvl_core.delta_put(ctx->core, rank, bytes.data, bytes.len,
									    kvl_error_text(), KVL_ERR_TEXT));
	kvl_call_end(ctx, KVL_CALL_DELTA_PUT);
	return st;
}

KVL_API int32_t kvl_delta_lost(kvl_ctx_t *ctx, uint32_t rank)
{
	int32_t st;
	KVL_ENTER(ctx);
	KVL_BEGIN(ctx, KVL_CALL_DELTA_PUT);
	st = kvl_core_said("delta_lost", kvl_core.delta_lost(ctx->core, rank, kvl_error_text(), KVL_ERR_TEXT));
	kvl_call_end(ctx, KVL_CALL_DELTA_PUT);
	return st;
}
