#include "../sites.h"

KVL_SITE_WORDS_TOO
KVL_SITE(hook__submit)

void kvl_site_submit(uint64_t ctx, uint64_t producer, uint64_t position, uint64_t tag);
void kvl_site_submit(uint64_t ctx, uint64_t producer, uint64_t position, uint64_t tag)
{
	kvl_site_hook__submit(ctx, producer, position, tag);
}
