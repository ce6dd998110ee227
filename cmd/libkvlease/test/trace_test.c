/* The trace site of the hooks, without a tracer: the test finds it as one does, by its note, puts a call in place of the nop and sets the
 * semaphore. x86-64. */
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "fakecore.h"

#ifdef __x86_64__

typedef struct hit {
	uint64_t ctx, producer, position, tag;
} hit_t;
static hit_t hits[64];
static uint32_t hits_n;

/* The stack may be off by half of its alignment: the site did not know that it would call. */
__attribute__((force_align_arg_pointer, used)) static void on_hit(uint64_t ctx, uint64_t producer, uint64_t position, uint64_t tag)
{
	if (hits_n < 64)
		hits[hits_n] = (hit_t){ctx, producer, position, tag};
	hits_n++;
}

typedef struct site {
	uint8_t *code;
	uint16_t *semaphore;
} site_t;

/* Reads the note of the one site in the file that is loaded at base. */
static site_t read_note(const char *path, uintptr_t base)
{
	site_t site = {NULL, NULL};
	struct stat st;
	int fd = open(path, O_RDONLY);
	const uint8_t *file;
	const Elf64_Ehdr *head;
	const Elf64_Shdr *sections;
	const char *names;
	CHECK(fd >= 0 && fstat(fd, &st) == 0);
	file = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	CHECK(file != MAP_FAILED);
	close(fd);
	head = (const void *)file;
	sections = (const void *)(file + head->e_shoff);
	names = (const char *)file + sections[head->e_shstrndx].sh_offset;
	for (int i = 0; i < head->e_shnum; i++) {
		const char *at, *text; /* three words behind the owner's name, aligned to 4 bytes; the names behind these */
		uint64_t words[3];
		if (strcmp(names + sections[i].sh_name, ".note.stapsdt") != 0)
			continue;
		at = (const char *)file + sections[i].sh_offset + sizeof(Elf64_Nhdr) + 8;
		text = at + sizeof words;
		memcpy(words, at, sizeof words);
		CHECK(strcmp(text, "kvlease") == 0);
		CHECK(strcmp(text + 8, "hook__submit") == 0);
		site.code = (uint8_t *)(base + words[0]);
		site.semaphore = (uint16_t *)(base + words[2]);
	}
	munmap((void *)(uintptr_t)file, (size_t)st.st_size);
	return site;
}

static int find(struct dl_phdr_info *info, size_t size, void *out)
{
	(void)size;
	if (strstr(info->dlpi_name, "/libkvlease.so") == NULL)
		return 0;
	*(site_t *)out = read_note(info->dlpi_name, info->dlpi_addr);
	return 1;
}

static uint8_t *page_of(uint8_t *code) { return (uint8_t *)((uintptr_t)code & ~(uintptr_t)4095); }

/* Byte by byte, and unseen by the thread sanitizer, which has no shadow of code. */
__attribute__((no_sanitize_thread)) static void put(uint8_t *code, const void *from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		((volatile uint8_t *)code)[i] = ((const uint8_t *)from)[i];
}

/* A call has 32 bits of distance, so it goes by way of a jump that is mapped beside the library. */
static void attach(const site_t *site)
{
	static const uint8_t nop[5] = {0x0f, 0x1f, 0x44, 0x00, 0x00};
	uint8_t *near = NULL;
	void (*target)(uint64_t, uint64_t, uint64_t, uint64_t) = on_hit;
	size_t bytes = (size_t)(page_of(site->code + 4) - page_of(site->code)) + 4096; /* the pages with the five bytes */
	int64_t distance;
	CHECK(memcmp(site->code, nop, sizeof nop) == 0);
	for (uintptr_t at = (uintptr_t)page_of(site->code) - (1u << 20), tries = 0; tries < 1000; tries++, at -= 1u << 20) {
		near = mmap((void *)at, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		if (near != MAP_FAILED)
			break;
	}
	CHECK(near != MAP_FAILED);
	put(near, "\xff\x25\0\0\0\0", 6); /* jmp *0(%rip) */
	put(near + 6, &target, 8);
	distance = near - (site->code + 5);
	CHECK(distance == (int32_t)distance);
	CHECK(mprotect(page_of(site->code), bytes, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
	put(site->code, "\xe8", 1);
	put(site->code + 1, &(int32_t){(int32_t)distance}, 4);
	CHECK(mprotect(page_of(site->code), bytes, PROT_READ | PROT_EXEC) == 0);
}

static void each_hook_runs_through_the_site_before_the_core_sees_it(void)
{
	const uint32_t tags[] = {KVL_REC_EXPECT, KVL_REC_GRANT, KVL_REC_REVOKE, KVL_REC_CANCEL, KVL_REC_PRESSURE,
				 KVL_REC_TRACK, KVL_REC_READ, KVL_REC_UNTRACK, KVL_REC_REJECT};
	const uint32_t n = sizeof tags / sizeof *tags, ids[2] = {1, 2};
	const kvl_blocks_t blocks = {ids, 2, 0};
	const kvl_read_t read = {sizeof read, 1, &blocks, &blocks};
	kvl_ctx_t *ctx = open_ctx("{}");
	kvl_producer_t *first = open_producer(ctx), *p = open_producer(ctx);
	kvl_grant_t grant = grant_of("request", &blocks, 1, 7);
	kvl_remote_t remote = remote_of("request");
	kvl_lease_t lease;
	kvl_track_t track;
	site_t site = {NULL, NULL};
	(void)first;
	CHECK(dl_iterate_phdr(find, &site) == 1 && site.code != NULL && *site.semaphore == 0);
	attach(&site);
	for (int on = 0; on < 2; on++) {
		hits_n = 0;
		*(volatile uint16_t *)site.semaphore = (uint16_t)on;
		CHECK_STATUS(kvl_expect(p, str("request"), &grant.expected), KVL_OK);
		CHECK_STATUS(kvl_grant(p, &grant, &lease), KVL_OK);
		CHECK_STATUS(kvl_revoke(p, lease), KVL_OK);
		CHECK_STATUS(kvl_cancel(p, lease), KVL_OK);
		CHECK_STATUS(kvl_cancel(p, lease), KVL_OK); /* said before: nothing is pushed */
		CHECK_STATUS(kvl_pressure(p, 3), KVL_OK);
		CHECK_STATUS(kvl_track(p, 5, &remote, str("local"), 1, &track), KVL_OK);
		CHECK_STATUS(kvl_read(p, track, &read), KVL_OK);
		CHECK_STATUS(kvl_untrack(p, track), KVL_OK);
		CHECK_STATUS(kvl_reject(p, 5, &remote), KVL_OK);
		CHECK_STATUS(kvl_reject(p, 0, &remote), KVL_ERR_INVALID);
		CHECK_EQ(hits_n, on ? n : 0);
		for (uint32_t i = 0; i < hits_n; i++) {
			CHECK_EQ(hits[i].tag, tags[i]);
			CHECK_EQ(hits[i].producer, 1);
			CHECK(hits[i].ctx != 0 && hits[i].ctx == hits[0].ctx);
			CHECK(i == 0 || hits[i].position > hits[i - 1].position);
		}
		fake_step(fake_last());
		if (on)
			CHECK_EQ(kvl_ring_consumer_position(&fake_last()->rings[1]), hits[n - 1].position);
		fake_step(fake_last());
	}
	*(volatile uint16_t *)site.semaphore = 0;
	CHECK_STATUS(kvl_close(ctx, 0), KVL_OK);
}

int main(void)
{
	RUN(each_hook_runs_through_the_site_before_the_core_sees_it);
	return 0;
}

#else
int main(void)
{
	printf("skipped: the test puts x86-64 code in place of the nop\n");
	return 0;
}
#endif
