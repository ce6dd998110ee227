/* Callers built with an older or newer header: arrays pass their element size, structs begin with theirs. */
#include "check.h"
#include "fakecore.h"

/* kvl_region_t and kvl_remote_t as they were first. */
typedef struct old_region {
	uint64_t addr, bytes, block_len, block_stride;
	uint32_t blocks;
	int32_t group;
	uint32_t device, mem;
	kvl_bytes_t name;
} old_region_t;
typedef struct old_remote {
	uint32_t size, native;
	kvl_bytes_t id, engine_id, host;
	uint32_t port, tp_size, tokens, groups_n;
	const kvl_blocks_t *groups;
	uint64_t epoch;
	uint32_t slot, generation;
	uint64_t key;
} old_remote_t;

/* And as they may be one day. */
typedef struct new_region {
	kvl_region_t known;
	uint64_t more[3];
} new_region_t;
typedef struct new_remote {
	kvl_remote_t known;
	uint64_t more[2];
} new_remote_t;

static void regions_of_an_older_caller_have_one_part_and_no_flags(void)
{
	old_region_t r[3];
	kvl_ctx_t *c = open_ctx("{}");
	fake_core_t *f = fake_last();
	for (uint32_t i = 0; i < 3; i++)
		r[i] = (old_region_t){4096 * (i + 1), 4096, 64, 64, 8, -1, i, KVL_MEM_DRAM, {"layer", 5}};
	CHECK_EQ(sizeof r[0], 64);
	CHECK_STATUS(kvl_register(c, (const kvl_region_t *)(const void *)r, sizeof r[0], 3), KVL_OK);
	CHECK(f->region.addr == 3 * 4096 && f->region.device == 2 && f->region.name.len == 5);
	CHECK(f->region.parts == 1 && f->region.flags == 0);
	r[1].blocks = 0; /* each element is found at its own place */
	CHECK_STATUS(kvl_register(c, (const kvl_region_t *)(const void *)r, sizeof r[0], 3), KVL_ERR_INVALID);
	CHECK_ERROR("regions[1]");
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);
}

static void regions_of_a_newer_caller_are_taken_if_they_say_nothing_new(void)
{
	new_region_t r[2];
	kvl_ctx_t *c = open_ctx("{}");
	memset(r, 0, sizeof r);
	for (uint32_t i = 0; i < 2; i++)
		r[i].known = (kvl_region_t){.addr = 4096, .bytes = 4096, .block_len = 64, .block_stride = 64, .blocks = 8, .group = -1,
					    .device = i, .parts = 2, .flags = KVL_REGION_REPLICATED};
	CHECK_STATUS(kvl_register(c, &r[0].known, sizeof r[0], 2), KVL_OK);
	CHECK(fake_last()->region.device == 1 && fake_last()->region.parts == 2);
	CHECK_EQ(fake_last()->region.flags, KVL_REGION_REPLICATED);
	r[1].more[2] = 1ull << 63; /* the last byte of the last element */
	CHECK_STATUS(kvl_register(c, &r[0].known, sizeof r[0], 2), KVL_ERR_INVALID);
	CHECK_ERROR("regions[1]: byte 95 is set, this library knows 72");
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);
}

static const char params[] =
	"{\"remote_block_ids\":[[1]],\"remote_engine_id\":\"P\",\"remote_request_id\":\"r\",\"remote_host\":\"h\",\"remote_port\":1,"
	"\"pp_size\":3,\"remote_blocks_expiry_time\":2.5}";

static void parameters_are_read_into_whatever_room_the_caller_has(void)
{
	union {
		new_remote_t newer;
		kvl_remote_t known;
		old_remote_t older;
		uint8_t bytes[sizeof(new_remote_t)];
	} u;
	uint64_t buf[64];
	size_t need;
	memset(&u, 0xaa, sizeof u);
	u.older.size = sizeof u.older;
	CHECK_EQ(sizeof u.older, 104);
	CHECK_STATUS(kvl_params_read(params, strlen(params), &u.known, buf, sizeof buf, &need), KVL_OK);
	CHECK_EQ(u.older.size, sizeof u.older);
	CHECK(u.older.port == 1 && u.older.tp_size == 1 && u.older.key == 0);
	for (size_t i = sizeof u.older; i < sizeof u; i++)
		CHECK_EQ(u.bytes[i], 0xaa);

	memset(&u, 0xaa, sizeof u);
	u.known.size = sizeof u.newer;
	CHECK_STATUS(kvl_params_read(params, strlen(params), &u.known, buf, sizeof buf, &need), KVL_OK);
	CHECK_EQ(u.known.size, sizeof u.newer);
	CHECK(u.known.expires_ns == 2500000000u && u.known.pp_size == 3 && u.known.reserved == 0);
	for (size_t i = sizeof u.known; i < sizeof u; i++)
		CHECK_EQ(u.bytes[i], 0xaa);

	u.known.size = sizeof u.older - 8;
	CHECK_STATUS(kvl_params_read(params, strlen(params), &u.known, buf, sizeof buf, &need), KVL_ERR_INVALID);
	CHECK_ERROR("remote_out.size: 96, at least 104");
}

static void a_remote_of_an_older_caller_is_renewed_by_heartbeats(void)
{
	struct {
		old_remote_t remote;
		uint64_t behind[8];
	} old = {{.size = sizeof old.remote, .native = 1, .id = {"r", 1}, .epoch = 7, .slot = 3, .key = 9}, {77, 77, 77}};
	kvl_remote_t now = remote_of("r");
	kvl_ctx_t *c = open_ctx("{}");
	kvl_producer_t *p = open_producer(c);
	fake_core_t *f = fake_last();
	kvl_track_t t;
	now.expires_ns = 123456789;
	for (int i = 0; i < 3; i++) /* whatever the ring held before, no record has left_ns */
		CHECK_STATUS(kvl_track(p, 1, &now, str("l"), 0, &t), KVL_OK);
	CHECK_STATUS(kvl_track(p, 1, (const kvl_remote_t *)(const void *)&old.remote, str("l"), 0, &t), KVL_OK);
	CHECK_STATUS(kvl_reject(p, 1, &now), KVL_OK);
	CHECK_STATUS(kvl_step(c), KVL_OK);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(f->log[i].c, 123456789);
	CHECK_EQ(f->log[3].c, 0);
	CHECK_EQ(f->log[4].c, 123456789);
	CHECK_STATUS(kvl_close(c, 0), KVL_OK);
}

int main(void)
{
	RUN(regions_of_an_older_caller_have_one_part_and_no_flags);
	RUN(regions_of_a_newer_caller_are_taken_if_they_say_nothing_new);
	RUN(parameters_are_read_into_whatever_room_the_caller_has);
	RUN(a_remote_of_an_older_caller_is_renewed_by_heartbeats);
	return 0;
}
