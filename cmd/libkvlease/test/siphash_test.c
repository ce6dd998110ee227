/* SipHash-2-4 against its authors' vector for eight bytes, the only length we use. */
#include "check.h"
#include "../src/internal.h"

int main(void)
{
	const uint64_t key[2] = {0x0706050403020100u, 0x0f0e0d0c0b0a0908u};
	CHECK(kvl_siphash(key, 0x0706050403020100u) == 0x93f5f5799a932462u);
	return 0;
}
