package node

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// rig is one stand-in of the test's process, talked to as the demo talks to its children.
type rig struct {
	t       *testing.T
	in      *io.PipeWriter
	reports chan jsonl.Report
	ended   chan error
	stop    context.CancelFunc
	asked   uint64
	events  []jsonl.Report // heard while an answer was waited for
}

func newRig(t *testing.T, hub *loopback.Hub, cfg Config) *rig {
	t.Helper()
	return newRigOver(t, cfg, func(_ *core.Config, agent string) (transport.Transport, error) {
		return hub.New(agent, loopback.Config{ReadsMax: 64})
	})
}

func newRigOver(t *testing.T, cfg Config, open core.OpenTransport) *rig {
	t.Helper()
	cfg.Transport, cfg.Layers, cfg.Blocks, cfg.PassTime = "loopback", 2, 32, time.Millisecond
	if cfg.Lease == 0 {
		cfg.Lease = 30 * time.Second
	}
	if cfg.Drive == "" {
		cfg.Drive = "inline"
	}
	inRead, inWrite := io.Pipe()
	outRead, outWrite := io.Pipe()
	ctx, stop := context.WithCancel(context.Background())
	r := &rig{t: t, in: inWrite, reports: make(chan jsonl.Report, 1024), ended: make(chan error, 1), stop: stop}
	transports := map[string]core.OpenTransport{"loopback": open}
	go func() {
		err := Run(ctx, cfg, transports, inRead, outWrite, "test")
		outWrite.Close()
		inRead.Close()
		r.ended <- err
	}()
	go func() {
		defer close(r.reports)
		lines := bufio.NewScanner(outRead)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			report, err := jsonl.ParseReport(lines.Bytes())
			if err != nil {
				report = jsonl.Report{Ev: "error", Error: err.Error()}
			}
			r.reports <- report
		}
	}()
	t.Cleanup(stop)
	if ready := r.event("ready"); ready.Role != cfg.Role || ready.BlockBytes == 0 {
		t.Fatalf("ready: %+v", ready)
	}
	return r
}

// next is the next report that match accepts.
func (r *rig) next(what string, match func(*jsonl.Report) bool) jsonl.Report {
	r.t.Helper()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	for i, e := range r.events {
		if match(&e) {
			r.events = append(r.events[:i:i], r.events[i+1:]...)
			return e
		}
	}
	for {
		select {
		case e, ok := <-r.reports:
			if !ok {
				r.t.Fatalf("the engine ended before %s", what)
			}
			if match(&e) {
				return e
			}
			r.events = append(r.events, e)
		case <-limit.C:
			r.t.Fatalf("no %s; heard %+v", what, r.events)
		}
	}
}

func (r *rig) event(ev string) jsonl.Report {
	r.t.Helper()
	return r.next(ev, func(e *jsonl.Report) bool { return e.Ev == ev })
}

func (r *rig) raw(line string) { fmt.Fprintln(r.in, line) }

// ask gives one command; the answer may be a refusal.
func (r *rig) ask(c jsonl.Command) jsonl.Report {
	r.t.Helper()
	r.asked++
	c.N = r.asked
	line, err := jsonl.Append(c)
	if err != nil {
		r.t.Fatal(err)
	}
	r.in.Write(line)
	return r.next("answer to "+c.Cmd, func(e *jsonl.Report) bool { return e.Re == c.N })
}

func (r *rig) must(c jsonl.Command) jsonl.Report {
	r.t.Helper()
	a := r.ask(c)
	if a.Refused() {
		r.t.Fatalf("%s: %s", c.Cmd, a.Error)
	}
	return a
}

func pair(t *testing.T, drive string) (p, d *rig) {
	hub := loopback.NewHub()
	p = newRig(t, hub, Config{Role: "prefill", EngineID: "P", Drive: drive, Watch: true})
	d = newRig(t, hub, Config{Role: "decode", EngineID: "D", Drive: drive})
	d.must(jsonl.Command{Cmd: "engine", EngineID: "P", Handshake: p.must(jsonl.Command{Cmd: "handshake"}).Handshake})
	d.event("engine_up")
	return p, d
}

func TestOneRequestFromGrantToFreed(t *testing.T) {
	for _, drive := range []string{"inline", "pump"} {
		t.Run(drive, func(t *testing.T) {
			p, d := pair(t, drive)
			p.must(jsonl.Command{Cmd: "expect", ID: "r1"})
			granted := p.must(jsonl.Command{Cmd: "grant", ID: "r1", Blocks: []uint32{5, 6, 9}, Tokens: 48})
			d.must(jsonl.Command{Cmd: "track", ID: "r1", Params: granted.Params})
			if beats := p.event("beats"); beats.Beats == 0 {
				t.Errorf("beats: %+v", beats)
			}
			d.must(jsonl.Command{Cmd: "read", ID: "r1"})
			done := d.event("read_done")
			if done.ID != "r1" || done.BadBytes == nil || *done.BadBytes != 0 || done.Bytes != 3*2*16384 {
				t.Errorf("read: %+v", done)
			}
			freed := p.event("freed")
			if freed.ID != "r1" || freed.Reason != "completed" || freed.Blocks != 3 {
				t.Errorf("freed: %+v", freed)
			}
			for _, r := range []*rig{d, p} {
				r.raw(`{"cmd":"quit"}`)
				r.event("bye")
				if err := <-r.ended; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestBlocksUnderALeaseAreNotGivenOutAgainUntilItEnds(t *testing.T) {
	p, d := pair(t, "inline")
	granted := p.must(jsonl.Command{Cmd: "grant", ID: "r1", Blocks: []uint32{0, 1}})
	for _, c := range []jsonl.Command{
		{Cmd: "overwrite", ID: "other", Blocks: []uint32{1}},
		{Cmd: "grant", ID: "r2", Blocks: []uint32{1, 2}},
	} {
		if a := p.ask(c); !a.Refused() || !strings.Contains(a.Error, "block 1 is under the lease of r1") {
			t.Errorf("%s: %+v", c.Cmd, a)
		}
	}
	d.must(jsonl.Command{Cmd: "track", ID: "r1", Params: granted.Params})
	p.event("beats") // the message that names the lease natively: from now on it may be taken back at once
	p.must(jsonl.Command{Cmd: "revoke", ID: "r1"})
	if freed := p.event("freed"); freed.Reason != "revoked" {
		t.Errorf("freed: %+v", freed)
	}
	p.must(jsonl.Command{Cmd: "overwrite", ID: "other", Blocks: []uint32{0, 1}})
	d.ask(jsonl.Command{Cmd: "read", ID: "r1"})
	failed := d.event("read_failed")
	if failed.Status != "stale" || failed.HandedOut == nil || *failed.HandedOut != 0 {
		t.Errorf("read after the end: %+v", failed)
	}
}

func TestWrongCommandsAreRefusedAndTheEngineGoesOn(t *testing.T) {
	p, _ := pair(t, "inline")
	for _, tc := range []struct{ line, names string }{
		{`garbage`, "one JSON object"},
		{`{"cmd":"read","id":"r1"}`, "is for a decode engine"},
		{`{"cmd":"grant","id":"r1","blocks":[32]}`, "block 32 does not exist, there are 32"},
		{`{"cmd":"revoke","id":"r9"}`, "r9 is not here"},
	} {
		p.raw(tc.line)
		if a := p.next("refusal", (*jsonl.Report).Refused); !strings.Contains(a.Error, tc.names) {
			t.Errorf("%s: %+v", tc.line, a)
		}
	}
	if a := p.must(jsonl.Command{Cmd: "stats"}); !strings.Contains(string(a.Stats), `"batches_received"`) || !strings.Contains(string(a.Stats), `"beats_applied"`) {
		t.Errorf("stats: %s", a.Stats)
	}
}

func TestASignalDrainsAndTellsTheOwner(t *testing.T) {
	p, d := pair(t, "inline")
	granted := p.must(jsonl.Command{Cmd: "grant", ID: "r1", Blocks: []uint32{0}})
	d.must(jsonl.Command{Cmd: "track", ID: "r1", Params: granted.Params})
	p.event("beats")
	d.stop() // as SIGTERM does
	if freed := p.event("freed"); freed.Reason != "released" {
		t.Errorf("freed: %+v, want released: D will never read", freed)
	}
	d.event("bye")
	if err := <-d.ended; err != nil {
		t.Error(err)
	}
}

func TestARequestThatIsRefusedBeforeAdmissionIsGivenBackAtOnce(t *testing.T) {
	p, d := pair(t, "inline")
	granted := p.must(jsonl.Command{Cmd: "grant", ID: "r1", Blocks: []uint32{0, 1}})
	d.must(jsonl.Command{Cmd: "reject", Params: granted.Params})
	if freed := p.event("freed"); freed.ID != "r1" || freed.Reason != "released" {
		t.Errorf("freed: %+v, want released: nobody will read", freed)
	}
	if a := d.ask(jsonl.Command{Cmd: "reject", Params: []byte(`{"remote_engine_id":"X","remote_request_id":"r","remote_host":"h","remote_port":1,"remote_block_ids":[[1]]}`)}); !strings.Contains(a.Error, `"X"`) {
		t.Errorf("a reject at an engine that nobody introduced: %+v", a)
	}
}

func TestTheEndOfStdinEndsTheEngine(t *testing.T) {
	p, _ := pair(t, "inline")
	p.in.Close()
	p.event("bye")
	if err := <-p.ended; err != nil {
		t.Error(err)
	}
}

func TestAnEngineThatCannotOpenSaysWhy(t *testing.T) {
	for _, tc := range []struct {
		name  string
		cfg   Config
		names string
	}{
		{"a lease shorter than the machine allows", Config{Drive: "inline", Transport: "loopback", Lease: 20 * time.Millisecond, Layers: 1, Blocks: 1}, "two lost beats"},
		{"a transport that is not there", Config{Drive: "inline", Transport: "nixl", Lease: time.Minute, Layers: 1, Blocks: 1}, "nixl"},
		{"no blocks", Config{Drive: "inline", Transport: "loopback", Lease: time.Minute, Layers: 1}, "blocks"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := Run(t.Context(), tc.cfg, nil, strings.NewReader(""), io.Discard, "test")
			if err == nil || !strings.Contains(err.Error(), tc.names) {
				t.Errorf("%v", err)
			}
		})
	}
}
