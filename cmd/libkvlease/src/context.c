/* Open and close: the memory of a context, and the core over it. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "internal.h"
#include "json.h"

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;

#define CONTROL_MAGIC 0x436c766bu /* 'kvlC' */
#define LEASES_MAX (1u << 24)
#define TRACKS_MAX (1u << 24)
#define PRODUCERS_MAX 1024u
#define RANKS_MAX 64u
#define INFO_MAX (1u << 20)

/* ---- memory ---- */

static int ring_capacity_ok(uint32_t n)
{
	return n >= KVL_RING_CAPACITY_MIN && n <= 1u << 31 && (n & (n - 1)) == 0;
}

static int sizes_ok(const kvl_core_sizes_t *s)
{
	return s->size == sizeof *s && s->leases >= 1 && s->leases <= LEASES_MAX && s->tracks >= 1 &&
	       s->tracks <= TRACKS_MAX && s->producers >= 1 && s->producers <= PRODUCERS_MAX &&
	       ring_capacity_ok(s->ring_bytes) && ring_capacity_ok(s->overflow_bytes) && ring_capacity_ok(s->events_bytes) &&
	       s->idle_tick_ns >= 1 && s->idle_tick_ns <= 3600u * 1000000000ull && s->role <= KVL_ROLE_RANK && s->ranks >= 1 &&
	       s->ranks <= RANKS_MAX;
}

/* Parts of the arena, each on pages of its own: what the transport registers must not share one with anything else. */
typedef struct plan {
	size_t page, bytes;
} plan_t;

static size_t plan_part(plan_t *p, uint64_t bytes)
{
	size_t at = p->bytes;
	p->bytes += ((size_t)bytes + p->page - 1) / p->page * p->page;
	return at;
}

typedef struct parts {
	size_t control, slots, tracks, fixed_ends, board, landing, events, producers, rings, overflows;
	size_t ring_pages, overflow_pages, board_bytes;
} parts_t;

static size_t plan_parts(const kvl_core_sizes_t *s, parts_t *at)
{
	plan_t p = {(size_t)sysconf(_SC_PAGESIZE), 0};
	plan_t one = p;
	at->board_bytes = sizeof(kvl_board_header_t) + (size_t)s->leases * sizeof(kvl_row_t);
	at->control = plan_part(&p, sizeof(kvl_control_t));
	at->slots = plan_part(&p, (uint64_t)s->leases * sizeof(kvl_slot_t));
	at->tracks = plan_part(&p, (uint64_t)s->tracks * sizeof(kvl_track_slot_t));
	at->fixed_ends = plan_part(&p, (uint64_t)s->leases * sizeof(uint64_t));
	at->board = plan_part(&p, at->board_bytes);
	at->landing = plan_part(&p, s->landing_bytes);
	at->events = plan_part(&p, kvl_ring_bytes(s->events_bytes));
	at->producers = plan_part(&p, (uint64_t)s->producers * sizeof(struct kvl_producer));
	plan_part(&one, kvl_ring_bytes(s->ring_bytes));
	at->ring_pages = one.bytes;
	one.bytes = 0;
	plan_part(&one, kvl_ring_bytes(s->overflow_bytes));
	at->overflow_pages = one.bytes;
	at->rings = plan_part(&p, (uint64_t)s->producers * at->ring_pages);
	at->overflows = plan_part(&p, (uint64_t)s->producers * at->overflow_pages);
	return p.bytes;
}

/* Untouched pages cost nothing, so generous limits are free. A child of a fork gets none of it: it may not use it, and
 * copy-on-write would move pages under the transport's feet. */
static int32_t map_arena(kvl_ctx_t *ctx, parts_t *at)
{
	ctx->arena_bytes = plan_parts(&ctx->sizes, at);
	ctx->arena = mmap(NULL, ctx->arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (ctx->arena == MAP_FAILED) {
		ctx->arena = NULL;
		return kvl_fail(KVL_ERR_NOMEM, "cannot map %zu bytes: %s", ctx->arena_bytes, strerror(errno));
	}
	madvise(ctx->arena, ctx->arena_bytes, MADV_DONTFORK);
	/* Peers read the board at any time and the landing rows arrive at any time; a page fault would only delay them. */
	mlock(ctx->arena + at->board, at->board_bytes); /* best effort: `ulimit -l` may forbid it */
	if (ctx->sizes.landing_bytes != 0)
		mlock(ctx->arena + at->landing, ctx->sizes.landing_bytes);
	return KVL_OK;
}

static int32_t make_producers(kvl_ctx_t *ctx, const parts_t *at, uint8_t **rings, uint8_t **overflows)
{
	const kvl_core_sizes_t *s = &ctx->sizes;
	for (uint32_t i = 0; i < s->producers; i++) {
		struct kvl_producer *p = &ctx->producers[i];
		rings[i] = ctx->arena + at->rings + i * at->ring_pages;
		overflows[i] = ctx->arena + at->overflows + i * at->overflow_pages;
		if (!kvl_ring_format(rings[i], at->ring_pages, s->ring_bytes) ||
		    !kvl_ring_format(overflows[i], at->overflow_pages, s->overflow_bytes) ||
		    !kvl_ring_producer_init(&p->ring, rings[i], at->ring_pages) ||
		    !kvl_ring_producer_init(&p->overflow, overflows[i], at->overflow_pages))
			return kvl_fail(KVL_ERR_NOMEM, "producer %u: its rings cannot be made", i);
		p->magic = KVL_PRODUCER_MAGIC;
		p->index = i;
		p->ctx = ctx;
		p->track_list = KVL_NONE;
		p->said_tail = UINT64_MAX; /* no tail is: nothing was said yet */
	}
	return KVL_OK;
}

/* The first era is made here; the core makes the later ones. */
static int32_t make_control(kvl_ctx_t *ctx, const uint64_t random[3])
{
	kvl_control_t *c = ctx->control;
	c->magic = CONTROL_MAGIC;
	c->version = KVL_LAYOUT_VERSION;
	c->lease_free = c->track_free = KVL_NONE;
	c->secret[0] = random[0];
	c->secret[1] = random[1];
	c->epoch = random[2] | 1;
	c->era = 2;
	c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	c->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->wake_fd < 0 || c->event_fd < 0)
		return kvl_fail(KVL_ERR_NOMEM, "eventfd: %s", strerror(errno));
	return KVL_OK;
}

static int32_t make_memory(kvl_ctx_t *ctx, kvl_core_args_t *args, uint8_t **rings, uint8_t **overflows)
{
	uint64_t random[4];
	parts_t at;
	int32_t st = map_arena(ctx, &at);
	if (st != KVL_OK)
		return st;
	if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
		return kvl_fail(KVL_ERR_NOMEM, "getrandom: %s", strerror(errno));
	ctx->control = (kvl_control_t *)(void *)(ctx->arena + at.control);
	ctx->slots = (kvl_slot_t *)(void *)(ctx->arena + at.slots);
	ctx->tracks = (kvl_track_slot_t *)(void *)(ctx->arena + at.tracks);
	ctx->fixed_ends = (uint64_t *)(void *)(ctx->arena + at.fixed_ends);
	ctx->board = ctx->arena + at.board;
	ctx->producers = (struct kvl_producer *)(void *)(ctx->arena + at.producers);
	ctx->lease_list = KVL_NONE;
	if ((st = make_control(ctx, random)) != KVL_OK || (st = make_producers(ctx, &at, rings, overflows)) != KVL_OK)
		return st;
	if (!kvl_ring_format(ctx->arena + at.events, kvl_ring_bytes(ctx->sizes.events_bytes), ctx->sizes.events_bytes) ||
	    !kvl_ring_consumer_init(&ctx->events, ctx->arena + at.events, kvl_ring_bytes(ctx->sizes.events_bytes)))
		return kvl_fail(KVL_ERR_NOMEM, "the completion ring cannot be made");
	args->epoch = ctx->control->epoch;
	args->base = random[3] >> 2;
	args->control = ctx->control;
	args->slots = ctx->slots;
	args->tracks = ctx->tracks;
	args->board = ctx->board;
	args->landing = ctx->arena + at.landing;
	args->events = ctx->arena + at.events;
	args->rings = rings;
	args->overflows = overflows;
	args->secret[0] = ctx->control->secret[0];
	args->secret[1] = ctx->control->secret[1];
	return KVL_OK;
}

static void destroy(kvl_ctx_t *ctx)
{
	kvl_wait_close(ctx);
	if (ctx->control != NULL) {
		if (ctx->control->wake_fd >= 0)
			close(ctx->control->wake_fd);
		if (ctx->control->event_fd >= 0)
			close(ctx->control->event_fd);
	}
	if (ctx->arena != NULL)
		munmap(ctx->arena, ctx->arena_bytes);
	free(ctx->params_info);
}

/* Closed contexts: a call that comes late finds out what has become of its handle, and no other context ever has its address. */
static kvl_ctx_t *closed_contexts; /* atomic */
_Static_assert(sizeof(kvl_ctx_t) <= 512, "what stays of each, as ABI.md says");

static void keep_closed(kvl_ctx_t *ctx)
{
	ctx->closed = KVL_LOAD(&closed_contexts, RELAXED);
	while (!__atomic_compare_exchange_n(&closed_contexts, &ctx->closed, ctx, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
	}
}

/* ---- open ---- */

typedef struct opening {
	const char *config;
	size_t len;
	kvl_early_t early;
	kvl_ctx_t *ctx; /* out */
	char text[KVL_ERR_TEXT];
} opening_t;

/* The part of the transfer parameters that is the same for all leases, without its braces. */
static int32_t fetch_info(kvl_ctx_t *ctx)
{
	uint64_t len = 0;
	size_t from = 0, to;
	char *info;
	int32_t st = kvl_core.params_info(ctx->core, NULL, 0, &len);
	if (st != KVL_ERR_SPACE || len < 2 || len > INFO_MAX)
		return kvl_fail(st == KVL_OK || st == KVL_ERR_SPACE ? KVL_ERR_UNAVAILABLE : st, "the core gave no parameters");
	info = malloc(len);
	if (info == NULL)
		return kvl_fail(KVL_ERR_NOMEM, "no memory for the parameters");
	to = len;
	st = kvl_core.params_info(ctx->core, info, len, &len);
	while (to > 0 && (info[to - 1] == ' ' || info[to - 1] == '\n'))
		to--;
	while (from < to && info[from] == ' ')
		from++;
	if (st != KVL_OK || len < to || to - from < 2 || info[from] != '{' || info[to - 1] != '}') {
		free(info);
		return kvl_fail(KVL_ERR_UNAVAILABLE, "the core's parameters are not an object");
	}
	ctx->params_info_len = to - from - 2;
	memmove(info, info + from + 1, ctx->params_info_len);
	ctx->params_info = info;
	return KVL_OK;
}

static int32_t open_core(opening_t *o, kvl_ctx_t *ctx)
{
	kvl_core_args_t args = {
		.size = sizeof args, .abi = KVL_CORE_ABI, .config = o->config, .config_len = o->len};
	uint8_t **tables = calloc(ctx->sizes.producers, 2 * sizeof *tables);
	int32_t st;
	if (tables == NULL)
		return kvl_fail(KVL_ERR_NOMEM, "no memory for %u producers", ctx->sizes.producers);
	st = make_memory(ctx, &args, tables, tables + ctx->sizes.producers);
	if (st == KVL_OK) {
		kvl_error_text()[0] = 0;
		st = kvl_core.open(&args, &ctx->core, kvl_error_text(), KVL_ERR_TEXT);
	}
	free(tables); /* the core keeps the rings, not the table */
	if (st == KVL_OK && (st = fetch_info(ctx)) != KVL_OK)
		(void)kvl_core.close(ctx->core, 0, NULL, 0); /* nothing was registered: it has nothing to wait for */
	return st;
}

static int32_t open_context(opening_t *o)
{
	kvl_core_sizes_t sizes = {.size = sizeof sizes};
	kvl_ctx_t *ctx;
	int32_t st = kvl_core_load(&o->early, kvl_error_text(), KVL_ERR_TEXT);
	if (st != KVL_OK)
		return st;
	st = kvl_core.config(o->config, o->len, &sizes, kvl_error_text(), KVL_ERR_TEXT);
	if (st != KVL_OK)
		return st;
	if (!sizes_ok(&sizes))
		return kvl_fail(KVL_ERR_UNAVAILABLE, "the core does not fit this library: it asks for impossible sizes");
	if (posix_memalign((void **)&ctx, 128, sizeof *ctx) != 0)
		return kvl_fail(KVL_ERR_NOMEM, "no memory for a context");
	memset(ctx, 0, sizeof *ctx);
	ctx->sizes = sizes;
	ctx->epoll_fd = ctx->timer_fd = -1;
	ctx->nudge = sizes.pump ? KVL_NUDGE_PUMP : 0;
	ctx->boot_ns = (int64_t)(kvl_clock(CLOCK_BOOTTIME) - kvl_clock(CLOCK_MONOTONIC));
	st = open_core(o, ctx);
	if (st != KVL_OK) {
		destroy(ctx);
		free(ctx);
		return st;
	}
	KVL_STORE(&ctx->magic, KVL_CTX_MAGIC, RELEASE);
	o->ctx = ctx;
	return KVL_OK;
}

static int32_t open_job(void *arg) /* on the core's thread */
{
	opening_t *o = arg;
	int32_t st = open_context(o);
	memcpy(o->text, kvl_error_text(), sizeof o->text);
	return st;
}

static int32_t open_locked(opening_t *o)
{
	int32_t st = kvl_fork_arm();
	o->text[0] = 0;
	if (st != KVL_OK || (st = kvl_early_read(o->config, o->len, &o->early)) != KVL_OK)
		return st;
	st = kvl_on_core_thread(&o->early, open_job, o);
	if (st != KVL_OK && o->text[0] != 0)
		return kvl_fail(st, "%s", o->text);
	return st;
}

KVL_API int32_t kvl_open(const char *config, size_t len, kvl_ctx_t **ctx_out, char *err, size_t err_cap)
{
	opening_t o = {.config = config != NULL ? config : "", .len = len};
	int32_t st;
	if (KVL_UNLIKELY(*KVL_LOAD(&kvl_fork_word, ACQUIRE) == 0))
		st = kvl_fail_forked();
	else if ((config == NULL && len != 0) || len > 1u << 20)
		st = kvl_fail(KVL_ERR_INVALID, "config: is NULL or longer than 1 MiB");
	else if (ctx_out == NULL)
		st = kvl_fail(KVL_ERR_INVALID, "ctx_out: is NULL");
	else if (err == NULL && err_cap != 0)
		st = kvl_fail(KVL_ERR_INVALID, "err: is NULL");
	else {
		pthread_mutex_lock(&open_lock);
		st = open_locked(&o);
		pthread_mutex_unlock(&open_lock);
	}
	if (st != KVL_OK && err != NULL && err_cap != 0)
		snprintf(err, err_cap, "%s", kvl_last_error());
	if (st == KVL_OK)
		*ctx_out = o.ctx;
	return st;
}

/* ---- close ---- */

KVL_API int32_t kvl_close(kvl_ctx_t *ctx, uint64_t timeout_ns)
{
	static const struct timespec us100 = {0, 100000};
	int32_t st;
	KVL_ENTER(ctx);
	if (!kvl_call_begin(ctx, KVL_CALL_CLOSE))
		return kvl_fail_busy(ctx);
	if (!kvl_call_begin(ctx, KVL_CALL_STEP)) {
		kvl_call_end(ctx, KVL_CALL_CLOSE);
		return kvl_fail(KVL_ERR_BUSY, "a step runs");
	}
	kvl_error_text()[0] = 0;
	st = kvl_core.close(ctx->core, timeout_ns, kvl_error_text(), KVL_ERR_TEXT);
	if (st == KVL_OK) {
		/* None enters any more. Those that have entered leave, or find their place taken, for good. */
		KVL_STORE(&ctx->magic, KVL_CTX_CLOSED, RELEASE);
		for (int call = 0; call < KVL_CALLS; call++)
			while (call != KVL_CALL_CLOSE && call != KVL_CALL_STEP && !kvl_call_begin(ctx, (enum kvl_call)call))
				nanosleep(&us100, NULL);
		keep_closed(ctx);
		destroy(ctx);
		return KVL_OK;
	}
	kvl_call_end(ctx, KVL_CALL_STEP);
	kvl_call_end(ctx, KVL_CALL_CLOSE);
	if (st == KVL_ERR_TIMEOUT)
		st = KVL_ERR_BUSY;
	return kvl_core_said("the core cannot close now", st);
}
