/* Trace sites: USDT notes of provider "kvlease" that bpftrace, perf and `kvlease trace` attach to.
 *
 * A site is a function of its own with a five-byte nop in it, a note in .note.stapsdt that tells tools where it is, and a
 * semaphore that is not 0 while somebody is attached. The function's four arguments are in registers that the note names,
 * always the same ones, so that a tool needs no parser of operands. Callers look at the semaphore first: one load.
 *
 * What the arguments mean stands in dataplane/trace; names and order are the same there, a test holds them together. C11.
 */
#ifndef KVL_SITES_H
#define KVL_SITES_H

#include <stdint.h>

/* In the order of dataplane/trace. hook__submit stands where the hooks do, all others with the core: of one name in two libraries of a
 * process bpftrace -p sees only one. */
#define KVL_SITES(X)                                                                                                   \
	X(hook__submit)                                                                                                \
	KVL_SITES_OF_CORE(X)
#define KVL_SITES_OF_CORE(X)                                                                                           \
	X(hook__drained)                                                                                               \
	X(step__begin)                                                                                                 \
	X(step__end)                                                                                                   \
	X(batch__posted)                                                                                               \
	X(notification__seen)                                                                                          \
	X(batch__extended)                                                                                             \
	X(lease__freed)                                                                                                \
	X(lease__freed__one)                                                                                           \
	X(read__posted)                                                                                                \
	X(data__arrived)                                                                                               \
	X(fence__checked)                                                                                              \
	X(read__reported)                                                                                              \
	X(handshake__state)                                                                                            \
	X(stall__gap)

enum kvl_site {
#define KVL_SITE_NUMBER(name) KVL_SITE_##name,
	KVL_SITES(KVL_SITE_NUMBER)
#undef KVL_SITE_NUMBER
	KVL_SITE_COUNT
};
#define KVL_SITE_WORDS 16

/* The semaphores of this library or program, by site: one cache line. The kernel counts in the low two bytes of each. */
extern uint32_t kvl_site_words[KVL_SITE_WORDS] __attribute__((visibility("hidden")));

/** 1 while somebody is attached to the site. With KVL_SITES_OFF never: what the question costs can be measured so. */
static inline int kvl_site_on(enum kvl_site site)
{
#ifdef KVL_SITES_OFF
	(void)site;
	return 0;
#endif
	return __builtin_expect(__atomic_load_n(&kvl_site_words[site], __ATOMIC_RELAXED) != 0, 0);
}

/* Once in the library or program. A second part of it, linked apart, has KVL_SITE_WORDS_TOO, which gives way. */
#define KVL_SITE_WORDS_HERE KVL_SITE_WORDS_AS(used)
#define KVL_SITE_WORDS_TOO KVL_SITE_WORDS_AS(weak)
#define KVL_SITE_WORDS_AS(how)                                                                                         \
	uint32_t kvl_site_words[KVL_SITE_WORDS]                                                                        \
		__attribute__((section(".probes"), aligned(64), how, visibility("hidden"))) = {0};

#if defined(__x86_64__)
#define KVL_SITE_NOP ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n"
#define KVL_SITE_ARGS "8@%%rdi 8@%%rsi 8@%%rdx 8@%%rcx"
#define KVL_SITE_REGISTERS "D"(a), "S"(b), "d"(c), "c"(d)
#define KVL_SITE_PIN(a, b, c, d)
#elif defined(__aarch64__)
#define KVL_SITE_NOP "nop\n"
#define KVL_SITE_ARGS "8@x0 8@x1 8@x2 8@x3"
#define KVL_SITE_REGISTERS "r"(x0), "r"(x1), "r"(x2), "r"(x3)
#define KVL_SITE_PIN(a, b, c, d)                                                                                       \
	register uint64_t x0 __asm__("x0") = (a), x1 __asm__("x1") = (b), x2 __asm__("x2") = (c), x3 __asm__("x3") = (d);
#else
#error "trace sites: x86-64 and arm64"
#endif

/* The note's three words are those of the linked file: site, .stapsdt.base (tools correct by what has become of it), semaphore. */
#define KVL_SITE_NOTE(name)                                                                                            \
	"990: " KVL_SITE_NOP ".pushsection .note.stapsdt,\"?\",\"note\"\n"                                             \
	".balign 4\n"                                                                                                  \
	".4byte 992f-991f, 994f-993f, 3\n"                                                                             \
	"991: .asciz \"stapsdt\"\n"                                                                                    \
	"992: .balign 4\n"                                                                                             \
	"993: .8byte 990b, _.stapsdt.base, kvl_site_words+%c[word]\n"                                                  \
	".asciz \"kvlease\"\n"                                                                                         \
	".asciz \"" #name "\"\n"                                                                                       \
	".asciz \"" KVL_SITE_ARGS "\"\n"                                                                               \
	"994: .balign 4\n"                                                                                             \
	".popsection\n"                                                                                                \
	".ifndef _.stapsdt.base\n"                                                                                     \
	".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"                                        \
	".weak _.stapsdt.base\n"                                                                                       \
	".hidden _.stapsdt.base\n"                                                                                     \
	"_.stapsdt.base: .space 1\n"                                                                                   \
	".size _.stapsdt.base, 1\n"                                                                                    \
	".popsection\n"                                                                                                \
	".endif\n"

#if defined(__clang__)
#define KVL_SITE_FUNCTION __attribute__((noinline, visibility("hidden")))
#else
#define KVL_SITE_FUNCTION __attribute__((noinline, noclone, visibility("hidden")))
#endif

/** Defines `void kvl_site_<name>(a, b, c, d)`, once in the library or program. Callers have asked kvl_site_on. */
#define KVL_SITE(name)                                                                                                 \
	KVL_SITE_FUNCTION void kvl_site_##name(uint64_t a, uint64_t b, uint64_t c, uint64_t d);                        \
	KVL_SITE_FUNCTION void kvl_site_##name(uint64_t a, uint64_t b, uint64_t c, uint64_t d)                         \
	{                                                                                                              \
		KVL_SITE_PIN(a, b, c, d)                                                                               \
		__asm__ volatile(KVL_SITE_NOTE(name) : : KVL_SITE_REGISTERS, [word] "i"(KVL_SITE_##name * 4));         \
	}

#endif
