// The host of an engine: where requests enter and leave. It owns the host context, and drives the workers pass by pass.
#ifndef ENGINE_SCHEDULER_HPP
#define ENGINE_SCHEDULER_HPP

#include <poll.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <set>
#include <vector>

#include "channel.hpp"
#include "options.hpp"

class Scheduler {
public:
	using Clock = std::chrono::steady_clock;

	Scheduler(const Options &o, Context &ctx, std::vector<Channel> workers) : options_(o), ctx_(ctx), workers_(std::move(workers))
	{
		must(kvl_producer_open(ctx_, &producer_), "kvl_producer_open"); // this thread's way in
		must(kvl_wait_fd(ctx_, &wait_fd_), "kvl_wait_fd");
		for (uint32_t b = o.blocks; b > 0; b--)
			free_.push_back(b - 1);
	}
	virtual ~Scheduler() = default;
	Scheduler(const Scheduler &) = delete;

protected:
	// One pass of the whole engine. The step messages go out together, so the workers work at the same time.
	uint64_t pass(Job job = Job::none, const std::string &request = "", const std::vector<uint32_t> &blocks = {})
	{
		uint64_t wrong = 0;
		for (uint32_t r = 0; r < workers_.size(); r++) {
			Message &m = message_;
			m.job = job;
			m.blocks_n = static_cast<uint32_t>(blocks.size());
			std::copy(blocks.begin(), blocks.end(), m.blocks);
			std::snprintf(m.request, sizeof m.request, "%s", request.c_str());
			m.delta_n = 0;
			if (deltas()) {
				size_t len = 0;
				must(kvl_delta_take(ctx_, r, m.delta, sizeof m.delta, &len), "kvl_delta_take");
				m.delta_n = static_cast<uint32_t>(len);
			}
			workers_[r].send(m);
		}
		registered_ = 0;
		for (uint32_t r = 0; r < workers_.size(); r++) {
			if (!workers_[r].receive(message_))
				throw Error("worker " + std::to_string(r) + " is gone");
			wrong += message_.wrong;
			registered_ += message_.registered;
			if (deltas() && message_.delta_n != 0) {
				int32_t st = kvl_delta_put(ctx_, r, {message_.delta, message_.delta_n});
				if (st != KVL_ERR_FULL) // a message that is dropped is healed
					must(st, "kvl_delta_put");
			}
		}
		if (options_.tp != 1) // the one worker of role engine has stepped for both
			step();
		poll_events();
		return wrong;
	}

	// Nothing to compute: sleep until kvlease or `fd` has something, but not longer than a pass takes.
	void idle(int fd = -1)
	{
		pollfd fds[2] = {{wait_fd_, POLLIN, 0}, {fd, POLLIN, 0}};
		poll(fds, 2, 10);
		pass();
	}

	// An engine that can do nothing for so long is broken; a program for people waits longer, and says so.
	template <typename Done> void until(const char *what, Done done, int fd = -1)
	{
		const auto end = Clock::now() + std::chrono::seconds(30);
		while (!done()) {
			if (Clock::now() > end)
				throw Error(options_.id + ": waited in vain until " + what + "; kvlease counts " + stats());
			idle(fd);
		}
	}

	// All ranks are attached and have registered their memory: before that nothing can be read or granted here.
	void wait_for_ranks()
	{
		until("all ranks are up", [&] { return registered_ == options_.tp && (options_.tp == 1 || up_.size() == options_.tp); });
	}

	// And all of them have given it back, as far as the host has heard: what it grants now is of no era any more.
	bool no_rank_is_up() const { return up_.empty(); }

	// Tell peers, hear the last ends, then let the workers go: their contexts close before ours.
	void leave()
	{
		int32_t st = KVL_ERR_TIMEOUT;
		for (int tries = 0; tries < 500 && st == KVL_ERR_TIMEOUT; tries++) { // the ranks step in passes, so both take turns
			st = kvl_drain(ctx_, 1000000u);
			if (st != KVL_ERR_TIMEOUT && st != KVL_ERR_BUSY)
				must(st, "kvl_drain");
			pass();
		}
		leaving_ = true;
		pass(Job::quit);
	}

	virtual void on_event(const kvl_event_t &e) = 0;

	bool take_blocks(size_t n, std::vector<uint32_t> &out)
	{
		if (free_.size() < n)
			return false;
		out.assign(free_.end() - static_cast<ptrdiff_t>(n), free_.end());
		free_.resize(free_.size() - n);
		return true;
	}
	void give_blocks(const std::vector<uint32_t> &blocks) { free_.insert(free_.end(), blocks.begin(), blocks.end()); }

	std::string stats() const
	{
		std::string text(65536, 0);
		size_t len = 0;
		must(kvl_stats(ctx_, &text[0], text.size(), &len), "kvl_stats");
		return text.substr(0, len);
	}

	void say(const std::string &what) const { std::fprintf(stderr, "%s: %s\n", options_.id.c_str(), what.c_str()); }

	const Options &options_;
	Context &ctx_;
	kvl_producer_t *producer_ = nullptr;
	int wait_fd_ = -1;
	uint32_t registered_ = 0; // ranks whose memory is, at the last pass
	bool leaving_ = false;

private:
	bool deltas() const { return options_.tp != 1 && options_.carrier == "delta"; }

	void step()
	{
		int32_t st = options_.drive == "pump" ? kvl_pass(ctx_) : kvl_step(ctx_);
		if (st != KVL_OK && st != KVL_ERR_POISONED) // poisoned: kvl_poll still tells the ends
			must(st, "kvl_step");
	}

	void poll_events()
	{
		kvl_event_t events[64];
		for (int32_t n; (n = kvl_poll(ctx_, events, sizeof events[0], 64)) != 0;) {
			if (n < 0)
				must(n, "kvl_poll");
			for (int32_t i = 0; i < n; i++)
				take(events[i]);
		}
	}

	// What is the same for both sides; the rest is about requests.
	void take(const kvl_event_t &e)
	{
		switch (e.kind) {
		case KVL_EV_RANK_UP:
			up_.insert(e.handle);
			return;
		case KVL_EV_RANK_DOWN:
			up_.erase(e.handle);
			if (e.status != 0 && !leaving_) // gone: its memory went with it. An engine without one of its ranks is none: end, and let it be started again
				throw Error(options_.id + ": the process of rank " + std::to_string(e.handle) + " is gone");
			return;
		case KVL_EV_POISONED:
			throw Error(options_.id + ": kvlease is broken, every row is fenced");
		case KVL_EV_ENGINE_UP:
		case KVL_EV_ENGINE_DOWN:
			say(e.kind == KVL_EV_ENGINE_UP ? "the other engine is connected" : "the other engine cannot be reached");
			return;
		case KVL_EV_ENGINE_DRAINS: // a router would send nothing new there; what is tracked goes on
			say("the other engine takes nothing new");
			return;
		default:
			on_event(e);
		}
	}

	std::vector<Channel> workers_;
	std::vector<uint32_t> free_;
	std::set<uint64_t> up_;
	Message message_;
};

#endif
