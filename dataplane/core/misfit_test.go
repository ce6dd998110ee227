package core

import (
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/internal/await"
)

// side_failing of an engine's statistics.
func (n *node) failing() string {
	texts, _ := n.core.counters()["side_failing"].([]string)
	return strings.Join(texts, "\n")
}

// sum is a counter, all of its elements if it is an array.
func (n *node) sum(name string) (sum uint64) {
	v := reflect.ValueOf(n.core.counters()[name])
	if v.Kind() != reflect.Array {
		return n.stat(name)
	}
	for i := range v.Len() {
		sum += v.Index(i).Uint()
	}
	return sum
}

func TestRequestsAtAnEngineThatDoesNotFitFailAtOnceAndTheReasonIsNamed(t *testing.T) {
	for _, tc := range []struct {
		name, config string
		edit         func(p *node)
		want         []string
	}{
		{"another model", `{"compatibility_hash":"another"}`, func(*node) {}, []string{`engine "P"`, `compatibility_hash is "our-model" here and "another" there`}},
		{"other blocks", `{"compatibility_hash":"our-model"}`, func(p *node) {
			if err := p.core.Unregister(); err != nil {
				t.Fatal(err)
			}
			for i := range p.regions {
				p.regions[i].BlockLen, p.regions[i].BlockStride, p.regions[i].Blocks = labBlockLen/2, labBlockLen/2, 2*labBlocks
			}
			if err := p.core.Register(p.regions); err != nil {
				t.Fatal(err)
			}
		}, []string{`engine "P"`, "block_lens[0] is 256 here and 128 there"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			noLeaks(t)
			l := newSideLab(t)
			p, q, d := l.node("P", tc.config), l.node("Q", `{"compatibility_hash":"our-model"}`), l.node("D", `{"compatibility_hash":"our-model"}`)
			tc.edit(p)
			live := l.name(d, q)
			l.until("Q is connected", func() bool { return d.view(live).State == heartbeat.Connected }, p, q, d)
			_, other := l.handOver(q, d, live, "b", 2)
			engine := l.name(d, p)
			ran := await.Stopwatch(t)
			_, track := l.handOver(p, d, engine, "a", 1)
			l.read(track, blocks(8, 4), blocks(0, 4))
			l.until("its read is lost", func() bool {
				failed := d.take(record.EvReadFailed)
				if len(failed) > 0 && (failed[0].Handle != uint64(track) || failed[0].Status != record.ReadLost) {
					t.Fatalf("failed: %+v", failed)
				}
				return len(failed) == 1
			}, p, q, d)
			if took := ran(); took > time.Second { // shows C59.2: a lease lasts 30 s, and nothing else says so earlier
				t.Errorf("after %v", took)
			}
			text := d.failing()
			for _, want := range tc.want {
				if !strings.Contains(text, want) { // shows C55.1
					t.Errorf("no %q in %q", want, text)
				}
			}
			for range 3 { // what comes later does not wait either, and nobody is asked for it
				_, track := l.handOver(p, d, engine, "later", 3)
				l.until("it is gone", func() bool { return len(d.take(record.EvLeaseGone)) == 1 }, p, q, d)
				if err := d.host.Untrack(track); err != nil {
					t.Fatal(err)
				}
				l.until("it is forgotten", func() bool { return d.core.tracker.Alive() == 1 }, p, q, d)
			}
			for _, e := range d.core.side.client.Engines(nil) {
				if e.Engine == engine && e.Failures != 1 { // shows C55.3
					t.Errorf("it was asked %d times", e.Failures)
				}
			}
			l.read(other, blocks(8, 4), blocks(0, 4))
			l.until("the other engine's read ends", func() bool { return len(d.take(record.EvReadDone)) == 1 }, p, q, d)
			if n := d.wrong(2, blocks(8, 4)); n != 0 { // shows C55.2
				t.Errorf("%d words are wrong", n)
			}
			if d.stat("side_misfits") == 0 {
				t.Error("it is not counted")
			}
			d.wantSaid(t, log.HandshakeMisfit, "P", "")
			lost := d.said(t, log.RequestLost)
			for _, n := range lost {
				if !strings.Contains(n.What, "does not fit this one") {
					t.Errorf("it is said to be lost for another reason: %+v", n)
				}
			}
			if said := d.said(t, log.EngineDead); len(lost) == 0 || len(said) != 0 {
				t.Errorf("%d requests are said to be lost, and dead: %+v", len(lost), said)
			}
			// the lost requests and a read that ended well: it is the failed handshake alone that is counted as trouble
			if n := d.sum("side_client_failures"); n != 1 { // shows C75.1
				t.Errorf("%d failed handshakes are counted, want 1", n)
			}
			if n := d.sum("read_failures") + d.stat("beat_send_failed") + d.stat("beat_fixed_over"); n != 0 { // shows C75.1
				t.Errorf("%d failures of something else: %s", n, d.core.Stats())
			}
		})
	}
}

func TestRequestsAtAnEngineThatDoesNotFitAHostOfRanksFailAtOnce(t *testing.T) {
	f := newFleet(t, stream.KindShm).realTime()
	f.config = strings.Replace(teamConfig, "{", `{"compatibility_hash":"our-model",`, 1)
	q, d := f.team("Q", 2, 1), f.team("D", 2, 1)
	f.config = strings.Replace(teamConfig, "{", `{"compatibility_hash":"another",`, 1)
	p := f.team("P", 2, 1)
	live := f.connect(d, q)
	e := f.name(d, p)
	ran := await.Stopwatch(t)
	_, remote := p.grant("a", 7, blocks(3, 4))
	track := d.track(e, remote, 1)
	d.read(track, blocks(20, 4), blocks(3, 4))
	if failed := d.event(record.EvReadFailed, track); failed.Status != record.ReadLost || ran() > 2*time.Second { // shows C59.2
		t.Errorf("failed after %v: %+v", ran(), failed)
	}
	later := d.track(e, remote, 2)
	d.event(record.EvLeaseGone, later)
	if d.core.stat("side_misfits") == 0 {
		t.Error("it is not counted")
	}
	for i, r := range d.ranks {
		n := node{core: r.core}
		if lost := n.said(t, log.RequestLost); len(lost) == 0 || !strings.Contains(lost[0].What, "does not fit this one") {
			t.Errorf("rank %d says of the requests %+v", i, lost)
		}
	}
	f.exchange(q, d, live, 9) // shows C55.2
}

func TestAnEngineThatDidNotFitIsWaitedForAtItsNextAddress(t *testing.T) {
	noLeaks(t)
	l := newSideLab(t)
	p, d := l.node("P", `{"compatibility_hash":"another"}`), l.node("D", `{"compatibility_hash":"our-model"}`)
	engine := l.name(d, p)
	_, first := l.handOver(p, d, engine, "first", 1)
	l.until("P does not fit", func() bool { return len(d.take(record.EvLeaseGone)) == 1 }, p, d)
	if err := d.host.Untrack(first); err != nil {
		t.Fatal(err)
	}
	l.until("nothing is tracked", func() bool { return d.core.tracker.Alive() == 0 && d.core.side.watch.of(engine)&seenTracked == 0 }, p, d)
	l.turn(p, d)                                  // what was said of P is heard
	next, err := net.Listen("tcp", "127.0.0.1:0") // it has not answered yet
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if e := l.nameAt(d, "P", "127.0.0.1", next.Addr().(*net.TCPAddr).Port); e != engine {
		t.Fatalf("engine %#x, was %#x", e, engine)
	}
	_, track := l.handOver(p, d, engine, "second", 2)
	l.until("the side channel knows that something is tracked", func() bool { return d.core.side.watch.of(engine)&seenTracked != 0 }, p, d)
	d.core.side.lookAtPeers()
	d.core.side.dropMisfits()
	for range 10 {
		l.turn(p, d)
	}
	if gone := d.take(record.EvLeaseGone); len(gone) != 0 {
		t.Errorf("lost before it was asked: %+v", gone)
	}
	if err := d.host.Untrack(track); err != nil {
		t.Fatal(err)
	}
}
