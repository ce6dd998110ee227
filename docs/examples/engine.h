/* What the two example engines share: a KV cache whose every byte can be checked, options, a forward loop's clock.
 *
 * This is the engine's side. kvlease comes in at cache_register and engine_open, and where both engines ask it the same.
 */
#ifndef ENGINE_H
#define ENGINE_H

#include "jsonl.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>

enum {
	LAYERS_MAX = 64,
	BLOCKS_MAX = 65536,
	REQUESTS_MAX = 1024,
	REQUEST_BLOCKS_MAX = 256,
	ID_MAX = 128 /* bytes of a request id that these engines take, with the zero */
};

/* ---- the forward loop --------------------------------------------------------------------------------------------------- */

/* The forward pass: on a GPU the CPU would be as idle as this. Says so when the machine has not let us run. */
static inline void forward_pass(uint64_t until)
{
	struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
	while (clock_nanosleep(CLOCK_BOOTTIME, TIMER_ABSTIME, &t, NULL) == EINTR) {
	}
	uint64_t now = now_ns();
	if (now > until + 100000000u)
		say("{\"ev\":\"late\",\"late_ms\":%.3f,\"t_ns\":%llu}", (double)(now - until) / 1e6, (unsigned long long)now);
}

/* ---- the KV cache ------------------------------------------------------------------------------------------------------ */

/* One region per layer; a block holds K, then V, each [head][token][words of 8 bytes]. */
struct cache {
	uint32_t layers, blocks, heads, tokens, words;
	size_t block_len;
	uint8_t *base[LAYERS_MAX];
};

/* A bijection in which every bit of the input moves about half of the output (the end of splitmix64). */
static inline uint64_t mixed(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/* What the words of one token of one head start from: f(request, layer, K/V, block, head, token). */
static inline uint64_t content_seed(const char *request, uint32_t layer, uint32_t v, uint32_t block, uint32_t head, uint32_t token)
{
	uint64_t name = 0xcbf29ce484222325u; /* FNV-1a */
	for (; *request != 0; request++)
		name = (name ^ (uint8_t)*request) * 0x100000001b3u;
	uint64_t place = (uint64_t)layer << 56 | (uint64_t)v << 55 | (uint64_t)head << 44 | (uint64_t)token << 28 | block;
	return mixed(name ^ mixed(place + 1));
}

static inline uint64_t content_word(uint64_t seed, uint32_t word)
{
	return mixed(seed + (uint64_t)word * 0x9e3779b97f4a7c15u);
}

/* Memory that the transport registers comes from mmap and stays until the process ends. */
static inline void cache_open(struct cache *c, uint32_t layers, uint32_t blocks)
{
	if (layers < 1 || layers > LAYERS_MAX || blocks < 1 || blocks > BLOCKS_MAX)
		die("--layers is 1 to %d, --blocks 1 to %d", LAYERS_MAX, BLOCKS_MAX);
	*c = (struct cache){.layers = layers, .blocks = blocks, .heads = 4, .tokens = 16, .words = 16};
	c->block_len = (size_t)2 * c->heads * c->tokens * c->words * 8;
	for (uint32_t l = 0; l < layers; l++) {
		c->base[l] = mmap(NULL, c->block_len * blocks, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (c->base[l] == MAP_FAILED)
			die("no memory for layer %u of the KV cache: %s", l, strerror(errno));
	}
}

static inline int32_t cache_register(kvl_ctx_t *ctx, const struct cache *c)
{
	kvl_region_t regions[LAYERS_MAX];
	char names[LAYERS_MAX][16];
	memset(regions, 0, sizeof regions);
	for (uint32_t l = 0; l < c->layers; l++) {
		int n = snprintf(names[l], sizeof names[l], "layer.%u", l);
		regions[l] = (kvl_region_t){
			.addr = (uint64_t)(uintptr_t)c->base[l],
			.bytes = c->block_len * c->blocks,
			.block_len = c->block_len,
			.block_stride = c->block_len,
			.blocks = c->blocks,
			.group = -1,
			.mem = KVL_MEM_DRAM,
			.parts = 2, /* K, then V */
			.name = {names[l], (size_t)n},
		};
	}
	return kvl_register(ctx, regions, sizeof regions[0], c->layers);
}

/* Go over every word of a request's blocks: write what belongs there (fill), or count the bytes that differ from it. */
static inline uint64_t cache_walk(struct cache *c, const char *request, const uint32_t *blocks, uint32_t n, int fill)
{
	uint64_t bad = 0;
	for (uint32_t layer = 0; layer < c->layers; layer++) {
		for (uint32_t b = 0; b < n; b++) {
			uint8_t *at = c->base[layer] + (size_t)blocks[b] * c->block_len;
			for (uint32_t row = 0; row < 2 * c->heads * c->tokens; row++) {
				uint32_t v = row / (c->heads * c->tokens), head = row / c->tokens % c->heads;
				uint64_t seed = content_seed(request, layer, v, b, head, row % c->tokens);
				for (uint32_t w = 0; w < c->words; w++, at += 8) {
					uint64_t want = content_word(seed, w), got;
					if (fill) {
						memcpy(at, &want, 8);
						continue;
					}
					memcpy(&got, at, 8);
					for (uint64_t diff = got ^ want; diff != 0; diff >>= 8)
						bad += (diff & 0xff) != 0;
				}
			}
		}
	}
	return bad;
}

/* The prefill: a request's KV, by position in the request, into these blocks. */
static inline void cache_fill(struct cache *c, const char *request, const uint32_t *blocks, uint32_t n)
{
	cache_walk(c, request, blocks, n, 1);
}

/* How many bytes of these blocks are not the request's. */
static inline uint64_t cache_bad_bytes(struct cache *c, const char *request, const uint32_t *blocks, uint32_t n)
{
	return cache_walk(c, request, blocks, n, 0);
}

#define CACHE_CLEAR 0xee

/* How many bytes of cleared blocks have been written since. One in 256 of what is written looks as if it were not. */
static inline uint64_t cache_landed(const struct cache *c, const uint32_t *blocks, uint32_t n)
{
	uint64_t landed = 0;
	for (uint32_t layer = 0; layer < c->layers; layer++) {
		for (uint32_t b = 0; b < n; b++) {
			const uint8_t *at = c->base[layer] + (size_t)blocks[b] * c->block_len;
			for (size_t i = 0; i < c->block_len; i++)
				landed += at[i] != CACHE_CLEAR;
		}
	}
	return landed;
}

/* Whatever a block held before must not look like data that was read. */
static inline void cache_clear(struct cache *c, const uint32_t *blocks, uint32_t n)
{
	for (uint32_t layer = 0; layer < c->layers; layer++) {
		for (uint32_t b = 0; b < n; b++)
			memset(c->base[layer] + (size_t)blocks[b] * c->block_len, CACHE_CLEAR, c->block_len);
	}
}

/* ---- start -------------------------------------------------------------------------------------------------------------- */

struct options {
	const char *engine_id, *transport;
	const char *listen; /* "auto", "off" or HOST:PORT; NULL: this engine has nothing to serve */
	int pump;
	int watch; /* report the heartbeats that have arrived, at the price of one kvl_stats a pass */
	uint64_t pass_ns;
	double lease_s;
	uint32_t layers, blocks;
};

static inline _Noreturn void usage(const char *program, const char *does, int serves)
{
	printf("Usage: %s [flags]\n\n%s\nCommands are JSON lines on stdin, reports JSON lines on stdout.\n\n"
	       "  --engine-id NAME        name of this engine\n"
	       "  --drive inline|pump     who runs the step: this program's loop, or a thread of the library (inline)\n"
	       "  --pass-ms MS            length of a forward pass (30)\n"
	       "  --lease SECONDS         kv_lease_duration (30)\n"
	       "  --layers N, --blocks N  size of the KV cache (4, 512)\n"
	       "  --transport nixl        what moves the bytes (nixl)\n"
	       "  --watch                 report heartbeats as they arrive\n%s",
	       program, does,
	       serves ? "  --listen HOST:PORT|off  where readers fetch our handshake (a free port of 127.0.0.1); off: it travels out of band\n" : "");
	exit(0);
}

static inline uint64_t number(const char *flag, const char *s, uint64_t most)
{
	char *end;
	errno = 0;
	unsigned long long v = strtoull(s, &end, 10);
	if (errno != 0 || *s < '0' || *s > '9' || *end != 0 || v > most)
		die("%s needs a number from 0 to %llu, got \"%s\"", flag, (unsigned long long)most, s);
	return v;
}

static inline struct options options_read(int argc, char **argv, const char *engine_id, const char *does, int serves)
{
	struct options o = {.engine_id = engine_id, .transport = "nixl", .pass_ns = 30000000, .lease_s = 30, .layers = 4, .blocks = 512,
	                    .listen = serves ? "auto" : NULL};
	for (int i = 1; i < argc; i++) {
		const char *flag = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
		if (strcmp(flag, "--help") == 0)
			usage(argv[0], does, serves);
		if (strcmp(flag, "--watch") == 0) {
			o.watch = 1;
			continue;
		}
		if (value == NULL)
			die("%s is unknown, or needs a value; see --help", flag);
		i++;
		if (strcmp(flag, "--engine-id") == 0)
			o.engine_id = value;
		else if (strcmp(flag, "--transport") == 0)
			o.transport = value;
		else if (strcmp(flag, "--listen") == 0 && serves)
			o.listen = value;
		else if (strcmp(flag, "--drive") == 0 && (strcmp(value, "inline") == 0 || strcmp(value, "pump") == 0))
			o.pump = value[0] == 'p';
		else if (strcmp(flag, "--pass-ms") == 0)
			o.pass_ns = number(flag, value, 60000) * 1000000u;
		else if (strcmp(flag, "--lease") == 0) {
			char *end;
			o.lease_s = strtod(value, &end);
			if (end == value || *end != 0 || !(o.lease_s > 0 && o.lease_s <= 86400))
				die("--lease needs seconds, got \"%s\"", value);
		} else if (strcmp(flag, "--layers") == 0)
			o.layers = (uint32_t)number(flag, value, LAYERS_MAX);
		else if (strcmp(flag, "--blocks") == 0)
			o.blocks = (uint32_t)number(flag, value, BLOCKS_MAX);
		else
			die("%s %s is not understood; see --help", flag, value);
	}
	return o;
}

/* A port of 127.0.0.1 that nobody listens at just now: below those that the system gives to whoever asks for any, which could be taken
 * before the library listens; and each process begins its search at another one. */
static inline unsigned free_port(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	for (unsigned i = 0; i < 256; i++) {
		unsigned port = 10000 + ((unsigned)getpid() * 7 + i) % 20000;
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), bound;
		at.sin_port = htons((uint16_t)port);
		bound = fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0;
		if (fd >= 0)
			close(fd);
		if (bound)
			return port;
	}
	die("no free port on 127.0.0.1: %s", strerror(errno));
}

/* The side channel's keys: with them readers fetch our handshake where the transfer parameters say. */
static inline void side_channel_keys(const struct options *o, char *keys, size_t cap)
{
	char host[256];
	unsigned port;
	keys[0] = 0;
	if (o->listen == NULL || strcmp(o->listen, "off") == 0)
		return;
	if (strcmp(o->listen, "auto") == 0) {
		snprintf(host, sizeof host, "127.0.0.1");
		port = free_port();
	} else {
		const char *colon = strrchr(o->listen, ':');
		if (colon == NULL || colon == o->listen || (size_t)(colon - o->listen) >= sizeof host)
			die("--listen needs HOST:PORT or off, got \"%s\"", o->listen);
		snprintf(host, sizeof host, "%.*s", (int)(colon - o->listen), o->listen);
		port = (unsigned)number("--listen", colon + 1, 65535);
	}
	snprintf(keys, cap, ",\"side_channel_listen\":true,\"side_channel_host\":%s,\"side_channel_port\":%u", quoted(host), port);
}

/* Open a context as the options say. A lease of 3 s or less has to be asked for, with the longest pass said. */
static inline kvl_ctx_t *engine_open(const struct options *o)
{
	char config[2048], err[1024] = "", shorts[96] = "", side[512];
	kvl_ctx_t *ctx = NULL;
	int32_t st = KVL_ERR_CONFIG;
	if (o->lease_s <= 3)
		snprintf(shorts, sizeof shorts, ",\"allow_short_leases\":true,\"step_max\":0.05");
	for (int tries = 0; tries < 5; tries++) {
		side_channel_keys(o, side, sizeof side);
		int n = snprintf(config, sizeof config, "{\"engine_id\":%s,\"transport\":%s,\"drive\":\"%s\",\"kv_lease_duration\":%.6f%s%s}",
		                 quoted(o->engine_id), quoted(o->transport), o->pump ? "pump" : "inline", o->lease_s, shorts, side);
		if (n < 0 || (size_t)n >= sizeof config)
			die("--engine-id, --transport or --listen is too long");
		st = kvl_open(config, (size_t)n, &ctx, err, sizeof err);
		if (st != KVL_ERR_CONFIG || o->listen == NULL || strcmp(o->listen, "auto") != 0)
			break; /* else somebody else may have taken the port */
	}
	if (st != KVL_OK)
		die("kvl_open: %s: %s", kvl_status_name(st), err);
	return ctx;
}

static inline void say_ready(const struct options *o, const char *role, const struct cache *c)
{
	say("{\"ev\":\"ready\",\"role\":\"%s\",\"engine_id\":%s,\"program\":\"c\",\"version\":%s,\"drive\":\"%s\",\"pid\":%d,\"blocks\":%u,"
	    "\"block_bytes\":%llu,\"t_ns\":%llu}",
	    role, quoted(o->engine_id), quoted(kvl_version()), o->pump ? "pump" : "inline", (int)getpid(), c->blocks,
	    (unsigned long long)(c->block_len * c->layers), (unsigned long long)now_ns());
}

/* ---- commands and calls that both engines have ---------------------------------------------------------------------------- */

/* Our handshake map, for the other side. */
static inline void answer_handshake(kvl_ctx_t *ctx, uint64_t re)
{
	static uint8_t map[32768];
	static char hex[2 * sizeof map + 1];
	size_t len = 0;
	int32_t st = kvl_handshake_get(ctx, 0, map, sizeof map, &len);
	if (st != KVL_OK) {
		say_refused(re, st, "kvl_handshake_get");
		return;
	}
	hex_encode(map, len, hex);
	say("{\"re\":%llu,\"ok\":true,\"handshake\":\"%s\",\"t_ns\":%llu}", (unsigned long long)re, hex, (unsigned long long)now_ns());
}

static inline void answer_stats(kvl_ctx_t *ctx, uint64_t re)
{
	static char stats[65536];
	size_t len = 0;
	int32_t st = kvl_stats(ctx, stats, sizeof stats, &len);
	if (st != KVL_OK) {
		say_refused(re, st, "kvl_stats");
		return;
	}
	say("{\"re\":%llu,\"ok\":true,\"stats\":%.*s,\"t_ns\":%llu}", (unsigned long long)re, (int)len, stats, (unsigned long long)now_ns());
}

/* Whatever has happened since the last time. */
static inline void poll_events(kvl_ctx_t *ctx, void (*on_event)(const kvl_event_t *e))
{
	kvl_event_t events[64];
	int32_t n;
	do {
		n = kvl_poll(ctx, events, sizeof events[0], 64);
		if (n < 0)
			die("kvl_poll: %s: %s", kvl_status_name(n), kvl_last_error());
		for (int32_t i = 0; i < n; i++)
			on_event(&events[i]);
	} while (n == 64);
}

/* Leaving in order: peers are told, the ends are heard, then the context closes. */
static inline void engine_leave(kvl_ctx_t *ctx, void (*on_event)(const kvl_event_t *e))
{
	int32_t st = kvl_drain(ctx, 500000000u);
	if (st != KVL_OK && st != KVL_ERR_TIMEOUT)
		fprintf(stderr, "kvl_drain: %s: %s\n", kvl_status_name(st), kvl_last_error());
	poll_events(ctx, on_event);
	st = kvl_close(ctx, 2000000000u);
	if (st != KVL_OK)
		die("kvl_close: %s: %s", kvl_status_name(st), kvl_last_error());
	say("{\"ev\":\"bye\",\"t_ns\":%llu}", (unsigned long long)now_ns());
}

/* Set by SIGTERM and SIGINT; looked at once per pass. */
static volatile sig_atomic_t told_to_stop;
static inline void on_stop(int sig)
{
	(void)sig;
	told_to_stop = 1;
}

static inline void stop_on_signals(void)
{
	struct sigaction act;
	memset(&act, 0, sizeof act);
	act.sa_handler = on_stop;
	sigaction(SIGTERM, &act, NULL);
	sigaction(SIGINT, &act, NULL);
	signal(SIGPIPE, SIG_IGN);
}

#endif
