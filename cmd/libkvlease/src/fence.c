/* The fence of last resort. Async-signal-safe: atomic stores, clock_gettime and write, nothing else. */
#include <errno.h>
#include <unistd.h>

#include "internal.h"

void kvl_event_signal(kvl_ctx_t *ctx)
{
	const uint64_t one = 1;
	int saved = errno;
	ssize_t n = write(ctx->control->event_fd, &one, sizeof one); /* full is readable, too */
	(void)n;
	errno = saved;
}

/* Barrier between CPU stores and what a device may see of them. */
static inline void device_barrier(void)
{
#if defined(__aarch64__)
	__asm__ volatile("dmb oshst" ::: "memory");
#else
	__asm__ volatile("" ::: "memory"); /* x86 stores become visible in order */
#endif
}

void kvl_fence(kvl_ctx_t *ctx)
{
	kvl_control_t *control = ctx->control;
	kvl_board_header_t *head = (kvl_board_header_t *)(void *)ctx->board;
	kvl_row_t *rows = (kvl_row_t *)(void *)(ctx->board + sizeof *head);
	const uint64_t one = 1;
	uint64_t none = 0;
	int saved = errno;
	ssize_t n;
	__atomic_fetch_or(&head->flags, KVL_BF_CLOSED, __ATOMIC_RELAXED);
	/* All ones is more than any fence word, and the core only ever raises one: nothing opens a row again. */
	for (uint32_t i = 0; i < ctx->sizes.leases; i++)
		KVL_STORE(&rows[i].fence, UINT64_MAX, RELAXED);
	device_barrier();
	__atomic_compare_exchange_n(&control->poison_ns, &none, kvl_clock(CLOCK_BOOTTIME), 0, __ATOMIC_ACQ_REL,
				    __ATOMIC_RELAXED);
	/* S2, G2: a step that began before is seen in `stepping`, one that begins later sees this (kvl_poll); a grant
	 * that set its state before is seen by the report, one that sets it later sees this (settle_poisoned). */
	__atomic_store_n(&control->poisoned, 1, __ATOMIC_SEQ_CST);
	kvl_event_signal(ctx);
	n = write(control->wake_fd, &one, sizeof one); /* a sleeping pump stops at once */
	(void)n;
	errno = saved;
}

KVL_API int32_t kvl_fence_all(kvl_ctx_t *ctx)
{
	/* No text for kvl_last_error: the first one of a thread may allocate, and a crash handler may have come out of malloc. */
	if (*KVL_LOAD(&kvl_fork_word, ACQUIRE) == 0)
		return KVL_ERR_FORKED;
	if (ctx == NULL || (uintptr_t)ctx % 64 != 0 || KVL_LOAD(&ctx->magic, ACQUIRE) != KVL_CTX_MAGIC)
		return KVL_ERR_INVALID;
	kvl_fence(ctx);
	return KVL_OK;
}
