/* Two processes over real NIXL: the owner (P, the parent) and the reader (D, its child), each with a kvlease context and,
 * but for mode load, a raw NIXL agent over the same memory. D drives, P answers over a socket. Results go to stdout as "name value" lines.
 *
 * Both sides fork before anything of NIXL or Go is loaded.
 */
#ifndef PAIR_H
#define PAIR_H

#include <kvlease.h>

#include "raw.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BLOCKS_MAX = 16384, REPLY_MAX = 160 * 1024 };

/* What one run does, from the command line. */
struct plan {
	const char *mode;   /* reads, latency, kill, idle, load */
	const char *drive;  /* of P: inline or pump */
	const char *reader; /* the same of D */
	uint64_t pass_ns;   /* of P */
	uint64_t block_len;
	uint32_t blocks;    /* in the cache of either side */
	uint32_t rounds;
	uint32_t held;      /* requests that load keeps */
	double lease_s;
	uint32_t ranks;     /* of P: above 1 it is a host and ranks, each with its part of the heads, all in P's process */
	int wire;           /* D asks for the handshake itself, and keeps a death wire */
	int port;           /* of P's side channel, with wire */
};

/* Requests to P. Each is answered by one message: OP_BEAT when beat number arg of the lease granted last has been applied,
 * OP_FREED when that lease is freed, both with the time. OP_BUSY is a grant that only gives P something to do. */
enum { OP_INFO = 1, OP_GRANT, OP_BUSY, OP_BEAT, OP_FREED, OP_PING, OP_QUIT };

struct request {
	uint32_t op, n;
	uint64_t arg;
	uint32_t ids[BLOCKS_MAX];
};

struct info {
	uint64_t base[RANKS_MAX];                           /* of the caches of P's ranks */
	uint32_t handshake_n[RANKS_MAX], meta_n[RANKS_MAX]; /* what follows, of each rank: the handshake map, then the raw agent's metadata */
};

static inline uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_BOOTTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void sleep_ns(uint64_t ns)
{
	struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
	while (nanosleep(&t, &t) != 0 && errno == EINTR) {
	}
}

static inline _Noreturn void die(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	fputs("pair: ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	exit(1);
}

static inline void must(int32_t status, const char *what)
{
	if (status != KVL_OK)
		die("%s: %s: %s", what, kvl_status_name(status), kvl_last_error());
}

static inline void say(const char *name, double value)
{
	if (printf("%s %.9g\n", name, value) < 0 || fflush(stdout) != 0)
		die("write %s: %s", name, strerror(errno));
}

/* The cache of one side, touched, and the context over it: one region, or one in a context of each rank. */
struct side {
	uint8_t *kv;
	kvl_ctx_t *ctx;
	kvl_ctx_t *ranks[RANKS_MAX]; /* unless ctx has no ranks */
	kvl_producer_t *producer;
};

void side_open(struct side *s, const struct plan *plan, const char *name, const char *drive, uint32_t ranks);

/* D's view of P. */
struct peer {
	int socket;
	uint64_t base[RANKS_MAX]; /* of the caches of P's ranks */
	kvl_engine_t engine;
};

uint64_t ask(const struct peer *p, uint32_t op, uint64_t arg); /* answered by a number */
/* Grants these blocks of P and reads the parameters; buf keeps what remote points to. */
void ask_grant(const struct peer *p, const uint32_t *ids, uint32_t n, kvl_remote_t *remote, void *buf, size_t cap);
uint64_t beats_sent(struct side *d); /* heartbeats that D has sent so far */
void peer_open(struct peer *p, struct side *d, const struct plan *plan, int socket);

_Noreturn void owner_run(const struct plan *plan, int socket, pid_t reader);
void reads_run(const struct plan *plan, struct side *d, const struct peer *p);
void latency_run(const struct plan *plan, struct side *d, const struct peer *p);
void load_run(const struct plan *plan, struct side *d, const struct peer *p);
void idle_run(const struct plan *plan, struct side *d, const struct peer *p);
_Noreturn void kill_run(const struct plan *plan, struct side *d, const struct peer *p);

#endif
