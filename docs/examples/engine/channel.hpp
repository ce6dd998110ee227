// What an engine's host and its workers say to each other, once per pass and worker: a step message and its answer. With the carrier
// "delta" kvlease's bytes travel in them; with the others kvlease has its own way, and these say only what the model needs.
#ifndef ENGINE_CHANNEL_HPP
#define ENGINE_CHANNEL_HPP

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "context.hpp"

enum class Job : uint32_t {
	none,
	fill,  // compute the KV of a request into these blocks
	clear, // blank them before they are read into
	check, // compare them with what the request's KV must be
	sleep, // give the memory back
	wake,  // and take it again
	quit,
};

struct Message {
	Job job = Job::none;
	uint32_t blocks_n = 0, delta_n = 0;
	uint32_t registered = 0; // answer: this rank's memory is
	uint64_t wrong = 0;      // answer to check: words that differ
	char request[64] = "";
	uint32_t blocks[64] = {};
	uint8_t delta[KVL_DELTA_MAX];

	// Without the unused end of the bytes, which would cost more than all else.
	size_t size() const { return offsetof(Message, delta) + delta_n; }
};

// One end of a socket that keeps messages whole, between threads or processes.
class Channel {
public:
	explicit Channel(int fd) : fd_(fd) {}
	Channel(Channel &&o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
	Channel &operator=(Channel &&) = delete;
	~Channel()
	{
		if (fd_ >= 0)
			close(fd_);
	}
	static std::pair<Channel, Channel> pair()
	{
		int fd[2];
		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fd) != 0)
			throw Error(std::string("socketpair: ") + std::strerror(errno));
		return {Channel(fd[0]), Channel(fd[1])};
	}
	int fd() const { return fd_; }

	void send(const Message &m) const
	{
		if (::send(fd_, &m, m.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(m.size()))
			throw Error("the other end of a step channel is gone");
	}
	// false: the other end is gone.
	bool receive(Message &m) const
	{
		ssize_t n;
		while ((n = recv(fd_, &m, sizeof m, 0)) < 0 && errno == EINTR) {
		}
		return n >= static_cast<ssize_t>(offsetof(Message, delta)) && m.size() == static_cast<size_t>(n) && m.blocks_n <= 64;
	}

private:
	int fd_;
};

#endif
