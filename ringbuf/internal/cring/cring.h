/* Loops for the tests with a C end and a Go end on two threads. */
#ifndef CRING_H
#define CRING_H

#include <kvlease/ring.h>
#include <sched.h>
#include <stdlib.h>

static inline void *cring_alloc(size_t n)
{
	void *p = aligned_alloc(64, (n + 63) / 64 * 64);
	if (p != NULL)
		memset(p, 0, n);
	return p;
}

static inline uint32_t cring_len(uint32_t i) { return i * 2654435761u % 4096u % (KVL_RING_PAYLOAD_BYTES_MAX + 1); }

static inline void cring_produce(kvl_ring_producer_t *p, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		void *at;
		while ((at = kvl_ring_reserve(p, i, cring_len(i))) == NULL) {
			kvl_ring_publish(p); /* what waits in the batch is what the consumer needs to make room */
			sched_yield();
		}
		memset(at, (uint8_t)i, cring_len(i));
		if (i % 7 == 0 || i + 1 == n)
			kvl_ring_publish(p);
	}
}

static inline uint32_t cring_consume(kvl_ring_consumer_t *c, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t tag = 0, len = 0;
		const uint8_t *at;
		while ((at = kvl_ring_next(c, &tag, &len)) == NULL) {
			if (kvl_ring_corrupt(c))
				return i;
			kvl_ring_release(c);
			sched_yield();
		}
		if (tag != i || len != cring_len(i))
			return i;
		for (uint32_t j = 0; j < len; j++)
			if (at[j] != (uint8_t)i)
				return i;
		if (i % 5 == 0)
			kvl_ring_release(c);
	}
	kvl_ring_release(c);
	return n;
}

#endif
