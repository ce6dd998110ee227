/* kvl_open in a process that is short of something: an answer, where the Go runtime alone would end the process. */
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1 /* the shadow takes terabytes of address space, and threads */
#else
#define SANITIZED 0
#endif

/* What kvl_open says in a child with the limit, as a status; an exit by a signal is no answer. */
static void open_short_of(int limit, rlim_t value, int32_t want, const char *text)
{
	static const char config[] = "{\"transport\":\"loopback\"}";
	int status;
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		kvl_ctx_t *ctx = NULL;
		char err[256] = "";
		const struct rlimit l = {value, value};
		int32_t st;
		/* root has no limit of processes; the core's file is not looked at, so it may be root's alone */
		if (limit == RLIMIT_NPROC && geteuid() == 0 && setuid(54321) != 0)
			_exit(77);
		for (int fd = 3; fd < 1024; fd++) /* only the standard three count */
			close(fd);
		CHECK(setrlimit((__rlimit_resource_t)limit, &l) == 0);
		st = kvl_open(config, strlen(config), &ctx, err, sizeof err);
		if (st != KVL_OK)
			printf("  %s: %s\n", kvl_status_name(st), err);
		CHECK_STATUS(st, want);
		CHECK(strstr(err, text) != NULL);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		printf("  skipped: root may not become another user here\n");
	else
		CHECK_EQ(status, 0);
}

static void too_few_descriptors_are_an_error(void)
{
	for (rlim_t n = 5; n < 3 + 8; n++)
		open_short_of(RLIMIT_NOFILE, n, KVL_ERR_NOMEM, "descriptors");
}

static void too_little_address_space_is_an_error(void)
{
	for (rlim_t mib = 200; mib <= 1800; mib += 400)
		open_short_of(RLIMIT_AS, mib << 20, KVL_ERR_NOMEM, "address space");
}

static void too_few_threads_are_an_error(void)
{
	for (rlim_t n = 3; n <= 5; n++)
		open_short_of(RLIMIT_NPROC, n, KVL_ERR_NOMEM, "thread"); /* even the first, if this user runs more than that */
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	RUN(too_few_descriptors_are_an_error);
	if (!SANITIZED) {
		RUN(too_little_address_space_is_an_error);
		RUN(too_few_threads_are_an_error);
	}
	return 0;
}
