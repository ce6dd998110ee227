/* Loading libkvlease-core.so: where it is, with which threads, and its symbols. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "internal.h"
#include "json.h"
#include "whole.h"

kvl_core_hooks_t kvl_core;
static int loaded; /* under the open lock */

#define CORE_FILE "libkvlease-core.so"

/* ---- what the configuration says about the core's threads ---- */

/* "0-3,8" into a set. */
static int read_cpus(const char *s, size_t len, cpu_set_t *set)
{
	size_t i = 0;
	CPU_ZERO(set);
	while (i < len) {
		unsigned long range[2] = {0, 0};
		for (int k = 0; k < 2; k++) {
			size_t from = i;
			for (; i < len && s[i] >= '0' && s[i] <= '9' && range[k] < CPU_SETSIZE; i++)
				range[k] = range[k] * 10 + (unsigned long)(s[i] - '0');
			if (i == from || range[k] >= CPU_SETSIZE)
				return 0;
			if (k == 0) {
				range[1] = range[0];
				if (i == len || s[i] != '-')
					break;
				i++;
				range[1] = 0;
			}
		}
		for (unsigned long cpu = range[0]; cpu <= range[1]; cpu++)
			CPU_SET(cpu, set);
		if (range[1] < range[0] || (i < len && (s[i++] != ',' || i == len)))
			return 0;
	}
	return 1;
}

/* Only the two keys are looked at here; everything else is the core's to judge. */
int32_t kvl_early_read(const char *config, size_t len, kvl_early_t *early_out)
{
	kvl_json_t j = kvl_json_over(config, len);
	char key[16], text[256];
	size_t n;
	uint64_t threads = 4;
	kvl_early_t early = {.threads = 4};
	int first = 1;
	if (kvl_json_peek(&j) == 0) { /* nothing but white space: all defaults */
		*early_out = early;
		return KVL_OK;
	}
	kvl_json_want(&j, '{');
	for (; j.bad == NULL && kvl_json_more(&j, first, '}'); first = 0) {
		n = kvl_json_string(&j, key, sizeof key);
		kvl_json_want(&j, ':');
		if (n == 7 && memcmp(key, "threads", 7) == 0) {
			threads = kvl_json_uint(&j, 1024);
			if (j.bad != NULL || threads < 2)
				return kvl_fail(KVL_ERR_CONFIG, "threads: a whole number from 2 on");
		} else if (n == 4 && memcmp(key, "cpus", 4) == 0) {
			n = kvl_json_string(&j, text, sizeof text);
			if (j.bad != NULL || n > sizeof text || !read_cpus(text, n, &early.cpus))
				return kvl_fail(KVL_ERR_CONFIG, "cpus: a list of CPUs like \"0,2-3\"");
			early.has_cpus = n != 0;
		} else {
			kvl_json_skip(&j, 1);
		}
	}
	if (j.bad == NULL && kvl_json_peek(&j) != 0)
		kvl_json_fail(&j, "something follows the object");
	if (j.bad != NULL)
		return kvl_fail(KVL_ERR_CONFIG, "configuration: %s", j.bad);
	early.threads = (uint32_t)threads;
	*early_out = early;
	return KVL_OK;
}

/* ---- the core's thread ---- */

struct job {
	int32_t (*fn)(void *arg);
	void *arg;
	cpu_set_t cpus;
	int named; /* cpus are the configuration's */
	int32_t result;
};

/* Go's threads are children of this one: they get its affinity and its signal mask. Signals of the host are left to the
 * host's threads; what the Go runtime needs for itself stays open. */
static void *run_job(void *arg)
{
	static const int open_signals[] = {SIGURG, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGPROF, SIGSYS};
	struct job *job = arg;
	sigset_t set;
	sigfillset(&set);
	for (size_t i = 0; i < sizeof open_signals / sizeof *open_signals; i++)
		sigdelset(&set, open_signals[i]);
	pthread_sigmask(SIG_SETMASK, &set, NULL);
	if (pthread_setaffinity_np(pthread_self(), sizeof job->cpus, &job->cpus) != 0 && job->named)
		job->result = KVL_ERR_CONFIG;
	else
		job->result = job->fn(job->arg);
	return NULL;
}

int32_t kvl_on_core_thread(const kvl_early_t *early, int32_t (*fn)(void *arg), void *arg)
{
	struct job job = {.fn = fn, .arg = arg, .cpus = early->cpus, .named = early->has_cpus, .result = KVL_ERR_NOMEM};
	pthread_t thread;
	int err;
	kvl_fail(KVL_ERR_CONFIG, "cpus: none of the list can be used");
	if (!early->has_cpus && sched_getaffinity(getpid(), sizeof job.cpus, &job.cpus) != 0) /* the main thread's */
		pthread_getaffinity_np(pthread_self(), sizeof job.cpus, &job.cpus);
	err = pthread_create(&thread, NULL, run_job, &job);
	if (err != 0)
		return kvl_fail(KVL_ERR_NOMEM, "a thread for the core: %s", strerror(err));
	pthread_join(thread, NULL);
	return job.result;
}

/* ---- the library ---- */

static int core_path(char *path, size_t cap)
{
	static const char anchor;
	const char *named = getenv("KVLEASE_CORE"), *slash;
	Dl_info self;
	int n;
	if (named != NULL && *named != 0)
		n = snprintf(path, cap, "%s", named);
	else if (dladdr(&anchor, &self) != 0 && (slash = strrchr(self.dli_fname, '/')) != NULL)
		n = snprintf(path, cap, "%.*s/" CORE_FILE, (int)(slash - self.dli_fname), self.dli_fname);
	else
		n = snprintf(path, cap, CORE_FILE);
	return n > 0 && (size_t)n < cap;
}

static const char *find_symbols(void *lib)
{
#define KVL_CORE_FIND(hook, symbol, args)                                                                              \
	if ((*(void **)&kvl_core.hook = dlsym(lib, "kvlgo_" symbol)) == NULL)                                          \
		return "kvlgo_" symbol;
	KVL_CORE_HOOKS(KVL_CORE_FIND)
#undef KVL_CORE_FIND
	return NULL;
}

int32_t kvl_core_load(const kvl_early_t *early, char *err, size_t cap)
{
	char path[4096];
	const char *missing;
	int32_t st;
	void *lib;
	if (loaded)
		return KVL_OK;
	if ((st = kvl_room_for_core(early->threads, err, cap)) != KVL_OK)
		return st;
	if (!core_path(path, sizeof path)) {
		snprintf(err, cap, "the path of " CORE_FILE " is too long");
		return KVL_ERR_UNAVAILABLE;
	}
	const char *unfit = kvl_unloadable(path);
	if (unfit != NULL) {
		snprintf(err, cap, "%s %s: install it again", path, unfit);
		return KVL_ERR_UNAVAILABLE;
	}
	lib = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	missing = lib != NULL ? find_symbols(lib) : NULL;
	if (lib == NULL) {
		const char *why = dlerror();
		snprintf(err, cap, "cannot load the core: %s", why != NULL ? why : path);
	} else if (missing != NULL) {
		snprintf(err, cap, "%s has no symbol %s", path, missing);
	} else {
		loaded = 1;
	}
	return loaded ? KVL_OK : KVL_ERR_UNAVAILABLE;
}
