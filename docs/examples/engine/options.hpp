// What this engine is told on its command line, and the configuration of kvlease that follows from it.
#ifndef ENGINE_OPTIONS_HPP
#define ENGINE_OPTIONS_HPP

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "context.hpp"

struct Options {
	std::string role;            // prefill or decode; "": both, in this process
	std::string id;              // of the engine
	std::string transport;       // loopback within a process, nixl between them
	std::string carrier;         // between host and ranks: process, shm or delta
	std::string drive = "inline";
	uint32_t tp = 2;
	uint32_t layers = 2, blocks = 64;
	uint32_t requests = 24;
	double lease_s = 10;
	bool sleeps = false;  // the prefill engine gives its memory back once, half-way
	bool threads = false; // workers are threads of this process
};

// A port of 127.0.0.1 that nobody listens at just now: below those that the system gives to whoever asks for any, which could be taken
// before the library listens; and each process begins its search at another one.
inline unsigned free_port()
{
	sockaddr_in at{};
	at.sin_family = AF_INET;
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	for (unsigned i = 0; i < 256; i++) {
		const unsigned port = 10000 + (static_cast<unsigned>(getpid()) * 7 + i) % 20000;
		at.sin_port = htons(static_cast<uint16_t>(port));
		const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		const bool bound = fd >= 0 && bind(fd, reinterpret_cast<sockaddr *>(&at), sizeof at) == 0;
		if (fd >= 0)
			::close(fd);
		if (bound)
			return port;
	}
	throw Error("no free port on 127.0.0.1");
}

// The keys that host and ranks share: they must name the same engine, shape and carrier.
inline std::string shared_keys(const Options &o)
{
	return "\"engine_id\":" + quoted(o.id) + ",\"transport\":" + quoted(o.transport) + ",\"drive\":" + quoted(o.drive) +
	       ",\"tp_size\":" + std::to_string(o.tp) + ",\"num_kv_heads\":4,\"carrier\":" + quoted(o.carrier) +
	       ",\"kv_lease_duration\":" + std::to_string(o.lease_s) +
	       (o.lease_s <= 3 ? ",\"allow_short_leases\":true,\"step_max\":0.1" : "");
}

// The context where requests enter. One rank needs no other: role engine is both. A prefill engine serves its handshake.
inline std::string host_config(const Options &o)
{
	std::string keys = "{\"role\":" + quoted(o.tp == 1 ? "engine" : "host") + "," + shared_keys(o);
	if (o.role == "prefill")
		keys += ",\"side_channel_listen\":true,\"side_channel_host\":\"127.0.0.1\",\"side_channel_port\":" + std::to_string(free_port());
	return keys + "}";
}

inline std::string rank_config(const Options &o, uint32_t rank)
{
	return "{\"role\":\"rank\",\"tp_rank\":" + std::to_string(rank) + "," + shared_keys(o) + "}";
}

#endif
