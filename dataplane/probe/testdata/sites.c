/* The trace sites in a library of their own, for tests: nothing but notes, semaphores and nops, from the header that the product's
 * libraries use. */
#include "../../../cmd/libkvlease/sites/sites.h"

KVL_SITE_WORDS_HERE
KVL_SITES(KVL_SITE)

#define EXPORT __attribute__((visibility("default")))

/** 1 if somebody was attached. */
EXPORT int test_fire(uint32_t site, uint64_t a, uint64_t b, uint64_t c, uint64_t d);
EXPORT int test_fire(uint32_t site, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	if (site >= KVL_SITE_COUNT || !kvl_site_on(site))
		return 0;
	switch (site) {
#define CASE(name)                                                                                                     \
	case KVL_SITE_##name:                                                                                          \
		kvl_site_##name(a, b, c, d);                                                                           \
		break;
		KVL_SITES(CASE)
	}
	return 1;
}
