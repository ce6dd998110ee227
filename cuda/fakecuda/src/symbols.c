/* cuGetProcAddress: which function a name stands for, by the version that is asked for. The versions are those of cudaTypedefs.h, written
 * down a second time, so that a wrong one in the shim is found. */
#include "fake.h"

#include <dlfcn.h>
#include <string.h>

static const struct {
	const char *name, *symbol;
	int since;
} table[] = {
	{"cuInit", "cuInit", 2000},
	{"cuDriverGetVersion", "cuDriverGetVersion", 2020},
	{"cuDeviceGetCount", "cuDeviceGetCount", 2000},
	{"cuDeviceGet", "cuDeviceGet", 2000},
	{"cuDeviceGetAttribute", "cuDeviceGetAttribute", 2000},
	{"cuDevicePrimaryCtxGetState", "cuDevicePrimaryCtxGetState", 7000},
	{"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", 7000},
	{"cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2", 11000},
	{"cuCtxGetCurrent", "cuCtxGetCurrent", 4000},
	{"cuCtxPushCurrent", "cuCtxPushCurrent_v2", 4000},
	{"cuCtxPopCurrent", "cuCtxPopCurrent_v2", 4000},
	{"cuCtxGetFlags", "cuCtxGetFlags", 7000},
	{"cuCtxSetFlags", "cuCtxSetFlags", 12010},
	{"cuPointerGetAttributes", "cuPointerGetAttributes", 7000},
	{"cuPointerGetAttribute", "cuPointerGetAttribute", 4000},
	{"cuPointerSetAttribute", "cuPointerSetAttribute", 6000},
	{"cuMemRetainAllocationHandle", "cuMemRetainAllocationHandle", 11000},
	{"cuMemRelease", "cuMemRelease", 10020},
	{"cuMemGetHandleForAddressRange", "cuMemGetHandleForAddressRange", 11070},
	{"cuFlushGPUDirectRDMAWrites", "cuFlushGPUDirectRDMAWrites", 11030},
	{"cuMemAlloc", "cuMemAlloc_v2", 3020},
	{"cuMemFree", "cuMemFree_v2", 3020},
	{"cuMemcpyHtoD", "cuMemcpyHtoD_v2", 3020},
	{"cuMemcpyDtoH", "cuMemcpyDtoH_v2", 3020},
	{"cuMemsetD8", "cuMemsetD8_v2", 3020},
	{"cuMemcpyDtoDAsync", "cuMemcpyDtoDAsync_v2", 3020},
	{"cuIpcGetMemHandle", "cuIpcGetMemHandle", 4010},
	{"cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2", 11000},
	{"cuIpcCloseMemHandle", "cuIpcCloseMemHandle", 4010},
	{"cuStreamCreate", "cuStreamCreate", 2000},
	{"cuStreamDestroy", "cuStreamDestroy_v2", 4000},
	{"cuStreamWaitEvent", "cuStreamWaitEvent", 3020},
	{"cuEventCreate", "cuEventCreate", 2000},
	{"cuEventDestroy", "cuEventDestroy_v2", 4000},
	{"cuEventRecord", "cuEventRecord", 2000},
	{"cuEventQuery", "cuEventQuery", 2000},
};

enum { FOUND = 0, NO_SUCH = 1, TOO_OLD = 2, LEGACY_STREAM = 1 };

const char *call_name(int i)
{
	const int n = sizeof table / sizeof table[0];
	return i < n ? table[i].name : i == n ? "cuGetProcAddress" : NULL; /* by which the others are found */
}

API int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *found);
API int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *found)
{
	SCRIPTED("cuGetProcAddress");
	*out = NULL;
	*found = NO_SUCH;
	if (version > driver_version())
		return flags == LEGACY_STREAM ? SUCCESS : INVALID_VALUE;
	for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
		if (strcmp(table[i].name, name) != 0 || is_missing(name))
			continue;
		*found = version >= table[i].since ? FOUND : TOO_OLD;
		if (*found != FOUND)
			return SUCCESS;
		/* In this very library: another one of the process may have the same names. */
		Dl_info here;
		if (dladdr((void *)table, &here) == 0)
			return NOT_FOUND;
		void *self = dlopen(here.dli_fname, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
		*out = self != NULL ? dlsym(self, table[i].symbol) : NULL;
		if (self != NULL)
			dlclose(self);
	}
	return SUCCESS;
}
