/* The trace site of the hooks. The others are the core's. */
#include "internal.h"

KVL_SITE_WORDS_HERE
KVL_SITE(hook__submit)

/* What overflowed is drained once the ring has been, so the ring's position stands for it, too. The core's handle is the number of
 * the context in this process. */
void kvl_trace_submit(const kvl_producer_t *p, uint32_t tag)
{
	kvl_site_hook__submit((uint64_t)p->ctx->core, p->index, p->ring.pos, tag);
}
