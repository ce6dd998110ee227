/* Host and rank contexts: which calls are whose, what each reports, and what wakes them. */
#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "fakecore.h"

/* The fake core takes roles by their numbers. */
#define HOST "{\"role\":1,\"ranks\":2,\"duration_ms\":200,\"idle_tick_ms\":1000}"
#define RANK "{\"role\":2,\"ranks\":2,\"duration_ms\":200,\"idle_tick_ms\":1000}"

static const uint32_t ids[] = {1, 2, 3};
static const kvl_blocks_t blocks = {ids, 3, 0};
static const kvl_region_t region = {.addr = 4096, .bytes = 4096, .block_len = 512, .block_stride = 512, .blocks = 8, .group = -1};

#define REFUSED(call, text)                                                                                            \
	do {                                                                                                           \
		CHECK_STATUS(call, KVL_ERR_INVALID);                                                                   \
		CHECK_ERROR(text);                                                                                     \
	} while (0)

static void a_host_context_has_requests_and_no_memory(void)
{
	kvl_ctx_t *c = open_ctx(HOST);
	kvl_producer_t *p = open_producer(c);
	kvl_engine_desc_t d = {.size = sizeof d, .ranks = 2, .engine_id = str("P")};
	kvl_grant_t g = grant_of("r", &blocks, 1, 0);
	kvl_engine_t e;
	kvl_lease_t l;
	char text[1024];
	size_t len;
	REFUSED(kvl_register(c, &region, sizeof region, 1), "register on the rank contexts");
	REFUSED(kvl_unregister(c), "unregister on the rank contexts");
	CHECK_STATUS(kvl_engine_add(c, &d, &e), KVL_OK);
	CHECK_STATUS(kvl_grant(p, &g, &l), KVL_OK); /* any block ids: only ranks know their regions */
	CHECK_STATUS(kvl_params(c, l, &g, text, sizeof text, &len), KVL_OK);
	CHECK_STATUS(kvl_handshake_get(c, 0, text, sizeof text, &len), KVL_OK);
	CHECK_STATUS(kvl_step(c), KVL_OK);
	CHECK_STATUS(kvl_drain(c, 1), KVL_OK);
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);
}

static void a_rank_context_has_memory_and_no_requests(void)
{
	kvl_ctx_t *c = open_ctx(RANK);
	kvl_engine_desc_t d = {.size = sizeof d, .ranks = 2, .engine_id = str("P")};
	kvl_grant_t g = grant_of("r", &blocks, 1, 0);
	kvl_producer_t *p = (kvl_producer_t *)(void *)c;
	kvl_engine_t e = 77;
	kvl_event_t ev;
	char text[1024];
	size_t len = 77;
	int fd;
	REFUSED(kvl_producer_open(c, &p), "requests go through the host context");
	REFUSED(kvl_engine_add(c, &d, &e), "engines are added to the host context");
	REFUSED(kvl_engine_remove(c, 1ull << 32), "host context");
	REFUSED(kvl_engine_handshake(c, 1ull << 32, 0, str("map")), "host context");
	REFUSED(kvl_params(c, 1ull << 32, &g, text, sizeof text, &len), "host context");
	REFUSED(kvl_params_key(c, 1ull << 32, text, sizeof text, &len), "host context");
	REFUSED(kvl_drain(c, 1), "drain the host context");
	CHECK(p == (kvl_producer_t *)(void *)c && e == 77 && len == 77);
	CHECK_STATUS(kvl_register(c, &region, sizeof region, 1), KVL_OK);
	CHECK_STATUS(kvl_handshake_get(c, 0, text, sizeof text, &len), KVL_OK);
	CHECK_STATUS(kvl_step(c), KVL_OK);
	CHECK_STATUS(kvl_pass(c), KVL_OK);
	CHECK_STATUS(kvl_pause(c, 1), KVL_OK);
	CHECK_EQ(kvl_poll(c, &ev, sizeof ev, 1), 0);
	CHECK_STATUS(kvl_wait_fd(c, &fd), KVL_OK);
	CHECK_STATUS(kvl_stats(c, text, sizeof text, &len), KVL_OK);
	CHECK_STATUS(kvl_metrics_text(c, text, sizeof text, &len), KVL_OK);
	CHECK_STATUS(kvl_metrics_listen(c, ":0", NULL), KVL_OK);
	CHECK_STATUS(kvl_unregister(c), KVL_OK);
	CHECK_STATUS(kvl_register(c, &region, sizeof region, 1), KVL_OK); /* and again: it woke up */
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);
}

static void what_the_core_cannot_be_is_refused(void)
{
	static const char *const wrong[] = {"{\"role\":3}", "{\"ranks\":0}", "{\"ranks\":65}"};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		kvl_ctx_t *c = NULL;
		CHECK_STATUS(kvl_open(wrong[i], strlen(wrong[i]), &c, NULL, 0), KVL_ERR_UNAVAILABLE);
		CHECK_ERROR("sizes");
	}
}

static kvl_ctx_t *host, *ranks[2];
static kvl_producer_t *producer;

static void a_host_and_its_ranks_live_in_one_process(void)
{
	kvl_grant_t g = grant_of("r", &blocks, 1, 7);
	fake_core_t *f;
	kvl_event_t ev;
	kvl_lease_t l;
	host = open_ctx(HOST);
	f = fake_last();
	producer = open_producer(host);
	for (int i = 0; i < 2; i++) {
		ranks[i] = open_ctx(RANK);
		CHECK_STATUS(kvl_register(ranks[i], &region, sizeof region, 1), KVL_OK);
	}
	CHECK_STATUS(kvl_grant(producer, &g, &l), KVL_OK);
	for (int i = 0; i < 2; i++)
		CHECK_STATUS(kvl_step(ranks[i]), KVL_OK);
	CHECK_EQ(f->log_n, 0); /* each steps for itself */
	CHECK_STATUS(kvl_fence_all(ranks[1]), KVL_OK); /* and breaks for itself */
	CHECK_STATUS(kvl_step(ranks[1]), KVL_ERR_POISONED);
	CHECK_STATUS(kvl_step(host), KVL_OK);
	CHECK_STATUS(kvl_step(ranks[0]), KVL_OK);
	CHECK_EQ(f->log_n, 1);
	CHECK_EQ(kvl_poll(ranks[1], &ev, sizeof ev, 1), 1);
	CHECK_EQ(ev.kind, KVL_EV_POISONED);
	CHECK_EQ(kvl_poll(host, &ev, sizeof ev, 1), 0);
}

static void a_child_of_a_fork_is_told_by_hosts_and_ranks(void)
{
	int status;
	pid_t child = fork();
	if (child == 0) {
		const kvl_grant_t g = grant_of("r", &blocks, 1, 0);
		kvl_ctx_t *mine = NULL;
		kvl_lease_t l;
		char buf[KVL_DELTA_MIN];
		size_t len;
		const int32_t got[] = {
			kvl_step(host),
			kvl_grant(producer, &g, &l),
			kvl_delta_take(host, 0, buf, sizeof buf, &len),
			kvl_delta_put(host, 0, str("delta")),
			kvl_delta_lost(host, 0),
			kvl_register(host, &region, sizeof region, 1),
			kvl_step(ranks[0]),
			kvl_producer_open(ranks[0], &producer),
			kvl_register(ranks[0], &region, sizeof region, 1),
			kvl_unregister(ranks[0]),
			kvl_close(ranks[0], 0),
			kvl_open(RANK, strlen(RANK), &mine, NULL, 0),
		};
		for (size_t i = 0; i < sizeof got / sizeof *got; i++)
			CHECK_STATUS(got[i], KVL_ERR_FORKED); /* and not the role's refusal: the child must hear of the fork */
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	for (int i = 0; i < 2; i++)
		CHECK_STATUS(kvl_close(ranks[i], 0), KVL_OK);
	CHECK_STATUS(kvl_close(host, 0), KVL_OK);
}

static void the_rows_of_a_broken_host_close_elsewhere_so_all_its_ends_wait(void)
{
	kvl_ctx_t *c = open_ctx(HOST);
	kvl_producer_t *p = open_producer(c);
	kvl_grant_t g = grant_of("r", &blocks, 1, 7);
	kvl_event_t ev[4];
	kvl_lease_t l;
	uint64_t since;
	int32_t n;
	CHECK_STATUS(kvl_grant(p, &g, &l), KVL_OK);
	CHECK_STATUS(kvl_step(c), KVL_OK);
	fake_check_all(fake_last()); /* of one rank with its own board this would be told at once */
	since = boot_ns();
	CHECK_STATUS(kvl_fence_all(c), KVL_OK);
	CHECK_EQ(kvl_poll(c, ev, sizeof ev[0], 4), 1);
	CHECK_EQ(ev[0].kind, KVL_EV_POISONED);
	fake_last()->args.control->rows_closed = 1;
	while ((n = kvl_poll(c, ev, sizeof ev[0], 4)) == 0)
		CHECK(boot_ns() - since < 20000000000ull);
	CHECK(boot_ns() - since >= 200000000);
	CHECK(n == 1 && ev[0].kind == KVL_EV_FREED && ev[0].status == KVL_FREED_POISONED && ev[0].handle == l);
	CHECK_EQ(ev[0].reasons, 0x55); /* of both ranks */
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);
}

static int ready(int fd, int ms)
{
	struct pollfd pf = {fd, POLLIN, 0};
	return poll(&pf, 1, ms) == 1;
}

/* A rank that stands still has its rows open, however long: its blocks are nobody's else. */
static void the_ends_of_a_broken_host_wait_for_the_rows_of_a_rank_that_stands_still(void)
{
	for (int pump = 0; pump < 2; pump++) {
		kvl_ctx_t *c = open_ctx(pump ? "{\"role\":1,\"ranks\":2,\"duration_ms\":1,\"idle_tick_ms\":20,\"pump\":1}"
					     : "{\"role\":1,\"ranks\":2,\"duration_ms\":1,\"idle_tick_ms\":20}");
		kvl_producer_t *p = open_producer(c);
		fake_core_t *f = fake_last();
		kvl_grant_t g = grant_of("r", &blocks, 1, 7);
		kvl_event_t ev[4];
		kvl_lease_t l;
		uint64_t since;
		int fd;
		CHECK_STATUS(kvl_wait_fd(c, &fd), KVL_OK);
		CHECK_STATUS(kvl_grant(p, &g, &l), KVL_OK);
		fake_step(f);
		CHECK_STATUS(kvl_fence_all(c), KVL_OK);
		for (since = boot_ns(); boot_ns() - since < 50000000;) { /* 50 durations */
			int32_t n = kvl_poll(c, ev, sizeof ev[0], 4);
			CHECK(n == 0 || (n == 1 && ev[0].kind == KVL_EV_POISONED));
		}
		/* Inline the loop is woken to hear the ranks; with a pump it sleeps until that says that it has heard them. */
		CHECK_EQ(ready(fd, pump ? 0 : 1000), !pump);
		CHECK_EQ(kvl_poll(c, ev, sizeof ev[0], 4), 0);
		CHECK(!ready(fd, 0));
		__atomic_store_n(&f->args.control->rows_closed, 1, __ATOMIC_RELEASE);
		CHECK_EQ(kvl_poll(c, ev, sizeof ev[0], 4), 1);
		CHECK(ev[0].kind == KVL_EV_FREED && ev[0].status == KVL_FREED_POISONED && ev[0].handle == l);
		CHECK_EQ(kvl_poll(c, ev, sizeof ev[0], 4), 0);
		CHECK(!ready(fd, 0));
		CHECK_STATUS(kvl_close(c, 0), KVL_OK);
	}
}

static void all_ranks_have_closed_their_rows(void) { fake_last()->args.control->rows_closed = 1; }

/* An engine that polls and steps no more: the ranks are told, and heard, by its polls. */
static void a_poll_of_a_broken_context_steps_what_the_others_are_told_by(void)
{
	static const struct {
		const char *config;
		int steps;
	} of[] = {{HOST, 1}, {RANK, 1}, {"{\"role\":1,\"ranks\":2,\"pump\":1}", 0}, {"{}", 0}};
	for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
		kvl_ctx_t *c = open_ctx(of[i].config);
		fake_core_t *f = fake_last();
		kvl_event_t ev[4];
		CHECK_STATUS(kvl_fence_all(c), KVL_OK);
		f->inside = all_ranks_have_closed_their_rows;
		CHECK_EQ(kvl_poll(c, ev, sizeof ev[0], 4), 1);
		CHECK_EQ(ev[0].kind, KVL_EV_POISONED);
		CHECK_EQ(f->args.control->rows_closed, of[i].steps);
		CHECK_EQ(f->overlaps, 0);
		f->inside = NULL;
		CHECK_STATUS(kvl_close(c, 0), KVL_OK);
	}
}

static void an_engine_of_one_rank_gives_the_status_as_its_reason(void)
{
	kvl_ctx_t *c = open_ctx("{\"duration_ms\":0}");
	kvl_producer_t *p = open_producer(c);
	kvl_grant_t g = grant_of("r", &blocks, 1, 7);
	kvl_event_t ev[4];
	kvl_lease_t l;
	CHECK_STATUS(kvl_grant(p, &g, &l), KVL_OK);
	CHECK_STATUS(kvl_step(c), KVL_OK);
	CHECK_STATUS(kvl_fence_all(c), KVL_OK);
	CHECK_EQ(kvl_poll(c, ev, sizeof ev[0], 4), 2);
	CHECK(ev[0].kind == KVL_EV_POISONED && ev[0].reasons == 0);
	CHECK(ev[1].kind == KVL_EV_FREED && ev[1].reasons == KVL_FREED_POISONED);
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);
}

static void a_broken_rank_leaves_the_ends_to_its_host(void)
{
	kvl_ctx_t *c = open_ctx(RANK);
	fake_core_t *f = fake_last();
	kvl_event_t ev[4];
	for (int i = 0; i < 2; i++) /* leases that its host has granted */
		f->args.slots[i].state = KVL_S_GRANTED;
	CHECK_STATUS(kvl_fence_all(c), KVL_OK);
	CHECK_EQ(kvl_poll(c, ev, sizeof ev[0], 4), 1);
	CHECK_EQ(ev[0].kind, KVL_EV_POISONED);
	CHECK_EQ(kvl_poll(c, ev, sizeof ev[0], 4), 0);
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);
}

static void *writes_to_a_carrier(void *control)
{
	const uint64_t one = 1;
	CHECK(write(((kvl_control_t *)control)->wake_fd, &one, sizeof one) == sizeof one);
	return NULL;
}

static void what_a_carrier_brings_wakes_a_loop_that_waits(void)
{
	static const char *const configs[] = {HOST, RANK};
	for (int i = 0; i < 2; i++) {
		kvl_ctx_t *c = open_ctx(configs[i]);
		kvl_control_t *control = fake_last()->args.control;
		pthread_t other;
		int fd;
		CHECK_STATUS(kvl_wait_fd(c, &fd), KVL_OK);
		CHECK_STATUS(kvl_step(c), KVL_OK);
		CHECK(!ready(fd, 0));
		pthread_create(&other, NULL, writes_to_a_carrier, control);
		CHECK(ready(fd, 20000));
		pthread_join(other, NULL);
		CHECK_STATUS(kvl_step(c), KVL_OK); /* takes it */
		CHECK(!ready(fd, 0));
		writes_to_a_carrier(control);
		CHECK_STATUS(kvl_fence_all(c), KVL_OK);
		CHECK_STATUS(kvl_step(c), KVL_ERR_POISONED); /* a step that is refused does not leave a loop spinning */
		kvl_event_t ev;
		while (kvl_poll(c, &ev, sizeof ev, 1) != 0) {
		}
		CHECK(!ready(fd, 0));
		CHECK_STATUS(kvl_close(c, 0), KVL_OK);
	}
}

static void the_wake_descriptor_of_a_pump_is_left_to_it(void)
{
	kvl_ctx_t *c = open_ctx("{\"role\":1,\"pump\":1}");
	kvl_control_t *control = fake_last()->args.control;
	uint64_t count = 0;
	int fd;
	CHECK_STATUS(kvl_wait_fd(c, &fd), KVL_OK);
	writes_to_a_carrier(control);
	CHECK_STATUS(kvl_step(c), KVL_OK); /* a pass */
	CHECK(!ready(fd, 0));
	CHECK(read(control->wake_fd, &count, sizeof count) == sizeof count && count == 1);
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);
}

int main(void)
{
	RUN(a_host_context_has_requests_and_no_memory);
	RUN(a_rank_context_has_memory_and_no_requests);
	RUN(what_the_core_cannot_be_is_refused);
	RUN(a_host_and_its_ranks_live_in_one_process);
	RUN(a_child_of_a_fork_is_told_by_hosts_and_ranks);
	RUN(the_rows_of_a_broken_host_close_elsewhere_so_all_its_ends_wait);
	RUN(the_ends_of_a_broken_host_wait_for_the_rows_of_a_rank_that_stands_still);
	RUN(a_poll_of_a_broken_context_steps_what_the_others_are_told_by);
	RUN(an_engine_of_one_rank_gives_the_status_as_its_reason);
	RUN(a_broken_rank_leaves_the_ends_to_its_host);
	RUN(what_a_carrier_brings_wakes_a_loop_that_waits);
	RUN(the_wake_descriptor_of_a_pump_is_left_to_it);
	return 0;
}
