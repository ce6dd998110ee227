/* Whether a Go runtime has room in this process. It ends the process where it has none, so it is not even loaded then. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

#define SPACE (2ull << 30)  /* bytes of address space: the runtime reserves about 1.5 GiB of it and never fills them */
#define DESCRIPTORS 8       /* two of the runtime, two of a context, two of kvl_wait_fd, two to open files with */
#define THREADS_OWN 4u      /* beside those that run Go code: monitor, template, the pump, one in a call */
#define THREADS_MAX 68u     /* of the probe; `threads` says at most 64 */

static int space_free(void)
{
	void *at = mmap(NULL, SPACE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return 0;
	munmap(at, SPACE);
	return 1;
}

static int descriptors_free(void)
{
	int fd[DESCRIPTORS], n = 0;
	while (n < DESCRIPTORS && (fd[n] = eventfd(0, EFD_CLOEXEC)) >= 0)
		n++;
	for (int i = 0; i < n; i++)
		close(fd[i]);
	return n == DESCRIPTORS;
}

static void *wait_for_all(void *gate)
{
	pthread_mutex_lock(gate);
	pthread_mutex_unlock(gate);
	return NULL;
}

static uint32_t threads_free(uint32_t want)
{
	pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
	pthread_t thread[THREADS_MAX];
	pthread_attr_t small;
	uint32_t n = 0;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 256 << 10); /* a sanitizer needs some of it */
	pthread_mutex_lock(&gate); /* all of them at once: one after the other proves nothing */
	while (n < want) {
		int rc = pthread_create(&thread[n], &small, wait_for_all, &gate);
		if (rc == EINVAL) /* static thread-local data of the host does not fit into it */
			rc = pthread_create(&thread[n], NULL, wait_for_all, &gate);
		if (rc != 0)
			break;
		n++;
	}
	pthread_mutex_unlock(&gate);
	for (uint32_t i = 0; i < n; i++)
		pthread_join(thread[i], NULL);
	pthread_attr_destroy(&small);
	return n;
}

int32_t kvl_room_for_core(uint32_t threads, char *err, size_t cap)
{
	uint32_t want = (threads < THREADS_MAX - THREADS_OWN ? threads : THREADS_MAX - THREADS_OWN) + THREADS_OWN, have;
	if (!space_free()) {
		snprintf(err, cap, "the core needs %llu GiB of address space: raise `ulimit -v`", SPACE >> 30);
		return KVL_ERR_NOMEM;
	}
	if (!descriptors_free()) {
		snprintf(err, cap, "the core needs %d descriptors: raise `ulimit -n`", DESCRIPTORS);
		return KVL_ERR_NOMEM;
	}
	if ((have = threads_free(want)) < want) {
		snprintf(err, cap, "the core needs %u threads and gets %u: raise `ulimit -u` or the cgroup's pids.max", want, have);
		return KVL_ERR_NOMEM;
	}
	return KVL_OK;
}
