/* Whether a shared library was copied whole. The loader maps what the file's headers promise; where the file ends before that,
 * the first touch of the missing part is a SIGBUS in the middle of dlopen, and the host is gone. */
#ifndef KVL_WHOLE_H
#define KVL_WHOLE_H

#include <elf.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The bytes that the segments of path need beyond its end; 0: it is whole, or dlopen has to say what is wrong with it. */
static inline unsigned long long kvl_bytes_missing(const char *path)
{
	unsigned long long need = 0;
	Elf64_Ehdr head;
	Elf64_Phdr part;
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || pread(fd, &head, sizeof head, 0) != sizeof head ||
	    memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_phentsize != sizeof part) {
		close(fd);
		return 0;
	}
	for (int i = 0; i < head.e_phnum; i++) {
		if (pread(fd, &part, sizeof part, (off_t)(head.e_phoff + (unsigned long long)i * sizeof part)) != sizeof part) {
			need = ~0ull; /* not even its headers are all there */
			break;
		}
		if (part.p_type == PT_LOAD && part.p_offset + part.p_filesz > need)
			need = part.p_offset + part.p_filesz;
	}
	close(fd);
	return need > (unsigned long long)st.st_size ? need - (unsigned long long)st.st_size : 0;
}

#endif
