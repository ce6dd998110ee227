package demo

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAnAddressOfTheKernelsTableIsRead(t *testing.T) {
	for _, tc := range []struct {
		text, want string
	}{
		{"0100007F:1F90", "127.0.0.1:8080"},
		{"0A00020F:0050", "15.2.0.10:80"},
		{"00000000000000000000000001000000:0016", "[::1]:22"},
		{"B80D01200000000067452301EFCDAB89:FFFF", "[2001:db8::123:4567:89ab:cdef]:65535"},
		{"0000000000000000FFFF00000100007F:1F90", "127.0.0.1:8080"}, // an IPv4 connection of an IPv6 socket
	} {
		got, err := procAddr(tc.text)
		if err != nil || got != netip.MustParseAddrPort(tc.want) {
			t.Errorf("%s is read as %v, %v, want %s", tc.text, got, err, tc.want)
		}
	}
	for _, text := range []string{"", "0100007F", "0100007F:", "0100007F:1F9000", "0100007:1F90", "0100:1F90", "0100007F00:1F90", "xx00007F:1F90"} {
		if got, err := procAddr(text); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}

func TestOnlyEstablishedConnectionsOfTheProcessAreTaken(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0000000000000000 100 0 0 10 0
   1: 0100007F:1F90 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 12 1 0000000000000000 20 4 30 10 -1
   2: 0100007F:1F91 0100007F:9C41 01 00000000:00000000 00:00000000 00000000     0        0 13 1 0000000000000000 20 4 30 10 -1
   3: 0100007F:1F92 0100007F:9C42 06 00000000:00000000 03:00001725 00000000     0        0 0 3 0000000000000000
   4: cut
`
	list := map[connection]bool{}
	if err := established(table, map[string]bool{"11": true, "12": true, "0": true}, list); err != nil {
		t.Fatal(err)
	}
	want := map[connection]bool{{netip.MustParseAddrPort("127.0.0.1:8080"), netip.MustParseAddrPort("127.0.0.1:40000")}: true}
	if diff := cmp.Diff(want, list, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("connections (-want +got):\n%s", diff)
	}
	if err := established("0: bad 0100007F:9C40 01 0 0 0 0 0 12 1", map[string]bool{"12": true}, list); err == nil {
		t.Error("an address that is none was taken")
	}
}

// here is this process in the place of an engine.
type here struct{ process }

func (here) PID() int { return os.Getpid() }

func TestTheConnectionsBetweenTwoProcessesAreFoundWithoutSideChannels(t *testing.T) {
	pair := func() (uint32, connection) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		s, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		addr := func(a net.Addr) netip.AddrPort { return a.(*net.TCPAddr).AddrPort() }
		return uint32(addr(l.Addr()).Port()), connection{addr(c.LocalAddr()), addr(c.RemoteAddr())}
	}
	side, ofSide := pair()
	_, other := pair()
	found := func(p, d uint32) map[connection]bool {
		list, err := connectionsBetween(&engine{spec: spec{port: p}, proc: here{}}, &engine{spec: spec{port: d}, proc: here{}})
		if err != nil {
			t.Fatal(err)
		}
		all := map[connection]bool{}
		for _, c := range list {
			all[c] = true
		}
		return all
	}
	if all := found(0, 0); !all[ofSide] || !all[other] {
		t.Errorf("%v lacks %v or %v", all, ofSide, other)
	}
	for _, all := range []map[connection]bool{found(side, 0), found(0, side)} {
		if all[ofSide] || !all[other] {
			t.Errorf("%v: %v is of the side channel, %v is not", all, ofSide, other)
		}
	}
}
