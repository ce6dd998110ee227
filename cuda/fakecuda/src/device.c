/* Devices and contexts: which one is current is a stack of each thread. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

device_t devices[DEVICES];
int devices_n;

static pid_t begun; /* who called cuInit: a forked child may not go on */
static __thread context_t *stack[STACK];
static __thread int depth;

void make_primary(int device)
{
	device_t *d = &devices[device];
	if (d->primary == NULL) {
		d->primary = calloc(1, sizeof *d->primary); /* never freed: threads may hold it */
		d->primary->device = device;
	}
}

void reset_primary(int device)
{
	device_t *d = &devices[device];
	if (d->primary != NULL)
		d->primary->destroyed = true;
	d->primary = NULL;
}

static int initialized(void)
{
	pthread_mutex_lock(&lock);
	int st = begun == getpid() ? SUCCESS : NOT_INITIALIZED;
	pthread_mutex_unlock(&lock);
	return st;
}

/* The script has its say first, then whether cuInit was called. */
#define BEGUN(call) \
	do { \
		SCRIPTED(call); \
		int begun_ = initialized(); \
		if (begun_ != SUCCESS) \
			return begun_; \
	} while (0)

int current(context_t **out)
{
	int st = initialized();
	if (st != SUCCESS)
		return st;
	if (depth == 0 || stack[depth - 1] == NULL)
		return INVALID_CONTEXT;
	pthread_mutex_lock(&lock);
	*out = stack[depth - 1];
	st = (*out)->destroyed ? CONTEXT_IS_DESTROYED : devices[(*out)->device].lost;
	pthread_mutex_unlock(&lock);
	return st;
}

int enter_context(const char *call, context_t **out)
{
	SCRIPTED(call);
	return current(out);
}

API int cuInit(unsigned flags);
API int cuInit(unsigned flags)
{
	SCRIPTED("cuInit");
	pthread_mutex_lock(&lock);
	if (begun == 0)
		begun = getpid();
	int st = flags == 0 ? (begun == getpid() ? SUCCESS : NOT_INITIALIZED) : INVALID_VALUE;
	pthread_mutex_unlock(&lock);
	return st;
}

API int cuDriverGetVersion(int *out);
API int cuDriverGetVersion(int *out)
{
	SCRIPTED("cuDriverGetVersion");
	*out = driver_version();
	return SUCCESS;
}

API int cuDeviceGetCount(int *out);
API int cuDeviceGetCount(int *out)
{
	BEGUN("cuDeviceGetCount");
	*out = devices_n;
	return SUCCESS;
}

API int cuDeviceGet(int *out, int ordinal);
API int cuDeviceGet(int *out, int ordinal)
{
	BEGUN("cuDeviceGet");
	if (ordinal < 0 || ordinal >= devices_n)
		return INVALID_DEVICE;
	*out = ordinal;
	return SUCCESS;
}

API int cuDeviceGetAttribute(int *out, int attribute, int device);
API int cuDeviceGetAttribute(int *out, int attribute, int device)
{
	BEGUN("cuDeviceGetAttribute");
	if (device < 0 || device >= devices_n)
		return INVALID_DEVICE;
	if (attribute < 1 || attribute >= ATTRIBUTES)
		return INVALID_VALUE;
	*out = devices[device].attributes[attribute];
	return SUCCESS;
}

API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active);
API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
	BEGUN("cuDevicePrimaryCtxGetState");
	if (device < 0 || device >= devices_n)
		return INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	*active = devices[device].primary != NULL;
	*flags = *active ? devices[device].primary->flags : 0;
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

API int cuDevicePrimaryCtxRetain(context_t **out, int device);
API int cuDevicePrimaryCtxRetain(context_t **out, int device)
{
	BEGUN("cuDevicePrimaryCtxRetain");
	if (device < 0 || device >= devices_n)
		return INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	int st = devices[device].lost;
	if (st == SUCCESS) {
		make_primary(device);
		devices[device].retains++;
		*out = devices[device].primary;
	}
	pthread_mutex_unlock(&lock);
	return st;
}

API int cuDevicePrimaryCtxRelease_v2(int device);
API int cuDevicePrimaryCtxRelease_v2(int device)
{
	BEGUN("cuDevicePrimaryCtxRelease");
	if (device < 0 || device >= devices_n)
		return INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	device_t *d = &devices[device];
	int st = d->retains > 0 ? d->lost : INVALID_CONTEXT;
	if (d->retains > 0 && --d->retains == 0)
		reset_primary(device);
	pthread_mutex_unlock(&lock);
	return st;
}

API int cuCtxGetCurrent(context_t **out);
API int cuCtxGetCurrent(context_t **out)
{
	BEGUN("cuCtxGetCurrent");
	*out = depth > 0 ? stack[depth - 1] : NULL;
	return SUCCESS;
}

API int cuCtxPushCurrent_v2(context_t *ctx);
API int cuCtxPushCurrent_v2(context_t *ctx)
{
	BEGUN("cuCtxPushCurrent");
	if (ctx == NULL)
		return INVALID_CONTEXT;
	pthread_mutex_lock(&lock);
	bool destroyed = ctx->destroyed;
	pthread_mutex_unlock(&lock);
	if (destroyed)
		return CONTEXT_IS_DESTROYED;
	if (depth == STACK)
		return INVALID_VALUE;
	stack[depth++] = ctx;
	return SUCCESS;
}

API int cuCtxPopCurrent_v2(context_t **out);
API int cuCtxPopCurrent_v2(context_t **out)
{
	BEGUN("cuCtxPopCurrent");
	if (depth == 0)
		return INVALID_CONTEXT;
	context_t *ctx = stack[--depth];
	if (out != NULL)
		*out = ctx;
	return SUCCESS;
}

API int cuCtxGetFlags(unsigned *out);
API int cuCtxGetFlags(unsigned *out)
{
	context_t *ctx;
	int st = enter_context("cuCtxGetFlags", &ctx);
	if (st == SUCCESS)
		*out = ctx->flags;
	return st;
}

API int cuCtxSetFlags(unsigned flags);
API int cuCtxSetFlags(unsigned flags)
{
	context_t *ctx;
	int st = enter_context("cuCtxSetFlags", &ctx);
	if (st == SUCCESS)
		ctx->flags = flags;
	return st;
}

int current_device(void)
{
	return depth > 0 && stack[depth - 1] != NULL ? stack[depth - 1]->device : 99;
}
