/* Transfer parameters: the vectors that the Go reader is held to, what we write ourselves, and hostile texts.
 * argv: the folder of the vectors. */
#include "check.h"
#include "fakecore.h"

enum { TEXT = 8 << 20 };
static char text[TEXT];
static uint64_t buf[1 << 16];

static size_t load(const char *dir, const char *name)
{
	char path[4096];
	FILE *f;
	size_t n;
	snprintf(path, sizeof path, "%s/%s", dir, name);
	f = fopen(path, "rb");
	if (f == NULL) {
		fprintf(stderr, "cannot open %s\n", path);
		exit(1);
	}
	n = fread(text, 1, TEXT, f);
	fclose(f);
	return n;
}

static void hex(char *out, kvl_bytes_t b)
{
	*out = 0;
	for (size_t i = 0; i < b.len; i++)
		sprintf(out + 2 * i, "%02x", ((const unsigned char *)b.data)[i]);
}

/* The columns of params_index.tsv that a success fills. */
static void describe(const kvl_remote_t *r, char *out)
{
	static char id[2 * KVL_ID_MAX + 1];
	char *at = out;
	hex(id, r->id);
	at += sprintf(at, "%s\t%.*s\t%.*s\t%u\t%u\t%u\t%u\t", id, (int)r->engine_id.len, (const char *)r->engine_id.data,
		      (int)r->host.len, (const char *)r->host.data, r->port, r->tp_size, r->tokens, r->groups_n);
	if (r->groups_n == 0)
		at += sprintf(at, "-");
	for (uint32_t g = 0; g < r->groups_n; g++) {
		CHECK_EQ(r->groups[g].first, 0);
		at += sprintf(at, g == 0 ? "" : "|");
		for (uint32_t i = 0; i < r->groups[g].n; i++)
			at += sprintf(at, "%s%u", i == 0 ? "" : ",", r->groups[g].ids[i]);
	}
	if (r->native)
		sprintf(at, "\t%016llx\t%u\t%u\t%016llx", (unsigned long long)r->epoch, r->slot, r->generation,
			(unsigned long long)r->key);
	else
		sprintf(at, "\t-\t-\t-\t-");
}

static int32_t read_text(size_t len, kvl_remote_t *r, size_t *need)
{
	*r = (kvl_remote_t){.size = sizeof *r};
	return kvl_params_read(text, len, r, buf, sizeof buf, need);
}

static void vector(const char *dir, char *line)
{
	static char got[1 << 16];
	char *file = strtok(line, "\t"), *outcome = strtok(NULL, "\t"), *key = strtok(NULL, "\t"), *rest = strtok(NULL, "\n");
	kvl_remote_t r;
	size_t need = 0, len = load(dir, file);
	int32_t st = read_text(len, &r, &need);
	char want[128];
	if (strcmp(outcome, "error") == 0) {
		snprintf(want, sizeof want, "%s:", strcmp(key, "-") == 0 ? "parameters" : key);
		if (st != KVL_ERR_INVALID || strncmp(kvl_last_error(), want, strlen(want)) != 0) {
			fprintf(stderr, "%s: %s \"%s\", want an error that begins with %s\n", file, kvl_status_name(st),
				kvl_last_error(), want);
			exit(1);
		}
		CHECK(r.id.data == NULL && r.port == 0); /* outputs change only on success */
		return;
	}
	CHECK_STATUS(st, KVL_OK);
	CHECK_EQ(r.native, strcmp(outcome, "native") == 0);
	describe(&r, got);
	if (strcmp(got, rest) != 0) {
		fprintf(stderr, "%s:\n got %s\nwant %s\n", file, got, rest);
		exit(1);
	}
	/* every buffer that is too small is refused with the length that does, and never written past */
	for (size_t cap = 0; cap <= need; cap += cap < 64 ? 1 : 7) {
		unsigned char *small = malloc(cap + 1);
		size_t again = 0;
		kvl_remote_t s = {.size = sizeof s};
		st = kvl_params_read(text, len, &s, small, cap, &again);
		CHECK(st == KVL_ERR_SPACE || (st == KVL_OK && cap + 7 >= need));
		CHECK_EQ(again, need);
		free(small);
	}
	for (size_t odd = 0; odd < 8; odd++) { /* whatever its alignment, need is enough */
		char *block = malloc(need + 8);
		size_t again;
		kvl_remote_t s = {.size = sizeof s};
		CHECK_STATUS(kvl_params_read(text, len, &s, block + odd, need, &again), KVL_OK);
		describe(&s, got);
		CHECK(strcmp(got, rest) == 0);
		free(block);
	}
}

static const char *vectors_dir;

static void the_vectors_of_the_go_reader_hold_here(void)
{
	static char index[1 << 20];
	char *line, *save = NULL;
	size_t len = load(vectors_dir, "params_index.tsv");
	int n = 0;
	memcpy(index, text, len);
	index[len] = 0;
	for (line = strtok_r(index, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
		if (*line == '#')
			continue;
		vector(vectors_dir, line);
		n++;
	}
	printf("  %d vectors\n", n);
	CHECK(n > 40);
}

static const char whole[] =
	" { \"x_router\" : [ { \"a\" : [ null , true , -1.5e3 , \"\\u00e9\\ud83d\\ude00\" ] } ] , \"do_remote_prefill\" : true , "
	"\"do_remote_decode\" : false , \"remote_block_ids\" : [ [ 1 , 2 ] , [ ] , [ 4294967295 ] ] , \"remote_engine_id\" : \"P\" , "
	"\"remote_request_id\" : \"a\\\"b\" , \"remote_host\" : \"::1\" , \"remote_port\" : 65535 , \"tp_size\" : 2 , "
	"\"remote_num_tokens\" : 7 , \"kvlease\" : { \"v\" : 1 , \"more\" : [ ] , \"epoch\" : \"0123456789abcdef\" , \"slot\" : 4 , "
	"\"g\" : 9 , \"key\" : \"fedcba9876543210\" } } ";

static void each_prefix_is_an_error_that_says_so(void)
{
	kvl_remote_t r;
	size_t need, full = strlen(whole);
	memcpy(text, whole, full);
	CHECK_STATUS(read_text(full, &r, &need), KVL_OK);
	CHECK_EQ(r.native, 1);
	CHECK_EQ(r.groups[2].ids[0], 4294967295u);
	for (size_t len = 0; len + 1 < full; len++) {
		char *exact = malloc(len + 1); /* so that the sanitizer sees a byte read past the end */
		memcpy(exact, whole, len);
		r = (kvl_remote_t){.size = sizeof r};
		CHECK_STATUS(kvl_params_read(exact, len, &r, buf, sizeof buf, &need), KVL_ERR_INVALID);
		free(exact);
	}
}

static void errors_name_the_key_and_what_it_must_be(void)
{
	static const char *const cases[][2] = {
		{"{\"remote_port\":\"1\"}", "remote_port: must be a number"},
		{"{\"remote_port\":1.0}", "remote_port: must be a whole number"},
		{"{\"remote_port\":-1}", "remote_port: must be a whole number without sign"},
		{"{\"remote_port\":70000}", "remote_port: is too large"},
		{"{\"remote_port\":18446744073709551616}", "remote_port: is too large"},
		{"{\"remote_port\":1,\"remote_port\":2}", "remote_port: is there twice"},
		{"{\"tp_size\":null,\"tp_size\":2}", "tp_size: is there twice"},
		{"{\"remote_host\":7}", "remote_host: must be a string"},
		{"{\"remote_host\":\"\\ud83d\"}", "remote_host: not UTF-8: half of a surrogate pair"},
		{"{\"remote_host\":\"\\ude00\\ud83d\"}", "remote_host: not UTF-8"},
		{"{\"remote_host\":\"\\ud83d\\u0041\"}", "remote_host: not UTF-8"},
		{"{\"remote_host\":\"\\x\"}", "remote_host: not JSON: an unknown escape"},
		{"{\"remote_host\":\"\\u12g4\"}", "remote_host: not JSON: a bad \\u escape"},
		{"{\"remote_host\":\"\xc0\xaf\"}", "remote_host: not UTF-8"},
		{"{\"remote_host\":\"\xed\xa0\x80\"}", "remote_host: not UTF-8"},
		{"{\"remote_host\":\"\xf5\x80\x80\x80\"}", "remote_host: not UTF-8"},
		{"{\"remote_host\":\"\"}", "remote_host: must not be empty"},
		{"{\"do_remote_decode\":0}", "do_remote_decode: must be true or false"},
		{"{\"do_remote_decode\":tru}", "do_remote_decode: must be true or false"},
		{"{\"remote_block_ids\":{}}", "remote_block_ids: must be an array"},
		{"{\"remote_block_ids\":[[1],2]}", "remote_block_ids: must be an array"},
		{"{\"remote_block_ids\":[[1 2]]}", "remote_block_ids: not JSON: a comma is missing"},
		{"{\"remote_block_ids\":[[01]]}", "remote_block_ids: not JSON: a number with a leading zero"},
		{"{\"remote_blocks_expiry_time\":Infinity}", "remote_blocks_expiry_time: must be a number"},
		{"{\"remote_blocks_expiry_time\":1.}", "remote_blocks_expiry_time: not JSON: a fraction without digits"},
		{"{\"remote_blocks_expiry_time\":1e}", "remote_blocks_expiry_time: not JSON: an exponent without digits"},
		{"{\"kvlease\":[]}", "kvlease: must be an object"},
		{"{\"kvlease\":{\"v\":1,\"epoch\":5}}", "kvlease.epoch: must be a string"},
		{"{\"kvlease\":{\"v\":1,\"key\":\"12\"}}", "kvlease.key: must be 16 lower-case hexadecimal digits"},
		{"{\"kvlease\":{\"v\":1,\"v\":1}}", "kvlease.v: is there twice"},
		{"{\"kvlease\":{}}", "kvlease.v: is missing"},
		{"{\"kvlease\":{\"v\":1}}", "kvlease.epoch: is missing"},
		{"{}", "remote_block_ids: is missing"},
		{"[]", "parameters: must be an object"},
		{"", "parameters: the text ends too early"},
		{"nul", "parameters: must be an object"},
		{"{\"a\":nul}", "parameters: not JSON: an unknown word"},
		{"{\"a\" 1}", "parameters: not JSON: a colon is missing"},
		{"{a:1}", "parameters: must be a string"},
		{"{\"a\":1,}", "parameters: not JSON: a comma before the end"},
		{"{\"a\":[1,]}", "parameters: not JSON: a comma before the end"},
		{"{\"a\":[1}", "parameters: not JSON: a comma is missing"},
	};
	kvl_remote_t r;
	size_t need;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		size_t len = strlen(cases[i][0]);
		memcpy(text, cases[i][0], len);
		if (read_text(len, &r, &need) != KVL_ERR_INVALID || strncmp(kvl_last_error(), cases[i][1], strlen(cases[i][1])) != 0) {
			fprintf(stderr, "%s: \"%s\", want \"%s\"\n", cases[i][0], kvl_last_error(), cases[i][1]);
			exit(1);
		}
	}
	memcpy(text, "{\"a\":\0}", 7); /* a zero byte is no end */
	CHECK_STATUS(read_text(7, &r, &need), KVL_ERR_INVALID);
}

static void deep_nesting_ends_at_its_bound(void)
{
	kvl_remote_t r;
	size_t need, len = 0;
	len += (size_t)sprintf(text, "{\"a\":");
	memset(text + len, '[', 4 << 20);
	CHECK_STATUS(read_text((4u << 20) - 1, &r, &need), KVL_ERR_INVALID);
	CHECK_ERROR("nested too deeply");
	for (unsigned depth = 1; depth < 40; depth++) { /* 31 arrays inside the object still pass */
		len = (size_t)sprintf(text, "{\"a\":");
		memset(text + len, '[', depth);
		memset(text + len + depth, ']', depth);
		text[len + 2 * depth] = '}';
		CHECK_STATUS(read_text(len + 2 * depth + 1, &r, &need), KVL_ERR_INVALID);
		CHECK((strstr(kvl_last_error(), "nested too deeply") != NULL) == (depth > 31));
	}
}

/* Random damage: whatever comes out, nothing is read or written past its end, and a success is a whole one. */
static void damaged_texts_are_survived(void)
{
	uint64_t seed = 20261129, good = 0, rounds = 60000;
	size_t full = strlen(whole);
	printf("  seed %llu\n", (unsigned long long)seed);
	for (uint64_t i = 0; i < rounds; i++) {
		char *t = malloc(full);
		unsigned char *out = malloc(512);
		kvl_remote_t r = {.size = sizeof r};
		size_t need;
		memcpy(t, whole, full);
		for (int k = 0; k < 1 + (int)(i % 3); k++) {
			static const char bytes[] = "{}[]\",:\\u0019-e.tfn \x80\xff\x00";
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			t[(seed >> 33) % full] = bytes[(seed >> 20) % (sizeof bytes - 1)];
		}
		if (kvl_params_read(t, full, &r, out, 512, &need) == KVL_OK) {
			good++;
			CHECK(r.id.len > 0 && r.host.len > 0 && r.engine_id.len > 0 && r.port > 0 && need <= 512);
		}
		free(out);
		free(t);
	}
	printf("  %llu of %llu still read\n", (unsigned long long)good, (unsigned long long)rounds);
	CHECK(good > 0 && good < rounds);
}

static void what_we_write_we_read(void)
{
	static const uint32_t a[] = {4, 5, 4294967295u}, b[] = {0};
	const kvl_blocks_t groups[] = {{a, 3, 0}, {NULL, 0, 0}, {b, 1, 0}};
	kvl_ctx_t *ctx = open_ctx("{\"leases\":4}");
	kvl_producer_t *p = open_producer(ctx);
	kvl_grant_t g = grant_of("r,\"\\\n\x01/\xc3\xa9", groups, 3, 0);
	kvl_lease_t first, lease;
	kvl_remote_t r;
	size_t len, need, again, key_len;
	char key[256];
	g.tokens = 61;
	CHECK_STATUS(kvl_grant(p, &g, &first), KVL_OK);
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK_STATUS(kvl_cancel(p, first), KVL_OK);
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK_STATUS(kvl_grant(p, &g, &lease), KVL_OK);
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK_STATUS(kvl_params(ctx, lease, &g, text, TEXT, &len), KVL_OK);
	CHECK_EQ(text[len], 0);
	CHECK_STATUS(read_text(len, &r, &need), KVL_OK);
	CHECK(r.id.len == g.id.len && memcmp(r.id.data, g.id.data, g.id.len) == 0);
	CHECK(r.engine_id.len == 3 && memcmp(r.engine_id.data, "P-1", 3) == 0);
	CHECK(r.native == 1 && r.port == 5600 && r.tokens == 61 && r.groups_n == 3);
	CHECK(r.groups[0].n == 3 && r.groups[0].ids[2] == 4294967295u && r.groups[1].n == 0 && r.groups[2].ids[0] == 0);
	CHECK(r.epoch == fake_last()->args.epoch);
	CHECK(r.slot == (uint32_t)lease && r.generation == 1); /* the slot's second use */
	/* the key in the parameters is the one that the core is told */
	CHECK_EQ(fake_last()->log[fake_last()->log_n - 1].tag, KVL_REC_GRANT);
	CHECK(r.key == fake_last()->log[fake_last()->log_n - 1].a);
	CHECK_STATUS(kvl_params_key(ctx, lease, key, sizeof key, &key_len), KVL_OK);
	CHECK(strstr(text, key) != NULL && key_len == strlen(key));
	/* too small a buffer: nothing but the length */
	CHECK_STATUS(kvl_params(ctx, lease, &g, NULL, 0, &again), KVL_ERR_SPACE);
	CHECK_EQ(again, len);
	CHECK_STATUS(kvl_params(ctx, lease, &g, text, len, &again), KVL_ERR_SPACE);
	CHECK_STATUS(kvl_params(ctx, lease, &g, text, len + 1, &again), KVL_OK);
	CHECK_STATUS(kvl_params(ctx, first, &g, text, TEXT, &len), KVL_ERR_STALE);
	CHECK_STATUS(kvl_expect(p, str("e"), &first), KVL_OK); /* no parameters before the grant */
	CHECK_STATUS(kvl_params(ctx, first, &g, text, TEXT, &len), KVL_ERR_STALE);
	CHECK_STATUS(kvl_params_key(ctx, first, key, sizeof key, &key_len), KVL_ERR_STALE);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

static void seconds_become_nanoseconds_without_a_double_between(void)
{
	static const struct {
		const char *text;
		uint64_t ns;
	} all[] = {
		{"null", 0},
		{"0", 1}, /* 0 is for leases that heartbeats renew: this one has ended long ago */
		{"-0", 1},
		{"-5.5", 1},
		{"-1e300", 1},
		{"0.0000000009", 1},
		{"1e-9", 1},
		{"1.9e-9", 1},
		{"2e-9", 2},
		{"12345.678", 12345678000000},
		{"12345.678901234", 12345678901234},
		{"12345.6789012349999", 12345678901234}, /* cut: earlier is the safe side */
		{"0.1", 100000000},
		{"16777217.000000001", 16777217000000001},
		{"1.2345678901234e4", 12345678901234},
		{"12345678901234E-9", 12345678901234},
		{"1e5", 100000000000000},
		{"100000000000000000000000e-18", 100000000000000},
		{"0.000000000000000000000000012345e+24", 12345000},
		{"9223372036.854775807", INT64_MAX},
		{"9223372036.854775808", INT64_MAX},
		{"1e10", INT64_MAX},
		{"1e99999999999999999999", INT64_MAX},
		{"1e-99999999999999999999", 1},
		{"0e99999999999999999999", 1},
		{"99999999999999999999999999999999", INT64_MAX},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		kvl_remote_t r;
		size_t need, len = (size_t)snprintf(text, TEXT,
						    "{\"remote_blocks_expiry_time\":%s,\"remote_block_ids\":[[1]],\"remote_engine_id\":\"P\","
						    "\"remote_request_id\":\"r\",\"remote_host\":\"h\",\"remote_port\":1}",
						    all[i].text);
		CHECK_STATUS(read_text(len, &r, &need), KVL_OK);
		if (r.expires_ns != all[i].ns) {
			fprintf(stderr, "%s: %llu, want %llu\n", all[i].text, (unsigned long long)r.expires_ns, (unsigned long long)all[i].ns);
			exit(1);
		}
		CHECK_EQ(r.pp_size, 1); /* not said */
	}
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	vectors_dir = argv[1];
	RUN(the_vectors_of_the_go_reader_hold_here);
	RUN(each_prefix_is_an_error_that_says_so);
	RUN(seconds_become_nanoseconds_without_a_double_between);
	RUN(errors_name_the_key_and_what_it_must_be);
	RUN(deep_nesting_ends_at_its_bound);
	RUN(damaged_texts_are_survived);
	RUN(what_we_write_we_read);
	return 0;
}
