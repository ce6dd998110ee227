package demo

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// skipped is a scene that this machine cannot play, with the reason.
type skipped struct{ why error }

func (s skipped) Error() string { return s.why.Error() }

// cutConnections resets the TCP connections between two processes, those of the side channels aside, as a broken link does. It
// needs ss of iproute2 and the right to end sockets.
func cutConnections(a, b int, sidePorts ...uint32) (int, error) {
	ss, err := exec.LookPath("ss")
	if err != nil {
		return 0, errors.New("ss of iproute2 is not installed: connections cannot be reset")
	}
	ours, err := connectionsOf(a)
	if err != nil {
		return 0, err
	}
	theirs, err := connectionsOf(b)
	if err != nil {
		return 0, err
	}
	side := map[uint16]bool{}
	for _, p := range sidePorts {
		side[uint16(p)] = true
	}
	n := 0
	for c := range ours {
		if !theirs[connection{c.remote, c.local}] || side[c.local.Port()] || side[c.remote.Port()] {
			continue
		}
		out, err := exec.Command(ss, "-K", "-t", "state", "established", "src", c.local.String(), "dst", c.remote.String()).CombinedOutput()
		if err != nil {
			return n, fmt.Errorf("ss -K: %w: %s", err, strings.TrimSpace(string(out)))
		}
		n++
	}
	if left, err := connectionsOf(a); err == nil {
		for c := range left {
			if ours[c] && theirs[connection{c.remote, c.local}] && !side[c.local.Port()] && !side[c.remote.Port()] {
				return 0, errors.New("ss -K had no effect: it needs CAP_NET_ADMIN and a kernel with INET_DIAG_DESTROY")
			}
		}
	}
	if n == 0 {
		return 0, errors.New("no TCP connection between the two processes: the transport uses another way")
	}
	return n, nil
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
		f, err := os.Open(filepath.Join(dir, file))
		if err != nil {
			continue // no IPv6 here
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			c := strings.Fields(lines.Text())
			const established = "01"
			if len(c) < 10 || c[3] != established || !inodes[c[9]] {
				continue
			}
			local, err1 := procAddr(c[1])
			remote, err2 := procAddr(c[2])
			if err := errors.Join(err1, err2); err != nil {
				f.Close()
				return nil, err
			}
			list[connection{local, remote}] = true
		}
		f.Close()
	}
	return list, nil
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
