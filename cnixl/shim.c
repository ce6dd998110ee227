#include "agent.h"
#include "../cmd/libkvlease/src/whole.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static atomic_uint_fast64_t mallocs;

void *kvlx_calloc(size_t n, size_t size)
{
	atomic_fetch_add_explicit(&mallocs, 1, memory_order_relaxed);
	return calloc(n, size);
}

uint64_t kvlx_mallocs(void)
{
	return atomic_load_explicit(&mallocs, memory_order_relaxed);
}

void kvlx_text(char *text, size_t cap, const char *format, ...)
{
	if (text == NULL || cap == 0)
		return;
	va_list args;
	va_start(args, format);
	vsnprintf(text, cap, format, args);
	va_end(args);
}

static const char *const symbols[] = {
#define NIXL_NAME(result, name, args) "nixl_capi_" #name,
	NIXL_SYMBOLS(NIXL_NAME)
#undef NIXL_NAME
};

const char *kvlx_symbol(uint32_t i)
{
	return i < sizeof symbols / sizeof symbols[0] ? symbols[i] : NULL;
}

void kvlx_environment(const char *plugins)
{
	if (plugins != NULL)
		setenv("NIXL_PLUGIN_DIR", plugins, 0);
	/* UCX would take SIGHUP from the host otherwise. */
	setenv("UCX_DEBUG_SIGNO", "0", 0);
	/* UCX would write its log, every lost connection, into the host's stdout otherwise. */
	setenv("UCX_LOG_FILE", "stderr", 0);
	/* Each failing send writes a line to stderr otherwise; we count and report it ourselves. */
	setenv("NIXL_LOG_LEVEL", "FATAL", 0);
}

int kvlx_getenv(const char *name, char *out, size_t cap)
{
	const char *v = getenv(name);
	if (v == NULL)
		return 0;
	kvlx_text(out, cap, "%s", v);
	return 1;
}

static struct {
	void *handle;
	nixl_api_t api;
} libraries[KVLX_LIBRARIES_MAX];

/* Guards libraries and the table of agents; taken on open and close only. */
pthread_mutex_t kvlx_tables = PTHREAD_MUTEX_INITIALIZER;

const nixl_api_t *kvlx_library(int32_t library)
{
	if (library < 0 || library >= KVLX_LIBRARIES_MAX || libraries[library].handle == NULL)
		return NULL;
	return &libraries[library].api;
}

static int32_t look_up(void *handle, const char *file, nixl_api_t *api, char *text, size_t text_cap)
{
#define NIXL_LOOK_UP(result, name, args) \
	do { \
		void *at = dlsym(handle, "nixl_capi_" #name); \
		if (at == NULL) { \
			kvlx_text(text, text_cap, "%s has no symbol nixl_capi_%s", file, #name); \
			return KVLX_UNAVAILABLE; \
		} \
		memcpy(&api->name, &at, sizeof at); \
	} while (0);
	NIXL_SYMBOLS(NIXL_LOOK_UP)
#undef NIXL_LOOK_UP
	if (api->is_stub()) {
		kvlx_text(text, text_cap, "%s is a stub without NIXL behind it", file);
		return KVLX_UNAVAILABLE;
	}
	return KVLX_OK;
}

int32_t kvlx_library_open(const char *file, int32_t *library_out, char *text, size_t text_cap)
{
	/* NODELETE: UCX leaves threads and patched functions behind, so the library stays for the life of the process. */
	const char *why = kvl_unloadable(file);
	if (why != NULL) {
		kvlx_text(text, text_cap, "%s %s: fetch it again", file, why);
		return KVLX_UNAVAILABLE;
	}
	void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (handle == NULL) {
		kvlx_text(text, text_cap, "%s", dlerror());
		return KVLX_UNAVAILABLE;
	}
	nixl_api_t api;
	memset(&api, 0, sizeof api);
	int32_t st = look_up(handle, file, &api, text, text_cap);
	if (st != KVLX_OK) {
		dlclose(handle);
		return st;
	}
	pthread_mutex_lock(&kvlx_tables);
	st = KVLX_FULL;
	for (int32_t i = 0; i < KVLX_LIBRARIES_MAX; i++) {
		if (libraries[i].handle != NULL && libraries[i].handle != handle)
			continue;
		if (libraries[i].handle == handle)
			dlclose(handle); /* one reference is enough */
		libraries[i].handle = handle;
		libraries[i].api = api;
		*library_out = i;
		st = KVLX_OK;
		break;
	}
	pthread_mutex_unlock(&kvlx_tables);
	if (st != KVLX_OK)
		kvlx_text(text, text_cap, "%d NIXL libraries are open in this process", KVLX_LIBRARIES_MAX);
	return st;
}

int kvlx_library_file(int32_t library, char *out, size_t cap)
{
	const nixl_api_t *api = kvlx_library(library);
	if (api == NULL)
		return 0;
	void *at;
	memcpy(&at, &api->gen_notif, sizeof at);
	Dl_info info;
	if (dladdr(at, &info) == 0 || info.dli_fname == NULL)
		return 0;
	kvlx_text(out, cap, "%s", info.dli_fname);
	return 1;
}
