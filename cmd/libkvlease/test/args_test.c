/* Every function against NULL, odd and foreign arguments: a named error, nothing changed, no crash. */
#include <unistd.h>

#include "check.h"
#include "fakecore.h"

static kvl_ctx_t *ctx;
static kvl_producer_t *p;
static char junk[4096] __attribute__((aligned(128)));
static const uint32_t ids[] = {1, 2, 3};
static const kvl_blocks_t good = {ids, 3, 0};
static kvl_track_t track;
static kvl_lease_t lease;

static int failures;

static void expect(const char *what, int32_t got, int32_t want, const char *text)
{
	if (got == want && (text == NULL || strstr(kvl_last_error(), text) != NULL))
		return;
	fprintf(stderr, "%s: %s (%s), want %s with \"%s\"\n", what, kvl_status_name(got), kvl_last_error(),
		kvl_status_name(want), text != NULL ? text : "");
	failures++;
}
#define BAD(call, text) expect(#call, (call), KVL_ERR_INVALID, (text))

/* Each function that takes a context or a producer, with one that is none. */
static void handles_are_checked(void)
{
	kvl_ctx_t *const bad[] = {NULL, (kvl_ctx_t *)(void *)(junk + 1), (kvl_ctx_t *)(void *)junk,
				  (kvl_ctx_t *)(void *)fake_last()->args.control};
	kvl_producer_t *out, *q;
	kvl_region_t region = {.addr = 1};
	kvl_engine_desc_t desc = {.size = sizeof desc};
	kvl_grant_t g = grant_of("r", &good, 1, 0);
	kvl_remote_t r = remote_of("r");
	kvl_read_t read = {sizeof read, 1, &good, &good};
	kvl_event_t ev;
	kvl_lease_t l;
	kvl_engine_t e;
	kvl_track_t t;
	size_t len;
	uint32_t port;
	char buf[8];
	int fd;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		kvl_ctx_t *c = bad[i];
		BAD(kvl_close(c, 0), "ctx");
		BAD(kvl_drain(c, 0), "ctx");
		BAD(kvl_producer_open(c, &out), "ctx");
		BAD(kvl_register(c, &region, sizeof(kvl_region_t), 1), "ctx");
		BAD(kvl_unregister(c), "ctx");
		BAD(kvl_engine_add(c, &desc, &e), "ctx");
		BAD(kvl_engine_remove(c, 1), "ctx");
		BAD(kvl_engine_handshake(c, 1, 0, str("map")), "ctx");
		BAD(kvl_handshake_get(c, 0, buf, sizeof buf, &len), "ctx");
		BAD(kvl_handshake_set(c, 0, str("map")), "ctx");
		BAD(kvl_delta_take(c, 0, junk, sizeof junk, &len), "ctx");
		BAD(kvl_delta_put(c, 0, str("delta")), "ctx");
		BAD(kvl_delta_lost(c, 0), "ctx");
		BAD(kvl_params(c, 1, &g, buf, sizeof buf, &len), "ctx");
		BAD(kvl_params_key(c, 1, buf, sizeof buf, &len), "ctx");
		BAD(kvl_step(c), "ctx");
		BAD(kvl_step_long(c), "ctx");
		BAD(kvl_pass(c), "ctx");
		BAD(kvl_pause(c, 1), "ctx");
		BAD(kvl_poll(c, &ev, sizeof ev, 1), "ctx");
		BAD(kvl_wait_fd(c, &fd), "ctx");
		CHECK_STATUS(kvl_unregister(NULL), KVL_ERR_INVALID);
		CHECK_STATUS(kvl_fence_all(c), KVL_ERR_INVALID); /* a crash handler's call: no text, which may allocate */
		CHECK_ERROR("ctx: is NULL");
		BAD(kvl_stats(c, buf, sizeof buf, &len), "ctx");
		BAD(kvl_config_json(c, buf, sizeof buf, &len), "ctx");
		BAD(kvl_metrics_text(c, buf, sizeof buf, &len), "ctx");
		BAD(kvl_log_take(c, buf, sizeof buf, &len), "ctx");
		BAD(kvl_metrics_listen(c, ":0", &port), "ctx");
		q = (kvl_producer_t *)(void *)c;
		BAD(kvl_expect(q, str("r"), &l), "producer");
		BAD(kvl_grant(q, &g, &l), "producer");
		BAD(kvl_cancel(q, 1), "producer");
		BAD(kvl_revoke(q, 1), "producer");
		BAD(kvl_pressure(q, 1), "producer");
		BAD(kvl_track(q, 1, &r, str("l"), 0, &t), "producer");
		BAD(kvl_untrack(q, 1), "producer");
		BAD(kvl_reject(q, 1, &r), "producer");
		BAD(kvl_read(q, 1, &read), "producer");
	}
}

static void open_checks_its_arguments(void)
{
	kvl_ctx_t *c = (kvl_ctx_t *)(void *)junk;
	char err[64] = "", one[1] = "";
	BAD(kvl_open(NULL, 1, &c, err, sizeof err), "config");
	CHECK(strstr(err, "config") != NULL);
	BAD(kvl_open("{}", 2, NULL, err, sizeof err), "ctx_out");
	BAD(kvl_open("{}", 2, &c, NULL, 5), "err");
	BAD(kvl_open("{}", (size_t)1 << 40, &c, err, sizeof err), "1 MiB");
	expect("cut text", kvl_open(NULL, 1, &c, one, 1), KVL_ERR_INVALID, NULL);
	CHECK(one[0] == 0);
	for (size_t i = 0; i < 16; i++) {
		static const char *const configs[16][2] = {
			{"[]", "object"},
			{"{", "too early"},
			{"{\"a\"}", "colon"},
			{"{\"a\":1,}", "comma"},
			{"{\"a\":1 \"b\":2}", "comma"},
			{"{} x", "follows"},
			{"{\"threads\":1}", "threads"},
			{"{\"threads\":\"4\"}", "threads"},
			{"{\"threads\":2.5}", "threads"},
			{"{\"threads\":-3}", "threads"},
			{"{\"cpus\":3}", "cpus"},
			{"{\"cpus\":\"3-\"}", "cpus"},
			{"{\"cpus\":\"5-2\"}", "cpus"},
			{"{\"cpus\":\"99999\"}", "cpus"},
			{"{\"cpus\":\"1,,2\"}", "cpus"},
			{"{\"wrong\":1}", "unknown key"},
		};
		expect(configs[i][0], kvl_open(configs[i][0], strlen(configs[i][0]), &c, err, sizeof err), KVL_ERR_CONFIG,
		       configs[i][1]);
		CHECK(strstr(err, configs[i][1]) != NULL);
	}
	expect("cpus", kvl_open("{\"cpus\":\"1000\"}", 15, &c, err, sizeof err), KVL_ERR_CONFIG, "none of the list");
	expect("refuse", kvl_open("{\"refuse\":1}", 12, &c, err, sizeof err), KVL_ERR_TRANSPORT, "transport refused");
	expect("sizes", kvl_open("{\"ring_bytes\":5000}", 19, &c, err, sizeof err), KVL_ERR_UNAVAILABLE, "sizes");
	CHECK((void *)c == (void *)junk); /* outputs change only on success */
	CHECK_STATUS(kvl_open(NULL, 0, &c, NULL, 0), KVL_OK); /* all defaults, no text wanted */
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);
	c = open_ctx(" { \"threads\" : 3, \"cpus\" : \"0\" , \"deep\":[[{\"a\":[]}],\"\\u00e9\"] } ");
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);
}

static void context_calls_check_their_arguments(void)
{
	kvl_region_t r = {.addr = 4096, .bytes = 4096, .block_len = 512, .block_stride = 512, .blocks = 8, .group = -1}, bad;
	kvl_engine_desc_t d = {.size = sizeof d, .ranks = 1, .engine_id = str("P")}, worse;
	kvl_engine_t e = 77;
	kvl_event_t evs[2];
	static char big[KVL_DELTA_MIN];
	size_t len = 77;
	uint32_t port = 77;
	char buf[64];
	BAD(kvl_producer_open(ctx, NULL), "producer_out");
	BAD(kvl_register(ctx, NULL, sizeof(kvl_region_t), 1), "regions");
	BAD(kvl_register(ctx, &r, sizeof(kvl_region_t), 0), "regions");
	BAD(kvl_register(ctx, (const kvl_region_t *)(const void *)(junk + 1), sizeof(kvl_region_t), 1), "regions");
#define REGION(field, value, text)                                                                                     \
	bad = r;                                                                                                       \
	bad.field = (value);                                                                                           \
	BAD(kvl_register(ctx, &bad, sizeof(kvl_region_t), 1), text)
	REGION(addr, 0, "range");
	REGION(bytes, 0, "range");
	REGION(addr, UINT64_MAX, "range");
	REGION(block_len, 0, "block_len");
	REGION(blocks, 0, "blocks");
	REGION(block_stride, 511, "block_stride");
	REGION(blocks, 9, "do not fit");
	REGION(block_len, 513, "block_stride");
	REGION(mem, 2, "mem");
	REGION(group, -2, "group");
	REGION(group, 32, "group");
	REGION(name.len, 5, "name");
	REGION(parts, 3, "parts: 3 do not divide");
	REGION(parts, 1024, "parts");
	REGION(flags, 2, "flags: 0x2");
	BAD(kvl_register(ctx, &r, 0, 1), "region_size");
	BAD(kvl_register(ctx, &r, 56, 1), "region_size: 56"); /* shorter than the first version */
	BAD(kvl_register(ctx, &r, sizeof r + 4, 1), "region_size");
	BAD(kvl_register(ctx, &r, 8192, 1), "region_size");
	BAD(kvl_register(ctx, &r, 1, sizeof r), "region_size"); /* the arguments swapped */
	expect("device", kvl_register(ctx, &(kvl_region_t){.addr = 1, .bytes = 1, .block_len = 1, .block_stride = 1, .blocks = 1, .device = 99}, sizeof(kvl_region_t), 1),
	       KVL_ERR_TRANSPORT, "device: 99");
	CHECK_STATUS(kvl_register(ctx, &r, sizeof(kvl_region_t), 1), KVL_OK);

	BAD(kvl_engine_add(ctx, NULL, &e), "desc");
	BAD(kvl_engine_add(ctx, &d, NULL), "engine_out");
#define DESC(field, value, text)                                                                                       \
	worse = d;                                                                                                     \
	worse.field = (value);                                                                                         \
	BAD(kvl_engine_add(ctx, &worse, &e), text)
	DESC(size, 16, "size");
	DESC(ranks, 0, "ranks");
	DESC(ranks, 70000, "ranks");
	DESC(engine_id.len, 0, "engine_id");
	DESC(engine_id.data, NULL, "engine_id");
	DESC(host.len, 1, "host");
	DESC(port, 65536, "port");
	DESC(pp_size, 65536, "pp_size");
	worse = d;
	worse.host = str("P");
	BAD(kvl_engine_add(ctx, &worse, &e), "desc.port"); /* a host and no port */
	worse = d;
	worse.user = 99;
	expect("engines_max", kvl_engine_add(ctx, &worse, &e), KVL_ERR_FULL, "engines_max");
	CHECK_EQ(e, 77);
	worse.user = 1;
	worse.size = sizeof worse + 64; /* a later version of the struct */
	CHECK_STATUS(kvl_engine_add(ctx, &worse, &e), KVL_OK);
	BAD(kvl_engine_remove(ctx, 0), "engine");
	expect("stale engine", kvl_engine_remove(ctx, 5), KVL_ERR_STALE, "KVL_ERR_STALE");
	BAD(kvl_engine_handshake(ctx, 0, 0, str("map")), "engine");
	BAD(kvl_engine_handshake(ctx, e, 0, (kvl_bytes_t){NULL, 4}), "map");
	BAD(kvl_engine_handshake(ctx, e, 0, (kvl_bytes_t){"", 0}), "map");
	BAD(kvl_engine_handshake(ctx, e, 0, (kvl_bytes_t){junk, (1u << 20) + 1}), "map");
	BAD(kvl_engine_handshake(ctx, e, 3, str("map")), "rank");
	BAD(kvl_handshake_get(ctx, 0, buf, 64, NULL), "len_out");
	BAD(kvl_handshake_get(ctx, 0, NULL, 64, &len), "buf");
	expect("space", kvl_handshake_get(ctx, 0, NULL, 0, &len), KVL_ERR_SPACE, NULL);
	CHECK_EQ(len, 3);
	CHECK_STATUS(kvl_handshake_get(ctx, 0, buf, 3, &len), KVL_OK);
	BAD(kvl_handshake_set(ctx, 0, (kvl_bytes_t){NULL, 4}), "map");
	BAD(kvl_handshake_set(ctx, 0, (kvl_bytes_t){"", 0}), "map");
	BAD(kvl_handshake_set(ctx, 0, (kvl_bytes_t){junk, (1u << 20) + 1}), "map");
	BAD(kvl_handshake_set(ctx, 3, str("map")), "rank");
	CHECK_STATUS(kvl_handshake_set(ctx, 0, str("map")), KVL_OK);
	len = 77;
	BAD(kvl_delta_take(ctx, 0, big, sizeof big, NULL), "len_out");
	BAD(kvl_delta_take(ctx, 0, NULL, sizeof big, &len), "buf");
	BAD(kvl_delta_take(ctx, 0, big, KVL_DELTA_MIN - 1, &len), "cap: 8191");
	BAD(kvl_delta_take(ctx, 1, big, sizeof big, &len), "rank");
	CHECK_EQ(len, 77);
	BAD(kvl_delta_put(ctx, 0, (kvl_bytes_t){NULL, 4}), "bytes");
	BAD(kvl_delta_put(ctx, 0, (kvl_bytes_t){big, KVL_DELTA_MAX + 1}), "bytes");
	BAD(kvl_delta_put(ctx, 1, str("delta")), "damaged");
	CHECK_STATUS(kvl_delta_put(ctx, 0, str("delta")), KVL_OK);
	BAD(kvl_delta_lost(ctx, 1), "rank");
	CHECK_STATUS(kvl_delta_lost(ctx, 0), KVL_OK);
	CHECK_STATUS(kvl_delta_put(ctx, 0, (kvl_bytes_t){NULL, 0}), KVL_OK); /* a step message that carries nothing */
	CHECK_STATUS(kvl_delta_take(ctx, 0, big, sizeof big, &len), KVL_OK);
	CHECK(len == 5 && memcmp(big, "delta", 5) == 0);
	CHECK_STATUS(kvl_delta_take(ctx, 0, big, sizeof big, &len), KVL_OK);
	CHECK_EQ(len, 0);
	BAD(kvl_stats(ctx, buf, 64, NULL), "len_out");
	BAD(kvl_stats(ctx, NULL, 64, &len), "buf");
	expect("no room for the zero", kvl_stats(ctx, buf, 10, &len), KVL_ERR_SPACE, "at least 11");
	CHECK_EQ(len, 10);
	CHECK_STATUS(kvl_stats(ctx, buf, 11, &len), KVL_OK);
	CHECK(strcmp(buf, "{\"fake\":1}") == 0);
	BAD(kvl_config_json(ctx, NULL, 1, &len), "buf");
	CHECK_STATUS(kvl_config_json(ctx, buf, 64, &len), KVL_OK);
	BAD(kvl_metrics_text(ctx, NULL, 64, &len), "buf");
	expect("no room for the metrics", kvl_metrics_text(ctx, buf, 13, &len), KVL_ERR_SPACE, "at least 14");
	CHECK_STATUS(kvl_metrics_text(ctx, buf, 14, &len), KVL_OK);
	CHECK(len == 13 && strcmp(buf, "kvlease_up 1\n") == 0);
	BAD(kvl_log_take(ctx, buf, 64, NULL), "len_out");
	BAD(kvl_log_take(ctx, NULL, 64, &len), "buf");
	expect("no room for the first line", kvl_log_take(ctx, buf, 17, &len), KVL_ERR_SPACE, "at least 18");
	CHECK_STATUS(kvl_log_take(ctx, buf, 18, &len), KVL_OK);
	CHECK(len == 17 && strcmp(buf, "{\"kind\":\"stall\"}\n") == 0);
	BAD(kvl_metrics_listen(ctx, NULL, &port), "addr");
	memset(big, 'a', sizeof big - 1);
	big[sizeof big - 1] = 0;
	BAD(kvl_metrics_listen(ctx, (char *)big, &port), "addr");
	BAD(kvl_metrics_listen(ctx, "here", &port), "HOST:PORT");
	CHECK_EQ(port, 77);
	CHECK_STATUS(kvl_metrics_listen(ctx, ":0", NULL), KVL_OK);
	CHECK_STATUS(kvl_metrics_listen(ctx, ":0", &port), KVL_OK);
	CHECK_EQ(port, 9464);
	BAD(kvl_poll(ctx, NULL, 64, 1), "events");
	BAD(kvl_poll(ctx, evs, 56, 1), "event_size");
	BAD(kvl_poll(ctx, (kvl_event_t *)(void *)(junk + 4), 64, 1), "events");
	CHECK_EQ(kvl_poll(ctx, NULL, 64, 0), 0);
	BAD(kvl_wait_fd(ctx, NULL), "fd_out");
	BAD(kvl_pause(ctx, UINT64_MAX), "max_ns");
}

static void hooks_check_their_arguments(void)
{
	kvl_grant_t g = grant_of("r", &good, 1, 0), bad;
	kvl_remote_t r = remote_of("r"), rad;
	kvl_blocks_t no_ids = {NULL, 1, 0}, odd_ids = {(const uint32_t *)(const void *)(junk + 2), 1, 0}, far = {ids, 3, UINT32_MAX};
	static const uint32_t past_ids[] = {6, 7, 8}; /* the regions have blocks 0 to 7 */
	kvl_blocks_t later = {ids, 3, 1}, empty = {NULL, 0, 0}, past = {past_ids, 3, 0};
	kvl_read_t read = {sizeof read, 1, &good, &good}, sad;
	kvl_lease_t l = 77;
	kvl_track_t t = 77;
	char id[1100];
	memset(id, 'x', sizeof id);
	BAD(kvl_expect(p, (kvl_bytes_t){NULL, 3}, &l), "id");
	BAD(kvl_expect(p, (kvl_bytes_t){"", 0}, &l), "id");
	BAD(kvl_expect(p, (kvl_bytes_t){id, 1025}, &l), "id");
	BAD(kvl_expect(p, str("r"), NULL), "lease_out");
	BAD(kvl_grant(p, NULL, &l), "grant");
	BAD(kvl_grant(p, (const kvl_grant_t *)(const void *)(junk + 4), &l), "grant");
	BAD(kvl_grant(p, &g, NULL), "lease_out");
#define GRANT(field, value, text)                                                                                      \
	bad = g;                                                                                                       \
	bad.field = (value);                                                                                           \
	BAD(kvl_grant(p, &bad, &l), text)
	GRANT(size, 8, "size");
	GRANT(flags, 2, "flags: 0x2");
	GRANT(id.len, 0, "id");
	GRANT(id.len, 1025, "id");
	GRANT(id.data, NULL, "id");
	GRANT(groups, NULL, "groups");
	GRANT(groups, (const kvl_blocks_t *)(const void *)(junk + 3), "groups");
	GRANT(groups, &past, "grant.groups[0].ids[2]: block 8 of 8");
	GRANT(groups, &no_ids, "groups[0].ids");
	GRANT(groups, &odd_ids, "groups[0].ids");
	GRANT(groups, &far, "groups[0].first");
	GRANT(groups_n, 5000, "groups");
	GRANT(ttl_ns, UINT64_MAX, "ttl_ns");
	GRANT(expected, 3, "expected");
	GRANT(expected, 1ull << 32 | 99999, "expected");
	bad = g;
	bad.groups = &empty; /* a lease without blocks is no error */
	CHECK_STATUS(kvl_grant(p, &bad, &l), KVL_OK);
	l = 77;
	BAD(kvl_cancel(p, 0), "lease");
	BAD(kvl_cancel(p, 1ull << 32 | 99999), "lease");
	BAD(kvl_revoke(p, 12), "lease");
	expect("future use", kvl_cancel(p, 9ull << 32), KVL_ERR_STALE, NULL);
	BAD(kvl_pressure(p, 0), "blocks_wanted");

	BAD(kvl_track(p, 0, &r, str("l"), 0, &t), "engine");
	BAD(kvl_track(p, 1, NULL, str("l"), 0, &t), "remote");
	BAD(kvl_track(p, 1, (const kvl_remote_t *)(const void *)(junk + 1), str("l"), 0, &t), "remote");
	BAD(kvl_track(p, 1, &r, (kvl_bytes_t){NULL, 1}, 0, &t), "local_id");
	BAD(kvl_track(p, 1, &r, (kvl_bytes_t){id, 1025}, 0, &t), "local_id");
	BAD(kvl_track(p, 1, &r, str("l"), 0, NULL), "track_out");
#define REMOTE(field, value, text)                                                                                     \
	rad = r;                                                                                                       \
	rad.field = (value);                                                                                           \
	BAD(kvl_track(p, 1, &rad, str("l"), 0, &t), text);                                                             \
	BAD(kvl_reject(p, 1, &rad), text)
	REMOTE(size, 8, "size");
	REMOTE(id.len, 0, "remote.id");
	REMOTE(id.len, 1025, "remote.id");
	REMOTE(id.data, NULL, "remote.id");
	REMOTE(native, 2, "native");
	BAD(kvl_reject(p, 0, &r), "engine");
	BAD(kvl_reject(p, 1, NULL), "remote");
	BAD(kvl_untrack(p, 0), "track");
	BAD(kvl_untrack(p, 1ull << 32 | 99999), "track");
	expect("never tracked", kvl_untrack(p, 9ull << 32), KVL_ERR_STALE, NULL);
	BAD(kvl_read(p, track, NULL), "read");
	BAD(kvl_read(p, 0, &read), "track");
#define READ(field, value, text)                                                                                       \
	sad = read;                                                                                                    \
	sad.field = (value);                                                                                           \
	BAD(kvl_read(p, track, &sad), text)
	READ(size, 8, "size");
	READ(local, NULL, "read.local");
	READ(remote, NULL, "read.remote");
	READ(local, &past, "read.local[0].ids[2]: block 8 of 8");
	READ(local, &later, "positions");
	READ(remote, &later, "positions");
	READ(local, &far, "first");
	READ(remote, &odd_ids, "ids");
	READ(groups_n, 5000, "groups");
	CHECK_EQ(l, 77);
	CHECK_EQ(t, 77);
}

static void parameter_calls_check_their_arguments(void)
{
	kvl_grant_t g = grant_of("r", &good, 1, 0), bad;
	kvl_remote_t r = {.size = sizeof r};
	static const char text[] = "{}";
	size_t len = 77;
	char buf[64];
	BAD(kvl_params(ctx, 0, &g, buf, 64, &len), "lease");
	BAD(kvl_params(ctx, lease, NULL, buf, 64, &len), "grant");
	BAD(kvl_params(ctx, lease, &g, NULL, 64, &len), "buf");
	BAD(kvl_params(ctx, lease, &g, buf, 64, NULL), "len_out");
	bad = g;
	bad.id = (kvl_bytes_t){"\xff", 1};
	BAD(kvl_params(ctx, lease, &bad, buf, 64, &len), "UTF-8");
	bad = g;
	bad.groups = NULL;
	BAD(kvl_params(ctx, lease, &bad, buf, 64, &len), "groups");
	BAD(kvl_params_key(ctx, 5, buf, 64, &len), "lease");
	BAD(kvl_params_key(ctx, lease, buf, 64, NULL), "len_out");
	expect("stale", kvl_params_key(ctx, lease + (1ull << 32), buf, 64, &len), KVL_ERR_STALE, NULL);
	CHECK_EQ(len, 77);
	BAD(kvl_params_read(NULL, 2, &r, buf, 64, &len), "json");
	BAD(kvl_params_read(text, 2, NULL, buf, 64, &len), "remote_out");
	BAD(kvl_params_read(text, 2, &r, NULL, 64, &len), "buf");
	BAD(kvl_params_read(text, 2, &r, buf, 64, NULL), "need_out");
	BAD(kvl_params_read(text, (size_t)5 << 20, &r, buf, 64, &len), "at most");
	r.size = 4;
	BAD(kvl_params_read(text, 2, &r, buf, 64, &len), "size");
	CHECK_EQ(len, 77);
}

static void names_need_no_context(void)
{
	CHECK(strcmp(kvl_status_name(KVL_OK), "KVL_OK") == 0);
	CHECK(strcmp(kvl_status_name(KVL_ERR_TIMEOUT), "KVL_ERR_TIMEOUT") == 0);
	CHECK(strcmp(kvl_status_name(-99), "unknown status") == 0);
	for (int32_t st = 0; st >= KVL_ERR_TIMEOUT; st--)
		CHECK(strncmp(kvl_status_name(st), "KVL_", 4) == 0);
	CHECK_EQ(kvl_abi_version(), KVL_ABI_VERSION);
	CHECK(strcmp(kvl_version(), "0.1.0") == 0);
}

int main(void)
{
	kvl_remote_t r = remote_of("r");
	kvl_grant_t g = grant_of("r", &good, 1, 0);
	CHECK(strcmp(kvl_last_error(), "") == 0);
	ctx = open_ctx("{}");
	p = open_producer(ctx);
	CHECK_STATUS(kvl_track(p, 1, &r, str("l"), 0, &track), KVL_OK);
	CHECK_STATUS(kvl_grant(p, &g, &lease), KVL_OK);
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	RUN(handles_are_checked);
	RUN(context_calls_check_their_arguments);
	RUN(hooks_check_their_arguments);
	RUN(parameter_calls_check_their_arguments);
	RUN(names_need_no_context);
	fake_core_t *f = fake_last();
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK_EQ(f->log_n, 3); /* the two of above, the grant without blocks: what was wrong left no record */
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
	RUN(open_checks_its_arguments);
	return failures != 0;
}
