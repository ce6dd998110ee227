package handshake

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/wire"
)

func TestAnAskerNeedsToKnowNothingOfWhomItAsks(t *testing.T) {
	s, err := Serve("127.0.0.1:0", ServerConfig{Monotonic: monotonic})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for r, id := range map[Rank]string{{0, 0}: "P", {0, 1}: "P"} {
		if err := s.Set(r, Payload{Hash: hashA, Metadata: stockMap(id, r.String())}); err != nil {
			t.Fatal(err)
		}
	}
	a, err := Dial(t.Context(), s.Addr().String(), longest, boottime)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for _, r := range []Rank{{0, 0}, {0, 1}, {0, 0}} {
		m, sample, err := a.Ask(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if m.Hash != hashA || m.Rank != r || m.Handshake.EngineID != "P" || string(m.Handshake.AgentMetadata) != r.String() {
			t.Errorf("%+v", m)
		}
		var o clock.Offset
		if o.Observe(sample) != clock.Better {
			t.Errorf("%+v says nothing", sample)
		}
	}
	a.Expect("Q", "")
	if _, _, err := a.Ask(t.Context(), Rank{}); !errors.Is(err, ErrWrongEngine) {
		t.Errorf("another engine than the one expected: %v", err)
	}
	a.Expect("P", hashB)
	if _, _, err := a.Ask(t.Context(), Rank{}); !errors.Is(err, ErrIncompatible) {
		t.Errorf("another hash than the one expected: %v", err)
	}
	if _, _, err := a.Ask(t.Context(), Rank{0, 2}); ClassOf(err) != HungUp || !strings.Contains(err.Error(), Unregistered) {
		t.Errorf("a rank that is not there: %v", err)
	}
}

func TestAnAskerCountsRanksAsTheEngineDoes(t *testing.T) {
	s, err := Serve("127.0.0.1:0", ServerConfig{Monotonic: monotonic})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	m := stockMap("P", "x")
	for _, r := range allRanks(2, 2) {
		l := &wire.HandshakeLease{Epoch: 1, Base: 1, Board: 8, Slots: 1, Duration: time.Second, Agent: "a", Rank: r.PP*2 + r.Transfer, TP: 2, PP: 2}
		merged, err := wire.AppendMerged(nil, m, l)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Set(r, Payload{Hash: hashA, Metadata: merged}); err != nil {
			t.Fatal(err)
		}
	}
	a, err := Dial(t.Context(), s.Addr().String(), longest, boottime)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for _, r := range allRanks(2, 2) {
		if _, _, err := a.Ask(t.Context(), r); err != nil {
			t.Errorf("%s: %v", r, err)
		}
	}
}

func TestWhatAnAskerFindsIsToldByItsClass(t *testing.T) {
	speaks := listens(t, func(c net.Conn) {
		_, _ = c.Write([]byte("SSH-2.0-OpenSSH_9.2p1 Debian\r\n"))
		_, _ = c.Read(make([]byte, 1))
	})
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close()
	silent := listens(t, func(c net.Conn) { // until it is closed
		for b := make([]byte, 64); ; {
			if _, err := c.Read(b); err != nil {
				return
			}
		}
	})
	for _, tc := range []struct {
		name, addr string
		timeout    time.Duration
		want       Class
	}{
		{"nobody listens", nobody.Addr().String(), longest, Unreachable},
		{"a server of something else", speaks, longest, NotZMTP},
		{"somebody who says nothing", silent, 100 * time.Millisecond, Silent},
	} {
		a, err := Dial(t.Context(), tc.addr, tc.timeout, boottime)
		if got := ClassOf(err); got != tc.want || !strings.Contains(err.Error(), tc.addr) {
			t.Errorf("%s: %s (%v), want %s", tc.name, got, err, tc.want)
		}
		if a != nil {
			t.Errorf("%s: an asker and an error", tc.name)
		}
	}
	if _, err := Dial(t.Context(), silent, 0, boottime); !errors.Is(err, ErrInvalid) {
		t.Errorf("without a time-out: %v", err)
	}
}
