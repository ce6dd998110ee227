/* The script of the fake: what it is told to do by kvl_fake_cuda_control, or at first use by KVL_FAKE_CUDA (commands split by ';').
 * Names of calls have no version behind them; codes are CUresults. A command in KVL_FAKE_CUDA that is not understood ends the process.
 *
 *   fail CALL N CODE          the N-th call of CALL from now answers CODE and does nothing
 *   count CALL                returns how often CALL was entered
 *   gate CALL 1|0             CALL waits (at most 20 s) while its gate is closed
 *   slow CALL MS              CALL takes MS longer
 *   version N                 of the driver, as cuDriverGetVersion gives it
 *   missing SYMBOL            the driver has no such function
 *   devices N                 how many there are
 *   attribute DEV A VALUE     attribute A of a device
 *   memory DEV BYTES          what a device has in all
 *   engine DEV 1|0            the engine makes the primary context of a device, or gives up its own hold of it
 *   destroy DEV               somebody resets the primary context
 *   active DEV                returns whether the primary context is there
 *   retains DEV               returns how often it is held
 *   flags DEV                 returns the flags of the primary context
 *   lost DEV CODE             the device has died: its calls answer CODE; 0: it works again
 *   dies DEV CALL N CODE      the same, from the N-th call of CALL on
 *   alloc KIND DEV BYTES [PIECE]  memory that others made: host device managed vmm pool ipc; vmm is mapped in pieces. Returns how
 *                             many times 512 bytes it is behind the device's first address
 *   base DEV                  returns that address in units of 2 MiB
 *   current                   returns the device whose context is current on this thread, and 99 without one
 *   rdma ADDR 1|0             whether GPUDirect RDMA can take an allocation
 *   hole ADDR BYTES           that part of a vmm range is not mapped
 *   synced ADDR               returns whether SYNC_MEMOPS is set
 *   byte ADDR                 returns a byte of device memory
 *   hold 1|0                  work of the devices stands still; 0: all that was held is done
 *   held FILE                 the same while there is such a file
 *   work MS                   work of the devices takes so long from now on
 *   launch ADDR BYTES VALUE   a kernel that fills memory
 *   waits                     returns how many streams wait for an event that was held when they were told to
 *   reset                     as it was when it was loaded
 */
#include "../../../internal/fakelib/script.h"
#include "fake.h"

#include <time.h>

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

enum { NAME = 64, MISSING = 8, VERSION = 12080 };
static char missing[MISSING][NAME];
static int missing_n, version = VERSION;
static struct {
	char call[NAME];
	int device, left, code;
} dies;

/* H200-like: a card with GPUDirect RDMA, dma-buf and ordered writes. */
static void reset_devices(void)
{
	devices_n = 2;
	for (int i = 0; i < DEVICES; i++) {
		device_t *d = &devices[i];
		if (d->primary != NULL)
			d->primary->destroyed = true;
		d->primary = NULL;
		d->retains = d->lost = 0;
		memset(d->attributes, 0, sizeof d->attributes);
		d->attributes[33] = 0x1b + i; /* PCI bus */
		d->attributes[110] = 1;       /* GPUDirect RDMA with VMM */
		d->attributes[116] = 1;       /* GPUDirect RDMA */
		d->attributes[117] = 1;       /* flush from the host */
		d->attributes[118] = 100;     /* writes are ordered for the owner */
		d->attributes[124] = 1;       /* dma-buf */
	}
}

static int kind_of(const char *name)
{
	static const char *const names[] = {"", "host", "device", "managed", "vmm", "pool", "ipc"};
	for (int i = 1; i < (int)(sizeof names / sizeof names[0]); i++) {
		if (strcmp(names[i], name) == 0)
			return i;
	}
	return -1;
}

static int of_device(const char *word, int dev, const char *b, const char *c, const char *e)
{
	if (dev < 0 || dev >= DEVICES)
		return -1;
	device_t *d = &devices[dev];
	if (strcmp(word, "engine") == 0) {
		if (atoi(b) != 0)
			make_primary(dev), d->retains++;
		else if (d->retains > 0 && --d->retains == 0)
			reset_primary(dev);
	} else if (strcmp(word, "destroy") == 0) {
		d->retains = 0;
		reset_primary(dev);
	} else if (strcmp(word, "active") == 0) {
		return d->primary != NULL;
	} else if (strcmp(word, "retains") == 0) {
		return d->retains;
	} else if (strcmp(word, "flags") == 0) {
		return d->primary != NULL ? (int)d->primary->flags : -1;
	} else if (strcmp(word, "base") == 0) {
		return (int)(d->base / MAPPED);
	} else if (strcmp(word, "lost") == 0) {
		d->lost = atoi(b);
	} else if (strcmp(word, "dies") == 0) {
		snprintf(dies.call, sizeof dies.call, "%s", b);
		dies.device = dev;
		dies.left = atoi(c);
		dies.code = atoi(e);
	} else if (strcmp(word, "memory") == 0) {
		d->limit = strtoull(b, NULL, 0);
	} else if (strcmp(word, "attribute") == 0 && atoi(b) >= 0 && atoi(b) < ATTRIBUTES) {
		d->attributes[atoi(b)] = atoi(c);
	} else {
		return -1;
	}
	return 0;
}

static int of_address(const char *word, uint64_t addr, const char *b, const char *c)
{
	if (strcmp(word, "launch") == 0)
		return launch(addr, strtoull(b, NULL, 0), atoi(c));
	allocation_t *a = find_allocation(addr);
	if (a == NULL)
		return -1;
	if (strcmp(word, "rdma") == 0) {
		a->rdma = atoi(b) != 0;
	} else if (strcmp(word, "hole") == 0) {
		a->hole = addr;
		a->hole_bytes = strtoull(b, NULL, 0);
	} else if (strcmp(word, "synced") == 0) {
		return a->sync;
	} else if (strcmp(word, "byte") == 0) {
		uint8_t *at = shadow_of(addr, 1);
		return at != NULL ? *at : -1;
	} else {
		return -1;
	}
	return 0;
}

static void reset(void)
{
	script_forget();
	missing_n = dies.left = 0;
	version = VERSION;
	reset_work();
	reset_memory();
	reset_devices();
}

static const char *script_known(int i) { return call_name(i); }

static int command(const char *line)
{
	char word[16] = "", a[NAME] = "", b[NAME] = "", c[NAME] = "", e[NAME] = "";
	if (sscanf(line, "%15s %63s %63s %63s %63s", word, a, b, c, e) < 1)
		return 0;
	int answer;
	if (script_common(word, a, b, c, &answer))
		return answer;
	if ((strcmp(word, "missing") == 0 && script_slip(a)) || (strcmp(word, "dies") == 0 && script_slip(b)))
		return -1;
	if (strcmp(word, "gate") == 0) {
		script_call(a)->closed = atoi(b) != 0;
	} else if (strcmp(word, "slow") == 0) {
		script_call(a)->slow_ms = atoi(b);
	} else if (strcmp(word, "version") == 0) {
		version = atoi(a);
	} else if (strcmp(word, "missing") == 0 && missing_n < MISSING) {
		snprintf(missing[missing_n++], NAME, "%s", a);
	} else if (strcmp(word, "devices") == 0 && atoi(a) >= 0 && atoi(a) <= DEVICES) {
		devices_n = atoi(a);
	} else if (strcmp(word, "alloc") == 0) {
		uint64_t at = 0;
		int dev = atoi(b), kind = kind_of(a);
		if (kind < 0 || dev < 0 || dev >= devices_n)
			return -1;
		context_t *ctx = kind == KIND_DEVICE || kind == KIND_IPC ? devices[dev].primary : NULL;
		int st = allocate(dev, kind, strtoull(c, NULL, 0), strtoull(e, NULL, 0), ctx, &at);
		return st == SUCCESS ? (int)((at - devices[dev].base) / GRAIN) : -1;
	} else if (strcmp(word, "hold") == 0) {
		hold_work(atoi(a) != 0);
	} else if (strcmp(word, "work") == 0) {
		work_takes(atoi(a));
	} else if (strcmp(word, "held") == 0) {
		hold_by(line + strlen("held "));
	} else if (strcmp(word, "current") == 0) {
		return current_device();
	} else if (strcmp(word, "waits") == 0) {
		return waits_held();
	} else if (strcmp(word, "reset") == 0) {
		reset();
	} else if (strncmp(a, "0x", 2) == 0) {
		return of_address(word, strtoull(a, NULL, 0), b, c);
	} else {
		return of_device(word, atoi(a), b, c, e);
	}
	return 0;
}

static void read_environment(void)
{
	if (!script_begin())
		return;
	reset();
	script_read("KVL_FAKE_CUDA", command);
}

API int kvl_fake_cuda_control(const char *line);
API int kvl_fake_cuda_control(const char *line)
{
	pthread_mutex_lock(&lock);
	read_environment();
	int r = command(line);
	pthread_mutex_unlock(&lock);
	return r;
}

static void sleep_ms(int ms)
{
	nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

int enter(const char *call)
{
	pthread_mutex_lock(&lock);
	read_environment();
	int st = script_enter(call), slow = script_call(call)->slow_ms;
	if (dies.left > 0 && strcmp(dies.call, call) == 0 && --dies.left == 0)
		devices[dies.device].lost = dies.code;
	for (int ms = 0; script_call(call)->closed && ms < 20000; ms++) {
		pthread_mutex_unlock(&lock);
		sleep_ms(1);
		pthread_mutex_lock(&lock);
	}
	pthread_mutex_unlock(&lock);
	if (slow > 0)
		sleep_ms(slow);
	return st;
}

bool is_missing(const char *symbol)
{
	bool found = false;
	pthread_mutex_lock(&lock);
	read_environment();
	for (int i = 0; i < missing_n; i++)
		found |= strcmp(missing[i], symbol) == 0;
	pthread_mutex_unlock(&lock);
	return found;
}

int driver_version(void)
{
	pthread_mutex_lock(&lock);
	read_environment();
	int v = version;
	pthread_mutex_unlock(&lock);
	return v;
}
