// kvlease.h alone, with every warning, in each language that it promises.
#include "kvlease.h"

typedef char kvl_event_is_64_bytes[sizeof(kvl_event_t) == 64 ? 1 : -1];

int main(void)
{
	kvl_event_t ev;
	ev.kind = KVL_EV_FREED;
	return kvl_abi_version() == KVL_ABI_VERSION && ev.kind == 1 ? 0 : 1;
}
