/* What two busy engines do, for a profiler: leases held and renewed, and requests that come, are read and go. */
#include "pair.h"

enum { OPEN = 8, READ_BLOCKS = 16, PASS_NS = 200000 };

static uint8_t buf[REPLY_MAX];
static uint32_t read_ids[READ_BLOCKS];
static uint64_t reads_done, lost; /* lost: a machine that stood still for longer than a lease */
static uint32_t open_n;

static kvl_track_t track_new(struct side *d, const struct peer *p, const uint32_t *ids, uint32_t n)
{
	kvl_remote_t remote;
	kvl_track_t track;
	int32_t st;
	ask_grant(p, ids, n, &remote, buf, sizeof buf);
	while ((st = kvl_track(d->producer, p->engine, &remote, (kvl_bytes_t){"local", 5}, 0, &track)) == KVL_ERR_FULL)
		must(kvl_step(d->ctx), "kvl_step");
	must(st, "kvl_track");
	return track;
}

/* Blocks of its own for each read that is open, so that none waits for another. */
static void read_new(struct side *d, const struct peer *p, uint32_t blocks)
{
	static uint32_t next;
	for (uint32_t i = 0; i < READ_BLOCKS; i++)
		read_ids[i] = (next * READ_BLOCKS + i) % blocks;
	next++;
	kvl_blocks_t group = {read_ids, READ_BLOCKS, 0};
	kvl_read_t read = {.size = sizeof read, .groups_n = 1, .local = &group, .remote = &group};
	must(kvl_read(d->producer, track_new(d, p, read_ids, READ_BLOCKS), &read), "kvl_read");
	open_n++;
}

static void take_events(struct side *d)
{
	kvl_event_t events[64];
	int32_t n;
	while ((n = kvl_poll(d->ctx, events, sizeof events[0], 64)) > 0) {
		for (int32_t i = 0; i < n; i++) {
			switch (events[i].kind) {
			case KVL_EV_READ_DONE:
				reads_done++;
				open_n--;
				break;
			case KVL_EV_READ_FAILED:
				open_n--;
				lost++;
				break;
			case KVL_EV_LEASE_GONE:
				must(kvl_untrack(d->producer, events[i].handle), "kvl_untrack");
				lost++;
				break;
			default:
				break;
			}
		}
	}
}

/* Passes of D for as many seconds as there are rounds: from "load.D" on the load is what it stays. */
void load_run(const struct plan *plan, struct side *d, const struct peer *p)
{
	static const uint32_t first_block = 0;
	for (uint32_t i = 0; i < plan->held; i++) {
		track_new(d, p, &first_block, 1);
		if (i % 64 == 0)
			must(kvl_step(d->ctx), "kvl_step");
	}
	say("load.P", getppid());
	say("load.D", getpid());
	uint64_t beats = beats_sent(d), steps = 0, start = now_ns(), end = start + plan->rounds * 1000000000ull;
	for (uint64_t now = start; now < end; now = now_ns()) {
		while (open_n < OPEN)
			read_new(d, p, plan->blocks);
		must(kvl_step(d->ctx), "kvl_step");
		take_events(d);
		steps++;
		sleep_ns(PASS_NS);
	}
	double s = (double)(now_ns() - start) / 1e9;
	say("load.reads_s", (double)reads_done / s);
	say("load.steps_s", (double)steps / s);
	say("load.lost", (double)lost);
	say("load.beats_s", (double)(beats_sent(d) - beats) / s);
}
