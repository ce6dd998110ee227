/* kvl_close cuts off what kvl_register is at on another thread: over the real core, with a fake driver whose copies wait. */
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>

#include "check.h"

enum { BLOCKS = 64, BLOCK = 512 };

static kvl_ctx_t *ctx;
static int (*control)(const char *); /* cuda/fakecuda/src/script.c */

typedef struct registering {
	kvl_region_t region;
	int32_t status;
	int left; /* atomic */
	char text[256];
} registering_t;

static void *register_it(void *arg)
{
	registering_t *r = arg;
	r->status = kvl_register(ctx, &r->region, sizeof r->region, 1);
	snprintf(r->text, sizeof r->text, "%s", kvl_last_error());
	__atomic_store_n(&r->left, 1, __ATOMIC_RELEASE);
	return NULL;
}

static kvl_region_t region_at(uint64_t addr, uint32_t mem)
{
	return (kvl_region_t){.addr = addr, .bytes = BLOCKS * BLOCK, .block_len = BLOCK, .block_stride = BLOCK, .blocks = BLOCKS,
			      .group = -1, .mem = mem, .name = str("layer")};
}

static pthread_t begin(registering_t *r)
{
	pthread_t t;
	CHECK(pthread_create(&t, NULL, register_it, r) == 0);
	return t;
}

static void a_close_cuts_a_registration_off_and_closes_when_it_has_left(void)
{
	int base = 0, at = -1;
	registering_t r = {.status = KVL_OK};
	pthread_t t;
	CHECK(control("engine 0 1") == 0 && (at = control("alloc device 0 32768")) >= 0 && (base = control("base 0")) > 0);
	r.region = region_at(((uint64_t)base << 21) + (uint64_t)at * 512, KVL_MEM_VRAM);
	ctx = open_ctx("{\"transport\":\"loopback\"}");
	CHECK(control("gate cuMemcpyDtoH 1") == 0);
	t = begin(&r);
	while (control("count cuMemcpyDtoH") == 0) {
		if (__atomic_load_n(&r.left, __ATOMIC_ACQUIRE)) {
			fprintf(stderr, "kvl_register: %s\n", r.text);
			exit(1);
		}
		sched_yield();
	}
	CHECK_STATUS(kvl_register(ctx, NULL, sizeof(kvl_region_t), 0), KVL_ERR_BUSY);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_ERR_BUSY);
	CHECK_ERROR("call again when kvl_register has returned");
	CHECK(!__atomic_load_n(&r.left, __ATOMIC_ACQUIRE));
	CHECK(control("gate cuMemcpyDtoH 0") == 0);
	CHECK(pthread_join(t, NULL) == 0);
	CHECK_STATUS(r.status, KVL_ERR_CLOSED);
	CHECK(strstr(r.text, "kvl_close has cut the registration off") != NULL);
	CHECK_STATUS(kvl_register(ctx, &r.region, sizeof r.region, 1), KVL_ERR_CLOSED);
	CHECK_STATUS(kvl_close(ctx, 1000000000), KVL_OK);
	CHECK_EQ(control("retains 0"), 1); /* the engine's */
}

/* Wherever the other thread is: what it is told fits, and the context goes when it has left. */
static void a_close_beside_a_registration_at_any_moment(void)
{
	static uint8_t cache[BLOCKS * BLOCK] __attribute__((aligned(4096)));
	int cut = 0, busy = 0;
	for (int i = 0; i < 50; i++) {
		registering_t r = {.region = region_at((uint64_t)(uintptr_t)cache, KVL_MEM_DRAM)};
		int32_t st = KVL_ERR_BUSY;
		pthread_t t;
		ctx = open_ctx("{\"transport\":\"loopback\"}");
		t = begin(&r);
		while (st == KVL_ERR_BUSY && !__atomic_load_n(&r.left, __ATOMIC_ACQUIRE)) {
			if (i % 2 == 0 && kvl_register(ctx, NULL, sizeof(kvl_region_t), 0) != KVL_ERR_BUSY)
				continue; /* not begun, or over; the odd ones do not ask */
			st = kvl_close(ctx, 0);
			busy += st == KVL_ERR_BUSY;
		}
		CHECK(pthread_join(t, NULL) == 0);
		CHECK(r.status == KVL_OK || r.status == KVL_ERR_CLOSED);
		cut += r.status == KVL_ERR_CLOSED;
		if (st == KVL_ERR_BUSY)
			st = kvl_close(ctx, 1000000000);
		CHECK_STATUS(st, KVL_OK);
	}
	printf("  %d of 50 cut off, %d closes refused\n", cut, busy);
}

int main(int argc, char **argv)
{
	void *driver;
	CHECK(argc == 2 && setenv("KVLEASE_CUDA", argv[1], 1) == 0);
	CHECK((driver = dlopen(argv[1], RTLD_NOW)) != NULL);
	*(void **)&control = dlsym(driver, "kvl_fake_cuda_control");
	CHECK(control != NULL);
	RUN(a_close_cuts_a_registration_off_and_closes_when_it_has_left);
	RUN(a_close_beside_a_registration_at_any_moment);
	return 0;
}
