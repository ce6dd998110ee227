package cnixl

import (
	"net"
	"os"
	"path/filepath"
	"strings"
)

// nic is a network interface other than loopback, or a port of an RDMA NIC.
type nic struct {
	name string
	up   bool // running, with an address; of a port: active
}

// allDown names those that there are, if not one of them is up.
func allDown(nics []nic) (names []string) {
	for _, n := range nics {
		if n.up {
			return nil
		}
		names = append(names, n.name)
	}
	return names
}

// nics lists what UCX would look at (ucs_netif_is_active; ports by their state).
func nics(sys string) (list []nic) {
	all, _ := net.Interfaces()
	for i := range all {
		if all[i].Flags&net.FlagLoopback != 0 {
			continue
		}
		addrs, _ := all[i].Addrs()
		list = append(list, nic{all[i].Name, all[i].Flags&net.FlagUp != 0 && all[i].Flags&net.FlagRunning != 0 && len(addrs) > 0})
	}
	ports, _ := filepath.Glob(filepath.Join(sys, "class/infiniband/*/ports/*/state"))
	for _, p := range ports {
		state, _ := os.ReadFile(p)
		list = append(list, nic{filepath.Base(filepath.Join(p, "../../..")), strings.Contains(string(state), "ACTIVE")})
	}
	return list
}

// Alone implements transport.Lonely.
func (a *Agent) Alone() (down []string) { return a.down }
