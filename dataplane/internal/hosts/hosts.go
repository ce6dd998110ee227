// Package hosts tells whose connections crowd a listener, so that one host's give way to each other and keep nobody else out.
package hosts

import (
	"net"
	"net/netip"
)

// Host is one that connects. The zero value is the one of all connections that are of no network.
type Host struct{ addr netip.Addr }

// Of is the host at the other end of a connection. Of IPv6 the upper 64 bits count: one host may have all addresses below them.
func Of(c net.Conn) Host {
	t, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return Host{}
	}
	a := t.AddrPort().Addr().Unmap().WithZone("")
	if a.Is6() {
		p, _ := a.Prefix(64) // 64 bits are fewer than it has
		a = p.Addr()
	}
	return Host{a}
}

// Crowd counts connections by host. Whoever has it bounds them.
//
// Threads: one.
type Crowd map[Host]int

// Come takes one more of a host in.
func (c Crowd) Come(h Host) { c[h]++ }

// Go takes one out.
func (c Crowd) Go(h Host) {
	if c[h]--; c[h] <= 0 {
		delete(c, h)
	}
}
