/* What the files of the fake NVML share. Types have the layout that NVIDIA's NVML API reference documents
 * (docs.nvidia.com/deploy/nvml-api); only what kvlease asks for is here. */
#ifndef KVLEASE_FAKE_NVML_H
#define KVLEASE_FAKE_NVML_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* nvmlReturn_t */
enum {
	OK = 0,
	UNINITIALIZED = 1,
	INVALID_ARGUMENT = 2,
	NOT_SUPPORTED = 3,
	NO_PERMISSION = 4,
	NOT_FOUND = 6,
	INSUFFICIENT_SIZE = 7,
	DRIVER_NOT_LOADED = 9,
	TIMEOUT = 10,
	GPU_IS_LOST = 15,
	RESET_REQUIRED = 16,
	LIB_RM_VERSION_MISMATCH = 18,
	UNKNOWN = 999,
};

enum { GPUS = 64, NAME = 96, EVENTS = 64, INSTANCES = 7 };

typedef struct gpu {
	bool there, lost;
	char pci[32], name[NAME], uuid[NAME];
	uint64_t memory, memory_used, bar1, bar1_used, ecc_uncorrected;
	int mig, mig_pending, ecc, ecc_pending; /* -1: the GPU has no such thing */
	unsigned remap_corrected, remap_uncorrected, remap_pending, remap_failed, recovery;
} gpu_t;

typedef struct {
	int gpu;
	uint64_t xid;
} event_t;

extern pthread_mutex_t lock;
extern gpu_t gpus[GPUS];
extern gpu_t instances[GPUS][INSTANCES]; /* MIG devices of each GPU: to NVML a device, too */
extern unsigned gpu_count, part_count; /* what the library tells */
extern char driver[NAME];
extern int cuda;
extern event_t events[EVENTS];
extern int event_count;

/* Counts a call and gives what the script has for it, or OK. */
int enter(const char *call);

#endif
