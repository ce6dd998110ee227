package core

import (
	"sync"
	"testing"

	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// Two threads name and remove one engine. When it is removed for good nothing asks for it any more.
func TestAnEngineThatIsNamedWhileItIsRemovedIsAskedByNobody(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		f := newFleet(t, stream.KindProcess)
		m := f.open("D", ranks, 1)
		desc := heartbeat.EngineDesc{ID: "P", TP: 1, PP: 1}
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				for range 20000 {
					e, err := m.core.AddPeer(desc, "127.0.0.1", 1)
					if err != nil {
						continue // the places of removed ones come back with a step
					}
					_ = m.core.RemoveEngine(e)
				}
			})
		}
		stepped := make(chan struct{})
		go func() { both.Wait(); close(stepped) }()
		for over := false; !over; {
			select {
			case <-stepped:
				over = true
			default:
				f.turn()
			}
		}
		s := m.core.side
		s.mu.Lock()
		peers := len(s.peers)
		s.mu.Unlock()
		watched := 0
		for i := range s.watch.places {
			if s.watch.places[i].engine.Load() != 0 {
				watched++
			}
		}
		if peers != 0 || watched != 0 {
			t.Errorf("%d ranks: %d engines are asked for, %d watched", ranks, peers, watched)
		}
		if h := m.core.hosted; h != nil && len(h.shapes) != 0 {
			t.Errorf("%d shapes are kept", len(h.shapes))
		}
	}
}
