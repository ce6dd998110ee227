// An engine with tensor parallelism in C++17: a host for its requests, a worker for each rank, one KV cache over all of them.
// docs/embedding.md walks through it.
//
//   engine                                      a prefill and a decode engine of two ranks each, as threads of this process
//   engine --tp 2 --peer-tp 1                   the decode engine has another size
//   engine prefill | engine decode              the same as processes: two hosts, and one process for each rank
//   engine prefill --carrier delta | ...        ranks that could be on other nodes: kvlease's bytes travel in the step messages
//
// Ends with 0 if every request was read, every byte was right, and every lease ended as read on every rank.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <thread>

#include "engine/decode.hpp"
#include "engine/prefill.hpp"
#include "engine/worker.hpp"

extern char **environ;

namespace {

// Runs a part of an engine. If it fails, the process ends there and then: what kvlease holds goes with it, and peers find out.
template <typename Part> void guarded(Part part)
{
	try {
		part();
	} catch (const std::exception &e) {
		std::fprintf(stderr, "engine: %s\n", e.what());
		std::_Exit(1);
	}
}

// ---- workers: threads of this process, or processes -----------------------------------------------------------------

struct Workers {
	std::vector<Channel> channels; // the host's ends
	std::vector<std::thread> threads;
	std::vector<pid_t> processes;

	void wait()
	{
		for (std::thread &t : threads)
			t.join();
		for (pid_t pid : processes) {
			int status;
			if (waitpid(pid, &status, 0) != pid || status != 0)
				throw Error("a worker has failed");
		}
	}
};

void work(const Options &o, uint32_t rank, Channel host, kvl_ctx_t *shared)
{
	guarded([&] { Worker(o, rank, host, shared).run(); }); // its channel ends last: why it failed is said first
}

// By exec, since a child of a process that has opened a context may not use kvlease (and the host's threads are not in it).
pid_t spawn_worker(const Options &o, uint32_t rank, int fd)
{
	const std::vector<std::string> args = {"engine", o.role, "--worker", std::to_string(rank), "--engine-id", o.id, "--tp", std::to_string(o.tp),
	                                       "--transport", o.transport, "--carrier", o.carrier, "--drive", o.drive,
	                                       "--lease", std::to_string(o.lease_s)};
	std::vector<char *> argv;
	posix_spawn_file_actions_t actions;
	pid_t pid;
	for (const std::string &a : args)
		argv.push_back(const_cast<char *>(a.c_str()));
	argv.push_back(nullptr);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, fd, 3);
	posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDWR, 0); // a pipe to the next engine is the host's to hold
	posix_spawn_file_actions_adddup2(&actions, 0, 1);
	int err = posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
	posix_spawn_file_actions_destroy(&actions);
	if (err != 0)
		throw Error(std::string("cannot start a worker: ") + std::strerror(err));
	return pid;
}

// ---- an engine ------------------------------------------------------------------------------------------------------

void run_engine(const Options &o, int fd)
{
	Workers workers;
	if (o.tp != 1 && !o.threads) // before our own context: its descriptors are not for them
		for (uint32_t r = 0; r < o.tp; r++) {
			auto [ours, theirs] = Channel::pair();
			workers.processes.push_back(spawn_worker(o, r, theirs.fd()));
			workers.channels.push_back(std::move(ours));
		}
	Context ctx(host_config(o));
	for (uint32_t r = static_cast<uint32_t>(workers.channels.size()); r < o.tp; r++) {
		auto [ours, theirs] = Channel::pair();
		workers.threads.emplace_back(work, std::cref(o), r, std::move(theirs), o.tp == 1 ? static_cast<kvl_ctx_t *>(ctx) : nullptr);
		workers.channels.push_back(std::move(ours));
	}
	guarded([&] {
		if (o.role == "prefill")
			Prefill(o, ctx, std::move(workers.channels)).run(fd);
		else
			Decode(o, ctx, std::move(workers.channels)).run(fd);
		workers.wait();
		ctx.close();
	});
}

// Both engines as threads; the pipe between them stands for the router.
void run_both(const Options &prefill, const Options &decode)
{
	int fd[2];
	if (pipe(fd) != 0)
		throw Error("pipe");
	std::thread p([&] { guarded([&] { run_engine(prefill, fd[1]); }); });
	std::thread d([&] { guarded([&] { run_engine(decode, fd[0]); }); });
	p.join();
	d.join();
}

uint32_t number(const std::string &flag, const std::string &s, uint32_t most)
{
	char *end;
	unsigned long v = std::strtoul(s.c_str(), &end, 10);
	if (s.empty() || *end != 0 || v > most)
		throw Error(flag + " needs a number up to " + std::to_string(most));
	return static_cast<uint32_t>(v);
}

void run(int argc, char **argv)
{
	Options o;
	uint32_t peer_tp = 0;
	int worker = -1;
	for (int i = 1; i < argc; i++) {
		const std::string flag = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
		if (flag == "prefill" || flag == "decode") {
			o.role = flag;
			continue;
		}
		if (flag == "--sleep") {
			o.sleeps = true;
			continue;
		}
		i++;
		if (flag == "--engine-id")
			o.id = value;
		else if (flag == "--tp")
			o.tp = number(flag, value, 4);
		else if (flag == "--peer-tp")
			peer_tp = number(flag, value, 4);
		else if (flag == "--requests")
			o.requests = number(flag, value, 100000);
		else if (flag == "--transport")
			o.transport = value;
		else if (flag == "--carrier")
			o.carrier = value;
		else if (flag == "--drive")
			o.drive = value;
		else if (flag == "--lease")
			o.lease_s = std::strtod(value.c_str(), nullptr);
		else if (flag == "--worker")
			worker = static_cast<int>(number(flag, value, 3));
		else
			throw Error("unknown: " + flag + "; engine.cpp says at its top what there is");
	}
	if (o.tp == 0 || Cache::heads_all % o.tp != 0)
		throw Error("--tp is 1, 2 or 4");
	if (o.carrier.empty())
		o.carrier = o.role.empty() ? "process" : "shm";
	if (o.transport.empty())
		o.transport = o.role.empty() ? "loopback" : "nixl";
	const std::string mine = "-" + std::to_string(getpid()); // engines of others on this machine may have the same idea
	if (o.id.empty())
		o.id = (o.role == "decode" ? "D" : "P") + mine;
	if (worker >= 0) {
		work(o, static_cast<uint32_t>(worker), Channel(3), nullptr);
	} else if (!o.role.empty()) {
		run_engine(o, o.role == "prefill" ? 1 : 0);
	} else {
		o.threads = true;
		Options p = o, d = o;
		p.role = "prefill";
		d.role = "decode";
		d.id = "D" + mine;
		d.tp = peer_tp != 0 ? peer_tp : o.tp;
		run_both(p, d);
	}
}

} // namespace

int main(int argc, char **argv)
{
	std::signal(SIGPIPE, SIG_IGN);
	guarded([&] { run(argc, argv); });
	return 0;
}
