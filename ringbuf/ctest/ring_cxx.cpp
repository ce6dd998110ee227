// The header in C++: compiles without a warning, and both ends work.
#include <kvlease/ring.h>

#include <vector>

int main()
{
	std::vector<uint64_t> mem(kvl_ring_bytes(8192) / 8);
	kvl_ring_producer_t p;
	kvl_ring_consumer_t c;
	if (!kvl_ring_format(mem.data(), mem.size() * 8, 8192) || !kvl_ring_producer_init(&p, mem.data(), mem.size() * 8) ||
	    !kvl_ring_consumer_init(&c, mem.data(), mem.size() * 8))
		return 1;
	for (uint32_t i = 0; i < 1000; i++) {
		uint32_t tag = 0, len = 0;
		void *at = kvl_ring_reserve(&p, i, 100);
		if (at == nullptr)
			return 2;
		memset(at, static_cast<int>(i & 0xFF), 100);
		kvl_ring_publish(&p);
		const uint8_t *got = static_cast<const uint8_t *>(kvl_ring_next(&c, &tag, &len));
		if (got == nullptr || tag != i || len != 100 || got[99] != (i & 0xFF))
			return 3;
		kvl_ring_release(&c);
	}
	return kvl_ring_refused(&p) == 0 && kvl_ring_empty(&c) && !kvl_ring_corrupt(&c) ? 0 : 4;
}
