package core

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/deathwire"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/wire"
	"github.com/kvlease/kvlease/internal/await"
)

// Leases of these tests last 30 s: whatever ends sooner does not end by its deadline.

// met gives P and D with one request of P's that D tracks and P has heard of, wire and all.
func (l *sideLab) met() (p, d *node, engine uint64) {
	l.t.Helper()
	p, d = l.node("P", `{"all_peers_check": true}`), l.node("D", `{}`)
	engine = l.name(d, p)
	l.until("P is connected, and the wire is heard of", func() bool {
		return d.view(engine).State == heartbeat.Connected && p.stat("side_readers_known") == 1 && p.stat("side_readers_wires") == 1
	}, p, d)
	l.handOver(p, d, engine, "r", 1)
	l.until("a beat was applied", func() bool { return p.stat("beats_applied") > 0 }, p, d)
	return p, d, engine
}

// stop ends an engine as its process's death would: its sockets close, and it steps no more.
func stop(n *node) { n.core.side.die() }

// die ends the network work as the process's death would: without a word.
func (s *sideChannel) die() {
	if s.shut() {
		s.cut()
	}
}

func TestADeadReadersLeasesAreFreedInLessThanASecond(t *testing.T) {
	noLeaks(t)
	l := newSideLab(t)
	p, d, _ := l.met()
	died, ran := time.Now(), await.Stopwatch(t)
	stop(d)
	l.until("the lease is freed", func() bool { return p.core.Held() == 0 }, p)
	took := time.Since(died)
	evs := p.take(record.EvFreed)
	if len(evs) != 1 || evs[0].Status != record.FreedReleased || took < p.core.cfg.WireGrace || ran() > time.Second {
		t.Errorf("after %v: %+v", took, evs)
	}
	if p.stat("side_readers_dead") != 1 {
		t.Errorf("%d readers are known dead", p.stat("side_readers_dead"))
	}
	p.wantSaid(t, log.ReaderDead, fmt.Sprintf("#%016x", wire.EngineHash([]byte("D"))), "")
}

// TestHelperWire is the process that holds a reader's wire until it is killed.
func TestHelperWire(t *testing.T) {
	hello := os.Getenv("KVLEASE_TEST_WIRE")
	if hello == "" {
		t.Skip("it is the process of another test")
	}
	var addr string
	var f deathwire.Frame
	var nonce []byte
	if _, err := fmt.Sscanf(hello, "%s %x %x %x", &addr, &f.Engine, &f.Epoch, &nonce); err != nil {
		t.Fatal(err)
	}
	f.Kind = deathwire.Hello
	copy(f.Nonce[:], nonce)
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c.Write(f.Append(nil))
	if _, err := c.Read(make([]byte, deathwire.FrameLen)); err != nil {
		t.Fatal(err)
	}
	fmt.Println("up")
	c.SetDeadline(time.Now().Add(time.Minute))
	c.Read(make([]byte, 1))
}

func TestTheLeasesOfAKilledProcessAreFreedInLessThanASecond(t *testing.T) {
	l := newSideLab(t)
	p := l.node("P", `{"all_peers_check": true}`)
	d := l.node("D", `{}`)
	engine := l.connect(d, p) // out of band: the wire is the other process's
	nonce := d.core.side.nonce("P")
	addr, err := sideAddr(l.host, p.port())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelperWire$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("KVLEASE_TEST_WIRE=%s %x %x %x", addr, wire.EngineHash([]byte("D")), d.core.mem.Epoch, nonce[:]))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "up\n" {
		t.Fatalf("it says %q: %v", line, err)
	}
	l.handOver(p, d, engine, "r", 1)
	l.until("P has heard of wire and request", func() bool { return p.stat("side_readers_known") == 1 && p.stat("beats_applied") > 0 }, p, d)
	ran := await.Stopwatch(t)
	cmd.Process.Kill()
	l.until("the lease is freed", func() bool { return p.core.Held() == 0 }, p)
	if took := ran(); took > time.Second {
		t.Errorf("after %v", took)
	} else {
		t.Logf("freed after %v", took)
	}
}

func TestADeadOwnersRequestsAreLostAtOnce(t *testing.T) {
	noLeaks(t)
	l := newSideLab(t)
	p, d, _ := l.met()
	ran := await.Stopwatch(t)
	stop(p)
	l.until("the lease is known to be gone", func() bool { return len(d.take(record.EvLeaseGone)) == 1 }, d)
	if took := ran(); took > time.Second {
		t.Errorf("after %v", took)
	}
	if d.stat("side_owners_dead") != 1 {
		t.Errorf("%d owners are known dead", d.stat("side_owners_dead"))
	}
}

func TestAnOwnerThatRestartsAtItsAddressIsANewEngine(t *testing.T) {
	noLeaks(t)
	l := newSideLab(t)
	p, d, engine := l.met()
	port := p.port()
	p.core.Close(0)
	l.until("the old life's request is lost", func() bool { return len(d.take(record.EvLeaseGone)) == 1 }, d)
	again := l.node("P", `{}`, port)
	l.until("the new life is connected", func() bool { return d.view(engine).State == heartbeat.Connected && d.stat("side_loads") >= 2 }, again, d)
	_, track := l.handOver(again, d, engine, "s", 2)
	l.read(track, blocks(8, 4), blocks(0, 4))
	l.until("a read from it ends", func() bool { return len(d.take(record.EvReadDone)) == 1 }, again, d)
	if n := d.wrong(2, blocks(8, 4)); n != 0 { // shows C46.4, S26.1
		t.Errorf("%d words are wrong", n)
	}
}

func TestAnotherEngineAtAnOwnersAddressIsNotTakenForIt(t *testing.T) {
	l := newSideLab(t)
	p, d, engine := l.met()
	port := p.port()
	p.core.Close(0)
	other := l.node("Q", `{}`, port)
	l.until("the request is lost, and the stranger counted", func() bool {
		return len(d.take(record.EvLeaseGone)) == 1 || d.stat("side_wrong_engine") > 0
	}, other, d)
	l.until("the stranger is counted", func() bool { return d.stat("side_wrong_engine") > 0 }, other, d)
	if s := d.view(engine).State; s == heartbeat.Connected {
		t.Errorf("the engine is %v", s)
	}
	d.wantSaid(t, log.WrongEngine, "P", "")
	if said := d.said(t, log.WrongEngine); !strings.Contains(said[0].What, fmt.Sprintf(`:%d: `, port)) || !strings.Contains(said[0].What, `it is "Q", not "P"`) {
		t.Errorf("who answers, and where, is not said: %+v", said)
	}
	q := l.name(d, other)
	l.until("it is known under its own name", func() bool { return d.view(q).State == heartbeat.Connected }, other, d)
}

// Without death wires the break of the connection is what makes the reader ask again.
func TestRequestsOfAnEngineWhoseAddressAnotherOneHasAreLost(t *testing.T) {
	l := newSideLab(t)
	edit := l.edit
	l.edit = func(cfg *Config) { edit(cfg); cfg.DeathWire = false }
	p, d := l.node("P", `{}`), l.node("D", `{"kv_lease_duration": 6}`)
	engine := l.name(d, p)
	l.until("P is connected", func() bool { return d.view(engine).State == heartbeat.Connected }, p, d)
	l.handOver(p, d, engine, "r", 1)
	l.until("a beat was applied", func() bool { return p.stat("beats_applied") > 0 }, p, d)
	if p.core.side.readers != nil || d.core.side.owners != nil {
		t.Fatal("there are wires")
	}
	port := p.port()
	p.core.Close(5 * time.Second)
	other := l.node("Q", `{}`, port)
	began := time.Now()
	l.until("the request is lost", func() bool { return len(d.take(record.EvLeaseGone)) == 1 }, other, d)
	if d.stat("side_wrong_engine") == 0 || time.Since(began) > d.core.cfg.Duration { // shows C47.1
		t.Errorf("after %v, %d wrong engines", time.Since(began), d.stat("side_wrong_engine"))
	}
}

func TestContextsOpenAndCloseWithoutLeavingAnything(t *testing.T) {
	noLeaks(t)
	l := newSideLab(t)
	for i := range 20 {
		p, d := l.node(fmt.Sprint("P", i), `{"requests_max": 64, "tracked_max": 64}`), l.node(fmt.Sprint("D", i), `{"requests_max": 64, "tracked_max": 64}`)
		engine := l.name(d, p)
		l.name(p, d)
		switch i % 4 {
		case 0: // at once
		case 1:
			l.until("they have met", func() bool { return d.view(engine).State == heartbeat.Connected }, p, d)
		case 2:
			l.until("a wire is up", func() bool { return p.stat("side_readers_wires") == 1 }, p, d)
		case 3:
			p.core.Unregister()
		}
		within(t, "Close", func() {
			for _, n := range []*node{p, d}[i%2:] {
				n.core.Close(0)
			}
		})
	}
}

// The nonce of a hello is that of the wire in every era.
func TestAReaderThatHasRegisteredAgainIsKnownDead(t *testing.T) {
	noLeaks(t)
	l := newSideLab(t)
	p, d, engine := l.met()
	if err := d.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	l.until("its former life is over", func() bool { return p.core.Held() == 0 && p.stat("side_readers_withdrawn") == 1 }, p, d)
	p.take(record.EvFreed)
	if err := d.core.Register(d.regions); err != nil {
		t.Fatal(err)
	}
	l.until("P is connected again", func() bool { return d.view(engine).State == heartbeat.Connected }, p, d)
	beats := p.stat("beats_applied")
	l.handOver(p, d, engine, "s", 2)
	l.until("a beat was applied", func() bool { return p.stat("beats_applied") > beats && p.stat("side_readers_wires") == 1 }, p, d)
	stop(d)
	l.until("D is known dead", func() bool { return p.stat("side_readers_dead") == 1 && p.core.Held() == 0 }, p)
	if evs := p.take(record.EvFreed); len(evs) != 1 || evs[0].Status != record.FreedReleased {
		t.Errorf("freed %+v", evs)
	}
}

// The tracker asks for nonces under its lock, and what the side channel tells the tracker is told under the side channel's.
func TestANonceIsHadWhileThePeersAreLookedAfter(t *testing.T) {
	l := newSideLab(t)
	d := l.node("D", `{}`)
	d.core.side.mu.Lock()
	defer d.core.side.mu.Unlock()
	within(t, "nonce", func() {
		if d.core.nonce("P") == d.core.nonce("Q") {
			t.Error("two owners get one nonce")
		}
	})
}
