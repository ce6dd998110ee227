/* What a host may rely on: fork, signals, dlclose, environment, threads' signal masks, errors of loading. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "fakecore.h"

static const uint32_t ids[] = {1};
static const kvl_blocks_t blocks = {ids, 1, 0};

/* Runs fn in a child; the child must end by itself within 10 s. */
static void in_child(void (*fn)(void))
{
	int status;
	pid_t child;
	fflush(stdout);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		alarm(10);
		fn();
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static kvl_ctx_t *ctx;
static kvl_producer_t *p;

/* Every function that touches a context. kvl_params_read, the versions and the names work on what they are given, and go
 * on working. */
static void child_is_refused_everywhere(void)
{
	kvl_grant_t g = grant_of("r", &blocks, 1, 0);
	kvl_remote_t r = remote_of("r");
	kvl_read_t read = {sizeof read, 1, &blocks, &blocks};
	kvl_region_t region = {.addr = 4096, .bytes = 1, .block_len = 1, .block_stride = 1, .blocks = 1};
	kvl_engine_desc_t desc = {.size = sizeof desc, .ranks = 1, .engine_id = str("P")};
	kvl_event_t ev;
	kvl_ctx_t *other = NULL;
	kvl_producer_t *q = NULL;
	kvl_lease_t l = 0;
	kvl_track_t t = 0;
	kvl_engine_t e = 0;
	char buf[64], err[64] = "";
	size_t len;
	int fd;
	const int32_t got[] = {
		kvl_open("{}", 2, &other, err, sizeof err),
		kvl_close(ctx, 0),
		kvl_drain(ctx, 0),
		kvl_producer_open(ctx, &q),
		kvl_register(ctx, &region, sizeof(kvl_region_t), 1),
		kvl_unregister(ctx),
		kvl_engine_add(ctx, &desc, &e),
		kvl_engine_remove(ctx, 1),
		kvl_engine_handshake(ctx, 1, 0, str("map")),
		kvl_handshake_get(ctx, 0, buf, sizeof buf, &len),
		kvl_handshake_set(ctx, 0, str("map")),
		kvl_delta_take(ctx, 0, buf, KVL_DELTA_MIN, &len),
		kvl_delta_put(ctx, 0, str("delta")),
		kvl_delta_lost(ctx, 0),
		kvl_expect(p, str("r"), &l),
		kvl_grant(p, &g, &l),
		kvl_cancel(p, 1ull << 32),
		kvl_revoke(p, 1ull << 32),
		kvl_pressure(p, 1),
		kvl_params(ctx, 1ull << 32, &g, buf, sizeof buf, &len),
		kvl_params_key(ctx, 1ull << 32, buf, sizeof buf, &len),
		kvl_track(p, 1, &r, str("l"), 0, &t),
		kvl_untrack(p, 1ull << 32),
		kvl_reject(p, 1, &r),
		kvl_read(p, 1ull << 32, &read),
		kvl_step(ctx),
		kvl_step_long(ctx),
		kvl_pass(ctx),
		kvl_pause(ctx, 1),
		kvl_poll(ctx, &ev, sizeof ev, 1),
		kvl_wait_fd(ctx, &fd),
		kvl_fence_all(ctx),
		kvl_stats(ctx, buf, sizeof buf, &len),
		kvl_config_json(ctx, buf, sizeof buf, &len),
		kvl_metrics_text(ctx, buf, sizeof buf, &len),
		kvl_log_take(ctx, buf, sizeof buf, &len),
		kvl_metrics_listen(ctx, ":0", NULL),
	};
	for (size_t i = 0; i < sizeof got / sizeof *got; i++)
		CHECK_STATUS(got[i], KVL_ERR_FORKED); /* shows C70.1 */
	CHECK(strstr(err, "fork") != NULL && strstr(kvl_last_error(), "fork") != NULL);
	CHECK(strcmp(kvl_version(), "0.1.0") == 0);
}

/* Not even as pages that copy on write: the parent's next store would move them away from under a NIC. */
static void child_has_none_of_the_memory(void)
{
	unsigned char page;
	errno = 0;
	CHECK(mincore(fake_last()->args.board, 1, &page) == -1 && errno == ENOMEM);
}

static void child_opens_its_own(void)
{
	kvl_ctx_t *mine = open_ctx("{}");
	CHECK_STATUS(kvl_step(mine), KVL_OK);
	CHECK_STATUS(kvl_close(mine, 0), KVL_OK);
}

static void before_the_first_open_a_fork_is_harmless(void) { in_child(child_opens_its_own); }

static void a_child_is_told_at_once_by_every_function(void)
{
	kvl_event_t ev;
	ctx = open_ctx("{}");
	p = open_producer(ctx);
	in_child(child_is_refused_everywhere);
	in_child(child_has_none_of_the_memory);
	CHECK_STATUS(kvl_step(ctx), KVL_OK); /* the parent's context is untouched */
	CHECK_EQ(fake_last()->log_n, 0);
	CHECK_EQ(kvl_poll(ctx, &ev, sizeof ev, 1), 0);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
	in_child(child_is_refused_everywhere); /* and after the close still no new one in a child */
}

static volatile sig_atomic_t caught;
static void on_signal(int sig) { caught = sig; }

static void handlers_and_masks_of_the_host_stay(void)
{
	static const int sigs[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD, SIGPIPE, SIGSEGV, SIGALRM};
	struct sigaction sa = {.sa_handler = on_signal}, now;
	sigset_t before, after;
	kvl_ctx_t *c;
	for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++)
		sigaction(sigs[i], &sa, NULL);
	pthread_sigmask(SIG_SETMASK, NULL, &before);
	c = open_ctx("{}");
	pthread_sigmask(SIG_SETMASK, NULL, &after);
	for (int sig = 1; sig < 65; sig++)
		CHECK_EQ(sigismember(&before, sig), sigismember(&after, sig));
	for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++) {
		sigaction(sigs[i], NULL, &now);
		CHECK(now.sa_handler == on_signal);
	}
	for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++) {
		raise(sigs[i]);
		CHECK_EQ(caught, sigs[i]);
	}
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);
	for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++)
		signal(sigs[i], SIG_DFL);
}

static void the_environment_is_as_before(void)
{
	kvl_ctx_t *c;
	unsetenv("GOMAXPROCS"); /* of whoever runs the test */
	c = open_ctx("{\"threads\":3}");
	CHECK(getenv("GOMAXPROCS") == NULL);
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);
}

static void hooks_leave_errno_alone(void)
{
	kvl_ctx_t *c = open_ctx("{\"pump\":1}");
	kvl_producer_t *q = open_producer(c);
	kvl_remote_t r = remote_of("r");
	kvl_track_t t;
	int wake = fake_last()->args.control->wake_fd;
	const uint64_t full = UINT64_MAX - 1;
	CHECK(write(wake, &full, sizeof full) == sizeof full); /* the next write fails with EAGAIN */
	fake_last()->args.control->asleep = KVL_SLEEPS;
	errno = 77;
	CHECK_STATUS(kvl_track(q, 1, &r, str(""), 0, &t), KVL_OK);
	CHECK_EQ(errno, 77);
	CHECK_STATUS(kvl_fence_all(c), KVL_OK);
	CHECK_EQ(errno, 77);
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);
}

static void *misses_one_error(void *arg)
{
	(void)arg;
	CHECK(strcmp(kvl_last_error(), "") == 0); /* another thread's error is not ours */
	CHECK_STATUS(kvl_step(NULL), KVL_ERR_INVALID);
	return (void *)kvl_last_error();
}

static void errors_are_per_thread(void)
{
	pthread_t t;
	CHECK_STATUS(kvl_step(NULL), KVL_ERR_INVALID);
	pthread_create(&t, NULL, misses_one_error, NULL);
	pthread_join(t, NULL);
	CHECK(strstr(kvl_last_error(), "ctx") != NULL);
}

int main(void)
{
	RUN(before_the_first_open_a_fork_is_harmless);
	RUN(the_environment_is_as_before);
	RUN(a_child_is_told_at_once_by_every_function);
	RUN(handlers_and_masks_of_the_host_stay);
	RUN(hooks_leave_errno_alone);
	RUN(errors_are_per_thread);
	return 0;
}
