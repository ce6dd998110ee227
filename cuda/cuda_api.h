/* The part of the CUDA driver API that kvlease uses, in own declarations.
 *
 * Names, numbers and signatures are those of NVIDIA's public header cuda.h (12.9) and of the "CUDA Driver API" reference; the
 * version behind each name is the one in which this signature came (cudaTypedefs.h), which cuGetProcAddress is asked for.
 */
#ifndef KVLEASE_CUDA_API_H
#define KVLEASE_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef uint64_t CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUevent_st *CUevent;
typedef struct CUstream_st *CUstream;
typedef struct {
	char reserved[64];
} CUipcMemHandle;

/* CUresult: those that the shim decides on. errors.go has the others. */
enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_NOT_SUPPORTED = 801,
};

/* CUpointer_attribute */
enum {
	CU_POINTER_ATTRIBUTE_CONTEXT = 1,
	CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
	CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
	CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
	CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
	CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
	CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
	CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
	CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15,
	CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
	CU_POINTER_ATTRIBUTE_MAPPING_SIZE = 18,
	CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR = 19,
};

/* CUmemorytype; 0 is what cuPointerGetAttributes leaves for an address that the driver does not know */
enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2 };

/* CUdevice_attribute */
enum {
	CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
	CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
	CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50,
	CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
	CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED = 116,
	CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS = 117,
	CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING = 118,
	CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124,
};

enum { CU_CTX_SYNC_MEMOPS = 0x80 };
enum { CU_EVENT_DISABLE_TIMING = 2 };
enum { CU_STREAM_NON_BLOCKING = 1 };
enum { CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX = 0, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER = 100 };
enum { CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1 };
enum { CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1 };
enum { CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1 };
enum { CU_GET_PROC_ADDRESS_SUCCESS = 0 };

/* What dlsym finds: the two that tell whether the others can be asked for. */
typedef CUresult (*cuDriverGetVersion_t)(int *version);
typedef CUresult (*cuGetProcAddress_t)(const char *symbol, void **at, int version, uint64_t flags, int *found);

/* X(name, version, arguments): what every driver from KVLC_DRIVER_MIN on has. */
#define CUDA_SYMBOLS(X) \
	X(cuInit, 2000, (unsigned flags)) \
	X(cuDeviceGetCount, 2000, (int *)) \
	X(cuDeviceGet, 2000, (CUdevice *, int ordinal)) \
	X(cuDeviceGetAttribute, 2000, (int *, int attribute, CUdevice)) \
	X(cuDevicePrimaryCtxGetState, 7000, (CUdevice, unsigned *flags, int *active)) \
	X(cuDevicePrimaryCtxRetain, 7000, (CUcontext *, CUdevice)) \
	X(cuDevicePrimaryCtxRelease, 11000, (CUdevice)) \
	X(cuCtxGetCurrent, 4000, (CUcontext *)) \
	X(cuCtxPushCurrent, 4000, (CUcontext)) \
	X(cuCtxPopCurrent, 4000, (CUcontext *)) \
	X(cuCtxGetFlags, 7000, (unsigned *)) \
	X(cuPointerGetAttributes, 7000, (unsigned n, int *attributes, void **data, CUdeviceptr)) \
	X(cuPointerGetAttribute, 4000, (void *data, int attribute, CUdeviceptr)) \
	X(cuPointerSetAttribute, 6000, (const void *value, int attribute, CUdeviceptr)) \
	X(cuMemRetainAllocationHandle, 11000, (CUmemGenericAllocationHandle *, void *addr)) \
	X(cuMemRelease, 10020, (CUmemGenericAllocationHandle)) \
	X(cuMemGetHandleForAddressRange, 11070, (void *handle, CUdeviceptr, size_t, int type, unsigned long long flags)) \
	X(cuFlushGPUDirectRDMAWrites, 11030, (int target, int scope)) \
	X(cuMemAlloc, 3020, (CUdeviceptr *, size_t)) \
	X(cuMemFree, 3020, (CUdeviceptr)) \
	X(cuMemcpyHtoD, 3020, (CUdeviceptr, const void *, size_t)) \
	X(cuMemcpyDtoH, 3020, (void *, CUdeviceptr, size_t)) \
	X(cuMemsetD8, 3020, (CUdeviceptr, unsigned char, size_t)) \
	X(cuMemcpyDtoDAsync, 3020, (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
	X(cuIpcGetMemHandle, 4010, (CUipcMemHandle *, CUdeviceptr)) \
	X(cuIpcOpenMemHandle, 11000, (CUdeviceptr *, CUipcMemHandle, unsigned flags)) \
	X(cuIpcCloseMemHandle, 4010, (CUdeviceptr)) \
	X(cuStreamCreate, 2000, (CUstream *, unsigned flags)) \
	X(cuStreamDestroy, 4000, (CUstream)) \
	X(cuStreamWaitEvent, 3020, (CUstream, CUevent, unsigned flags)) \
	X(cuEventCreate, 2000, (CUevent *, unsigned flags)) \
	X(cuEventDestroy, 4000, (CUevent)) \
	X(cuEventRecord, 2000, (CUevent, CUstream)) \
	X(cuEventQuery, 2000, (CUevent))

/* What newer drivers have; NULL otherwise. */
#define CUDA_SYMBOLS_LATER(X) X(cuCtxSetFlags, 12010, (unsigned))

typedef struct {
#define CUDA_FIELD(name, version, args) CUresult(*name) args;
	CUDA_SYMBOLS(CUDA_FIELD)
	CUDA_SYMBOLS_LATER(CUDA_FIELD)
#undef CUDA_FIELD
} cuda_api_t;

#endif
