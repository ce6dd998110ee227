package attach

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/kvcache"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/node"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// Engines of ours.

func TestAnEngineOfOursIsShownWithoutBeingTold(t *testing.T) {
	hub, addr := loopback.NewHub(), freeAddr(t)
	p := startOurs(t, hub, node.Config{EngineID: "P", Listen: addr})
	p.grant("r1", 3, 4)
	r, err := look(t, looking(hub, addr))
	if err != nil {
		t.Fatal(err)
	}
	if r.EngineID != "P" || r.Speaks != "kvlease" || r.TP != 1 || r.PP != 1 || len(r.Notes) != 0 {
		t.Errorf("%+v", r)
	}
	if l := r.Lease; l == nil || l.Version != 1 || l.DurationMs != 30000 || l.ExtendMs != 20000 || l.BeatMs != 5000 || l.Slots == 0 || len(l.Epoch) != 16 {
		t.Errorf("%+v", l)
	}
	if r.RoundTrip.N != 2 || r.RoundTrip.LeastMs <= 0 || r.RoundTrip.LeastMs > r.RoundTrip.MostMs {
		t.Errorf("round trip %+v", r.RoundTrip)
	}
	if r.AheadMs > r.AheadMostMs || -r.AheadMs > r.AheadMostMs || r.AheadMostMs <= 0 { // one machine has one clock
		t.Errorf("clock %v ± %v ms", r.AheadMs, r.AheadMostMs)
	}
	k := r.Ranks[0]
	if len(k.Regions) != 2 || k.Regions[0].Name != "layer.0" || k.Regions[0].Blocks != 32 || k.Regions[0].BlockBytes != kvcache.BlockLen || k.Regions[0].Parts != 2 || k.Regions[0].Mem != "DRAM" {
		t.Errorf("%+v", k.Regions)
	}
	if k.Read == nil || k.Read.N != 2 {
		t.Errorf("reads %+v", k.Read)
	}
	if b := k.Board; b == nil || !b.Seen || b.Held != 1 || b.Draining || b.Closed {
		t.Errorf("board %+v", b)
	}
	if stats := string(p.Do(jsonl.Command{Cmd: "stats"}).Stats); !strings.Contains(stats, `"notifs_received":0`) || !strings.Contains(stats, `"side_server_unknown":0`) {
		t.Errorf("it was told something: %s", stats)
	}
}

func TestTextSaysWhatJSONSays(t *testing.T) {
	hub, addr := loopback.NewHub(), freeAddr(t)
	p := startOurs(t, hub, node.Config{EngineID: "P", Listen: addr})
	cfg := looking(hub, addr)
	cfg.JSON, cfg.Request, cfg.Beat, cfg.Out, cfg.Complete = false, p.grant("r1", 3, 4), time.Millisecond, filepath.Join(t.TempDir(), "x"), true
	var out bytes.Buffer
	if err := Run(t.Context(), cfg, &out); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{
		`engine "P" at ` + addr + `: kvlease, protocol 1, TP 1, PP 1`, "epoch ", "16384 slots, 30 s each, a heartbeat every 5 s buys 20 s", "layer.1",
		"1 lease held", "request      r1", "a notification until its row showed it", "proven: ", "the lease: over: it was completed",
	} {
		if !strings.Contains(out.String(), word) {
			t.Errorf("no %q in\n%s", word, out.String())
		}
	}
}

func TestARequestOfOursIsKeptReadProvenAndLeftAlone(t *testing.T) {
	hub, addr := loopback.NewHub(), freeAddr(t)
	p := startOurs(t, hub, node.Config{EngineID: "P", Listen: addr, Lease: 600 * time.Millisecond})
	cfg := looking(hub, addr)
	cfg.Request, cfg.Beat, cfg.Out = p.grant("r1", 3, 4, 9), 1500*time.Millisecond, filepath.Join(t.TempDir(), "blocks")
	r, err := look(t, cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.held("r1") // for 1.5 s, with a lease of 0.6 s, and nobody was told that it was read
	q := r.Request
	if !q.Native || q.Beats < 2 || q.Unapplied != 0 || q.Applied == nil || q.Applied.N != q.Beats || q.Completed || !q.Rows[0].Held || q.Rows[0].Beats == 0 {
		t.Errorf("%+v", q)
	}
	d, data := readDump(t, cfg.Out)
	if !d.Proven || d.EngineID != "P" || d.ID != "r1" {
		t.Errorf("%+v", d)
	}
	if diff := cmp.Diff(q.Read, d); diff != "" {
		t.Errorf("the index is not what the report says:\n%s", diff)
	}
	want, err := kvcache.New(2, 3)
	if err != nil {
		t.Fatal(err)
	}
	want.Fill("r1", []uint32{0, 1, 2})
	if !bytes.Equal(data, slices.Concat(want.Layer(0), want.Layer(1))) {
		t.Error("other bytes than the request's")
	}
	if diff := cmp.Diff([]Part{
		{Region: 0, Name: "layer.0", BlockBytes: kvcache.BlockLen, Blocks: []uint32{3, 4, 9}},
		{Region: 1, Name: "layer.1", Offset: 3 * kvcache.BlockLen, BlockBytes: kvcache.BlockLen, Blocks: []uint32{3, 4, 9}},
	}, []Part(d.Parts)); diff != "" {
		t.Errorf("parts:\n%s", diff)
	}
	if f := p.freed("r1"); f.Reason != "expired" { // once nobody beats any more
		t.Errorf("%+v", f)
	}
}

func TestACompletionEndsTheLeaseAndIsSeen(t *testing.T) {
	hub, addr := loopback.NewHub(), freeAddr(t)
	p := startOurs(t, hub, node.Config{EngineID: "P", Listen: addr})
	cfg := looking(hub, addr)
	cfg.Request, cfg.Complete = p.grant("r1", 3), true
	r, err := look(t, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if f := p.freed("r1"); f.Reason != "completed" {
		t.Errorf("%+v", f)
	}
	if q := r.Request; !q.Completed || q.EndedMs == nil || q.Beats != 0 {
		t.Errorf("%+v", q)
	}
}

func TestWhatIsNotTheRequestsAnyMoreIsNotWrittenDown(t *testing.T) {
	hub, addr := loopback.NewHub(), freeAddr(t)
	p := startOurs(t, hub, node.Config{EngineID: "P", Listen: addr})
	out := filepath.Join(t.TempDir(), "blocks")
	reading := make(chan *loopback.Agent, 1)
	cfg := looking(hub, addr)
	cfg.Request, cfg.Out = p.grant("r1", 3, 4), out
	cfg.Open = func(name string) (transport.Transport, error) {
		a, err := hub.New(name, loopback.Config{})
		return &holding{Transport: a, agent: a, piece: kvcache.BlockLen, began: reading}, err
	}
	ended := make(chan error, 1)
	var report *Report
	go func() {
		var err error
		report, err = look(t, cfg)
		ended <- err
	}()
	var a *loopback.Agent
	select {
	case a = <-reading:
	case err := <-ended:
		t.Fatalf("nothing is read: %v", err)
	case <-time.After(longest):
		t.Fatal("nothing is read")
	}
	p.Do(jsonl.Command{Cmd: "cancel", ID: "r1"})
	p.freed("r1")
	a.HoldReads(false)
	if err := <-ended; !errors.Is(err, errOver) || report.Request.Read != nil || report.Error == "" {
		t.Errorf("%v, %+v", err, report.Request)
	}
	if files, err := os.ReadDir(filepath.Dir(out)); err != nil || len(files) != 0 {
		t.Errorf("written: %v %v", files, err)
	}
}

// holding keeps reads in flight from the first one on whose pieces are blocks.
type holding struct {
	transport.Transport
	agent *loopback.Agent
	piece uint64
	began chan<- *loopback.Agent
}

func (h *holding) PostRead(spec *transport.ReadSpec) (transport.Xfer, error) {
	blocks := spec.Descs[0].Len%h.piece == 0
	if blocks {
		h.agent.HoldReads(true)
	}
	x, err := h.Transport.PostRead(spec)
	if blocks {
		h.began <- h.agent
	}
	return x, err
}

func TestARequestThatHasEndedIsToldBeforeAnythingIsSent(t *testing.T) {
	hub, addr := loopback.NewHub(), freeAddr(t)
	p := startOurs(t, hub, node.Config{EngineID: "P", Listen: addr})
	req := p.grant("r1", 3)
	p.Do(jsonl.Command{Cmd: "cancel", ID: "r1"})
	p.freed("r1")
	cfg := looking(hub, addr)
	cfg.Request, cfg.Beat, cfg.Complete = req, time.Minute, true
	r, err := look(t, cfg)
	if !errors.Is(err, errOver) || r.Request.Beats != 0 || r.Request.Completed || r.Request.Rows[0].Held || r.Request.Rows[0].Ended != 1 {
		t.Errorf("%v, %+v", err, r.Request)
	}
}

func TestAHeartbeatThatIsLostIsMissed(t *testing.T) {
	hub, addr := loopback.NewHub(), freeAddr(t)
	p := startOurs(t, hub, node.Config{EngineID: "P", Listen: addr})
	cfg := looking(hub, addr)
	cfg.Request, cfg.Beat, cfg.Timeout = p.grant("r1", 3), 300*time.Millisecond, 100*time.Millisecond
	cfg.Open = func(name string) (transport.Transport, error) {
		a, err := hub.New(name, loopback.Config{})
		return losing{a}, err
	}
	r, err := look(t, cfg)
	if err != nil || r.Request.Beats != 1 || r.Request.Unapplied != 1 || r.Request.Applied != nil {
		t.Errorf("%v, %+v", err, r.Request)
	}
}

// losing takes messages and delivers none.
type losing struct{ transport.Transport }

func (losing) Send(transport.Peer, []byte) error { return nil }

func TestAllRanksOfAnEngineOfOursAreAskedAndNoOther(t *testing.T) {
	hub, addr := loopback.NewHub(), freeAddr(t)
	path := filepath.Join(t.TempDir(), "s")
	p := startOurs(t, hub, node.Config{EngineID: "P", Listen: addr, Context: "host", TP: 2, Carrier: path})
	ranks := []*ours{}
	for rank := range uint32(2) {
		ranks = append(ranks, startOurs(t, hub, node.Config{EngineID: "P", Context: "rank", TP: 2, TPRank: rank, Carrier: path}))
	}
	cfg := looking(hub, addr)
	var r *Report
	for deadline := time.Now().Add(longest); ; time.Sleep(10 * time.Millisecond) { // until both have registered
		var err error
		if r, err = look(t, cfg); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if r.TP != 2 || len(r.Ranks) != 2 || r.Ranks[1].Rank != 1 || r.Ranks[0].Regions[0].BlockBytes != kvcache.BlockLen/2 {
		t.Errorf("%+v", r)
	}
	unknown := func() string {
		_, stats, _ := strings.Cut(string(p.Do(jsonl.Command{Cmd: "stats"}).Stats), `"side_server_unknown":`)
		n, _, _ := strings.Cut(stats, ",")
		return n
	}
	before := unknown() // rank 0 may have been asked for before it was there
	if _, err := look(t, cfg); err != nil || before == "" || unknown() != before {
		t.Errorf("%v: asked for ranks that it does not have: %s, then %s", err, before, unknown())
	}

	for i := range ranks {
		ranks[i].Do(jsonl.Command{Cmd: "fill", ID: "r1", Blocks: []uint32{5, 6}})
	}
	cfg.Request, cfg.Beat, cfg.Out = p.grant("r1", 5, 6), time.Millisecond, filepath.Join(t.TempDir(), "blocks")
	r, err := look(t, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if q := r.Request; q.Applied == nil || q.Applied.N != 2 || len(q.Rows) != 2 {
		t.Errorf("%+v", q)
	}
	d, data := readDump(t, cfg.Out)
	var want []byte
	for rank := range uint32(2) {
		c, err := kvcache.NewRank(2, 2, rank, 2)
		if err != nil {
			t.Fatal(err)
		}
		c.Fill("r1", []uint32{0, 1})
		want = slices.Concat(want, c.Layer(0), c.Layer(1))
	}
	if !bytes.Equal(data, want) || !d.Proven || len(d.Parts) != 4 || d.Parts[3].Rank != 1 {
		t.Errorf("%+v", d)
	}
	p.held("r1")

	cfg.Beat, cfg.Out, cfg.Complete = 0, "", true
	if _, err := look(t, cfg); err != nil {
		t.Error(err)
	}
	if f := p.freed("r1"); f.Reason != "completed" {
		t.Errorf("%+v", f)
	}
	cfg = looking(hub, addr)
	cfg.TP = 4
	if _, err := look(t, cfg); err == nil || !strings.Contains(err.Error(), "has TP 2 and PP 1, not TP 4") {
		t.Errorf("another size than its own: %v", err)
	}
}

func TestParametersOfAnotherLifeOrEngineAreRefused(t *testing.T) {
	hub, addr := loopback.NewHub(), freeAddr(t)
	p := startOurs(t, hub, node.Config{EngineID: "P", Listen: addr})
	req := p.grant("r1", 3)
	for _, tc := range []struct {
		name   string
		change func(r *Request)
		want   string
	}{
		{"another engine", func(r *Request) { r.Params.EngineID = "Q" }, `of engine "Q", here is "P"`},
		{"another boot", func(r *Request) { r.Params.Lease.Epoch++ }, "it was restarted"},
		{"a slot beyond the board", func(r *Request) { r.Params.Lease.Slot = 1 << 20 }, "name slot 1048576"},
		{"another size", func(r *Request) { r.Params.TPSize = 2 }, "TP 2 and PP 1, here it is TP 1"},
		{"a block that is not there", func(r *Request) { r.Groups = [][]uint32{{32}} }, "no block 32, but 32 blocks"},
		{"no blocks", func(r *Request) { r.Groups = [][]uint32{{}} }, "has no blocks"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			params := *req.Params
			bad := &Request{ID: req.ID, Groups: req.Groups, Params: &params}
			tc.change(bad)
			cfg := looking(hub, addr)
			cfg.Request, cfg.Out = bad, filepath.Join(t.TempDir(), "blocks")
			if r, err := look(t, cfg); err == nil || !strings.Contains(err.Error(), tc.want) || r.Error == "" {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
	p.held("r1")
}

func TestWithoutItsParametersARequestOfOursIsUnproven(t *testing.T) {
	hub, addr := loopback.NewHub(), freeAddr(t)
	p := startOurs(t, hub, node.Config{EngineID: "P", Listen: addr, Lease: 600 * time.Millisecond})
	p.grant("r1", 3, 4)
	cfg := looking(hub, addr)
	cfg.Request, cfg.Beat, cfg.Out = &Request{ID: "r1", Groups: [][]uint32{{3, 4}}}, time.Second, filepath.Join(t.TempDir(), "blocks")
	r, err := look(t, cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.held("r1") // stock heartbeats keep it, too
	if d, data := readDump(t, cfg.Out); d.Proven || d.Why != unprovenBlind || len(data) != 4*kvcache.BlockLen || r.Request.Native {
		t.Errorf("%+v", d)
	}
}

func TestAFixedLifeShowsWhatIsLeftOfIt(t *testing.T) {
	hub, addr := loopback.NewHub(), freeAddr(t)
	p := startOurs(t, hub, node.Config{EngineID: "P", Listen: addr})
	req, err := ParseRequest(p.Do(jsonl.Command{Cmd: "grant", ID: "r1", Blocks: []uint32{1}, FixedS: 60}).Params)
	if err != nil {
		t.Fatal(err)
	}
	cfg := looking(hub, addr)
	cfg.Request = req
	r, err := look(t, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if left := r.Request.FixedLeftMs; left == nil || *left > 60000 || *left < 60000-float64(longest.Milliseconds()) {
		t.Errorf("%v ms left of 60 s", left)
	}
}

func TestAWatchSeesAnEngineGoAndComeBackAsAnotherOne(t *testing.T) {
	hub, addr := loopback.NewHub(), freeAddr(t)
	p := startOurs(t, hub, node.Config{EngineID: "P", Listen: addr})
	lines := newLines()
	cfg := looking(hub, addr)
	cfg.Watch, cfg.Samples, cfg.Timeout, cfg.Request = 10*time.Millisecond, 1, time.Second, p.grant("r1", 3)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, cfg, lines) }()
	lines.wait(t, `"engine":"same"`, `"row":{"pp_rank":0,"rank":0,"held":true`)
	p.Do(jsonl.Command{Cmd: "cancel", ID: "r1"})
	lines.wait(t, `"engine":"same"`, `"held":false`, `"leases_held":0`)
	if err := p.Quit(); err != nil {
		t.Error(err)
	}
	lines.wait(t, `"engine":"gone"`, "nobody listens")
	still, err := net.Listen("tcp", addr) // as an engine that was stopped: the kernel takes connections
	if err != nil {
		t.Fatal(err)
	}
	lines.wait(t, `"engine":"silent"`, "does not answer")
	still.Close()
	startOurs(t, hub, node.Config{EngineID: "P", Listen: addr})
	lines.wait(t, `"engine":"restarted"`, "it was restarted") // and so the request's blocks are gone
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
