/* Two engines over the loopback transport that do a known amount of work, for tests that count at trace sites.
 *
 * host LEASES: prints "ready", waits for a line, works, prints a line "NAME=COUNT ..." of what must have run through each site, and
 * waits for the end of its input.
 */
#include <sys/mman.h>

#include "check.h"

enum { BLOCKS = 64, BLOCK_BYTES = 512, LEASES_MAX = 32, READ_BLOCKS = 2 };

typedef struct engine {
	kvl_ctx_t *ctx;
	kvl_producer_t *p;
	uint64_t steps;
} engine_t;

static uint64_t submits, freed, revoked, reads;

static engine_t open_engine(const char *name)
{
	engine_t e = {0};
	kvl_region_t region = {.bytes = BLOCKS * BLOCK_BYTES, .block_len = BLOCK_BYTES, .block_stride = BLOCK_BYTES, .blocks = BLOCKS,
			       .group = -1, .name = str("layer")};
	char config[256];
	void *cache = mmap(NULL, BLOCKS * BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(cache != MAP_FAILED);
	snprintf(config, sizeof config, "{\"engine_id\":\"%s\",\"transport\":\"loopback\",\"side_channel_host\":\"127.0.0.1\",\"stats_page\":\"\"}", name);
	e.ctx = open_ctx(config);
	e.p = open_producer(e.ctx);
	region.addr = (uintptr_t)cache;
	CHECK_STATUS(kvl_register(e.ctx, &region, sizeof region, 1), KVL_OK);
	return e;
}

static void step(engine_t *e)
{
	kvl_event_t ev;
	CHECK_STATUS(kvl_step(e->ctx), KVL_OK);
	e->steps++;
	while (kvl_poll(e->ctx, &ev, sizeof ev, 1) == 1) {
		freed += ev.kind == KVL_EV_FREED;
		revoked += ev.kind == KVL_EV_FREED && ev.status == KVL_FREED_REVOKED;
		reads += ev.kind == KVL_EV_READ_DONE;
	}
}

/* A counter of kvl_stats. */
static uint64_t stat_of(const engine_t *e, const char *name)
{
	static char text[65536];
	char key[64];
	const char *at;
	size_t len;
	CHECK_STATUS(kvl_stats(e->ctx, text, sizeof text, &len), KVL_OK);
	snprintf(key, sizeof key, "\"%s\":", name);
	at = strstr(text, key);
	CHECK(at != NULL);
	return strtoull(at + strlen(key), NULL, 10);
}

static void wait_line(void)
{
	char line[64];
	if (fgets(line, sizeof line, stdin) == NULL)
		exit(0);
}

int main(int argc, char **argv)
{
	uint32_t n = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 8, there[READ_BLOCKS], here[READ_BLOCKS];
	kvl_blocks_t from = {there, READ_BLOCKS, 0}, to = {here, READ_BLOCKS, 0};
	kvl_read_t read = {sizeof read, 1, &to, &from};
	kvl_track_t tracks[LEASES_MAX];
	kvl_engine_desc_t desc = {.size = sizeof desc, .ranks = 1, .engine_id = str("P")};
	kvl_engine_t engine = 0;
	char map[8192], params[4096], id[16];
	engine_t p = open_engine("P"), d = open_engine("D");
	uint64_t want = 0, steps;
	size_t len;

	CHECK(n > 0 && n <= LEASES_MAX);
	CHECK_STATUS(kvl_handshake_get(p.ctx, 0, map, sizeof map, &len), KVL_OK);
	CHECK_STATUS(kvl_engine_add(d.ctx, &desc, &engine), KVL_OK);
	printf("ready\n");
	fflush(stdout);
	wait_line();

	CHECK_STATUS(kvl_engine_handshake(d.ctx, engine, 0, (kvl_bytes_t){map, len}), KVL_OK);
	steps = p.steps + d.steps;
	for (uint32_t i = 0; i < n; i++) {
		kvl_grant_t grant;
		kvl_remote_t remote = {.size = sizeof remote};
		kvl_lease_t lease = 0;
		uint64_t buf[512];
		size_t need;
		for (uint32_t b = 0; b < READ_BLOCKS; b++)
			there[b] = i * READ_BLOCKS + b;
		snprintf(id, sizeof id, "request-%u", i);
		grant = grant_of(id, &from, 1, i);
		grant.tokens = 16;
		CHECK_STATUS(kvl_grant(p.p, &grant, &lease), KVL_OK);
		submits++;
		tracks[i] = 0;
		if (i % 4 == 3) {
			CHECK_STATUS(kvl_cancel(p.p, lease), KVL_OK);
			submits++;
			continue;
		}
		CHECK_STATUS(kvl_params(p.ctx, lease, &grant, params, sizeof params, &len), KVL_OK);
		CHECK_STATUS(kvl_params_read(params, len, &remote, buf, sizeof buf, &need), KVL_OK);
		CHECK_STATUS(kvl_track(d.p, engine, &remote, str(id), i, &tracks[i]), KVL_OK);
		submits++;
	}
	for (int i = 0; i < 20; i++) { /* the connection, and a first heartbeat for all */
		step(&d);
		step(&p);
	}
	for (uint32_t i = 0; i < n; i++) {
		if (tracks[i] == 0)
			continue;
		for (uint32_t b = 0; b < READ_BLOCKS; b++)
			there[b] = here[b] = i * READ_BLOCKS + b;
		CHECK_STATUS(kvl_read(d.p, tracks[i], &read), KVL_OK);
		submits++;
		want++;
	}
	for (int i = 0; i < 100000 && (reads < want || freed < n); i++) {
		step(&d);
		step(&p);
	}
	CHECK_EQ(reads, want);
	CHECK_EQ(freed, n);
	steps = p.steps + d.steps - steps;
	printf("hook__submit=%llu step__begin=%llu step__end=%llu lease__freed=%llu revoked=%llu read__posted=%llu data__arrived=%llu "
	       "fence__checked=%llu read__reported=%llu batch__posted=%llu notification__seen=%llu batch__extended=%llu\n",
	       (unsigned long long)submits, (unsigned long long)steps, (unsigned long long)steps, (unsigned long long)freed,
	       (unsigned long long)revoked, (unsigned long long)reads, (unsigned long long)reads, (unsigned long long)reads,
	       (unsigned long long)reads, (unsigned long long)stat_of(&d, "beat_beat_batches"),
	       (unsigned long long)stat_of(&p, "batches_received"), (unsigned long long)stat_of(&p, "batches_received"));
	fflush(stdout);
	wait_line();
	return 0;
}
