/* The fork check: a page that the kernel empties in a child. */
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

static const volatile uint32_t never_opened = 1;

/* Points at a word that is 1. From the first kvl_open on it lies in a page with MADV_WIPEONFORK, so a child of this
 * process, however it was forked, reads 0. Until then nothing of ours is lost by a fork. */
const volatile uint32_t *kvl_fork_word = &never_opened;

int32_t kvl_fork_arm(void) /* under the open lock */
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uint32_t *word;
	if (kvl_fork_word != &never_opened)
		return KVL_OK;
	word = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (word == MAP_FAILED)
		return kvl_fail(KVL_ERR_NOMEM, "fork page: mmap refused");
	if (madvise(word, page, MADV_WIPEONFORK) != 0) { /* Linux 4.14 */
		munmap(word, page);
		return kvl_fail(KVL_ERR_UNAVAILABLE, "fork page: this kernel has no MADV_WIPEONFORK");
	}
	*word = 1;
	KVL_STORE(&kvl_fork_word, word, RELEASE);
	return KVL_OK;
}

int32_t kvl_fail_forked(void)
{
	return kvl_fail(KVL_ERR_FORKED, "this process was forked after kvl_open: open in the child before its parent does, or exec");
}
