/* Scene a over the real core and the loopback transport, two contexts in one process: a request waits in D's queue for
 * more than twice its lease, is kept by heartbeats, is read, every byte is checked, and its blocks come back at once.
 * While it waits the host does what hosts do: it forks, starts a fresh process, and gets signals at handlers that have no stack
 * of their own. Then a D that was stopped: its late read is refused as stale.
 *
 * scene_a inline|pump
 */
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { LAYERS = 3, BLOCKS = 64, BLOCK_BYTES = 512, REQUEST_BLOCKS = 5 };
#define DURATION_MS 1200
#define INTERVAL_NS (DURATION_MS * 1000000ull / 6)

typedef struct engine {
	kvl_ctx_t *ctx;
	kvl_producer_t *p;
	uint8_t *cache; /* LAYERS x BLOCKS x BLOCK_BYTES */
	int inline_mode;
	uint64_t beats, beaten_ns; /* heartbeats sent, and a time when the last one had been; 0: nobody looks */
} engine_t;

static uint8_t content(uint32_t request, uint32_t layer, uint32_t position, uint32_t byte)
{
	uint32_t x = request * 2654435761u + layer * 40503u + position * 10007u + byte * 97u;
	return (uint8_t)(x ^ x >> 11 ^ x >> 19);
}

static uint8_t *block(const engine_t *e, uint32_t layer, uint32_t id)
{
	return e->cache + ((size_t)layer * BLOCKS + id) * BLOCK_BYTES;
}

static engine_t open_engine(const char *name, const char *drive)
{
	engine_t e = {.inline_mode = strcmp(drive, "inline") == 0};
	kvl_region_t regions[LAYERS];
	char config[512];
	size_t bytes = (size_t)LAYERS * BLOCKS * BLOCK_BYTES;
	snprintf(config, sizeof config,
		 "{\"engine_id\":\"%s\",\"transport\":\"loopback\",\"drive\":\"%s\",\"kv_lease_duration\":%.1f,"
		 "\"allow_short_leases\":true,\"step_max\":0.1,\"side_channel_host\":\"127.0.0.1\",\"side_channel_port\":5600}",
		 name, drive, DURATION_MS / 1000.0);
	e.ctx = open_ctx(config);
	e.p = open_producer(e.ctx);
	e.cache = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(e.cache != MAP_FAILED);
	for (int i = 0; i < LAYERS; i++)
		regions[i] = (kvl_region_t){.addr = (uintptr_t)block(&e, (uint32_t)i, 0),
					    .bytes = BLOCKS * BLOCK_BYTES,
					    .block_len = BLOCK_BYTES,
					    .block_stride = BLOCK_BYTES,
					    .blocks = BLOCKS,
					    .group = -1,
					    .name = str("layer")};
	CHECK_STATUS(kvl_register(e.ctx, regions, sizeof regions[0], LAYERS), KVL_OK);
	return e;
}

/* A counter of kvl_stats. */
static uint64_t stat_of(const engine_t *e, const char *name)
{
	static char text[65536];
	char key[64];
	const char *at;
	size_t len;
	CHECK_STATUS(kvl_stats(e->ctx, text, sizeof text, &len), KVL_OK);
	snprintf(key, sizeof key, "\"%s\":", name);
	at = strstr(text, key);
	CHECK(at != NULL);
	return strtoull(at + strlen(key), NULL, 10);
}

/* A step that begins when a heartbeat is due sends it, however long the machine kept us from it. */
static void step(engine_t *e)
{
	uint64_t begin = boot_ns(), beats;
	CHECK_STATUS(e->inline_mode ? kvl_step(e->ctx) : kvl_pass(e->ctx), KVL_OK);
	if (e->beaten_ns == 0 || !e->inline_mode)
		return;
	if ((beats = stat_of(e, "beat_beats")) == e->beats) {
		CHECK(begin < e->beaten_ns + INTERVAL_NS * 3 / 2); /* shows C70.2 */
		return;
	}
	e->beats = beats;
	e->beaten_ns = boot_ns();
}

/* Both engines pass for ms milliseconds or until `until` gets an event, which is given back. */
static int pass(engine_t *p, engine_t *d, engine_t *until, uint64_t ms, kvl_event_t *ev)
{
	uint64_t end = boot_ns() + ms * 1000000u;
	do {
		const struct timespec ms2 = {0, 2000000};
		step(p);
		step(d);
		if (until != NULL && kvl_poll(until->ctx, ev, sizeof *ev, 1) == 1)
			return 1;
		nanosleep(&ms2, NULL); /* the forward pass */
	} while (boot_ns() < end);
	return 0;
}

static kvl_event_t wait_for(engine_t *p, engine_t *d, engine_t *of, int kind)
{
	kvl_event_t ev;
	do {
		if (!pass(p, d, of, 5000, &ev)) {
			fprintf(stderr, "no event of kind %d within 5 s\n", kind);
			exit(1);
		}
	} while (ev.kind != kind && (ev.kind == KVL_EV_ENGINE_UP || ev.kind == KVL_EV_AT_RISK)); /* a busy machine is late */
	CHECK_EQ(ev.kind, kind);
	return ev;
}

static void show(const engine_t *e, const char *name)
{
	static char text[65536];
	size_t len;
	CHECK_STATUS(kvl_stats(e->ctx, text, sizeof text, &len), KVL_OK);
	printf("%s: %s\n", name, text);
}

/* ---- what a host does meanwhile ---- */

static const int signals[] = {SIGINT, SIGABRT, SIGUSR1, SIGPROF, SIGURG, SIGSEGV, SIGBUS};
enum { SIGNALS = sizeof signals / sizeof *signals, STAY = 4 };
static volatile sig_atomic_t caught[65];
static sigjmp_buf after_a_fault;

static void on_signal(int sig)
{
	caught[sig]++;
	if (sig == SIGSEGV)
		siglongjmp(after_a_fault, 1);
}

/* Handlers of the host's own, as native libraries set them: no SA_ONSTACK. */
static void set_handlers(void)
{
	const struct sigaction sa = {.sa_handler = on_signal};
	for (int i = 0; i < SIGNALS; i++)
		sigaction(signals[i], &sa, NULL);
}

/* The core installs its own for faults and SIGURG; all others are the host's as before, and so is what a fault calls. */
static void the_handlers_are_those_of_before(void)
{
	static volatile int *volatile nowhere;
	for (int i = 0; i < STAY; i++) {
		struct sigaction now;
		sigaction(signals[i], NULL, &now);
		CHECK(now.sa_handler == on_signal); /* shows C71.3 */
		caught[signals[i]] = 0;
		CHECK_EQ(pthread_kill(pthread_self(), signals[i]), 0);
		CHECK_EQ(caught[signals[i]], 1);
	}
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	if (sigsetjmp(after_a_fault, 1) == 0)
		*nowhere = 1;
	CHECK_EQ(caught[SIGSEGV], 1); /* shows C71.3 */
#else
	(void)nowhere;
#endif
}

/* Every call answers in a child of a fork, and the child ends by itself, destructors of all libraries included. */
static pid_t fork_a_child(const engine_t *p, const engine_t *d)
{
	pid_t child;
	fflush(stdout);
	if ((child = fork()) == 0) {
		kvl_ctx_t *mine = NULL;
		kvl_event_t ev;
		char err[64];
		alarm(10); /* a hang is the death of the child */
		CHECK_STATUS(kvl_step(p->ctx), KVL_ERR_FORKED);
		CHECK_STATUS(kvl_pass(d->ctx), KVL_ERR_FORKED);
		CHECK_STATUS(kvl_poll(d->ctx, &ev, sizeof ev, 1), KVL_ERR_FORKED);
		CHECK_STATUS(kvl_pressure(p->p, 1), KVL_ERR_FORKED);
		CHECK_STATUS(kvl_close(p->ctx, 0), KVL_ERR_FORKED);
		CHECK_STATUS(kvl_open("{}", 2, &mine, err, sizeof err), KVL_ERR_FORKED);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
		_exit(0); /* at exit a sanitizer looks at what the parent had */
#else
		exit(0);
#endif
	}
	CHECK(child > 0);
	return child;
}

static pid_t start_a_process(const char *self)
{
	char *const argv[] = {(char *)(uintptr_t)self, (char *)(uintptr_t)"fresh", NULL};
	extern char **environ;
	pid_t child = 0;
	CHECK_EQ(posix_spawn(&child, self, NULL, NULL, argv, environ), 0);
	return child;
}

/* Waits while both engines pass, and gives the exit status. */
static int ended(engine_t *p, engine_t *d, pid_t child)
{
	int status;
	pid_t got;
	while ((got = waitpid(child, &status, WNOHANG)) == 0)
		pass(p, d, NULL, 1, NULL);
	CHECK(got == child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void while_heartbeats_run(engine_t *p, engine_t *d, const char *self)
{
	the_handlers_are_those_of_before();
	CHECK_EQ(ended(p, d, fork_a_child(p, d)), 0);    /* shows C70.1 */
	CHECK_EQ(ended(p, d, start_a_process(self)), 0); /* shows C70.3, C77.1: beside two engines in this process */
	caught[SIGINT] = 0;
	for (int i = 0; i < 100; i++) {
		kill(getpid(), SIGINT);
		kill(getpid(), SIGURG); /* to any thread, those of the core too; it keeps them */
		pthread_kill(pthread_self(), SIGPROF);
		pass(p, d, NULL, 1, NULL);
	}
	CHECK_EQ(caught[SIGINT], 100); /* shows C71.1 */
	CHECK(caught[SIGPROF] >= 100);
}

/* What start_a_process runs. */
static int fresh(void)
{
	kvl_ctx_t *ctx = open_ctx("{\"transport\":\"loopback\"}");
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
	return 0;
}

int main(int argc, char **argv)
{
	const char *drive = argc > 1 ? argv[1] : "inline";
	const uint32_t p_ids[REQUEST_BLOCKS] = {7, 8, 9, 30, 12}, d_ids[REQUEST_BLOCKS] = {1, 2, 40, 41, 5};
	const kvl_blocks_t p_blocks = {p_ids, REQUEST_BLOCKS, 0}, d_blocks = {d_ids, REQUEST_BLOCKS, 0};
	engine_t p, d;
	kvl_grant_t grant;
	kvl_remote_t remote = {.size = sizeof remote};
	kvl_engine_desc_t desc = {.size = sizeof desc, .ranks = 1, .user = 22};
	kvl_read_t read = {sizeof read, 1, &d_blocks, NULL};
	kvl_lease_t lease = 0;
	kvl_track_t track = 0;
	kvl_engine_t engine = 0;
	kvl_event_t ev;
	char map[8192], params[4096];
	uint64_t buf[512];
	size_t len, need;

	if (strcmp(drive, "fresh") == 0)
		return fresh();
	set_handlers();
	p = open_engine("P", drive);
	d = open_engine("D", drive);
	grant = grant_of("request-1", &p_blocks, 1, 11);

	/* P computes */
	for (uint32_t i = 0; i < REQUEST_BLOCKS; i++)
		for (uint32_t l = 0; l < LAYERS; l++)
			for (uint32_t b = 0; b < BLOCK_BYTES; b++)
				block(&p, l, p_ids[i])[b] = content(1, l, i, b);
	CHECK_STATUS(kvl_expect(p.p, grant.id, &grant.expected), KVL_OK);
	pass(&p, &d, NULL, 10, NULL);
	grant.tokens = REQUEST_BLOCKS * 16;
	CHECK_STATUS(kvl_grant(p.p, &grant, &lease), KVL_OK);
	CHECK(lease == grant.expected);
	CHECK_STATUS(kvl_params(p.ctx, lease, &grant, params, sizeof params, &len), KVL_OK);
	printf("parameters: %s\n", params);

	/* the handshake map and the parameters travel */
	CHECK_STATUS(kvl_handshake_get(p.ctx, 0, map, sizeof map, &len), KVL_OK);
	CHECK_STATUS(kvl_params_read(params, strlen(params), &remote, buf, sizeof buf, &need), KVL_OK);
	CHECK_EQ(remote.native, 1);
	desc.engine_id = remote.engine_id;
	CHECK_STATUS(kvl_engine_add(d.ctx, &desc, &engine), KVL_OK);
	CHECK_STATUS(kvl_engine_handshake(d.ctx, engine, 0, (kvl_bytes_t){map, len}), KVL_OK);

	/* the request waits in D's queue for more than twice its lease */
	CHECK_STATUS(kvl_track(d.p, engine, &remote, str("local-1"), 33, &track), KVL_OK);
	ev = wait_for(&p, &d, &d, KVL_EV_ENGINE_UP);
	CHECK(ev.handle == engine && ev.user == 22);
	d.beats = stat_of(&d, "beat_beats");
	d.beaten_ns = boot_ns();
	while_heartbeats_run(&p, &d, argv[0]);
	if (pass(&p, &d, &p, DURATION_MS * 5 / 2, &ev)) { /* shows C70.2 */
		show(&p, "P");
		show(&d, "D");
		fprintf(stderr, "P reports kind %u status %d while D waits\n", ev.kind, ev.status);
		return 1;
	}
	d.beaten_ns = 0;

	/* it is read */
	read.remote = remote.groups;
	CHECK_STATUS(kvl_read(d.p, track, &read), KVL_OK);
	ev = wait_for(&p, &d, &d, KVL_EV_READ_DONE);
	CHECK(ev.handle == track && ev.user == 33 && ev.status == KVL_READ_OK); /* shows C77.1 */
	CHECK_EQ(ev.value0, LAYERS * REQUEST_BLOCKS * BLOCK_BYTES);
	for (uint32_t i = 0; i < REQUEST_BLOCKS; i++)
		for (uint32_t l = 0; l < LAYERS; l++)
			for (uint32_t b = 0; b < BLOCK_BYTES; b++)
				CHECK_EQ(block(&d, l, d_ids[i])[b], content(1, l, i, b));

	/* and P's blocks come back at once */
	ev = wait_for(&p, &d, &p, KVL_EV_FREED);
	CHECK(ev.handle == lease && ev.user == 11 && ev.status == KVL_FREED_COMPLETED);
	CHECK_EQ(ev.value0, REQUEST_BLOCKS);
	CHECK(ev.value1 >= (uint64_t)DURATION_MS * 2 * 1000000u);
	printf("held %llu ms under a lease of %d ms, then freed(completed)\n", (unsigned long long)(ev.value1 / 1000000u),
	       DURATION_MS);
	CHECK_STATUS(kvl_untrack(d.p, track), KVL_ERR_STALE);
	CHECK_STATUS(kvl_params_key(p.ctx, lease, params, sizeof params, &len), KVL_ERR_STALE);

	/* a stopped D: the lease runs out, the blocks are overwritten, the late read is refused as stale */
	grant = grant_of("request-2", &p_blocks, 1, 12);
	CHECK_STATUS(kvl_grant(p.p, &grant, &lease), KVL_OK);
	CHECK_STATUS(kvl_params(p.ctx, lease, &grant, params, sizeof params, &len), KVL_OK);
	CHECK_STATUS(kvl_params_read(params, strlen(params), &remote, buf, sizeof buf, &need), KVL_OK);
	ev = wait_for(&p, &p, &p, KVL_EV_FREED); /* nobody beats: expired */
	CHECK(ev.handle == lease && ev.status == KVL_FREED_EXPIRED);
	memset(p.cache, 0xEE, (size_t)LAYERS * BLOCKS * BLOCK_BYTES);
	CHECK_STATUS(kvl_track(d.p, engine, &remote, str("local-2"), 34, &track), KVL_OK);
	read.remote = remote.groups;
	CHECK_STATUS(kvl_read(d.p, track, &read), KVL_OK);
	do
		CHECK(pass(&p, &d, &d, 5000, &ev));
	while (ev.kind == KVL_EV_LEASE_GONE || ev.kind == KVL_EV_AT_RISK);
	CHECK_EQ(ev.kind, KVL_EV_READ_FAILED);
	CHECK_EQ(ev.status, KVL_READ_STALE);
	printf("the late read is stale\n");

	CHECK_STATUS(kvl_close(d.ctx, 1000000000), KVL_OK);
	CHECK_STATUS(kvl_close(p.ctx, 1000000000), KVL_OK);
	return 0;
}
