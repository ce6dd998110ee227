package cnixl

// #include <dlfcn.h>
// #include <stdlib.h>
//
// static const char *ucx_version(const char *file)
// {
//	void *library = dlopen(file, RTLD_NOW | RTLD_NOLOAD);
//	if (library == NULL)
//		return NULL;
//	const char *(*version)(void) = (const char *(*)(void))dlsym(library, "ucp_get_version_string");
//	const char *text = version != NULL ? version() : NULL;
//	dlclose(library); /* one of its holders: the library stays, and its text with it */
//	return text;
// }
import "C"

import (
	"path/filepath"
	"strings"
	"unsafe"
)

// UCX is a copy of UCX that this process has mapped.
type UCX struct{ File, Version string }

// MappedUCX lists the copies of UCX in this process: one, once an agent has been opened. More than one is trouble, since each of
// them patches libc's functions for memory.
func MappedUCX() (copies []UCX) {
	for _, file := range mappedFiles() {
		if !IsUCX(file) || len(copies) > 0 && copies[len(copies)-1].File == file {
			continue
		}
		name := C.CString(file)
		if v := C.ucx_version(name); v != nil {
			copies = append(copies, UCX{file, C.GoString(v)})
		}
		C.free(unsafe.Pointer(name))
	}
	return copies
}

// IsUCX and IsNIXL tell whether a file is the core library of UCX or of NIXL, by its name: libucp.so.0 or libucp-b39b3ed9.so.0.0.0.
func IsUCX(file string) bool {
	base := filepath.Base(file)
	return (strings.HasPrefix(base, "libucp.") || strings.HasPrefix(base, "libucp-")) && strings.Contains(base, ".so")
}

// IsNIXL is IsUCX for NIXL.
func IsNIXL(file string) bool {
	return nixlFile.MatchString(filepath.Base(file)) && !strings.Contains(filepath.Base(file), "_capi")
}
