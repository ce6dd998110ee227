/* What linking kvlease costs its host, beside a raw NIXL agent and beside nothing: one round, as "name value" lines.
 *
 * usage: guest [MODE...]: some of none, nixl, loopback, inline, pump; all of them unless said
 *
 * Each is a process of its own, forked before anything of Go or NIXL is loaded: an engine with 16 MiB of blocks, which holds HELD
 * leases if it has kvlease, and sleeps between passes of 30 ms. nixl is an agent with the settings of ours over the same memory.
 */
#include "../pair/pair.h"
#include "../pair/raw.h"

#include <stdbool.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { BLOCK = 4096, BLOCKS = 4096, HELD = 1000, PASS_NS = 30000000, PASSES = 40, LOADS = 2000000 };

static kvl_ctx_t *ctx;
static kvl_producer_t *producer;
static bool inline_drive;

static void open_kvlease(const char *transport, const char *drive, void *kv)
{
	char config[256], err[1024] = "";
	snprintf(config, sizeof config, "{\"engine_id\":\"guest\",\"transport\":\"%s\",\"drive\":\"%s\",\"kv_lease_duration\":600}", transport, drive);
	if (kvl_open(config, strlen(config), &ctx, err, sizeof err) != KVL_OK)
		die("kvl_open: %s", err);
	kvl_region_t region = {.addr = (uint64_t)(uintptr_t)kv, .bytes = (uint64_t)BLOCK * BLOCKS, .block_len = BLOCK, .block_stride = BLOCK, .blocks = BLOCKS, .group = -1};
	must(kvl_register(ctx, &region, sizeof(kvl_region_t), 1), "kvl_register");
	must(kvl_producer_open(ctx, &producer), "kvl_producer_open");
	inline_drive = strcmp(drive, "inline") == 0;
}

/* What an engine does in a pass as far as kvlease sees it. */
static void pass(void)
{
	kvl_event_t events[64];
	if (ctx == NULL)
		return;
	must(inline_drive ? kvl_step(ctx) : kvl_pass(ctx), "pass");
	while (kvl_poll(ctx, events, sizeof events[0], 64) > 0) {
	}
}

static void hold(void)
{
	for (uint32_t i = 0; ctx != NULL && i < HELD; i++) {
		char id[32];
		uint32_t block = i % BLOCKS;
		kvl_lease_t lease;
		kvl_blocks_t group = {&block, 1, 0};
		kvl_grant_t grant = {.size = sizeof grant, .id = {id, (size_t)snprintf(id, sizeof id, "request-%08u", i)}, .groups = &group, .groups_n = 1, .tokens = 16};
		must(kvl_grant(producer, &grant, &lease), "kvl_grant");
	}
}

/* A line of /proc/self/status in its own unit. */
static double status_of(const char *key)
{
	char line[256];
	double value = -1;
	FILE *f = fopen("/proc/self/status", "r");
	while (f != NULL && fgets(line, sizeof line, f) != NULL)
		if (strncmp(line, key, strlen(key)) == 0)
			value = atof(line + strlen(key));
	if (f != NULL)
		fclose(f);
	if (value < 0)
		die("no %s in /proc/self/status", key);
	return value;
}

/* Context switches and processor time in ns of all threads. */
static void used(double *switches, double *cpu)
{
	struct rusage u;
	if (getrusage(RUSAGE_SELF, &u) != 0)
		die("getrusage");
	*switches = (double)(u.ru_nvcsw + u.ru_nivcsw);
	*cpu = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e9 + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e3;
}

static void say_of(const char *mode, const char *what, double value)
{
	char name[64];
	snprintf(name, sizeof name, "guest.%s.%s", mode, what);
	say(name, value);
}

static void passes(const char *mode)
{
	double switches[2], cpu[2];
	used(&switches[0], &cpu[0]);
	uint64_t start = now_ns();
	for (int i = 0; i < PASSES; i++) {
		sleep_ns(PASS_NS);
		pass();
	}
	double took = (double)(now_ns() - start);
	used(&switches[1], &cpu[1]);
	say_of(mode, "switches", (switches[1] - switches[0]) / took * 1e9);
	say_of(mode, "cpu", 100 * (cpu[1] - cpu[0]) / took);
}

/* A chain of dependent loads through 64 MiB, in random order: what waits for memory, and suffers from whoever takes caches and cores. */
static void neighbour(const char *mode)
{
	static const uint32_t n = 64 << 20 >> 6; /* cache lines */
	uint64_t(*line)[8] = mmap(NULL, (size_t)n << 6, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (line == MAP_FAILED)
		die("no memory");
	for (uint32_t i = 0; i < n; i++)
		line[i][0] = i;
	uint64_t seed = 1;
	for (uint32_t i = n - 1; i > 0; i--) { /* Sattolo: one cycle through all */
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		uint32_t k = (uint32_t)((seed >> 33) % i);
		uint64_t t = line[i][0];
		line[i][0] = line[k][0];
		line[k][0] = t;
	}
	uint64_t at = 0, start = now_ns(), next = start + PASS_NS;
	for (int i = 0; i < LOADS; i++) {
		at = line[at][0];
		if (i % 10000 == 0 && now_ns() >= next) {
			pass();
			next += PASS_NS;
		}
	}
	say_of(mode, "load", (double)(now_ns() - start) / LOADS);
	if (at >= n)
		die("the chain has left its memory");
	munmap(line, (size_t)n << 6);
}

static void measure(const char *mode)
{
	void *kv = mmap(NULL, (size_t)BLOCK * BLOCKS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (kv == MAP_FAILED)
		die("no memory");
	double rss = status_of("VmRSS:");
	uint64_t start = now_ns();
	if (strcmp(mode, "nixl") == 0)
		raw_open("guest", kv, (size_t)BLOCK * BLOCKS);
	else if (strcmp(mode, "loopback") == 0)
		open_kvlease("loopback", "pump", kv);
	else if (strcmp(mode, "none") != 0)
		open_kvlease("nixl", mode, kv);
	say_of(mode, "open", (double)(now_ns() - start));
	hold();
	for (int i = 0; i < 10; i++) {
		sleep_ns(PASS_NS);
		pass();
	}
	say_of(mode, "rss", (status_of("VmRSS:") - rss) * 1024);
	say_of(mode, "threads", status_of("Threads:"));
	passes(mode);
	neighbour(mode);
}

int main(int argc, char **argv)
{
	static char *all[] = {"none", "nixl", "loopback", "inline", "pump"};
	char **modes = argc > 1 ? argv + 1 : all;
	int n = argc > 1 ? argc - 1 : 5, status;
	for (int i = 0; i < n; i++) {
		pid_t child = fork();
		if (child == 0) {
			measure(modes[i]);
			_exit(0); /* what opened stays open: a close is not measured */
		}
		if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
			die("%s has failed", modes[i]);
	}
	return 0;
}
