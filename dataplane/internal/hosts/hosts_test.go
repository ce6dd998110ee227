package hosts

import (
	"net"
	"testing"
)

type from struct {
	net.Conn
	addr net.Addr
}

func (f from) RemoteAddr() net.Addr { return f.addr }

func TestOneHostIsOneWhateverItsAddressesBelow(t *testing.T) {
	at := func(ip string) Host { return Of(from{addr: &net.TCPAddr{IP: net.ParseIP(ip), Port: 7}}) }
	for _, tc := range []struct {
		a, b string
		same bool
	}{
		{"10.0.0.1", "10.0.0.1", true},
		{"10.0.0.1", "::ffff:10.0.0.1", true},
		{"10.0.0.1", "10.0.0.2", false},
		{"2001:db8::1", "2001:db8::2:3:4", true},
		{"2001:db8::1", "2001:db8:0:1::1", false},
	} {
		if same := at(tc.a) == at(tc.b); same != tc.same {
			t.Errorf("%s and %s are one: %v", tc.a, tc.b, same)
		}
	}
	if (Of(from{addr: &net.UnixAddr{}}) != Host{}) || at("10.0.0.1") == (Host{}) {
		t.Error("who is of no network is another one")
	}
	c := Crowd{}
	c.Come(at("10.0.0.1"))
	c.Come(at("10.0.0.1"))
	c.Go(at("10.0.0.1"))
	if c[at("10.0.0.1")] != 1 {
		t.Errorf("%v", c)
	}
	if c.Go(at("10.0.0.1")); len(c) != 0 {
		t.Errorf("left behind: %v", c)
	}
}
