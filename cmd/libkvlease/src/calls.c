/* Calls that are checked here and carried out by the core. */
#include "internal.h"

int32_t kvl_core_said(const char *call, int32_t st)
{
	if (st != KVL_OK && kvl_error_text()[0] == 0)
		return kvl_fail(st, "%s: %s", call, kvl_status_name(st));
	return st;
}

int32_t kvl_begin_stepping(kvl_ctx_t *ctx, enum kvl_call call)
{
	KVL_BEGIN(ctx, call);
	if (ctx->sizes.pump || kvl_call_begin(ctx, KVL_CALL_STEP))
		return KVL_OK;
	kvl_call_end(ctx, call);
	return kvl_fail(KVL_ERR_BUSY, "a step runs");
}

void kvl_end_stepping(kvl_ctx_t *ctx, enum kvl_call call)
{
	if (!ctx->sizes.pump)
		kvl_call_end(ctx, KVL_CALL_STEP);
	kvl_call_end(ctx, call);
}

KVL_API int32_t kvl_drain(kvl_ctx_t *ctx, uint64_t timeout_ns)
{
	int32_t st;
	KVL_ENTER(ctx);
	if (ctx->sizes.role == KVL_ROLE_RANK)
		return kvl_fail(KVL_ERR_INVALID, "ctx: a rank context: drain the host context, it tells its ranks");
	if ((st = kvl_begin_stepping(ctx, KVL_CALL_DRAIN)) != KVL_OK)
		return st;
	KVL_STORE(&ctx->control->draining, 1, RELEASE);
	kvl_error_text()[0] = 0;
	st = kvl_core_said("drain", kvl_core.drain(ctx->core, timeout_ns, kvl_error_text(), KVL_ERR_TEXT));
	kvl_end_stepping(ctx, KVL_CALL_DRAIN);
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
	KVL_BEGIN(ctx, call);
	st = hook(ctx->core, buf, cap == 0 ? 0 : cap - 1, &len);
	kvl_call_end(ctx, call);
	if (st == KVL_OK && cap == 0)
		st = KVL_ERR_SPACE; /* an empty text has no room for its zero either */
	if (st == KVL_OK)
		buf[len] = 0;
	if (st == KVL_OK || st == KVL_ERR_SPACE)
		*len_out = (size_t)len;
	return st == KVL_ERR_SPACE ? kvl_fail(st, "buf: %zu bytes, at least %llu", cap, (unsigned long long)len + 1)
				   : kvl_core_said(name, st);
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

KVL_API int32_t kvl_log_take(kvl_ctx_t *ctx, char *buf, size_t cap, size_t *len_out)
{
	KVL_ENTER(ctx);
	return get_text(ctx, KVL_CALL_LOG_TAKE, "log_take", kvl_core.log_take, buf, cap, len_out);
}

KVL_API int32_t kvl_metrics_text(kvl_ctx_t *ctx, char *buf, size_t cap, size_t *len_out)
{
	KVL_ENTER(ctx);
	return get_text(ctx, KVL_CALL_METRICS_TEXT, "metrics_text", kvl_core.metrics_text, buf, cap, len_out);
}

KVL_API int32_t kvl_metrics_listen(kvl_ctx_t *ctx, const char *addr, uint32_t *port_out)
{
	uint32_t port = 0;
	size_t len;
	int32_t st;
	KVL_ENTER(ctx);
	if (addr == NULL || (len = strnlen(addr, KVL_ADDR_MAX + 1)) > KVL_ADDR_MAX)
		return kvl_fail(KVL_ERR_INVALID, "addr: is NULL, or longer than %u bytes", KVL_ADDR_MAX);
	KVL_BEGIN(ctx, KVL_CALL_METRICS_LISTEN);
	st = kvl_core_said("metrics_listen", kvl_core.metrics_listen(ctx->core, addr, len, &port, kvl_error_text(), KVL_ERR_TEXT));
	kvl_call_end(ctx, KVL_CALL_METRICS_LISTEN);
	if (st == KVL_OK && port_out != NULL)
		*port_out = port;
	return st;
}
