/* kvl_poll: the completion ring, and after a poisoning the ends that C tells from the slot records. */
#include <unistd.h>

#include "internal.h"

/* The same reason of every rank, in the four bits that each has. */
static uint64_t reasons(const kvl_ctx_t *ctx, uint32_t reason)
{
	uint64_t all = 0;
	for (uint32_t rank = 0; rank < ctx->sizes.ranks && rank < 16; rank++)
		all |= (uint64_t)reason << 4 * rank;
	return all;
}

static void event_of_slot(const kvl_ctx_t *ctx, kvl_event_t *ev, uint32_t slot, uint32_t use, uint64_t now)
{
	const kvl_slot_t *s = &ctx->slots[slot];
	*ev = (kvl_event_t){.kind = KVL_EV_FREED,
			    .status = KVL_FREED_POISONED,
			    .handle = KVL_HANDLE(slot, use),
			    .user = KVL_LOAD(&s->user, RELAXED),
			    .value0 = KVL_LOAD(&s->blocks, RELAXED),
			    .time_ns = now,
			    .reasons = reasons(ctx, KVL_FREED_POISONED)};
}

/* An end that was still in the ring when the context was poisoned: the report must not tell it again. */
static void forget_slot(kvl_ctx_t *ctx, const kvl_event_t *ev)
{
	uint32_t slot = kvl_lease_slot(ctx, ev->handle);
	uint64_t use = KVL_HANDLE_USE(ev->handle), seen;
	if (ev->kind != KVL_EV_FREED || slot == KVL_NONE)
		return;
	seen = KVL_LOAD(&ctx->slots[slot].state, ACQUIRE);
	while (seen >> 32 == use)
		if (__atomic_compare_exchange_n(&ctx->slots[slot].state, &seen, (use + 1) << 32 | KVL_S_FREE, 0,
						__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			return;
}

/* What the core has published, up to n events. */
static uint32_t take(kvl_ctx_t *ctx, kvl_event_t *events, uint32_t n)
{
	uint32_t got = 0, tag, len;
	const void *rec;
	int poisoned = KVL_LOAD(&ctx->control->poisoned, ACQUIRE) != 0;
	while (got < n && (rec = kvl_ring_next(&ctx->events, &tag, &len)) != NULL) {
		if (len != sizeof *events) {
			kvl_fence(ctx); /* somebody wrote over our memory: nothing here can be trusted */
			break;
		}
		memcpy(&events[got], rec, sizeof *events);
		if (poisoned)
			forget_slot(ctx, &events[got]);
		got++;
	}
	if (got != 0)
		kvl_ring_release(&ctx->events);
	if (KVL_UNLIKELY(kvl_ring_corrupt(&ctx->events)) && !poisoned)
		kvl_fence(ctx);
	return got;
}

/* Whether the core may still be inside a step that began before the poisoning, and publish an end that the report
 * would tell, too. A step that hangs is waited for only as long as a lease lasts. */
static int step_runs(kvl_ctx_t *ctx, uint64_t now)
{
	/* S2, G2: fence. Who sees poisoned here may have it from a third thread, which orders nothing between us and the core (S1)
	 * or a grant (G1): one of the two sees the other only if this thread is in the one order of all. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (now >= KVL_LOAD(&ctx->control->poison_ns, RELAXED) + ctx->control->duration_ns)
		return 0;
	if (__atomic_load_n(&ctx->control->stepping, __ATOMIC_SEQ_CST))
		return 1;
	if (ctx->sizes.pump)
		return 0;
	if (!kvl_call_begin(ctx, KVL_CALL_STEP))
		return 1;
	kvl_call_end(ctx, KVL_CALL_STEP); /* whoever comes now sees poisoned */
	return 0;
}

/* Whether every reader of a lease finds its row closed by now. The rows of a host context are its ranks' own: see `due`. */
static int proven(const kvl_ctx_t *ctx, const kvl_slot_t *s)
{
	return ctx->sizes.role == KVL_ROLE_ENGINE && (KVL_LOAD(&s->flags, RELAXED) & KVL_SF_UNCHECKED) == 0;
}

/* Whether all ends may be told: readers that do not check the fence have had their time, and no row is open that a host context has
 * elsewhere. A rank that stands still, or a core that hangs and hears none, keeps them back for as long as it does. */
static int due(kvl_ctx_t *ctx, uint64_t now)
{
	uint64_t at = KVL_LOAD(&ctx->control->poison_ns, RELAXED) + ctx->control->duration_ns;
	int elsewhere = ctx->sizes.role != KVL_ROLE_ENGINE;
	/* B2: acquire; pairs with B1 in Group.Poison. Blocks are given out again only behind the closing of their rows. */
	if (now >= at && (!elsewhere || KVL_LOAD(&ctx->control->rows_closed, ACQUIRE)))
		return 1;
	if (elsewhere && !ctx->sizes.pump)
		kvl_tick_at(ctx, now + ctx->sizes.idle_tick_ns); /* the next poll, or step, hears the ranks */
	else
		kvl_tick_at(ctx, now < at ? at : 0); /* the pump hears them, and says so by the events' descriptor */
	return 0;
}

/* One walk over the slots: first the leases whose readers all check the fence, then, a lease's life later, the rest
 * (L12). A slot is claimed by its state word, so a grant that comes in between is told once or refused. */
static uint32_t scan(kvl_ctx_t *ctx, kvl_event_t *events, uint32_t n, int unchecked, uint64_t now)
{
	uint32_t got = 0;
	while (got < n && ctx->report_slot < ctx->sizes.leases) {
		kvl_slot_t *s = &ctx->slots[ctx->report_slot];
		/* G2: acquire; pairs with G1 in kvl_grant. What is told of a grant is what was written into its slot. */
		uint64_t seen = __atomic_load_n(&s->state, __ATOMIC_SEQ_CST), use = seen >> 32;
		uint32_t state = seen & KVL_S_MASK;
		if (state == KVL_S_GRANTED && !unchecked && !proven(ctx, s)) {
			ctx->report_left++;
		} else if (state == KVL_S_GRANTED || state == KVL_S_ENDED) {
			event_of_slot(ctx, &events[got], ctx->report_slot, (uint32_t)use, now);
			/* A producer that passed the gate before the poisoning may just say its bit, once: look again. */
			if (!__atomic_compare_exchange_n(&s->state, &seen, (use + 1) << 32 | KVL_S_FREE, 0, __ATOMIC_SEQ_CST,
							 __ATOMIC_RELAXED))
				continue;
			got++;
		}
		ctx->report_slot++;
	}
	return got;
}

static uint32_t report(kvl_ctx_t *ctx, kvl_event_t *events, uint32_t n)
{
	uint64_t now = kvl_clock(CLOCK_BOOTTIME);
	uint32_t got = 0;
	kvl_step_broken(ctx, now);
	if (ctx->report == KVL_REPORT_NONE) {
		if (step_runs(ctx, now)) {
			kvl_tick_at(ctx, now + ctx->sizes.idle_tick_ns);
			return 0;
		}
		got = take(ctx, events, n); /* what the last step left; from here on the ring is not looked at again */
		if (got == n)
			return got;
		events[got++] = (kvl_event_t){.kind = KVL_EV_POISONED, .time_ns = now};
		/* The leases of a rank are its host's to tell. */
		ctx->report = ctx->sizes.role == KVL_ROLE_RANK ? KVL_REPORT_DONE : KVL_REPORT_CHECKED;
		ctx->report_slot = ctx->report_left = 0;
	}
	if (ctx->report == KVL_REPORT_CHECKED) {
		got += scan(ctx, events + got, n - got, 0, now);
		if (ctx->report_slot < ctx->sizes.leases)
			return got;
		ctx->report = ctx->report_left != 0 ? KVL_REPORT_UNCHECKED : KVL_REPORT_DONE;
		ctx->report_slot = 0;
	}
	if (ctx->report == KVL_REPORT_UNCHECKED) {
		if (!due(ctx, now))
			return got;
		got += scan(ctx, events + got, n - got, 1, now);
		if (ctx->report_slot == ctx->sizes.leases)
			ctx->report = KVL_REPORT_DONE;
	}
	if (ctx->report == KVL_REPORT_DONE)
		kvl_tick_at(ctx, 0);
	return got;
}

/* The descriptor stays readable while anything is left: it is emptied only when the ring was seen empty, and the ring
 * is looked at again after that. */
static uint32_t poll_events(kvl_ctx_t *ctx, kvl_event_t *events, uint32_t n)
{
	uint32_t got = 0;
	uint64_t count;
	if (ctx->report == KVL_REPORT_NONE)
		got = take(ctx, events, n);
	if (got < n && ctx->epoll_fd >= 0 && read(ctx->control->event_fd, &count, sizeof count) > 0 &&
	    ctx->report == KVL_REPORT_NONE)
		got += take(ctx, events + got, n - got);
	if (KVL_UNLIKELY(KVL_LOAD(&ctx->control->poisoned, ACQUIRE)) && got < n)
		got += report(ctx, events + got, n - got);
	if (got == n && ctx->epoll_fd >= 0 && (!kvl_ring_empty(&ctx->events) || KVL_LOAD(&ctx->control->poisoned, ACQUIRE)))
		kvl_event_signal(ctx);
	return got;
}

KVL_API int32_t kvl_poll(kvl_ctx_t *ctx, kvl_event_t *events, size_t event_size, uint32_t n)
{
	int32_t got;
	KVL_ENTER(ctx);
	if (event_size != sizeof *events)
		return kvl_fail(KVL_ERR_INVALID, "event_size: %zu, must be %zu", event_size, sizeof *events);
	if (n != 0 && (events == NULL || (uintptr_t)events % _Alignof(kvl_event_t) != 0))
		return kvl_fail(KVL_ERR_INVALID, "events: is NULL or not aligned");
	if (!kvl_call_begin(ctx, KVL_CALL_POLL))
		return kvl_fail_busy(ctx);
	got = n == 0 ? 0 : (int32_t)poll_events(ctx, events, n < INT32_MAX ? n : INT32_MAX);
	kvl_call_end(ctx, KVL_CALL_POLL);
	return got;
}
