/* The library as a plugin: dlopen, errors of loading the core, dlclose. argv: the library, then a folder to work in. */
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../src/whole.h"
#include "check.h"

typedef int32_t open_fn(const char *, size_t, kvl_ctx_t **, char *, size_t);
typedef int32_t close_fn(kvl_ctx_t *, uint64_t);
typedef int32_t step_fn(kvl_ctx_t *);
#undef CHECK_STATUS /* would call the library by its name */

static void *sym(void *lib, const char *name)
{
	void *s = dlsym(lib, name);
	CHECK(s != NULL);
	return s;
}

/* The first bytes of a file, as of a copy that ran out of disk. */
static void copy_part(const char *from, const char *to, long left)
{
	char buf[4096];
	FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
	CHECK(in != NULL && out != NULL);
	while (left > 0) {
		size_t n = fread(buf, 1, left < (long)sizeof buf ? (size_t)left : sizeof buf, in);
		CHECK(n > 0 && fwrite(buf, 1, n, out) == n);
		left -= (long)n;
	}
	CHECK(fclose(in) == 0 && fclose(out) == 0);
}

int main(int argc, char **argv)
{
	char err[512], empty[4096];
	kvl_ctx_t *ctx = NULL;
	void *lib;
	open_fn *open_it;
	close_fn *close_it;
	step_fn *step_it;
	char *good;
	CHECK(argc == 3);
	CHECK(getenv("KVLEASE_CORE") != NULL);
	good = strdup(getenv("KVLEASE_CORE"));
	lib = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	CHECK(lib != NULL);
	*(void **)&open_it = sym(lib, "kvl_open");
	*(void **)&close_it = sym(lib, "kvl_close");
	*(void **)&step_it = sym(lib, "kvl_step");

	/* no core: beside the library, then where the environment says */
	unsetenv("KVLEASE_CORE");
	CHECK(open_it("{}", 2, &ctx, err, sizeof err) == KVL_ERR_UNAVAILABLE);
	CHECK(strstr(err, "libkvlease-core.so") != NULL);
	setenv("KVLEASE_CORE", "/nowhere/core.so", 1);
	CHECK(open_it("{}", 2, &ctx, err, sizeof err) == KVL_ERR_UNAVAILABLE);
	CHECK(strstr(err, "/nowhere/core.so") != NULL);
	/* a text as long as real paths make it comes whole */
	snprintf(empty, sizeof empty, "/%0300d/core.so", 7);
	setenv("KVLEASE_CORE", empty, 1);
	CHECK(open_it("{}", 2, &ctx, err, sizeof err) == KVL_ERR_UNAVAILABLE);
	CHECK(strstr(err, "7/core.so: ") != NULL);
	/* a library that is no core */
	snprintf(empty, sizeof empty, "%s/libempty.so", argv[2]);
	setenv("KVLEASE_CORE", empty, 1);
	CHECK(open_it("{}", 2, &ctx, err, sizeof err) == KVL_ERR_UNAVAILABLE);
	CHECK(strstr(err, "kvlgo_config") != NULL && strstr(err, "libempty.so") != NULL);
	/* a copy that was broken off, wherever */
	snprintf(empty, sizeof empty, "%s/cut.so", argv[2]);
	copy_part(good, empty, 4096);
	long whole = 4096 + (long)kvl_bytes_missing(empty); /* what lies behind it is for debuggers */
	CHECK(whole > 8192);
	for (long cut = 1; cut <= 16; cut++) {
		copy_part(good, empty, cut < 16 ? whole * cut / 16 : whole - 1);
		setenv("KVLEASE_CORE", empty, 1);
		CHECK(open_it("{}", 2, &ctx, err, sizeof err) == KVL_ERR_UNAVAILABLE);
		CHECK(strstr(err, empty) != NULL);
		CHECK(unlink(empty) == 0);
	}
	/* what no library can be: the loader would wait for a writer of the pipe */
	CHECK(mkfifo(empty, 0600) == 0);
	for (int i = 0; i < 2; i++) {
		setenv("KVLEASE_CORE", i == 0 ? "/dev/null" : empty, 1);
		CHECK(open_it("{}", 2, &ctx, err, sizeof err) == KVL_ERR_UNAVAILABLE);
		CHECK(strstr(err, "is a pipe, a socket or a device") != NULL);
	}
	CHECK(unlink(empty) == 0);
	/* the good one after all that */
	setenv("KVLEASE_CORE", good, 1);
	CHECK(open_it("{}", 2, &ctx, err, sizeof err) == KVL_OK);
	CHECK(step_it(ctx) == KVL_OK);

	/* a host that unloads its plugin: the library stays, and works */
	CHECK(dlclose(lib) == 0);
	CHECK(step_it(ctx) == KVL_OK);
	CHECK(close_it(ctx, 0) == KVL_OK);
	lib = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	CHECK(sym(lib, "kvl_step") == *(void **)&step_it);
	free(good);
	return 0;
}
