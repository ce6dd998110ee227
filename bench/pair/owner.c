/* P: holds leases, answers D, says when a beat was applied and when a lease was freed. */
#include "pair.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

enum { POLL_NS = 20000 }; /* how often a pump's results are looked for */

static struct side p;
static struct plan plan;
static int peer_socket;
static pid_t reader;
static uint64_t board; /* address, out of our own handshake map; 0: with ranks, whose beats nobody asks for */

static kvl_lease_t current; /* the lease granted last */
static uint32_t granted, current_slot, current_g;
static uint32_t beats_seen, beat_wanted; /* of the current lease; the number of the beat that D asks for, 0 is none */
static uint64_t beat_at, freed_at;       /* the latest beat, the end; 0 is not yet */
static uint64_t freed_n;
static int freed_wanted;

static void answer(const void *data, size_t n)
{
	if (send(peer_socket, data, n, MSG_NOSIGNAL) < 0)
		die("send: %s", strerror(errno));
}

static void answer_number(uint64_t v) { answer(&v, sizeof v); }

/* The key "board" of the map (docs/protocol.md, section 2). */
static uint64_t find_board(const uint8_t *map, size_t n)
{
	static const uint8_t key[] = {0xa5, 'b', 'o', 'a', 'r', 'd', 0xcf};
	for (size_t i = 0; i + sizeof key + 8 <= n; i++) {
		if (memcmp(map + i, key, sizeof key) == 0) {
			uint64_t v = 0;
			for (size_t j = 0; j < 8; j++)
				v = v << 8 | map[i + sizeof key + j];
			return v;
		}
	}
	die("no board in the handshake map");
}

static void step_all(void)
{
	must(kvl_step(p.ctx), "kvl_step");
	for (uint32_t r = 0; r < plan.ranks && plan.ranks > 1; r++)
		must(kvl_step(p.ranks[r]), "kvl_step");
}

static void on_info(void)
{
	static uint8_t reply[REPLY_MAX];
	struct info info = {0};
	size_t n, at = sizeof info;
	for (uint32_t r = 0; r < plan.ranks; r++) {
		uint64_t end = now_ns() + 20000000000u;
		while (kvl_handshake_get(p.ctx, r, reply + at, sizeof reply - at, &n) != KVL_OK) { /* a rank has not told its host yet */
			if (now_ns() > end)
				die("kvl_handshake_get, rank %u: %s", r, kvl_last_error());
			step_all();
		}
		if (plan.ranks == 1)
			board = find_board(reply + at, n);
		info.base[r] = (uint64_t)(uintptr_t)(p.kv + r * (plan.block_len / plan.ranks) * plan.blocks);
		info.handshake_n[r] = (uint32_t)n;
		at += n;
		info.meta_n[r] = (uint32_t)raw_metadata(r, reply + at, sizeof reply - at);
		at += info.meta_n[r];
	}
	memcpy(reply, &info, sizeof info);
	answer(reply, at);
}

static kvl_lease_t grant_one(kvl_grant_t *grant)
{
	static char id[72]; /* kvl_params reads it, too */
	int32_t st;
	kvl_lease_t lease;
	grant->size = sizeof *grant;
	grant->id = (kvl_bytes_t){id, (size_t)snprintf(id, sizeof id, "chatcmpl-%032x-%08x", granted, granted)};
	granted++;
	while ((st = kvl_grant(p.producer, grant, &lease)) == KVL_ERR_FULL)
		step_all();
	must(st, "kvl_grant");
	return lease;
}

static void on_grant(const struct request *r)
{
	static char json[REPLY_MAX], buf[REPLY_MAX];
	size_t len, need;
	kvl_blocks_t group = {r->ids, r->n, 0};
	kvl_grant_t grant = {.groups = &group, .groups_n = 1, .tokens = r->n * 16};
	current = grant_one(&grant);
	must(kvl_params(p.ctx, current, &grant, json, sizeof json, &len), "kvl_params");
	kvl_remote_t own = {.size = sizeof own};
	must(kvl_params_read(json, len, &own, buf, sizeof buf, &need), "kvl_params_read");
	current_slot = own.slot;
	current_g = own.generation;
	beats_seen = 0;
	beat_at = freed_at = 0;
	answer(json, len);
}

/* D sends a raw notification as soon as it has our answer: busy polled. */
static void on_ping(void)
{
	raw_poll();
	answer_number(0);
	uint64_t end = now_ns() + 1000000000u;
	while (raw_poll() == 0) {
		if (now_ns() > end)
			die("no raw notification in a second");
	}
	answer_number(now_ns());
}

static void on_request(void)
{
	static struct request r;
	if (recv(peer_socket, &r, sizeof r, 0) <= 0) {
		if (strcmp(plan.mode, "kill") != 0)
			exit(1);
		close(peer_socket);
		peer_socket = -1; /* D was killed: go on until its leases are freed */
		return;
	}
	switch (r.op) {
	case OP_INFO:
		on_info();
		break;
	case OP_GRANT:
		on_grant(&r);
		break;
	case OP_BUSY:
		grant_one(&(kvl_grant_t){.groups = &(kvl_blocks_t){r.ids, 0, 0}, .groups_n = 1});
		answer_number(0);
		break;
	case OP_BEAT:
		beat_wanted = (uint32_t)r.arg;
		break;
	case OP_FREED:
		freed_wanted = 1;
		break;
	case OP_PING:
		on_ping();
		break;
	case OP_QUIT:
		answer_number(0);
		exit(0);
	default:
		die("request %u", r.op);
	}
}

/* Beats applied to the current lease, from its row. */
static uint32_t beats(void)
{
	uint64_t w = *(volatile uint64_t *)(uintptr_t)(board + 64 + 32 * (uint64_t)current_slot + 16);
	return (uint32_t)w == current_g ? (uint32_t)(w >> 32) : 0;
}

/* Looks at what has happened, and tells D what it waits for. */
static void look(void)
{
	kvl_event_t events[64];
	int32_t n;
	if (board != 0 && current != 0 && beats() > beats_seen) {
		beats_seen = beats();
		beat_at = now_ns();
	}
	while ((n = kvl_poll(p.ctx, events, sizeof events[0], 64)) > 0) {
		for (int32_t i = 0; i < n; i++) {
			if (events[i].kind != KVL_EV_FREED)
				continue;
			freed_n++;
			if (events[i].handle == current)
				freed_at = now_ns();
		}
	}
	if (beat_wanted != 0 && beats_seen >= beat_wanted) {
		answer_number(beat_at);
		beat_wanted = 0;
	}
	if (freed_wanted && freed_at != 0) {
		answer_number(freed_at);
		freed_wanted = 0;
	}
}

static int asked(int timeout_ms)
{
	struct pollfd fd = {.fd = peer_socket, .events = POLLIN};
	return poll(&fd, 1, timeout_ms) > 0;
}

/* The engine runs a step once per pass; between two it sleeps, or answers D. */
static void inline_pass(void)
{
	uint64_t end = now_ns() + plan.pass_ns;
	step_all();
	look();
	raw_poll();
	for (uint64_t now; (now = now_ns()) < end;) {
		if (asked((int)((end - now) / 1000000)))
			on_request();
		else if (end - now < 1000000)
			sleep_ns(end - now);
	}
}

static void pump_pass(void)
{
	uint64_t end = now_ns() + plan.pass_ns;
	must(kvl_pass(p.ctx), "kvl_pass");
	do {
		look();
		if (asked(0))
			on_request();
		else
			sleep_ns(POLL_NS);
	} while (now_ns() < end);
}

/* Kill mode: D dies when its beats and no longer the first terms hold the leases; the time to the last end counts. */
static void maybe_kill(void)
{
	static uint64_t at, killed;
	if (at == 0 && granted == plan.rounds)
		at = now_ns() + (uint64_t)(plan.lease_s * 1.2e9) + (uint64_t)getpid() % 100 * 5000000;
	if (killed == 0 && at != 0 && now_ns() >= at) {
		kill(reader, SIGKILL);
		killed = now_ns();
		if (freed_n != 0)
			die("%llu leases ended while D was alive", (unsigned long long)freed_n);
	}
	if (killed != 0 && freed_n >= plan.rounds) {
		say(plan.wire ? "kill.wire" : "kill.freed", (double)(now_ns() - killed) / 1e9);
		exit(0);
	}
}

void owner_run(const struct plan *given, int socket, pid_t child)
{
	plan = *given;
	peer_socket = socket;
	reader = child;
	side_open(&p, &plan, "P", plan.drive, plan.ranks);
	uint64_t part = plan.block_len / plan.ranks;
	for (uint64_t r = 0; r < plan.ranks; r++) { /* what D finds in each part of a block that it has read */
		for (uint64_t i = 0, it = r; i < plan.blocks; i++, it += RANKS_MAX)
			memcpy(p.kv + (r * plan.blocks + i) * part, &it, sizeof it);
	}
	int killing = strcmp(plan.mode, "kill") == 0;
	for (;;) {
		if (plan.drive[0] == 'p')
			pump_pass();
		else
			inline_pass();
		if (killing)
			maybe_kill();
	}
}
