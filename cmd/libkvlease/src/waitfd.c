/* kvl_wait_fd: one descriptor over the core's events, submissions and carriers that nobody steps for, and time. */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "internal.h"

/* Whether any producer has published what no step has taken. */
static int submitted(kvl_ctx_t *ctx)
{
	uint32_t n = KVL_LOAD(&ctx->producers_open, ACQUIRE);
	for (uint32_t i = 0; i < n; i++) {
		kvl_ring_header_t *ring = ctx->producers[i].ring.ring, *over = ctx->producers[i].overflow.ring;
		if (KVL_LOAD((uint64_t *)(void *)&ring->head, ACQUIRE) != KVL_LOAD((uint64_t *)(void *)&ring->tail, RELAXED) ||
		    KVL_LOAD((uint64_t *)(void *)&over->head, ACQUIRE) != KVL_LOAD((uint64_t *)(void *)&over->tail, RELAXED))
			return 1;
	}
	return 0;
}

/* Readable from CLOCK_BOOTTIME `when` on until set again; 0: never. */
void kvl_tick_at(kvl_ctx_t *ctx, uint64_t when)
{
	struct itimerspec t = {{0, 0}, {(time_t)(when / 1000000000u), (long)(when % 1000000000u)}};
	int saved = errno;
	if (ctx->timer_fd >= 0)
		timerfd_settime(ctx->timer_fd, TFD_TIMER_ABSTIME, &t, NULL);
	errno = saved;
}

/* Contexts of an engine with ranks hear of each other by the wake descriptor, which in inline mode no pump sleeps on. */
static int has_carriers(const kvl_ctx_t *ctx) { return ctx->sizes.role != KVL_ROLE_ENGINE && !ctx->sizes.pump; }

/* Before a step, also one that is refused: what a carrier brings from here on makes the descriptor readable again. */
void kvl_wake_heard(kvl_ctx_t *ctx)
{
	uint64_t count;
	int saved = errno;
	if (ctx->epoll_fd >= 0 && has_carriers(ctx) && read(ctx->control->wake_fd, &count, sizeof count) < 0)
		errno = saved; /* it was empty */
}

/* Before a step of inline mode: what is published from here on kicks again. */
void kvl_tick_before_step(kvl_ctx_t *ctx)
{
	uint32_t set = KVL_KICK_SET;
	if ((KVL_LOAD(&ctx->nudge, RELAXED) & KVL_NUDGE_LOOP) == 0)
		return;
	/* W2: kicked is cleared before the step looks at the rings; pairs with W1 in kvl_nudge. While a producer still sets the
	 * timer it is not: the setting would come behind the step that answers it, and the descriptor stay readable for nothing. */
	if (__atomic_compare_exchange_n(&ctx->kicked, &set, KVL_KICK_NONE, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		ctx->tick_stale = 1;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* After it: a tick while anything is held, since a transport announces nothing, and rest otherwise. */
void kvl_tick_after_step(kvl_ctx_t *ctx, uint64_t now)
{
	int held, more;
	if ((KVL_LOAD(&ctx->nudge, RELAXED) & KVL_NUDGE_LOOP) == 0)
		return;
	held = KVL_LOAD(&ctx->control->held, RELAXED) != 0;
	more = submitted(ctx); /* a step takes a bounded number of records */
	if (!more && !ctx->tick_stale && (held ? now < ctx->tick_due_ns : ctx->tick_due_ns == 0))
		return;
	ctx->tick_stale = 0;
	ctx->tick_due_ns = held ? now + ctx->sizes.idle_tick_ns : 0;
	kvl_tick_at(ctx, ctx->tick_due_ns);
	/* A producer that kicked before this had its setting overwritten: kick for it. One that comes later does it itself. */
	if (more || __atomic_load_n(&ctx->kicked, __ATOMIC_SEQ_CST) != KVL_KICK_NONE) {
		ctx->tick_stale = 1;
		kvl_tick_at(ctx, 1);
	}
	/* So had a kvl_poll whose report of a poisoning waits for this step: it looks again. A later one sets it itself. */
	if (KVL_UNLIKELY(__atomic_load_n(&ctx->control->poisoned, __ATOMIC_SEQ_CST)))
		kvl_event_signal(ctx);
}

/* Something was published for a loop that may wait: readable at once, by one system call a step. */
void kvl_tick_kick(kvl_ctx_t *ctx)
{
	uint32_t none = KVL_KICK_NONE;
	if (!__atomic_compare_exchange_n(&ctx->kicked, &none, KVL_KICK_BEGUN, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		return;
	kvl_tick_at(ctx, 1); /* long past */
	KVL_STORE(&ctx->kicked, KVL_KICK_SET, RELEASE);
}

static int32_t make(kvl_ctx_t *ctx)
{
	struct epoll_event ev = {.events = EPOLLIN};
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	int timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
	if (epoll < 0 || timer < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, ctx->control->event_fd, &ev) != 0 ||
	    epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &ev) != 0 ||
	    (has_carriers(ctx) && epoll_ctl(epoll, EPOLL_CTL_ADD, ctx->control->wake_fd, &ev) != 0)) {
		int32_t st = kvl_fail(KVL_ERR_NOMEM, "wait descriptor: %s", strerror(errno));
		if (epoll >= 0)
			close(epoll);
		if (timer >= 0)
			close(timer);
		return st;
	}
	ctx->timer_fd = timer;
	ctx->epoll_fd = epoll;
	return KVL_OK;
}

KVL_API int32_t kvl_wait_fd(kvl_ctx_t *ctx, int *fd_out)
{
	int32_t st = KVL_OK;
	KVL_ENTER(ctx);
	if (fd_out == NULL)
		return kvl_fail(KVL_ERR_INVALID, "fd_out: is NULL");
	/* Poll and step look at the descriptors: neither may be inside while they are made. */
	if (!kvl_call_begin(ctx, KVL_CALL_WAIT_FD))
		return kvl_fail_busy(ctx);
	if (ctx->epoll_fd < 0) {
		int polls = kvl_call_begin(ctx, KVL_CALL_POLL), steps = kvl_call_begin(ctx, KVL_CALL_STEP);
		if (!polls || !steps)
			st = kvl_fail_busy(ctx);
		else if ((st = make(ctx)) == KVL_OK && !ctx->sizes.pump) {
			kvl_tick_kick(ctx); /* the first wait ends at once: a step finds out whether there is work */
			__atomic_fetch_or(&ctx->nudge, KVL_NUDGE_LOOP, __ATOMIC_RELEASE);
		}
		if (steps)
			kvl_call_end(ctx, KVL_CALL_STEP);
		if (polls)
			kvl_call_end(ctx, KVL_CALL_POLL);
	}
	if (st == KVL_OK)
		*fd_out = ctx->epoll_fd;
	kvl_call_end(ctx, KVL_CALL_WAIT_FD);
	return st;
}

void kvl_wait_close(kvl_ctx_t *ctx)
{
	if (ctx->timer_fd >= 0)
		close(ctx->timer_fd);
	if (ctx->epoll_fd >= 0)
		close(ctx->epoll_fd);
}
