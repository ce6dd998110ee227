/* What a grant promises and what its parameters say: fixed lives, and the era in which a lease was granted. */
#include <pthread.h>

#include "check.h"
#include "fakecore.h"

static const uint32_t ids[] = {1, 2};
static const kvl_blocks_t blocks = {ids, 2, 0};

static uint64_t monotonic_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static kvl_remote_t params_of(kvl_ctx_t *c, kvl_lease_t l, const kvl_grant_t *g)
{
	static char text[4096];
	static uint64_t buf[512];
	kvl_remote_t r = {.size = sizeof r};
	size_t len, need;
	CHECK_STATUS(kvl_params(c, l, g, text, sizeof text, &len), KVL_OK);
	CHECK_STATUS(kvl_params_read(text, len, &r, buf, sizeof buf, &need), KVL_OK);
	CHECK_EQ(r.native, 1);
	return r;
}

static void the_parameters_of_a_fixed_lease_name_its_end(void)
{
	kvl_ctx_t *c = open_ctx("{}");
	kvl_producer_t *p = open_producer(c);
	fake_core_t *f = fake_last();
	kvl_grant_t g = grant_of("r", &blocks, 1, 0);
	uint64_t before, after, ttl[] = {7000000123u, 0}, want[] = {7000000123u, 480000000000u}; /* 0: decoder_kv_blocks_ttl */
	kvl_lease_t l;
	g.flags = KVL_GRANT_FIXED;
	for (int i = 0; i < 2; i++) {
		kvl_remote_t r, again;
		g.ttl_ns = ttl[i];
		before = monotonic_ns();
		CHECK_STATUS(kvl_grant(p, &g, &l), KVL_OK);
		after = monotonic_ns();
		r = params_of(c, l, &g);
		again = params_of(c, l, &g);
		CHECK(r.expires_ns >= before + want[i] && r.expires_ns <= after + want[i]);
		CHECK_EQ(again.expires_ns, r.expires_ns); /* counted from the grant, whenever the parameters are made */
		CHECK_STATUS(kvl_step(c), KVL_OK);
		CHECK_EQ(f->log[i].flags, KVL_GRANT_FIXED);
		CHECK_EQ(f->log[i].c, want[i]);
		/* The end that is kept, in the other clock: never before the one that is told. */
		CHECK(f->log[i].b + f->log[i].c - (boot_ns() - monotonic_ns()) + 1000000 > r.expires_ns);
	}
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);
}

static void the_parameters_of_a_lease_that_heartbeats_renew_name_none(void)
{
	kvl_ctx_t *c = open_ctx("{\"leases\":1}");
	kvl_producer_t *p = open_producer(c);
	kvl_grant_t g = grant_of("r", &blocks, 1, 0), fixed = g;
	kvl_lease_t l;
	char text[1024];
	size_t len;
	fixed.flags = KVL_GRANT_FIXED;
	CHECK_STATUS(kvl_grant(p, &fixed, &l), KVL_OK);
	CHECK_STATUS(kvl_params(c, l, &fixed, text, sizeof text, &len), KVL_OK);
	CHECK(strstr(text, "\"do_remote_prefill\":false,\"do_remote_decode\":true,") != NULL); /* blocks of a decode engine */
	CHECK_STATUS(kvl_cancel(p, l), KVL_OK);
	CHECK_STATUS(kvl_step(c), KVL_OK);
	CHECK_STATUS(kvl_grant(p, &g, &l), KVL_OK); /* in the same slot */
	CHECK_STATUS(kvl_params(c, l, &g, text, sizeof text, &len), KVL_OK);
	CHECK(strstr(text, "\"remote_blocks_expiry_time\":null,") != NULL);
	CHECK(strstr(text, "\"do_remote_prefill\":true,\"do_remote_decode\":false,") != NULL);
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);
}

static kvl_region_t cache(uint32_t mem)
{
	static uint8_t memory[2 * 4096];
	return (kvl_region_t){.addr = (uintptr_t)memory, .bytes = sizeof memory, .block_len = 4096, .block_stride = 4096, .blocks = 2, .group = -1, .mem = mem};
}

static void an_event_that_nobody_could_ask_is_refused(void)
{
	static const uint32_t own[] = {0, 1};
	kvl_ctx_t *c = open_ctx("{}");
	kvl_producer_t *p = open_producer(c);
	kvl_region_t host = cache(KVL_MEM_DRAM), device = cache(KVL_MEM_VRAM);
	kvl_grant_t g = grant_of("r", &(kvl_blocks_t){own, 2, 0}, 1, 0);
	kvl_lease_t l = 77;
	g.ready_event = 1;
	CHECK_STATUS(kvl_grant(p, &g, &l), KVL_ERR_INVALID);
	CHECK(strstr(kvl_last_error(), "ready_event") != NULL);
	CHECK_STATUS(kvl_register(c, &host, sizeof host, 1), KVL_OK);
	CHECK_STATUS(kvl_grant(p, &g, &l), KVL_ERR_INVALID);
	CHECK(strstr(kvl_last_error(), "no device memory") != NULL);
	CHECK_STATUS(kvl_unregister(c), KVL_OK);
	CHECK_STATUS(kvl_register(c, &device, sizeof device, 1), KVL_OK);
	CHECK_STATUS(kvl_unregister(c), KVL_OK);
	CHECK_STATUS(kvl_grant(p, &g, &l), KVL_ERR_INVALID);
	CHECK_EQ(l, 77);
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);
}

static void no_parameters_leave_before_the_event_has_fired(void)
{
	static const uint32_t own[] = {0, 1};
	kvl_ctx_t *c = open_ctx("{}");
	kvl_producer_t *p = open_producer(c);
	fake_core_t *f = fake_last();
	kvl_region_t device = cache(KVL_MEM_VRAM);
	kvl_grant_t g = grant_of("r", &(kvl_blocks_t){own, 2, 0}, 1, 0), expected = g;
	kvl_lease_t l, second;
	char text[1024] = "as it was";
	size_t len = 5;
	CHECK_STATUS(kvl_register(c, &device, sizeof device, 1), KVL_OK);
	g.ready_event = 0x1234;
	CHECK_STATUS(kvl_grant(p, &g, &l), KVL_OK);
	for (int i = 0; i < 2; i++) { /* before and after the core has it */
		CHECK_STATUS(kvl_params(c, l, &g, text, sizeof text, &len), KVL_ERR_BUSY);
		CHECK(strstr(kvl_last_error(), "ready_event has not fired") != NULL);
		CHECK_STATUS(kvl_params_key(c, l, text, sizeof text, &len), KVL_ERR_BUSY);
		CHECK(strcmp(text, "as it was") == 0 && len == 5);
		CHECK_STATUS(kvl_step(c), KVL_OK);
	}
	CHECK_EQ(f->log[0].event, 0x1234);
	fake_check_all(f); /* what is known of readers says nothing of the blocks */
	CHECK_STATUS(kvl_params(c, l, &g, text, sizeof text, &len), KVL_ERR_BUSY);
	fake_ready(f, l);
	CHECK_STATUS(kvl_params(c, l, &g, text, sizeof text, &len), KVL_OK);
	CHECK_STATUS(kvl_params_key(c, l, text, sizeof text, &len), KVL_OK);

	CHECK_STATUS(kvl_expect(p, str("s"), &expected.expected), KVL_OK);
	expected.ready_event = 1;
	CHECK_STATUS(kvl_grant(p, &expected, &second), KVL_OK);
	CHECK_STATUS(kvl_params(c, second, &expected, text, sizeof text, &len), KVL_ERR_BUSY);
	CHECK_STATUS(kvl_cancel(p, second), KVL_OK);
	CHECK_STATUS(kvl_step(c), KVL_OK);
	CHECK_STATUS(kvl_params(c, second, &expected, text, sizeof text, &len), KVL_ERR_STALE); /* over, and not unready */
	expected.ready_event = expected.expected = 0;
	CHECK_STATUS(kvl_grant(p, &expected, &second), KVL_OK); /* the slot is written anew */
	CHECK_STATUS(kvl_params(c, second, &expected, text, sizeof text, &len), KVL_OK);
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);
}

static void a_grant_that_takes_up_an_expectation_may_be_fixed(void)
{
	kvl_ctx_t *c = open_ctx("{}");
	kvl_producer_t *p = open_producer(c);
	kvl_grant_t g = grant_of("r", &blocks, 1, 0);
	kvl_lease_t l;
	CHECK_STATUS(kvl_expect(p, str("r"), &g.expected), KVL_OK);
	g.flags = KVL_GRANT_FIXED;
	g.ttl_ns = 1000000000u;
	CHECK_STATUS(kvl_grant(p, &g, &l), KVL_OK);
	CHECK_EQ(l, g.expected);
	CHECK(params_of(c, l, &g).expires_ns > monotonic_ns());
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);
}

static void parameters_are_of_the_era_in_which_they_are_made(void)
{
	kvl_ctx_t *c = open_ctx("{}");
	kvl_producer_t *p = open_producer(c);
	fake_core_t *f = fake_last();
	kvl_grant_t g = grant_of("r", &blocks, 1, 0);
	kvl_remote_t r;
	kvl_lease_t l;
	CHECK_STATUS(kvl_grant(p, &g, &l), KVL_OK);
	r = params_of(c, l, &g);
	CHECK_EQ(r.epoch, f->args.epoch);
	CHECK_STATUS(kvl_cancel(p, l), KVL_OK);
	CHECK_STATUS(kvl_step(c), KVL_OK);
	CHECK_EQ(f->log[0].a, r.key);

	fake_era(f, 0xfeed, 42);
	CHECK_STATUS(kvl_grant(p, &g, &l), KVL_OK);
	CHECK_STATUS(kvl_step(c), KVL_OK);
	CHECK_EQ(params_of(c, l, &g).epoch, 0xfeed);
	CHECK(params_of(c, l, &g).key != r.key);
	CHECK_EQ(params_of(c, l, &g).key, f->log[2].a); /* what readers show is what the core was told */
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);
}

static void an_era_that_is_being_written_is_waited_for_only_so_long(void)
{
	kvl_ctx_t *c = open_ctx("{}");
	kvl_producer_t *p = open_producer(c);
	kvl_control_t *control = fake_last()->args.control;
	kvl_grant_t g = grant_of("r", &blocks, 1, 0);
	kvl_lease_t l, other = 77;
	char text[256];
	size_t len = 77;
	CHECK_STATUS(kvl_grant(p, &g, &l), KVL_OK);
	__atomic_store_n(&control->era, 3, __ATOMIC_RELEASE);
	CHECK_STATUS(kvl_grant(p, &g, &other), KVL_ERR_BUSY);
	CHECK_ERROR("registered again");
	CHECK_STATUS(kvl_params_key(c, l, text, sizeof text, &len), KVL_ERR_BUSY);
	CHECK(other == 77 && len == 77);
	__atomic_store_n(&control->era, 4, __ATOMIC_RELEASE);
	CHECK_STATUS(kvl_grant(p, &g, &other), KVL_OK);
	CHECK_STATUS(kvl_params_key(c, l, text, sizeof text, &len), KVL_OK);
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);
}

static int over;
static void *begins_eras(void *f)
{
	for (uint64_t n = 1; !__atomic_load_n(&over, __ATOMIC_ACQUIRE); n++)
		fake_era(f, n, n * 1000);
	return NULL;
}

static void parameters_never_mix_two_eras(void)
{
	kvl_ctx_t *c = open_ctx("{}");
	kvl_producer_t *p = open_producer(c);
	fake_core_t *f = fake_last();
	kvl_grant_t g = grant_of("r", &blocks, 1, 0);
	kvl_lease_t l;
	pthread_t t;
	uint64_t keys[2] = {0, 0}, seen = 0;
	CHECK_STATUS(kvl_grant(p, &g, &l), KVL_OK);
	fake_era(f, 1, 1000);
	pthread_create(&t, NULL, begins_eras, f);
	for (int i = 0; i < 20000; i++) {
		static char text[256];
		size_t len;
		unsigned long long epoch, key;
		int32_t st = kvl_params_key(c, l, text, sizeof text, &len);
		if (st == KVL_ERR_BUSY)
			continue;
		CHECK_STATUS(st, KVL_OK);
		CHECK_EQ(sscanf(text, "{\"v\":1,\"epoch\":\"%16llx\",\"slot\":0,\"g\":0,\"key\":\"%16llx\"}", &epoch, &key), 2);
		if (epoch == keys[0]) /* one era, one key */
			CHECK_EQ((int64_t)key, (int64_t)keys[1]);
		keys[0] = epoch;
		keys[1] = key;
		seen++;
	}
	__atomic_store_n(&over, 1, __ATOMIC_RELEASE);
	pthread_join(t, NULL);
	printf("  %llu of 20000 read\n", (unsigned long long)seen);
	CHECK(seen > 0);
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);
}

int main(void)
{
	RUN(the_parameters_of_a_fixed_lease_name_its_end);
	RUN(the_parameters_of_a_lease_that_heartbeats_renew_name_none);
	RUN(an_event_that_nobody_could_ask_is_refused);
	RUN(no_parameters_leave_before_the_event_has_fired);
	RUN(a_grant_that_takes_up_an_expectation_may_be_fixed);
	RUN(parameters_are_of_the_era_in_which_they_are_made);
	RUN(an_era_that_is_being_written_is_waited_for_only_so_long);
	RUN(parameters_never_mix_two_eras);
	return 0;
}
