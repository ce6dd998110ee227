/* kvl_step_long: what the core's word says, held against the clock. */
#include <stdint.h>
#include <time.h>

#include "../src/internal.h"
#include "check.h"
#include "fakecore.h"

static void a_long_step_is_foretold(void)
{
	kvl_ctx_t *ctx = open_ctx("{}");
	uint64_t *word = &fake_last()->args.control->long_at_ns;
	uint64_t now = kvl_clock(CLOCK_BOOTTIME);
	CHECK_EQ(kvl_step_long(ctx), 1); /* nothing has been said yet */
	*word = INT64_MAX;
	CHECK_EQ(kvl_step_long(ctx), 0);
	*word = now;
	CHECK_EQ(kvl_step_long(ctx), 1);
	*word = now + 3600u * 1000000000ull;
	CHECK_EQ(kvl_step_long(ctx), 0);
	CHECK(kvl_call_begin(ctx, KVL_CALL_REGISTER)); /* as if another thread were inside */
	CHECK_EQ(kvl_step_long(ctx), 1);
	kvl_call_end(ctx, KVL_CALL_REGISTER);
	CHECK_EQ(kvl_step_long(ctx), 0);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

static void a_pump_leaves_no_long_step_to_the_loop(void)
{
	kvl_ctx_t *ctx = open_ctx("{\"pump\":1}");
	CHECK_EQ(fake_last()->args.control->long_at_ns, 0);
	CHECK_EQ(kvl_step_long(ctx), 0);
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

int main(void)
{
	RUN(a_long_step_is_foretold);
	RUN(a_pump_leaves_no_long_step_to_the_loop);
	return 0;
}
