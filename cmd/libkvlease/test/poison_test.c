/* After a poisoning: rows closed, then every end told once, those of readers that do not check the fence later. */
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "fakecore.h"

static const uint32_t ids[] = {1, 2};
static const kvl_blocks_t blocks = {ids, 2, 0};

static void rows_are_closed(const fake_core_t *f)
{
	const kvl_board_header_t *head = (const kvl_board_header_t *)(const void *)f->args.board;
	const kvl_row_t *rows = (const kvl_row_t *)(const void *)(f->args.board + sizeof *head);
	CHECK((head->flags & KVL_BF_CLOSED) != 0);
	for (uint32_t i = 0; i < f->sizes.leases; i++)
		CHECK(rows[i].fence == UINT64_MAX);
}

static int32_t poll(kvl_ctx_t *ctx, kvl_event_t *evs, uint32_t n) { return kvl_poll(ctx, evs, sizeof *evs, n); }

static void ends_are_told_once_and_unchecked_ones_one_duration_later(void)
{
	kvl_ctx_t *ctx = open_ctx("{\"leases\":8,\"duration_ms\":500}");
	kvl_producer_t *p = open_producer(ctx);
	fake_core_t *f = fake_last();
	kvl_lease_t leases[4], expected;
	kvl_track_t track;
	kvl_remote_t r = remote_of("r");
	kvl_event_t evs[16];
	char text[64];
	size_t len;
	uint64_t poisoned;
	for (uint32_t i = 0; i < 4; i++) {
		kvl_grant_t g = grant_of("r", &blocks, 1, 100 + i);
		CHECK_STATUS(kvl_grant(p, &g, &leases[i]), KVL_OK);
	}
	CHECK_STATUS(kvl_expect(p, str("e"), &expected), KVL_OK);
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	CHECK_STATUS(kvl_cancel(p, leases[3]), KVL_OK);
	CHECK_STATUS(kvl_step(ctx), KVL_OK); /* its event is in the ring when the context breaks */
	fake_check_all(f);
	f->args.slots[1].flags = KVL_SF_UNCHECKED;
	CHECK_STATUS(kvl_fence_all(ctx), KVL_OK);
	rows_are_closed(f);
	poisoned = f->args.control->poison_ns;
	CHECK_STATUS(kvl_step(ctx), KVL_ERR_POISONED);
	CHECK_STATUS(kvl_pass(ctx), KVL_ERR_POISONED);
	CHECK_STATUS(kvl_cancel(p, leases[0]), KVL_ERR_POISONED);
	CHECK_STATUS(kvl_track(p, 1, &r, str(""), 0, &track), KVL_ERR_POISONED);
	CHECK_STATUS(kvl_reject(p, 1, &r), KVL_ERR_POISONED);
	CHECK_STATUS(kvl_params_key(ctx, leases[0], text, sizeof text, &len), KVL_ERR_POISONED);

	CHECK_EQ(poll(ctx, evs, 1), 1);
	CHECK(evs[0].kind == KVL_EV_FREED && evs[0].status == KVL_FREED_REVOKED && evs[0].handle == leases[3]);
	CHECK_EQ(poll(ctx, evs, 2), 2);
	CHECK_EQ(evs[0].kind, KVL_EV_POISONED);
	CHECK(evs[1].kind == KVL_EV_FREED && evs[1].status == KVL_FREED_POISONED && evs[1].handle == leases[0]);
	CHECK(evs[1].user == 100 && evs[1].value0 == 2);
	CHECK_EQ(poll(ctx, evs, 16), 1);
	CHECK(evs[0].handle == leases[2] && evs[0].user == 102);
	while (boot_ns() < poisoned + 500000000u) {
		int32_t n = poll(ctx, evs, 16);
		CHECK(n == 0 || boot_ns() >= poisoned + 500000000u);
		if (n != 0) {
			CHECK(n == 1 && evs[0].handle == leases[1]);
			goto told;
		}
	}
	CHECK_EQ(poll(ctx, evs, 16), 1);
	CHECK(evs[0].handle == leases[1] && evs[0].status == KVL_FREED_POISONED);
told:
	CHECK_EQ(poll(ctx, evs, 16), 0);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

static void a_core_that_panics_is_reported_from_the_slots(void)
{
	kvl_ctx_t *ctx = open_ctx("{\"leases\":8,\"duration_ms\":10000}");
	kvl_producer_t *p = open_producer(ctx);
	fake_core_t *f = fake_last();
	kvl_grant_t g = grant_of("r", &blocks, 1, 5);
	kvl_lease_t a, b;
	kvl_event_t evs[8];
	CHECK_STATUS(kvl_grant(p, &g, &a), KVL_OK);
	CHECK_STATUS(kvl_grant(p, &g, &b), KVL_OK);
	CHECK_STATUS(kvl_step(ctx), KVL_OK);
	fake_check_all(f);
	f->keep_slots = 1; /* ended, the event still to come */
	CHECK_STATUS(kvl_cancel(p, a), KVL_OK);
	f->panic = 1;
	CHECK_STATUS(kvl_step(ctx), KVL_ERR_POISONED);
	CHECK_EQ(poll(ctx, evs, 8), 3);
	CHECK_EQ(evs[0].kind, KVL_EV_POISONED);
	CHECK(evs[1].handle == a && evs[2].handle == b);
	CHECK_EQ(poll(ctx, evs, 8), 0);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

/* A record that the core never saw is a lease all the same: its parameters may be on their way. */
static void a_grant_that_no_step_has_seen_is_reported_as_unchecked(void)
{
	kvl_ctx_t *ctx = open_ctx("{\"leases\":8,\"duration_ms\":1}");
	kvl_producer_t *p = open_producer(ctx);
	kvl_grant_t g = grant_of("r", &blocks, 1, 5);
	kvl_lease_t a;
	kvl_event_t evs[8];
	uint64_t until;
	int32_t n;
	CHECK_STATUS(kvl_grant(p, &g, &a), KVL_OK);
	CHECK((fake_last()->args.slots[(uint32_t)a].flags & KVL_SF_UNCHECKED) != 0);
	CHECK_STATUS(kvl_fence_all(ctx), KVL_OK);
	until = fake_last()->args.control->poison_ns + 1000000;
	n = poll(ctx, evs, 8);
	CHECK(n >= 1 && evs[0].kind == KVL_EV_POISONED);
	if (n == 1) {
		while (boot_ns() < until)
			;
		CHECK_EQ(poll(ctx, evs + 1, 7), 1);
	}
	CHECK(evs[1].handle == a && evs[1].user == 5 && evs[1].value0 == 2);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

/* kvl_grant reads the clock between its slot's state and its last look at poisoned: the place to break in. */
static _Thread_local void (*in_the_clock)(void);
int clock_gettime(clockid_t id, struct timespec *t)
{
	void (*fn)(void) = in_the_clock;
	in_the_clock = NULL;
	if (fn != NULL)
		fn();
	return (int)syscall(SYS_clock_gettime, id, t);
}

static kvl_ctx_t *broken;
static kvl_event_t told[8];
static int32_t told_n;
static void fence_now(void) { CHECK_STATUS(kvl_fence_all(broken), KVL_OK); }
static void fence_and_tell_now(void)
{
	fence_now();
	told_n = poll(broken, told, 8);
}

static void a_grant_that_a_poisoning_meets_is_refused_or_told_but_never_lost(void)
{
	kvl_grant_t g = grant_of("r", &blocks, 1, 5);
	kvl_event_t evs[8];
	kvl_lease_t lease = 77;
	broken = open_ctx("{\"duration_ms\":0}");
	kvl_producer_t *p = open_producer(broken);
	in_the_clock = fence_now;
	CHECK_STATUS(kvl_grant(p, &g, &lease), KVL_ERR_POISONED);
	CHECK_EQ(lease, 77);
	CHECK_EQ(poll(broken, evs, 8), 1); /* poisoned, and no end of what never began */
	CHECK_EQ(evs[0].kind, KVL_EV_POISONED);
	CHECK_STATUS(kvl_close(broken, 0), KVL_OK);

	broken = open_ctx("{\"duration_ms\":0}");
	p = open_producer(broken);
	in_the_clock = fence_and_tell_now;
	CHECK_STATUS(kvl_grant(p, &g, &lease), KVL_OK);
	CHECK_EQ(told_n, 2);
	CHECK(told[0].kind == KVL_EV_POISONED && told[1].kind == KVL_EV_FREED && told[1].handle == lease);
	CHECK_EQ(poll(broken, evs, 8), 0);
	CHECK_STATUS(kvl_close(broken, 0), KVL_OK);
}

static void the_report_waits_for_a_step_that_runs(void)
{
	kvl_ctx_t *ctx = open_ctx("{\"leases\":8,\"pump\":1,\"duration_ms\":10000}");
	kvl_producer_t *p = open_producer(ctx);
	fake_core_t *f = fake_last();
	kvl_grant_t g = grant_of("r", &blocks, 1, 5);
	kvl_lease_t a;
	kvl_event_t evs[8], end = {.kind = KVL_EV_FREED, .status = KVL_FREED_EXPIRED};
	uint64_t count;
	CHECK_STATUS(kvl_grant(p, &g, &a), KVL_OK);
	fake_step(f);
	fake_check_all(f);
	__atomic_store_n(&f->args.control->stepping, 1, __ATOMIC_SEQ_CST); /* the pump is inside a step */
	CHECK_STATUS(kvl_fence_all(ctx), KVL_OK);
	CHECK(read(f->args.control->wake_fd, &count, sizeof count) == sizeof count); /* a sleeping pump would have woken */
	CHECK_EQ(poll(ctx, evs, 8), 0);
	end.handle = a; /* the step ends the lease */
	fake_publish(f, &end);
	__atomic_store_n(&f->args.control->stepping, 0, __ATOMIC_SEQ_CST);
	CHECK_EQ(poll(ctx, evs, 8), 2);
	CHECK(evs[0].kind == KVL_EV_FREED && evs[0].status == KVL_FREED_EXPIRED && evs[1].kind == KVL_EV_POISONED);
	CHECK_EQ(poll(ctx, evs, 8), 0); /* not once more from its slot */
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

static void the_report_waits_for_a_step_that_hangs_only_as_long_as_a_lease_lasts(void)
{
	kvl_ctx_t *ctx = open_ctx("{\"pump\":1,\"duration_ms\":30}");
	kvl_control_t *control = fake_last()->args.control;
	kvl_event_t ev;
	uint64_t end = boot_ns() + 20000000000u;
	control->stepping = 1; /* for ever */
	CHECK_STATUS(kvl_fence_all(ctx), KVL_OK);
	while (poll(ctx, &ev, 1) == 0)
		CHECK(boot_ns() < end);
	CHECK_EQ(ev.kind, KVL_EV_POISONED);
	CHECK(boot_ns() - control->poison_ns >= 30000000u);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

static void a_second_fence_moves_no_time(void)
{
	kvl_ctx_t *ctx = open_ctx("{}");
	kvl_control_t *control = fake_last()->args.control;
	CHECK_STATUS(kvl_fence_all(ctx), KVL_OK);
	CHECK(control->poison_ns != 0);
	control->poison_ns = 5; /* long ago */
	CHECK_STATUS(kvl_fence_all(ctx), KVL_OK);
	CHECK_EQ(control->poison_ns, 5); /* the ends of unchecked leases are told one duration after the first */
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

/* Somebody wrote over our memory: nothing in it is handed on. */
static void a_completion_ring_that_makes_no_sense_poisons(void)
{
	for (int corrupt = 0; corrupt < 2; corrupt++) {
		kvl_ctx_t *ctx = open_ctx("{\"leases\":4}");
		fake_core_t *f = fake_last();
		kvl_event_t evs[4];
		if (corrupt) {
			((kvl_ring_header_t *)f->args.events)->head = 5;
		} else {
			CHECK(kvl_ring_reserve(&f->events, KVL_EV_FREED, 8) != NULL);
			kvl_ring_publish(&f->events);
		}
		CHECK_EQ(poll(ctx, evs, 4), 1);
		CHECK_EQ(evs[0].kind, KVL_EV_POISONED);
		rows_are_closed(f);
		CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
	}
}

static kvl_ctx_t *signalled;
static void on_signal(int sig)
{
	(void)sig;
	kvl_fence_all(signalled);
}

static void a_signal_handler_may_fence(void)
{
	struct sigaction sa = {.sa_handler = on_signal};
	kvl_ctx_t *ctx = signalled = open_ctx("{\"leases\":100}");
	sigaction(SIGUSR1, &sa, NULL);
	CHECK_EQ(raise(SIGUSR1), 0);
	rows_are_closed(fake_last());
	CHECK_STATUS(kvl_step(ctx), KVL_ERR_POISONED);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

/* One thread grants, one steps, one fences: whatever was granted ends exactly once, in the ring or in the report. */
enum { RACE_LEASES = 512 };
static struct race {
	kvl_ctx_t *ctx;
	kvl_producer_t *p;
	kvl_lease_t granted[RACE_LEASES];
	uint32_t n, stop;
} race;

static void *granting(void *arg)
{
	kvl_grant_t g = grant_of("r", &blocks, 1, 5);
	(void)arg;
	for (uint32_t n = 0; n < RACE_LEASES;) {
		int32_t st = kvl_grant(race.p, &g, &race.granted[n]);
		if (st == KVL_ERR_POISONED)
			break;
		if (st != KVL_OK)
			continue;
		if (n % 3 == 0)
			kvl_cancel(race.p, race.granted[n]);
		__atomic_store_n(&race.n, ++n, __ATOMIC_RELEASE);
	}
	return NULL;
}

static void *stepping(void *arg)
{
	(void)arg;
	while (!__atomic_load_n(&race.stop, __ATOMIC_ACQUIRE))
		kvl_step(race.ctx);
	return NULL;
}

static void every_grant_ends_once_when_fenced_in_the_middle(void)
{
	static uint8_t ended[RACE_LEASES];
	for (int round = 0; round < 40; round++) {
		pthread_t a, b;
		kvl_event_t ev;
		uint32_t ends = 0, poisoned = 0;
		uint64_t give_up;
		race.ctx = open_ctx("{\"leases\":512,\"duration_ms\":5,\"ring_bytes\":1048576}");
		race.p = open_producer(race.ctx);
		race.n = race.stop = 0;
		memset(ended, 0, sizeof ended);
		pthread_create(&a, NULL, granting, NULL);
		pthread_create(&b, NULL, stepping, NULL);
		while (__atomic_load_n(&fake_last()->args.control->steps, __ATOMIC_RELAXED) < (uint64_t)round * 3)
			if (__atomic_load_n(&race.n, __ATOMIC_RELAXED) == RACE_LEASES)
				break;
		CHECK_STATUS(kvl_fence_all(race.ctx), KVL_OK);
		pthread_join(a, NULL);
		__atomic_store_n(&race.stop, 1, __ATOMIC_RELEASE);
		pthread_join(b, NULL);
		for (give_up = boot_ns() + 10000000000u; (ends < race.n || !poisoned) && boot_ns() < give_up;) {
			uint32_t i;
			if (poll(race.ctx, &ev, 1) != 1)
				continue;
			poisoned += ev.kind == KVL_EV_POISONED;
			if (ev.kind != KVL_EV_FREED)
				continue;
			for (i = 0; i < race.n && race.granted[i] != ev.handle; i++)
				;
			CHECK(i < race.n && !ended[i]);
			ended[i] = 1;
			ends++;
		}
		CHECK_EQ(ends, race.n);
		CHECK_EQ(poisoned, 1);
		CHECK_EQ(poll(race.ctx, &ev, 1), 0);
		CHECK_EQ(fake_last()->overlaps, 0);
		CHECK_STATUS(kvl_close(race.ctx, 0), KVL_OK);
	}
}

/* Producers that passed the gate before the poisoning: they go on saying bits in state words while the report walks over them. */
static void *saying(void *arg)
{
	kvl_slot_t *slots = fake_last()->args.slots;
	(void)arg;
	while (!__atomic_load_n(&race.stop, __ATOMIC_ACQUIRE)) {
		for (uint32_t i = 0; i < RACE_LEASES; i++) {
			uint64_t seen = __atomic_load_n(&slots[i].state, __ATOMIC_RELAXED);
			if ((seen & KVL_S_MASK) == KVL_S_GRANTED)
				__atomic_compare_exchange_n(&slots[i].state, &seen, seen ^ KVL_S_REVOKE, 0, __ATOMIC_ACQ_REL,
							    __ATOMIC_RELAXED);
		}
	}
	return NULL;
}

static void a_word_that_changes_under_the_report_is_told_all_the_same(void)
{
	for (int round = 0; round < 10; round++) {
		static kvl_event_t evs[RACE_LEASES + 1];
		kvl_grant_t g = grant_of("r", &blocks, 1, 5);
		pthread_t a;
		uint32_t ends = 0;
		uint64_t give_up;
		race.ctx = open_ctx("{\"leases\":512,\"duration_ms\":1,\"ring_bytes\":1048576}");
		race.p = open_producer(race.ctx);
		race.stop = 0;
		for (uint32_t i = 0; i < RACE_LEASES; i++)
			CHECK_STATUS(kvl_grant(race.p, &g, &race.granted[i]), KVL_OK);
		pthread_create(&a, NULL, saying, NULL);
		while ((__atomic_load_n(&fake_last()->args.slots[RACE_LEASES - 1].state, __ATOMIC_RELAXED) & KVL_S_REVOKE) == 0)
			;
		CHECK_STATUS(kvl_fence_all(race.ctx), KVL_OK);
		for (give_up = boot_ns() + 10000000000u; ends < RACE_LEASES && boot_ns() < give_up;) {
			int32_t n = poll(race.ctx, evs, RACE_LEASES + 1);
			for (int32_t i = 0; i < n; i++)
				ends += evs[i].kind == KVL_EV_FREED;
		}
		__atomic_store_n(&race.stop, 1, __ATOMIC_RELEASE);
		pthread_join(a, NULL);
		CHECK_EQ(ends, RACE_LEASES);
		CHECK_STATUS(kvl_close(race.ctx, 0), KVL_OK);
	}
}

int main(void)
{
	RUN(ends_are_told_once_and_unchecked_ones_one_duration_later);
	RUN(a_core_that_panics_is_reported_from_the_slots);
	RUN(a_grant_that_no_step_has_seen_is_reported_as_unchecked);
	RUN(a_grant_that_a_poisoning_meets_is_refused_or_told_but_never_lost);
	RUN(the_report_waits_for_a_step_that_runs);
	RUN(the_report_waits_for_a_step_that_hangs_only_as_long_as_a_lease_lasts);
	RUN(a_second_fence_moves_no_time);
	RUN(a_completion_ring_that_makes_no_sense_poisons);
	RUN(a_signal_handler_may_fence);
	RUN(every_grant_ends_once_when_fenced_in_the_middle);
	RUN(a_word_that_changes_under_the_report_is_told_all_the_same);
	return 0;
}
