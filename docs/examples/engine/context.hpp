// A kvlease context as a C++ object, and what every call needs: a status that is looked at.
#ifndef ENGINE_CONTEXT_HPP
#define ENGINE_CONTEXT_HPP

#include <stdexcept>
#include <string>
#include <utility>

#include "kvlease.h"

struct Error : std::runtime_error {
	using std::runtime_error::runtime_error;
};

// For calls whose failure ends the engine. What may well fail (FULL, STALE) is looked at where it happens.
inline void must(int32_t status, const char *call)
{
	if (status != KVL_OK)
		throw Error(std::string(call) + ": " + kvl_status_name(status) + ": " + kvl_last_error());
}

// A text inside JSON. Ids and paths of this example hold nothing that would have to be escaped otherwise.
inline std::string quoted(const std::string &s)
{
	std::string out = "\"";
	for (char c : s) {
		if (c == '"' || c == '\\')
			out += '\\';
		out += c;
	}
	return out + '"';
}

class Context {
public:
	explicit Context(const std::string &config)
	{
		char text[512] = "";
		int32_t st = kvl_open(config.data(), config.size(), &ctx_, text, sizeof text);
		if (st != KVL_OK)
			throw Error(std::string("kvl_open: ") + kvl_status_name(st) + ": " + text);
	}
	Context(const Context &) = delete;
	Context &operator=(const Context &) = delete;
	// Memory is registered until this has succeeded, so a context that does not close may not be given up: a NIC may write.
	~Context()
	{
		while (ctx_ != nullptr && kvl_close(ctx_, 1000000000u) == KVL_ERR_BUSY) {
		}
	}
	void close()
	{
		must(kvl_close(ctx_, 5000000000u), "kvl_close");
		ctx_ = nullptr;
	}
	operator kvl_ctx_t *() const { return ctx_; }

private:
	kvl_ctx_t *ctx_ = nullptr;
};

#endif
