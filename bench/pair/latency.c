/* What a notification's way takes until P has acted on it, what an idle step costs, and D's part of its own death. */
#include "pair.h"

static uint8_t buf[REPLY_MAX];
static const uint32_t first_block = 0;

static void track_one(struct side *d, const struct peer *p, const kvl_remote_t *remote, kvl_track_t *track_out)
{
	int32_t st;
	while ((st = kvl_track(d->producer, p->engine, remote, (kvl_bytes_t){"local", 5}, 0, track_out)) == KVL_ERR_FULL)
		must(kvl_step(d->ctx), "kvl_step");
	must(st, "kvl_track");
}

static void say_us(const char *what, const char *how, uint64_t ns)
{
	char name[64];
	snprintf(name, sizeof name, "%s.%s", what, how);
	say(name, (double)ns / 1000);
}

uint64_t beats_sent(struct side *d)
{
	static char json[65536];
	size_t len;
	must(kvl_stats(d->ctx, json, sizeof json, &len), "kvl_stats");
	const char *at = strstr(json, "\"beat_beats\":");
	if (at == NULL)
		die("kvl_stats tells no \"beat_beats\"");
	return strtoull(at + 13, NULL, 10);
}

/* P has work, so that its pump stays in the short period. */
static void keep_busy(const struct peer *p)
{
	static uint64_t last;
	if (now_ns() - last < 30000000u)
		return;
	ask(p, OP_BUSY, 0);
	last = now_ns();
}

/* Steps until a heartbeat has left; the time just before the step that sent it. */
static uint64_t step_until_beat(struct side *d, const struct peer *p, int busy)
{
	uint64_t before = beats_sent(d), start;
	do {
		sleep_ns(200000 + (uint64_t)rand() % 600000);
		if (busy)
			keep_busy(p);
		start = now_ns();
		must(kvl_step(d->ctx), "kvl_step");
	} while (beats_sent(d) == before);
	return start;
}

/* One request: granted, two of its beats timed, then read. With busy, P has other work all the time. */
static void one(struct side *d, const struct peer *p, const char *how, int busy)
{
	kvl_remote_t remote;
	kvl_track_t track;
	kvl_event_t e;
	uint64_t start;
	ask_grant(p, &first_block, 1, &remote, buf, sizeof buf);
	track_one(d, p, &remote, &track);
	step_until_beat(d, p, busy);
	ask(p, OP_BEAT, 1);
	for (uint64_t beat = 2; beat <= 3; beat++) {
		start = step_until_beat(d, p, busy);
		say_us("beat", how, ask(p, OP_BEAT, beat) - start);
	}
	for (uint64_t rest = now_ns() + 120000000u + (uint64_t)rand() % 30000000; now_ns() < rest; sleep_ns(1000000)) {
		if (busy)
			keep_busy(p);
	}
	kvl_blocks_t blocks = {&first_block, 1, 0};
	kvl_read_t read = {.size = sizeof read, .groups_n = 1, .local = &blocks, .remote = &blocks};
	must(kvl_read(d->producer, track, &read), "kvl_read");
	for (int done = 0; !done;) {
		start = now_ns();
		must(kvl_step(d->ctx), "kvl_step"); /* the completion leaves in the step that reports the read */
		while (kvl_poll(d->ctx, &e, sizeof e, 1) == 1) {
			if (e.kind == KVL_EV_READ_FAILED)
				die("read failed, status %d", e.status);
			done |= e.kind == KVL_EV_READ_DONE && e.handle == track;
		}
	}
	say_us("free", how, ask(p, OP_FREED, 0) - start);
}

/* Raw NIXL: P polls all the time. */
static void ping(const struct peer *p, int count)
{
	static const char msg[] = "request-0000:1";
	uint64_t at = 0;
	ask(p, OP_PING, 0);
	sleep_ns(20000);
	uint64_t start = now_ns();
	raw_send(msg, sizeof msg - 1);
	if (recv(p->socket, &at, sizeof at, 0) != sizeof at)
		die("P is gone");
	if (count)
		say("ping.raw", (double)(at - start) / 1000);
}

void latency_run(const struct plan *plan, struct side *d, const struct peer *p)
{
	ping(p, 0); /* the first one connects */
	srand((unsigned)getpid());
	for (uint32_t i = 0; i < plan->rounds; i++) {
		if (plan->drive[0] == 'i') {
			one(d, p, "inline", 0);
		} else {
			one(d, p, "pump_busy", 1);
			one(d, p, "pump_idle", 0);
		}
		ping(p, 1);
	}
}

enum { HELD = 10000, STEPS = 50, BATCHES = 200 };

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* The step of an engine that holds and tracks 10,000 requests each and waits for one handshake, when nothing is due. */
void idle_run(const struct plan *plan, struct side *d, const struct peer *p)
{
	static double step[BATCHES], poll[BATCHES];
	kvl_remote_t remote;
	kvl_track_t track;
	kvl_lease_t lease;
	kvl_blocks_t group = {&first_block, 1, 0};
	for (int i = 0; i < HELD; i++) {
		char id[72];
		int n = snprintf(id, sizeof id, "chatcmpl-%032x-%08x", i, i);
		kvl_grant_t grant = {.size = sizeof grant, .id = {id, (size_t)n}, .groups = &group, .groups_n = 1, .tokens = 16};
		ask_grant(p, &first_block, 1, &remote, buf, sizeof buf);
		track_one(d, p, &remote, &track);
		int32_t st;
		while ((st = kvl_grant(d->producer, &grant, &lease)) == KVL_ERR_FULL)
			must(kvl_step(d->ctx), "kvl_step");
		must(st, "kvl_grant");
	}
	kvl_engine_desc_t desc = {.size = sizeof desc, .ranks = 1, .engine_id = {"pending", 7}};
	struct peer pending = *p;
	must(kvl_engine_add(d->ctx, &desc, &pending.engine), "kvl_engine_add");
	track_one(d, &pending, &remote, &track);
	for (uint64_t end = now_ns() + 2000000000u; now_ns() < end;) /* all that is due at first has been done */
		must(kvl_step(d->ctx), "kvl_step");
	for (uint32_t round = 0; round < plan->rounds; round++) {
		for (int b = 0; b < BATCHES; b++) {
			uint64_t start = now_ns();
			for (int i = 0; i < STEPS; i++)
				must(kvl_step(d->ctx), "kvl_step");
			uint64_t mid = now_ns();
			for (int i = 0; i < STEPS; i++)
				raw_poll();
			step[b] = (double)(mid - start) / STEPS;
			poll[b] = (double)(now_ns() - mid) / STEPS;
		}
		qsort(step, BATCHES, sizeof step[0], by_value);
		qsort(poll, BATCHES, sizeof poll[0], by_value);
		say("idle.step", step[BATCHES / 2]);
		say("idle.poll", poll[BATCHES / 2]);
	}
}

/* Tracks its requests and steps until P kills it. */
void kill_run(const struct plan *plan, struct side *d, const struct peer *p)
{
	kvl_remote_t remote;
	kvl_track_t track;
	for (uint32_t i = 0; i < plan->rounds; i++) {
		ask_grant(p, &first_block, 1, &remote, buf, sizeof buf);
		track_one(d, p, &remote, &track);
	}
	for (;;) {
		must(kvl_step(d->ctx), "kvl_step");
		sleep_ns(5000000);
	}
}
