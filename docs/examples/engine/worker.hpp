// A worker: the process (or thread) of one rank. It owns the rank's memory and its kvlease context; requests are not its business.
#ifndef ENGINE_WORKER_HPP
#define ENGINE_WORKER_HPP

#include <poll.h>

#include <cstdio>
#include <memory>

#include "cache.hpp"
#include "channel.hpp"
#include "options.hpp"

class Worker {
public:
	// shared: the context of an engine of one rank, which is its host's, too; nullptr: this rank's own.
	Worker(const Options &o, uint32_t rank, const Channel &host, kvl_ctx_t *shared)
		: rank_(rank), delta_(shared == nullptr && o.carrier == "delta"), pump_(o.drive == "pump"), host_(host),
		  cache_(o.layers, o.blocks, rank, o.tp), own_(shared == nullptr ? new Context(rank_config(o, rank)) : nullptr),
		  ctx_(shared == nullptr ? static_cast<kvl_ctx_t *>(*own_) : shared)
	{
		cache_.register_with(ctx_);
		registered_ = true;
		if (own_ != nullptr)
			must(kvl_wait_fd(ctx_, &wait_fd_), "kvl_wait_fd");
	}

	// Ends when the host says so, or is gone. Between step messages the rank steps when kvlease has something to do, so that no long
	// pass and no idle engine delays a heartbeat or the end of a lease.
	void run()
	{
		Message m;
		while (!over_) {
			pollfd fds[2] = {{host_.fd(), POLLIN, 0}, {wait_fd_, POLLIN, 0}};
			poll(fds, own_ != nullptr ? 2 : 1, 1000);
			const bool asked = fds[0].revents != 0;
			if (asked && !host_.receive(m))
				break; // nothing new comes; what is held here ends at its deadline, or with this process
			if (asked)
				work(m);
			step();
			if (asked)
				answer(m);
		}
		// From here on the cache may be unmapped.
		if (own_ != nullptr)
			own_->close();
		else if (over_ && registered_)
			must(kvl_unregister(ctx_), "kvl_unregister");
	}

private:
	void work(Message &m)
	{
		if (delta_) {
			int32_t st = kvl_delta_put(ctx_, rank_, {m.delta, m.delta_n});
			if (st != KVL_ERR_FULL) // a message that is dropped is healed
				must(st, "kvl_delta_put");
		}
		m.wrong = 0;
		switch (m.job) {
		case Job::none:
			break;
		case Job::fill:
			cache_.fill(m.request, m.blocks, m.blocks_n);
			break;
		case Job::clear:
			cache_.clear(m.blocks, m.blocks_n);
			break;
		case Job::check:
			m.wrong = cache_.wrong(m.request, m.blocks, m.blocks_n);
			break;
		case Job::sleep:
			sleeping_ = true;
			break;
		case Job::wake:
			sleeping_ = false;
			break;
		case Job::quit:
			over_ = true;
			break;
		}
		if (sleeping_ && registered_)
			give_memory_back();
		if (!sleeping_ && !registered_) {
			cache_.map();
			cache_.register_with(ctx_); // a new agent, for peers a new engine
			registered_ = true;
		}
	}

	// Peers must not reach memory that is no longer ours, so only success allows the unmap. A read of ours in flight: ask again.
	void give_memory_back()
	{
		int32_t st = kvl_unregister(ctx_);
		if (st == KVL_ERR_BUSY)
			return;
		must(st, "kvl_unregister");
		cache_.unmap();
		registered_ = false;
	}

	void step()
	{
		int32_t st = pump_ ? kvl_pass(ctx_) : kvl_step(ctx_);
		if (st != KVL_OK && st != KVL_ERR_POISONED) // poisoned: its event says so
			must(st, "kvl_step");
		if (own_ == nullptr)
			return; // events of a shared context are its host's to take
		kvl_event_t events[16];
		for (int32_t n; (n = kvl_poll(ctx_, events, sizeof events[0], 16)) > 0;)
			for (int32_t i = 0; i < n; i++)
				on_event(events[i]);
	}

	// A rank hears of its own state only: what happens to leases and reads, the host is told.
	void on_event(const kvl_event_t &e)
	{
		if (e.kind == KVL_EV_HOST_DOWN)
			over_ = true;
		if (e.kind == KVL_EV_POISONED)
			throw Error("rank " + std::to_string(rank_) + ": kvlease is broken, every row is fenced");
	}

	void answer(Message &m)
	{
		size_t len = 0;
		if (delta_)
			must(kvl_delta_take(ctx_, rank_, m.delta, sizeof m.delta, &len), "kvl_delta_take");
		m.delta_n = static_cast<uint32_t>(len);
		m.registered = registered_ ? 1 : 0;
		host_.send(m);
	}

	uint32_t rank_;
	bool delta_, pump_, registered_ = false, sleeping_ = false, over_ = false;
	const Channel &host_;
	Cache cache_; // before the context: it is unmapped after the context has closed
	std::unique_ptr<Context> own_;
	kvl_ctx_t *ctx_;
	int wait_fd_ = -1;
};

#endif
