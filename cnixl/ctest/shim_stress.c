/* Fault case C73 in C: one thread loads, drops, registers and asks for metadata at full speed while another runs steps.
 * Under TSAN a table of the shim that is touched without its lock is a reported race; under ASAN a late use is. */
#include "shim.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 3000, DESCS = 32, MEM = 1 << 16 };

#define CHECK(ok) \
	do { \
		if (!(ok)) { \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #ok); \
			exit(1); \
		} \
	} while (0)

static int32_t decode, prefill;
static uint8_t other_blob[8192];
static size_t other_len;
static uint8_t extra[MEM];
static atomic_int stepping = 1;
static atomic_uint passing; /* the peer that comes and goes, or went */

static int32_t open_agent(int32_t library, const char *name)
{
	char text[512] = "";
	int32_t agent = 0;
	const kvlx_config_t config = {
		.progress_thread = 1, .thread_sync = 2, .progress_delay_us = 100000, .peers_max = 8, .reads_max = 4, .regions_max = 8};
	if (kvlx_open(library, name, &config, &agent, text, sizeof text) != KVLX_OK) {
		fprintf(stderr, "%s: %s\n", name, text);
		exit(1);
	}
	return agent;
}

static kvlx_region_t region(void *at, size_t bytes)
{
	return (kvlx_region_t){.addr = (uintptr_t)at, .bytes = bytes};
}

static void *come_and_go(void *unused)
{
	(void)unused;
	long n = 0;
	while (atomic_load(&stepping)) {
		uint32_t peer = 0;
		uint8_t blob[8192];
		size_t len = 0;
		const kvlx_region_t r = region(extra, sizeof extra);
		CHECK(kvlx_alias(decode, "other", 5) == 0);
		CHECK(kvlx_load(decode, other_blob, other_len, 5, 0, &peer) == KVLX_OK);
		atomic_store(&passing, peer);
		CHECK(kvlx_alias(decode, "other", 5) == KVLX_INVALID); /* loaded: NIXL is not asked */
		CHECK(kvlx_register(decode, &r, 1) == KVLX_OK);
		CHECK(kvlx_metadata(decode, blob, sizeof blob, &len) == KVLX_OK && len > 0);
		CHECK(kvlx_unregister(decode, &r, 1) == KVLX_OK);
		CHECK((n % 2 == 0 ? kvlx_drop : kvlx_abandon)(decode, peer) == KVLX_OK);
		CHECK(kvlx_drop(decode, peer) == KVLX_INVALID && kvlx_abandon(decode, peer) == KVLX_INVALID);
		n++;
	}
	printf("%ld loads and drops beside %d steps\n", n, ROUNDS);
	CHECK(n > 0); /* shows C73.1: and no sanitizer has said a word */
	return NULL;
}

static void step(uint32_t peer, const kvlx_desc_t *descs)
{
	uint8_t buf[1024];
	uint32_t lens[16];
	uint64_t backlog, too_long, xfer = 0;
	uint8_t status = KVLX_PENDING;
	int32_t sent = kvlx_send(decode, atomic_load(&passing), "passing", 7); /* dropped, being dropped, or there */
	CHECK(sent == KVLX_OK || sent == KVLX_INVALID || sent == KVLX_PEER);
	CHECK(kvlx_send(decode, peer, "beat", 4) == KVLX_OK);
	CHECK(kvlx_post(decode, peer, 0, 0, descs, DESCS, "done", 4, &xfer, NULL) == KVLX_OK);
	CHECK(kvlx_drop(decode, peer) == KVLX_INVALID);
	for (int looks = 0; looks < 1000 && status == KVLX_PENDING; looks++)
		kvlx_poll_reads(decode, &xfer, &status, 1, 1000);
	CHECK(status == KVLX_DONE);
	CHECK(kvlx_release(decode, xfer) == KVLX_OK);
	CHECK(kvlx_release(decode, xfer) == KVLX_INVALID);
	CHECK(kvlx_poll(prefill, buf, sizeof buf, sizeof buf, lens, 8, &backlog, &too_long) == 2);
	CHECK(backlog == 0 && too_long == 0 && lens[0] == 6 && lens[1] == 4 && memcmp(buf, "decodebeatdecodedone", 20) == 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	static uint8_t local[MEM], remote[MEM];
	char text[512] = "";
	int32_t library = 0;
	kvlx_environment(NULL);
	if (kvlx_library_open(argv[1], &library, text, sizeof text) != KVLX_OK) {
		fprintf(stderr, "%s\n", text);
		return 1;
	}
	decode = open_agent(library, "decode");
	prefill = open_agent(library, "prefill");
	int32_t other = open_agent(library, "other");
	const kvlx_region_t here = region(local, sizeof local), there = region(remote, sizeof remote);
	CHECK(kvlx_register(decode, &here, 1) == KVLX_OK);
	CHECK(kvlx_register(prefill, &there, 1) == KVLX_OK);
	uint8_t blob[8192];
	size_t len = 0;
	uint32_t peer = 0;
	CHECK(kvlx_metadata(prefill, blob, sizeof blob, &len) == KVLX_OK && len <= sizeof blob);
	CHECK(kvlx_load(decode, blob, len, 7, 0, &peer) == KVLX_OK);
	CHECK(kvlx_metadata(other, other_blob, sizeof other_blob, &other_len) == KVLX_OK && other_len <= sizeof other_blob);

	kvlx_desc_t descs[DESCS];
	memset(descs, 0, sizeof descs);
	for (int i = 0; i < DESCS; i++)
		descs[i] = (kvlx_desc_t){.local = here.addr + (unsigned)i * 64, .remote = there.addr + (unsigned)i * 64, .len = 64};
	memset(remote, 7, sizeof remote);

	pthread_t t;
	uint64_t mallocs = 0;
	CHECK(pthread_create(&t, NULL, come_and_go, NULL) == 0);
	for (int i = 0; i < ROUNDS; i++)
		step(peer, descs);
	atomic_store(&stepping, 0);
	pthread_join(t, NULL);
	mallocs = kvlx_mallocs();
	for (int i = 0; i < 100; i++)
		step(peer, descs);
	CHECK(kvlx_mallocs() == mallocs);
	CHECK(local[0] == 7 && local[DESCS * 64 - 1] == 7 && local[DESCS * 64] == 0);

	CHECK(kvlx_drop(decode, peer) == KVLX_OK);
	CHECK(kvlx_close(decode) == KVLX_OK);
	CHECK(kvlx_close(decode) == KVLX_OK);
	CHECK(kvlx_send(decode, peer, "x", 1) == KVLX_CLOSED);
	CHECK(kvlx_close(prefill) == KVLX_OK);
	CHECK(kvlx_close(other) == KVLX_OK);
	return 0;
}
