/* The shim between Go and the CUDA driver. It translates; what a result means and what helps is decided in errors.go, once.
 *
 * Threads: any. A context is current per thread, so every call that needs one makes the device's primary context current on the
 * calling thread and gives the thread its own one back before it returns; kvlc_enter and kvlc_leave do so around calls of others.
 * Memory: nothing of Go's is kept; a call keeps no pointer.
 */
#ifndef KVLEASE_CUDA_SHIM_H
#define KVLEASE_CUDA_SHIM_H

#include <stddef.h>
#include <stdint.h>

/* Results; negative ones map to the errors of errors.go. */
enum {
	KVLC_OK = 0,
	KVLC_NOT_READY = 1,    /* an event has not fired */
	KVLC_CUDA = -1,        /* the driver refused: the fault says what */
	KVLC_NO_LIBRARY = -2,  /* the loader's words are in the text */
	KVLC_NO_SYMBOL = -3,   /* its name is the fault's call */
	KVLC_OLD_DRIVER = -4,  /* its version is the fault's code */
	KVLC_NO_CONTEXT = -5,  /* the engine has no primary context on the device */
	KVLC_NO_SYNC = -6,     /* neither the allocation nor, with this driver, the context can be told to synchronize */
	KVLC_NO_DEVICE = -7,   /* no such ordinal, or it was not retained */
	KVLC_FULL = -8,        /* KVLC_LIBRARIES_MAX are open */
};

enum {
	KVLC_DRIVER_MIN = 12000, /* as cuDriverGetVersion has it: cuGetProcAddress_v2 and the wheels of NIXL come with 12.0 */
	KVLC_DEVICES_MAX = 64,
	KVLC_LIBRARIES_MAX = 16,
};

/* Where the driver refused: the function without a version behind it, and its CUresult. */
typedef struct {
	int32_t code;
	char call[44];
} kvlc_fault_t;
_Static_assert(sizeof(kvlc_fault_t) == 48, "kvlc_fault_t");

/* Kinds of memory as the driver tells them apart. */
enum {
	KVLC_UNKNOWN = 0, /* the driver does not know the address: ordinary host memory, or nothing */
	KVLC_HOST = 1,    /* host memory that CUDA has allocated or registered */
	KVLC_DEVICE = 2,  /* cuMemAlloc */
	KVLC_MANAGED = 3, /* cuMemAllocManaged: its pages move */
	KVLC_VMM = 4,     /* cuMemCreate and cuMemMap */
	KVLC_POOL = 5,    /* cuMemAllocAsync, or a pool */
	KVLC_IPC = 6,     /* cuIpcOpenMemHandle: another process's; some drivers say so of their own cuMemAlloc, too */
};

typedef struct {
	uint64_t base, bytes;             /* the allocation; of VMM the reserved range */
	uint64_t mapping, mapping_bytes;  /* what is mapped around the address in one piece; else as base and bytes */
	int32_t device;                   /* ordinal; -1: none */
	uint8_t kind;
	uint8_t rdma;    /* memory that GPUDirect RDMA can take */
	uint8_t context; /* it was allocated in a context; 0: stream-ordered, VMM */
	uint8_t sync;    /* SYNC_MEMOPS is set on it */
} kvlc_pointer_t;
_Static_assert(sizeof(kvlc_pointer_t) == 40, "kvlc_pointer_t");

typedef struct {
	int32_t rdma;       /* GPUDirect RDMA */
	int32_t rdma_vmm;   /* also for VMM memory */
	int32_t flush;      /* CUflushGPUDirectRDMAWritesOptions: 1 from the host, 2 from a stream */
	int32_t ordering;   /* 0 none, 100 to the owner, 200 to all devices */
	int32_t dma_buf;
	int32_t domain, bus, slot; /* PCI */
} kvlc_features_t;

/* Opens file, asks its version and looks up every symbol, then calls cuInit, which makes no context. version_out as
 * cuDriverGetVersion has it. The same file opened twice is one library; it stays for the life of the process. */
int32_t kvlc_library_open(const char *file, int32_t *library_out, int32_t *version_out, kvlc_fault_t *fault, char *text, size_t text_cap);
/* The same for a library that somebody else has loaded into this process, without cuInit; KVLC_NO_LIBRARY: nobody has. */
int32_t kvlc_library_loaded(const char *file, int32_t *library_out, int32_t *version_out, kvlc_fault_t *fault);
int kvlc_library_file(int32_t library, char *out, size_t cap);
int kvlc_getenv(const char *name, char *out, size_t cap);
/* The i-th name that is looked up, or NULL past the end. */
const char *kvlc_symbol(uint32_t i);

int32_t kvlc_device_count(int32_t library, int32_t *count_out, kvlc_fault_t *fault);
int32_t kvlc_features(int32_t library, int32_t device, kvlc_features_t *out, kvlc_fault_t *fault);
/* What is free of the device's BAR1 window, in bytes, by the management library in file; the code of a fault is NVML's then.
 * KVLC_NO_DEVICE: it does not know the GPU. */
int32_t kvlc_bar1_free(const char *file, int32_t library, int32_t device, uint64_t *free_out, kvlc_fault_t *fault, char *text, size_t text_cap);
int32_t kvlc_pointer(int32_t library, uint64_t addr, kvlc_pointer_t *out, kvlc_fault_t *fault);

/* Keeps the primary context of a device alive, which the engine has made: KVLC_NO_CONTEXT if it has none. Counted: each retain
 * needs its release. A context that the engine makes between our look and our retain is the same one. */
int32_t kvlc_retain(int32_t library, int32_t device, kvlc_fault_t *fault);
/* The same for a process that is its own engine: the primary context is made if there is none. */
int32_t kvlc_make(int32_t library, int32_t device, kvlc_fault_t *fault);
int32_t kvlc_release(int32_t library, int32_t device, kvlc_fault_t *fault);

/* Makes a retained context current on this thread. *pushed_out: kvlc_leave is due; 0 if it was current already. */
int32_t kvlc_enter(int32_t library, int32_t device, int32_t *pushed_out, kvlc_fault_t *fault);
int32_t kvlc_leave(int32_t library, int32_t device, kvlc_fault_t *fault);

/* What follows needs a retained device. */

/* Copies that the driver calls synchronous really are, for memory that NICs read. */
int32_t kvlc_sync_memops(int32_t library, int32_t device, uint64_t addr, kvlc_fault_t *fault);
/* A descriptor of the host pages around [addr, addr+bytes). *offset_out: of addr in it; *bytes_out: its length. The caller closes it. */
int32_t kvlc_export(int32_t library, int32_t device, uint64_t addr, uint64_t bytes, int32_t *fd_out, uint64_t *offset_out,
                    uint64_t *bytes_out, kvlc_fault_t *fault);
/* What NICs have written is seen by the device's own work from here on. */
int32_t kvlc_flush(int32_t library, int32_t device, kvlc_fault_t *fault);

int32_t kvlc_alloc(int32_t library, int32_t device, uint64_t bytes, uint64_t *addr_out, kvlc_fault_t *fault);
int32_t kvlc_free(int32_t library, int32_t device, uint64_t addr, kvlc_fault_t *fault);
int32_t kvlc_copy_in(int32_t library, int32_t device, uint64_t to, const void *from, uint64_t bytes, kvlc_fault_t *fault);
int32_t kvlc_copy_out(int32_t library, int32_t device, void *to, uint64_t from, uint64_t bytes, kvlc_fault_t *fault);
int32_t kvlc_fill(int32_t library, int32_t device, uint64_t addr, uint8_t value, uint64_t bytes, kvlc_fault_t *fault);

/* A handle by which another process of this machine opens the allocation at addr, and where it begins there. */
typedef struct {
	char bytes[64]; /* CUipcMemHandle */
} kvlc_shared_t;
int32_t kvlc_share(int32_t library, int32_t device, uint64_t addr, kvlc_shared_t *out, kvlc_fault_t *fault);
int32_t kvlc_open_shared(int32_t library, int32_t device, const kvlc_shared_t *handle, uint64_t *base_out, kvlc_fault_t *fault);
int32_t kvlc_close_shared(int32_t library, int32_t device, uint64_t base, kvlc_fault_t *fault);

typedef struct {
	uint64_t to, from, bytes;
} kvlc_copy_t;
/* Puts n copies between device addresses into a stream, and event behind them. *begun_out: how many were begun, also after an error. */
int32_t kvlc_copies(int32_t library, int32_t device, uint64_t stream, const kvlc_copy_t *list, uint32_t n, uint64_t event, uint32_t *begun_out,
                    kvlc_fault_t *fault);

int32_t kvlc_stream(int32_t library, int32_t device, uint64_t *stream_out, kvlc_fault_t *fault);
int32_t kvlc_stream_end(int32_t library, int32_t device, uint64_t stream, kvlc_fault_t *fault);
int32_t kvlc_stream_wait(int32_t library, int32_t device, uint64_t stream, uint64_t event, kvlc_fault_t *fault);
int32_t kvlc_event(int32_t library, int32_t device, uint64_t *event_out, kvlc_fault_t *fault);
int32_t kvlc_event_end(int32_t library, int32_t device, uint64_t event, kvlc_fault_t *fault);
int32_t kvlc_event_record(int32_t library, int32_t device, uint64_t event, uint64_t stream, kvlc_fault_t *fault);
/* KVLC_OK: what the event captured is done; KVLC_NOT_READY. A handle that is none is undefined, as in CUDA. */
int32_t kvlc_event_query(int32_t library, int32_t device, uint64_t event, kvlc_fault_t *fault);

#endif
