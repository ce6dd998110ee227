/* The part of the kernel's BPF interface that trace.c uses: fixed user ABI, written down here so that neither kernel headers nor
 * a vmlinux.h are needed, and nothing is relocated at load. */
#ifndef KVL_BPF_KERNEL_H
#define KVL_BPF_KERNEL_H

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;

#define SEC(name) __attribute__((section(name), used))
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* A map is described by the types of a struct's members, in section .maps. */
#define MAP_UINT(name, value) int (*name)[value]
#define MAP_TYPE(name, type) type *name

enum map_type {
	MAP_HASH = 1,
	MAP_ARRAY = 2,
	MAP_PERCPU_HASH = 5,
	MAP_PERCPU_ARRAY = 6,
	MAP_LRU_HASH = 9,
	MAP_RINGBUF = 27,
};

enum { MAP_NO_PREALLOC = 1 };              /* flag of a map: elements are allocated when they come */
enum { UPDATE_ANY = 0, UPDATE_NOEXIST = 1 };

static void *(*const map_lookup)(const void *map, const void *key) = (void *)1;
static long (*const map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*const map_delete)(void *map, const void *key) = (void *)3;
static u64 (*const ktime_ns)(void) = (void *)5; /* CLOCK_MONOTONIC */
static u64 (*const pid_tgid)(void) = (void *)14;
struct pidns_info {
	u32 pid, tgid;
};
static long (*const ns_pid_tgid)(u64 dev, u64 ino, struct pidns_info *out, u32 size) = (void *)120;
static long (*const ringbuf_output)(void *ringbuf, void *data, u64 size, u64 flags) = (void *)130;
static u64 (*const attach_cookie)(void *ctx) = (void *)174;

/* Registers of a user program at a probe. The arguments of a site are in those of the calling convention. */
#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	u64 r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi, orig_rax, rip, cs, eflags, rsp, ss;
};
#define ARG_A(regs) ((regs)->rdi)
#define ARG_B(regs) ((regs)->rsi)
#define ARG_C(regs) ((regs)->rdx)
#define ARG_D(regs) ((regs)->rcx)
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs {
	u64 regs[31], sp, pc, pstate;
};
#define ARG_A(r) ((r)->regs[0])
#define ARG_B(r) ((r)->regs[1])
#define ARG_C(r) ((r)->regs[2])
#define ARG_D(r) ((r)->regs[3])
#else
#error "kvlease trace: x86-64 and arm64"
#endif

#endif
