/* The script of the fake: what it is told to do by kvl_fake_nvml_control, or at first use by KVL_FAKE_NVML (commands split by ';').
 *
 *   driver VERSION CUDA      of the kernel module, and the CUDA version it serves as NVML has it: 12040 for 12.4
 *   gpu I PCI NAME           GPU I is there, healthy; '_' in NAME stands for a space
 *   memory I TOTAL USED      bytes
 *   bar1 I TOTAL USED        bytes
 *   mig I CURRENT PENDING    1, 0, or -1: a GPU without it
 *   instance I K NAME BYTES  the K-th MIG device of GPU I, with its memory
 *   ecc I CURRENT PENDING N  as mig, and N uncorrected errors since the driver was loaded
 *   remap I CORRECTED UNCORRECTED PENDING FAILED
 *   recovery I N             nvmlDeviceGpuRecoveryAction_t
 *   xid I CODE               the next event of GPU I
 *   counts GPUS PARTS        the numbers that it tells of GPUs and of a GPU's MIG devices, whatever is there; PARTS 0: the right one
 *   lost I 1|0               GPU I has fallen off the bus
 *   fail CALL N STATUS       the N-th call of CALL from now answers STATUS and does nothing; CALL is the symbol without nvml
 *   slow CALL MS             CALL takes MS longer
 *   count CALL               returns how often CALL was entered
 *   reset                    forgets every command and counter
 */
#include "../../../internal/fakelib/script.h"
#include "fake.h"

#include <time.h>

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
gpu_t gpus[GPUS];
gpu_t instances[GPUS][INSTANCES];
unsigned gpu_count;
unsigned part_count = INSTANCES;
char driver[NAME] = "550.54.15";
int cuda = 12040;
event_t events[EVENTS];
int event_count;

static void forget(void)
{
	memset(gpus, 0, sizeof gpus);
	memset(instances, 0, sizeof instances);
	gpu_count = 0;
	part_count = INSTANCES;
	event_count = 0;
	script_forget();
	snprintf(driver, sizeof driver, "550.54.15");
	cuda = 12040;
}

/* '_' stands for a space. */
static void set_name(gpu_t *g, const char *name)
{
	snprintf(g->name, sizeof g->name, "%s", name);
	for (char *c = g->name; *c != 0; c++)
		*c = *c == '_' ? ' ' : *c;
}

static int add_instance(int i, int k, const char *name, uint64_t memory)
{
	if (k < 0 || k >= INSTANCES)
		return -1;
	gpu_t *g = &instances[i][k];
	*g = (gpu_t){.there = true, .mig = -1, .ecc = -1, .memory = memory};
	set_name(g, name);
	snprintf(g->uuid, sizeof g->uuid, "MIG-%08x-0000-0000-%04x-%012x", 0xfa4eu, (unsigned)k, (unsigned)i);
	return 0;
}

static int add_gpu(int i, const char *pci, const char *name)
{
	gpu_t *g = &gpus[i];
	*g = (gpu_t){.there = true, .mig = -1, .mig_pending = -1, .ecc = 1, .ecc_pending = 1, .memory = 1ull << 30, .bar1 = 1ull << 30};
	snprintf(g->pci, sizeof g->pci, "%.31s", pci);
	set_name(g, name);
	snprintf(g->uuid, sizeof g->uuid, "GPU-%08x-0000-0000-0000-%012x", 0xfa4eu, (unsigned)i);
	if ((unsigned)i >= gpu_count)
		gpu_count = i + 1;
	return 0;
}

/* What a command says of a GPU that is there. */
static int tell(gpu_t *g, int i, const char *word, const long long v[4])
{
	if (strcmp(word, "memory") == 0) {
		g->memory = v[0];
		g->memory_used = v[1];
	} else if (strcmp(word, "bar1") == 0) {
		g->bar1 = v[0];
		g->bar1_used = v[1];
	} else if (strcmp(word, "mig") == 0) {
		g->mig = v[0];
		g->mig_pending = v[1];
	} else if (strcmp(word, "ecc") == 0) {
		g->ecc = v[0];
		g->ecc_pending = v[1];
		g->ecc_uncorrected = v[2];
	} else if (strcmp(word, "remap") == 0) {
		g->remap_corrected = v[0];
		g->remap_uncorrected = v[1];
		g->remap_pending = v[2];
		g->remap_failed = v[3];
	} else if (strcmp(word, "recovery") == 0) {
		g->recovery = v[0];
	} else if (strcmp(word, "lost") == 0) {
		g->lost = v[0] != 0;
	} else if (strcmp(word, "xid") == 0 && event_count < EVENTS) {
		events[event_count++] = (event_t){.gpu = i, .xid = v[0]};
	} else {
		return -1;
	}
	return 0;
}

static const char *script_known(int i)
{
	static const char *const names[] = {
		"DeviceGetBAR1MemoryInfo", "DeviceGetCount_v2", "DeviceGetEccMode", "DeviceGetFieldValues", "DeviceGetHandleByIndex_v2",
		"DeviceGetMaxMigDeviceCount", "DeviceGetMemoryInfo", "DeviceGetMigDeviceHandleByIndex", "DeviceGetMigMode", "DeviceGetName",
		"DeviceGetPciInfo_v3", "DeviceGetRemappedRows", "DeviceGetTotalEccErrors", "DeviceGetUUID", "DeviceRegisterEvents",
		"EventSetCreate", "EventSetFree", "EventSetWait_v2", "Init_v2", "Shutdown", "SystemGetCudaDriverVersion_v2",
		"SystemGetDriverVersion", NULL,
	};
	return names[i];
}

static int command(const char *line)
{
	char word[32] = "", a[NAME] = "", b[NAME] = "", c[NAME] = "", d[32] = "", e[32] = "";
	if (sscanf(line, "%31s %95s %95s %95s %31s %31s", word, a, b, c, d, e) < 1)
		return 0;
	if (strcmp(word, "driver") == 0) {
		snprintf(driver, sizeof driver, "%s", a);
		cuda = atoi(b);
		return 0;
	}
	if (strcmp(word, "counts") == 0) {
		gpu_count = strtoul(a, NULL, 10);
		part_count = atoi(b) == 0 ? INSTANCES : strtoul(b, NULL, 10);
		return 0;
	}
	int answer;
	if (script_common(word, a, b, c, &answer))
		return answer;
	if (strcmp(word, "slow") == 0) {
		script_call(a)->slow_ms = atoi(b);
		return 0;
	}
	if (strcmp(word, "reset") == 0) {
		forget();
		return 0;
	}
	int i = atoi(a);
	if (i < 0 || i >= GPUS)
		return -1;
	if (strcmp(word, "gpu") == 0)
		return add_gpu(i, b, c);
	if (!gpus[i].there)
		return -1;
	if (strcmp(word, "instance") == 0)
		return add_instance(i, atoi(b), c, strtoull(d, NULL, 10));
	return tell(&gpus[i], i, word, (long long[4]){atoll(b), atoll(c), atoll(d), atoll(e)});
}

static void read_environment(void)
{
	if (script_begin())
		script_read("KVL_FAKE_NVML", command);
}

int kvl_fake_nvml_control(const char *line);
int kvl_fake_nvml_control(const char *line)
{
	pthread_mutex_lock(&lock);
	read_environment();
	int r = command(line);
	pthread_mutex_unlock(&lock);
	return r;
}

int enter(const char *call)
{
	pthread_mutex_lock(&lock);
	read_environment();
	int st = script_enter(call), slow = script_call(call)->slow_ms;
	pthread_mutex_unlock(&lock);
	if (slow > 0)
		nanosleep(&(struct timespec){.tv_sec = slow / 1000, .tv_nsec = slow % 1000 * 1000000l}, NULL);
	return st;
}
