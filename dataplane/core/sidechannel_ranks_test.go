package core

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/deathwire"
	"github.com/kvlease/kvlease/dataplane/handshake"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// sunk is a peerSink that keeps what it is told.
type sunk struct {
	mu      sync.Mutex
	loads   [][]uint32 // ranks of each
	offsets []clock.Offset
	dead    int
	refuse  error
	within  func() // once, in a load
}

func (k *sunk) LoadEngine(_ uint64, ranks []heartbeat.PeerRank) error {
	k.mu.Lock()
	if f := k.within; f != nil {
		k.within = nil
		k.mu.Unlock()
		f()
		k.mu.Lock()
	}
	defer k.mu.Unlock()
	if k.refuse != nil {
		return k.refuse
	}
	var numbers []uint32
	for _, r := range ranks {
		numbers = append(numbers, r.Rank)
		if string(r.Map.AgentMetadata) != fmt.Sprint("blob ", r.Rank) {
			panic(fmt.Sprintf("rank %d has %q", r.Rank, r.Map.AgentMetadata))
		}
	}
	k.loads = append(k.loads, numbers)
	return nil
}

func (k *sunk) SetOffset(_ uint64, o clock.Offset) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.offsets = append(k.offsets, o)
}

func (k *sunk) EngineOver(uint64, heartbeat.Over) { k.mu.Lock(); k.dead++; k.mu.Unlock() }
func (k *sunk) ReaderOver(uint64, uint64)         {}

// loaded gives the last load, and how many there were.
func (k *sunk) loaded() ([]uint32, int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.loads) == 0 {
		return nil, 0
	}
	return k.loads[len(k.loads)-1], len(k.loads)
}

// sideHost is a side channel alone, of an engine of tp x pp ranks.
func sideHost(t *testing.T, id string, tp, pp int, epoch uint64) (*sideChannel, *sunk) {
	t.Helper()
	cfg, err := ParseConfig([]byte(fmt.Sprintf(`{"role": "host", "engine_id": %q, "tp_size": %d, "pp_size": %d, "side_channel_host": "127.0.0.1",
		"side_channel_listen": true, "kv_lease_duration": 1.2, "allow_short_leases": true, "step_max": 0.2}`, id, tp, pp)))
	if err != nil {
		t.Fatal(err)
	}
	cfg.SideChannelPort = 0
	k := new(sunk)
	s, err := newSideChannel(cfg, k, Now, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	s.Begin(epoch, [2]uint64{epoch, epoch})
	return s, k
}

// sidePair is a reader's and an owner's side channel, D of boot 3 and P of boot 5, with their maps published.
func sidePair(t *testing.T) (d *sideChannel, k *sunk, p *sideChannel) {
	t.Helper()
	d, k = sideHost(t, "D", 1, 1, 3)
	p, _ = sideHost(t, "P", 1, 1, 5)
	publish(t, p, 5, 0)
	publish(t, d, 3, 0)
	return d, k, p
}

// wantOwner has d ask p.
func wantOwner(t *testing.T, d, p *sideChannel, engine uint64) {
	t.Helper()
	addr, _ := sideAddr("127.0.0.1", p.cfg.SideChannelPort)
	if err := d.Want(engine, heartbeat.EngineDesc{ID: "P"}, addr); err != nil {
		t.Fatal(err)
	}
}

// publish gives the side channel the maps of some ranks.
func publish(t *testing.T, s *sideChannel, epoch uint64, ranks ...int) {
	t.Helper()
	for _, r := range ranks {
		m := wire.AppendHandshake(nil, &wire.Handshake{
			EngineID: s.cfg.EngineID, AgentMetadata: []byte(fmt.Sprint("blob ", r)), BaseAddrs: []uint64{0x7f0000000000}, NumBlocks: 8,
			BlockLens: []uint64{4096}, BlockStrides: []uint64{4096}, RegionNames: []string{fmt.Sprint("layer.", r/s.cfg.TPSize)},
			Layout: "LBHNC", BlockSize: 16, AttnBackend: "FLASH_ATTN", PhysicalPerLogical: 1, Native: true,
			Lease: wire.HandshakeLease{
				Version: wire.LeaseVersion, Epoch: epoch, Board: 1 << 20, Slots: 16, Duration: time.Second, Agent: fmt.Sprint("a", r), Rank: uint32(r),
				TP: uint32(s.cfg.TPSize), PP: uint32(s.cfg.PPSize),
			},
		})
		if err := s.SetMap(uint32(r), m); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAHostAsksForAllRanksThatAnyOfItsOwnTalksTo(t *testing.T) {
	for _, tc := range []struct {
		reader, owner [2]int // TP, PP
		want          []uint32
	}{
		{[2]int{1, 1}, [2]int{1, 1}, []uint32{0}},
		{[2]int{2, 1}, [2]int{2, 1}, []uint32{0, 1}},
		{[2]int{2, 1}, [2]int{1, 1}, []uint32{0}},
		{[2]int{2, 1}, [2]int{4, 1}, []uint32{0, 1, 2, 3}},
		{[2]int{4, 1}, [2]int{2, 1}, []uint32{0, 1}},
		{[2]int{2, 2}, [2]int{2, 2}, []uint32{0, 1, 2, 3}},
		{[2]int{1, 1}, [2]int{2, 2}, []uint32{0, 1, 2, 3}},
	} {
		t.Run(fmt.Sprintf("TP x PP %v reads from %v", tc.reader, tc.owner), func(t *testing.T) {
			noLeaks(t)
			d, k := sideHost(t, "D", tc.reader[0], tc.reader[1], 3)
			p, _ := sideHost(t, "P", tc.owner[0], tc.owner[1], 5)
			for r := range tc.owner[0] * tc.owner[1] {
				publish(t, p, 5, r)
			}
			addr, _ := sideAddr("127.0.0.1", p.cfg.SideChannelPort)
			desc := heartbeat.EngineDesc{ID: "P", TP: uint32(tc.owner[0]), PP: uint32(tc.owner[1])}
			if err := d.Want(1<<32, desc, addr); err != nil {
				t.Fatal(err)
			}
			n := tc.reader[0] * tc.reader[1]
			for r := range n - 1 {
				publish(t, d, 3, r)
			}
			if d.client.Stats().Attempts != 0 {
				t.Error("peers are asked before all ranks have registered")
			}
			publish(t, d, 3, n-1)
			eventually(t, "the maps are handed on", func() bool { _, n := k.loaded(); return n > 0 })
			if got, _ := k.loaded(); !slices.Equal(got, tc.want) {
				t.Errorf("ranks %v, want %v", got, tc.want)
			}
			eventually(t, "one wire is up", func() bool { return p.readers.Stats().Wires == 1 })
			d.Withdraw()
			eventually(t, "it fell", func() bool { return p.readers.Stats().Wires == 0 })
			if d.client.Stats().Engines != [handshake.States]int{} {
				t.Error("peers are asked without memory to read into")
			}
			d.Begin(4, [2]uint64{4, 4})
			for r := range n {
				publish(t, d, 4, r)
			}
			eventually(t, "the maps are handed on again", func() bool { _, n := k.loaded(); return n == 2 })
		})
	}
}

func TestEnginesWhoseSizesDoNotFitAreRefused(t *testing.T) {
	d, _ := sideHost(t, "D", 2, 1, 3)
	if err := d.Want(1<<32, heartbeat.EngineDesc{ID: "P", TP: 3}, "127.0.0.1:1"); !errors.Is(err, ErrInvalid) {
		t.Errorf("TP 3 for TP 2: %v", err)
	}
}

func TestOffsetsAreRefreshedWhileFixedLeasesAreTracked(t *testing.T) {
	d, k, p := sidePair(t)
	const engine = 1 << 32
	wantOwner(t, d, p, engine)
	offsets := func() int { k.mu.Lock(); defer k.mu.Unlock(); return len(k.offsets) }
	eventually(t, "the first offset is there", func() bool { return offsets() == 1 })
	if n := d.client.Stats().Refreshes; n != 0 {
		t.Errorf("%d refreshes without a fixed lease", n)
	}
	d.Note(engine, heartbeat.EngineView{State: heartbeat.Connected, Tracked: 1, Fixed: 1})
	eventually(t, "it is refreshed", func() bool { return offsets() >= 3 })
	k.mu.Lock()
	last := k.offsets[len(k.offsets)-1]
	k.mu.Unlock()
	at, bound, ok := last.Local(monotonic())
	if now := Now(); !ok || bound > 50*time.Millisecond || now.Sub(at).Abs() > bound+50*time.Millisecond {
		t.Errorf("their clock is converted to %v, it is %v, bound %v", at, now, bound)
	}
	d.Note(engine, heartbeat.EngineView{State: heartbeat.Connected, Tracked: 1})
	eventually(t, "that was seen", func() bool { return d.watch.of(engine)&seenFixed == 0 })
}

func TestABrokenEngineIsAskedAnew(t *testing.T) {
	d, k, p := sidePair(t)
	const engine = 1 << 32
	wantOwner(t, d, p, engine)
	loads := func() int { _, n := k.loaded(); return n }
	eventually(t, "it is known", func() bool { return loads() == 1 })
	d.Note(engine, heartbeat.EngineView{State: heartbeat.Broken, Tracked: 1, Breaks: 1})
	eventually(t, "it is asked anew", func() bool { return loads() == 2 })
	d.Note(engine, heartbeat.EngineView{State: heartbeat.Connected, Tracked: 1, Breaks: 2})
	eventually(t, "and after a break that was mended before anybody looked", func() bool { return loads() == 3 })
	if d.n.retries.Load() != 2 {
		t.Errorf("%d retries", d.n.retries.Load())
	}
}

func TestTheLateWordOfAnOldWireIsNotTakenForTheNewLife(t *testing.T) {
	d, k, p := sidePair(t)
	wantOwner(t, d, p, 1<<32)
	eventually(t, "it is known", func() bool { _, n := k.loaded(); return n == 1 })
	for epoch, want := range map[uint64]int{4: 0, 5: 1} {
		k.mu.Lock()
		k.dead = 0
		k.mu.Unlock()
		d.ownerOver(1<<32, deathwire.Wire{OwnersEpoch: epoch}, heartbeat.Died)
		k.mu.Lock()
		if k.dead != want {
			t.Errorf("the word of epoch %d ends %d engines, want %d", epoch, k.dead, want)
		}
		k.mu.Unlock()
	}
}

// A wire may fall while the maps of that boot are on their way: asked for before, or being handed on.
func TestMapsOfABootThatDiedMeanwhileAreNotItsReturn(t *testing.T) {
	d, k, p := sidePair(t)
	const engine = 1 << 32
	wantOwner(t, d, p, engine)
	loads := func() int { _, n := k.loaded(); return n }
	eventually(t, "it is known", func() bool { return loads() == 1 })
	d.mu.Lock()
	peer := d.peers[engine]
	d.mu.Unlock()
	h := new(wire.Handshake)
	if err := wire.ParseHandshake(p.Map(0), h); err != nil {
		t.Fatal(err)
	}
	answer := handshake.Result{Engine: engine, Asked: time.Now(), Maps: []handshake.Map{{Handshake: h}}}
	d.ownerOver(engine, deathwire.Wire{OwnersEpoch: 5}, heartbeat.Died)
	before := loads()
	d.take(peer, answer)
	if loads() != before {
		t.Error("maps that were asked for before the wire fell are handed on")
	}
	eventually(t, "it is asked anew, and answers", func() bool { return loads() == before+1 })

	answer.Asked = time.Now()
	k.mu.Lock()
	k.dead, k.within = 0, func() { d.ownerOver(engine, deathwire.Wire{OwnersEpoch: 5}, heartbeat.Died) }
	k.mu.Unlock()
	d.take(peer, answer)
	k.mu.Lock()
	if k.dead != 2 {
		t.Errorf("a wire that falls while the maps are handed on is said %d times, want once more behind them", k.dead)
	}
	k.mu.Unlock()
}

func TestMapsThatCannotBeUsedAreAskedForAgain(t *testing.T) {
	d, k, p := sidePair(t)
	k.refuse = errors.New("no room")
	wantOwner(t, d, p, 1<<32)
	eventually(t, "they are refused", func() bool { return d.n.refused.Load() == 1 })
	if p.readers.Stats().Wires != 0 {
		t.Error("a wire to an engine that is of no use")
	}
	k.mu.Lock()
	k.refuse = nil
	k.mu.Unlock()
	d.mu.Lock()
	d.peers[1<<32].refused = time.Now().Add(-refusedWait)
	d.mu.Unlock()
	eventually(t, "they are handed on", func() bool { _, n := k.loaded(); return n == 1 })
}
