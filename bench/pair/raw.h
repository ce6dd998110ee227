/* NIXL's C API with nothing of ours in between: the peer of the read and notification rows. */
#ifndef RAW_H
#define RAW_H

#include <stddef.h>
#include <stdint.h>

/* Ranks that an owner may have. A block of D's consists of one equal part of each, in order. */
enum { RANKS_MAX = 4 };

/* Opens libnixl_capi.so (KVLEASE_NIXL) and an agent with the settings of ours: progress thread, 100 ms delay; an owner one for each
 * rank, in order, and D loads the metadata of each. Where it was not called there is no metadata, and nothing to load or to poll. */
void raw_open(const char *name, void *kv, size_t bytes);
size_t raw_metadata(uint32_t rank, void *out, size_t cap);
void raw_load(const void *metadata, size_t n);

/* Ways to read blocks: lists built for this read, one descriptor a block; the same with neighbours merged by hand;
 * lists of all blocks prepared before, indices for this read. Transfers of all ranks are posted before one is waited for. Each ends with the transfer DONE, a notification on it.
 * FENCED is no rival but the least that a proof costs: PREPARED, and after it a read of 8 bytes from each peer. */
enum raw_way { RAW_PLAIN, RAW_MERGED, RAW_PREPARED, RAW_FENCED, RAW_WAYS };
extern const char *const raw_names[RAW_WAYS];

void raw_prepare(uint64_t local, const uint64_t *remote, uint64_t block_len, uint32_t blocks);
void raw_read(enum raw_way way, uint64_t local, const uint64_t *remote, uint64_t block_len, const uint32_t *local_ids,
              const uint32_t *remote_ids, uint32_t n);

void raw_send(const void *msg, size_t n);
uint32_t raw_poll(void); /* notifications that had come, thrown away */

#endif
