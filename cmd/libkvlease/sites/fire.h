/* What Go calls of the trace sites. */
#ifndef KVL_SITES_FIRE_H
#define KVL_SITES_FIRE_H

#include <stdint.h>

/** Runs through a site; a number that is none does nothing. */
void kvl_site_fire(uint32_t site, uint64_t a, uint64_t b, uint64_t c, uint64_t d);

/** The semaphores, KVL_SITE_WORDS of them. */
uint32_t *kvl_site_words_at(void);

#endif
