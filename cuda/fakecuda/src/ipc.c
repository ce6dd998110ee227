/* Memory of other processes. The handle of an allocation says which open file of which process its device is, and where it lies in it; who opens
 * it maps that part as its own memory is mapped: an address that nobody may touch, and one that only the API knows. The handle ends with
 * its process, as that of a driver does. */
#include "fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LAZY_PEER_ACCESS = 1, HANDLE = 64, PAGE = 4096 };

typedef struct {
	char magic[8];
	uint64_t file; /* its inode: a number of a process and of a descriptor may come again */
	uint64_t offset, bytes;
	int32_t process, fd, device, zero;
} exported_t;
_Static_assert(sizeof(exported_t) <= HANDLE, "CUipcMemHandle");

typedef struct {
	char bytes[HANDLE];
} handle_t;

static const char magic[8] = "fakeipc";

API int cuIpcGetMemHandle(handle_t *out, uint64_t addr);
API int cuIpcGetMemHandle(handle_t *out, uint64_t addr)
{
	context_t *ctx;
	int st = enter_context("cuIpcGetMemHandle", &ctx);
	if (st != SUCCESS)
		return st;
	pthread_mutex_lock(&lock);
	allocation_t *a = find_allocation(addr);
	struct stat file;
	if (a == NULL || a->kind != KIND_DEVICE || fstat(devices[a->device].fd, &file) != 0) {
		st = INVALID_VALUE;
	} else {
		device_t *d = &devices[a->device];
		exported_t e = {.file = file.st_ino, .offset = a->base - d->base, .bytes = a->bytes, .process = getpid(), .fd = d->fd, .device = a->device};
		memcpy(e.magic, magic, sizeof magic);
		memset(out, 0, sizeof *out);
		memcpy(out, &e, sizeof e);
	}
	pthread_mutex_unlock(&lock);
	return st;
}

/* The file of a handle, -1 if its process is gone. */
static int open_file(const exported_t *e)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)e->process, (int)e->fd);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	struct stat file;
	if (fd >= 0 && (fstat(fd, &file) != 0 || file.st_ino != e->file || (uint64_t)file.st_size < e->offset + e->bytes)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

static uint64_t skew(uint64_t offset)
{
	return offset & (PAGE - 1); /* a mapping begins at a page, an allocation at any 512 bytes */
}

void close_opened(allocation_t *a)
{
	uint64_t before = skew(a->base);
	munmap((void *)(uintptr_t)(a->base - before), a->bytes + before);
	munmap(a->shadow - before, a->bytes + before);
}

/* What is open already is the same memory once more, as the reference says. */
static int map(const exported_t *e, context_t *ctx, uint64_t *out)
{
	for (allocation_t *a = allocations; a != NULL; a = a->next) {
		if (a->opened > 0 && a->file == e->file && a->offset == e->offset && a->context == ctx) {
			a->opened++;
			*out = a->base;
			return SUCCESS;
		}
	}
	int fd = open_file(e);
	allocation_t *a = calloc(1, sizeof *a);
	if (fd < 0 || a == NULL) {
		if (fd >= 0)
			close(fd);
		free(a);
		return INVALID_HANDLE;
	}
	uint64_t before = skew(e->offset);
	off_t from = (off_t)(e->offset - before);
	uint8_t *at = mmap(NULL, e->bytes + before, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, from);
	uint8_t *shadow = mmap(NULL, e->bytes + before, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, from);
	close(fd);
	if (at == MAP_FAILED || shadow == MAP_FAILED) {
		free(a);
		return OUT_OF_MEMORY;
	}
	*a = (allocation_t){.base = (uint64_t)(uintptr_t)at + before, .bytes = e->bytes, .piece = e->bytes, .device = e->device, .kind = KIND_IPC, .context = ctx,
	                    .shadow = shadow + before, .opened = 1, .file = e->file, .offset = e->offset};
	insert_allocation(a);
	*out = a->base;
	return SUCCESS;
}

API int cuIpcOpenMemHandle_v2(uint64_t *out, handle_t handle, unsigned flags);
API int cuIpcOpenMemHandle_v2(uint64_t *out, handle_t handle, unsigned flags)
{
	context_t *ctx;
	int st = enter_context("cuIpcOpenMemHandle", &ctx);
	if (st != SUCCESS)
		return st;
	exported_t e;
	memcpy(&e, &handle, sizeof e);
	if (flags != LAZY_PEER_ACCESS)
		return INVALID_VALUE;
	if (memcmp(e.magic, magic, sizeof magic) != 0 || e.device < 0 || e.device >= DEVICES || e.bytes == 0)
		return INVALID_HANDLE;
	if (e.process == getpid()) /* its own memory is not opened once more */
		return INVALID_CONTEXT;
	pthread_mutex_lock(&lock);
	st = map(&e, ctx, out);
	pthread_mutex_unlock(&lock);
	return st;
}

API int cuIpcCloseMemHandle(uint64_t addr);
API int cuIpcCloseMemHandle(uint64_t addr)
{
	context_t *ctx;
	int st = enter_context("cuIpcCloseMemHandle", &ctx);
	if (st != SUCCESS)
		return st;
	pthread_mutex_lock(&lock);
	st = INVALID_VALUE;
	allocation_t *a = find_allocation(addr);
	if (a != NULL && a->base == addr && a->opened > 0) {
		if (--a->opened == 0) {
			close_opened(a);
			drop_allocation(a);
		}
		st = SUCCESS;
	}
	pthread_mutex_unlock(&lock);
	return st;
}
