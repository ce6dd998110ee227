/* What the hooks cost, with argument and fork check, over whatever core KVLEASE_CORE names; the loop steps in between,
 * outside the measured time. Prints the best and the median of 15 runs in ns per call. */
#include <stdlib.h>

#include "check.h"

enum { RUNS = 15, BATCH = 512, BATCHES = 64 };

static uint64_t mono(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

static void report(const char *what, double *runs)
{
	qsort(runs, RUNS, sizeof *runs, compare);
	printf("%-34s best %6.1f ns   median %6.1f ns\n", what, runs[0], runs[RUNS / 2]);
}

int main(void)
{
	kvl_ctx_t *ctx = open_ctx("{\"transport\":\"loopback\"}");
	kvl_producer_t *p = open_producer(ctx);
	const uint32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
	const kvl_blocks_t blocks = {ids, 8, 0};
	kvl_remote_t r = remote_of("chatcmpl-7fd5c2a1b3e84f0c9d6e5a4b3c2d1e0f");
	kvl_grant_t g = grant_of("chatcmpl-7fd5c2a1b3e84f0c9d6e5a4b3c2d1e0f", &blocks, 1, 0);
	const kvl_bytes_t local = str("local-0123456789");
	kvl_engine_desc_t desc = {.size = sizeof desc, .ranks = 1, .engine_id = str("P")};
	kvl_engine_t engine;
	double track[RUNS], untrack[RUNS], grant[RUNS], cancel[RUNS], poll[RUNS], step[RUNS], write[RUNS], read[RUNS];
	static kvl_track_t t[BATCH];
	static kvl_lease_t l[BATCH];
	kvl_event_t evs[64];
	kvl_remote_t got = {.size = sizeof got};
	static char text[4096];
	static uint64_t buf[512];
	size_t len, need;
	CHECK_STATUS(kvl_engine_add(ctx, &desc, &engine), KVL_OK);
	for (int run = 0; run < RUNS; run++) {
		uint64_t spent[4] = {0}, from, to;
		for (int batch = 0; batch < BATCHES; batch++) {
			from = mono();
			for (int i = 0; i < BATCH; i++)
				CHECK(kvl_track(p, engine, &r, local, 0, &t[i]) == KVL_OK);
			spent[0] += mono() - from;
			CHECK_STATUS(kvl_step(ctx), KVL_OK);
			from = mono();
			for (int i = 0; i < BATCH; i++)
				CHECK(kvl_untrack(p, t[i]) == KVL_OK);
			spent[1] += mono() - from;
			CHECK_STATUS(kvl_step(ctx), KVL_OK);
			from = mono();
			for (int i = 0; i < BATCH; i++)
				CHECK(kvl_grant(p, &g, &l[i]) == KVL_OK);
			spent[2] += mono() - from;
			CHECK_STATUS(kvl_step(ctx), KVL_OK);
			from = mono();
			for (int i = 0; i < BATCH; i++) {
				int32_t st = kvl_cancel(p, l[i]); /* the same id twice: all but the first have ended as duplicates */
				CHECK(st == KVL_OK || st == KVL_ERR_STALE);
			}
			spent[3] += mono() - from;
			for (int i = 0; i < 16; i++) {
				CHECK_STATUS(kvl_step(ctx), KVL_OK);
				while (kvl_poll(ctx, evs, sizeof *evs, 64) > 0)
					;
			}
		}
		from = mono();
		for (int i = 0; i < 100000; i++)
			CHECK(kvl_poll(ctx, evs, sizeof *evs, 64) == 0);
		to = mono();
		poll[run] = (double)(to - from) / 100000;
		from = mono();
		for (int i = 0; i < 20000; i++)
			CHECK(kvl_step(ctx) == KVL_OK);
		step[run] = (double)(mono() - from) / 20000;
		CHECK_STATUS(kvl_grant(p, &g, &l[0]), KVL_OK);
		from = mono();
		for (int i = 0; i < 10000; i++)
			CHECK(kvl_params(ctx, l[0], &g, text, sizeof text, &len) == KVL_OK);
		write[run] = (double)(mono() - from) / 10000;
		from = mono();
		for (int i = 0; i < 10000; i++)
			CHECK(kvl_params_read(text, len, &got, buf, sizeof buf, &need) == KVL_OK);
		read[run] = (double)(mono() - from) / 10000;
		CHECK_STATUS(kvl_cancel(p, l[0]), KVL_OK);
		CHECK_STATUS(kvl_step(ctx), KVL_OK);
		while (kvl_poll(ctx, evs, sizeof *evs, 64) > 0)
			;
		track[run] = (double)spent[0] / (BATCH * BATCHES);
		untrack[run] = (double)spent[1] / (BATCH * BATCHES);
		grant[run] = (double)spent[2] / (BATCH * BATCHES);
		cancel[run] = (double)spent[3] / (BATCH * BATCHES);
	}
	report("kvl_track, ids of 41 and 16 bytes", track);
	report("kvl_untrack", untrack);
	report("kvl_grant, id of 41 bytes", grant);
	report("kvl_cancel", cancel);
	report("kvl_poll, nothing there", poll);
	report("kvl_step, inline, nothing to do", step);
	report("kvl_params, 8 blocks", write);
	report("kvl_params_read, 8 blocks", read);
	CHECK_STATUS(kvl_close(ctx, 1000000000), KVL_OK);
	return 0;
}
