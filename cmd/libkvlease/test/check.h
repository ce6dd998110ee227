/* The smallest test frame: CHECK ends the program with place and values. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kvlease.h"

#define CHECK(cond)                                                                                                    \
	do {                                                                                                           \
		if (!(cond)) {                                                                                         \
			fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__, #cond);               \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

#define CHECK_EQ(got, want)                                                                                            \
	do {                                                                                                           \
		long long got_ = (long long)(got), want_ = (long long)(want);                                          \
		if (got_ != want_) {                                                                                   \
			fprintf(stderr, "%s:%d: %s: %s = %lld, want %lld (%s)\n", __FILE__, __LINE__, __func__, #got,   \
				got_, want_, kvl_last_error());                                                        \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

#define CHECK_STATUS(call, want)                                                                                       \
	do {                                                                                                           \
		int32_t got_ = (call), want_ = (want);                                                                 \
		if (got_ != want_) {                                                                                   \
			fprintf(stderr, "%s:%d: %s: %s is %s, want %s (%s)\n", __FILE__, __LINE__, __func__, #call,     \
				kvl_status_name(got_), kvl_status_name(want_), kvl_last_error());                      \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

#define CHECK_ERROR(text) CHECK(strstr(kvl_last_error(), (text)) != NULL)

#define RUN(test)                                                                                                      \
	do {                                                                                                           \
		printf("%s\n", #test);                                                                                 \
		fflush(stdout);                                                                                        \
		test();                                                                                                \
	} while (0)

static inline kvl_bytes_t str(const char *s)
{
	kvl_bytes_t b;
	b.data = s;
	b.len = strlen(s);
	return b;
}

static inline kvl_ctx_t *open_ctx(const char *config)
{
	char err[256] = "";
	kvl_ctx_t *ctx = NULL;
	int32_t st = kvl_open(config, strlen(config), &ctx, err, sizeof err);
	if (st != KVL_OK) {
		fprintf(stderr, "kvl_open(%s): %s: %s\n", config, kvl_status_name(st), err);
		exit(1);
	}
	return ctx;
}

static inline kvl_producer_t *open_producer(kvl_ctx_t *ctx)
{
	kvl_producer_t *p = NULL;
	CHECK_STATUS(kvl_producer_open(ctx, &p), KVL_OK);
	return p;
}

static inline kvl_remote_t remote_of(const char *id)
{
	kvl_remote_t r;
	memset(&r, 0, sizeof r);
	r.size = sizeof r;
	r.native = 1;
	r.id = str(id);
	r.tp_size = 1;
	r.epoch = 7;
	r.slot = 3;
	r.key = 9;
	return r;
}

static inline kvl_grant_t grant_of(const char *id, const kvl_blocks_t *groups, uint32_t groups_n, uint64_t user)
{
	kvl_grant_t g;
	memset(&g, 0, sizeof g);
	g.size = sizeof g;
	g.id = str(id);
	g.groups = groups;
	g.groups_n = groups_n;
	g.user = user;
	return g;
}

static inline uint64_t boot_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_BOOTTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
