/* SipHash-2-4 of one 8-byte message: the keys of slots. Go half: dataplane/lease. */
#include "internal.h"

static inline uint64_t rotl(uint64_t x, int b) { return x << b | x >> (64 - b); }

static inline void round_once(uint64_t v[4])
{
	v[0] += v[1];
	v[2] += v[3];
	v[1] = rotl(v[1], 13) ^ v[0];
	v[3] = rotl(v[3], 16) ^ v[2];
	v[0] = rotl(v[0], 32);
	v[2] += v[1];
	v[0] += v[3];
	v[1] = rotl(v[1], 17) ^ v[2];
	v[3] = rotl(v[3], 21) ^ v[0];
	v[2] = rotl(v[2], 32);
}

static inline void absorb(uint64_t v[4], uint64_t m)
{
	v[3] ^= m;
	round_once(v);
	round_once(v);
	v[0] ^= m;
}

uint64_t kvl_siphash(const uint64_t key[2], uint64_t message)
{
	uint64_t v[4] = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du, key[0] ^ 0x6c7967656e657261u,
			 key[1] ^ 0x7465646279746573u};
	absorb(v, message);
	absorb(v, (uint64_t)8 << 56); /* the length's byte */
	v[2] ^= 0xff;
	for (int i = 0; i < 4; i++)
		round_once(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}
