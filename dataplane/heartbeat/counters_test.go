package heartbeat

import (
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
)

// Metrics are all that an operator sees: each counter counts what its name says, once.
func TestWhatATrackerDoesIsCountedOnce(t *testing.T) {
	type count struct {
		name      string
		got, want uint64
	}
	for _, tc := range []struct {
		name   string
		change func(*Config)
		do     func(r *rig) []count
	}{
		{name: "a read, a release and what goes before", do: func(r *rig) []count {
			o := r.owner("P", false)
			e := r.connect(o)
			read, left := r.track(e, o, 1, 0), r.track(e, o, 2, 0)
			r.track(e, o, 3, 0)
			r.run(sec(11), 500*time.Millisecond)
			r.read(read, record.Run{N: 2})
			r.k.Untrack(left, r.now)
			r.run(sec(12), 500*time.Millisecond)
			bytes := 0
			for _, m := range o.heard {
				if m.what == "renew" {
					bytes += m.size
				}
			}
			c := r.k.Counters()
			return []count{
				{"tracked", c.Tracked, 3}, {"untracked", c.Untracked, 1}, {"reads", c.Reads, 1}, {"reads that ended well", c.Outcomes[record.ReadOK], 1},
				{"heartbeat messages", c.BeatBatches, uint64(o.count("renew"))}, {"their bytes", c.BeatBytes, uint64(bytes)},
				{"requests in them", c.Beats, uint64(len(o.ids("renew", false)))},
				{"completions", c.Completes, 1}, {"releases", c.Releases, 1}, {"messages of ends", c.EndBatches, 2}, {"hellos", c.Hellos, 1},
				{"handshakes", c.Handshakes, 1}, {"loads", c.Loads, 1},
			}
		}},
		{name: "a good-bye", do: func(r *rig) []count {
			o := r.owner("P", false)
			r.track(r.connect(o), o, 1, 0)
			r.run(sec(2), 500*time.Millisecond)
			r.k.Drain(r.now)
			r.run(sec(3), 500*time.Millisecond)
			c := r.k.Counters()
			return []count{{"good-byes", c.Leavings, uint64(o.count("leaving"))}, {"of one engine", c.Leavings, 1}, {"releases", c.Releases, 1}, {"gone", c.Gone, 1}}
		}},
		{name: "a risk", do: func(r *rig) []count {
			o := r.owner("P", false)
			o.deaf = true
			r.track(r.connect(o), o, 1, 0)
			r.run(sec(25), 500*time.Millisecond)
			return []count{{"requests at risk", r.k.Counters().AtRisk, 1}}
		}},
		{name: "parts that do not fit together", do: func(r *rig) []count {
			o := r.owner("P", false)
			e := r.connect(o)
			a, b := r.track(e, o, 1, 0), r.track(e, o, 2, 0)
			r.run(sec(1), 500*time.Millisecond)
			r.k.ReadPart(&record.Read{Track: a, Part: 1, Parts: 2, N: 1}, []record.Run{{N: 1}}, r.now)
			r.k.ReadPart(&record.Read{Track: b, Part: 0, Parts: 0, N: 1}, []record.Run{{N: 1}}, r.now)
			c := r.k.Counters()
			return []count{{"parts", c.BadParts, 2}, {"failed reads", c.Outcomes[record.ReadFailed], 2}}
		}},
		{name: "runs that find no room", change: func(c *Config) { c.RunsMax = 8 }, do: func(r *rig) []count {
			o := r.owner("P", false)
			h := r.track(r.add(o), o, 1, 0)
			r.read(h, make([]record.Run, 9000)...)
			return []count{{"reads", r.k.Counters().RunsFull, 1}}
		}},
		{name: "a read of nothing", do: func(r *rig) []count {
			o := r.owner("P", false)
			h := r.track(r.connect(o), o, 1, 0)
			r.read(h)
			return []count{{"reads", r.k.Counters().ReadsEmpty, 1}, {"reads that ended well", r.k.Counters().Outcomes[record.ReadOK], 1}}
		}},
		{name: "blocks that do not fit", do: func(r *rig) []count {
			o := r.owner("P", false)
			h := r.track(r.connect(o), o, 1, 0)
			r.run(sec(1), 500*time.Millisecond)
			r.read(h, record.Run{N: blockCount + 1})
			return []count{{"reads", r.k.Counters().ReadsInvalid, 1}}
		}},
		{name: "a rejection", do: func(r *rig) []count {
			o := r.owner("P", false)
			e := r.connect(o)
			r.run(sec(1), 500*time.Millisecond)
			r.k.Reject(o.req(0, e, 1, 0, r.now), []byte("p"), r.now)
			r.run(sec(2), 500*time.Millisecond)
			c := r.k.Counters()
			return []count{{"rejections", c.Rejected, 1}, {"releases", c.Releases, 1}}
		}},
		{name: "parameters without a key at an owner of ours", do: func(r *rig) []count {
			o := r.owner("P", false)
			h := r.trackStock(r.connect(o), "x")
			r.run(sec(1), 500*time.Millisecond)
			r.read(h, record.Run{N: 1})
			c := r.k.Counters()
			return []count{{"reads", c.Keyless, 1}, {"unproven", c.Outcomes[record.ReadUnproven], 1}}
		}},
		{name: "a stock lease outside the time guard", do: func(r *rig) []count {
			o := r.owner("P", true)
			h := r.trackStock(r.connect(o), "x")
			r.run(sec(2), 500*time.Millisecond)
			r.step(sec(30))
			r.read(h, record.Run{N: 1})
			c := r.k.Counters()
			return []count{{"reads", c.GuardRefused, 1}, {"unproven", c.Outcomes[record.ReadUnproven], 1}}
		}},
		{name: "long ids without room", change: func(c *Config) { c.LongIDs = 1 }, do: func(r *rig) []count {
			o := r.owner("P", true)
			e := r.connect(o)
			r.trackStock(e, strings.Repeat("a", 200))
			r.trackStock(e, strings.Repeat("b", 200))
			r.k.Reject(&record.TrackReq{Engine: e}, []byte(strings.Repeat("c", 200)), r.now)
			return []count{{"requests", r.k.Counters().LongIDsFull, 2}}
		}},
		{name: "handles that are none", do: func(r *rig) []count {
			r.k.Untrack(record.NewHandle(1, 3), r.now)
			r.k.Track(&record.TrackReq{Track: record.NewHandle(1<<20, 0)}, []byte("x"), nil, r.now)
			r.k.ReadPart(&record.Read{Track: record.NewHandle(1, 3), Parts: 1}, nil, r.now)
			r.k.Reject(&record.TrackReq{Engine: 99 << 32}, []byte("x"), r.now)
			return []count{{"submissions", r.k.Counters().StaleHandles, 4}}
		}},
		{name: "rows that are open when the next round looks at them", change: func(c *Config) { c.RowsStepMax = 2 }, do: func(r *rig) []count {
			o := r.owner("P", false)
			e := r.connect(o)
			for slot := range uint32(20) {
				r.track(e, o, slot, 0)
			}
			r.hub.Stop("P")
			r.run(sec(4), 100*time.Millisecond)
			before := r.k.Counters()
			r.run(sec(6), 100*time.Millisecond)
			c := r.k.Counters()
			return []count{{"rows of the first round", before.Rows, 20}, {"of the next", c.Rows - before.Rows, 0},
				{"steps of the next that stopped", c.RowsCut - before.RowsCut, 2}} // 4 x RowsStepMax are looked at in a step
		}},
		{name: "events that find no room", do: func(r *rig) []count {
			o := r.owner("P", false)
			r.full = true
			h := r.track(r.connect(o), o, 1, 0)
			r.run(sec(2), time.Second)
			r.read(h, record.Run{N: 1})
			refused := r.k.Counters().EventsRefused
			r.step(sec(3))
			return []count{{"steps", r.k.Counters().EventsRefused, refused + 1}}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, tc.change)
			for _, c := range tc.do(r) {
				if c.got != c.want {
					t.Errorf("%s: %d, want %d", c.name, c.got, c.want)
				}
			}
		})
	}
}
