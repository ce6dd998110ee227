/* How much of a device's BAR1 window is free: the one number that a registration needs and the CUDA driver does not tell. NVIDIA's
 * management library (NVML) does; names, layouts and numbers are those of its public header nvml.h. It is opened for the time of the
 * question: go-nvml, which cuda/fabric uses, leaves its functions to the loader, and the core is loaded with all of its symbols bound. */
#include "library.h"
#include "../cmd/libkvlease/src/whole.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef struct nvmlDevice_st *nvmlDevice_t;

typedef struct {
	char bus_id_legacy[16];
	unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
	char bus_id[32];
} nvmlPciInfo_t;
_Static_assert(sizeof(nvmlPciInfo_t) == 68, "nvmlPciInfo_t");

typedef struct {
	unsigned long long total, free, used;
} nvmlBAR1Memory_t;

#define NVML_SYMBOLS(X) \
	X(nvmlInit_v2, (void)) \
	X(nvmlShutdown, (void)) \
	X(nvmlDeviceGetCount_v2, (unsigned *)) \
	X(nvmlDeviceGetHandleByIndex_v2, (unsigned, nvmlDevice_t *)) \
	X(nvmlDeviceGetPciInfo_v3, (nvmlDevice_t, nvmlPciInfo_t *)) \
	X(nvmlDeviceGetBAR1MemoryInfo, (nvmlDevice_t, nvmlBAR1Memory_t *))

typedef struct {
#define NVML_FIELD(name, args) int(*name) args;
	NVML_SYMBOLS(NVML_FIELD)
#undef NVML_FIELD
} nvml_api_t;

/* Calls name of the table: KVLC_OK or KVLC_CUDA with a fault, whose code is an nvmlReturn_t. */
#define ASK(api, fault, name, ...) kvlc_fault(fault, #name, (api)->name(__VA_ARGS__))

enum { GPUS_MAX = 1024 }; /* more than any machine has: a count that is rubbish ends, too */

/* Goes through the GPUs, since CUDA and NVML number them differently. A lost one has no answers, and is passed over. */
static int32_t look(const nvml_api_t *api, const kvlc_features_t *f, uint64_t *free_out, kvlc_fault_t *fault)
{
	unsigned n = 0;
	int32_t st = ASK(api, fault, nvmlDeviceGetCount_v2, &n);
	if (st != KVLC_OK)
		return st;
	for (unsigned i = 0; i < n && i < GPUS_MAX; i++) {
		nvmlDevice_t device;
		nvmlPciInfo_t pci;
		if (api->nvmlDeviceGetHandleByIndex_v2(i, &device) != 0 || api->nvmlDeviceGetPciInfo_v3(device, &pci) != 0)
			continue;
		if (pci.domain != (unsigned)f->domain || pci.bus != (unsigned)f->bus || pci.device != (unsigned)f->slot)
			continue;
		nvmlBAR1Memory_t window;
		st = ASK(api, fault, nvmlDeviceGetBAR1MemoryInfo, device, &window);
		if (st == KVLC_OK)
			*free_out = window.free < window.total ? window.free : window.total; /* more cannot be free */
		return st;
	}
	return KVLC_NO_DEVICE;
}

int32_t kvlc_bar1_free(const char *file, int32_t library, int32_t device, uint64_t *free_out, kvlc_fault_t *fault, char *text, size_t text_cap)
{
	kvlc_features_t f;
	int32_t st = kvlc_features(library, device, &f, fault);
	if (st != KVLC_OK)
		return st;
	const char *why = kvl_unloadable(file);
	if (why != NULL) {
		snprintf(text, text_cap, "%s %s: install it again", file, why);
		return KVLC_NO_LIBRARY;
	}
	void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	if (handle == NULL) {
		snprintf(text, text_cap, "%s", dlerror());
		return KVLC_NO_LIBRARY;
	}
	nvml_api_t api;
	void *at;
#define NVML_LOOK_UP(name, args) \
	if ((at = dlsym(handle, #name)) == NULL) { \
		snprintf(fault->call, sizeof fault->call, "%s", #name); \
		dlclose(handle); \
		return KVLC_NO_SYMBOL; \
	} \
	memcpy(&api.name, &at, sizeof at);
	NVML_SYMBOLS(NVML_LOOK_UP)
#undef NVML_LOOK_UP
	st = ASK(&api, fault, nvmlInit_v2);
	if (st == KVLC_OK) {
		st = look(&api, &f, free_out, fault);
		api.nvmlShutdown(); /* counted: others of the process keep theirs */
	}
	dlclose(handle);
	return st;
}
