/* The decode side's hooks. kvl_track is the hottest call of the library. */
#include "internal.h"

#define TRACK_ALIVE (1u << KVL_S_TRACKED | 1u << KVL_S_READING)
#define KEEP 64u               /* free slots that a producer takes for itself at once */
#define REJECTS_MAX (1u << 20) /* bytes of the overflow ring that rejects may take: the rest is for what may not be lost */

/* ---- slots ---- */

/* Several producers track, so none may sit on all free slots: it keeps a few and puts the rest back. Whole lists are
 * taken by exchange and put back by compare-and-swap, so there is no ABA. */
KVL_COLD static uint32_t take_list(kvl_ctx_t *ctx)
{
	uint32_t n = ctx->sizes.tracks, *head = &ctx->control->track_free, list, last, rest;
	if (KVL_LOAD(head, RELAXED) == KVL_NONE)
		return KVL_NONE;
	list = __atomic_exchange_n(head, KVL_NONE, __ATOMIC_ACQUIRE); /* F2; pairs with F1 in record.PushFree */
	if (list >= n)
		return KVL_NONE;
	last = list;
	for (uint32_t i = 1; i < KEEP && ctx->tracks[last].next < n; i++)
		last = ctx->tracks[last].next;
	rest = ctx->tracks[last].next;
	ctx->tracks[last].next = KVL_NONE;
	for (int tries = 0; rest < n; tries++) {
		uint32_t none = KVL_NONE, grown;
		/* F1: release, pairs with F2 of the next taker. */
		if (__atomic_compare_exchange_n(head, &none, rest, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
			break;
		/* The core gave slots back since. Few, since it was a moment: put our rest behind them. */
		grown = __atomic_exchange_n(head, KVL_NONE, __ATOMIC_ACQUIRE);
		if (grown >= n)
			continue;
		last = grown;
		for (uint32_t i = 0; i < n && ctx->tracks[last].next < n; i++)
			last = ctx->tracks[last].next;
		ctx->tracks[last].next = rest;
		rest = grown;
	}
	return list;
}

KVL_COLD static uint32_t take_track_slow(kvl_producer_t *p)
{
	kvl_ctx_t *ctx = p->ctx;
	uint32_t slot = take_list(ctx);
	if (slot != KVL_NONE) {
		p->track_list = ctx->tracks[slot].next;
		return slot;
	}
	if (KVL_LOAD(&ctx->track_fresh, RELAXED) >= ctx->sizes.tracks)
		return KVL_NONE;
	slot = __atomic_fetch_add(&ctx->track_fresh, 1, __ATOMIC_RELAXED); /* past the end by one a producer at most */
	return slot < ctx->sizes.tracks ? slot : KVL_NONE;
}

static inline uint32_t take_track(kvl_producer_t *p)
{
	uint32_t slot = p->track_list;
	if (KVL_UNLIKELY(slot >= p->ctx->sizes.tracks))
		return take_track_slow(p);
	p->track_list = p->ctx->tracks[slot].next;
	return slot;
}

/* The handle's slot if it can be one of this context and belongs to this producer. */
static int32_t find_track(kvl_producer_t *p, kvl_track_t track, kvl_track_slot_t **slot_out)
{
	uint32_t slot = KVL_HANDLE_SLOT(track);
	kvl_track_slot_t *t;
	if (track >> 32 == 0 || slot >= p->ctx->sizes.tracks)
		return kvl_fail(KVL_ERR_INVALID, "track: not a track of this context");
	t = &p->ctx->tracks[slot];
	if ((uint32_t)(KVL_LOAD(&t->state, ACQUIRE) >> 32) != KVL_HANDLE_USE(track))
		return kvl_fail(KVL_ERR_STALE, "the track has ended");
	if (KVL_LOAD(&t->producer, RELAXED) != p->index)
		return kvl_fail(KVL_ERR_PRODUCER, "the track belongs to producer %u", KVL_LOAD(&t->producer, RELAXED));
	*slot_out = t;
	return KVL_OK;
}

/* ---- track, untrack, reject ---- */

KVL_COLD static int32_t fail_remote(kvl_engine_t engine, const kvl_remote_t *remote, kvl_bytes_t local)
{
	if (remote == NULL || (uintptr_t)remote % _Alignof(kvl_remote_t) != 0)
		return kvl_fail(KVL_ERR_INVALID, "remote: is NULL or not aligned");
	if (remote->size < KVL_REMOTE_FIRST)
		return kvl_fail(KVL_ERR_INVALID, "remote.size: %u, at least %zu", remote->size, KVL_REMOTE_FIRST);
	if (engine == 0)
		return kvl_fail(KVL_ERR_INVALID, "engine: is 0");
	if (!kvl_bytes_ok(remote->id, 1, KVL_ID_MAX))
		return kvl_fail(KVL_ERR_INVALID, "remote.id: 1 to %u bytes", KVL_ID_MAX);
	if (!kvl_bytes_ok(local, 0, KVL_ID_MAX))
		return kvl_fail(KVL_ERR_INVALID, "local_id: at most %u bytes", KVL_ID_MAX);
	return kvl_fail(KVL_ERR_INVALID, "remote.native: 0 or 1");
}

static inline int remote_ok(kvl_engine_t engine, const kvl_remote_t *remote, kvl_bytes_t local)
{
	return remote != NULL && (uintptr_t)remote % _Alignof(kvl_remote_t) == 0 && remote->size >= KVL_REMOTE_FIRST &&
	       engine != 0 && kvl_bytes_ok(remote->id, 1, KVL_ID_MAX) && kvl_bytes_ok(local, 0, KVL_ID_MAX) &&
	       remote->native <= 1;
}

/* CLOCK_BOOTTIME within a timer tick and never later than the truth, for a fifth of the price: the time guard counts a
 * hand-over from here, and earlier is the safe side. */
static inline uint64_t coarse_now(const kvl_ctx_t *ctx)
{
	return kvl_clock(CLOCK_MONOTONIC_COARSE) + (uint64_t)KVL_LOAD(&ctx->boot_ns, RELAXED);
}

KVL_COLD static uint64_t say_now(kvl_producer_t *p, uint64_t tail)
{
	p->said_tail = tail;
	p->said_ns = coarse_now(p->ctx);
	return p->said_ns;
}

/* The time of a track that is published now: that of the first one since the consumer took any, so a batch pays for one look at the
 * clock. Never later than the truth either, and earlier by what that first one has waited: less than a step comes late. */
static inline uint64_t said_now(kvl_producer_t *p)
{
	uint64_t tail = KVL_LOAD((uint64_t *)(void *)&p->ring.ring->tail, RELAXED); /* orders nothing: an old one is an earlier time */
	if (KVL_UNLIKELY(tail != p->said_tail))
		return say_now(p, tail);
	return p->said_ns;
}

static inline void fill_track(kvl_rec_track_t *rec, uint64_t track, kvl_engine_t engine, const kvl_remote_t *remote,
			      kvl_bytes_t local, uint64_t user, uint64_t now)
{
	rec->track = track;
	rec->engine = engine;
	rec->epoch = remote->epoch;
	rec->key = remote->key;
	rec->user = user;
	rec->said_ns = now;
	rec->expires_ns = remote->size >= sizeof *remote ? remote->expires_ns : 0;
	rec->left_ns = 0;
	rec->slot = remote->slot;
	rec->generation = remote->generation;
	rec->native = remote->native;
	rec->remote_len = (uint16_t)remote->id.len;
	rec->local_len = (uint16_t)local.len;
	kvl_copy(rec + 1, remote->id.data, remote->id.len);
	kvl_copy((uint8_t *)(rec + 1) + remote->id.len, local.data, local.len);
}

KVL_API int32_t kvl_track(kvl_producer_t *p, kvl_engine_t engine, const kvl_remote_t *remote, kvl_bytes_t local_id,
			  uint64_t user, kvl_track_t *track_out)
{
	kvl_rec_track_t *rec;
	kvl_track_slot_t *t;
	uint64_t use;
	uint32_t slot;
	int32_t st;
	KVL_ENTER_PRODUCER(p);
	if (KVL_UNLIKELY(!remote_ok(engine, remote, local_id)))
		return fail_remote(engine, remote, local_id);
	if (KVL_UNLIKELY(track_out == NULL))
		return kvl_fail(KVL_ERR_INVALID, "track_out: is NULL");
	if (KVL_UNLIKELY((st = kvl_gate(p)) != KVL_OK))
		return st;
	rec = kvl_ring_reserve(&p->ring, KVL_REC_TRACK, (uint32_t)(sizeof *rec + remote->id.len + local_id.len));
	if (KVL_UNLIKELY(rec == NULL))
		return kvl_fail_full(p->ctx, refused_ring, "the submission ring is full");
	slot = take_track(p);
	if (KVL_UNLIKELY(slot == KVL_NONE)) {
		kvl_ring_discard(&p->ring);
		return kvl_fail_full(p->ctx, refused_table, "tracked_max: all %u slots are in use", p->ctx->sizes.tracks);
	}
	t = &p->ctx->tracks[slot];
	use = KVL_LOAD(&t->state, RELAXED) >> 32;
	if (KVL_UNLIKELY(use == 0xFFFFFFFFu)) { /* uses never wrap: the slot is left out from now on */
		kvl_ring_discard(&p->ring);
		return kvl_fail(KVL_ERR_FULL, "slot %u is used up: call again", slot);
	}
	KVL_STORE(&t->producer, p->index, RELAXED);
	KVL_STORE(&t->state, use << 32 | KVL_S_TRACKED, RELEASE);
	fill_track(rec, KVL_HANDLE(slot, use), engine, remote, local_id, user, said_now(p));
	kvl_publish(p, KVL_REC_TRACK, KVL_SLEEPS); /* a few ms are nothing to the first heartbeat, and a read wakes */
	*track_out = KVL_HANDLE(slot, use);
	return KVL_OK;
}

KVL_API int32_t kvl_untrack(kvl_producer_t *p, kvl_track_t track)
{
	kvl_track_slot_t *t;
	int32_t st;
	KVL_ENTER_PRODUCER(p);
	if ((st = find_track(p, track, &t)) != KVL_OK)
		return st;
	return kvl_say(p, &t->state, track, KVL_S_CANCEL, KVL_REC_UNTRACK, TRACK_ALIVE);
}

KVL_API int32_t kvl_reject(kvl_producer_t *p, kvl_engine_t engine, const kvl_remote_t *remote)
{
	const kvl_bytes_t none = {NULL, 0};
	kvl_rec_track_t *rec = NULL;
	uint32_t n;
	int overflow = 0;
	KVL_ENTER_PRODUCER(p);
	if (!remote_ok(engine, remote, none))
		return fail_remote(engine, remote, none);
	if (KVL_LOAD(&p->ctx->control->poisoned, ACQUIRE))
		return kvl_fail_gate(p->ctx);
	n = (uint32_t)(sizeof *rec + remote->id.len);
	if (!p->overflowing || !kvl_overflowing(p) || p->rejects + n <= REJECTS_MAX)
		rec = kvl_control_reserve(p, KVL_REC_REJECT, n, &overflow);
	if (rec == NULL)
		return kvl_fail_full(p->ctx, refused_ring, "the overflow ring has no more room for rejects");
	fill_track(rec, 0, engine, remote, none, 0, coarse_now(p->ctx));
	if (overflow)
		p->rejects += n + 32; /* headers and fill */
	kvl_control_publish(p, KVL_REC_REJECT, KVL_DOZES, overflow);
	return KVL_OK;
}

/* ---- read ---- */

/* Walks the runs of a read, group by group. Positions decide what belongs to what. */
typedef struct walk {
	const kvl_read_t *read;
	uint32_t group, at; /* next: block `at` of the group's local ids */
} walk_t;

static int next_run(walk_t *w, kvl_run_t *run_out)
{
	for (; w->group < w->read->groups_n; w->group++, w->at = 0) {
		const kvl_blocks_t *local = &w->read->local[w->group], *remote = &w->read->remote[w->group];
		const uint32_t *from, *to;
		uint32_t left = local->n - w->at, n = 1;
		if (left == 0)
			continue;
		to = local->ids + w->at;
		from = remote->ids + (local->first - remote->first) + w->at;
		while (n < left && to[n] == to[n - 1] + 1 && from[n] == from[n - 1] + 1 && to[n] != 0 && from[n] != 0)
			n++;
		*run_out = (kvl_run_t){w->group, to[0], from[0], n};
		w->at += n;
		return 1;
	}
	return 0;
}

static int32_t check_read(kvl_ctx_t *ctx, const kvl_read_t *read)
{
	uint32_t blocks;
	int32_t st;
	if (read == NULL || (uintptr_t)read % _Alignof(kvl_read_t) != 0)
		return kvl_fail(KVL_ERR_INVALID, "read: is NULL or not aligned");
	if (read->size < sizeof *read)
		return kvl_fail(KVL_ERR_INVALID, "read.size: %u, at least %zu", read->size, sizeof *read);
	if ((st = kvl_check_groups("read.local", read->local, read->groups_n, &blocks)) != KVL_OK ||
	    (st = kvl_check_groups("read.remote", read->remote, read->groups_n, &blocks)) != KVL_OK)
		return st;
	for (uint32_t g = 0; g < read->groups_n; g++) {
		const kvl_blocks_t *l = &read->local[g], *r = &read->remote[g];
		if (l->n != 0 && (l->first < r->first || l->first + l->n > r->first + r->n))
			return kvl_fail(KVL_ERR_INVALID, "read.local[%u]: positions %u to %u, the remote blocks are %u to %u", g,
					l->first, l->first + l->n, r->first, r->first + r->n);
	}
	return kvl_check_ids(ctx, "read.local", read->local, read->groups_n);
}

/* Reserves all parts; nothing is visible before the publish. 0: no room, or the ids changed under us. */
static int reserve_parts(kvl_producer_t *p, kvl_track_t track, const kvl_read_t *read, uint32_t runs)
{
	uint32_t parts = runs == 0 ? 1 : (runs + KVL_READ_RUNS_MAX - 1) / KVL_READ_RUNS_MAX;
	walk_t w = {read, 0, 0};
	for (uint32_t part = 0; part < parts; part++) {
		uint32_t n = runs < KVL_READ_RUNS_MAX ? runs : KVL_READ_RUNS_MAX;
		kvl_rec_read_t *rec = kvl_ring_reserve(&p->ring, KVL_REC_READ, (uint32_t)(sizeof *rec + n * sizeof(kvl_run_t)));
		if (rec == NULL)
			return 0;
		*rec = (kvl_rec_read_t){track, part, parts, n, 0};
		for (uint32_t i = 0; i < n; i++)
			if (!next_run(&w, (kvl_run_t *)(void *)(rec + 1) + i))
				return 0;
		runs -= n;
	}
	return 1;
}

/* What a read takes of an empty ring at most: its records, and the fill at the wrap, which is less than the longest. */
static uint64_t read_bytes(uint32_t runs)
{
	const uint64_t head = 8 + sizeof(kvl_rec_read_t), run = sizeof(kvl_run_t);
	uint64_t parts = runs == 0 ? 1 : ((uint64_t)runs + KVL_READ_RUNS_MAX - 1) / KVL_READ_RUNS_MAX;
	return parts * head + runs * run + head + (runs < KVL_READ_RUNS_MAX ? runs : KVL_READ_RUNS_MAX) * run;
}

KVL_API int32_t kvl_read(kvl_producer_t *p, kvl_track_t track, const kvl_read_t *read)
{
	kvl_track_slot_t *t;
	kvl_run_t run;
	walk_t w;
	uint64_t seen;
	uint32_t runs = 0;
	int32_t st;
	KVL_ENTER_PRODUCER(p);
	if ((st = check_read(p->ctx, read)) != KVL_OK || (st = find_track(p, track, &t)) != KVL_OK || (st = kvl_gate(p)) != KVL_OK)
		return st;
	seen = (uint64_t)KVL_HANDLE_USE(track) << 32 | KVL_S_TRACKED;
	if ((KVL_LOAD(&t->state, ACQUIRE) & KVL_S_MASK) == KVL_S_READING)
		return kvl_fail(KVL_ERR_BUSY, "the track is being read");
	for (w = (walk_t){read, 0, 0}; next_run(&w, &run);)
		runs++;
	if (read_bytes(runs) > p->ctx->sizes.ring_bytes)
		return kvl_fail(KVL_ERR_INVALID, "read: %u runs never fit into a ring of %u bytes", runs, p->ctx->sizes.ring_bytes);
	if (!reserve_parts(p, track, read, runs)) {
		kvl_ring_discard(&p->ring);
		return kvl_fail_full(p->ctx, refused_ring, "the submission ring has no room for %u runs", runs);
	}
	if (!__atomic_compare_exchange_n(&t->state, &seen, seen - KVL_S_TRACKED + KVL_S_READING, 0, __ATOMIC_ACQ_REL,
					 __ATOMIC_RELAXED)) {
		kvl_ring_discard(&p->ring);
		return kvl_fail(KVL_ERR_STALE, "the track has ended or was untracked");
	}
	kvl_publish(p, KVL_REC_READ, KVL_DOZES);
	return KVL_OK;
}
