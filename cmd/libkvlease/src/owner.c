/* The prefill side's hooks: slots are chosen here, records tell the core. */
#include "internal.h"

#define LEASE_ALIVE (1u << KVL_S_EXPECTED | 1u << KVL_S_GRANTED)

/* Slot numbers choose fence rows, so one thread chooses them: the first that expects or grants. */
static int32_t check_granter(kvl_producer_t *p)
{
	uint32_t mine = p->index + 1, seen = KVL_LOAD(&p->ctx->granter, RELAXED);
	if (KVL_LIKELY(seen == mine))
		return KVL_OK;
	if (seen == 0 && __atomic_compare_exchange_n(&p->ctx->granter, &seen, mine, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return KVL_OK;
	return kvl_fail(KVL_ERR_PRODUCER, "leases of this context go through producer %u", seen - 1);
}

/* The uses of a slot are counted in 32 bits and never wrap: fence words only grow. A slot that is used up is left out. */
#define USED_UP 0xFFFFFFFFu

/* A free slot: given back ones first, so that a half-empty table stays small in memory; then one never used. */
static uint32_t take_slot(kvl_ctx_t *ctx)
{
	for (;;) { /* at most once a slot */
		uint32_t slot = ctx->lease_list;
		if (slot == KVL_NONE && KVL_LOAD(&ctx->control->lease_free, RELAXED) != KVL_NONE)
			/* F2: acquire, pairs with F1 in record.PushFree. The whole list at once, so there is no ABA. */
			slot = __atomic_exchange_n(&ctx->control->lease_free, KVL_NONE, __ATOMIC_ACQUIRE);
		if (slot >= ctx->sizes.leases)
			break;
		ctx->lease_list = ctx->slots[slot].next;
		if (KVL_LOAD(&ctx->slots[slot].state, RELAXED) >> 32 != USED_UP)
			return slot;
	}
	ctx->lease_list = KVL_NONE;
	return ctx->lease_fresh < ctx->sizes.leases ? ctx->lease_fresh++ : KVL_NONE;
}

/* The lease of a slot's present use. */
static kvl_lease_t lease_of(const kvl_ctx_t *ctx, uint32_t slot)
{
	return KVL_HANDLE(slot, (uint32_t)(KVL_LOAD(&ctx->slots[slot].state, RELAXED) >> 32));
}

KVL_API int32_t kvl_expect(kvl_producer_t *p, kvl_bytes_t id, kvl_lease_t *lease_out)
{
	kvl_rec_expect_t *rec;
	kvl_lease_t lease;
	uint32_t slot;
	int32_t st;
	KVL_ENTER_PRODUCER(p);
	if (!kvl_bytes_ok(id, 1, KVL_ID_MAX))
		return kvl_fail(KVL_ERR_INVALID, "id: 1 to %u bytes", KVL_ID_MAX);
	if (lease_out == NULL)
		return kvl_fail(KVL_ERR_INVALID, "lease_out: is NULL");
	if ((st = kvl_gate(p)) != KVL_OK || (st = check_granter(p)) != KVL_OK)
		return st;
	rec = kvl_ring_reserve(&p->ring, KVL_REC_EXPECT, (uint32_t)(sizeof *rec + id.len));
	if (rec == NULL)
		return kvl_fail_full(p->ctx, refused_ring, "the submission ring is full");
	slot = take_slot(p->ctx);
	if (slot == KVL_NONE) {
		kvl_ring_discard(&p->ring);
		return kvl_fail_full(p->ctx, refused_table, "requests_max: all %u slots are in use", p->ctx->sizes.leases);
	}
	lease = lease_of(p->ctx, slot);
	rec->lease = lease;
	rec->id_len = (uint32_t)id.len;
	rec->zero = 0;
	kvl_copy(rec + 1, id.data, id.len);
	KVL_STORE(&p->ctx->slots[slot].state, (uint64_t)KVL_HANDLE_USE(lease) << 32 | KVL_S_EXPECTED, RELEASE);
	KVL_STORE(&p->ctx->slots[slot].user, kvl_ring_producer_position(&p->ring), RELAXED); /* until the grant: see grant_sleep */
	kvl_publish(p, KVL_REC_EXPECT, KVL_LISTENS);
	*lease_out = lease;
	return KVL_OK;
}

static int32_t check_grant(const kvl_ctx_t *ctx, const kvl_grant_t *grant, uint32_t *blocks_out)
{
	if (grant == NULL || (uintptr_t)grant % _Alignof(kvl_grant_t) != 0)
		return kvl_fail(KVL_ERR_INVALID, "grant: is NULL or not aligned");
	if (grant->size < sizeof *grant)
		return kvl_fail(KVL_ERR_INVALID, "grant.size: %u, at least %zu", grant->size, sizeof *grant);
	if ((grant->flags & ~(uint32_t)KVL_GRANT_FIXED) != 0)
		return kvl_fail(KVL_ERR_INVALID, "grant.flags: 0x%x is not a KVL_GRANT_*", grant->flags);
	if (grant->ready_event != 0 && KVL_LOAD(&ctx->registered, ACQUIRE) != KVL_REGISTERED_DEVICE) /* nobody could ask it */
		return kvl_fail(KVL_ERR_INVALID, "grant.ready_event: must be 0, no device memory is registered with this context");
	if (!kvl_bytes_ok(grant->id, 1, KVL_ID_MAX))
		return kvl_fail(KVL_ERR_INVALID, "grant.id: 1 to %u bytes", KVL_ID_MAX);
	if (grant->ttl_ns > INT64_MAX)
		return kvl_fail(KVL_ERR_INVALID, "grant.ttl_ns: more than 2^63");
	if (grant->expected != 0 && kvl_lease_slot(ctx, grant->expected) == KVL_NONE)
		return kvl_fail(KVL_ERR_INVALID, "grant.expected: not a lease of this context");
	return kvl_check_groups("grant.groups", grant->groups, grant->groups_n, blocks_out);
}

/* How long a grant stands. */
typedef struct term {
	uint64_t ttl_ns; /* 0: the configured duration */
	uint64_t end_ns; /* a fixed life's end in CLOCK_MONOTONIC, as its reader is told; else 0 */
} term_t;

/* Before the clock from which the life counts: so readers hear of an end that is never later than the one that is kept. */
static term_t term_of(const kvl_ctx_t *ctx, const kvl_grant_t *grant)
{
	term_t t = {.ttl_ns = grant->ttl_ns};
	if (KVL_UNLIKELY((grant->flags & KVL_GRANT_FIXED) != 0)) {
		if (t.ttl_ns == 0)
			t.ttl_ns = ctx->sizes.blocks_ttl_ns;
		t.end_ns = kvl_clock(CLOCK_MONOTONIC) + t.ttl_ns;
	}
	return t;
}

/* What the poison report needs must be in the slot before its state says GRANTED: the core may never see the record.
 * A reader that does not check the fence may get the parameters, until the core knows better (L12). */
static void fill_slot(kvl_ctx_t *ctx, uint32_t slot, const kvl_grant_t *grant, const term_t *term, uint32_t blocks)
{
	kvl_slot_t *s = &ctx->slots[slot];
	if (KVL_UNLIKELY(term->end_ns != 0))
		KVL_STORE(&ctx->fixed_ends[slot], term->end_ns, RELAXED);
	KVL_STORE(&s->user, grant->user, RELAXED);
	KVL_STORE(&s->blocks, blocks, RELAXED);
	KVL_STORE(&s->flags, grant->ready_event != 0 ? KVL_SF_UNCHECKED | KVL_SF_UNREADY : KVL_SF_UNCHECKED, RELAXED);
}

/* EXPECTED -> GRANTED. 0: the expectation has lapsed or was cancelled; a fresh slot does as well. */
static int claim_expected(kvl_ctx_t *ctx, uint32_t slot, const kvl_grant_t *grant, const term_t *term, uint32_t blocks)
{
	kvl_slot_t *s = &ctx->slots[slot];
	uint64_t seen = (uint64_t)KVL_HANDLE_USE(grant->expected) << 32 | KVL_S_EXPECTED;
	if (KVL_LOAD(&s->state, ACQUIRE) != seen)
		return 0;
	fill_slot(ctx, slot, grant, term, blocks); /* the core looks at these only in state GRANTED */
	return __atomic_compare_exchange_n(&s->state, &seen, seen - KVL_S_EXPECTED + KVL_S_GRANTED, 0, __ATOMIC_SEQ_CST,
					   __ATOMIC_RELAXED);
}

/* A poisoning that began while the grant was written may have missed it in its report. The state word decides.
 * G1: it is stored before poisoned is looked at, both seq_cst; pairs with G2 in kvl_poll, which sees GRANTED or is seen here. */
static int32_t settle_poisoned(kvl_ctx_t *ctx, uint32_t slot, kvl_lease_t lease)
{
	uint64_t use = KVL_HANDLE_USE(lease), seen = use << 32 | KVL_S_GRANTED;
	if (__atomic_compare_exchange_n(&ctx->slots[slot].state, &seen, (use + 1) << 32 | KVL_S_FREE, 0,
					__ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		return kvl_fail_gate(ctx);
	return KVL_OK; /* kvl_poll has its end */
}

/* The lightest sleep that a grant ends. A step takes submissions before messages, so where leases and messages meet in one context
 * the record waits for none. A host context has to tell its ranks before a message comes to them: at once, or they know the
 * expectation, since the pump that sleeps now has taken it, and keep the message. To be asked before the slot is claimed. */
static uint32_t grant_sleep(const kvl_producer_t *p, uint32_t slot)
{
	const kvl_ctx_t *ctx = p->ctx;
	if (ctx->sizes.role == KVL_ROLE_ENGINE)
		return KVL_LISTENS;
	if (slot == KVL_NONE ||
	    KVL_LOAD((uint64_t *)(void *)&p->ring.ring->tail, RELAXED) < KVL_LOAD(&ctx->slots[slot].user, RELAXED))
		return KVL_DOZES;
	return KVL_LISTENS;
}

KVL_API int32_t kvl_grant(kvl_producer_t *p, const kvl_grant_t *grant, kvl_lease_t *lease_out)
{
	kvl_ctx_t *ctx;
	kvl_rec_grant_t *rec;
	kvl_lease_t lease;
	kvl_era_t era;
	term_t term;
	uint32_t slot, blocks, sleep;
	int32_t st;
	KVL_ENTER_PRODUCER(p);
	ctx = p->ctx;
	if ((st = check_grant(ctx, grant, &blocks)) != KVL_OK ||
	    (st = kvl_check_ids(ctx, "grant.groups", grant->groups, grant->groups_n)) != KVL_OK)
		return st;
	if (lease_out == NULL)
		return kvl_fail(KVL_ERR_INVALID, "lease_out: is NULL");
	if ((st = kvl_gate(p)) != KVL_OK || (st = check_granter(p)) != KVL_OK)
		return st;
	if (KVL_UNLIKELY(!kvl_era_read(ctx, &era)))
		return kvl_fail_era();
	rec = kvl_ring_reserve(&p->ring, KVL_REC_GRANT, (uint32_t)(sizeof *rec + grant->id.len));
	if (rec == NULL)
		return kvl_fail_full(p->ctx, refused_ring, "the submission ring is full");
	term = term_of(ctx, grant);
	slot = kvl_lease_slot(ctx, grant->expected);
	lease = grant->expected;
	sleep = grant_sleep(p, slot);
	if (slot == KVL_NONE || !claim_expected(ctx, slot, grant, &term, blocks)) {
		slot = take_slot(ctx);
		if (slot == KVL_NONE) {
			kvl_ring_discard(&p->ring);
			return kvl_fail_full(p->ctx, refused_table, "requests_max: all %u slots are in use", ctx->sizes.leases);
		}
		sleep = grant_sleep(p, KVL_NONE);
		lease = lease_of(ctx, slot);
		fill_slot(ctx, slot, grant, &term, blocks);
		__atomic_store_n(&ctx->slots[slot].state, (uint64_t)KVL_HANDLE_USE(lease) << 32 | KVL_S_GRANTED,
				 __ATOMIC_SEQ_CST);
	}
	rec->lease = lease;
	rec->key = kvl_slot_key(&era, slot, KVL_HANDLE_USE(lease));
	rec->user = grant->user;
	rec->ttl_ns = term.ttl_ns;
	rec->said_ns = kvl_clock(CLOCK_BOOTTIME);
	rec->ready_event = grant->ready_event;
	rec->blocks = blocks;
	rec->tokens = grant->tokens;
	rec->flags = grant->flags;
	rec->id_len = (uint32_t)grant->id.len;
	kvl_copy(rec + 1, grant->id.data, grant->id.len);
	kvl_publish(p, KVL_REC_GRANT, sleep);
	if (KVL_UNLIKELY(__atomic_load_n(&ctx->control->poisoned, __ATOMIC_SEQ_CST)) &&
	    (st = settle_poisoned(ctx, slot, lease)) != KVL_OK)
		return st;
	*lease_out = lease;
	return KVL_OK;
}

static int32_t say_lease(kvl_producer_t *p, kvl_lease_t lease, uint32_t bit, uint32_t tag, uint32_t states)
{
	uint32_t slot, granter;
	KVL_ENTER_PRODUCER(p);
	slot = kvl_lease_slot(p->ctx, lease);
	if (slot == KVL_NONE)
		return kvl_fail(KVL_ERR_INVALID, "lease: not a lease of this context");
	granter = KVL_LOAD(&p->ctx->granter, RELAXED);
	if (granter != p->index + 1)
		return granter == 0 ? kvl_fail(KVL_ERR_STALE, "nothing was granted yet")
				    : kvl_fail(KVL_ERR_PRODUCER, "leases of this context go through producer %u", granter - 1);
	return kvl_say(p, &p->ctx->slots[slot].state, lease, bit, tag, states);
}

KVL_API int32_t kvl_cancel(kvl_producer_t *p, kvl_lease_t lease)
{
	return say_lease(p, lease, KVL_S_CANCEL, KVL_REC_CANCEL, LEASE_ALIVE);
}

KVL_API int32_t kvl_revoke(kvl_producer_t *p, kvl_lease_t lease)
{
	return say_lease(p, lease, KVL_S_REVOKE, KVL_REC_REVOKE, 1u << KVL_S_GRANTED);
}

KVL_API int32_t kvl_pressure(kvl_producer_t *p, uint32_t blocks_wanted)
{
	kvl_rec_pressure_t *rec;
	int32_t st;
	KVL_ENTER_PRODUCER(p);
	if (blocks_wanted == 0)
		return kvl_fail(KVL_ERR_INVALID, "blocks_wanted: must not be 0");
	if ((st = kvl_gate(p)) != KVL_OK)
		return st;
	rec = kvl_ring_reserve(&p->ring, KVL_REC_PRESSURE, sizeof *rec);
	if (rec == NULL)
		return kvl_fail_full(p->ctx, refused_ring, "the submission ring is full");
	rec->blocks = blocks_wanted;
	rec->zero = 0;
	kvl_publish(p, KVL_REC_PRESSURE, KVL_DOZES);
	return KVL_OK;
}
