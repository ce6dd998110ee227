#include "fakecore.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static fake_core_t *cores[64];
static int cores_n;

EXPORT fake_core_t *fake_last(void) { return cores_n > 0 ? cores[(cores_n - 1) % 64] : NULL; }

/* The number behind "key": in a small JSON text. */
static uint32_t number(const char *cfg, uint64_t len, const char *key, uint32_t otherwise)
{
	char text[2048], quoted[64];
	const char *at;
	snprintf(text, sizeof text, "%.*s", (int)len, cfg);
	snprintf(quoted, sizeof quoted, "\"%s\":", key);
	at = strstr(text, quoted);
	return at != NULL ? (uint32_t)strtoul(at + strlen(quoted), NULL, 10) : otherwise;
}

static int32_t fail(int32_t st, char *err, uint64_t cap, const char *text)
{
	if (err != NULL && cap != 0)
		snprintf(err, cap, "%s", text);
	return st;
}

EXPORT int32_t kvlgo_config(const char *cfg, uint64_t len, kvl_core_sizes_t *out, char *err, uint64_t cap)
{
	if (number(cfg, len, "wrong", 0))
		return fail(KVL_ERR_CONFIG, err, cap, "unknown key \"wrong\"");
	*out = (kvl_core_sizes_t){.size = sizeof *out,
				  .leases = number(cfg, len, "leases", 64),
				  .tracks = number(cfg, len, "tracks", 64),
				  .producers = number(cfg, len, "producers", 4),
				  .ring_bytes = number(cfg, len, "ring_bytes", 65536),
				  .overflow_bytes = number(cfg, len, "overflow_bytes", 1 << 21),
				  .events_bytes = number(cfg, len, "events_bytes", 65536),
				  .landing_bytes = 4096,
				  .pump = number(cfg, len, "pump", 0),
				  .idle_tick_ns = number(cfg, len, "idle_tick_ms", 50) * 1000000ull,
				  .role = number(cfg, len, "role", KVL_ROLE_ENGINE),
				  .ranks = number(cfg, len, "ranks", 1),
				  .blocks_ttl_ns = 480000000000ull};
	return KVL_OK;
}

EXPORT int32_t kvlgo_open(const kvl_core_args_t *args, int64_t *core_out, char *err, uint64_t cap)
{
	fake_core_t *f;
	if (number(args->config, args->config_len, "refuse", 0))
		return fail(KVL_ERR_TRANSPORT, err, cap, "the transport refused");
	f = calloc(1, sizeof *f);
	f->args = *args;
	kvlgo_config(args->config, args->config_len, &f->sizes, NULL, 0);
	for (uint32_t i = 0; i < f->sizes.producers && i < FAKE_PRODUCERS; i++) {
		kvl_ring_consumer_init(&f->rings[i], args->rings[i], kvl_ring_bytes(f->sizes.ring_bytes));
		kvl_ring_consumer_init(&f->overflows[i], args->overflows[i], kvl_ring_bytes(f->sizes.overflow_bytes));
	}
	kvl_ring_producer_init(&f->events, args->events, kvl_ring_bytes(f->sizes.events_bytes));
	args->control->duration_ns = number(args->config, args->config_len, "duration_ms", 1000) * 1000000ull;
	fake_core_t **place = &cores[cores_n++ % 64];
	if (*place != NULL && (*place)->closed)
		free(*place); /* nobody looks that far back */
	*place = f;
	*core_out = (int64_t)(intptr_t)f;
	return KVL_OK;
}

static fake_core_t *get(int64_t core) { return (fake_core_t *)(intptr_t)core; }

static void push_free(uint32_t *head, uint32_t *next, uint32_t slot)
{
	uint32_t old = __atomic_load_n(head, __ATOMIC_RELAXED);
	do
		*next = old;
	while (!__atomic_compare_exchange_n(head, &old, slot, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

EXPORT void fake_publish(fake_core_t *f, const kvl_event_t *ev)
{
	const uint64_t one = 1;
	void *rec = kvl_ring_reserve(&f->events, ev->kind, sizeof *ev);
	if (rec == NULL)
		abort(); /* the tests leave room */
	memcpy(rec, ev, sizeof *ev);
	kvl_ring_publish(&f->events);
	if (write(f->args.control->event_fd, &one, sizeof one) < 0)
		return;
}

static void free_slot(fake_core_t *f, uint64_t lease)
{
	kvl_slot_t *s = &f->args.slots[KVL_HANDLE_SLOT(lease)];
	uint64_t use = KVL_HANDLE_USE(lease);
	__atomic_store_n(&s->state, (use + 1) << 32 | KVL_S_FREE, __ATOMIC_RELEASE);
	push_free(&f->args.control->lease_free, &s->next, KVL_HANDLE_SLOT(lease));
}

static void end_lease(fake_core_t *f, uint64_t lease, int reason)
{
	kvl_slot_t *s = &f->args.slots[KVL_HANDLE_SLOT(lease)];
	uint64_t seen = __atomic_load_n(&s->state, __ATOMIC_ACQUIRE), use = KVL_HANDLE_USE(lease);
	uint32_t state = seen & KVL_S_MASK;
	kvl_event_t ev = {.kind = KVL_EV_FREED, .status = reason, .handle = lease};
	if (seen >> 32 != use || (state != KVL_S_GRANTED && state != KVL_S_EXPECTED))
		return;
	f->live_leases--;
	while (!__atomic_compare_exchange_n(&s->state, &seen, use << 32 | KVL_S_ENDED, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		;
	if (f->keep_slots)
		return;
	ev.user = __atomic_load_n(&s->user, __ATOMIC_RELAXED);
	ev.value0 = __atomic_load_n(&s->blocks, __ATOMIC_RELAXED);
	if (state == KVL_S_GRANTED)
		fake_publish(f, &ev);
	free_slot(f, lease);
}

EXPORT void fake_lapse(fake_core_t *f, uint64_t lease)
{
	kvl_slot_t *s = &f->args.slots[KVL_HANDLE_SLOT(lease)];
	uint64_t use = KVL_HANDLE_USE(lease), seen = use << 32 | KVL_S_EXPECTED;
	const kvl_event_t ev = {.kind = KVL_EV_EXPECT_LAPSED, .handle = lease};
	if (!__atomic_compare_exchange_n(&s->state, &seen, (use + 1) << 32 | KVL_S_FREE, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return;
	f->live_leases--;
	fake_publish(f, &ev);
	push_free(&f->args.control->lease_free, &s->next, KVL_HANDLE_SLOT(lease));
}

EXPORT void fake_era(fake_core_t *f, uint64_t epoch, uint64_t secret)
{
	kvl_control_t *c = f->args.control;
	uint64_t era = __atomic_load_n(&c->era, __ATOMIC_RELAXED);
	__atomic_store_n(&c->era, era + 1, __ATOMIC_RELAXED); /* E1 */
	__atomic_thread_fence(__ATOMIC_RELEASE);
	__atomic_store_n(&c->epoch, epoch, __ATOMIC_RELAXED);
	__atomic_store_n(&c->secret[0], secret, __ATOMIC_RELAXED);
	__atomic_store_n(&c->secret[1], ~secret, __ATOMIC_RELAXED);
	__atomic_store_n(&c->era, era + 2, __ATOMIC_RELEASE);
}

EXPORT void fake_check_all(fake_core_t *f)
{
	for (uint32_t i = 0; i < f->sizes.leases; i++)
		__atomic_fetch_and(&f->args.slots[i].flags, ~(uint32_t)KVL_SF_UNCHECKED, __ATOMIC_RELAXED);
}

EXPORT void fake_ready(fake_core_t *f, uint64_t lease)
{
	__atomic_fetch_and(&f->args.slots[KVL_HANDLE_SLOT(lease)].flags, ~(uint32_t)KVL_SF_UNREADY, __ATOMIC_RELAXED);
}

static void end_track(fake_core_t *f, uint64_t track)
{
	kvl_track_slot_t *t = &f->args.tracks[KVL_HANDLE_SLOT(track)];
	uint64_t use = KVL_HANDLE_USE(track);
	if (__atomic_load_n(&t->state, __ATOMIC_ACQUIRE) >> 32 != use)
		return;
	f->live_tracks--;
	__atomic_store_n(&t->state, (use + 1) << 32 | KVL_S_FREE, __ATOMIC_RELEASE);
	push_free(&f->args.control->track_free, &t->next, KVL_HANDLE_SLOT(track));
}

static void read_part(fake_core_t *f, const kvl_rec_read_t *r)
{
	kvl_event_t ev = {.kind = KVL_EV_READ_DONE, .status = KVL_READ_OK, .handle = r->track};
	if (r->part == 0)
		f->runs_n = 0;
	for (uint32_t i = 0; i < r->n && f->runs_n < 4096; i++)
		f->runs[f->runs_n++] = ((const kvl_run_t *)(const void *)(r + 1))[i];
	if (r->part + 1 != r->parts)
		return;
	for (uint32_t i = 0; i < f->runs_n; i++)
		ev.value0 += f->runs[i].n;
	fake_publish(f, &ev);
	end_track(f, r->track);
}

static void apply(fake_core_t *f, uint32_t producer, uint32_t tag, const void *rec)
{
	fake_entry_t scratch, *e = f->log_n < FAKE_LOG ? &f->log[f->log_n++] : &scratch;
	const kvl_rec_expect_t *x = rec;
	const kvl_rec_grant_t *g = rec;
	const kvl_rec_track_t *t = rec;
	const kvl_rec_read_t *r = rec;
	*e = (fake_entry_t){.tag = tag, .producer = producer, .handle = *(const uint64_t *)rec};
	switch (tag) {
	case KVL_REC_EXPECT:
		f->live_leases++;
		e->a = x->id_len;
		break;
	case KVL_REC_GRANT:
		if (g->lease != 0 && e->handle == g->lease) {
			int expected = 0;
			for (uint32_t i = 0; i + 1 < f->log_n; i++)
				expected |= f->log[i].tag == KVL_REC_EXPECT && f->log[i].handle == g->lease;
			f->live_leases += !expected;
		}
		e->a = g->key;
		e->b = g->said_ns;
		e->c = g->ttl_ns;
		e->flags = g->flags;
		e->event = g->ready_event;
		snprintf(e->id, sizeof e->id, "%.*s", (int)g->id_len, (const char *)(g + 1));
		break;
	case KVL_REC_CANCEL:
	case KVL_REC_REVOKE:
		end_lease(f, e->handle, KVL_FREED_REVOKED);
		break;
	case KVL_REC_TRACK:
		f->live_tracks++; /* and as REJECT */
		/* fallthrough */
	case KVL_REC_REJECT:
		e->a = t->engine;
		e->b = t->said_ns;
		e->c = t->left_ns == 0 ? t->expires_ns : UINT64_MAX; /* only a host's core converts */
		snprintf(e->id, sizeof e->id, "%.*s", (int)t->remote_len, (const char *)(t + 1));
		break;
	case KVL_REC_UNTRACK:
		end_track(f, e->handle);
		break;
	case KVL_REC_READ:
		e->a = r->part;
		e->b = r->n;
		read_part(f, r);
		break;
	}
}

static void drain(fake_core_t *f, uint32_t i)
{
	uint32_t tag, len, left = f->take_max != 0 ? f->take_max : UINT32_MAX;
	const void *rec;
	for (; left > 0 && (rec = kvl_ring_next(&f->rings[i], &tag, &len)) != NULL; left--)
		apply(f, i, tag, rec);
	kvl_ring_release(&f->rings[i]);
	for (; left > 0; left--) {
		kvl_ring_consumer_t before = f->overflows[i];
		const kvl_rec_overflow_t *o = kvl_ring_next(&f->overflows[i], &tag, &len);
		if (o == NULL)
			break;
		if (kvl_ring_consumer_position(&f->rings[i]) < o->after) {
			f->overflows[i] = before;
			break;
		}
		apply(f, i, tag, o + 1);
	}
	kvl_ring_release(&f->overflows[i]);
}

static void poison(fake_core_t *f)
{
	kvl_control_t *c = f->args.control;
	kvl_row_t *rows = (kvl_row_t *)(void *)(f->args.board + sizeof(kvl_board_header_t));
	struct timespec t;
	for (uint32_t i = 0; i < f->sizes.leases; i++)
		__atomic_store_n(&rows[i].fence, UINT64_MAX, __ATOMIC_RELAXED);
	clock_gettime(CLOCK_BOOTTIME, &t);
	__atomic_store_n(&c->poison_ns, (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec, __ATOMIC_RELAXED);
	__atomic_store_n(&c->poisoned, 1, __ATOMIC_SEQ_CST);
}

EXPORT void fake_step(fake_core_t *f)
{
	kvl_control_t *c = f->args.control;
	if (__atomic_fetch_add(&f->stepping_threads, 1, __ATOMIC_ACQ_REL) != 0)
		f->overlaps++;
	__atomic_store_n(&c->stepping, 1, __ATOMIC_SEQ_CST);
	if (f->inside != NULL) {
		void (*inside)(void) = f->inside;
		f->inside = NULL;
		inside();
	}
	if (__atomic_load_n(&c->poisoned, __ATOMIC_SEQ_CST) == 0) {
		for (uint32_t i = 0; i < f->sizes.producers && i < FAKE_PRODUCERS && !f->deaf; i++)
			drain(f, i);
		if (f->panic)
			poison(f);
		__atomic_store_n(&c->held, (uint32_t)(f->live_leases + f->live_tracks), __ATOMIC_RELEASE);
		__atomic_fetch_add(&c->steps, 1, __ATOMIC_RELAXED);
	}
	__atomic_store_n(&c->stepping, 0, __ATOMIC_SEQ_CST);
	__atomic_fetch_sub(&f->stepping_threads, 1, __ATOMIC_ACQ_REL);
}

EXPORT int32_t kvlgo_step(int64_t core, uint64_t now_ns)
{
	fake_core_t *f = get(core);
	(void)now_ns;
	fake_step(f);
	return __atomic_load_n(&f->args.control->poisoned, __ATOMIC_ACQUIRE) ? KVL_ERR_POISONED : KVL_OK;
}

EXPORT int32_t kvlgo_close(int64_t core, uint64_t timeout_ns, char *err, uint64_t cap)
{
	fake_core_t *f = get(core);
	(void)timeout_ns;
	if (f->close_busy > 0) {
		f->close_busy--;
		return fail(KVL_ERR_BUSY, err, cap, "1 transfers of ours have not ended");
	}
	__atomic_store_n(&f->closed, 1, __ATOMIC_RELEASE); /* kept: tests look at it after the close */
	return KVL_OK;
}

EXPORT int32_t kvlgo_drain(int64_t core, uint64_t timeout_ns, char *err, uint64_t cap)
{
	fake_step(get(core));
	return timeout_ns == 0 ? fail(KVL_ERR_TIMEOUT, err, cap, "leases held or expected: 1") : KVL_OK;
}

EXPORT int32_t kvlgo_register(int64_t core, const kvl_region_t *r, uint32_t n, char *err, uint64_t cap)
{
	fake_core_t *f = get(core);
	if (r[n - 1].device == 99)
		return fail(KVL_ERR_TRANSPORT, err, cap, "no such device: 99");
	if (f->registering != NULL)
		f->registering();
	if (__atomic_load_n(&f->closed, __ATOMIC_ACQUIRE))
		return KVL_ERR_STALE; /* as the real one, to which the handle says nothing any more */
	f->region = r[n - 1];
	return KVL_OK;
}

EXPORT int32_t kvlgo_unregister(int64_t core, char *err, uint64_t cap)
{
	(void)core, (void)err, (void)cap;
	return KVL_OK;
}

EXPORT int32_t kvlgo_engine_add(int64_t core, const kvl_engine_desc_t *d, uint64_t *out, char *err, uint64_t cap)
{
	(void)core;
	if (d->user == 99)
		return fail(KVL_ERR_FULL, err, cap, "engines_max");
	*out = 1ull << 32;
	return KVL_OK;
}

EXPORT int32_t kvlgo_engine_remove(int64_t core, uint64_t engine)
{
	(void)core;
	return engine == 1ull << 32 ? KVL_OK : KVL_ERR_STALE;
}

EXPORT int32_t kvlgo_engine_handshake(int64_t core, uint64_t engine, uint32_t rank, const void *data, uint64_t len,
				      char *err, uint64_t cap)
{
	(void)core, (void)engine, (void)data, (void)len;
	return rank > 0 ? fail(KVL_ERR_INVALID, err, cap, "rank: the engine has 1") : KVL_OK;
}

static int32_t copy_out(const char *text, void *buf, uint64_t cap, uint64_t *len_out)
{
	*len_out = strlen(text);
	if (buf == NULL || cap < *len_out)
		return KVL_ERR_SPACE;
	memcpy(buf, text, *len_out);
	return KVL_OK;
}

EXPORT int32_t kvlgo_handshake_get(int64_t core, uint32_t rank, void *buf, uint64_t cap, uint64_t *len_out, char *err,
				   uint64_t err_cap)
{
	(void)core, (void)rank, (void)err, (void)err_cap;
	return copy_out("map", buf, cap, len_out);
}

EXPORT int32_t kvlgo_handshake_set(int64_t core, uint32_t rank, const void *data, uint64_t len, char *err, uint64_t cap)
{
	(void)core, (void)data, (void)len;
	return rank > 0 ? fail(KVL_ERR_INVALID, err, cap, "rank: the engine has 1") : KVL_OK;
}

/* The fake's carrier gives back what was put in last, once. */
EXPORT int32_t kvlgo_delta_take(int64_t core, uint32_t rank, void *buf, uint64_t cap, uint64_t *len_out, char *err,
				uint64_t err_cap)
{
	fake_core_t *f = get(core);
	if (rank >= f->sizes.ranks)
		return fail(KVL_ERR_INVALID, err, err_cap, "rank: there is none such");
	*len_out = f->delta_n;
	if (cap < f->delta_n)
		return KVL_ERR_SPACE;
	memcpy(buf, f->delta, f->delta_n);
	f->delta_n = 0;
	return KVL_OK;
}

EXPORT int32_t kvlgo_delta_put(int64_t core, uint32_t rank, const void *data, uint64_t len, char *err, uint64_t cap)
{
	fake_core_t *f = get(core);
	if (rank >= f->sizes.ranks || len > sizeof f->delta)
		return fail(KVL_ERR_INVALID, err, cap, "bytes: damaged");
	memcpy(f->delta, data, len);
	f->delta_n = len;
	return KVL_OK;
}

EXPORT int32_t kvlgo_delta_lost(int64_t core, uint32_t rank, char *err, uint64_t cap)
{
	if (rank >= get(core)->sizes.ranks)
		return fail(KVL_ERR_INVALID, err, cap, "rank: there is none such");
	return KVL_OK;
}

EXPORT int32_t kvlgo_stats(int64_t core, char *buf, uint64_t cap, uint64_t *len_out)
{
	(void)core;
	return copy_out("{\"fake\":1}", buf, cap, len_out);
}

EXPORT int32_t kvlgo_config_json(int64_t core, char *buf, uint64_t cap, uint64_t *len_out)
{
	return copy_out(get(core)->sizes.pump ? "{\"drive\":\"pump\"}" : "{\"drive\":\"inline\"}", buf, cap, len_out);
}

EXPORT int32_t kvlgo_metrics_text(int64_t core, char *buf, uint64_t cap, uint64_t *len_out)
{
	(void)core;
	return copy_out("kvlease_up 1\n", buf, cap, len_out);
}

EXPORT int32_t kvlgo_log_take(int64_t core, char *buf, uint64_t cap, uint64_t *len_out)
{
	(void)core;
	return copy_out("{\"kind\":\"stall\"}\n", buf, cap, len_out);
}

EXPORT int32_t kvlgo_metrics_listen(int64_t core, const char *addr, uint64_t len, uint32_t *port_out, char *err, uint64_t cap)
{
	(void)core;
	if (len == 0 || memchr(addr, ':', len) == NULL)
		return fail(KVL_ERR_INVALID, err, cap, "addr: wanted HOST:PORT");
	*port_out = 9464;
	return KVL_OK;
}

EXPORT int32_t kvlgo_params_info(int64_t core, char *buf, uint64_t cap, uint64_t *len_out)
{
	(void)core;
	return copy_out("{\"remote_engine_id\":\"P-1\",\"remote_host\":\"10.0.0.1\",\"remote_port\":5600,\"tp_size\":1}", buf, cap, len_out);
}
