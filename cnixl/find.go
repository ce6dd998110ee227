package cnixl

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// Library says which NIXL is in use.
type Library struct {
	File    string // path of libnixl_capi.so
	Plugins string // folder of its plugins; empty: NIXL looks by itself
	Version string // of the wheel that File belongs to, else "unknown"
	How     string // which step of the search found it: "config", "KVLEASE_NIXL", "mapped", "wheel", "loader"
}

const capiName = "libnixl_capi.so"

// search is what find looks at; a test gives its own.
type search struct {
	path    string   // from the configuration: a file or a folder
	env     string   // KVLEASE_NIXL: a file or a folder
	maps    []string // files mapped into this process
	folders []string // where an unpacked wheel may lie
}

// find picks the NIXL to open. An empty File with How "loader" leaves it to the loader.
//
// A named library must be there. Without a name, a NIXL that the process has mapped already is the one: two copies would
// each start UCX and take turns at patching libc.
func find(s search) (Library, error) {
	for _, named := range []struct{ how, path string }{{"config", s.path}, {"KVLEASE_NIXL", s.env}} {
		if named.path == "" {
			continue
		}
		file, ok := capiAt(named.path)
		if !ok {
			return Library{}, fmt.Errorf("NIXL named by %s: no %s at %s: %w", named.how, capiName, named.path, transport.ErrUnavailable)
		}
		return describe(file, named.how), nil
	}
	if mapped := mappedNIXL(s.maps); mapped != "" {
		file := filepath.Join(filepath.Dir(mapped), capiName)
		if !isFile(file) {
			return Library{}, fmt.Errorf("%s is in this process without %s beside it; a second copy is refused unless KVLEASE_NIXL names it: %w",
				mapped, capiName, transport.ErrUnavailable)
		}
		return describe(file, "mapped"), nil
	}
	for _, folder := range s.folders {
		for _, sub := range []string{"", "nixl", "third_party/nixl"} {
			if file, ok := capiAt(filepath.Join(folder, sub)); ok {
				return describe(file, "wheel"), nil
			}
		}
	}
	return Library{Version: "unknown", How: "loader"}, nil
}

// looked tells where find has looked when the loader had nothing either: nothing was named.
func (s search) looked() string {
	folders := "no folders given"
	if len(s.folders) > 0 {
		folders = "no wheel in " + strings.Join(s.folders, ", ") + ", nor in nixl, third_party/nixl below"
	}
	return "nixl_path, KVLEASE_NIXL not set; none mapped in this process; " + folders
}

// capiAt finds the library at a path that is the file, its folder or an unpacked wheel.
func capiAt(path string) (string, bool) {
	if isFile(path) {
		return path, true
	}
	for _, pattern := range []string{capiName, ".nixl*.mesonpy.libs/" + capiName, "nixl*.libs/" + capiName, "lib*/" + capiName, "lib/*/" + capiName} {
		if found, _ := filepath.Glob(filepath.Join(quoteGlob(path), pattern)); len(found) > 0 {
			return found[0], true
		}
	}
	return "", false
}

// quoteGlob makes a folder's name stand for itself in a pattern.
func quoteGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

// describe fills in what lies around a library file.
func describe(file, how string) Library {
	if abs, err := filepath.Abs(file); err == nil { // NIXL reads its plugins' folder later, when the host may be elsewhere
		file = abs
	}
	l := Library{File: file, How: how, Version: "unknown"}
	dir := quoteGlob(filepath.Dir(file))
	for _, pattern := range []string{"plugins/libplugin_UCX.so", "../nixl*.libs/nixl/libplugin_UCX.so", "nixl/libplugin_UCX.so"} {
		if found, _ := filepath.Glob(filepath.Join(dir, pattern)); len(found) > 0 {
			l.Plugins = filepath.Dir(found[0])
			break
		}
	}
	// The wheel's folder is named for the package: .nixl_cu12.mesonpy.libs beside nixl_cu12-1.5.1.dist-info.
	packageName, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(filepath.Dir(file)), "."), ".")
	infos, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), "nixl*-*.dist-info"))
	for _, info := range infos {
		name, version, _ := strings.Cut(strings.TrimSuffix(filepath.Base(info), ".dist-info"), "-")
		if name == packageName || len(infos) == 1 {
			l.Version = version
		}
	}
	return l
}

var nixlFile = regexp.MustCompile(`^libnixl(_capi)?(-[0-9a-f]+)?\.so(\.[0-9.]+)?$`)

// mappedNIXL gives the first file among maps that is NIXL.
func mappedNIXL(maps []string) string {
	for _, file := range maps {
		if nixlFile.MatchString(filepath.Base(file)) {
			return file
		}
	}
	return ""
}

// mappedFiles lists the libraries of this process. Without /proc there are none.
func mappedFiles() []string {
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil
	}
	var files []string
	for line := range strings.Lines(string(b)) {
		// address perms offset dev inode path; the path may hold spaces
		if i := strings.IndexByte(line, '/'); i >= 0 {
			file := strings.TrimSuffix(strings.TrimSpace(line[i:]), " (deleted)")
			if len(files) == 0 || files[len(files)-1] != file {
				files = append(files, file)
			}
		}
	}
	return files
}
