/* What a step costs that takes records of many producers: ns a step, one round, as "name value" lines.
 *
 * usage: many
 *
 * Over the loopback transport; the engine that requests are tracked at is not known yet, so that a step does little else.
 */
#include "../pair/pair.h"

enum { PRODUCERS = 256, STEPS = 200 };

static kvl_ctx_t *ctx;
static kvl_engine_t engine;
static kvl_producer_t *producers[PRODUCERS];
static kvl_track_t tracks[PRODUCERS];

static double step(void)
{
	uint64_t start = now_ns();
	must(kvl_step(ctx), "kvl_step");
	return (double)(now_ns() - start);
}

/* The step behind one request of each of n producers, over and over until there were PRODUCERS. */
static double tracked(int n)
{
	kvl_remote_t remote = {.size = sizeof remote, .native = 1, .epoch = 1, .id = {"chatcmpl-0123456789abcdef0123456789abcdef-00000000", 50}};
	for (int i = 0; i < PRODUCERS; i++) {
		remote.slot = (uint32_t)i; /* different requests */
		must(kvl_track(producers[i % n], engine, &remote, (kvl_bytes_t){"local", 5}, 0, &tracks[i]), "kvl_track");
	}
	double took = step();
	for (int i = 0; i < PRODUCERS; i++)
		must(kvl_untrack(producers[i % n], tracks[i]), "kvl_untrack");
	for (int i = 0; i < 4; i++)
		step();
	return took;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void say_median(const char *name, double (*one)(int), int n)
{
	static double took[STEPS];
	for (int i = 0; i < STEPS; i++)
		took[i] = one(n);
	qsort(took, STEPS, sizeof took[0], by_value);
	say(name, took[STEPS / 2]);
}

static double idle(int n)
{
	(void)n;
	return step();
}

int main(void)
{
	static const char config[] = "{\"engine_id\":\"D\",\"transport\":\"loopback\",\"kv_lease_duration\":600,\"producers_max\":256}";
	static uint8_t kv[64 * 4096] __attribute__((aligned(4096)));
	char err[512] = "";
	if (kvl_open(config, sizeof config - 1, &ctx, err, sizeof err) != KVL_OK)
		die("kvl_open: %s", err);
	kvl_region_t region = {.addr = (uint64_t)(uintptr_t)kv, .bytes = sizeof kv, .block_len = 4096, .block_stride = 4096, .blocks = 64, .group = -1};
	must(kvl_register(ctx, &region, sizeof(kvl_region_t), 1), "kvl_register");
	kvl_engine_desc_t desc = {.size = sizeof desc, .ranks = 1, .engine_id = {"P", 1}};
	must(kvl_engine_add(ctx, &desc, &engine), "kvl_engine_add");
	for (int i = 0; i < PRODUCERS; i++)
		must(kvl_producer_open(ctx, &producers[i]), "kvl_producer_open");
	tracked(PRODUCERS); /* the rings' pages are there */
	say_median("many.each", tracked, PRODUCERS);
	say_median("many.one", tracked, 1);
	say_median("many.idle", idle, 0);
	return 0;
}
