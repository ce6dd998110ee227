/* A decode engine in one file: how D keeps leases alive with kvlease, reads blocks, and knows what it may use.
 *
 * Build:  cc -std=c11 -O2 decode.c -o decode $(pkg-config --cflags --libs kvlease)
 * Drive:  by hand or by `kvlease demo`; one JSON object a line:
 *   {"cmd":"engine","engine_id":"P","host":"h","port":5600}    a prefill engine, before its first request; track does the same
 *   {"cmd":"engine","engine_id":"P","handshake":"<hex>"}       the same without side channel, with what its "handshake" answered
 *   {"cmd":"track","id":"r1","params":{...}}                   the request enters the queue: heartbeats start
 *   {"cmd":"read","id":"r1"}                                   the request is scheduled: fetch its blocks, check every byte
 *   {"cmd":"untrack","id":"r1"}  {"cmd":"stats"}  {"cmd":"quit"}
 * Each command is answered by {"re":n,"ok":...}; the end of a read comes as {"ev":"read_done",...} or {"ev":"read_failed",...}.
 */
#include "engine.h"

enum { WAITING, READING, OVER };

/* One request between its arrival and the end of its read. */
struct request {
	char id[ID_MAX];        /* "": free */
	char remote_id[ID_MAX]; /* the owner's name for it, and what its KV is made of */
	int state;              /* OVER: only its local blocks are still aside */
	kvl_track_t track;
	uint32_t n;
	uint32_t remote[REQUEST_BLOCKS_MAX], local[REQUEST_BLOCKS_MAX];
};

static struct request requests[REQUESTS_MAX];
static uint32_t free_blocks[BLOCKS_MAX], free_n;
static struct cache cache;
static struct lines commands;
static kvl_ctx_t *ctx;
static kvl_producer_t *producer;
static struct {
	char name[ID_MAX];
	kvl_engine_t handle;
} engines[64];
static uint32_t engines_n;
static uint64_t handed_out; /* requests whose data went to the model */

static struct request *find(const char *id)
{
	for (int i = 0; i < REQUESTS_MAX; i++) {
		if (requests[i].id[0] != 0 && requests[i].state != OVER && strcmp(requests[i].id, id) == 0)
			return &requests[i];
	}
	return NULL;
}

static void give_back_blocks(struct request *r)
{
	for (uint32_t i = 0; i < r->n; i++)
		free_blocks[free_n++] = r->local[i];
	r->id[0] = 0;
}

/* Names an engine to the library, which gives the same handle for the same id. */
static int32_t add_engine(const kvl_engine_desc_t *desc, kvl_engine_t *engine_out)
{
	uint32_t i = 0;
	if (desc->engine_id.len >= ID_MAX)
		return KVL_ERR_INVALID;
	int32_t st = kvl_engine_add(ctx, desc, engine_out);
	if (st != KVL_OK)
		return st;
	while (i < engines_n && engines[i].handle != *engine_out)
		i++;
	if (i < sizeof engines / sizeof engines[0]) { /* only for what we say about it */
		snprintf(engines[i].name, ID_MAX, "%.*s", (int)desc->engine_id.len, (const char *)desc->engine_id.data);
		engines[i].handle = *engine_out;
		engines_n += i == engines_n;
	}
	return KVL_OK;
}

/* An engine whose requests will come: with its side channel, where the library fetches the handshake itself, or with a map that has
 * come another way. */
static void on_engine(uint64_t re, const struct field *f, int n)
{
	static uint8_t map[32768];
	char name[ID_MAX], host[256];
	uint64_t port = 0;
	kvl_engine_t engine;
	const struct field *hex = json_find(f, n, "handshake");
	long len = hex != NULL ? hex_decode(hex, map, sizeof map) : 0;
	int side = json_string(json_find(f, n, "host"), host, sizeof host) && json_number(json_find(f, n, "port"), &port);
	if (!json_string(json_find(f, n, "engine_id"), name, sizeof name) || len < 0 || side == (hex != NULL) || port > 65535) {
		say_wrong(re, "engine needs an \"engine_id\", and either a \"handshake\" in hex or \"host\" and \"port\"");
		return;
	}
	kvl_engine_desc_t desc = {.size = sizeof desc, .ranks = 1, .engine_id = {name, strlen(name)}};
	if (side) {
		desc.host = (kvl_bytes_t){host, strlen(host)};
		desc.port = (uint32_t)port;
	}
	int32_t st = add_engine(&desc, &engine);
	if (st != KVL_OK) {
		say_refused(re, st, "kvl_engine_add");
		return;
	}
	if (hex != NULL && (st = kvl_engine_handshake(ctx, engine, 0, (kvl_bytes_t){map, (size_t)len})) != KVL_OK) {
		say_refused(re, st, "kvl_engine_handshake");
		return;
	}
	say("{\"re\":%llu,\"ok\":true,\"t_ns\":%llu}", (unsigned long long)re, (unsigned long long)now_ns());
}

/* The engine that transfer parameters name. One that was introduced keeps its way; else the parameters tell its side channel. */
static int32_t engine_of(const kvl_remote_t *remote, kvl_engine_t *engine_out)
{
	for (uint32_t i = 0; i < engines_n; i++) {
		if (strlen(engines[i].name) == remote->engine_id.len && memcmp(engines[i].name, remote->engine_id.data, remote->engine_id.len) == 0) {
			*engine_out = engines[i].handle;
			return KVL_OK;
		}
	}
	kvl_engine_desc_t desc = {
		.size = sizeof desc,
		.ranks = remote->tp_size,
		.pp_size = remote->pp_size,
		.engine_id = remote->engine_id,
		.host = remote->host,
		.port = remote->port,
	};
	return add_engine(&desc, engine_out);
}

static void on_track(uint64_t re, const char *id, const struct field *params)
{
	static uint8_t buf[65536];
	kvl_remote_t remote = {.size = sizeof remote};
	kvl_engine_t engine;
	size_t need = 0;
	if (params == NULL || find(id) != NULL) {
		say_wrong(re, params == NULL ? "track needs \"params\", as grant has answered them" : "%s is here already", id);
		return;
	}
	int32_t st = kvl_params_read(params->value, params->value_len, &remote, buf, sizeof buf, &need);
	if (st != KVL_OK) {
		say_refused(re, st, "kvl_params_read");
		return;
	}
	if (remote.groups_n != 1 || remote.groups[0].n > REQUEST_BLOCKS_MAX || remote.id.len >= ID_MAX) {
		say_wrong(re, "this engine takes one group of at most %d blocks and ids up to %d bytes", REQUEST_BLOCKS_MAX, ID_MAX - 1);
		return;
	}
	struct request *r = requests;
	while (r < requests + REQUESTS_MAX && r->id[0] != 0)
		r++;
	if (r == requests + REQUESTS_MAX) {
		say_wrong(re, "more than %d requests", REQUESTS_MAX);
		return;
	}
	st = engine_of(&remote, &engine);
	if (st != KVL_OK) {
		say_refused(re, st, "kvl_engine_add");
		return;
	}
	st = kvl_track(producer, engine, &remote, (kvl_bytes_t){id, strlen(id)}, (uint64_t)(r - requests), &r->track);
	if (st != KVL_OK) {
		say_refused(re, st, "kvl_track");
		return;
	}
	r->state = WAITING;
	r->n = remote.groups[0].n;
	memcpy(r->remote, remote.groups[0].ids, r->n * sizeof r->remote[0]);
	snprintf(r->id, sizeof r->id, "%s", id);
	snprintf(r->remote_id, sizeof r->remote_id, "%.*s", (int)remote.id.len, (const char *)remote.id.data);
	say("{\"re\":%llu,\"ok\":true,\"t_ns\":%llu}", (unsigned long long)re, (unsigned long long)now_ns());
}

static void on_read(uint64_t re, struct request *r)
{
	if (r->state != WAITING) {
		say_wrong(re, "%s is being read already", r->id);
		return;
	}
	if (r->n > free_n) {
		say_wrong(re, "%s needs %u blocks, %u are free", r->id, r->n, free_n);
		return;
	}
	for (uint32_t i = 0; i < r->n; i++)
		r->local[i] = free_blocks[--free_n];
	cache_clear(&cache, r->local, r->n);
	kvl_blocks_t local = {r->local, r->n, 0}, remote = {r->remote, r->n, 0};
	kvl_read_t read = {.size = sizeof read, .groups_n = 1, .local = &local, .remote = &remote};
	int32_t st = kvl_read(producer, r->track, &read);
	if (st == KVL_ERR_STALE || st == KVL_OK) {
		say("{\"re\":%llu,\"ok\":true,\"t_ns\":%llu}", (unsigned long long)re, (unsigned long long)now_ns());
	} else {
		for (uint32_t i = 0; i < r->n; i++)
			free_blocks[free_n++] = r->local[i];
		say_refused(re, st, "kvl_read");
		return;
	}
	r->state = READING;
	if (st == KVL_ERR_STALE) { /* the lease is known to be over: no read, no event */
		say("{\"ev\":\"read_failed\",\"id\":%s,\"status\":\"stale\",\"blocks_held\":false,\"handed_out\":%llu,\"t_ns\":%llu}", quoted(r->id),
		    (unsigned long long)handed_out, (unsigned long long)now_ns());
		give_back_blocks(r);
	}
}

/* False: quit. */
static int on_command(const char *line, size_t len)
{
	struct field f[FIELDS_MAX];
	char cmd[16], id[ID_MAX];
	uint64_t re = 0;
	int n = json_fields(line, len, f);
	if (n < 0 || !json_string(json_find(f, n, "cmd"), cmd, sizeof cmd)) {
		say_wrong(0, "not a command: one JSON object with the key \"cmd\" is needed");
		return 1;
	}
	json_number(json_find(f, n, "n"), &re);
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
	if (strcmp(cmd, "engine") == 0) {
		on_engine(re, f, n);
		return 1;
	}
	if (!json_string(json_find(f, n, "id"), id, sizeof id) || id[0] == 0) {
		say_wrong(re, "%s needs an \"id\" of 1 to %d bytes", cmd, ID_MAX - 1);
		return 1;
	}
	if (strcmp(cmd, "track") == 0) {
		on_track(re, id, json_find(f, n, "params"));
		return 1;
	}
	struct request *r = find(id);
	if (r == NULL) {
		say_wrong(re, "%s is not tracked", id);
	} else if (strcmp(cmd, "read") == 0) {
		on_read(re, r);
	} else if (strcmp(cmd, "untrack") == 0) {
		int32_t st = kvl_untrack(producer, r->track);
		if (st == KVL_OK && r->state == WAITING)
			r->id[0] = 0; /* with a read in flight the end comes by event */
		if (st == KVL_OK)
			say("{\"re\":%llu,\"ok\":true,\"t_ns\":%llu}", (unsigned long long)re, (unsigned long long)now_ns());
		else
			say_refused(re, st, "kvl_untrack");
	} else {
		say_wrong(re, "unknown command %s", cmd);
	}
	return 1;
}

static const char *read_name(int32_t status)
{
	static const char *const names[] = {"ok", "stale", "unproven", "failed", "timeout", "cancelled", "lost"};
	return status >= 0 && status < (int32_t)(sizeof names / sizeof names[0]) ? names[status] : "?";
}

/* Events about one request. */
static void on_request_event(const kvl_event_t *e, struct request *r)
{
	int held = (e->flags & KVL_EVF_BLOCKS_HELD) != 0;
	switch (e->kind) {
	case KVL_EV_READ_DONE:
		/* Proven: all of it was read while the lease stood. Only now may the model see it. */
		handed_out++;
		say("{\"ev\":\"read_done\",\"id\":%s,\"status\":\"ok\",\"bad_bytes\":%llu,\"bytes\":%llu,\"took_ms\":%.3f,\"handed_out\":%llu,\"t_ns\":%llu}",
		    quoted(r->id), (unsigned long long)cache_bad_bytes(&cache, r->remote_id, r->local, r->n), (unsigned long long)e->value0,
		    (double)e->value1 / 1e6, (unsigned long long)handed_out, (unsigned long long)e->time_ns);
		give_back_blocks(r);
		return;
	case KVL_EV_READ_FAILED:
		/* Not to be used. How much of it had come, and how much of that is another's, is for the demonstration only. */
		say("{\"ev\":\"read_failed\",\"id\":%s,\"status\":\"%s\",\"blocks_held\":%s,\"landed_bytes\":%llu,\"bad_bytes\":%llu,\"handed_out\":%llu,"
		    "\"t_ns\":%llu}",
		    quoted(r->id), read_name(e->status), held ? "true" : "false",
		    (unsigned long long)(held ? 0 : cache_landed(&cache, r->local, r->n)),
		    (unsigned long long)(held ? 0 : cache_bad_bytes(&cache, r->remote_id, r->local, r->n)), (unsigned long long)handed_out,
		    (unsigned long long)e->time_ns);
		if (held)
			r->state = OVER; /* a transfer may still write there: the blocks come back by event */
		else
			give_back_blocks(r);
		return;
	case KVL_EV_BLOCKS_BACK:
		say("{\"ev\":\"blocks_back\",\"id\":%s,\"t_ns\":%llu}", quoted(r->id), (unsigned long long)e->time_ns);
		give_back_blocks(r);
		return;
	case KVL_EV_LEASE_GONE:
		/* An engine recomputes now and untracks; this one waits for the command, to show that a read is refused, too. */
		say("{\"ev\":\"lease_gone\",\"id\":%s,\"t_ns\":%llu}", quoted(r->id), (unsigned long long)e->time_ns);
		return;
	case KVL_EV_AT_RISK:
		say("{\"ev\":\"at_risk\",\"id\":%s,\"left_ms\":%.3f,\"t_ns\":%llu}", quoted(r->id), (double)e->value0 / 1e6,
		    (unsigned long long)e->time_ns);
		return;
	default:
		return;
	}
}

static const char *name_of(kvl_engine_t engine)
{
	for (uint32_t i = 0; i < engines_n; i++) {
		if (engines[i].handle == engine)
			return engines[i].name;
	}
	return "?";
}

static void on_event(const kvl_event_t *e)
{
	switch (e->kind) {
	case KVL_EV_ENGINE_UP:
	case KVL_EV_ENGINE_DOWN:
		say("{\"ev\":\"%s\",\"engine_id\":%s,\"t_ns\":%llu}", e->kind == KVL_EV_ENGINE_UP ? "engine_up" : "engine_down", quoted(name_of(e->handle)),
		    (unsigned long long)e->time_ns);
		return;
	case KVL_EV_ENGINE_DRAINS: /* for a router: what is tracked there can still be read */
		say("{\"ev\":\"engine_drains\",\"engine_id\":%s,\"t_ns\":%llu}", quoted(name_of(e->handle)), (unsigned long long)e->time_ns);
		return;
	case KVL_EV_POISONED:
		say("{\"ev\":\"poisoned\",\"t_ns\":%llu}", (unsigned long long)e->time_ns);
		return;
	default:
		if (e->user < REQUESTS_MAX && requests[e->user].id[0] != 0 && requests[e->user].track == e->handle)
			on_request_event(e, &requests[e->user]);
	}
}

int main(int argc, char **argv)
{
	struct options o = options_read(argc, argv, "D", "A decode engine stand-in: tracks requests, reads their blocks, checks every byte.", 0);
	stop_on_signals();
	lines_open();
	cache_open(&cache, o.layers, o.blocks);
	while (free_n < o.blocks) {
		free_blocks[free_n] = o.blocks - 1 - free_n;
		free_n++;
	}
	ctx = engine_open(&o);
	int32_t st = cache_register(ctx, &cache);
	if (st != KVL_OK)
		die("kvl_register: %s: %s", kvl_status_name(st), kvl_last_error());
	st = kvl_producer_open(ctx, &producer);
	if (st != KVL_OK)
		die("kvl_producer_open: %s: %s", kvl_status_name(st), kvl_last_error());
	say_ready(&o, "decode", &cache);

	for (int go = 1; go && !told_to_stop;) {
		uint64_t pass_end = now_ns() + o.pass_ns;
		const char *line;
		size_t len;
		while (go && (line = lines_next(&commands, &len)) != NULL)
			go = on_command(line, len);
		if (commands.ended)
			break;

		/* Once per pass. Inline, this is where heartbeats leave and reads advance; with the pump it only says that we live. */
		st = o.pump ? kvl_pass(ctx) : kvl_step(ctx);
		if (st != KVL_OK && st != KVL_ERR_POISONED) /* poisoned: the ends still come by kvl_poll */
			die("%s: %s: %s", o.pump ? "kvl_pass" : "kvl_step", kvl_status_name(st), kvl_last_error());
		poll_events(ctx, on_event);
		forward_pass(pass_end);
	}

	engine_leave(ctx, on_event);
	return 0;
}
