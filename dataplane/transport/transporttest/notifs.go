package transporttest

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// expect waits for exactly one notification.
func (p *pair) expect(at transport.Transport, from string, body []byte) {
	p.t.Helper()
	n := 0
	p.until("a notification", func() bool {
		p.collect(at, func(agent, got []byte) {
			n++
			if string(agent) != from || !bytes.Equal(got, body) {
				p.t.Fatalf("got %d bytes from %q, want %d bytes from %q", len(got), agent, len(body), from)
			}
		})
		return n > 0
	})
	if n != 1 {
		p.t.Fatalf("arrived %d times", n)
	}
}

func testNotifSizes(t *testing.T, p *pair) {
	_, _, toB, toA := p.link(1 << 12)
	for _, n := range []int{0, 1, 7, 8, 15, 16, 17, 64, 255, 256, 1000, 4096, 8191, 8192, 16384, 40000, 65535, 65536} {
		body := make([]byte, n)
		for i := range body {
			body[i] = byte(p.rand.Uint32())
		}
		must(t, p.A.Send(toB, body))
		p.expect(p.B, p.A.Agent(), body)
		must(t, p.B.Send(toA, body))
		p.expect(p.A, p.B.Agent(), body)
	}
}

func testNotifOrder(t *testing.T, p *pair) {
	const total, ahead = 3000, 64
	_, _, toB, toA := p.link(1 << 12)
	// The size tells nothing about the order: small ones may not overtake large ones.
	sizes := []int{4, 9, 40, 200, 1100, 4000, 9000, 17000, 5}
	var sent, got [2]int
	buf := make([]byte, 20000)
	send := func(i int, from transport.Transport, to transport.Peer) {
		for sent[i] < total && sent[i]-got[i] < ahead {
			binary.LittleEndian.PutUint32(buf, uint32(sent[i]))
			must(t, from.Send(to, buf[:sizes[p.rand.IntN(len(sizes))]]))
			sent[i]++
		}
	}
	take := func(i int, at transport.Transport) {
		p.collect(at, func(_, body []byte) {
			if n := binary.LittleEndian.Uint32(body); n != uint32(got[i]) {
				t.Fatalf("notification %d arrived in place of %d", n, got[i])
			}
			got[i]++
		})
	}
	p.until("all notifications", func() bool {
		send(0, p.A, toB)
		take(0, p.B)
		send(1, p.B, toA)
		take(1, p.A)
		return got[0] == total && got[1] == total
	})
}

func testBacklog(t *testing.T, p *pair) {
	const total = 50
	_, _, toB, _ := p.link(1 << 12)
	for i := range total {
		must(t, p.A.Send(toB, []byte{byte(i), 1, 2, 3}))
	}
	full := transport.NewInbox(1, 256)
	full.Put(nil, []byte("taken"))
	p.until("the backlog to count all", func() bool {
		p.A.Poll(p.inA)
		if n := p.B.Poll(full); n != 0 {
			t.Fatalf("%d notifications went into a full inbox", n)
		}
		return p.B.Backlog() == total
	})
	small := transport.NewInbox(4, 256)
	for got := 0; got < total; {
		small.Reset()
		n := p.B.Poll(small)
		if n != min(4, total-got) || small.Len() != n {
			t.Fatalf("after %d: poll gave %d, inbox holds %d", got, n, small.Len())
		}
		for {
			_, body, ok := small.Next()
			if !ok {
				break
			}
			if len(body) != 4 || body[0] != byte(got) {
				t.Fatalf("notification %v in place of %d", body, got)
			}
			got++
		}
		if p.B.Backlog() != total-got {
			t.Fatalf("after %d the backlog is %d", got, p.B.Backlog())
		}
	}
	// By bytes: room for two of these with their name.
	body := make([]byte, 100)
	tight := transport.NewInbox(64, 2*(len(body)+len(p.A.Agent()))+10)
	for i := range 9 {
		body[0] = byte(i)
		must(t, p.A.Send(toB, body))
	}
	got := 0
	p.until("nine notifications, two at a time", func() bool {
		tight.Reset()
		if n := p.B.Poll(tight); n > 2 {
			t.Fatalf("%d notifications in an inbox for two", n)
		}
		for {
			_, b, ok := tight.Next()
			if !ok {
				break
			}
			if len(b) != len(body) || b[0] != byte(got) {
				t.Fatalf("notification %d in place of %d", b[0], got)
			}
			got++
		}
		return got == 9
	})
}

func testTooLong(t *testing.T, p *pair) {
	_, _, toB, _ := p.link(1 << 12)
	in := transport.NewInbox(8, 1024)
	must(t, p.A.Send(toB, []byte("before")))
	must(t, p.A.Send(toB, make([]byte, 4096)))
	must(t, p.A.Send(toB, []byte("after")))
	var got []string
	p.until("the notification after the long one", func() bool {
		in.Reset()
		if n := p.B.Poll(in); n != in.Len() {
			t.Fatalf("poll reports %d, inbox holds %d", n, in.Len())
		}
		for {
			_, body, ok := in.Next()
			if !ok {
				break
			}
			got = append(got, string(body))
		}
		return len(got) >= 2
	})
	if len(got) != 2 || got[0] != "before" || got[1] != "after" || in.TooLong != 1 {
		t.Errorf("got %q, %d too long; want before and after, 1 too long", got, in.TooLong)
	}
}
