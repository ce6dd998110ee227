/* Producers: the submission ring, the overflow ring, and who is woken by a publish. */
#include <errno.h>
#include <unistd.h>

#include "internal.h"

KVL_API int32_t kvl_producer_open(kvl_ctx_t *ctx, kvl_producer_t **producer_out)
{
	uint32_t index;
	KVL_ENTER(ctx);
	if (ctx->sizes.role == KVL_ROLE_RANK)
		return kvl_fail(KVL_ERR_INVALID, "ctx: a rank context: requests go through the host context");
	if (producer_out == NULL)
		return kvl_fail(KVL_ERR_INVALID, "producer_out: is NULL");
	kvl_error_text()[0] = 0; /* this thread's block exists from here on */
	index = KVL_LOAD(&ctx->producers_open, RELAXED);
	do {
		if (index >= ctx->sizes.producers)
			return kvl_fail(KVL_ERR_FULL, "producers_max: all %u producers are open", ctx->sizes.producers);
	} while (!__atomic_compare_exchange_n(&ctx->producers_open, &index, index + 1, 0, __ATOMIC_ACQ_REL,
					      __ATOMIC_RELAXED));
	*producer_out = &ctx->producers[index];
	return KVL_OK;
}

int kvl_overflowing(kvl_producer_t *p)
{
	/* P2 of the ring: acquire. The core gives an entry back after it has applied it. */
	if (KVL_LOAD((uint64_t *)(void *)&p->overflow.ring->tail, ACQUIRE) != p->overflow.published)
		return 1;
	p->overflowing = 0;
	p->rejects = 0;
	return 0;
}

/* While the overflow ring holds anything, everything of this producer goes there and new work is refused, so nothing
 * in the main ring is younger than an entry. An entry waits until the main ring is drained to `after`, so nothing in
 * it is older and still to come. Hence the order of calls is the order in which the core sees them. */
void *kvl_control_reserve(kvl_producer_t *p, uint32_t tag, uint32_t n, int *overflow_out)
{
	kvl_rec_overflow_t *entry;
	if (!p->overflowing || !kvl_overflowing(p)) {
		void *rec = kvl_ring_reserve(&p->ring, tag, n);
		if (KVL_LIKELY(rec != NULL)) {
			*overflow_out = 0;
			return rec;
		}
	}
	entry = kvl_ring_reserve(&p->overflow, tag, (uint32_t)sizeof *entry + n);
	if (entry == NULL)
		return NULL;
	entry->after = p->ring.published;
	*overflow_out = 1;
	return entry + 1;
}

void kvl_control_publish(kvl_producer_t *p, uint32_t tag, uint32_t sleep, int overflow)
{
	uint32_t nudge = KVL_LOAD(&p->ctx->nudge, RELAXED);
	if (kvl_site_on(KVL_SITE_hook__submit))
		kvl_trace_submit(p, tag);
	if (KVL_UNLIKELY(overflow)) {
		p->overflowing = 1;
		sleep = KVL_DOZES; /* new work is refused until it has been taken */
		kvl_ring_publish(&p->overflow);
	} else {
		kvl_ring_publish(&p->ring);
	}
	if (KVL_UNLIKELY(nudge != 0))
		kvl_nudge(p, nudge, sleep);
}

void kvl_control_discard(kvl_producer_t *p, int overflow)
{
	kvl_ring_discard(overflow ? &p->overflow : &p->ring);
}

int32_t kvl_say(kvl_producer_t *p, uint64_t *state, uint64_t handle, uint32_t bit, uint32_t tag, uint32_t states)
{
	uint32_t use = KVL_HANDLE_USE(handle);
	uint64_t seen = KVL_LOAD(state, ACQUIRE);
	kvl_rec_handle_t *rec;
	int overflow;
	if ((uint32_t)(seen >> 32) == use && (seen & bit) != 0)
		return KVL_OK; /* said before */
	if (KVL_LOAD(&p->ctx->control->poisoned, ACQUIRE))
		return kvl_fail_gate(p->ctx);
	rec = kvl_control_reserve(p, tag, sizeof *rec, &overflow);
	if (KVL_UNLIKELY(rec == NULL)) /* the overflow ring has room for each of these once a handle: not reached */
		return kvl_fail(KVL_ERR_FULL, "the overflow ring is full");
	rec->handle = handle;
	for (;;) { /* the core changes a state word a few times in a use's life: it ends */
		if ((uint32_t)(seen >> 32) != use || (states >> (seen & KVL_S_MASK) & 1) == 0) {
			kvl_control_discard(p, overflow);
			return kvl_fail(KVL_ERR_STALE, "the handle's object has ended");
		}
		if (__atomic_compare_exchange_n(state, &seen, seen | bit, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			break;
	}
	kvl_control_publish(p, tag, (seen & KVL_S_MASK) == KVL_S_EXPECTED ? KVL_LISTENS : KVL_DOZES, overflow);
	return KVL_OK;
}

KVL_COLD static void wake_pump(kvl_control_t *control)
{
	const uint64_t one = 1;
	int saved = errno;
	if (__atomic_exchange_n(&control->asleep, 0, __ATOMIC_ACQ_REL)) { /* one writer a sleep */
		ssize_t n = write(control->wake_fd, &one, sizeof one); /* full counts as woken */
		(void)n;
	}
	errno = saved;
}

/* A quarter of the ring waits. What may wait must not fill it: new work would be refused. */
static int filling(const kvl_producer_t *p)
{
	return p->ring.published - KVL_LOAD((uint64_t *)(void *)&p->ring.ring->tail, RELAXED) > p->ring.mask / 4;
}

__attribute__((noinline)) void kvl_nudge(kvl_producer_t *p, uint32_t who, uint32_t sleep)
{
	kvl_ctx_t *ctx = p->ctx;
	/* W1: the publish is seen before asleep (or kicked) is read. Pairs with W2: the pump sets asleep, fences, looks
	 * at the rings again and only then sleeps; a step clears kicked, fences and only then looks at the rings. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if ((who & KVL_NUDGE_PUMP) != 0) {
		uint32_t asleep = KVL_LOAD(&ctx->control->asleep, RELAXED);
		if (asleep != 0 && (asleep >= sleep || filling(p)))
			wake_pump(ctx->control);
	}
	if ((who & KVL_NUDGE_LOOP) != 0 && !KVL_LOAD(&ctx->kicked, RELAXED))
		kvl_tick_kick(ctx);
}
