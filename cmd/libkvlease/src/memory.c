/* The KV cache: what regions are taken, and which block ids hooks may name. */
#include <stdlib.h>

#include "internal.h"

/* As dataplane/read bounds the groups of a layout, and docs/protocol.md the regions of a handshake map. */
#define REGIONS_MAX 4096u
#define REGION_SIZE_MAX 4096u
#define REGION_FIRST offsetof(kvl_region_t, parts) /* bytes of kvl_region_t in its first version */

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
	if (r->block_len % r->parts != 0)
		return kvl_fail(KVL_ERR_INVALID, "regions[%u].parts: %u do not divide a block of %llu bytes", i, r->parts,
				(unsigned long long)r->block_len);
	if ((r->flags & ~(uint32_t)KVL_REGION_REPLICATED) != 0)
		return kvl_fail(KVL_ERR_INVALID, "regions[%u].flags: 0x%x is not a KVL_REGION_*", i, r->flags);
	return KVL_OK;
}

/* One region of a caller whose kvl_region_t has `size` bytes, as this library knows it. What an older caller does not say
 * is 0; what a newer one says beyond must be 0, since it would not be heeded. */
static int32_t take_region(const uint8_t *said, size_t size, uint32_t i, kvl_region_t *region_out)
{
	kvl_region_t r = {0};
	memcpy(&r, said, size < sizeof r ? size : sizeof r);
	for (size_t at = sizeof r; at < size; at++) {
		if (said[at] != 0)
			return kvl_fail(KVL_ERR_INVALID, "regions[%u]: byte %zu is set, this library knows %zu", i, at, sizeof r);
	}
	if (r.parts == 0)
		r.parts = 1;
	*region_out = r;
	return check_region(&r, i);
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
	uint32_t device = 0;
	for (uint32_t i = 0; i < n; i++)
		device |= regions[i].mem == KVL_MEM_VRAM;
	KVL_STORE(&ctx->registered, device ? KVL_REGISTERED_DEVICE : KVL_REGISTERED_HOST, RELEASE);
}

static int32_t register_all(kvl_ctx_t *ctx, const uint8_t *said, size_t size, uint32_t n, kvl_region_t *own)
{
	int32_t st = KVL_OK;
	for (uint32_t i = 0; i < n && st == KVL_OK; i++)
		st = take_region(said + i * size, size, i, &own[i]);
	if (st != KVL_OK)
		return st;
	KVL_BEGIN(ctx, KVL_CALL_REGISTER); /* from here on no kvl_close takes the control page away */
	if (kvl_shut(ctx)) {
		st = kvl_fail_gate(ctx);
		kvl_call_end(ctx, KVL_CALL_REGISTER);
		return st;
	}
	st = kvl_core_said("register", kvl_core.register_(ctx->core, own, n, kvl_error_text(), KVL_ERR_TEXT));
	if (st == KVL_OK)
		keep_limits(ctx, own, n);
	else if (st == KVL_ERR_STALE) /* kvl_close was faster */
		st = kvl_fail(KVL_ERR_CLOSED, "kvl_close has closed the context");
	kvl_call_end(ctx, KVL_CALL_REGISTER);
	return st;
}

KVL_API int32_t kvl_register(kvl_ctx_t *ctx, const kvl_region_t *regions, size_t region_size, uint32_t n)
{
	kvl_region_t *own;
	int32_t st;
	KVL_ENTER(ctx);
	if (ctx->sizes.role == KVL_ROLE_HOST)
		return kvl_fail(KVL_ERR_INVALID, "ctx: a host context has no memory: register on the rank contexts");
	if (KVL_LOAD(&ctx->busy[KVL_CALL_REGISTER], ACQUIRE)) /* whatever is given: with nothing, it asks whether a thread is inside */
		return kvl_fail_busy(ctx);
	if (region_size < REGION_FIRST || region_size > REGION_SIZE_MAX || region_size % _Alignof(kvl_region_t) != 0)
		return kvl_fail(KVL_ERR_INVALID, "region_size: %zu, must be sizeof(kvl_region_t), here %zu", region_size,
				sizeof(kvl_region_t));
	if (n == 0 || n > REGIONS_MAX || regions == NULL || (uintptr_t)regions % _Alignof(kvl_region_t) != 0)
		return kvl_fail(KVL_ERR_INVALID, "regions: NULL, not aligned, none, or more than %u", REGIONS_MAX);
	own = malloc(n * sizeof *own);
	if (own == NULL)
		return kvl_fail(KVL_ERR_NOMEM, "no memory for %u regions", n);
	st = register_all(ctx, (const uint8_t *)regions, region_size, n, own);
	free(own);
	return st;
}

KVL_API int32_t kvl_unregister(kvl_ctx_t *ctx)
{
	int32_t st;
	KVL_ENTER(ctx);
	if (ctx->sizes.role == KVL_ROLE_HOST)
		return kvl_fail(KVL_ERR_INVALID, "ctx: a host context has no memory: unregister on the rank contexts");
	if ((st = kvl_begin_stepping(ctx, KVL_CALL_UNREGISTER)) != KVL_OK)
		return st;
	st = kvl_core_said("unregister", kvl_core.unregister(ctx->core, kvl_error_text(), KVL_ERR_TEXT));
	if (st == KVL_OK)
		KVL_STORE(&ctx->registered, 0, RELEASE); /* the next kvl_register may say something else */
	kvl_end_stepping(ctx, KVL_CALL_UNREGISTER);
	return st;
}
