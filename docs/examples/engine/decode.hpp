// The decode side: requests arrive with transfer parameters, wait while their leases are renewed, are read, and may then be used.
#ifndef ENGINE_DECODE_HPP
#define ENGINE_DECODE_HPP

#include <deque>

#include "scheduler.hpp"

class Decode : public Scheduler {
public:
	using Scheduler::Scheduler;

	// Parameters come from `in`, one JSON object a line, until its end.
	void run(int in)
	{
		wait_for_ranks();
		bool more = true;
		until("all requests are done", [&] {
			if (more && readable(in))
				more = arrivals(in);
			use_what_was_read();
			schedule();
			return !more && requests_.empty();
		}, in);
		leave();
		say(std::to_string(used_) + " requests used, " + std::to_string(recomputed_) + " to be computed here, every byte checked");
		if (recomputed_ != 0)
			throw Error(options_.id + ": not every request could be read");
	}

private:
	struct Request {
		std::string id;
		kvl_track_t track = 0;
		std::vector<uint32_t> remote, local;
		bool reading = false, over = false; // over: a failed read may still write into its blocks
	};

	static const char *read_name(int32_t status)
	{
		static const char *const names[] = {"ok", "the lease had ended", "no proof that the lease stood", "the transport failed", "the read took too long",
		                                    "cancelled", "the engine is gone, or was not reached"};
		return status >= 0 && status < 7 ? names[status] : "?";
	}

	static bool readable(int fd)
	{
		pollfd p = {fd, POLLIN, 0};
		return poll(&p, 1, 0) == 1;
	}

	// false: the end of the input.
	bool arrivals(int in)
	{
		char some[4096];
		ssize_t n = read(in, some, sizeof some);
		if (n <= 0)
			return false;
		input_.append(some, static_cast<size_t>(n));
		for (size_t end; (end = input_.find('\n')) != std::string::npos; input_.erase(0, end + 1))
			arrive(input_.substr(0, end));
		return true;
	}

	// The request enters the queue, and its heartbeats start: at once, not when it is scheduled, and not when the engine is connected.
	void arrive(const std::string &params)
	{
		std::vector<uint8_t> buf(4096);
		kvl_remote_t remote{};
		size_t need = 0;
		int32_t st;
		remote.size = sizeof remote;
		while ((st = kvl_params_read(params.data(), params.size(), &remote, buf.data(), buf.size(), &need)) == KVL_ERR_SPACE)
			buf.resize(need);
		must(st, "kvl_params_read");

		kvl_engine_desc_t desc{};
		kvl_engine_t engine = 0;
		desc.size = sizeof desc;
		desc.ranks = remote.tp_size;
		desc.pp_size = remote.pp_size;
		desc.engine_id = remote.engine_id;
		desc.host = remote.host; // the library fetches its handshake there
		desc.port = remote.port;
		must(kvl_engine_add(ctx_, &desc, &engine), "kvl_engine_add"); // the same handle for the same id

		Request r;
		r.id.assign(static_cast<const char *>(remote.id.data), remote.id.len);
		r.remote.assign(remote.groups[0].ids, remote.groups[0].ids + remote.groups[0].n);
		const std::string local_id = "d-" + r.id;
		while ((st = kvl_track(producer_, engine, &remote, {local_id.data(), local_id.size()}, next_user_, &r.track)) == KVL_ERR_FULL)
			idle();
		must(st, "kvl_track");
		requests_[next_user_++] = std::move(r);
	}

	// Whatever has blocks to be read into is read: kvlease waits for the connection by itself.
	void schedule()
	{
		std::vector<uint64_t> waiting; // by name: any of them may end in the passes below
		for (const auto &[user, r] : requests_)
			if (!r.reading && !r.over)
				waiting.push_back(user);
		for (uint64_t user : waiting) {
			auto found = requests_.find(user);
			std::vector<uint32_t> blocks;
			if (found == requests_.end() || !take_blocks(found->second.remote.size(), blocks))
				continue;
			// The memory still holds what was there before; a model must never see it for the request's.
			pass(Job::clear, "", blocks);
			found = requests_.find(user);
			if (found == requests_.end()) { // its lease has ended meanwhile
				give_blocks(blocks);
				continue;
			}
			Request &r = found->second;
			const uint32_t n = static_cast<uint32_t>(blocks.size());
			const kvl_blocks_t local = {blocks.data(), n, 0}, remote = {r.remote.data(), n, 0};
			const kvl_read_t read = {sizeof read, 1, &local, &remote};
			int32_t st = kvl_read(producer_, r.track, &read);
			if (st == KVL_OK) {
				r.local = std::move(blocks);
				r.reading = true;
				continue;
			}
			give_blocks(blocks);
			if (st == KVL_ERR_STALE) // the lease is known to be over; its event comes
				recompute(user, "its lease is over");
			else if (st != KVL_ERR_FULL)
				must(st, "kvl_read");
		}
	}

	// Events come in while a pass runs; the passes that they ask for are made here.
	void use_what_was_read()
	{
		for (; !read_.empty(); read_.pop_front()) {
			auto found = requests_.find(read_.front());
			Request r = std::move(found->second);
			requests_.erase(found);
			if (uint64_t wrong = pass(Job::check, r.id, r.local); wrong != 0)
				throw Error(options_.id + ": " + r.id + ": " + std::to_string(wrong) + " words are not the request's");
			used_++;
			give_blocks(r.local); // a real engine decodes first
		}
	}

	// The prompt would be computed here, as if it had come without parameters.
	void recompute(uint64_t user, const std::string &why)
	{
		recomputed_++;
		say(requests_[user].id + " has to be computed here: " + why);
		requests_.erase(user);
	}

	void on_event(const kvl_event_t &e) override
	{
		auto found = requests_.find(e.user);
		if (found == requests_.end() || found->second.track != e.handle)
			return;
		Request &r = found->second;
		switch (e.kind) {
		case KVL_EV_READ_DONE: // proven: all ranks have read all of it while the lease stood
			read_.push_back(e.user);
			return;
		case KVL_EV_READ_FAILED:
			if ((e.flags & KVL_EVF_BLOCKS_HELD) != 0) {
				r.over = true; // the blocks come back by event; a real engine computes elsewhere meanwhile
				return;
			}
			give_blocks(r.local);
			recompute(e.user, read_name(e.status));
			return;
		case KVL_EV_BLOCKS_BACK:
			give_blocks(r.local);
			recompute(e.user, "its blocks are back");
			return;
		case KVL_EV_LEASE_GONE: // nothing can be read any more
			if (!r.reading) {
				kvl_untrack(producer_, r.track); // STALE: it has ended by itself
				recompute(e.user, "its lease is gone");
			}
			return;
		default: // AT_RISK: time to read this one first, in an engine that chooses
			return;
		}
	}

	std::string input_;
	std::map<uint64_t, Request> requests_; // by user
	std::deque<uint64_t> read_;
	uint64_t next_user_ = 0;
	uint32_t used_ = 0, recomputed_ = 0;
};

#endif
