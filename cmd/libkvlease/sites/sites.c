#include "sites.h"
#include "fire.h"

KVL_SITE_WORDS_HERE
KVL_SITES_OF_CORE(KVL_SITE)

void kvl_site_fire(uint32_t site, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	switch (site) {
#define KVL_SITE_CASE(name)                                                                                            \
	case KVL_SITE_##name:                                                                                          \
		kvl_site_##name(a, b, c, d);                                                                           \
		return;
		KVL_SITES_OF_CORE(KVL_SITE_CASE)
#undef KVL_SITE_CASE
	}
}

uint32_t *kvl_site_words_at(void) { return kvl_site_words; }
