package simnet_test

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/sim/simnet"
	"github.com/kvlease/kvlease/dataplane/transport"
)

func TestNothingIsAllocatedOnceThePoolsHaveGrown(t *testing.T) {
	for name, link := range map[string]simnet.Link{
		"without faults": {Delay: 100 * time.Microsecond},
		"with all of them": {
			Delay: 100 * time.Microsecond, Jitter: ms, Loss: 0.1, Dup: 0.1, Reorder: 0.1, ReadFail: 0.3, Torn: 0.3, Late: 10 * ms, Rate: 1e9,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1, link)
			descs := make([]transport.Desc, 100)
			for i := range descs {
				descs[i] = w.desc(i*100, 90)
			}
			data := transport.ReadSpec{Peer: w.toP, Descs: descs, Notif: []byte("request-1:1")}
			row := transport.ReadSpec{Peer: w.toP, Descs: descs[:1:1]}
			row.Descs[0].Len = 32
			beat := make([]byte, 3000)
			var xs []transport.Xfer
			var out []transport.Status
			post := func(spec *transport.ReadSpec) {
				x, err := w.d.PostRead(spec)
				w.must(err)
				xs, out = append(xs, x), append(out, 0)
			}
			step := func() {
				w.must(w.d.Send(w.toP, beat))
				if len(xs) < 40 {
					post(&data)
					post(&row)
				}
				w.d.PollReads(xs, out, 50_000)
				for i := len(xs) - 1; i >= 0; i-- {
					if out[i] != transport.Pending {
						w.must(w.d.Release(xs[i]))
						last := len(xs) - 1
						xs[i], out[i] = xs[last], out[last]
						xs, out = xs[:last], out[:last]
					}
				}
				w.after(300 * time.Microsecond)
				w.in.Reset()
				w.p.Poll(w.in)
				w.p.Backlog()
			}
			for range 5000 { // pools, and the room for handles above
				step()
			}
			if n := testing.AllocsPerRun(3000, step); n != 0 {
				t.Errorf("%v allocations a step, want 0", n)
			}
			if c := w.net.Counters(); c.ReadsDone == 0 || c.Arrived == 0 || link.ReadFail > 0 && (c.LatePieces == 0 || c.Lost == 0) {
				t.Errorf("it did not happen: %+v", c)
			}
		})
	}
}
