/* pair MODE [drive=inline|pump] [reader=inline|pump] [pass_ms=N] [block=BYTES] [blocks=N] [rounds=N] [held=N] [lease=SECONDS] [ranks=N] [wire=1] */
#include "pair.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

enum { HEADS = 8 }; /* of the model, where ranks share them */

static kvl_ctx_t *context(const struct plan *plan, const char *name, const char *drive, const char *more)
{
	kvl_ctx_t *ctx;
	char config[512], err[1024] = "";
	const char *shorts = plan->lease_s <= 3 ? ",\"allow_short_leases\":true,\"step_max\":0.05" : "";
	snprintf(config, sizeof config, "{\"engine_id\":\"%s\",\"drive\":\"%s\",\"kv_lease_duration\":%g%s%s}", name, drive, plan->lease_s, shorts, more);
	int32_t st = kvl_open(config, strlen(config), &ctx, err, sizeof err);
	if (st != KVL_OK)
		die("kvl_open: %s: %s", kvl_status_name(st), err);
	return ctx;
}

/* What holds part of each block, in ours and in raw NIXL. */
static void cache(const struct plan *plan, kvl_ctx_t *ctx, const char *name, uint8_t *kv, uint64_t part)
{
	kvl_region_t region = {
		.addr = (uint64_t)(uintptr_t)kv,
		.bytes = part * plan->blocks,
		.block_len = part,
		.block_stride = part,
		.blocks = plan->blocks,
		.group = -1,
		.mem = KVL_MEM_DRAM,
		.name = {"kv", 2},
	};
	must(kvl_register(ctx, &region, sizeof(kvl_region_t), 1), "kvl_register");
	if (strcmp(plan->mode, "load") != 0) /* which is a profile of ours alone */
		raw_open(name, kv, region.bytes);
}

void side_open(struct side *s, const struct plan *plan, const char *name, const char *drive, uint32_t ranks)
{
	char more[160] = "", raw[32];
	size_t bytes = plan->block_len * plan->blocks;
	uint64_t part = plan->block_len / ranks;
	s->kv = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (s->kv == MAP_FAILED)
		die("no memory for %u blocks of %llu bytes", plan->blocks, (unsigned long long)plan->block_len);
	if (ranks > 1)
		snprintf(more, sizeof more, ",\"role\":\"host\",\"carrier\":\"process\",\"num_kv_heads\":%d,\"tp_size\":%u", HEADS, ranks);
	else if (plan->ranks > 1)
		snprintf(more, sizeof more, ",\"num_kv_heads\":%d", HEADS);
	else if (plan->port != 0 && strcmp(name, "P") == 0)
		snprintf(more, sizeof more, ",\"side_channel_listen\":true,\"side_channel_host\":\"127.0.0.1\",\"side_channel_port\":%d", plan->port);
	s->ctx = context(plan, name, drive, more);
	must(kvl_producer_open(s->ctx, &s->producer), "kvl_producer_open");
	for (uint32_t r = 0; r < ranks; r++) {
		kvl_ctx_t *ctx = s->ctx;
		if (ranks > 1) {
			snprintf(more, sizeof more, ",\"role\":\"rank\",\"carrier\":\"process\",\"num_kv_heads\":%d,\"tp_size\":%u,\"tp_rank\":%u", HEADS, ranks, r);
			ctx = s->ranks[r] = context(plan, name, drive, more);
		}
		snprintf(raw, sizeof raw, "raw-%s-%u", name, r);
		cache(plan, ctx, raw, s->kv + r * part * plan->blocks, part);
	}
}

/* One exchange; what came fills out. */
static size_t exchange(const struct peer *p, const struct request *r, void *out, size_t cap)
{
	size_t len = offsetof(struct request, ids) + r->n * sizeof r->ids[0];
	if (send(p->socket, r, len, MSG_NOSIGNAL) != (ssize_t)len)
		die("P is gone");
	ssize_t n = recv(p->socket, out, cap, 0);
	if (n <= 0)
		die("P has not answered request %u", r->op);
	return (size_t)n;
}

uint64_t ask(const struct peer *p, uint32_t op, uint64_t arg)
{
	static struct request r;
	uint64_t answer = 0;
	r.op = op, r.n = 0, r.arg = arg;
	exchange(p, &r, &answer, sizeof answer);
	return answer;
}

void ask_grant(const struct peer *p, const uint32_t *ids, uint32_t n, kvl_remote_t *remote, void *buf, size_t cap)
{
	static struct request r;
	static char json[REPLY_MAX];
	size_t need;
	r.op = OP_GRANT, r.n = n, r.arg = 0;
	memcpy(r.ids, ids, n * sizeof ids[0]);
	size_t len = exchange(p, &r, json, sizeof json);
	memset(remote, 0, sizeof *remote);
	remote->size = sizeof *remote;
	must(kvl_params_read(json, len, remote, buf, cap, &need), "kvl_params_read");
}

/* Names P to our context and steps until it is connected. */
static void connect_ours(struct peer *p, struct side *d, const struct plan *plan, const kvl_bytes_t *handshakes)
{
	kvl_engine_desc_t desc = {.size = sizeof desc, .ranks = plan->ranks, .engine_id = {"P", 1}};
	kvl_event_t e;
	uint64_t start = now_ns();
	if (plan->wire)
		desc.host = (kvl_bytes_t){"127.0.0.1", 9}, desc.port = (uint32_t)plan->port;
	must(kvl_engine_add(d->ctx, &desc, &p->engine), "kvl_engine_add");
	for (uint32_t r = 0; r < plan->ranks && !plan->wire; r++)
		must(kvl_engine_handshake(d->ctx, p->engine, r, handshakes[r]), "kvl_engine_handshake");
	for (;;) {
		must(kvl_step(d->ctx), "kvl_step");
		if (kvl_poll(d->ctx, &e, sizeof e, 1) == 1 && e.kind == KVL_EV_ENGINE_UP)
			break;
		if (now_ns() > start + 20000000000u)
			die("D has not connected to P");
		sleep_ns(100000);
	}
	if (plan->wire)
		say("handshake.ours", (double)(now_ns() - start) / 1000);
}

static void connect_raw(const struct plan *plan, const kvl_bytes_t *metadata)
{
	uint64_t start = now_ns();
	for (uint32_t r = 0; r < plan->ranks; r++)
		raw_load(metadata[r].data, metadata[r].len);
	if (plan->wire)
		say("handshake.load", (double)(now_ns() - start) / 1000);
}

void peer_open(struct peer *p, struct side *d, const struct plan *plan, int socket)
{
	static uint8_t reply[REPLY_MAX];
	static struct request r;
	struct info info;
	int ours_first = getpid() % 2; /* the first one to connect pays for what UCX does once a process */
	p->socket = socket;
	r.op = OP_INFO;
	exchange(p, &r, reply, sizeof reply);
	memcpy(&info, reply, sizeof info);
	memcpy(p->base, info.base, sizeof p->base);
	kvl_bytes_t handshakes[RANKS_MAX], metadata[RANKS_MAX];
	const uint8_t *at = reply + sizeof info;
	for (uint32_t r = 0; r < plan->ranks; r++) {
		handshakes[r] = (kvl_bytes_t){at, info.handshake_n[r]};
		metadata[r] = (kvl_bytes_t){at + info.handshake_n[r], info.meta_n[r]};
		at += info.handshake_n[r] + info.meta_n[r];
	}
	if (!ours_first)
		connect_raw(plan, metadata);
	connect_ours(p, d, plan, handshakes);
	if (ours_first)
		connect_raw(plan, metadata);
}

/* A port that nobody has just now. */
static int free_port(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t len = sizeof at;
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&at, len) != 0 || getsockname(fd, (struct sockaddr *)&at, &len) != 0)
		die("no free port: %s", strerror(errno));
	close(fd);
	return ntohs(at.sin_port);
}

static int read_option(struct plan *plan, const char *arg)
{
	const char *value = strchr(arg, '=');
	if (value++ == NULL)
		return 0;
	size_t n = (size_t)(value - arg);
#define IS(name) (n == sizeof name && strncmp(arg, name "=", n) == 0)
	if (IS("drive"))
		plan->drive = value;
	else if (IS("reader"))
		plan->reader = value;
	else if (IS("pass_ms"))
		plan->pass_ns = (uint64_t)(atof(value) * 1e6);
	else if (IS("block"))
		plan->block_len = strtoull(value, NULL, 10);
	else if (IS("blocks"))
		plan->blocks = (uint32_t)strtoul(value, NULL, 10);
	else if (IS("rounds"))
		plan->rounds = (uint32_t)strtoul(value, NULL, 10);
	else if (IS("held"))
		plan->held = (uint32_t)strtoul(value, NULL, 10);
	else if (IS("lease"))
		plan->lease_s = atof(value);
	else if (IS("ranks"))
		plan->ranks = (uint32_t)strtoul(value, NULL, 10);
	else if (IS("wire"))
		plan->wire = atoi(value);
	else
		return 0;
#undef IS
	return plan->blocks <= BLOCKS_MAX && plan->ranks >= 1 && plan->ranks <= RANKS_MAX;
}

int main(int argc, char **argv)
{
	struct plan plan = {.mode = argc > 1 ? argv[1] : "", .drive = "inline", .reader = "inline", .pass_ns = 1000000, .block_len = 4096, .blocks = 1024, .rounds = 5, .held = 10000, .lease_s = 600, .ranks = 1};
	int sockets[2];
	for (int i = 2; i < argc; i++) {
		if (!read_option(&plan, argv[i]))
			die("%s is not understood", argv[i]);
	}
	if (plan.wire)
		plan.port = free_port();
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) != 0)
		die("socketpair: %s", strerror(errno));
	pid_t child = fork();
	if (child < 0)
		die("fork: %s", strerror(errno));
	if (child > 0) {
		close(sockets[1]);
		prctl(PR_SET_NAME, "P");
		owner_run(&plan, sockets[0], child);
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NAME, "D"); /* as profilers and top show it */
	close(sockets[0]);
	struct side d;
	struct peer p;
	side_open(&d, &plan, "D", plan.reader, 1);
	peer_open(&p, &d, &plan, sockets[1]);
	if (strcmp(plan.mode, "reads") == 0)
		reads_run(&plan, &d, &p);
	else if (strcmp(plan.mode, "latency") == 0)
		latency_run(&plan, &d, &p);
	else if (strcmp(plan.mode, "idle") == 0)
		idle_run(&plan, &d, &p);
	else if (strcmp(plan.mode, "load") == 0)
		load_run(&plan, &d, &p);
	else if (strcmp(plan.mode, "kill") == 0)
		kill_run(&plan, &d, &p);
	else
		die("no mode %s: reads, latency, idle, load, kill", plan.mode);
	ask(&p, OP_QUIT, 0);
	_exit(0); /* both sides end here at once: nothing is measured after this */
}
