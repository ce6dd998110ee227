#include "library.h"
#include "../cmd/libkvlease/src/whole.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void say(char *text, size_t cap, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void say(char *text, size_t cap, const char *format, ...)
{
	if (text == NULL || cap == 0)
		return;
	va_list args;
	va_start(args, format);
	vsnprintf(text, cap, format, args);
	va_end(args);
}

int32_t kvlc_fault(kvlc_fault_t *fault, const char *call, CUresult result)
{
	if (result == CUDA_SUCCESS)
		return KVLC_OK;
	fault->code = result;
	say(fault->call, sizeof fault->call, "%s", call);
	return KVLC_CUDA;
}

static const char *const symbols[] = {
	"cuDriverGetVersion",
	"cuGetProcAddress_v2",
#define CUDA_NAME(name, version, args) #name,
	CUDA_SYMBOLS(CUDA_NAME)
#undef CUDA_NAME
};

const char *kvlc_symbol(uint32_t i)
{
	return i < sizeof symbols / sizeof symbols[0] ? symbols[i] : NULL;
}

int kvlc_getenv(const char *name, char *out, size_t cap)
{
	const char *v = getenv(name);
	if (v == NULL)
		return 0;
	say(out, cap, "%s", v);
	return 1;
}

static library_t libraries[KVLC_LIBRARIES_MAX];
static pthread_mutex_t tables = PTHREAD_MUTEX_INITIALIZER; /* guards the table on open */

library_t *kvlc_library(int32_t library)
{
	/* O2: acquire; pairs with O1 in keep. The table of functions is written before the handle is seen. */
	if (library < 0 || library >= KVLC_LIBRARIES_MAX || __atomic_load_n(&libraries[library].handle, __ATOMIC_ACQUIRE) == NULL)
		return NULL;
	return &libraries[library];
}

static int32_t lacks(kvlc_fault_t *fault, const char *name)
{
	fault->code = 0;
	say(fault->call, sizeof fault->call, "%s", name);
	return KVLC_NO_SYMBOL;
}

/* The version first: an old driver lacks symbols, and that is not what is wrong with it. */
static int32_t look_up(void *handle, cuda_api_t *api, int32_t *version_out, kvlc_fault_t *fault)
{
	cuDriverGetVersion_t get_version;
	cuGetProcAddress_t get;
	void *at = dlsym(handle, "cuDriverGetVersion");
	if (at == NULL)
		return lacks(fault, "cuDriverGetVersion");
	memcpy(&get_version, &at, sizeof at);
	int version = 0;
	int32_t st = kvlc_fault(fault, "cuDriverGetVersion", get_version(&version));
	if (st != KVLC_OK)
		return st;
	*version_out = version;
	if (version < KVLC_DRIVER_MIN) {
		fault->code = version;
		return KVLC_OLD_DRIVER;
	}
	at = dlsym(handle, "cuGetProcAddress_v2");
	if (at == NULL)
		return lacks(fault, "cuGetProcAddress_v2");
	memcpy(&get, &at, sizeof at);
	/* The flags name the legacy default stream, as our own declarations do: 0 would leave the choice to the driver. */
#define CUDA_LOOK_UP(name, since, args) \
	do { \
		int found = CU_GET_PROC_ADDRESS_SUCCESS; \
		at = NULL; \
		if (get(#name, &at, since, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found) != CUDA_SUCCESS || at == NULL || \
		    found != CU_GET_PROC_ADDRESS_SUCCESS) { \
			if (since > KVLC_DRIVER_MIN) \
				break; \
			return lacks(fault, #name); \
		} \
		memcpy(&api->name, &at, sizeof at); \
	} while (0);
	CUDA_SYMBOLS(CUDA_LOOK_UP)
	CUDA_SYMBOLS_LATER(CUDA_LOOK_UP)
#undef CUDA_LOOK_UP
	return KVLC_OK;
}

/* Gives a library its place, under tables. */
static int32_t keep(void *handle, const cuda_api_t *api, int32_t *library_out)
{
	for (int32_t i = 0; i < KVLC_LIBRARIES_MAX; i++) {
		library_t *l = &libraries[i];
		if (l->handle == handle) {
			dlclose(handle); /* one reference is enough */
			*library_out = i;
			return KVLC_OK;
		}
		if (l->handle != NULL)
			continue;
		l->api = *api;
		pthread_mutex_init(&l->lock, NULL);
		__atomic_store_n(&l->handle, handle, __ATOMIC_RELEASE); /* O1: release; pairs with O2 in kvlc_library. */
		*library_out = i;
		return KVLC_OK;
	}
	return KVLC_FULL;
}

static int32_t take(void *handle, int begin, int32_t *library_out, int32_t *version_out, kvlc_fault_t *fault)
{
	cuda_api_t api;
	memset(&api, 0, sizeof api);
	int32_t st = look_up(handle, &api, version_out, fault);
	if (st == KVLC_OK && begin)
		st = CALL(&(library_t){.api = api}, fault, cuInit, 0);
	if (st == KVLC_OK) {
		pthread_mutex_lock(&tables);
		st = keep(handle, &api, library_out);
		pthread_mutex_unlock(&tables);
	}
	if (st != KVLC_OK)
		dlclose(handle);
	return st;
}

int32_t kvlc_library_open(const char *file, int32_t *library_out, int32_t *version_out, kvlc_fault_t *fault, char *text, size_t text_cap)
{
	const char *why = kvl_unloadable(file);
	if (why != NULL) {
		say(text, text_cap, "%s %s: install it again", file, why);
		return KVLC_NO_LIBRARY;
	}
	/* NODELETE: the driver leaves threads behind. */
	void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (handle == NULL) {
		say(text, text_cap, "%s", dlerror());
		return KVLC_NO_LIBRARY;
	}
	return take(handle, 1, library_out, version_out, fault);
}

int32_t kvlc_library_loaded(const char *file, int32_t *library_out, int32_t *version_out, kvlc_fault_t *fault)
{
	void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
	if (handle == NULL)
		return KVLC_NO_LIBRARY;
	return take(handle, 0, library_out, version_out, fault);
}

int kvlc_library_file(int32_t library, char *out, size_t cap)
{
	library_t *l = kvlc_library(library);
	if (l == NULL)
		return 0;
	void *at = dlsym(l->handle, "cuGetProcAddress_v2");
	Dl_info info;
	if (at == NULL || dladdr(at, &info) == 0 || info.dli_fname == NULL)
		return 0;
	say(out, cap, "%s", info.dli_fname);
	return 1;
}
