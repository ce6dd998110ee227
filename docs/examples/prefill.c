/* A prefill engine in one file: how P grants leases with kvlease, and when it may use blocks again.
 *
 * Build:  cc -std=c11 -O2 prefill.c -o prefill $(pkg-config --cflags --libs kvlease)
 * Drive:  by hand or by `kvlease demo`; one JSON object a line:
 *   {"cmd":"handshake"}                                        our handshake map, in hex, for a side without the side channel
 *   {"cmd":"expect","id":"r1"}                                 the request starts to run here
 *   {"cmd":"grant","id":"r1","blocks":[0,1,2],"tokens":48}     prefill done: fill, lease, answer the transfer parameters
 *   {"cmd":"overwrite","id":"other","blocks":[0,1,2]}          another request's KV into free blocks
 *   {"cmd":"revoke","id":"r1"}  {"cmd":"cancel","id":"r1"}  {"cmd":"stats"}  {"cmd":"quit"}
 * Each command is answered by {"re":n,"ok":...}, n being the command's own "n"; {"ev":"freed",...} comes when a lease ends.
 */
#include "engine.h"

/* One request whose blocks are under a lease, or that is expected. */
struct request {
	char id[ID_MAX]; /* "": free */
	kvl_lease_t lease;
	uint32_t n;      /* blocks; 0 while only expected */
	uint32_t blocks[REQUEST_BLOCKS_MAX];
};

static struct request requests[REQUESTS_MAX];
static uint32_t holder[BLOCKS_MAX]; /* index of the request that holds a block, + 1 */
static struct cache cache;
static struct lines commands;
static kvl_ctx_t *ctx;
static kvl_producer_t *producer;

static struct request *find(const char *id)
{
	for (int i = 0; i < REQUESTS_MAX; i++) {
		if (requests[i].id[0] != 0 && strcmp(requests[i].id, id) == 0)
			return &requests[i];
	}
	return NULL;
}

static struct request *take(const char *id)
{
	for (int i = 0; i < REQUESTS_MAX; i++) {
		if (requests[i].id[0] == 0) {
			memset(&requests[i], 0, sizeof requests[i]);
			snprintf(requests[i].id, sizeof requests[i].id, "%s", id);
			return &requests[i];
		}
	}
	return NULL;
}

/* Blocks under a lease are not the engine's to use: this is the one rule that P has to keep. */
static int blocks_free(uint64_t re, const uint32_t *blocks, int n)
{
	if (n <= 0) {
		say_wrong(re, "\"blocks\" needs 1 to %d block ids", REQUEST_BLOCKS_MAX);
		return 0;
	}
	for (int i = 0; i < n; i++) {
		if (blocks[i] >= cache.blocks) {
			say_wrong(re, "block %u does not exist, there are %u", blocks[i], cache.blocks);
			return 0;
		}
		if (holder[blocks[i]] != 0) {
			say_wrong(re, "block %u is under the lease of %s", blocks[i], requests[holder[blocks[i]] - 1].id);
			return 0;
		}
	}
	return 1;
}

static void on_expect(uint64_t re, const char *id)
{
	if (find(id) != NULL) {
		say_wrong(re, "%s is here already", id);
		return;
	}
	struct request *r = take(id);
	if (r == NULL) {
		say_wrong(re, "more than %d requests", REQUESTS_MAX);
		return;
	}
	int32_t st = kvl_expect(producer, (kvl_bytes_t){id, strlen(id)}, &r->lease);
	if (st != KVL_OK) {
		r->id[0] = 0;
		say_refused(re, st, "kvl_expect");
		return;
	}
	say("{\"re\":%llu,\"ok\":true,\"t_ns\":%llu}", (unsigned long long)re, (unsigned long long)now_ns());
}

static void on_grant(uint64_t re, const char *id, const uint32_t *blocks, int n, uint64_t tokens)
{
	static char params[65536];
	size_t len = 0;
	struct request *r = find(id);
	if (r != NULL && r->n != 0) {
		say_wrong(re, "%s holds a lease already", id);
		return;
	}
	if (!blocks_free(re, blocks, n))
		return;
	kvl_lease_t expected = r != NULL ? r->lease : 0;
	if (r == NULL && (r = take(id)) == NULL) {
		say_wrong(re, "more than %d requests", REQUESTS_MAX);
		return;
	}
	cache_fill(&cache, id, blocks, (uint32_t)n);

	kvl_blocks_t group = {blocks, (uint32_t)n, 0};
	kvl_grant_t grant = {
		.size = sizeof grant,
		.id = {id, strlen(id)},
		.groups = &group,
		.groups_n = 1,
		.tokens = (uint32_t)tokens,
		.expected = expected,
		.user = (uint64_t)(r - requests),
	};
	int32_t st = kvl_grant(producer, &grant, &r->lease);
	if (st != KVL_OK) { /* nothing has changed: the blocks stay ours, the request would be prefilled again */
		if (expected == 0)
			r->id[0] = 0;
		say_refused(re, st, "kvl_grant");
		return;
	}
	r->n = (uint32_t)n;
	memcpy(r->blocks, blocks, (size_t)n * sizeof blocks[0]);
	for (int i = 0; i < n; i++)
		holder[blocks[i]] = (uint32_t)(r - requests) + 1;

	st = kvl_params(ctx, r->lease, &grant, params, sizeof params, &len);
	if (st != KVL_OK) { /* nobody will ever hear of this lease */
		say_refused(re, st, "kvl_params");
		kvl_cancel(producer, r->lease);
		return;
	}
	say("{\"re\":%llu,\"ok\":true,\"params\":%s,\"t_ns\":%llu}", (unsigned long long)re, params, (unsigned long long)now_ns());
}

/* False: quit. */
static int on_command(const char *line, size_t len)
{
	struct field f[FIELDS_MAX];
	char cmd[16], id[ID_MAX];
	static uint32_t blocks[REQUEST_BLOCKS_MAX];
	uint64_t re = 0, tokens = 0;
	int n = json_fields(line, len, f);
	if (n < 0 || !json_string(json_find(f, n, "cmd"), cmd, sizeof cmd)) {
		say_wrong(0, "not a command: one JSON object with the key \"cmd\" is needed");
		return 1;
	}
	json_number(json_find(f, n, "n"), &re);
	json_number(json_find(f, n, "tokens"), &tokens);
	if (strcmp(cmd, "quit") == 0)
		return 0;
	if (strcmp(cmd, "handshake") == 0) {
		answer_handshake(ctx, re);
		return 1;
	}
	if (strcmp(cmd, "stats") == 0) {
		answer_stats(ctx, re);
		return 1;
	}
	if (!json_string(json_find(f, n, "id"), id, sizeof id) || id[0] == 0) {
		say_wrong(re, "%s needs an \"id\" of 1 to %d bytes", cmd, ID_MAX - 1);
		return 1;
	}
	int count = json_blocks(json_find(f, n, "blocks"), blocks, REQUEST_BLOCKS_MAX);
	if (strcmp(cmd, "expect") == 0) {
		on_expect(re, id);
	} else if (strcmp(cmd, "grant") == 0) {
		on_grant(re, id, blocks, count, tokens);
	} else if (strcmp(cmd, "overwrite") == 0) {
		if (blocks_free(re, blocks, count)) {
			cache_fill(&cache, id, blocks, (uint32_t)count);
			say("{\"re\":%llu,\"ok\":true,\"t_ns\":%llu}", (unsigned long long)re, (unsigned long long)now_ns());
		}
	} else if (strcmp(cmd, "revoke") == 0 || strcmp(cmd, "cancel") == 0) {
		struct request *r = find(id);
		int32_t st = r == NULL ? KVL_ERR_STALE : cmd[0] == 'r' ? kvl_revoke(producer, r->lease) : kvl_cancel(producer, r->lease);
		if (st == KVL_OK && r->n == 0)
			r->id[0] = 0; /* was only expected: no event will come */
		if (st == KVL_OK)
			say("{\"re\":%llu,\"ok\":true,\"t_ns\":%llu}", (unsigned long long)re, (unsigned long long)now_ns());
		else
			say_refused(re, st, cmd);
	} else {
		say_wrong(re, "unknown command %s", cmd);
	}
	return 1;
}

static const char *reason_name(int32_t reason)
{
	static const char *const names[] = {"?", "completed", "released", "revoked", "expired", "poisoned", "duplicate", "closed", "lost"};
	return reason > 0 && reason < (int32_t)(sizeof names / sizeof names[0]) ? names[reason] : names[0];
}

static void on_event(const kvl_event_t *e)
{
	struct request *r = e->user < REQUESTS_MAX ? &requests[e->user] : NULL;
	switch (e->kind) {
	case KVL_EV_FREED:
		if (r == NULL || r->lease != e->handle) {
			say("{\"ev\":\"error\",\"error\":\"freed event of a lease that nobody holds\",\"t_ns\":%llu}", (unsigned long long)e->time_ns);
			return;
		}
		/* From here on the blocks are the engine's again; not before. */
		for (uint32_t i = 0; i < r->n; i++)
			holder[r->blocks[i]] = 0;
		say("{\"ev\":\"freed\",\"id\":%s,\"reason\":\"%s\",\"blocks\":%u,\"held_ms\":%.3f,\"t_ns\":%llu}", quoted(r->id),
		    reason_name(e->status), r->n, (double)e->value1 / 1e6, (unsigned long long)e->time_ns);
		r->id[0] = 0;
		return;
	case KVL_EV_EXPECT_LAPSED:
		for (r = requests; r < requests + REQUESTS_MAX; r++) {
			if (r->id[0] != 0 && r->n == 0 && r->lease == e->handle) {
				say("{\"ev\":\"expect_lapsed\",\"id\":%s,\"t_ns\":%llu}", quoted(r->id), (unsigned long long)e->time_ns);
				r->id[0] = 0;
			}
		}
		return;
	case KVL_EV_POISONED:
		say("{\"ev\":\"poisoned\",\"t_ns\":%llu}", (unsigned long long)e->time_ns);
		return;
	default:
		return;
	}
}

/* Says how many heartbeats have arrived, when the number has changed. */
static void watch(void)
{
	static char stats[65536];
	static uint64_t batches_seen, beats_seen;
	size_t len = 0;
	if (kvl_stats(ctx, stats, sizeof stats - 1, &len) != KVL_OK)
		return;
	stats[len] = 0;
	uint64_t batches = counter(stats, "batches_received"), beats = counter(stats, "beats_applied");
	if (batches != batches_seen || beats != beats_seen)
		say("{\"ev\":\"beats\",\"batches\":%llu,\"beats\":%llu,\"t_ns\":%llu}", (unsigned long long)batches, (unsigned long long)beats,
		    (unsigned long long)now_ns());
	batches_seen = batches;
	beats_seen = beats;
}

int main(int argc, char **argv)
{
	struct options o = options_read(argc, argv, "P", "A prefill engine stand-in: fills blocks, holds them under leases, answers transfer parameters.", 1);
	stop_on_signals();
	lines_open();
	cache_open(&cache, o.layers, o.blocks);
	ctx = engine_open(&o);
	int32_t st = cache_register(ctx, &cache);
	if (st != KVL_OK)
		die("kvl_register: %s: %s", kvl_status_name(st), kvl_last_error());
	st = kvl_producer_open(ctx, &producer);
	if (st != KVL_OK)
		die("kvl_producer_open: %s: %s", kvl_status_name(st), kvl_last_error());
	say_ready(&o, "prefill", &cache);

	for (int go = 1; go && !told_to_stop;) {
		uint64_t pass_end = now_ns() + o.pass_ns;
		const char *line;
		size_t len;
		while (go && (line = lines_next(&commands, &len)) != NULL)
			go = on_command(line, len);
		if (commands.ended)
			break;

		/* Once per pass. Inline, this is where heartbeats arrive and leases end; with the pump it only says that we live. */
		st = o.pump ? kvl_pass(ctx) : kvl_step(ctx);
		if (st != KVL_OK && st != KVL_ERR_POISONED) /* poisoned: the ends still come by kvl_poll */
			die("%s: %s: %s", o.pump ? "kvl_pass" : "kvl_step", kvl_status_name(st), kvl_last_error());
		poll_events(ctx, on_event);
		if (o.watch)
			watch();
		forward_pass(pass_end);
	}

	engine_leave(ctx, on_event);
	return 0;
}
