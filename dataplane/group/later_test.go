package group_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane"
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/group"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/topology"
)

// bare is a host of two ranks whose streams are lists in memory.
type bare struct {
	t    *testing.T
	g    *group.Group
	h    *host.Host
	now  clock.Instant
	ends [2]*wireEnd
}

func newBare(t *testing.T, change func(*group.Config)) *bare {
	mem := memory(t, 1, 1<<12)
	out, err := dataplane.NewEvents(mem.Events, nil)
	must(t, err)
	b := &bare{t: t, now: clock.Instant(time.Hour)}
	var carriers []stream.Carrier
	for i := range b.ends {
		b.ends[i] = &wireEnd{room: 1 << 16, gap: true, lose: func() bool { return false }}
		carriers = append(carriers, b.ends[i])
	}
	cfg := group.Config{Self: topology.Shape{TP: 2, PP: 1}, Duration: duration, Engines: 4, MapMax: 64}
	if change != nil {
		change(&cfg)
	}
	b.g, err = group.New(cfg, mem, carriers, out)
	must(t, err)
	b.h, err = host.New(mem, nil)
	must(t, err)
	return b
}

func (b *bare) step() {
	b.now = b.now.Add(time.Millisecond)
	b.g.Step(b.now)
}

// take gives what a rank was told of rejections and deaths, and of engines in between, and makes room.
func (b *bare) take(rank int) (said []string) {
	for _, r := range b.ends[rank].down {
		switch r.tag {
		case record.TagReject:
			_, id, _, _ := record.AsTrack(r.b)
			said = append(said, string(id))
		case record.TagReaderDead:
			d, _ := record.AsReaderDead(r.b)
			said = append(said, fmt.Sprint("death ", d.Reader))
		case record.TagEngine:
			said = append(said, "engine")
		}
	}
	b.ends[rank].down = nil
	return said
}

func (b *bare) want(rank int, want ...string) {
	b.t.Helper()
	if got := b.take(rank); !slices.Equal(got, want) {
		b.t.Errorf("rank %d is told %q, want %q", rank, got, want)
	}
}

func TestRejectionsAndDeathsThatFindNoRoomAreToldOnceThereIsSome(t *testing.T) {
	b := newBare(t, nil)
	e, err := b.g.AddEngine(group.EngineDesc{ID: "P", TP: 2})
	must(t, err)
	reject := func(id string) { must(t, b.h.Reject(e, &host.Remote{ID: []byte(id)}, b.now)) }
	for range 3 {
		b.step()
	}
	b.want(0, "engine")
	b.want(1, "engine")
	full := b.ends[1].room
	b.ends[1].room = 0
	reject("a")
	b.step()
	b.g.EngineDied(5, 6)
	reject("b")
	b.step()
	b.want(0, "a", "death 5", "b")
	b.want(1)
	if due := b.g.NextDue(b.now); due > b.now.Add(time.Second) {
		t.Error("nobody asks for a step that would tell them")
	}
	b.ends[1].room = full
	reject("c") // behind those that wait
	b.step()
	b.step()
	b.want(0, "c")
	b.want(1, "a", "death 5", "b", "c")
	if c := b.g.Counters; c.RejectsUntold+c.DeathsUntold != 0 || b.g.Rank(1).FullStates != 1 {
		t.Errorf("%+v, %d full states", c, b.g.Rank(1).FullStates)
	}

	b.ends[1].gap = true // it hears nothing before the full state, and can be told nothing before that has named the engine
	reject("d")
	b.g.EngineDied(7, 8)
	for range 3 {
		b.step()
	}
	b.want(0, "death 7", "d")
	b.want(1, "engine", "death 7", "d")

	b.ends[1].room = 0
	for n := range 70 {
		reject(fmt.Sprint("e", n))
	}
	b.step()
	if c := b.g.Counters; c.RejectsUntold != 70-64 {
		t.Errorf("%d rejections are given up, want those past 64", c.RejectsUntold)
	}
	b.ends[1].lost = true // nobody waits for it any more
	b.step()
	b.step()
	b.take(0)
	b.ends[0].room = 0
	reject("f")
	b.step()
	b.ends[0].room = full
	b.step()
	b.want(0, "f")
}
