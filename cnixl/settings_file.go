package cnixl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// settingsFile tells what may be wrong with the file that NIXL takes settings from: NIXL_CONFIG_FILE, else .nixl.cfg in HOME. If it
// may not even look for one there, or cannot read it, NIXL makes no agent, and says status -2 without a word: a process that has changed its
// user and kept HOME is enough. Empty: nothing that can be seen. Seen with NIXL 1.5.1.
func settingsFile(env func(string) string) string {
	file, named := env("NIXL_CONFIG_FILE"), true
	if file == "" {
		home := env("HOME")
		if home == "" {
			return ""
		}
		file, named = filepath.Join(home, ".nixl.cfg"), false
	}
	f, err := os.Open(file)
	switch {
	case err == nil:
		f.Close()
		if file == os.DevNull {
			return ""
		}
		return fmt.Sprintf("; NIXL takes settings from %s: is that TOML as it expects it?", file)
	case !named && (errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR)):
		return ""
	}
	return fmt.Sprintf("; NIXL gives up where it cannot look for its settings: %v. Remedy: HOME= a folder that this user may read, or NIXL_CONFIG_FILE=%s", err, os.DevNull)
}
