/* What kvl_register says of the cache: block ids of hooks are held against it. */
#include "check.h"
#include "fakecore.h"

/* What a grant of one block in one group of `groups` (the others empty) is told; "" if it stands. */
static const char *told(kvl_producer_t *granter, uint32_t groups, uint32_t group, uint32_t block)
{
	kvl_blocks_t all[64] = {{NULL, 0, 0}};
	kvl_grant_t g = grant_of("r", all, groups, 0);
	kvl_lease_t l;
	int32_t st;
	all[group] = (kvl_blocks_t){&block, 1, 0};
	st = kvl_grant(granter, &g, &l);
	CHECK(st == KVL_OK || st == KVL_ERR_INVALID);
	return st == KVL_OK ? "" : kvl_last_error();
}

#define TOLD(groups, group, block, want) CHECK(strcmp(told(q, groups, group, block), want) == 0)

static void block_ids_are_held_against_every_region_of_their_group(void)
{
	kvl_region_t r[4];
	kvl_ctx_t *c = open_ctx("{}");
	kvl_producer_t *q = open_producer(c);
	for (uint32_t i = 0; i < 4; i++)
		r[i] = (kvl_region_t){.addr = 4096, .bytes = 4096, .block_len = 64, .block_stride = 64, .blocks = 8, .group = -1};
	r[1].blocks = 4;
	r[1].group = 1;
	r[2].blocks = 16;
	r[2].group = 2;
	r[3].device = 99; /* refused by the core: nothing is registered, so nothing is known */
	CHECK_STATUS(kvl_register(c, r, sizeof(kvl_region_t), 4), KVL_ERR_TRANSPORT);
	TOLD(1, 0, 1000000, "");
	r[3] = r[0];
	CHECK_STATUS(kvl_register(c, r, sizeof(kvl_region_t), 4), KVL_OK);
	TOLD(1, 0, 7, "");
	TOLD(1, 0, 8, "grant.groups[0].ids[0]: block 8 of 8");
	TOLD(2, 1, 3, "");
	TOLD(2, 1, 4, "grant.groups[1].ids[0]: block 4 of 4");
	TOLD(3, 2, 8, "grant.groups[2].ids[0]: block 8 of 8"); /* the other region has 16, this one not */
	TOLD(32, 31, 7, "");
	TOLD(33, 32, 0, "grant.groups[32]: no region has group 32");
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);

	c = open_ctx("{}");
	q = open_producer(c);
	r[0].group = 0;
	r[3].group = 3;
	r[3].bytes = UINT64_MAX - r[3].addr;
	r[3].block_len = r[3].block_stride = 1;
	r[3].blocks = UINT32_MAX;
	CHECK_STATUS(kvl_register(c, (const kvl_region_t[]){r[0], r[3]}, sizeof(kvl_region_t), 2), KVL_OK);
	TOLD(4, 0, 7, ""); /* its empty groups need no region */
	TOLD(2, 1, 0, "grant.groups[1]: no region has group 1");
	TOLD(4, 3, UINT32_MAX - 1, "");
	TOLD(4, 3, UINT32_MAX, "grant.groups[3].ids[0]: block 4294967295 of 4294967295");
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);
}

static void nothing_is_registered_or_added_once_a_context_drains_or_is_poisoned(void)
{
	kvl_region_t r = {.addr = 4096, .bytes = 4096, .block_len = 512, .block_stride = 512, .blocks = 8, .group = -1};
	kvl_engine_desc_t d = {.size = sizeof d, .ranks = 1, .engine_id = str("P")};
	kvl_ctx_t *c = open_ctx("{}");
	kvl_engine_t e = 77;
	CHECK_STATUS(kvl_drain(c, 1), KVL_OK);
	CHECK_STATUS(kvl_register(c, &r, sizeof(kvl_region_t), 1), KVL_ERR_CLOSED);
	CHECK_ERROR("draining");
	CHECK_STATUS(kvl_engine_add(c, &d, &e), KVL_ERR_CLOSED);
	CHECK_ERROR("draining");
	CHECK_STATUS(kvl_fence_all(c), KVL_OK);
	CHECK_STATUS(kvl_register(c, &r, sizeof(kvl_region_t), 1), KVL_ERR_POISONED);
	CHECK_ERROR("poisoned");
	CHECK_STATUS(kvl_engine_add(c, &d, &e), KVL_ERR_POISONED);
	CHECK_ERROR("poisoned");
	CHECK_EQ(e, 77);
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);
}

int main(void)
{
	RUN(block_ids_are_held_against_every_region_of_their_group);
	RUN(nothing_is_registered_or_added_once_a_context_drains_or_is_poisoned);
	return 0;
}
