// The prefill side: requests are computed, their blocks held under leases, their transfer parameters written out.
#ifndef ENGINE_PREFILL_HPP
#define ENGINE_PREFILL_HPP

#include "cache.hpp"
#include "scheduler.hpp"

class Prefill : public Scheduler {
public:
	using Scheduler::Scheduler;

	// Parameters go to `out`, one JSON object a line: a router, a proxy, or here the other engine's input.
	void run(int out)
	{
		wait_for_ranks();
		for (uint32_t i = 0; i < options_.requests; i++) {
			if (options_.sleeps && i == options_.requests / 2)
				sleep_and_wake();
			prefill("request-" + std::to_string(i), 1 + i % 5, i, out);
		}
		::close(out);
		until("every lease has ended", [&] { return held_.empty(); });
		leave();
		say(std::to_string(completed_) + " of " + std::to_string(options_.requests) + " requests were read");
		if (completed_ != options_.requests)
			throw Error(options_.id + ": not every lease has ended as read");
	}

private:
	struct Held {
		kvl_lease_t lease;
		std::vector<uint32_t> blocks;
	};

	void prefill(const std::string &id, uint32_t n, uint64_t user, int out)
	{
		// It starts to run here: what readers say about it before it is granted is kept. FULL: go on without.
		kvl_lease_t expected = 0;
		int32_t st = kvl_expect(producer_, {id.data(), id.size()}, &expected);
		if (st != KVL_ERR_FULL)
			must(st, "kvl_expect");

		Held held{};
		until("blocks are free", [&] { return take_blocks(n, held.blocks); });
		pass(Job::fill, id, held.blocks);

		// From the grant on the blocks are not ours, until the freed event.
		const kvl_blocks_t group = {held.blocks.data(), n, 0};
		kvl_grant_t grant{};
		grant.size = sizeof grant;
		grant.id = {id.data(), id.size()};
		grant.groups = &group;
		grant.groups_n = 1;
		grant.tokens = n * Cache::tokens;
		grant.expected = expected;
		grant.user = user;
		while ((st = kvl_grant(producer_, &grant, &held.lease)) == KVL_ERR_FULL)
			idle(); // another engine would give the request up here: the blocks are still its own
		must(st, "kvl_grant");
		const kvl_lease_t lease = held.lease;
		held_[user] = std::move(held);
		write_parameters(lease, grant, out);
	}

	void write_parameters(kvl_lease_t lease, const kvl_grant_t &grant, int out)
	{
		std::string text(4096, 0);
		size_t len = 0;
		int32_t st;
		while ((st = kvl_params(ctx_, lease, &grant, &text[0], text.size(), &len)) == KVL_ERR_SPACE)
			text.resize(len + 1);
		if (st != KVL_OK)
			kvl_cancel(producer_, lease); // nobody will ever hear of this lease
		must(st, "kvl_params");
		text[len] = '\n';
		if (write(out, text.data(), len + 1) != static_cast<ssize_t>(len + 1))
			throw Error(options_.id + ": nobody takes our parameters");
	}

	// The engine gives its memory back, for another tenant of the machine, and takes it again: every lease must have ended, since
	// the blocks go, and who comes afterwards meets another engine under the same name.
	void sleep_and_wake()
	{
		until("every lease has ended", [&] { return held_.empty(); });
		until("all ranks have given their memory back", [&] { return pass(Job::sleep), registered_ == 0 && no_rank_is_up(); });
		pass(Job::wake);
		wait_for_ranks();
		say("slept and woke");
	}

	void on_event(const kvl_event_t &e) override
	{
		if (e.kind != KVL_EV_FREED) // a lapsed expectation: nothing was held
			return;
		auto held = held_.find(e.user);
		if (held == held_.end() || held->second.lease != e.handle)
			throw Error(options_.id + ": an end of a lease that nobody holds");
		give_blocks(held->second.blocks); // now, and not before: every rank has ended it
		held_.erase(held);
		completed_ += e.status == KVL_FREED_COMPLETED;
		for (uint32_t rank = 0; rank < options_.tp; rank++)
			if (e.status == KVL_FREED_COMPLETED && (e.reasons >> 4 * rank & 15) != KVL_FREED_COMPLETED)
				throw Error(options_.id + ": rank " + std::to_string(rank) + " gives another reason");
	}

	std::map<uint64_t, Held> held_; // by user
	uint32_t completed_ = 0;
};

#endif
