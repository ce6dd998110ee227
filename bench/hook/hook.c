/* What the hooks and an idle step cost a forward loop, through libkvlease.so: ns a call, one round, as "name value" lines.
 *
 * usage: hook [NAME [STRETCHES [STEPS]]]: what the names begin with; how often 500 calls of each are timed; how many idle steps are
 *
 * Two contexts over the loopback transport in this process; only the hooks are timed. The ring is drained by steps between
 * the timed stretches, as an engine's step would.
 */
#include <kvlease.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STRETCH = 500, STRETCHES = 200, WARM = 20, STEPS = 20000 };

static double now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void must(int32_t status, const char *what)
{
	if (status != KVL_OK) {
		fprintf(stderr, "hook: %s: %s: %s\n", what, kvl_status_name(status), kvl_last_error());
		exit(1);
	}
}

static kvl_ctx_t *open_one(const char *name, void *kv, size_t bytes, kvl_producer_t **producer_out)
{
	char config[128], err[512] = "";
	kvl_ctx_t *ctx;
	snprintf(config, sizeof config, "{\"engine_id\":\"%s\",\"transport\":\"loopback\",\"kv_lease_duration\":600}", name);
	int32_t st = kvl_open(config, strlen(config), &ctx, err, sizeof err);
	if (st != KVL_OK) {
		fprintf(stderr, "hook: kvl_open: %s\n", err);
		exit(1);
	}
	kvl_region_t region = {.addr = (uint64_t)(uintptr_t)kv, .bytes = bytes, .block_len = 4096, .block_stride = 4096,
	                       .blocks = (uint32_t)(bytes / 4096), .group = -1};
	must(kvl_register(ctx, &region, sizeof(kvl_region_t), 1), "kvl_register");
	must(kvl_producer_open(ctx, producer_out), "kvl_producer_open");
	return ctx;
}

static void steps(kvl_ctx_t *ctx, int n)
{
	kvl_event_t events[256];
	while (n-- > 0) {
		must(kvl_step(ctx), "kvl_step");
		while (kvl_poll(ctx, events, sizeof events[0], 256) > 0) {
		}
	}
}

static kvl_ctx_t *p, *d;
static kvl_producer_t *producer_p, *producer_d;
static kvl_engine_t engine;
static kvl_lease_t leases[STRETCH];
static kvl_track_t tracks[STRETCH];
static char id[] = "chatcmpl-0123456789abcdef0123456789abcdef-00000000"; /* as long as an OpenAI-style server's */

enum { ID_LEN = sizeof id - 1 };

static void connect_both(void)
{
	static uint8_t map[65536];
	size_t n;
	kvl_engine_desc_t desc = {.size = sizeof desc, .ranks = 1, .engine_id = {"P", 1}};
	must(kvl_handshake_get(p, 0, map, sizeof map, &n), "kvl_handshake_get");
	must(kvl_engine_add(d, &desc, &engine), "kvl_engine_add");
	must(kvl_engine_handshake(d, engine, 0, (kvl_bytes_t){map, n}), "kvl_engine_handshake");
	steps(d, 10);
}

/* The grants of one stretch; the remote of the first is what D's tracks are made from. */
static double grants(int stretch, kvl_remote_t *remote)
{
	static const uint32_t ids[8] = {0, 1, 2, 3, 4, 5, 6, 7};
	static char params[8192], buf[8192];
	size_t n;
	kvl_blocks_t group = {ids, 8, 0};
	kvl_grant_t grant = {.size = sizeof grant, .id = {id, ID_LEN}, .groups = &group, .groups_n = 1, .tokens = 128};
	double start = now_ns();
	for (int i = 0; i < STRETCH; i++) {
		const char tail[4] = {(char)('a' + i % 26), (char)('a' + i / 26 % 26), (char)('a' + stretch % 26), (char)('a' + stretch / 26)};
		memcpy(id + ID_LEN - 4, tail, 4);
		must(kvl_grant(producer_p, &grant, &leases[i]), "kvl_grant");
	}
	double took = now_ns() - start;
	steps(p, 1);
	remote->size = sizeof *remote;
	must(kvl_params(p, leases[STRETCH - 1], &grant, params, sizeof params, &n), "kvl_params");
	must(kvl_params_read(params, n, remote, buf, sizeof buf, &n), "kvl_params_read");
	return took;
}

static double tracked(kvl_remote_t *remote)
{
	double start = now_ns();
	for (int i = 0; i < STRETCH; i++) {
		remote->slot = (uint32_t)i; /* different requests */
		must(kvl_track(producer_d, engine, remote, (kvl_bytes_t){id, ID_LEN}, (uint64_t)i, &tracks[i]), "kvl_track");
	}
	double took = now_ns() - start;
	steps(d, 1);
	return took;
}

static double untracked(void)
{
	double start = now_ns();
	for (int i = 0; i < STRETCH; i++)
		must(kvl_untrack(producer_d, tracks[i]), "kvl_untrack");
	return now_ns() - start;
}

/* Steps of P while it holds the STRETCH leases of the last stretch, of which none is due. */
static double idle_steps(int n)
{
	double start = now_ns();
	for (int i = 0; i < n; i++)
		must(kvl_step(p), "kvl_step");
	return now_ns() - start;
}

int main(int argc, char **argv)
{
	const char *as = argc > 1 ? argv[1] : "hook";
	/* A ring's first lap touches its pages, which an engine pays for once. Single stretches are for who counts instructions. */
	int stretches = argc > 2 ? atoi(argv[2]) : STRETCHES, idle = argc > 3 ? atoi(argv[3]) : STEPS;
	static uint8_t kv[2][64 * 4096] __attribute__((aligned(4096)));
	double grant_ns = 0, track_ns = 0, untrack_ns = 0;
	kvl_remote_t remote;
	p = open_one("P", kv[0], sizeof kv[0], &producer_p);
	d = open_one("D", kv[1], sizeof kv[1], &producer_d);
	connect_both();
	int warm = stretches > WARM ? WARM : 0;
	for (int stretch = 0; stretch < warm + stretches; stretch++) {
		if (stretch == warm)
			grant_ns = track_ns = untrack_ns = 0;
		grant_ns += grants(stretch, &remote);
		track_ns += tracked(&remote);
		untrack_ns += untracked();
		for (int i = 0; i < STRETCH; i++)
			must(kvl_cancel(producer_p, leases[i]), "kvl_cancel");
		for (int i = 0; i < 4; i++) {
			steps(d, 1);
			steps(p, 1);
		}
	}
	grants(warm + stretches, &remote);
	steps(p, 100);
	printf("%s.step %.3f\n", as, idle_steps(idle) / idle);
	printf("%s.grant %.3f\n%s.track %.3f\n%s.untrack %.3f\n", as, grant_ns / STRETCH / stretches, as, track_ns / STRETCH / stretches, as,
	       untrack_ns / STRETCH / stretches);
	if (fflush(stdout) != 0) {
		perror("hook: write");
		return 1;
	}
	return 0;
}
