package demo

import (
	"io"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// deaf takes notifications and loses them.
type deaf struct{ transport.Transport }

func (d deaf) Poll(in *transport.Inbox) int {
	d.Transport.Poll(in)
	in.Reset()
	return 0
}

// stale answers reads of rows with what it read there first, as a cache would that nobody invalidates.
type stale struct {
	transport.Transport
	mu    sync.Mutex
	first map[uint64][]byte // by address at the owner
	posts map[transport.Xfer][]transport.Desc
}

const rowMax = 64 // bytes; nothing else that is read is that small

func (s *stale) PostRead(spec *transport.ReadSpec) (transport.Xfer, error) {
	x, err := s.Transport.PostRead(spec)
	if err == nil && spec.Descs[0].Len <= rowMax {
		s.mu.Lock()
		s.posts[x] = append([]transport.Desc(nil), spec.Descs...)
		s.mu.Unlock()
	}
	return x, err
}

func (s *stale) PollReads(xfers []transport.Xfer, out []transport.Status, spin int64) {
	s.Transport.PollReads(xfers, out, spin)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, x := range xfers {
		if out[i] != transport.Done {
			continue
		}
		for _, d := range s.posts[x] {
			row := landed(&d)
			if old := s.first[d.Remote]; old != nil {
				copy(row, old)
			} else {
				s.first[d.Remote] = append([]byte(nil), row...)
			}
		}
		delete(s.posts, x)
	}
}

// hasty says of large reads that they have ended, a while after they were posted.
type hasty struct {
	transport.Transport
	mu    sync.Mutex
	posts map[transport.Xfer]time.Time
}

func (h *hasty) PostRead(spec *transport.ReadSpec) (transport.Xfer, error) {
	x, err := h.Transport.PostRead(spec)
	if err == nil && spec.Descs[0].Len > rowMax {
		h.mu.Lock()
		h.posts[x] = time.Now()
		h.mu.Unlock()
	}
	return x, err
}

func (h *hasty) PollReads(xfers []transport.Xfer, out []transport.Status, spin int64) {
	h.Transport.PollReads(xfers, out, spin)
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, x := range xfers {
		if at, ok := h.posts[x]; ok && time.Since(at) > readTimeout+100*time.Millisecond {
			out[i] = transport.Done
		}
	}
}

func (h *hasty) Release(transport.Xfer) error { return nil }

// loose lets nobody be reached again once a connection has broken.
type loose struct {
	transport.Transport
	loads int
}

func (l *loose) Load(blob []byte) (transport.Peer, error) {
	if l.loads++; l.loads > 1 {
		return 0, transport.ErrPeer
	}
	return l.Transport.Load(blob)
}

// TestAFaultyEngineBreaksAPromise plays scenes with engines of which one part does not do its work. Each has to be found out.
func TestAFaultyEngineBreaksAPromise(t *testing.T) {
	in := func(name string, tr func(transport.Transport) transport.Transport) func(spec, transport.Transport) transport.Transport {
		return func(s spec, t transport.Transport) transport.Transport {
			if s.name == name {
				return tr(t)
			}
			return t
		}
	}
	asDeaf := func(t transport.Transport) transport.Transport { return deaf{t} }
	asStale := func(t transport.Transport) transport.Transport {
		return &stale{Transport: t, first: map[uint64][]byte{}, posts: map[transport.Xfer][]transport.Desc{}}
	}
	for _, tc := range []struct {
		name, scene string
		mutate      func(spec, transport.Transport) transport.Transport
		keys        map[string]any
		breaks      string
	}{
		{name: "P hears no heartbeats", scene: "a", mutate: in("P", asDeaf), breaks: "leases lost while waiting"},
		{name: "P hears no heartbeats of many", scene: "d", mutate: in("P", asDeaf), breaks: "requests kept by each batch"},
		{name: "D's fence reads are old", scene: "c", mutate: in("D", asStale), breaks: "requests with wrong data handed out"},
		{name: "one rank of P hears no heartbeats", scene: "f", breaks: "leases lost while waiting", mutate: func(s spec, t transport.Transport) transport.Transport {
			if s.name == "P" && s.rank == s.tp-1 {
				return deaf{t}
			}
			return t
		}},
		{name: "no death wire to P", scene: "g", keys: map[string]any{"death_wire": false}, breaks: "reclaimed after the kill, by the death wire"},
		{name: "no death wire to D", scene: "h", keys: map[string]any{"death_wire": false}, breaks: "D told after the kill, by the death wire"},
		{name: "D does not heal", scene: "i", mutate: in("D", func(t transport.Transport) transport.Transport { return &loose{Transport: t} }), breaks: "leases lost"},
		{name: "D gives blocks back before the bytes have come", scene: "j", breaks: "blocks given back while P stood still",
			mutate: in("D", func(t transport.Transport) transport.Transport {
				return &hasty{Transport: t, posts: map[transport.Xfer]time.Time{}}
			})},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(t, tc.scene, nil)
			inner := inProcessLauncher(t, nil, tc.mutate)
			cfg.launch = func(s spec, stderr io.Writer) (process, error) {
				s.keys = maps.Clone(s.keys)
				if s.keys == nil {
					s.keys = map[string]any{}
				}
				maps.Copy(s.keys, tc.keys)
				return inner(s, stderr)
			}
			result, err := Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			broken := map[string]bool{}
			for _, p := range result.Promises {
				if !p.Kept {
					broken[p.What] = true
				}
			}
			if result.Kept || !broken[tc.breaks] {
				t.Errorf("broken: %v, want %q; failed: %v", broken, tc.breaks, result.Failures)
			}
		})
	}
}
