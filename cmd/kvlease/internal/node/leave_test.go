package node

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// leaveMax is how long an engine takes to leave at most, whatever stands in its way.
const leaveMax = drainMax + closeMax + byeMax + 2*time.Second

func TestAnEngineLeavesInTimeAlthoughItsLeasesAreHeld(t *testing.T) {
	p, d := pair(t, "pump")
	granted := p.must(jsonl.Command{Cmd: "grant", ID: "r1", Blocks: []uint32{0}})
	d.must(jsonl.Command{Cmd: "track", ID: "r1", Params: granted.Params})
	p.event("beats")
	began := time.Now()
	p.stop() // as SIGTERM does
	if bye := p.event("bye"); bye.Error == "" {
		t.Errorf("%+v does not say that a lease was held", bye)
	}
	if err := <-p.ended; err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > leaveMax {
		t.Errorf("left after %v", took)
	}
}

func TestAnEngineLeavesInTimeAlthoughATransferNeverEnds(t *testing.T) {
	hub := loopback.NewHub()
	var agent *loopback.Agent
	p := newRig(t, hub, Config{Role: "prefill", EngineID: "P", Watch: true})
	d := newRigOver(t, Config{Role: "decode", EngineID: "D"}, func(_ *core.Config, name string) (transport.Transport, error) {
		var err error
		agent, err = hub.New(name, loopback.Config{ReadsMax: 64})
		return agent, err
	})
	d.must(jsonl.Command{Cmd: "engine", EngineID: "P", Handshake: p.must(jsonl.Command{Cmd: "handshake"}).Handshake})
	d.event("engine_up")
	granted := p.must(jsonl.Command{Cmd: "grant", ID: "r1", Blocks: []uint32{0}})
	d.must(jsonl.Command{Cmd: "track", ID: "r1", Params: granted.Params})
	p.event("beats")
	agent.HoldReads(true)
	d.must(jsonl.Command{Cmd: "read", ID: "r1"})
	began := time.Now()
	d.raw(`{"cmd":"quit"}`)
	if bye := d.event("bye"); !strings.Contains(bye.Error, "transfers of ours have not ended") {
		t.Errorf("bye: %+v", bye)
	}
	if err := <-d.ended; err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > leaveMax {
		t.Errorf("left after %v", took)
	}
}

func TestAnEngineLeavesAlthoughAPeerThatStandsStillHasToTakeItsAnswers(t *testing.T) {
	var agent *loopback.Agent
	p := newRigOver(t, Config{Role: "prefill", EngineID: "P"}, func(_ *core.Config, name string) (transport.Transport, error) {
		var err error
		agent, err = loopback.NewHub().New(name, loopback.Config{})
		return agent, err
	})
	p.must(jsonl.Command{Cmd: "handshake"})
	agent.FailNext(loopback.OpClose, transport.ErrUntaken)
	if answer := p.ask(jsonl.Command{Cmd: "unregister"}); !answer.Refused() || !strings.Contains(answer.Error, transport.ErrUntaken.Error()) {
		t.Errorf("unregister: %+v", answer)
	}
	agent.FailNext(loopback.OpClose, transport.ErrUntaken)
	p.raw(`{"cmd":"quit"}`)
	if bye := p.event("bye"); !strings.Contains(bye.Error, transport.ErrUntaken.Error()) {
		t.Errorf("bye: %+v", bye)
	}
	if err := <-p.ended; err != nil {
		t.Error(err)
	}
}

func TestAReaderThatDoesNotReadStopsNoHeartbeats(t *testing.T) {
	hub := loopback.NewHub()
	p := newRig(t, hub, Config{Role: "prefill", EngineID: "P", Lease: 1200 * time.Millisecond, Watch: true})
	in, commands := io.Pipe()
	_, stdout := io.Pipe() // nobody reads it
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() {
		cfg := Config{Role: "decode", EngineID: "D", Lease: 1200 * time.Millisecond, Transport: "loopback", Drive: "inline", Layers: 2, Blocks: 32, PassTime: time.Millisecond}
		ended <- Run(ctx, cfg, map[string]core.OpenTransport{"loopback": func(_ *core.Config, name string) (transport.Transport, error) {
			return hub.New(name, loopback.Config{})
		}}, in, stdout, "test")
	}()
	say := func(c jsonl.Command) {
		line, err := jsonl.Append(c)
		if err != nil {
			t.Fatal(err)
		}
		commands.Write(line)
	}
	say(jsonl.Command{Cmd: "engine", EngineID: "P", Handshake: p.must(jsonl.Command{Cmd: "handshake"}).Handshake})
	say(jsonl.Command{Cmd: "track", ID: "r1", Params: p.must(jsonl.Command{Cmd: "grant", ID: "r1", Blocks: []uint32{0}}).Params})
	p.next("heartbeats for two leases", func(r *jsonl.Report) bool { return r.Ev == "beats" && r.Batches > 12 })
	began := time.Now()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > leaveMax {
		t.Errorf("left after %v", took)
	}
}

func TestWhatNobodyReadsIsBounded(t *testing.T) {
	in, out := io.Pipe()
	r := newReporter(out)
	line := make([]byte, 1<<20)
	for n := 0; r.err() == nil; n++ {
		if r.add(line); n > 2*unreadMax/len(line)+2 { // as much again is being written
			t.Fatalf("%d bytes wait", n*len(line))
		}
	}
	if err := r.err(); !errors.Is(err, errUnread) {
		t.Error(err)
	}
	in.CloseWithError(errors.New("pipe broken"))
	r.close(time.Minute)
}

func TestReportsComeWholeAndInOrder(t *testing.T) {
	in, out := io.Pipe()
	r := newReporter(out)
	var want strings.Builder
	for i := range 1000 {
		line := strings.Repeat("x", i%50) + "\n"
		want.WriteString(line)
		r.add([]byte(line))
	}
	go func() {
		r.close(time.Minute)
		out.Close()
	}()
	got, err := io.ReadAll(in)
	if err != nil || string(got) != want.String() {
		t.Errorf("%d bytes of %d, %v", len(got), want.Len(), err)
	}
}
