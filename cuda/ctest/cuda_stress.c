/* Threads that take and give up contexts beside others that use them, each with a context of its own current: a thread's own one is
 * always given back, and the last hold but the engine's is never the one that ends a context. Under TSAN a table that is
 * touched without its lock is a reported race. */
#include "shim.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 2000, BYTES = 4096, NONE = 99 };

#define CHECK(ok) \
	do { \
		if (!(ok)) { \
			fprintf(stderr, "%s:%d: %s (%s: %d)\n", __FILE__, __LINE__, #ok, fault.call, fault.code); \
			exit(1); \
		} \
	} while (0)

static int32_t library;
static int (*control)(const char *);
static _Thread_local kvlc_fault_t fault;
static const char *file;

/* Opens the library again and again: it stays one. */
static void *opens(void *unused)
{
	(void)unused;
	for (int i = 0; i < ROUNDS / 20; i++) {
		int32_t again = -1, version = 0, n = 0;
		char text[256] = "";
		CHECK(kvlc_library_open(file, &again, &version, &fault, text, sizeof text) == KVLC_OK && again == library);
		CHECK(kvlc_device_count(library, &n, &fault) == KVLC_OK && n == 2);
	}
	return NULL;
}

/* Takes and gives up a hold of device 1, which nobody but the engine keeps meanwhile. */
static void *holds(void *unused)
{
	(void)unused;
	for (int i = 0; i < ROUNDS; i++) {
		int32_t pushed = 0;
		CHECK(kvlc_retain(library, 1, &fault) == KVLC_OK);
		CHECK(kvlc_enter(library, 1, &pushed, &fault) == KVLC_OK && pushed && control("current") == 1);
		CHECK(kvlc_leave(library, 1, &fault) == KVLC_OK && control("current") == NONE);
		CHECK(kvlc_release(library, 1, &fault) == KVLC_OK);
	}
	return NULL;
}

/* Works on device 0 with the context of device 1 current, as a thread of an engine may have it. */
static void *works(void *unused)
{
	(void)unused;
	int32_t pushed = 0;
	uint64_t stream = 0, event = 0;
	CHECK(kvlc_retain(library, 1, &fault) == KVLC_OK);
	CHECK(kvlc_enter(library, 1, &pushed, &fault) == KVLC_OK && pushed);
	CHECK(kvlc_stream(library, 0, &stream, &fault) == KVLC_OK && kvlc_event(library, 0, &event, &fault) == KVLC_OK);
	for (int i = 0; i < ROUNDS; i++) {
		uint64_t addr = 0;
		uint8_t out[BYTES];
		kvlc_pointer_t p;
		CHECK(kvlc_alloc(library, 0, BYTES, &addr, &fault) == KVLC_OK);
		CHECK(kvlc_fill(library, 0, addr, (uint8_t)i, BYTES, &fault) == KVLC_OK);
		CHECK(kvlc_copy_out(library, 0, out, addr, BYTES, &fault) == KVLC_OK && out[0] == (uint8_t)i && out[BYTES - 1] == (uint8_t)i);
		CHECK(kvlc_pointer(library, addr, &p, &fault) == KVLC_OK && p.kind == KVLC_DEVICE && p.device == 0 && p.base == addr && p.bytes == BYTES);
		CHECK(kvlc_sync_memops(library, 0, addr, &fault) == KVLC_OK);
		CHECK(kvlc_fill(library, 0, addr, (uint8_t)(i + 1), BYTES / 2, &fault) == KVLC_OK);
		const kvlc_copy_t halves[] = {{addr + BYTES / 2, addr, BYTES / 4}, {addr + BYTES / 4 * 3, addr, BYTES / 4}, {addr + BYTES / 2, addr, BYTES}};
		uint32_t begun = 0;
		CHECK(kvlc_copies(library, 0, stream, halves, 2, event, &begun, &fault) == KVLC_OK && begun == 2);
		CHECK(kvlc_event_query(library, 0, event, &fault) == KVLC_OK);
		CHECK(kvlc_copy_out(library, 0, out, addr, BYTES, &fault) == KVLC_OK && out[BYTES / 2] == (uint8_t)(i + 1) && out[BYTES - 1] == (uint8_t)(i + 1));
		CHECK(kvlc_copies(library, 0, stream, halves, 3, event, &begun, &fault) == KVLC_CUDA && begun == 2 && strcmp(fault.call, "cuMemcpyDtoDAsync") == 0);
		kvlc_shared_t handle;
		uint64_t base = 0;
		CHECK(kvlc_share(library, 0, addr + 1, &handle, &fault) == KVLC_OK);
		CHECK(kvlc_open_shared(library, 0, &handle, &base, &fault) == KVLC_CUDA && fault.code == 201); /* its own process's */
		CHECK(kvlc_close_shared(library, 0, addr, &fault) == KVLC_CUDA);
		CHECK(kvlc_event_record(library, 0, event, stream, &fault) == KVLC_OK && kvlc_event_query(library, 0, event, &fault) == KVLC_OK);
		CHECK(kvlc_copy_out(library, 0, out, addr, BYTES + 1, &fault) == KVLC_CUDA && strcmp(fault.call, "cuMemcpyDtoH") == 0);
		CHECK(control("current") == 1);
		CHECK(kvlc_free(library, 0, addr, &fault) == KVLC_OK);
	}
	CHECK(kvlc_event_end(library, 0, event, &fault) == KVLC_OK && kvlc_stream_end(library, 0, stream, &fault) == KVLC_OK);
	CHECK(kvlc_leave(library, 1, &fault) == KVLC_OK && control("current") == NONE);
	CHECK(kvlc_release(library, 1, &fault) == KVLC_OK);
	return NULL;
}

int main(int argc, char **argv)
{
	char text[256] = "";
	int32_t version = 0, pushed;
	file = argc > 1 ? argv[1] : "libfakecuda.so";
	void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	void *at = handle != NULL ? dlsym(handle, "kvl_fake_cuda_control") : NULL;
	CHECK(at != NULL);
	memcpy(&control, &at, sizeof at);
	CHECK(kvlc_library_open(file, &library, &version, &fault, text, sizeof text) == KVLC_OK && version == 12080);
	CHECK(kvlc_retain(library, 0, &fault) == KVLC_NO_CONTEXT);
	CHECK(control("engine 0 1") == 0 && control("engine 1 1") == 0);
	CHECK(kvlc_enter(library, 0, &pushed, &fault) == KVLC_NO_DEVICE && kvlc_enter(library + 1, 0, &pushed, &fault) == KVLC_NO_DEVICE);
	CHECK(kvlc_retain(library, 0, &fault) == KVLC_OK);
	void *(*const bodies[])(void *) = {opens, holds, holds, works, works};
	enum { THREADS = sizeof bodies / sizeof bodies[0] };
	pthread_t threads[THREADS];
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, bodies[i], NULL) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(control("retains 0") == 2 && control("retains 1") == 1);
	CHECK(kvlc_release(library, 0, &fault) == KVLC_OK && control("retains 0") == 1 && control("active 1") == 1);
	printf("%d threads, %d rounds each\n", THREADS, ROUNDS);
	return 0;
}
