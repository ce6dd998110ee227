/* NVML's functions, as far as kvlease asks for them, answered from the script. Each one counts itself, fails when told to, and
 * answers UNINITIALIZED before nvmlInit_v2 and GPU_IS_LOST for a GPU that is gone, as the library does. */
#include "fake.h"

#include <stdio.h>
#include <string.h>

#define API __attribute__((visibility("default")))

typedef struct {
	char legacy[16];
	unsigned domain, bus, device, device_id, subsystem;
	char id[32];
} pci_t;

typedef struct {
	unsigned long long total, free, used;
} memory_t;

typedef struct {
	unsigned field, scope;
	long long timestamp, latency;
	int type, status;
	union {
		double d;
		unsigned u;
		unsigned long long ull;
	} value;
} field_t;

typedef struct {
	gpu_t *gpu;
	unsigned long long type, data;
	unsigned instance, compute;
} event_data_t;

/* nvmlEventTypeXidCriticalError, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION and NVML_VALUE_TYPE_UNSIGNED_INT */
enum { XID = 8, RECOVERY_ACTION = 230, UNSIGNED_INT = 1, NO_INSTANCE = -1 };

static int initialized;

/* Every call but nvmlInit and nvmlErrorString begins so. */
#define SCRIPTED(call) \
	do { \
		int st_ = enter(call); \
		if (st_ != OK) \
			return st_; \
		if (!initialized) \
			return UNINITIALIZED; \
	} while (0)

#define OF_GPU(call, gpu) \
	do { \
		SCRIPTED(call); \
		if ((gpu) == NULL || (gpu)->lost) \
			return (gpu) == NULL ? INVALID_ARGUMENT : GPU_IS_LOST; \
	} while (0)

API int nvmlInit_v2(void)
{
	int st = enter("Init_v2");
	initialized += st == OK;
	return st;
}

API int nvmlShutdown(void)
{
	SCRIPTED("Shutdown");
	initialized--;
	return OK;
}

API const char *nvmlErrorString(int status)
{
	static char other[32];
	switch (status) {
	case OK:
		return "Success";
	case UNINITIALIZED:
		return "Uninitialized";
	case INVALID_ARGUMENT:
		return "Invalid Argument";
	case NOT_SUPPORTED:
		return "Not Supported";
	case NO_PERMISSION:
		return "Insufficient Permissions";
	case NOT_FOUND:
		return "Not Found";
	case INSUFFICIENT_SIZE:
		return "Insufficient Size";
	case DRIVER_NOT_LOADED:
		return "Driver Not Loaded";
	case TIMEOUT:
		return "Timeout";
	case GPU_IS_LOST:
		return "GPU is lost";
	case RESET_REQUIRED:
		return "GPU requires reset";
	case LIB_RM_VERSION_MISMATCH:
		return "Driver/library version mismatch";
	case UNKNOWN:
		return "Unknown Error";
	}
	snprintf(other, sizeof other, "status %d", status);
	return other;
}

API int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
	SCRIPTED("SystemGetDriverVersion");
	if (strlen(driver) >= length)
		return INSUFFICIENT_SIZE;
	strcpy(version, driver);
	return OK;
}

API int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	SCRIPTED("SystemGetCudaDriverVersion_v2");
	*version = cuda;
	return OK;
}

API int nvmlDeviceGetCount_v2(unsigned *count)
{
	SCRIPTED("DeviceGetCount_v2");
	*count = gpu_count;
	return OK;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu_t **gpu)
{
	SCRIPTED("DeviceGetHandleByIndex_v2");
	if (index >= gpu_count || index >= GPUS || !gpus[index].there)
		return INVALID_ARGUMENT;
	if (gpus[index].lost)
		return GPU_IS_LOST;
	*gpu = &gpus[index];
	return OK;
}

static int copy(char *to, unsigned length, const char *from)
{
	if (strlen(from) >= length)
		return INSUFFICIENT_SIZE;
	strcpy(to, from);
	return OK;
}

API int nvmlDeviceGetName(gpu_t *gpu, char *name, unsigned length)
{
	OF_GPU("DeviceGetName", gpu);
	return copy(name, length, gpu->name);
}

API int nvmlDeviceGetUUID(gpu_t *gpu, char *uuid, unsigned length)
{
	OF_GPU("DeviceGetUUID", gpu);
	return copy(uuid, length, gpu->uuid);
}

API int nvmlDeviceGetPciInfo_v3(gpu_t *gpu, pci_t *pci)
{
	OF_GPU("DeviceGetPciInfo_v3", gpu);
	memset(pci, 0, sizeof *pci);
	if (sscanf(gpu->pci, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device) != 3)
		return UNKNOWN;
	snprintf(pci->id, sizeof pci->id, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
	snprintf(pci->legacy, sizeof pci->legacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0x1f);
	return OK;
}

API int nvmlDeviceGetMemoryInfo(gpu_t *gpu, memory_t *memory)
{
	OF_GPU("DeviceGetMemoryInfo", gpu);
	*memory = (memory_t){.total = gpu->memory, .free = gpu->memory - gpu->memory_used, .used = gpu->memory_used};
	return OK;
}

API int nvmlDeviceGetBAR1MemoryInfo(gpu_t *gpu, memory_t *memory)
{
	OF_GPU("DeviceGetBAR1MemoryInfo", gpu);
	*memory = (memory_t){.total = gpu->bar1, .free = gpu->bar1 - gpu->bar1_used, .used = gpu->bar1_used};
	return OK;
}

API int nvmlDeviceGetMigMode(gpu_t *gpu, unsigned *current, unsigned *pending)
{
	OF_GPU("DeviceGetMigMode", gpu);
	if (gpu->mig < 0)
		return NOT_SUPPORTED;
	*current = gpu->mig;
	*pending = gpu->mig_pending;
	return OK;
}

API int nvmlDeviceGetMaxMigDeviceCount(gpu_t *gpu, unsigned *count)
{
	OF_GPU("DeviceGetMaxMigDeviceCount", gpu);
	*count = gpu->mig < 0 ? 0 : part_count;
	return OK;
}

API int nvmlDeviceGetMigDeviceHandleByIndex(gpu_t *gpu, unsigned index, gpu_t **device)
{
	OF_GPU("DeviceGetMigDeviceHandleByIndex", gpu);
	if (gpu->mig < 0)
		return NOT_SUPPORTED;
	if (index >= part_count)
		return INVALID_ARGUMENT;
	gpu_t *at = &instances[gpu - gpus][index % INSTANCES];
	if (gpu->mig == 0 || index >= INSTANCES || !at->there)
		return NOT_FOUND;
	*device = at;
	return OK;
}

API int nvmlDeviceGetEccMode(gpu_t *gpu, int *current, int *pending)
{
	OF_GPU("DeviceGetEccMode", gpu);
	if (gpu->ecc < 0)
		return NOT_SUPPORTED;
	*current = gpu->ecc;
	*pending = gpu->ecc_pending;
	return OK;
}

API int nvmlDeviceGetTotalEccErrors(gpu_t *gpu, int kind, int counter, unsigned long long *count)
{
	OF_GPU("DeviceGetTotalEccErrors", gpu);
	if (gpu->ecc <= 0)
		return NOT_SUPPORTED;
	*count = kind == 1 && counter == 0 ? gpu->ecc_uncorrected : 0; /* uncorrected, volatile */
	return OK;
}

API int nvmlDeviceGetRemappedRows(gpu_t *gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
	OF_GPU("DeviceGetRemappedRows", gpu);
	*corrected = gpu->remap_corrected;
	*uncorrected = gpu->remap_uncorrected;
	*pending = gpu->remap_pending;
	*failed = gpu->remap_failed;
	return OK;
}

API int nvmlDeviceGetFieldValues(gpu_t *gpu, int n, field_t *fields)
{
	OF_GPU("DeviceGetFieldValues", gpu);
	for (int i = 0; i < n; i++) {
		fields[i].status = fields[i].field == RECOVERY_ACTION ? OK : NOT_SUPPORTED;
		fields[i].type = UNSIGNED_INT;
		fields[i].value.u = gpu->recovery;
	}
	return OK;
}

API int nvmlEventSetCreate(void **set)
{
	static int one;
	SCRIPTED("EventSetCreate");
	*set = &one;
	return OK;
}

API int nvmlEventSetFree(void *set)
{
	(void)set;
	SCRIPTED("EventSetFree");
	return OK;
}

API int nvmlDeviceRegisterEvents(gpu_t *gpu, unsigned long long types, void *set)
{
	(void)set;
	OF_GPU("DeviceRegisterEvents", gpu);
	return types == XID ? OK : NOT_SUPPORTED;
}

API int nvmlEventSetWait_v2(void *set, event_data_t *data, unsigned timeout_ms)
{
	(void)set;
	(void)timeout_ms; /* a script has no time: what it does not say never comes */
	SCRIPTED("EventSetWait_v2");
	pthread_mutex_lock(&lock);
	int st = event_count > 0 ? OK : TIMEOUT;
	if (st == OK) {
		*data = (event_data_t){.gpu = &gpus[events[0].gpu], .type = XID, .data = events[0].xid, .instance = NO_INSTANCE, .compute = NO_INSTANCE};
		memmove(events, events + 1, --event_count * sizeof events[0]);
	}
	pthread_mutex_unlock(&lock);
	return st;
}
