package demo

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// skipped is a scene that this machine cannot play, with the reason.
type skipped struct{ why error }

func (s skipped) Error() string { return s.why.Error() }

// cutConnections resets the TCP connections between two engines, those of the side channels aside, as a broken link does. It
// needs ss of iproute2 and the right to end sockets.
func cutConnections(a, b *engine) (int, error) {
	ss, err := exec.LookPath("ss")
	if err != nil {
		return 0, errors.New("ss of iproute2 is not installed: connections cannot be reset")
	}
	found, err := connectionsBetween(a, b)
	if err != nil {
		return 0, err
	}
	if len(found) == 0 {
		return 0, errors.New("no TCP connection between the two processes: the transport uses another way")
	}
	for _, c := range found {
		out, err := exec.Command(ss, "-K", "-t", "state", "established", "src", c.local.String(), "dst", c.remote.String()).CombinedOutput()
		if err != nil {
			return 0, fmt.Errorf("ss -K: %w: %s", err, strings.TrimSpace(string(out)))
		}
	}
	left, err := connectionsBetween(a, b)
	if err != nil {
		return 0, err
	}
	for _, c := range left {
		if slices.Contains(found, c) {
			return 0, errors.New("ss -K had no effect: it needs CAP_NET_ADMIN and a kernel with INET_DIAG_DESTROY")
		}
	}
	return len(found), nil
}

// connectionsBetween lists a's ends of the connections to b, without side channels.
func connectionsBetween(a, b *engine) ([]connection, error) {
	ours, err := connectionsOf(a.proc.PID())
	if err != nil {
		return nil, err
	}
	theirs, err := connectionsOf(b.proc.PID())
	if err != nil {
		return nil, err
	}
	side := func(p uint16) bool { return uint32(p) == a.spec.port || uint32(p) == b.spec.port }
	var list []connection
	for c := range ours {
		if theirs[connection{c.remote, c.local}] && !side(c.local.Port()) && !side(c.remote.Port()) {
			list = append(list, c)
		}
	}
	return list, nil
}

type connection struct{ local, remote netip.AddrPort }

// connectionsOf lists the established TCP connections that a process holds.
func connectionsOf(pid int) (map[connection]bool, error) {
	dir := fmt.Sprintf("/proc/%d", pid)
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return nil, err
	}
	inodes := map[string]bool{}
	for _, fd := range fds {
		to, err := os.Readlink(filepath.Join(dir, "fd", fd.Name()))
		if inode, ok := strings.CutPrefix(to, "socket:["); err == nil && ok {
			inodes[strings.TrimSuffix(inode, "]")] = true
		}
	}
	list := map[connection]bool{}
	for _, file := range []string{"net/tcp", "net/tcp6"} {
		table, err := os.ReadFile(filepath.Join(dir, file))
		if errors.Is(err, os.ErrNotExist) {
			continue // no IPv6 here
		}
		if err == nil {
			err = established(string(table), inodes, list)
		}
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// established adds the established connections of these sockets from a table like /proc/net/tcp.
func established(table string, inodes map[string]bool, list map[connection]bool) error {
	for line := range strings.Lines(table) {
		c := strings.Fields(line)
		const state = "01"
		if len(c) < 10 || c[3] != state || !inodes[c[9]] {
			continue
		}
		local, err1 := procAddr(c[1])
		remote, err2 := procAddr(c[2])
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		list[connection{local, remote}] = true
	}
	return nil
}

// procAddr reads an address of /proc/net/tcp: words of the address in the machine's order, then the port.
func procAddr(s string) (netip.AddrPort, error) {
	host, port, ok := strings.Cut(s, ":")
	raw, err := hex.DecodeString(host)
	n, err2 := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil || err2 != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, fmt.Errorf("address %q in /proc/net/tcp", s)
	}
	for i := 0; i < len(raw); i += 4 {
		raw[i], raw[i+1], raw[i+2], raw[i+3] = raw[i+3], raw[i+2], raw[i+1], raw[i]
	}
	addr, ok := netip.AddrFromSlice(net.IP(raw))
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("address %q in /proc/net/tcp", s)
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(n)), nil
}
