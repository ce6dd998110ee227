/* What a record of 64 bytes costs through the ring: one round of each kind, ns per push + pop, as "name value" lines.
 *
 * usage: ring_bench [RECORDS]: with a number only one thread, one record at a time, so many of them
 */
#include <kvlease/ring.h>

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CAPACITY = 1 << 16, PAYLOAD = 64, RECORDS = 2000000, BATCH = 16 };

static void *mem;
static size_t mem_len;
static volatile uint64_t sink;

static double now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void pin(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	pthread_setaffinity_np(pthread_self(), sizeof set, &set); /* not allowed: unpinned, the range shows it */
}

static void ends(kvl_ring_producer_t *p, kvl_ring_consumer_t *c)
{
	if (!kvl_ring_format(mem, mem_len, CAPACITY) || !kvl_ring_producer_init(p, mem, mem_len) ||
	    !kvl_ring_consumer_init(c, mem, mem_len))
		abort();
}

static __attribute__((noinline)) double one_thread(int records, int batch)
{
	kvl_ring_producer_t p;
	kvl_ring_consumer_t c;
	uint64_t body[PAYLOAD / 8] = {1}, got[PAYLOAD / 8], sum = 0;
	uint32_t tag, len;
	double start;
	ends(&p, &c);
	start = now_ns();
	for (int i = 0; i < records; i += batch) {
		for (int j = 0; j < batch; j++) {
			void *at = kvl_ring_reserve(&p, 1, PAYLOAD);
			if (at == NULL)
				abort();
			memcpy(at, body, PAYLOAD);
		}
		kvl_ring_publish(&p);
		for (int j = 0; j < batch; j++) {
			const void *at = kvl_ring_next(&c, &tag, &len);
			if (at == NULL)
				abort();
			memcpy(got, at, PAYLOAD);
			sum += got[0] + got[7];
		}
		kvl_ring_release(&c);
	}
	sink = sum;
	return (now_ns() - start) / records;
}

static void *produce(void *arg)
{
	kvl_ring_producer_t *p = arg;
	uint64_t body[PAYLOAD / 8] = {1};
	pin(1);
	for (int i = 0; i < RECORDS; i++) {
		void *at;
		while ((at = kvl_ring_reserve(p, 1, PAYLOAD)) == NULL) {
		}
		memcpy(at, body, PAYLOAD);
		kvl_ring_publish(p);
	}
	return NULL;
}

static double two_threads(int unused)
{
	kvl_ring_producer_t p;
	kvl_ring_consumer_t c;
	uint64_t got[PAYLOAD / 8], sum = 0;
	uint32_t tag, len;
	pthread_t thread;
	double start;
	(void)unused;
	ends(&p, &c);
	start = now_ns();
	if (pthread_create(&thread, NULL, produce, &p) != 0)
		abort();
	for (int i = 0; i < RECORDS; i++) {
		const void *at;
		while ((at = kvl_ring_next(&c, &tag, &len)) == NULL) {
		}
		memcpy(got, at, PAYLOAD);
		sum += got[0] + got[7];
		kvl_ring_release(&c);
	}
	start = (now_ns() - start) / RECORDS;
	pthread_join(thread, NULL);
	sink = sum;
	return start;
}

static int written(void)
{
	if (fflush(stdout) == 0)
		return 0;
	perror("ring_bench: write");
	return 1;
}

int main(int argc, char **argv)
{
	mem_len = kvl_ring_bytes(CAPACITY);
	mem = aligned_alloc(64, mem_len);
	if (mem == NULL)
		return 1;
	memset(mem, 0, mem_len);
	if (argc > 1) {
		printf("ring.one %.4f\n", one_thread(atoi(argv[1]), 1));
		return written();
	}
	pin(0);
	printf("ring.one %.4f\n", one_thread(RECORDS, 1));
	printf("ring.batch %.4f\n", one_thread(RECORDS, BATCH));
	printf("ring.two %.4f\n", two_threads(1));
	free(mem);
	return written();
}
