/* What the files of the shim share. Not for Go. */
#ifndef KVLEASE_CUDA_LIBRARY_H
#define KVLEASE_CUDA_LIBRARY_H

#include "cuda_api.h"
#include "shim.h"

#include <pthread.h>

typedef struct {
	void *handle;
	cuda_api_t api;
	pthread_mutex_t lock; /* guards retained */
	uint32_t retained[KVLC_DEVICES_MAX];
	CUdevice devices[KVLC_DEVICES_MAX];   /* of retained devices, so that a release asks the driver for nothing else */
	CUcontext contexts[KVLC_DEVICES_MAX]; /* of retained devices; atomic, since a call may come beside another's retain or release */
} library_t;

/* The library behind a handle, or NULL. */
library_t *kvlc_library(int32_t library);
/* Writes a fault unless the result is success. */
int32_t kvlc_fault(kvlc_fault_t *fault, const char *call, CUresult result);

/* Calls name of the library's table: KVLC_OK or KVLC_CUDA with a fault. */
#define CALL(l, fault, name, ...) kvlc_fault(fault, #name, (l)->api.name(__VA_ARGS__))

/* The time of one call in which a device's primary context is current on the thread. */
typedef struct {
	library_t *l;
	int32_t device, pushed;
} scope_t;

/* After an error of kvlc_begin nothing is due. kvlc_end gives the thread its own context back and hands st on. */
int32_t kvlc_begin(scope_t *s, int32_t library, int32_t device, kvlc_fault_t *fault);
int32_t kvlc_end(scope_t *s, int32_t st, kvlc_fault_t *fault);

/* The end of a function that has made something under the device's context, and hands it over as value. Where the driver refuses to give the
 * thread its own context back nobody is told of what was made, so undo takes it away, under the device's context once more. */
#define HAND_OVER(fault, to, value, undo) \
	do { \
		int32_t ended = kvlc_end(&s, KVLC_OK, fault); \
		if (ended == KVLC_OK) \
			*(to) = (value); \
		kvlc_fault_t second; \
		if (ended != KVLC_OK && kvlc_begin(&s, library, device, &second) == KVLC_OK) { \
			(void)(undo); \
			(void)kvlc_end(&s, KVLC_OK, &second); \
		} \
		return ended; \
	} while (0)

/* The body of a function that is one driver call under the device's context. */
#define WITHIN(fault, name, ...) \
	do { \
		scope_t s; \
		int32_t st = kvlc_begin(&s, library, device, fault); \
		if (st != KVLC_OK) \
			return st; \
		return kvlc_end(&s, CALL(s.l, fault, name, __VA_ARGS__), fault); \
	} while (0)

#endif
