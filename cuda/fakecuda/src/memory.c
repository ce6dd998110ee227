/* Memory. That of a device is a file without a name, mapped twice: where everybody sees its address without any right, so that who
 * touches it from the host falls, and where only the API knows it. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ARENA (4ull << 30)              /* addresses of a device; pages come when they are touched */
#define LIMIT (1ull << 30)

allocation_t *allocations;

static bool open_arena(device_t *d)
{
	if (d->base != 0)
		return true;
	int fd = memfd_create("fakecuda", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)ARENA) != 0)
		return false;
	uint8_t *at = mmap(NULL, ARENA + MAPPED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint8_t *shadow = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (at == MAP_FAILED || shadow == MAP_FAILED)
		return false;
	uint64_t base = ((uint64_t)(uintptr_t)at + MAPPED - 1) & ~(uint64_t)(MAPPED - 1);
	bool ok = mmap((void *)(uintptr_t)base, ARENA, PROT_NONE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0) != MAP_FAILED;
	if (ok) {
		d->base = base;
		d->shadow = shadow;
		d->fd = fd;
	} else {
		close(fd);
	}
	return ok;
}

void insert_allocation(allocation_t *a)
{
	allocation_t **before = &allocations;
	while (*before != NULL && (*before)->base < a->base)
		before = &(*before)->next;
	a->next = *before;
	*before = a;
}

void drop_allocation(allocation_t *a)
{
	allocation_t **at = &allocations;
	while (*at != a)
		at = &(*at)->next;
	*at = a->next;
	free(a);
}

int allocate(int device, int kind, uint64_t bytes, uint64_t piece, context_t *context, uint64_t *out)
{
	device_t *d = &devices[device];
	if (bytes == 0)
		return INVALID_VALUE;
	if (bytes > d->limit - d->used || !open_arena(d))
		return OUT_OF_MEMORY;
	uint64_t grain = kind == KIND_VMM ? MAPPED : GRAIN, at = d->base;
	for (allocation_t *a = allocations; a != NULL; a = a->next) { /* by address, so that a gap is seen */
		if (a->base >= at + bytes)
			break;
		if (a->base + a->bytes > at && a->device == device)
			at = (a->base + a->bytes + grain - 1) & ~(grain - 1);
	}
	if (at + bytes > d->base + ARENA)
		return OUT_OF_MEMORY;
	allocation_t *a = calloc(1, sizeof *a);
	if (a == NULL)
		return OUT_OF_MEMORY;
	*a = (allocation_t){.base = at, .bytes = bytes, .piece = piece != 0 ? piece : bytes, .device = device, .kind = kind,
	                    .rdma = kind != KIND_HOST && kind != KIND_MANAGED, .context = context, .shadow = d->shadow + (at - d->base)};
	insert_allocation(a);
	d->used += bytes;
	*out = at;
	return SUCCESS;
}

allocation_t *find_allocation(uint64_t addr)
{
	for (allocation_t *a = allocations; a != NULL; a = a->next) {
		if (addr >= a->base && addr < a->base + a->bytes)
			return a;
	}
	return NULL;
}

static bool mapped(const allocation_t *a, uint64_t addr)
{
	return a->hole_bytes == 0 || addr < a->hole || addr >= a->hole + a->hole_bytes;
}

uint8_t *shadow_of(uint64_t addr, uint64_t bytes)
{
	allocation_t *a = find_allocation(addr);
	if (a == NULL || bytes > a->base + a->bytes - addr || !mapped(a, addr) || (bytes > 0 && !mapped(a, addr + bytes - 1)))
		return NULL;
	return a->shadow + (addr - a->base);
}

void reset_memory(void)
{
	while (allocations != NULL) {
		allocation_t *a = allocations;
		allocations = a->next;
		if (a->opened > 0)
			close_opened(a);
		free(a);
	}
	for (int i = 0; i < DEVICES; i++) {
		devices[i].used = 0;
		devices[i].limit = LIMIT;
	}
}

API int cuMemAlloc_v2(uint64_t *out, size_t bytes);
API int cuMemAlloc_v2(uint64_t *out, size_t bytes)
{
	context_t *ctx;
	int st = enter_context("cuMemAlloc", &ctx);
	if (st != SUCCESS)
		return st;
	pthread_mutex_lock(&lock);
	st = allocate(ctx->device, KIND_DEVICE, bytes, 0, ctx, out);
	pthread_mutex_unlock(&lock);
	return st;
}

API int cuMemFree_v2(uint64_t addr);
API int cuMemFree_v2(uint64_t addr)
{
	context_t *ctx;
	int st = enter_context("cuMemFree", &ctx);
	if (st != SUCCESS)
		return st;
	pthread_mutex_lock(&lock);
	st = INVALID_VALUE;
	allocation_t *a = find_allocation(addr);
	if (a != NULL && a->base == addr && a->opened == 0) {
		devices[a->device].used -= a->bytes;
		drop_allocation(a);
		st = SUCCESS;
	}
	pthread_mutex_unlock(&lock);
	return st;
}

/* Copies under the lock what fill, copy in and copy out have in common. */
static int touch(uint64_t addr, uint64_t bytes, const void *from, void *to, int value)
{
	context_t *ctx;
	int st = current(&ctx);
	if (st != SUCCESS)
		return st;
	pthread_mutex_lock(&lock);
	uint8_t *at = shadow_of(addr, bytes);
	if (at == NULL)
		st = INVALID_VALUE;
	else if (from != NULL)
		memcpy(at, from, bytes);
	else if (to != NULL)
		memcpy(to, at, bytes);
	else
		memset(at, value, bytes);
	pthread_mutex_unlock(&lock);
	return st;
}

API int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes);
API int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes)
{
	SCRIPTED("cuMemcpyHtoD");
	return from == NULL ? INVALID_VALUE : touch(to, bytes, from, NULL, 0);
}

API int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes);
API int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes)
{
	SCRIPTED("cuMemcpyDtoH");
	return to == NULL ? INVALID_VALUE : touch(from, bytes, NULL, to, 0);
}

API int cuMemsetD8_v2(uint64_t addr, unsigned char value, size_t bytes);
API int cuMemsetD8_v2(uint64_t addr, unsigned char value, size_t bytes)
{
	SCRIPTED("cuMemsetD8");
	return touch(addr, bytes, NULL, NULL, value);
}

/* The handle of an allocation is its address. */
API int cuMemRetainAllocationHandle(uint64_t *out, void *addr);
API int cuMemRetainAllocationHandle(uint64_t *out, void *addr)
{
	SCRIPTED("cuMemRetainAllocationHandle");
	uint64_t at = (uint64_t)(uintptr_t)addr;
	pthread_mutex_lock(&lock);
	allocation_t *a = find_allocation(at);
	bool ok = a != NULL && a->kind == KIND_VMM && mapped(a, at);
	if (ok)
		*out = a->base;
	pthread_mutex_unlock(&lock);
	return ok ? SUCCESS : INVALID_VALUE;
}

API int cuMemRelease(uint64_t handle);
API int cuMemRelease(uint64_t handle)
{
	SCRIPTED("cuMemRelease");
	return handle != 0 ? SUCCESS : INVALID_VALUE;
}

API int cuMemGetHandleForAddressRange(void *handle, uint64_t addr, size_t bytes, int type, unsigned long long flags);
API int cuMemGetHandleForAddressRange(void *handle, uint64_t addr, size_t bytes, int type, unsigned long long flags)
{
	context_t *ctx;
	int st = enter_context("cuMemGetHandleForAddressRange", &ctx);
	if (st != SUCCESS)
		return st;
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	if (type != 1 || flags != 0 || bytes == 0 || (addr | bytes) & (page - 1))
		return INVALID_VALUE;
	pthread_mutex_lock(&lock);
	allocation_t *a = find_allocation(addr);
	if (a == NULL || addr + bytes > ((a->base + a->bytes + page - 1) & ~(page - 1)))
		st = INVALID_VALUE;
	else if (devices[a->device].attributes[124] == 0 || !a->rdma)
		st = NOT_SUPPORTED;
	pthread_mutex_unlock(&lock);
	if (st != SUCCESS)
		return st;
	int fd = memfd_create("fakecuda-dmabuf", MFD_CLOEXEC);
	if (fd < 0)
		return OUT_OF_MEMORY;
	*(int *)handle = fd;
	return SUCCESS;
}

API int cuFlushGPUDirectRDMAWrites(int target, int scope);
API int cuFlushGPUDirectRDMAWrites(int target, int scope)
{
	context_t *ctx;
	int st = enter_context("cuFlushGPUDirectRDMAWrites", &ctx);
	if (st != SUCCESS)
		return st;
	if (target != 0 || (scope != 100 && scope != 200))
		return INVALID_VALUE;
	return devices[ctx->device].attributes[117] & 1 ? SUCCESS : NOT_SUPPORTED;
}
