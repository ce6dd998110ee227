/* What the driver says of an address. */
#include "fake.h"

#include <string.h>

enum {
	CONTEXT = 1,
	MEMORY_TYPE = 2,
	SYNC_MEMOPS = 6,
	IS_MANAGED = 8,
	DEVICE_ORDINAL = 9,
	IPC_CAPABLE = 10,
	RANGE_START = 11,
	RANGE_SIZE = 12,
	RDMA_CAPABLE = 15,
	MEMPOOL = 17,
	MAPPING_SIZE = 18,
	MAPPING_BASE = 19,
};

static int put(void *to, const void *from, size_t n)
{
	memcpy(to, from, n);
	return SUCCESS;
}

/* One attribute of an address; of one that nobody knows the default, if there is one. Under the lock. */
static int attribute(const allocation_t *a, int which, uint64_t addr, void *out)
{
	const allocation_t none = {.device = -2};
	bool known = a != NULL;
	if (!known)
		a = &none;
	unsigned type = !known ? 0 : a->kind == KIND_HOST ? 1 : 2;
	unsigned managed = a->kind == KIND_MANAGED, sync = a->sync, rdma = a->rdma, capable = a->kind == KIND_DEVICE;
	uint64_t piece = a->piece != 0 ? (addr - a->base) / a->piece * a->piece : 0;
	uint64_t mapping = a->base + piece, left = a->bytes - piece, mapped = a->kind == KIND_VMM && left > a->piece ? a->piece : left;
	const void *pool = a->kind == KIND_POOL ? (const void *)a : NULL;
	switch (which) {
	case CONTEXT:
		return put(out, &a->context, sizeof a->context);
	case MEMORY_TYPE:
		return put(out, &type, sizeof type);
	case SYNC_MEMOPS:
		return put(out, &sync, sizeof sync);
	case IS_MANAGED:
		return put(out, &managed, sizeof managed);
	case DEVICE_ORDINAL:
		return put(out, &a->device, sizeof a->device);
	case IPC_CAPABLE:
		return put(out, &capable, sizeof capable);
	case RANGE_START:
		return put(out, &a->base, sizeof a->base);
	case RANGE_SIZE:
		return put(out, &a->bytes, sizeof a->bytes);
	case RDMA_CAPABLE:
		return put(out, &rdma, sizeof rdma);
	case MEMPOOL:
		return put(out, &pool, sizeof pool);
	case MAPPING_SIZE:
		return put(out, &mapped, sizeof mapped);
	case MAPPING_BASE:
		return put(out, &mapping, sizeof mapping);
	}
	return INVALID_VALUE;
}

/* Which of them cuPointerGetAttributes takes, as its documentation lists them. */
static bool is_listed(int which)
{
	return (which >= CONTEXT && which <= RANGE_SIZE) || which == MEMPOOL;
}

API int cuPointerGetAttributes(unsigned n, const int *which, void **out, uint64_t addr);
API int cuPointerGetAttributes(unsigned n, const int *which, void **out, uint64_t addr)
{
	SCRIPTED("cuPointerGetAttributes");
	int st = SUCCESS;
	pthread_mutex_lock(&lock);
	const allocation_t *a = find_allocation(addr);
	for (unsigned i = 0; i < n && st == SUCCESS; i++)
		st = is_listed(which[i]) ? attribute(a, which[i], addr, out[i]) : INVALID_VALUE;
	pthread_mutex_unlock(&lock);
	return st;
}

API int cuPointerGetAttribute(void *out, int which, uint64_t addr);
API int cuPointerGetAttribute(void *out, int which, uint64_t addr)
{
	SCRIPTED("cuPointerGetAttribute");
	pthread_mutex_lock(&lock);
	const allocation_t *a = find_allocation(addr);
	int st = a != NULL ? attribute(a, which, addr, out) : INVALID_VALUE;
	pthread_mutex_unlock(&lock);
	return st;
}

API int cuPointerSetAttribute(const void *value, int which, uint64_t addr);
API int cuPointerSetAttribute(const void *value, int which, uint64_t addr)
{
	context_t *ctx;
	int st = enter_context("cuPointerSetAttribute", &ctx);
	if (st != SUCCESS)
		return st;
	pthread_mutex_lock(&lock);
	allocation_t *a = find_allocation(addr);
	if (a == NULL || which != SYNC_MEMOPS || a->kind == KIND_VMM || a->kind == KIND_POOL)
		st = INVALID_VALUE;
	else
		a->sync = *(const unsigned *)value != 0;
	pthread_mutex_unlock(&lock);
	return st;
}
