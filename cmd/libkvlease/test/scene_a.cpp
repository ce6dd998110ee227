// Scene a from C++: a request waits in D's queue for more than twice its lease, is read, every byte is checked, freed.
// Two contexts in one process over the loopback transport, one thread each, as engines have.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kvlease.h"

namespace {

using namespace std::chrono_literals;
constexpr auto lease_duration = 1200ms;
constexpr std::uint32_t layers = 2, blocks = 32, block_bytes = 256;

void ok(std::int32_t st, const char *what)
{
	if (st != KVL_OK)
		throw std::runtime_error(std::string(what) + ": " + kvl_status_name(st) + ": " + kvl_last_error());
}

std::uint8_t content(std::uint32_t layer, std::uint32_t position, std::uint32_t byte)
{
	return static_cast<std::uint8_t>((layer + 1) * 131 + position * 37 + byte * 7);
}

struct Engine {
	kvl_ctx_t *ctx = nullptr;
	kvl_producer_t *producer = nullptr;
	std::vector<std::uint8_t> cache = std::vector<std::uint8_t>(layers * blocks * block_bytes);

	Engine(const std::string &name, const std::string &drive)
	{
		const std::string config = R"({"engine_id":")" + name + R"(","transport":"loopback","drive":")" + drive +
					   R"(","kv_lease_duration":1.2,"allow_short_leases":true,"step_max":0.1})";
		char err[256] = "";
		if (kvl_open(config.data(), config.size(), &ctx, err, sizeof err) != KVL_OK)
			throw std::runtime_error(err);
		ok(kvl_producer_open(ctx, &producer), "producer");
		std::vector<kvl_region_t> regions;
		for (std::uint32_t l = 0; l < layers; l++) {
			kvl_region_t r{};
			r.addr = reinterpret_cast<std::uintptr_t>(block(l, 0));
			r.bytes = blocks * block_bytes;
			r.block_len = r.block_stride = block_bytes;
			r.blocks = blocks;
			r.group = -1;
			regions.push_back(r);
		}
		ok(kvl_register(ctx, regions.data(), sizeof regions[0], layers), "register");
	}
	~Engine()
	{
		if (ctx != nullptr && kvl_close(ctx, 1000000000) != KVL_OK)
			std::fprintf(stderr, "close: %s\n", kvl_last_error());
	}
	Engine(const Engine &) = delete;
	Engine &operator=(const Engine &) = delete;

	std::uint8_t *block(std::uint32_t layer, std::uint32_t id) { return &cache[(layer * blocks + id) * block_bytes]; }

	// One pass of the forward loop; true if there is an event.
	bool pass(kvl_event_t &ev)
	{
		ok(kvl_step(ctx), "step");
		std::this_thread::sleep_for(2ms);
		return kvl_poll(ctx, &ev, sizeof ev, 1) == 1;
	}

	kvl_event_t wait_for(int kind)
	{
		kvl_event_t ev{};
		for (const auto end = std::chrono::steady_clock::now() + 10s; std::chrono::steady_clock::now() < end;)
			if (pass(ev) && ev.kind == kind)
				return ev;
		throw std::runtime_error("no event of kind " + std::to_string(kind));
	}
};

// What the network between P and D carries.
struct Wire {
	std::string map, params;
	std::atomic<bool> sent{false};
};

void prefill(Wire &wire, const std::string &drive)
{
	Engine p("P", drive);
	const std::uint32_t ids[] = {3, 4, 20};
	const kvl_blocks_t group{ids, 3, 0};
	for (std::uint32_t l = 0; l < layers; l++)
		for (std::uint32_t i = 0; i < 3; i++)
			for (std::uint32_t b = 0; b < block_bytes; b++)
				p.block(l, ids[i])[b] = content(l, i, b);
	kvl_grant_t grant{};
	grant.size = sizeof grant;
	grant.id = {"request-1", 9};
	grant.groups = &group;
	grant.groups_n = 1;
	grant.tokens = 48;
	grant.user = 7;
	kvl_lease_t lease = 0;
	ok(kvl_grant(p.producer, &grant, &lease), "grant");
	std::size_t len = 0;
	wire.params.resize(4096);
	ok(kvl_params(p.ctx, lease, &grant, &wire.params[0], wire.params.size(), &len), "params");
	wire.params.resize(len);
	wire.map.resize(8192);
	ok(kvl_handshake_get(p.ctx, 0, &wire.map[0], wire.map.size(), &len), "handshake");
	wire.map.resize(len);
	wire.sent = true;
	const kvl_event_t ev = p.wait_for(KVL_EV_FREED);
	if (ev.status != KVL_FREED_COMPLETED || ev.handle != lease || ev.user != 7)
		throw std::runtime_error("freed with status " + std::to_string(ev.status));
	if (ev.value1 < static_cast<std::uint64_t>(std::chrono::nanoseconds(lease_duration).count()) * 2)
		throw std::runtime_error("freed before D had waited");
}

void decode(Wire &wire, const std::string &drive)
{
	Engine d("D", drive);
	while (!wire.sent)
		std::this_thread::sleep_for(1ms);
	std::vector<std::uint64_t> buf(512);
	std::size_t need = 0;
	kvl_remote_t remote{};
	remote.size = sizeof remote;
	ok(kvl_params_read(wire.params.data(), wire.params.size(), &remote, buf.data(), buf.size() * 8, &need), "params_read");
	kvl_engine_desc_t desc{};
	desc.size = sizeof desc;
	desc.ranks = remote.tp_size;
	desc.engine_id = remote.engine_id;
	kvl_engine_t engine = 0;
	ok(kvl_engine_add(d.ctx, &desc, &engine), "engine_add");
	ok(kvl_engine_handshake(d.ctx, engine, 0, {wire.map.data(), wire.map.size()}), "engine_handshake");
	kvl_track_t track = 0;
	ok(kvl_track(d.producer, engine, &remote, {"local", 5}, 1, &track), "track");
	kvl_event_t ev{};
	for (const auto end = std::chrono::steady_clock::now() + lease_duration * 5 / 2; std::chrono::steady_clock::now() < end;)
		if (d.pass(ev) && ev.kind != KVL_EV_ENGINE_UP && ev.kind != KVL_EV_AT_RISK) // a busy machine is late
			throw std::runtime_error("event of kind " + std::to_string(ev.kind) + " in the queue");
	const std::uint32_t ids[] = {9, 1, 2};
	const kvl_blocks_t group{ids, 3, 0};
	kvl_read_t read{};
	read.size = sizeof read;
	read.groups_n = 1;
	read.local = &group;
	read.remote = remote.groups;
	ok(kvl_read(d.producer, track, &read), "read");
	d.wait_for(KVL_EV_READ_DONE);
	for (std::uint32_t l = 0; l < layers; l++)
		for (std::uint32_t i = 0; i < 3; i++)
			for (std::uint32_t b = 0; b < block_bytes; b++)
				if (d.block(l, ids[i])[b] != content(l, i, b))
					throw std::runtime_error("a wrong byte");
	for (int i = 0; i < 20; i++)
		d.pass(ev); // the completion leaves
}

} // namespace

int main(int argc, char **argv)
{
	const std::string drive = argc > 1 ? argv[1] : "inline";
	Wire wire;
	std::atomic<int> failed{0};
	const auto run = [&](void (*engine)(Wire &, const std::string &), const char *name) {
		try {
			engine(wire, drive);
		} catch (const std::exception &e) {
			std::fprintf(stderr, "%s: %s\n", name, e.what());
			std::_Exit(1); // the other would wait for ever
		}
	};
	std::thread p(run, prefill, "P"), d(run, decode, "D");
	p.join();
	d.join();
	return failed;
}
