/* Primary contexts: retained if the engine has made one, current for the time of a call. */
#include "library.h"

int32_t kvlc_device_count(int32_t library, int32_t *count_out, kvlc_fault_t *fault)
{
	library_t *l = kvlc_library(library);
	if (l == NULL)
		return KVLC_NO_DEVICE;
	int n = 0;
	int32_t st = CALL(l, fault, cuDeviceGetCount, &n);
	if (st == KVLC_OK)
		*count_out = n < KVLC_DEVICES_MAX ? n : KVLC_DEVICES_MAX;
	return st;
}

/* The driver's handle of an ordinal. */
static int32_t device_of(library_t *l, int32_t device, CUdevice *out, kvlc_fault_t *fault)
{
	int32_t n = 0;
	int32_t st = CALL(l, fault, cuDeviceGetCount, &n);
	if (st != KVLC_OK)
		return st;
	if (device < 0 || device >= n || device >= KVLC_DEVICES_MAX)
		return KVLC_NO_DEVICE;
	return CALL(l, fault, cuDeviceGet, out, device);
}

int32_t kvlc_features(int32_t library, int32_t device, kvlc_features_t *out, kvlc_fault_t *fault)
{
	library_t *l = kvlc_library(library);
	CUdevice d;
	int32_t st = l == NULL ? KVLC_NO_DEVICE : device_of(l, device, &d, fault);
	if (st != KVLC_OK)
		return st;
	kvlc_features_t f;
	const struct {
		int attribute;
		int32_t *to;
	} want[] = {
		{CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, &f.rdma},
		{CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, &f.rdma_vmm},
		{CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, &f.flush},
		{CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, &f.ordering},
		{CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, &f.dma_buf},
		{CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, &f.domain},
		{CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, &f.bus},
		{CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, &f.slot},
	};
	for (size_t i = 0; st == KVLC_OK && i < sizeof want / sizeof want[0]; i++)
		st = CALL(l, fault, cuDeviceGetAttribute, want[i].to, want[i].attribute, d);
	if (st == KVLC_OK)
		*out = f;
	return st;
}

/* make: also where there is no context yet. */
static int32_t retain(int32_t library, int32_t device, int make, kvlc_fault_t *fault)
{
	library_t *l = kvlc_library(library);
	CUdevice d;
	int32_t st = l == NULL ? KVLC_NO_DEVICE : device_of(l, device, &d, fault);
	if (st != KVLC_OK)
		return st;
	pthread_mutex_lock(&l->lock);
	if (l->retained[device] > 0) {
		l->retained[device]++;
	} else {
		/* Retain would make a context where there is none: some hundred MiB of the device, with flags that are not the engine's. */
		unsigned flags;
		int active = 0;
		st = CALL(l, fault, cuDevicePrimaryCtxGetState, d, &flags, &active);
		if (st == KVLC_OK && !active && !make)
			st = KVLC_NO_CONTEXT;
		CUcontext ctx = NULL;
		if (st == KVLC_OK)
			st = CALL(l, fault, cuDevicePrimaryCtxRetain, &ctx, d);
		if (st == KVLC_OK) {
			__atomic_store_n(&l->contexts[device], ctx, __ATOMIC_RELAXED);
			l->devices[device] = d;
			l->retained[device] = 1;
		}
	}
	pthread_mutex_unlock(&l->lock);
	return st;
}

int32_t kvlc_retain(int32_t library, int32_t device, kvlc_fault_t *fault) { return retain(library, device, 0, fault); }

int32_t kvlc_make(int32_t library, int32_t device, kvlc_fault_t *fault) { return retain(library, device, 1, fault); }

int32_t kvlc_release(int32_t library, int32_t device, kvlc_fault_t *fault)
{
	library_t *l = kvlc_library(library);
	if (l == NULL || device < 0 || device >= KVLC_DEVICES_MAX)
		return KVLC_NO_DEVICE;
	int32_t st = KVLC_OK;
	pthread_mutex_lock(&l->lock);
	if (l->retained[device] == 0) {
		st = KVLC_NO_DEVICE;
	} else if (--l->retained[device] == 0) {
		__atomic_store_n(&l->contexts[device], NULL, __ATOMIC_RELAXED);
		st = CALL(l, fault, cuDevicePrimaryCtxRelease, l->devices[device]); /* of a lost device it fails, and there is nothing to keep */
	}
	pthread_mutex_unlock(&l->lock);
	return st;
}

/* Makes a retained context current on this thread, unless it is. */
static int32_t push(library_t *l, int32_t device, int32_t *pushed_out, kvlc_fault_t *fault)
{
	*pushed_out = 0;
	CUcontext own = NULL, now = NULL;
	if (l != NULL && device >= 0 && device < KVLC_DEVICES_MAX)
		own = __atomic_load_n(&l->contexts[device], __ATOMIC_RELAXED);
	if (own == NULL)
		return KVLC_NO_DEVICE;
	int32_t st = CALL(l, fault, cuCtxGetCurrent, &now);
	if (st != KVLC_OK || now == own)
		return st;
	st = CALL(l, fault, cuCtxPushCurrent, own);
	*pushed_out = st == KVLC_OK;
	return st;
}

int32_t kvlc_enter(int32_t library, int32_t device, int32_t *pushed_out, kvlc_fault_t *fault)
{
	return push(kvlc_library(library), device, pushed_out, fault);
}

/* Takes a device's context, which push has made current, off this thread again. The driver documents that the answer may be of earlier work that
 * has failed, so a refusal may have taken it off or not. push makes current only what was not: where it is current still, it is ours to take. */
static int32_t pop(library_t *l, int32_t device, kvlc_fault_t *fault)
{
	CUcontext ours, now = NULL;
	int32_t st = CALL(l, fault, cuCtxPopCurrent, &ours);
	if (st != KVLC_OK && l->api.cuCtxGetCurrent(&now) == CUDA_SUCCESS && now != NULL && now == __atomic_load_n(&l->contexts[device], __ATOMIC_RELAXED))
		(void)l->api.cuCtxPopCurrent(&ours); /* the first failure is the one to tell */
	return st;
}

int32_t kvlc_leave(int32_t library, int32_t device, kvlc_fault_t *fault)
{
	library_t *l = kvlc_library(library);
	return l == NULL || device < 0 || device >= KVLC_DEVICES_MAX ? KVLC_NO_DEVICE : pop(l, device, fault);
}

int32_t kvlc_begin(scope_t *s, int32_t library, int32_t device, kvlc_fault_t *fault)
{
	s->l = kvlc_library(library);
	s->device = device;
	return push(s->l, device, &s->pushed, fault);
}

int32_t kvlc_end(scope_t *s, int32_t st, kvlc_fault_t *fault)
{
	if (!s->pushed)
		return st;
	kvlc_fault_t second;
	int32_t popped = pop(s->l, s->device, st < 0 ? &second : fault);
	return st < 0 ? st : popped < 0 ? popped : st; /* the first failure is the one to tell */
}
