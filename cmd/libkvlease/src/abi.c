/* Errors, names and the checks that every entry point shares. */
#include <stdarg.h>
#include <stdio.h>

#include "internal.h"

#ifndef KVL_VERSION_STRING
#define KVL_VERSION_STRING "0.1.0"
#endif

/* The text is the thread's own. kvl_producer_open and kvl_open touch it, so that no later failure in that thread
 * makes the loader allocate its thread-local block. */
static _Thread_local char error_text[KVL_ERR_TEXT];

char *kvl_error_text(void) { return error_text; }

int32_t kvl_fail(int32_t status, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(error_text, sizeof error_text, format, args);
	va_end(args);
	return status;
}

int32_t kvl_fail_ctx(const kvl_ctx_t *ctx)
{
	if (ctx == NULL)
		return kvl_fail(KVL_ERR_INVALID, "ctx: is NULL");
	if ((uintptr_t)ctx % 64 == 0 && KVL_LOAD(&ctx->magic, ACQUIRE) == KVL_CTX_CLOSED)
		return kvl_fail(KVL_ERR_CLOSED, "ctx: kvl_close has closed the context");
	return kvl_fail(KVL_ERR_INVALID, "ctx: not a context");
}

int32_t kvl_fail_producer(const kvl_producer_t *p)
{
	if (p == NULL)
		return kvl_fail(KVL_ERR_INVALID, "producer: is NULL");
	return kvl_fail(KVL_ERR_INVALID, "producer: not a producer");
}

int32_t kvl_fail_gate(const kvl_ctx_t *ctx)
{
	if (KVL_LOAD(&ctx->control->poisoned, ACQUIRE))
		return kvl_fail(KVL_ERR_POISONED, "the context is poisoned: every row is fenced");
	if (KVL_LOAD(&ctx->control->draining, ACQUIRE))
		return kvl_fail(KVL_ERR_CLOSED, "the context is draining");
	return kvl_fail_full(ctx, refused_ring, "the overflow list is not empty: call again after a step");
}

int32_t kvl_fail_busy(const kvl_ctx_t *ctx)
{
	if (KVL_LOAD(&ctx->magic, ACQUIRE) == KVL_CTX_CLOSED)
		return kvl_fail_ctx(ctx);
	return kvl_fail(KVL_ERR_BUSY, "another thread is inside this call");
}

int32_t kvl_fail_era(void) { return kvl_fail(KVL_ERR_BUSY, "the engine's memory is being registered again: call again"); }

int32_t kvl_check_groups(const char *what, const kvl_blocks_t *groups, uint32_t n, uint32_t *blocks_out)
{
	uint64_t blocks = 0;
	if (n > KVL_GROUPS_MAX)
		return kvl_fail(KVL_ERR_INVALID, "%s: more than %u groups", what, KVL_GROUPS_MAX);
	if (n != 0 && (groups == NULL || (uintptr_t)groups % _Alignof(kvl_blocks_t) != 0))
		return kvl_fail(KVL_ERR_INVALID, "%s: is NULL or not aligned", what);
	for (uint32_t i = 0; i < n; i++) {
		const kvl_blocks_t *g = &groups[i];
		if (g->n != 0 && (g->ids == NULL || (uintptr_t)g->ids % _Alignof(uint32_t) != 0))
			return kvl_fail(KVL_ERR_INVALID, "%s[%u].ids: is NULL or not aligned", what, i);
		if ((uint64_t)g->first + g->n > UINT32_MAX)
			return kvl_fail(KVL_ERR_INVALID, "%s[%u].first: positions pass 2^32", what, i);
		blocks += g->n;
	}
	if (blocks > UINT32_MAX)
		return kvl_fail(KVL_ERR_INVALID, "%s: more than 2^32 blocks", what);
	*blocks_out = (uint32_t)blocks;
	return KVL_OK;
}

int32_t kvl_check_ids(kvl_ctx_t *ctx, const char *what, const kvl_blocks_t *groups, uint32_t n)
{
	if (!KVL_LOAD(&ctx->registered, ACQUIRE))
		return KVL_OK;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t limit = i < KVL_REGION_GROUPS ? KVL_LOAD(&ctx->block_limits[i], RELAXED) : 0;
		if (groups[i].n != 0 && limit == 0)
			return kvl_fail(KVL_ERR_INVALID, "%s[%u]: no region has group %u", what, i, i);
		for (uint32_t k = 0; k < groups[i].n; k++) {
			if (groups[i].ids[k] >= limit)
				return kvl_fail(KVL_ERR_INVALID, "%s[%u].ids[%u]: block %u of %u", what, i, k,
						groups[i].ids[k], limit);
		}
	}
	return KVL_OK;
}

const char *kvl_last_error(void) { return error_text; }

const char *kvl_version(void) { return KVL_VERSION_STRING; }

uint32_t kvl_abi_version(void) { return KVL_ABI_VERSION; }

const char *kvl_status_name(int32_t status)
{
	switch (status) {
#define NAME(s)                                                                                                        \
	case s:                                                                                                        \
		return #s;
		NAME(KVL_OK)
		NAME(KVL_ERR_FULL)
		NAME(KVL_ERR_INVALID)
		NAME(KVL_ERR_STALE)
		NAME(KVL_ERR_BUSY)
		NAME(KVL_ERR_FORKED)
		NAME(KVL_ERR_POISONED)
		NAME(KVL_ERR_UNAVAILABLE)
		NAME(KVL_ERR_CLOSED)
		NAME(KVL_ERR_CONFIG)
		NAME(KVL_ERR_NOMEM)
		NAME(KVL_ERR_TRANSPORT)
		NAME(KVL_ERR_SPACE)
		NAME(KVL_ERR_PRODUCER)
		NAME(KVL_ERR_TIMEOUT)
#undef NAME
	}
	return "unknown status";
}
