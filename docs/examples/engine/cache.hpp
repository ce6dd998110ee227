// The KV cache of one rank, whose every byte can be checked.
#ifndef ENGINE_CACHE_HPP
#define ENGINE_CACHE_HPP

#include <sys/mman.h>

#include <cstring>
#include <string>
#include <vector>

#include "context.hpp"

// One region per layer. A block is two parts, keys and values, and a part is one run of bytes per head of this rank: so the heads of
// a rank of another size are one run in each part, and engines of different tp_size can read from each other.
class Cache {
public:
	static constexpr uint32_t heads_all = 4, tokens = 16, words = 4; // words of 8 bytes per head and token

	Cache(uint32_t layers, uint32_t blocks, uint32_t rank, uint32_t ranks)
		: layers_(layers), blocks_(blocks), heads_(heads_all / ranks), first_head_(heads_ * rank)
	{
		map();
	}
	~Cache() { unmap(); }
	Cache(const Cache &) = delete;
	Cache &operator=(const Cache &) = delete;

	// What the transport registers comes from mmap, and stays mapped until kvl_unregister or kvl_close has succeeded.
	void map()
	{
		for (uint32_t l = 0; l < layers_; l++) {
			void *at = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			if (at == MAP_FAILED)
				throw Error("no memory for the KV cache");
			base_.push_back(static_cast<uint64_t *>(at));
		}
	}
	void unmap()
	{
		for (uint64_t *base : base_)
			munmap(base, bytes());
		base_.clear();
	}

	void register_with(kvl_ctx_t *ctx) const
	{
		std::vector<kvl_region_t> regions(layers_);
		std::vector<std::string> names(layers_);
		for (uint32_t l = 0; l < layers_; l++) {
			kvl_region_t &r = regions[l];
			names[l] = "layer." + std::to_string(l);
			r = {};
			r.addr = reinterpret_cast<uint64_t>(base_[l]);
			r.bytes = bytes();
			r.block_len = r.block_stride = block_words() * 8;
			r.blocks = blocks_;
			r.group = -1;
			r.name = {names[l].data(), names[l].size()};
			r.parts = 2;
		}
		must(kvl_register(ctx, regions.data(), sizeof regions[0], layers_), "kvl_register");
	}

	// A prefill: this rank's heads of a request's KV, by position in the request, into these blocks.
	void fill(const std::string &request, const uint32_t *blocks, uint32_t n)
	{
		walk(request, blocks, n, [](uint64_t &at, uint64_t want) { return at = want, 0; });
	}
	// How many words of these blocks are not the request's.
	uint64_t wrong(const std::string &request, const uint32_t *blocks, uint32_t n)
	{
		return walk(request, blocks, n, [](uint64_t &at, uint64_t want) { return at != want; });
	}
	// Whatever a block held before must not look like data that was read.
	void clear(const uint32_t *blocks, uint32_t n)
	{
		for (uint64_t *base : base_)
			for (uint32_t b = 0; b < n; b++)
				std::memset(base + blocks[b] * block_words(), 0xee, block_words() * 8);
	}

private:
	size_t block_words() const { return size_t{2} * heads_ * tokens * words; }
	size_t bytes() const { return block_words() * 8 * blocks_; }

	// A bijection in which every bit of the input moves about half of the output (the end of splitmix64).
	static uint64_t mixed(uint64_t x)
	{
		x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
		x = (x ^ x >> 27) * 0x94d049bb133111ebu;
		return x ^ x >> 31;
	}

	// Goes over every word of a request's blocks: what stands there, and what belongs there, by its place in the whole model.
	template <typename Visit> uint64_t walk(const std::string &request, const uint32_t *blocks, uint32_t n, Visit visit)
	{
		uint64_t name = 0xcbf29ce484222325u, sum = 0;
		for (char c : request)
			name = (name ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
		for (uint32_t layer = 0; layer < layers_; layer++)
			for (uint32_t b = 0; b < n; b++) {
				uint64_t *at = base_[layer] + blocks[b] * block_words();
				for (uint64_t part = 0; part < 2; part++)
					for (uint64_t head = first_head_; head < first_head_ + heads_; head++)
						for (uint64_t word = 0; word < tokens * words; word++)
							sum += visit(*at++, mixed(name ^ mixed(uint64_t{layer} << 56 | part << 48 | head << 32 | uint64_t{b} << 16 | word)));
			}
		return sum;
	}

	uint32_t layers_, blocks_, heads_, first_head_;
	std::vector<uint64_t *> base_;
};

#endif
