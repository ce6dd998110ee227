/* What the files of the fake CUDA driver share. It links nothing but libc and follows what the driver API's reference says. */
#ifndef KVLEASE_FAKECUDA_H
#define KVLEASE_FAKECUDA_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	SUCCESS = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	INVALID_DEVICE = 101,
	INVALID_CONTEXT = 201,
	INVALID_HANDLE = 400,
	NOT_FOUND = 500,
	NOT_READY = 600,
	CONTEXT_IS_DESTROYED = 709,
	NOT_SUPPORTED = 801,
};

enum { GRAIN = 512, MAPPED = 2 << 20 }; /* what cuMemAlloc and cuMemMap align to */
enum { DEVICES = 8, ATTRIBUTES = 256, STACK = 16 };
/* Kinds, as the script names them: host device managed vmm pool ipc. */
enum { KIND_HOST = 1, KIND_DEVICE, KIND_MANAGED, KIND_VMM, KIND_POOL, KIND_IPC };

typedef struct context {
	int device;
	bool destroyed;
	unsigned flags;
} context_t;

typedef struct {
	context_t *primary; /* the present one; a reset leaves the old one destroyed, since threads may hold it */
	int retains;
	int lost; /* the code that its calls answer with; 0: it works */
	int attributes[ATTRIBUTES];
	uint64_t base, limit, used; /* addresses of its memory; bytes */
	uint8_t *shadow;            /* the same memory, for the API alone: at base nobody may touch it */
	int fd;                     /* of both, for other processes */
} device_t;

typedef struct allocation {
	struct allocation *next; /* by address */
	uint64_t base, bytes, piece; /* piece: mapped at once, of vmm */
	uint64_t hole, hole_bytes;   /* of vmm: not mapped */
	int device, kind;
	bool rdma, sync;
	context_t *context;
	uint8_t *shadow; /* at base, for the API alone */
	int opened;      /* of another process's memory: how often; 0: it is our own */
	uint64_t file, offset; /* and where it is: an inode */
} allocation_t;

extern pthread_mutex_t lock;
extern device_t devices[DEVICES];
extern int devices_n;
extern allocation_t *allocations;

/* Counts a call, waits as the script says, and gives the result that the script has for it. */
int enter(const char *call);
bool is_missing(const char *symbol);
const char *call_name(int i); /* of the driver's, as scripts name them; NULL behind the last */
int driver_version(void);

/* The current context, if it can be used: SUCCESS, or what the driver would answer. Takes the lock. */
int current(context_t **out);
/* The same for a call of which the script has its say first. */
int enter_context(const char *call, context_t **out);

/* Under the lock. */
int allocate(int device, int kind, uint64_t bytes, uint64_t piece, context_t *context, uint64_t *out);
void insert_allocation(allocation_t *a);
void drop_allocation(allocation_t *a); /* out of the list, and freed */
allocation_t *find_allocation(uint64_t addr);
uint8_t *shadow_of(uint64_t addr, uint64_t bytes);
void reset_memory(void);
void reset_work(void);
void close_opened(allocation_t *a);
/* Work of the device is held until it is let go, or takes its time. launch: fills memory behind what there is. */
void hold_work(bool on);
void hold_by(const char *file);
void work_takes(int ms);
int launch(uint64_t addr, uint64_t bytes, int value);
int waits_held(void);
void make_primary(int device);
void reset_primary(int device);
int current_device(void);

#define API __attribute__((visibility("default")))
#define SCRIPTED(call) \
	do { \
		int st_ = enter(call); \
		if (st_ != SUCCESS) \
			return st_; \
	} while (0)

#endif
