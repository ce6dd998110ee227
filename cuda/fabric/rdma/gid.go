package rdma

import (
	"encoding/hex"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// GID is an address of a RoCE port: one entry of its table.
type GID struct {
	Index   int
	V2      bool // RoCE v2, in UDP; else v1, which no router passes on
	Address netip.Addr
	Net     string // the network interface that it belongs to
}

// Routed tells whether peers of other networks reach the address, too.
func (g *GID) Routed() bool { return g.V2 && !g.Address.IsLinkLocalUnicast() }

// gids reads the table of a port (sysfs-class-infiniband: gids, gid_attrs/types, gid_attrs/ndevs). Most of its entries are empty: zeros, and their
// type cannot be read. In a container that has a network of its own those of other networks are so, too.
func gids(port string) (list []GID) {
	entries, _ := filepath.Glob(filepath.Join(port, "gids", "*"))
	for _, e := range entries {
		index, err := strconv.Atoi(filepath.Base(e))
		if err != nil {
			continue
		}
		raw, err := hex.DecodeString(strings.ReplaceAll(Text(e), ":", ""))
		kind := Text(port, "gid_attrs", "types", filepath.Base(e))
		if err != nil || len(raw) != 16 || kind == "" {
			continue
		}
		addr := netip.AddrFrom16([16]byte(raw)).Unmap()
		if addr.IsUnspecified() {
			continue
		}
		list = append(list, GID{Index: index, V2: kind == "RoCE v2", Address: addr, Net: Text(port, "gid_attrs", "ndevs", filepath.Base(e))})
	}
	slices.SortFunc(list, func(a, b GID) int { return a.Index - b.Index })
	return list
}
