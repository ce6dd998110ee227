package main

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/kvlease/kvlease/cnixl"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// transports are the implementations that an engine stand-in can open.
var transports = map[string]core.OpenTransport{
	"nixl": func(cfg *core.Config, agent string) (transport.Transport, error) {
		return cnixl.Open(cnixl.Config{
			Path: cfg.NixlPath, Folders: nixlFolders(), Agent: agent, PeersMax: cfg.PeersMax(), ReadsMax: 1 << 14, Settings: cfg.Settings,
		})
	},
	"loopback": core.Loopback(hub),
}

// hub joins the loopback agents of this process.
var hub = loopback.NewHub()

// nixlFolders are where `make deps` unpacks the NIXL wheel: beside the build folder that holds this program, or below
// the working directory.
func nixlFolders() []string {
	var folders []string
	if exe, err := os.Executable(); err == nil {
		dir := filepath.Dir(exe)
		folders = append(folders, dir, filepath.Dir(dir))
	}
	if dir, err := os.Getwd(); err == nil && !slices.Contains(folders, dir) {
		folders = append(folders, dir)
	}
	return folders
}
