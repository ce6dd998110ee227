/* Two threads pass records of many sizes through one small ring. Under TSAN every edge made relaxed is a reported race;
 * without it the hardware gets its chance to reorder. */
#include <kvlease/ring.h>

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

enum { CAPACITY = 16384, RECORDS = 300000 };

typedef struct end {
	void *mem;
	size_t len;
} end_t;

static uint32_t length_of(uint32_t i)
{
	return i * 2654435761u % 64 == 0 ? i % (KVL_RING_PAYLOAD_BYTES_MAX + 1) : i % 97;
}

static void *produce(void *arg)
{
	const end_t *e = arg;
	kvl_ring_producer_t p;
	if (!kvl_ring_producer_init(&p, e->mem, e->len))
		abort();
	for (uint32_t i = 0; i < RECORDS; i++) {
		uint32_t n = length_of(i);
		void *at;
		if (i % 31 == 0) { /* what is discarded is overwritten by what follows */
			kvl_ring_publish(&p);
			if ((at = kvl_ring_reserve(&p, i + 1, 64)) != NULL)
				memset(at, 0xEE, 64);
			kvl_ring_discard(&p);
		}
		while ((at = kvl_ring_reserve(&p, i, n)) == NULL) {
			kvl_ring_publish(&p); /* what waits in the batch is what the consumer needs to make room */
			sched_yield();
		}
		memset(at, (int)(i & 0xFF), n);
		if (i % 7 == 0 || i + 1 == RECORDS)
			kvl_ring_publish(&p);
	}
	return NULL;
}

int main(void)
{
	end_t e = {.len = kvl_ring_bytes(CAPACITY)};
	kvl_ring_consumer_t c;
	pthread_t thread;
	uint32_t i;
	e.mem = aligned_alloc(64, e.len);
	if (e.mem == NULL || !kvl_ring_format(e.mem, e.len, CAPACITY) || !kvl_ring_consumer_init(&c, e.mem, e.len) ||
	    pthread_create(&thread, NULL, produce, &e) != 0)
		return 2;
	for (i = 0; i < RECORDS; i++) {
		uint32_t tag = 0, n = 0;
		const uint8_t *at;
		while ((at = kvl_ring_next(&c, &tag, &n)) == NULL) {
			if (kvl_ring_corrupt(&c)) {
				fprintf(stderr, "corrupt at record %u\n", i);
				return 1;
			}
			kvl_ring_release(&c);
			sched_yield();
		}
		if (tag != i || n != length_of(i)) {
			fprintf(stderr, "record %u: tag %u, %u bytes, want %u\n", i, tag, n, length_of(i));
			return 1;
		}
		for (uint32_t j = 0; j < n; j++)
			if (at[j] != (i & 0xFF)) {
				fprintf(stderr, "record %u holds a byte of another at %u\n", i, j);
				return 1;
			}
		if (i % 5 == 0)
			kvl_ring_release(&c);
	}
	kvl_ring_release(&c);
	pthread_join(thread, NULL);
	if (!kvl_ring_empty(&c)) {
		fprintf(stderr, "records left over\n");
		return 1;
	}
	printf("%u records, %llu refused\n", i,
	       (unsigned long long)atomic_load(&((kvl_ring_header_t *)e.mem)->refused));
	free(e.mem);
	return 0;
}
