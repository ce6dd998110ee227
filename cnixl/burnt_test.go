package cnixl

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// works shows that a peer is reached and read.
func (l *linked) works(what string) {
	l.t.Helper()
	if err := l.a.Send(l.toB, []byte(what)); err != nil {
		l.t.Fatalf("%s: send: %v", what, err)
	}
	in := transport.NewInbox(1<<16, 64)
	if n := l.b.Poll(in); n != 1 {
		l.t.Fatalf("%s: the peer got %d notifications, want 1", what, n)
	}
	copy(l.memB, what)
	x, err := l.a.PostRead(l.spec(1))
	if err != nil {
		l.t.Fatalf("%s: read: %v", what, err)
	}
	if st := status(l.a, x, 0); st != transport.Done || !bytes.HasPrefix(l.memA, []byte(what)) {
		l.t.Fatalf("%s: the read ended with status %d and %q", what, st, l.memA[:len(what)])
	}
	if err := l.a.Release(x); err != nil {
		l.t.Fatal(err)
	}
}

// What burns a name: a peer that refuses the connection while its metadata is being loaded, or a section that NIXL does not take.
func TestANameThatNIXLHasBurntIsLoadedUnderAnother(t *testing.T) {
	l := newLinked(t)
	blob, err := l.b.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	name := "P"
	for round := range 20 {
		if err := l.a.Drop(l.toB); err != nil {
			t.Fatal(err)
		}
		l.do("burn D %s", name)
		if _, err := l.a.Load(blob); !errors.Is(err, transport.ErrPeer) {
			t.Fatalf("round %d: the load that burns %s: %v, want ErrPeer", round, name, err)
		}
		if l.toB, err = l.a.Load(blob); err != nil {
			t.Fatalf("round %d: the load after it: %v", round, err)
		}
		l.works(fmt.Sprintf("round %d", round))
		name = fmt.Sprintf("P~%d", round+1)
	}
	// A name that was never burnt has an alias as well, and nobody sees it.
	other := l.open(Config{Agent: "Q"})
	if blob, err = other.Metadata(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.a.Load(blob); err != nil {
		t.Errorf("load of another agent: %v", err)
	}
}

func TestALoadThatMeetsNamesOfBurntLoadsOnlyEndsAndIsRetried(t *testing.T) {
	l := newLinked(t)
	if err := l.a.Drop(l.toB); err != nil {
		t.Fatal(err)
	}
	blob, err := l.b.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	for try := range burntMax {
		l.do("fail load_remote_md %d -1", try+1)
	}
	before := l.do("count load_remote_md")
	if _, err := l.a.Load(blob); !errors.Is(err, transport.ErrPeer) {
		t.Errorf("load: %v, want ErrPeer", err)
	}
	if n := l.do("count load_remote_md") - before; n != burntMax {
		t.Errorf("NIXL was asked %d times, want %d", n, burntMax)
	}
	if l.toB, err = l.a.Load(blob); err != nil {
		t.Fatalf("load when it works again: %v", err)
	}
	l.works("later")
}

// The answer of a handshake whose section NIXL does not take, behind which the real one must not be kept out.
func TestMetadataThatNIXLRefusesKeepsNobodyOut(t *testing.T) {
	if !alone(t) {
		return
	}
	haveNIXL(t)
	const size = 1 << 16
	r := startPeer(t, peerSetup{Agent: "prefill", Bytes: size})
	a := realNIXL(t, Config{Agent: "decode"})
	mem := memory(size)
	if err := a.Register([]transport.Region{{Addr: address(mem), Bytes: size}}); err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		if _, err := a.Load(twiceUnlike(t, r.hello.Blob)); err == nil {
			t.Fatalf("round %d: metadata with one region twice and different keys was taken", round)
		}
		to, err := a.Load(r.hello.Blob)
		if err != nil {
			t.Fatalf("round %d: the agent's own metadata after that: %v", round, err)
		}
		r.do(fmt.Sprintf("fill %d", round+1))
		x, err := a.PostRead(r.readSpec(to, mem, 4))
		if err != nil {
			t.Fatal(err)
		}
		waitUntil(t, "a read to end", func() bool { return status(a, x, 100*time.Microsecond) != transport.Pending })
		if st := status(a, x, 0); st != transport.Done || bytes.Count(mem, []byte{byte(round + 1)}) != size {
			t.Errorf("round %d: the read ended with status %d", round, st)
		}
		if err := errors.Join(a.Release(x), a.Drop(to)); err != nil {
			t.Fatal(err)
		}
	}
}

// twiceUnlike is metadata whose last descriptor stands twice, the second time with another key: "not allowed", behind the connect.
func twiceUnlike(t *testing.T, blob []byte) []byte {
	t.Helper()
	s := string(blob)
	if strings.Count(s, number("n", 1)) != 1 {
		t.Fatalf("want one descriptor in %q", s)
	}
	head, list, _ := strings.Cut(s, number("n", 1))
	w := walker{rest: []byte(list)}
	d := string(w.field(""))
	if w.cut || w.strange || len(d) <= blobDescMin {
		t.Fatalf("no descriptor in %q", list)
	}
	other := d[:len(d)-1] + string(d[len(d)-1]^1)
	return []byte(head + number("n", 2) + field("", d) + field("", other) + string(w.rest))
}
