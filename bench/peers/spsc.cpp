// The loops of bench/ring/ring_bench.c over rigtorp::SPSCQueue, which is fetched for the run: <rigtorp/SPSCQueue.h>.
#include <rigtorp/SPSCQueue.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <pthread.h>
#include <thread>

namespace {

using Record = std::array<uint64_t, 8>; // 64 bytes
using Queue = rigtorp::SPSCQueue<Record>;

constexpr int capacity = 1024; // 64 KiB of records, as the ring
constexpr int records = 2000000;
volatile uint64_t sink;

double now_ns() {
	timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return double(t.tv_sec) * 1e9 + double(t.tv_nsec);
}

void pin(int cpu) {
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

double one_thread() {
	Queue q(capacity);
	Record body{1};
	uint64_t sum = 0;
	double start = now_ns();
	for (int i = 0; i < records; i++) {
		(void)q.try_push(body);
		Record got = *q.front();
		q.pop();
		sum += got[0] + got[7];
	}
	sink = sum;
	return (now_ns() - start) / records;
}

double two_threads() {
	Queue q(capacity);
	uint64_t sum = 0;
	double start = now_ns();
	std::thread producer([&] {
		pin(1);
		Record body{1};
		for (int i = 0; i < records; i++) {
			while (!q.try_push(body)) {
			}
		}
	});
	for (int i = 0; i < records; i++) {
		Record *at;
		while ((at = q.front()) == nullptr) {
		}
		Record got = *at;
		q.pop();
		sum += got[0] + got[7];
	}
	double took = (now_ns() - start) / records;
	producer.join();
	sink = sum;
	return took;
}

} // namespace

int main() {
	pin(0);
	std::printf("spsc.one %.4f\n", one_thread());
	std::printf("spsc.two %.4f\n", two_threads());
	if (std::fflush(stdout) != 0) {
		std::perror("spsc: write");
		return 1;
	}
}
