/* The timer of kvl_wait_fd between a producer and a step, in the order in which two threads can meet there. */
#include <poll.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "check.h"
#include "../src/internal.h"

/* What waitfd.c calls of the rest of the library, and these tests do not. */
static const uint32_t forked = 1;
const volatile uint32_t *kvl_fork_word = &forked;
int32_t kvl_fail_forked(void) { return KVL_ERR_FORKED; }
int32_t kvl_fail_ctx(const kvl_ctx_t *ctx) { return ctx == NULL ? KVL_ERR_INVALID : KVL_ERR_CLOSED; }
int32_t kvl_fail_busy(const kvl_ctx_t *ctx) { return (void)ctx, KVL_ERR_BUSY; }
int32_t kvl_fail(int32_t status, const char *format, ...) { return format == NULL ? KVL_OK : status; }
void kvl_event_signal(kvl_ctx_t *ctx) { (void)ctx; }

static kvl_control_t control;
static kvl_ctx_t ctx;

/* What another thread does around the next setting of a timer. */
static void (*before_setting)(void), (*behind_setting)(void);

static void once(void (**what)(void))
{
	void (*f)(void) = *what;
	*what = NULL;
	if (f != NULL)
		f();
}

int timerfd_settime(int fd, int flags, const struct itimerspec *value, struct itimerspec *old)
{
	void (*behind)(void) = behind_setting;
	long rc;
	behind_setting = NULL;
	once(&before_setting);
	rc = syscall(SYS_timerfd_settime, fd, flags, value, old);
	once(&behind);
	return (int)rc;
}

static int readable(void)
{
	struct pollfd pf = {ctx.timer_fd, POLLIN, 0};
	return poll(&pf, 1, 0) == 1;
}

static void step(void)
{
	kvl_tick_before_step(&ctx);
	kvl_tick_after_step(&ctx, 1000);
}

static void begin(void)
{
	ctx = (kvl_ctx_t){.control = &control, .nudge = KVL_NUDGE_LOOP, .epoll_fd = -1};
	ctx.timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
	CHECK(ctx.timer_fd >= 0);
}

static void a_kick_wakes_until_a_step_answers_it(void)
{
	begin();
	kvl_tick_kick(&ctx);
	CHECK(readable());
	step();
	CHECK(!readable());
	kvl_tick_kick(&ctx);
	CHECK(readable());
	close(ctx.timer_fd);
}

/* A step comes between the producer's word that it kicks and its setting of the timer. */
static void a_kick_that_a_step_overtakes_wakes_once(void)
{
	begin();
	before_setting = step;
	kvl_tick_kick(&ctx);
	CHECK(readable());
	step();
	CHECK(!readable()); /* else a loop without work spins until the next submission */
	close(ctx.timer_fd);
}

/* A step answers the setting before the producer has said that it is done. */
static void a_kick_that_a_step_answers_early_wakes_once_more_at_most(void)
{
	begin();
	ctx.tick_stale = 1; /* of a kick before */
	behind_setting = step;
	kvl_tick_kick(&ctx);
	step();
	CHECK(!readable());
	kvl_tick_kick(&ctx);
	CHECK(readable());
	close(ctx.timer_fd);
}

int main(void)
{
	RUN(a_kick_wakes_until_a_step_answers_it);
	RUN(a_kick_that_a_step_overtakes_wakes_once);
	RUN(a_kick_that_a_step_answers_early_wakes_once_more_at_most);
	return 0;
}
