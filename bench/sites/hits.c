/* A loop over a trace site, and over a function at whose entry an ordinary uprobe can stand. A line "site N" or "entry N" in, a line
 * of ns of processor time per call out. bench/sites/hits.py attaches to it between the lines. */
#include "../../cmd/libkvlease/sites/sites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

KVL_SITE_WORDS_HERE
KVL_SITE(step__begin)

/* Where an ordinary uprobe finds what most instructions are: one that the kernel has to step over. */
__attribute__((noinline)) void bench_entry(uint64_t a, uint64_t b, uint64_t c, uint64_t d);
void bench_entry(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	__asm__ volatile("lea 1(%%rdi), %%rax" : : "D"(a), "S"(b), "d"(c), "c"(d) : "rax");
}

static double now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(void)
{
	char what[16];
	uint64_t n;
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (scanf("%15s %lu", what, &n) == 2) {
		double from = now_ns();
		if (strcmp(what, "site") == 0) {
			for (uint64_t i = 0; i < n; i++)
				if (kvl_site_on(KVL_SITE_step__begin))
					kvl_site_step__begin(1, i, 3, 4);
		} else {
			for (uint64_t i = 0; i < n; i++)
				bench_entry(1, i, 3, 4);
		}
		if (printf("%.3f\n", (now_ns() - from) / (double)n) < 0) {
			perror("hits: write");
			return 1;
		}
	}
	return 0;
}
