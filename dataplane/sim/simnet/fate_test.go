package simnet_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/sim/simnet"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// script is engines that step every few milliseconds and then send and read, as D's round does. What is in skip is left out.
type script struct {
	net  *simnet.Net
	log  []string
	seen map[string][]clock.Instant // arrivals of each message, ends of each read
}

const scriptSteps, scriptPeers = 60, 3

func runScript(t testing.TB, seed uint64, link simnet.Link, skip string) *script {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s := &script{net: simnet.New(simnet.Config{Seed: seed, Start: clock.Instant(time.Hour), Link: link}), seen: map[string][]clock.Instant{}}
	s.net.Watch(func(e *simnet.Event) {
		s.log = append(s.log, fmt.Sprint(e.At, e.Kind, e.From, e.To, e.Bytes))
	})
	mem := make([]byte, 32*scriptSteps*scriptPeers*scriptPeers) // a row for each read
	rowName := map[uint64]string{}
	s.net.OnWrite(func(w *simnet.Write) {
		s.log = append(s.log, fmt.Sprint(w.At, w.Reader, w.Owner, w.Bytes, w.Late))
		name := rowName[(w.Local-addr(mem))/32]
		s.seen[name] = append(s.seen[name], w.At)
	})
	var owners, readers []*simnet.Agent
	peers := map[[2]int]transport.Peer{}
	region := []transport.Region{{Addr: addr(mem), Bytes: uint64(len(mem))}}
	for i := range scriptPeers {
		p, err := s.net.Agent(fmt.Sprintf("P%d", i), simnet.AgentConfig{})
		must(err)
		d, err := s.net.Agent(fmt.Sprintf("D%d", i), simnet.AgentConfig{})
		must(err)
		must(p.Register(region))
		must(d.Register(region))
		owners, readers = append(owners, p), append(readers, d)
	}
	for i, d := range readers {
		for j, p := range owners {
			blob, err := p.Metadata()
			must(err)
			peers[[2]int{i, j}], err = d.Load(blob)
			must(err)
		}
	}
	type row struct {
		reader *simnet.Agent
		x      transport.Xfer
	}
	var rows []row
	in := transport.NewInbox(64, 1<<14)
	out := make([]transport.Status, 1)
	for step := range scriptSteps {
		for end := s.net.Now().Add(5 * time.Millisecond); s.net.Now() < end; {
			s.net.Advance(min(end, s.net.NextEvent()))
			for _, p := range owners {
				in.Reset()
				for p.Poll(in); in.Len() > 0; {
					_, body, _ := in.Next()
					s.seen[string(body)] = append(s.seen[string(body)], s.net.Now())
				}
			}
		}
		for i, d := range readers {
			for j := range owners {
				peer := peers[[2]int{i, j}]
				send := func(name string) {
					if name != skip {
						must(d.Send(peer, []byte(name)))
					}
				}
				send(fmt.Sprintf("completion %d %d %d", step, i, j))
				send(fmt.Sprintf("HB:%d %d %d", step, i, j))
				if name := fmt.Sprintf("row %d %d %d", step, i, j); name != skip {
					at := uint64((step*scriptPeers+i)*scriptPeers + j)
					rowName[at] = name
					x, err := d.PostRead(&transport.ReadSpec{Peer: peer, Descs: []transport.Desc{{
						Local: addr(mem) + at*32, Remote: addr(mem), Len: 32,
					}}})
					must(err)
					rows = append(rows, row{d, x})
				}
			}
		}
		rows = slices.DeleteFunc(rows, func(r row) bool {
			r.reader.PollReads([]transport.Xfer{r.x}, out, 0)
			return out[0] != transport.Pending && r.reader.Release(r.x) == nil
		})
	}
	return s
}

func TestTheSameSeedGivesTheSameRun(t *testing.T) {
	link := simnet.Link{
		Delay: time.Millisecond, Jitter: 9 * time.Millisecond, Loss: 0.2, Dup: 0.2, Reorder: 0.3, Spread: 20 * time.Millisecond,
		ReadFail: 0.1, Torn: 0.3, Late: 30 * time.Millisecond,
	}
	a, b, c := runScript(t, 7, link, ""), runScript(t, 7, link, ""), runScript(t, 8, link, "")
	if diff := cmp.Diff(a.log, b.log); diff != "" {
		t.Errorf("two runs of one seed differ (-first +second):\n%s", diff)
	}
	if slices.Equal(a.log, c.log) {
		t.Error("two seeds give the same run")
	}
}

func TestLeavingOneOutChangesNothingForTheOthers(t *testing.T) {
	link := simnet.Link{
		Delay: time.Millisecond, Jitter: 9 * time.Millisecond, Loss: 0.2, Dup: 0.2, Reorder: 1, Spread: 20 * time.Millisecond,
	}
	whole := runScript(t, 3, link, "")
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		what := []string{"completion %d %d %d", "HB:%d %d %d", "row %d %d %d"}[r.IntN(3)]
		skip := fmt.Sprintf(what, r.IntN(scriptSteps), r.IntN(scriptPeers), r.IntN(scriptPeers))
		part := runScript(t, 3, link, skip)
		delete(part.seen, skip)
		want := map[string][]clock.Instant{}
		for name, at := range whole.seen {
			if name != skip {
				want[name] = at
			}
		}
		if diff := cmp.Diff(want, part.seen); diff != "" {
			t.Fatalf("without %q others fare otherwise (-whole +without):\n%s", skip, diff)
		}
	}
}

func TestFatesComeAboutAsOftenAsTheLinkSays(t *testing.T) {
	const total = 40000
	w := newWorld(t, 11, simnet.Link{Loss: 0.3, Dup: 0.1})
	copies := map[uint32]int{}
	body := make([]byte, 8)
	for i := range uint32(total) {
		binary.LittleEndian.PutUint32(body[4:], i)
		w.must(w.d.Send(w.toP, body))
		w.after(37 * time.Microsecond)
		for _, b := range w.got(w.p) {
			copies[binary.LittleEndian.Uint32([]byte(b[4:]))]++
		}
	}
	w.after(time.Second)
	for _, b := range w.got(w.p) {
		copies[binary.LittleEndian.Uint32([]byte(b[4:]))]++
	}
	twice := 0
	for _, n := range copies {
		if n == 2 {
			twice++
		}
	}
	lost := total - len(copies)
	t.Logf("%d lost, %d twice", lost, twice)
	if lost < total*29/100 || lost > total*31/100 || twice < total*6/100 || twice > total*8/100 {
		t.Errorf("%d of %d lost and %d arrived twice, want 30 %% and 7 %%", lost, total, twice)
	}
}
