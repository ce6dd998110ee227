/* One-thread tests of the ring's C half; the model test with all pairings of C and Go is in ringbuf/internal/cring. */
#include <kvlease/ring.h>

#include <stdio.h>
#include <stdlib.h>

#define CHECK(x) \
	do { \
		if (!(x)) { \
			fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__, #x); \
			exit(1); \
		} \
	} while (0)

enum { CAPACITY = 4096 };

typedef struct ring {
	void *mem;
	size_t len;
	kvl_ring_producer_t p;
	kvl_ring_consumer_t c;
} ring_t;

static ring_t ring_new(uint32_t capacity)
{
	ring_t r;
	r.len = kvl_ring_bytes(capacity);
	r.mem = aligned_alloc(64, r.len); /* the sanitizer sees every byte past the end */
	CHECK(r.mem != NULL);
	CHECK(kvl_ring_format(r.mem, r.len, capacity));
	CHECK(kvl_ring_producer_init(&r.p, r.mem, r.len));
	CHECK(kvl_ring_consumer_init(&r.c, r.mem, r.len));
	return r;
}

static void memory_that_does_not_fit_is_refused(void)
{
	ring_t r = ring_new(CAPACITY);
	kvl_ring_header_t *h = r.mem;
	kvl_ring_consumer_t c;
	kvl_ring_producer_t p;
	CHECK(!kvl_ring_format(r.mem, r.len - 1, CAPACITY));
	CHECK(!kvl_ring_format(r.mem, r.len, 2048));
	CHECK(!kvl_ring_format(r.mem, r.len, 4097));
	CHECK(!kvl_ring_format(NULL, r.len, CAPACITY));
	CHECK(!kvl_ring_format((uint8_t *)r.mem + 1, r.len, CAPACITY));
	CHECK(!kvl_ring_consumer_init(&c, r.mem, r.len - 1));
	CHECK(!kvl_ring_consumer_init(&c, NULL, r.len));
	h->capacity *= 2;
	CHECK(!kvl_ring_consumer_init(&c, r.mem, r.len) && !kvl_ring_producer_init(&p, r.mem, r.len));
	h->capacity /= 2;
	h->magic++;
	CHECK(!kvl_ring_consumer_init(&c, r.mem, r.len) && !kvl_ring_producer_init(&p, r.mem, r.len));
	h->magic--;
	h->version++;
	CHECK(!kvl_ring_consumer_init(&c, r.mem, r.len) && !kvl_ring_producer_init(&p, r.mem, r.len));
	h->version--;
	atomic_store(&h->head, 4);
	CHECK(!kvl_ring_producer_init(&p, r.mem, r.len));
	atomic_store(&h->tail, 4);
	CHECK(!kvl_ring_consumer_init(&c, r.mem, r.len));
	free(r.mem);
}

static void records_of_every_size_pass(void)
{
	ring_t r = ring_new(2 * CAPACITY);
	for (uint32_t n = 0; n <= KVL_RING_PAYLOAD_BYTES_MAX; n++) {
		uint32_t tag = 0, len = 0;
		const uint8_t *got;
		uint8_t *at = kvl_ring_reserve(&r.p, n, n);
		CHECK(at != NULL && (uintptr_t)at % 8 == 0);
		memset(at, (int)(n % 251), n);
		CHECK(kvl_ring_empty(&r.c));
		kvl_ring_publish(&r.p);
		got = kvl_ring_next(&r.c, &tag, &len);
		CHECK(got != NULL && tag == n && len == n);
		for (uint32_t i = 0; i < n; i++)
			CHECK(got[i] == n % 251);
		kvl_ring_release(&r.c);
		CHECK(kvl_ring_consumer_position(&r.c) == kvl_ring_producer_position(&r.p));
	}
	CHECK(kvl_ring_reserve(&r.p, 1, KVL_RING_PAYLOAD_BYTES_MAX + 1) == NULL);
	CHECK(kvl_ring_reserve(&r.p, 1, UINT32_MAX) == NULL);
	CHECK(kvl_ring_reserve(&r.p, KVL_RING_TAG_PAD, 8) == NULL);
	CHECK(kvl_ring_refused(&r.p) == 3);
	free(r.mem);
}

static void neighbours_keep_their_bytes(void)
{
	ring_t r = ring_new(CAPACITY);
	for (uint32_t n = 0; n <= 300; n++) {
		for (uint32_t k = 0; k < 3; k++) {
			uint8_t *at = kvl_ring_reserve(&r.p, k, n + k);
			CHECK(at != NULL);
			memset(at, (int)(n + k) % 251, n + k);
		}
		kvl_ring_publish(&r.p);
		for (uint32_t k = 0; k < 3; k++) {
			uint32_t tag, len;
			const uint8_t *got = kvl_ring_next(&r.c, &tag, &len);
			CHECK(got != NULL && tag == k && len == n + k);
			for (uint32_t i = 0; i < len; i++)
				CHECK(got[i] == (n + k) % 251);
		}
		kvl_ring_release(&r.c);
	}
	free(r.mem);
}

static void a_full_ring_refuses_and_counts(void)
{
	ring_t r = ring_new(CAPACITY);
	uint32_t tag, len, n = 0;
	while (kvl_ring_reserve(&r.p, n, 56) != NULL)
		n++;
	CHECK(n == CAPACITY / 64 && kvl_ring_refused(&r.p) == 1);
	kvl_ring_publish(&r.p);
	CHECK(kvl_ring_next(&r.c, &tag, &len) != NULL && tag == 0);
	CHECK(kvl_ring_reserve(&r.p, n, 56) == NULL); /* handed out is not given back */
	kvl_ring_release(&r.c);
	CHECK(kvl_ring_reserve(&r.p, n, 56) != NULL);
	CHECK(kvl_ring_refused(&r.p) == 2);
	free(r.mem);
}

static void a_discarded_batch_is_never_seen(void)
{
	ring_t r = ring_new(CAPACITY);
	uint32_t tag, len;
	for (uint32_t i = 0; i < 1000; i++) {
		CHECK(kvl_ring_reserve(&r.p, 1, 200) != NULL && kvl_ring_reserve(&r.p, 1, 200) != NULL);
		kvl_ring_discard(&r.p);
		CHECK(kvl_ring_reserve(&r.p, 2, 100) != NULL);
		kvl_ring_publish(&r.p);
		CHECK(kvl_ring_next(&r.c, &tag, &len) != NULL && tag == 2 && len == 100);
		CHECK(kvl_ring_next(&r.c, &tag, &len) == NULL);
		kvl_ring_release(&r.c);
	}
	CHECK(!kvl_ring_corrupt(&r.c));
	free(r.mem);
}

static void an_end_that_attaches_anew_goes_on(void)
{
	ring_t r = ring_new(CAPACITY);
	uint32_t tag, len;
	CHECK(kvl_ring_reserve(&r.p, 1, 8) && kvl_ring_reserve(&r.p, 2, 8));
	kvl_ring_publish(&r.p);
	CHECK(kvl_ring_reserve(&r.p, 3, 8) != NULL); /* not published: lost with its producer */
	CHECK(kvl_ring_next(&r.c, &tag, &len) && tag == 1);
	kvl_ring_release(&r.c);
	CHECK(kvl_ring_next(&r.c, &tag, &len) && tag == 2); /* not given back: handed out again */
	CHECK(kvl_ring_producer_init(&r.p, r.mem, r.len) && kvl_ring_consumer_init(&r.c, r.mem, r.len));
	CHECK(kvl_ring_reserve(&r.p, 4, 8) != NULL);
	kvl_ring_publish(&r.p);
	CHECK(kvl_ring_next(&r.c, &tag, &len) && tag == 2);
	CHECK(kvl_ring_next(&r.c, &tag, &len) && tag == 4);
	CHECK(kvl_ring_next(&r.c, &tag, &len) == NULL && !kvl_ring_corrupt(&r.c));
	free(r.mem);
}

/* Every word and record from a seeded generator: no access outside the memory, an end to every loop. */
static void a_ring_that_lies_does_no_harm(void)
{
	uint64_t x = 88172645463325252u;
	int corrupt = 0, good = 0;
	printf("seed %llu\n", (unsigned long long)x);
	for (int run = 0; run < 20000; run++) {
		ring_t r = ring_new(CAPACITY);
		uint64_t *words = r.mem;
		uint32_t tag, len, n = 0;
		const volatile uint8_t *at;
		for (size_t i = KVL_RING_HEADER_BYTES / 8; i < r.len / 8; i++) {
			x ^= x << 13, x ^= x >> 7, x ^= x << 17;
			words[i] = x & (run % 2 ? ~(uint64_t)0 : 0xFFFFFFFF0000007Fu);
		}
		words[128 / 8] = (x >> 8) & ~(uint64_t)7;
		words[64 / 8] = run % 3 ? words[128 / 8] + (x & 0x1FF8) : x;
		CHECK(kvl_ring_consumer_init(&r.c, r.mem, r.len));
		while ((at = kvl_ring_next(&r.c, &tag, &len)) != NULL) {
			if (len > 0)
				(void)(at[0] + at[len - 1]);
			CHECK(++n <= CAPACITY / 8);
		}
		CHECK(kvl_ring_corrupt(&r.c) || kvl_ring_empty(&r.c));
		corrupt += kvl_ring_corrupt(&r.c);
		good += (int)n;
		kvl_ring_release(&r.c);
		(void)kvl_ring_producer_init(&r.p, r.mem, r.len);
		for (n = 0; n < 4; n++) {
			uint8_t *to = kvl_ring_reserve(&r.p, 1, (uint32_t)(x >> (8 * n)) % 4089);
			words[128 / 8] += (x >> n) & ~(uint64_t)7;
			if (to != NULL)
				memset(to, 0, 1);
			kvl_ring_publish(&r.p);
		}
		free(r.mem);
	}
	CHECK(corrupt > 1000 && good > 1000); /* else the generator shows nothing */
}

int main(void)
{
	memory_that_does_not_fit_is_refused();
	records_of_every_size_pass();
	neighbours_keep_their_bytes();
	a_full_ring_refuses_and_counts();
	a_discarded_batch_is_never_seen();
	an_end_that_attaches_anew_goes_on();
	a_ring_that_lies_does_no_harm();
	return 0;
}
