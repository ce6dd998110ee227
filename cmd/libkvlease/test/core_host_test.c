/* The host rules over the real core, which brings a Go runtime into the process. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static kvl_ctx_t *ctx;

static void a_child_of_a_fork_is_told_and_does_not_hang(void)
{
	int status;
	pid_t child = fork();
	if (child == 0) {
		kvl_ctx_t *mine = NULL;
		kvl_event_t ev;
		char err[64];
		alarm(10);
		_exit(kvl_step(ctx) != KVL_ERR_FORKED || kvl_poll(ctx, &ev, sizeof ev, 1) != KVL_ERR_FORKED ||
		      kvl_close(ctx, 0) != KVL_ERR_FORKED || kvl_open("{}", 2, &mine, err, sizeof err) != KVL_ERR_FORKED);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
}

static volatile sig_atomic_t caught;
static void on_signal(int sig) { caught = sig; }

static void signals_of_the_host_reach_the_host(void)
{
	static const int sigs[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD, SIGALRM};
	for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++) {
		struct sigaction now;
		sigaction(sigs[i], NULL, &now);
		CHECK(now.sa_handler == on_signal); /* set before the core was loaded */
		for (int k = 0; k < 50; k++) {
			caught = 0;
			kill(getpid(), sigs[i]); /* to any thread that lets it in: only the host's does */
			CHECK_EQ(caught, sigs[i]);
		}
	}
}

/* Go's threads run on the process's CPUs, though this thread, which opened the context, is pinned to one. */
static void the_core_is_not_pinned_with_the_thread_that_opened_it(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *d;
	cpu_set_t mine, theirs;
	int others = 0;
	CHECK(tasks != NULL);
	sched_getaffinity(0, sizeof mine, &mine);
	while ((d = readdir(tasks)) != NULL) {
		pid_t tid = (pid_t)atoi(d->d_name);
		if (tid <= 0 || tid == gettid() || tid == getpid())
			continue;
		CHECK(sched_getaffinity(tid, sizeof theirs, &theirs) == 0);
		CHECK(CPU_COUNT(&theirs) > CPU_COUNT(&mine));
		others++;
	}
	closedir(tasks);
	CHECK(others >= 2);
}

/* A crash handler closes the rows while the pump runs: every lease is told once, and the context can be closed. */
static void a_fenced_context_tells_every_end_and_closes(void)
{
	static const uint32_t ids[] = {1, 2};
	const kvl_blocks_t blocks = {ids, 2, 0};
	kvl_ctx_t *c = open_ctx("{\"transport\":\"loopback\",\"drive\":\"pump\",\"kv_lease_duration\":2,"
				"\"allow_short_leases\":true,\"step_max\":0.1}");
	kvl_producer_t *p = open_producer(c);
	kvl_lease_t lease[3];
	kvl_event_t ev;
	int freed = 0, poisoned = 0;
	uint64_t end = boot_ns() + 10000000000u;
	for (uint64_t i = 0; i < 3; i++) {
		char id[8];
		snprintf(id, sizeof id, "r%d", (int)i);
		kvl_grant_t g = grant_of(id, &blocks, 1, i);
		CHECK_STATUS(kvl_grant(p, &g, &lease[i]), KVL_OK);
	}
	CHECK_STATUS(kvl_fence_all(c), KVL_OK);
	while ((freed < 3 || poisoned == 0) && boot_ns() < end) {
		const struct timespec ms = {0, 1000000};
		if (kvl_poll(c, &ev, sizeof ev, 1) != 1) {
			nanosleep(&ms, NULL);
			continue;
		}
		poisoned += ev.kind == KVL_EV_POISONED;
		if (ev.kind == KVL_EV_FREED) {
			CHECK(ev.status == KVL_FREED_POISONED && ev.user < 3 && ev.handle == lease[ev.user] && ev.value0 == 2);
			lease[ev.user] = 0;
			freed++;
		}
	}
	CHECK(freed == 3 && poisoned == 1);
	CHECK_EQ(kvl_poll(c, &ev, sizeof ev, 1), 0);
	CHECK_STATUS(kvl_pass(c), KVL_ERR_POISONED);
	CHECK_STATUS(kvl_close(c, 1000000000), KVL_OK);
}

static int entries(const char *folder)
{
	DIR *d = opendir(folder);
	int n = 0;
	CHECK(d != NULL);
	while (readdir(d) != NULL)
		n++;
	closedir(d);
	return n;
}

static long resident_mib(void)
{
	FILE *f = fopen("/proc/self/statm", "r");
	long all, pages;
	CHECK(f != NULL && fscanf(f, "%ld %ld", &all, &pages) == 2);
	fclose(f);
	return pages * (sysconf(_SC_PAGESIZE) >> 10) >> 10;
}

/* A context over loopback takes about 50 MiB of the core's heap. */
static void closed_contexts_give_everything_back(void)
{
	int fds = entries("/proc/self/fd");
	long before = resident_mib(), after = 0;
	uint64_t end = boot_ns() + 20000000000u;
	for (int i = 0; i < 20; i++)
		CHECK_STATUS(kvl_close(open_ctx(i % 2 == 0 ? "{\"transport\":\"loopback\"}"
							   : "{\"transport\":\"loopback\",\"drive\":\"pump\"}"),
				       1000000000),
			     KVL_OK);
	CHECK_EQ(entries("/proc/self/fd"), fds);
	while ((after = resident_mib()) > before + 100 && boot_ns() < end) { /* the core collects on a thread of its own */
		const struct timespec ms10 = {0, 10000000};
		nanosleep(&ms10, NULL);
	}
	printf("  %ld MiB before, %ld after\n", before, after);
	CHECK(after <= before + 100);
}

static void *host(void *arg)
{
	cpu_set_t all, one;
	int pin;
	(void)arg;
	sched_getaffinity(0, sizeof all, &all);
	pin = CPU_COUNT(&all) > 1;
	CPU_ZERO(&one);
	for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
		if (CPU_ISSET(cpu, &all))
			CPU_SET(cpu, &one);
	pthread_setaffinity_np(pthread_self(), sizeof one, &one);
	ctx = open_ctx("{\"transport\":\"loopback\",\"threads\":2}");
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	if (pin)
		RUN(the_core_is_not_pinned_with_the_thread_that_opened_it);
	else
		printf("skipped: one CPU, nothing to pin\n");
	return NULL;
}

int main(void)
{
	struct sigaction sa = {.sa_handler = on_signal};
	static const int sigs[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD, SIGALRM};
	pthread_t t;
	for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++)
		sigaction(sigs[i], &sa, NULL);
	pthread_create(&t, NULL, host, NULL);
	pthread_join(t, NULL);
	RUN(signals_of_the_host_reach_the_host);
	for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++)
		signal(sigs[i], SIG_DFL);
	RUN(a_fenced_context_tells_every_end_and_closes);
	RUN(a_child_of_a_fork_is_told_and_does_not_hang);
	RUN(closed_contexts_give_everything_back);
	CHECK_STATUS(kvl_close(ctx, 1000000000), KVL_OK);
	return 0;
}
