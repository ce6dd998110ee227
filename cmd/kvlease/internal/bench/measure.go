package bench

import (
	"slices"

	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/internal/jsons"
)

var readWays = []string{WayCopy, WayBare, WayRaw, WayFenced, WayOurs}

// reads measures each number of blocks at the present size.
func (d *reader) reads(cfg *Config, r *Result) error {
	for _, n := range cfg.Counts {
		var tracks []record.Handle // of a round, all at once: what tracking takes would stand before our reads alone
		begin := func() (err error) {
			tracks, err = d.track(cfg.Samples)
			return err
		}
		sets, err := d.rounds(cfg, len(readWays), begin, func(way int) ([]float64, error) {
			var track record.Handle
			if readWays[way] == WayOurs {
				track, tracks = tracks[0], tracks[1:]
			}
			d.choose(n)
			took, first, err := d.read(readWays[way], track)
			return []float64{took / 1000, first / 1000}, err
		})
		if err != nil {
			return err
		}
		row := Read{Block: d.spec.Block, Count: n}
		for way, name := range readWays {
			w := ReadWay{Way: name, Us: sets[way][0].figure()}
			w.GBs = w.Us.per(float64(d.spec.Block) * float64(n) / 1000)
			if f := sets[way][1].figure(); f.Low > 0 {
				w.FirstUs = &f
			}
			row.Ways = append(row.Ways, w)
		}
		us := func(way string) series { return sets[slices.Index(readWays, way)][0] }
		row.FenceUs, row.FenceLeastUs = us(WayOurs).less(us(WayRaw)), us(WayFenced).less(us(WayRaw))
		r.Reads = append(r.Reads, row)
	}
	return nil
}

var notifWays = []string{WayRaw, WayOurs}

// message is as long as what a stock reader sends about one request.
var message = []byte("chatcmpl-00000000000000000000000000000000-00000000:1")

// notifications measures how long one takes from the call here until P has acted on it, and how many a second. Raw: until P's poll
// has it. Ours: a release, from the hook here until P's own poll says that the blocks are free.
func (d *reader) notifications(cfg *Config) (n Notifications, err error) {
	if _, err := d.p.ask(d.ctx, request{Op: opSpin}); err != nil {
		return n, err
	}
	if _, err := d.notify(WayRaw, 1); err != nil { // the first one connects
		return n, err
	}
	for _, kind := range []struct {
		to    *jsons.List[NotifWay]
		burst int
	}{{&n.Latency, 1}, {&n.Burst, cfg.Burst}} {
		few := *cfg
		if kind.burst > 1 {
			few.Samples = 1
		}
		sets, err := d.rounds(&few, len(notifWays), func() error { return nil }, func(way int) ([]float64, error) {
			us, err := d.notify(notifWays[way], kind.burst)
			return []float64{us}, err
		})
		if err != nil {
			return n, err
		}
		for way, name := range notifWays {
			w := NotifWay{Way: name, Us: sets[way][0].figure()}
			w.PerSecond = w.Us.per(float64(kind.burst) * 1e6)
			*kind.to = append(*kind.to, w)
		}
	}
	_, err = d.p.ask(d.ctx, request{Op: opPass})
	return n, err
}

// notify sends n in one way and gives the time in us until P has acted on the last.
func (d *reader) notify(way string, n int) (float64, error) {
	var start int64
	op := opNotif
	if way == WayRaw {
		start = int64(core.Now())
		for range n {
			if err := d.raw.Send(d.peer, message); err != nil {
				return 0, err
			}
		}
	} else {
		op = opFreed
		tracks, err := d.track(n)
		if err != nil {
			return 0, err
		}
		start = int64(core.Now())
		for _, t := range tracks {
			if err := d.host.Untrack(t); err != nil {
				return 0, err
			}
		}
		if err := d.step(func(*record.Event) error { return nil }); err != nil {
			return 0, err
		}
	}
	a, err := d.askStepping(request{Op: op, N: n})
	if err != nil {
		return 0, err
	}
	return float64(a.At[n-1]-start) / 1000, nil
}

// askStepping asks P for what may need steps of ours until it comes: a burst is more than one step sends. The raw agent is polled as often,
// so that what comes next finds both in the same state: NIXL has a thread for each agent, and its posts wait for that thread.
func (d *reader) askStepping(r request) (a answer, err error) {
	got := make(chan struct{})
	go func() {
		defer close(got)
		a, err = d.p.ask(d.ctx, r)
	}()
	for {
		select {
		case <-got:
			return a, err
		default:
		}
		if err := d.step(func(*record.Event) error { return nil }); err != nil {
			<-got
			return a, err
		}
		d.raw.Poll(d.in)
		d.in.Reset()
	}
}
