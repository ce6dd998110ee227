/* What the driver knows of an address, and what it does for NICs that reach it. */
#include "library.h"

#include <unistd.h>

/* Attributes that every kind of address has an answer for. */
static int32_t basics(library_t *l, uint64_t addr, kvlc_pointer_t *p, unsigned *type_out, int *ipc_out, int *pool_out, kvlc_fault_t *fault)
{
	unsigned type = 0, managed = 0, capable = 0, sync = 0;
	int device = -1;
	CUcontext ctx = NULL;
	void *pool = NULL;
	CUdeviceptr base = 0;
	size_t bytes = 0;
	int ipc = 0; /* the header says boolean; both an int and a byte fit into zeroed memory */
	int attributes[] = {
		CU_POINTER_ATTRIBUTE_MEMORY_TYPE,      CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
		CU_POINTER_ATTRIBUTE_CONTEXT,          CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
		CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,   CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
	};
	void *data[] = {&type, &managed, &device, &ctx, &base, &bytes, &pool, &ipc, &sync};
	_Static_assert(sizeof attributes / sizeof attributes[0] == sizeof data / sizeof data[0], "one place per attribute");
	CUresult r = l->api.cuPointerGetAttributes(sizeof data / sizeof data[0], attributes, data, addr);
	if (r == CUDA_ERROR_INVALID_CONTEXT) /* documented for an address of no context; others get zeros for it */
		type = 0, device = -1;
	else if (r != CUDA_SUCCESS)
		return kvlc_fault(fault, "cuPointerGetAttributes", r);
	int32_t st = KVLC_OK;
	if (type == CU_MEMORYTYPE_DEVICE) { /* not among those of cuPointerGetAttributes */
		st = CALL(l, fault, cuPointerGetAttribute, &capable, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, addr);
		if (st != KVLC_OK)
			return st;
	}
	p->device = type != 0 ? device : -1;
	p->base = p->mapping = base;
	p->bytes = p->mapping_bytes = bytes;
	p->rdma = capable != 0;
	p->context = ctx != NULL;
	p->sync = sync != 0;
	p->kind = managed ? KVLC_MANAGED : KVLC_UNKNOWN;
	*type_out = type;
	*ipc_out = ipc != 0;
	*pool_out = pool != NULL;
	return KVLC_OK;
}

/* Whether the address was mapped by cuMemMap: only of such memory there is an allocation to retain. */
static int is_vmm(library_t *l, uint64_t addr)
{
	CUmemGenericAllocationHandle handle;
	void *at = (void *)(uintptr_t)addr;
	if (l->api.cuMemRetainAllocationHandle(&handle, at) != CUDA_SUCCESS)
		return 0;
	(void)l->api.cuMemRelease(handle);
	return 1;
}

int32_t kvlc_pointer(int32_t library, uint64_t addr, kvlc_pointer_t *out, kvlc_fault_t *fault)
{
	library_t *l = kvlc_library(library);
	if (l == NULL)
		return KVLC_NO_DEVICE;
	kvlc_pointer_t p = {.device = -1};
	unsigned type = 0;
	int ipc = 0, pool = 0;
	int32_t st = basics(l, addr, &p, &type, &ipc, &pool, fault);
	if (st != KVLC_OK)
		return st;
	if (p.kind != KVLC_MANAGED && type == CU_MEMORYTYPE_HOST) {
		p.kind = KVLC_HOST;
	} else if (p.kind != KVLC_MANAGED && type == CU_MEMORYTYPE_DEVICE) {
		if (is_vmm(l, addr)) {
			/* The range is what was reserved; only what is mapped around the address can be touched. */
			p.kind = KVLC_VMM;
			CUdeviceptr base = 0;
			size_t bytes = 0;
			st = CALL(l, fault, cuPointerGetAttribute, &base, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, addr);
			if (st == KVLC_OK)
				st = CALL(l, fault, cuPointerGetAttribute, &bytes, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, addr);
			p.mapping = base;
			p.mapping_bytes = bytes;
		} else if (pool) {
			p.kind = KVLC_POOL;
		} else {
			p.kind = ipc ? KVLC_DEVICE : KVLC_IPC;
		}
	}
	if (st == KVLC_OK)
		*out = p;
	return st;
}

int32_t kvlc_sync_memops(int32_t library, int32_t device, uint64_t addr, kvlc_fault_t *fault)
{
	scope_t s;
	int32_t st = kvlc_begin(&s, library, device, fault);
	if (st != KVLC_OK)
		return st;
	unsigned on = 1, flags = 0;
	CUresult r = s.l->api.cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, addr);
	if (r != CUDA_ERROR_INVALID_VALUE && r != CUDA_ERROR_NOT_SUPPORTED)
		return kvlc_end(&s, kvlc_fault(fault, "cuPointerSetAttribute", r), fault);
	/* VMM and pools have no such attribute; the context has one for all its memory, with later drivers. */
	if (s.l->api.cuCtxSetFlags == NULL)
		return kvlc_end(&s, KVLC_NO_SYNC, fault);
	st = CALL(s.l, fault, cuCtxGetFlags, &flags);
	if (st == KVLC_OK && (flags & CU_CTX_SYNC_MEMOPS) == 0)
		st = CALL(s.l, fault, cuCtxSetFlags, flags | CU_CTX_SYNC_MEMOPS);
	return kvlc_end(&s, st, fault);
}

int32_t kvlc_export(int32_t library, int32_t device, uint64_t addr, uint64_t bytes, int32_t *fd_out, uint64_t *offset_out,
                    uint64_t *bytes_out, kvlc_fault_t *fault)
{
	/* The driver takes whole pages of the host only. What is added belongs to the same allocation, whose pages are larger. */
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t first = addr & ~(page - 1), end = (addr + bytes + page - 1) & ~(page - 1);
	scope_t s;
	int32_t st = kvlc_begin(&s, library, device, fault);
	if (st != KVLC_OK)
		return st;
	int fd = -1;
	st = CALL(s.l, fault, cuMemGetHandleForAddressRange, &fd, first, end - first, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
	if (st != KVLC_OK)
		return kvlc_end(&s, st, fault);
	*offset_out = addr - first;
	*bytes_out = end - first;
	HAND_OVER(fault, fd_out, fd, close(fd));
}

int32_t kvlc_flush(int32_t library, int32_t device, kvlc_fault_t *fault)
{
	WITHIN(fault, cuFlushGPUDirectRDMAWrites, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
}

int32_t kvlc_alloc(int32_t library, int32_t device, uint64_t bytes, uint64_t *addr_out, kvlc_fault_t *fault)
{
	scope_t s;
	int32_t st = kvlc_begin(&s, library, device, fault);
	if (st != KVLC_OK)
		return st;
	CUdeviceptr at = 0;
	st = CALL(s.l, fault, cuMemAlloc, &at, bytes);
	if (st != KVLC_OK)
		return kvlc_end(&s, st, fault);
	HAND_OVER(fault, addr_out, at, s.l->api.cuMemFree(at));
}

int32_t kvlc_free(int32_t library, int32_t device, uint64_t addr, kvlc_fault_t *fault)
{
	WITHIN(fault, cuMemFree, addr);
}

int32_t kvlc_copy_in(int32_t library, int32_t device, uint64_t to, const void *from, uint64_t bytes, kvlc_fault_t *fault)
{
	WITHIN(fault, cuMemcpyHtoD, to, from, bytes);
}

int32_t kvlc_copy_out(int32_t library, int32_t device, void *to, uint64_t from, uint64_t bytes, kvlc_fault_t *fault)
{
	WITHIN(fault, cuMemcpyDtoH, to, from, bytes);
}

int32_t kvlc_fill(int32_t library, int32_t device, uint64_t addr, uint8_t value, uint64_t bytes, kvlc_fault_t *fault)
{
	WITHIN(fault, cuMemsetD8, addr, value, bytes);
}
