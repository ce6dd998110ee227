/* The loop's calls: step, step_long, pass, pause. */
#include "internal.h"

/* Keeps the distance of the two clocks for kvl_track. Boot time first: a late reading makes the sum earlier. */
static uint64_t look_at_clocks(kvl_ctx_t *ctx)
{
	uint64_t boot = kvl_clock(CLOCK_BOOTTIME);
	KVL_STORE(&ctx->boot_ns, (int64_t)(boot - kvl_clock(CLOCK_MONOTONIC)), RELAXED);
	return boot;
}

static int32_t step_inline(kvl_ctx_t *ctx, uint64_t now)
{
	int32_t st;
	kvl_wake_heard(ctx);
	/* Under the lock: once kvl_poll has seen poisoned and no step, none begins any more. Of an engine with ranks the core is
	 * entered all the same, where it only tells the other contexts. */
	if (__atomic_load_n(&ctx->control->poisoned, __ATOMIC_SEQ_CST) && ctx->sizes.role == KVL_ROLE_ENGINE)
		return kvl_fail_gate(ctx);
	kvl_tick_before_step(ctx);
	st = kvl_core.step(ctx->core, now);
	if (KVL_UNLIKELY(st == KVL_ERR_POISONED) && !KVL_LOAD(&ctx->control->poisoned, ACQUIRE))
		kvl_fence(ctx); /* the core should have; in doubt, close the rows twice */
	kvl_tick_after_step(ctx, now);
	if (st == KVL_ERR_POISONED)
		return kvl_fail_gate(ctx);
	return st == KVL_OK ? KVL_OK : kvl_fail(st, "step: %s", kvl_status_name(st));
}

void kvl_step_broken(kvl_ctx_t *ctx, uint64_t now)
{
	if (ctx->sizes.role == KVL_ROLE_ENGINE || ctx->sizes.pump || !kvl_call_begin(ctx, KVL_CALL_STEP))
		return;
	kvl_wake_heard(ctx);
	kvl_core.step(ctx->core, now);
	kvl_call_end(ctx, KVL_CALL_STEP);
}

KVL_API int32_t kvl_step(kvl_ctx_t *ctx)
{
	uint64_t now;
	int32_t st;
	KVL_ENTER(ctx);
	if (ctx->sizes.pump)
		return kvl_pass(ctx);
	if (!kvl_call_begin(ctx, KVL_CALL_STEP))
		return kvl_fail_busy(ctx);
	now = look_at_clocks(ctx);
	KVL_STORE(&ctx->control->pass_ns, now, RELAXED);
	st = step_inline(ctx, now);
	kvl_call_end(ctx, KVL_CALL_STEP);
	return st;
}

KVL_API int32_t kvl_step_long(kvl_ctx_t *ctx)
{
	uint64_t at;
	KVL_ENTER(ctx);
	if (ctx->sizes.pump)
		return 0;
	at = KVL_LOAD(&ctx->control->long_at_ns, RELAXED);
	if (at == 0 || KVL_LOAD(&ctx->busy[KVL_CALL_REGISTER], RELAXED)) /* a step waits for the core's lock */
		return 1;
	return at != INT64_MAX && kvl_clock(CLOCK_BOOTTIME) >= at;
}

KVL_API int32_t kvl_pass(kvl_ctx_t *ctx)
{
	KVL_ENTER(ctx);
	KVL_STORE(&ctx->control->pass_ns, look_at_clocks(ctx), RELAXED);
	if (KVL_UNLIKELY(KVL_LOAD(&ctx->control->poisoned, ACQUIRE)))
		return kvl_fail_gate(ctx);
	return KVL_OK;
}

KVL_API int32_t kvl_pause(kvl_ctx_t *ctx, uint64_t max_ns)
{
	uint64_t now;
	KVL_ENTER(ctx);
	now = look_at_clocks(ctx);
	if (max_ns > INT64_MAX - now)
		return kvl_fail(KVL_ERR_INVALID, "max_ns: past the end of time");
	KVL_STORE(&ctx->control->pause_until_ns, now + max_ns, RELAXED);
	if (KVL_UNLIKELY(KVL_LOAD(&ctx->control->poisoned, ACQUIRE)))
		return kvl_fail_gate(ctx);
	return KVL_OK;
}
