package group_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/group"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/log/logtest"
	"github.com/kvlease/kvlease/dataplane/record"
)

// Each kind that a host context says comes from its cause; what is about a rank says which.
func TestWhatGoesWrongInAGroupIsSaid(t *testing.T) {
	const ofNone = ^uint64(0)
	for _, tc := range []struct {
		kind    log.Kind
		rank    uint64 // ofNone: it is about a request
		request string
		do      func(b *bare)
	}{
		{kind: log.RankUp, rank: 1, do: func(b *bare) { saysClosed(b.ends[1], record.RankRegistered) }},
		{kind: log.RankLost, rank: 1, do: func(b *bare) { b.ends[1].lost = true }},
		{kind: log.RankLeft, rank: 0, do: func(b *bare) { saysClosed(b.ends[0], record.RankClosed); b.step(); b.ends[0].lost = true }},
		{kind: log.RankBroken, rank: 1, do: func(b *bare) { saysClosed(b.ends[1], record.RankPoisoned) }},
		{kind: log.RankBad, rank: 0, do: func(b *bare) { b.ends[0].up = append(b.ends[0].up, rec{77, words(8)}) }},
		{kind: log.RankBehind, rank: 1, do: func(b *bare) {
			b.ends[1].room = 0
			b.expect("a")
		}},
		{kind: log.RankUntold, rank: ofNone, do: func(b *bare) {
			e, err := b.g.AddEngine(group.EngineDesc{ID: "P", TP: 2})
			must(b.t, err)
			b.step()
			b.ends[1].room = 0
			for n := range 70 { // 64 wait
				must(b.t, b.h.Reject(e, &host.Remote{ID: fmt.Append(nil, n)}, b.now))
			}
		}},
		{kind: log.DuplicateGrant, rank: ofNone, request: "a", do: func(b *bare) { b.grant("a"); b.grant("a") }},
		{kind: log.ExpectLapsed, rank: ofNone, request: "a", do: func(b *bare) {
			b.expect("a")
			b.step()
			b.now = b.now.Add(10 * duration)
		}},
		{kind: log.LeaseIDsFull, rank: ofNone, request: strings.Repeat("2", 64) + "...", do: func(b *bare) {
			b.grant(strings.Repeat("1", 200))
			b.grant(strings.Repeat("2", 200))
		}},
		{kind: log.RequestIDsFull, rank: ofNone, request: strings.Repeat("2", 64) + "...", do: func(b *bare) {
			b.track(strings.Repeat("1", 200), 0)
			b.track(strings.Repeat("2", 200), 0)
		}},
		{kind: log.ClockUnknown, rank: ofNone, request: "a", do: func(b *bare) {
			u := b.track("a", uint64(b.now.Add(time.Hour)))
			b.step()
			must(b.t, b.h.Read(u, []record.Run{{N: 1}}))
			b.step()
			b.now = b.now.Add(5 * duration)
		}},
	} {
		t.Run(log.Defs[tc.kind].Name, func(t *testing.T) {
			book := logtest.New()
			b := newBare(t, func(c *group.Config) { c.Log, c.LongIDs = book.Log.Step, 1 })
			for range 3 {
				b.step()
			}
			tc.do(b)
			b.step()
			b.step()
			book.Want(t, tc.kind, "", tc.request)
			if said := book.Of(t, tc.kind); tc.rank != ofNone && (len(said) != 1 || said[0].Values["rank"] != tc.rank) {
				t.Errorf("said: %+v, want it of rank %d", said, tc.rank)
			}
		})
	}
}

func (b *bare) expect(id string) {
	b.t.Helper()
	_, err := b.h.Expect([]byte(id))
	must(b.t, err)
}

func (b *bare) grant(id string) {
	b.t.Helper()
	_, err := b.h.Grant(host.Grant{ID: []byte(id), Blocks: 1}, b.now)
	must(b.t, err)
}

func (b *bare) track(id string, expires uint64) record.Handle {
	b.t.Helper()
	e, err := b.g.AddEngine(group.EngineDesc{ID: "P", TP: 2})
	must(b.t, err)
	u, err := b.h.Track(e, &host.Remote{ID: []byte(id), Native: true, Epoch: 1, ExpiresNs: expires}, nil, 1, b.now)
	must(b.t, err)
	return u
}
