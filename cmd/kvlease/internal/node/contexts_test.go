package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/ports"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

func freePort(t *testing.T) uint32 {
	t.Helper()
	port, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// meeting is an owner with a side channel, and a reader that was told where it is.
func meeting(t *testing.T, lease time.Duration) (p, d *rig) {
	hub, port := loopback.NewHub(), freePort(t)
	p = newRig(t, hub, Config{Role: "both", EngineID: "P", Lease: lease, Watch: true, Listen: fmt.Sprintf("127.0.0.1:%d", port)})
	d = newRig(t, hub, Config{Role: "both", EngineID: "D", Lease: lease})
	d.must(jsonl.Command{Cmd: "engine", EngineID: "P", Host: "127.0.0.1", Port: port})
	if up := d.event("engine_up"); up.EngineID != "P" {
		t.Fatalf("engine_up: %+v", up)
	}
	return p, d
}

func TestEnginesMeetOverTheSideChannel(t *testing.T) {
	p, d := meeting(t, 30*time.Second)
	granted := p.must(jsonl.Command{Cmd: "grant", ID: "r1", Blocks: []uint32{1, 2}})
	d.must(jsonl.Command{Cmd: "track", ID: "r1", Params: granted.Params})
	d.must(jsonl.Command{Cmd: "read", ID: "r1"})
	if done := d.event("read_done"); done.BadBytes == nil || *done.BadBytes != 0 {
		t.Errorf("read: %+v", done)
	}
	if freed := p.event("freed"); freed.Reason != "completed" {
		t.Errorf("freed: %+v", freed)
	}
	d.must(jsonl.Command{Cmd: "forget", EngineID: "P"})
	if a := d.ask(jsonl.Command{Cmd: "forget", EngineID: "P"}); !a.Refused() || !strings.Contains(a.Error, `"P" was not introduced`) {
		t.Errorf("forgotten twice: %+v", a)
	}
	if a := d.ask(jsonl.Command{Cmd: "track", ID: "r2", Params: granted.Params}); !a.Refused() || !strings.Contains(a.Error, "not introduced") {
		t.Errorf("tracked at a forgotten engine: %+v", a)
	}
}

func TestAnEngineIsIntroducedInOneOfTwoWays(t *testing.T) {
	d := newRig(t, loopback.NewHub(), Config{Role: "decode", EngineID: "D"})
	for _, c := range []jsonl.Command{
		{Cmd: "engine", EngineID: "P"},
		{Cmd: "engine", EngineID: "P", Handshake: "00", Host: "127.0.0.1", Port: 1},
	} {
		if a := d.ask(c); !a.Refused() || !strings.Contains(a.Error, `either "handshake" or "host"`) {
			t.Errorf("%+v: %+v", c, a)
		}
	}
	if a := d.ask(jsonl.Command{Cmd: "engine", EngineID: "P", Handshake: "zz"}); !a.Refused() || !strings.Contains(a.Error, "not hex") {
		t.Errorf("%+v", a)
	}
}

func TestBlocksKeptForAFixedTimeAreReadInTimeOrNotAtAll(t *testing.T) {
	p, d := meeting(t, 1200*time.Millisecond)
	for id, fixed := range map[string]float64{"in time": 30, "too late": 1} {
		granted := p.must(jsonl.Command{Cmd: "grant", ID: id, Blocks: []uint32{1, 2}, FixedS: fixed})
		if !strings.Contains(string(granted.Params), `"remote_blocks_expiry_time":`) {
			t.Fatalf("parameters name no end: %s", granted.Params)
		}
		d.must(jsonl.Command{Cmd: "track", ID: id, Params: granted.Params})
		status, reason := "ok", "completed"
		var freed jsonl.Report
		if id == "too late" {
			status, reason = "stale", "expired"
			d.event("lease_gone")
			freed = p.event("freed")
		}
		d.must(jsonl.Command{Cmd: "read", ID: id})
		if r := d.next("outcome", func(r *jsonl.Report) bool { return r.ID == id && strings.HasPrefix(r.Ev, "read_") }); r.Status != status {
			t.Errorf("%s: %+v", id, r)
		}
		if freed.Ev == "" {
			freed = p.event("freed")
		}
		if freed.Reason != reason {
			t.Errorf("%s: %+v", id, freed)
		}
	}
}

func TestPressureTakesBackWhatReadersCheck(t *testing.T) {
	p, d := meeting(t, 1200*time.Millisecond)
	for i, id := range []string{"r1", "r2"} {
		granted := p.must(jsonl.Command{Cmd: "grant", ID: id, Blocks: []uint32{uint32(2 * i), uint32(2*i + 1)}})
		d.must(jsonl.Command{Cmd: "track", ID: id, Params: granted.Params})
	}
	p.next("beats for both", func(r *jsonl.Report) bool { return r.Ev == "beats" && r.Beats >= 3 })
	p.must(jsonl.Command{Cmd: "pressure", Wanted: 2})
	freed := p.event("freed")
	if freed.Reason != "revoked" || freed.Blocks != 2 {
		t.Errorf("freed: %+v", freed)
	}
	if gone := d.event("lease_gone"); gone.ID != freed.ID {
		t.Errorf("told of %q, %q was taken back", gone.ID, freed.ID)
	}
	p.must(jsonl.Command{Cmd: "overwrite", ID: "urgent", Blocks: []uint32{0, 1, 2, 3}[2*strings.Index("12", freed.ID[1:]):][:2]})
}

func TestAnEngineThatSleepsComesBackAsANewOne(t *testing.T) {
	p, d := meeting(t, 1200*time.Millisecond)
	granted := p.must(jsonl.Command{Cmd: "grant", ID: "r1", Blocks: []uint32{1}})
	d.must(jsonl.Command{Cmd: "track", ID: "r1", Params: granted.Params})
	p.must(jsonl.Command{Cmd: "unregister"})
	if freed := p.event("freed"); freed.Reason != "closed" {
		t.Errorf("freed: %+v", freed)
	}
	p.must(jsonl.Command{Cmd: "grant", ID: "r2", Blocks: []uint32{1}})
	if freed := p.event("freed"); freed.ID != "r2" || freed.Reason != "closed" {
		t.Errorf("granted without memory: %+v", freed)
	}
	d.event("lease_gone")
	p.must(jsonl.Command{Cmd: "register"})
	granted = p.must(jsonl.Command{Cmd: "grant", ID: "r3", Blocks: []uint32{1}})
	d.must(jsonl.Command{Cmd: "track", ID: "r3", Params: granted.Params})
	d.event("engine_up")
	d.must(jsonl.Command{Cmd: "read", ID: "r3"})
	if done := d.event("read_done"); done.ID != "r3" || *done.BadBytes != 0 {
		t.Errorf("read: %+v", done)
	}
}

// ranked is an engine of two ranks: a host and its ranks, in this process.
func ranked(t *testing.T, hub *loopback.Hub, role, id string, listen uint32) (host *rig, ranks []*rig) {
	cfg := Config{Role: role, EngineID: id, Context: "host", TP: 2, Keys: map[string]any{"carrier": "process"}}
	if listen != 0 {
		cfg.Listen = fmt.Sprintf("127.0.0.1:%d", listen)
	}
	host = newRig(t, hub, cfg)
	cfg.Context, cfg.Listen, cfg.Watch = "rank", "", true
	for cfg.TPRank = range uint32(2) {
		ranks = append(ranks, newRig(t, hub, cfg))
		if up := host.event("rank_up"); up.Rank != cfg.TPRank {
			t.Errorf("rank_up: %+v, want rank %d", up, cfg.TPRank)
		}
	}
	return host, ranks
}

func TestAHostAndItsRanksAreOneEngine(t *testing.T) {
	hub, port := loopback.NewHub(), freePort(t)
	p, ranks := ranked(t, hub, "prefill", "P-ranked", port)
	d := newRig(t, hub, Config{Role: "decode", EngineID: "D"})
	d.must(jsonl.Command{Cmd: "engine", EngineID: "P-ranked", Host: "127.0.0.1", Port: port, TP: 2})
	d.event("engine_up")
	for _, r := range ranks {
		r.must(jsonl.Command{Cmd: "fill", ID: "r1", Blocks: []uint32{4, 5}})
	}
	granted := p.must(jsonl.Command{Cmd: "grant", ID: "r1", Blocks: []uint32{4, 5}})
	d.must(jsonl.Command{Cmd: "track", ID: "r1", Params: granted.Params})
	for _, r := range ranks {
		r.event("beats")
	}
	d.must(jsonl.Command{Cmd: "read", ID: "r1"})
	if done := d.event("read_done"); done.BadBytes == nil || *done.BadBytes != 0 || done.Bytes != 2*2*16384 {
		t.Errorf("heads of both ranks: %+v", done)
	}
	freed := p.event("freed")
	if diff := cmp.Diff([]string{"completed", "completed"}, freed.Reasons); freed.Reason != "completed" || diff != "" {
		t.Errorf("freed: %+v, of its ranks (-want +got):\n%s", freed, diff)
	}

	for _, tc := range []struct {
		at    *rig
		c     jsonl.Command
		names string
	}{
		{p, jsonl.Command{Cmd: "fill", ID: "r1", Blocks: []uint32{1}}, "holds KV blocks"},
		{p, jsonl.Command{Cmd: "register"}, "holds KV blocks"},
		{ranks[0], jsonl.Command{Cmd: "grant", ID: "r1", Blocks: []uint32{1}}, "the engine's host"},
		{ranks[0], jsonl.Command{Cmd: "pressure", Wanted: 1}, "the engine's host"},
	} {
		if a := tc.at.ask(tc.c); !a.Refused() || !strings.Contains(a.Error, tc.names) {
			t.Errorf("%s: %+v, want %q", tc.c.Cmd, a, tc.names)
		}
	}

	ranks[1].raw(`{"cmd":"quit"}`)
	if down := p.event("rank_down"); down.Rank != 1 {
		t.Errorf("rank_down: %+v", down)
	}
	p.raw(`{"cmd":"quit"}`)
	ranks[0].event("host_down")
	p.event("bye")
}

func TestARankShowsWhatIsInItsBlocks(t *testing.T) {
	p := newRig(t, loopback.NewHub(), Config{Role: "decode", EngineID: "D"})
	p.must(jsonl.Command{Cmd: "clear", Blocks: []uint32{3, 4}})
	check := func(id string, blocks ...uint32) (bad, landed uint64) {
		a := p.must(jsonl.Command{Cmd: "check", ID: id, Blocks: blocks})
		if a.Bytes != uint64(len(blocks))*2*16384 || a.BadBytes == nil || a.Landed == nil {
			t.Fatalf("check: %+v", a)
		}
		return *a.BadBytes, *a.Landed
	}
	if bad, landed := check("r1", 3, 4); bad == 0 || landed != 0 {
		t.Errorf("cleared blocks: %d bytes are not r1's, %d have landed", bad, landed)
	}
	p.must(jsonl.Command{Cmd: "fill", ID: "r1", Blocks: []uint32{3, 4}})
	if bad, landed := check("r1", 3, 4); bad != 0 || landed == 0 {
		t.Errorf("filled blocks: %d bytes are not r1's, %d have landed", bad, landed)
	}
	if bad, _ := check("r2", 3, 4); bad == 0 {
		t.Error("r1's blocks are taken for r2's")
	}
	if a := p.ask(jsonl.Command{Cmd: "check", ID: "r1", Blocks: []uint32{32}}); !a.Refused() || !strings.Contains(a.Error, "there are 32") {
		t.Errorf("a block that does not exist: %+v", a)
	}
}
