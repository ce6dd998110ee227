/* Whether a shared library may be given to dlopen. The loader maps what the file's headers promise; where the file ends before that,
 * the first touch of the missing part is a SIGBUS in the middle of dlopen, and the host is gone. And it waits for whoever writes into a pipe. */
#ifndef KVL_WHOLE_H
#define KVL_WHOLE_H

#include <elf.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The bytes that the segments of path need beyond its end; 0: it is whole, or another has to say what is wrong with it. */
static inline unsigned long long kvl_bytes_missing(const char *path)
{
	unsigned long long need = 0;
	Elf64_Ehdr head;
	Elf64_Phdr part;
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
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
		if (part.p_type != PT_LOAD)
			continue;
		unsigned long long end = part.p_offset + part.p_filesz;
		if (end < part.p_offset)
			end = ~0ull; /* past all that a file can have */
		if (end > need)
			need = end;
	}
	close(fd);
	return need > (unsigned long long)st.st_size ? need - (unsigned long long)st.st_size : 0;
}

/* Why path is not to be given to dlopen, as it goes on behind its name; NULL: dlopen finds out itself. A name without a slash is the loader's to search:
 * what is called so in the working folder is another file. */
static inline const char *kvl_unloadable(const char *path)
{
	struct stat st;
	if (path == NULL || strchr(path, '/') == NULL || stat(path, &st) != 0 || S_ISDIR(st.st_mode))
		return NULL;
	if (!S_ISREG(st.st_mode))
		return "is a pipe, a socket or a device, and no library";
	return kvl_bytes_missing(path) != 0 ? "is cut short" : NULL;
}

#endif
