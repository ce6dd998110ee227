/* A process that runs through the sites of libraries as it is told: one command a line, one answer a line.
 *
 *   host LIBRARY...
 *   fire LIBRARY SITE A B C D    "on" if somebody was attached, else "off"
 *   elsewhere LIBRARY ...        the same on another thread
 *   steps LIBRARY N NS           N steps of context 1 that take about NS each, and the sum of what they took
 *   spans LIBRARY N NS           N reads of context 1, one after the other, the same way
 *   posts LIBRARY N              N reads that are never reported
 *   gaps LIBRARY N               a stall gap of 1 s in each of N contexts
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int fire_fn(uint32_t site, uint64_t a, uint64_t b, uint64_t c, uint64_t d);

enum { STEP_BEGIN = 2, STEP_END = 3, READ_POSTED = 9, READ_REPORTED = 12, STALL_GAP = 14 };

struct call {
	fire_fn *fire;
	uint64_t site, args[4];
	int on;
};

static void *call(void *arg)
{
	struct call *c = arg;
	c->on = c->fire((uint32_t)c->site, c->args[0], c->args[1], c->args[2], c->args[3]);
	return NULL;
}

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_BOOTTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t spin(uint64_t ns)
{
	uint64_t from = now(), at;
	while ((at = now()) - from < ns)
		;
	return at - from;
}

int main(int argc, char **argv)
{
	fire_fn *fires[8] = {0};
	int n = 0;
	for (; n < argc - 1 && n < 8; n++) {
		void *lib = dlopen(argv[n + 1], RTLD_NOW | RTLD_LOCAL);
		void *sym = lib ? dlsym(lib, "test_fire") : NULL;
		if (!sym) {
			fprintf(stderr, "host: %s\n", dlerror());
			return 1;
		}
		memcpy(&fires[n], &sym, sizeof(sym));
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("ready");
	char line[256], word[16];
	while (fgets(line, sizeof(line), stdin)) {
		uint64_t v[6] = {0};
		int got = sscanf(line, "%15s %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, word, &v[0], &v[1],
				 &v[2], &v[3], &v[4], &v[5]);
		if (got < 2 || v[0] >= (uint64_t)n) {
			puts("what?");
			continue;
		}
		fire_fn *fire = fires[v[0]];
		if (!strcmp(word, "fire") || !strcmp(word, "elsewhere")) {
			struct call c = {.fire = fire, .site = v[1], .args = {v[2], v[3], v[4], v[5]}};
			if (!strcmp(word, "fire")) {
				call(&c);
			} else {
				pthread_t thread;
				if (pthread_create(&thread, NULL, call, &c) || pthread_join(thread, NULL))
					return 1;
			}
			puts(c.on ? "on" : "off");
			continue;
		}
		uint64_t sum = 0;
		int step = !strcmp(word, "steps");
		for (uint64_t i = 0; i < v[1]; i++) {
			if (!strcmp(word, "posts")) {
				sum += (uint64_t)fire(READ_POSTED, 1, i, 77, 0);
				continue;
			}
			if (!strcmp(word, "gaps")) {
				sum += (uint64_t)fire(STALL_GAP, i + 1, 1000000000, 0, 0);
				continue;
			}
			fire(step ? STEP_BEGIN : READ_POSTED, 1, i, 77, 0);
			uint64_t took = spin(v[2]);
			fire(step ? STEP_END : READ_REPORTED, 1, i, 0, took);
			sum += took;
		}
		printf("%" PRIu64 "\n", sum);
	}
	return 0;
}
