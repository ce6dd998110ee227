package lease

import (
	"fmt"
	"testing"

	"github.com/kvlease/kvlease/dataplane/record"
)

func TestL12WhoNamedALease(t *testing.T) {
	unchecked := func(r *rig, h record.Handle) bool { return r.mem.Slots[h.Slot()].Flags&record.Unchecked != 0 }
	native := func(r *rig, h record.Handle, d Reader) { r.want(r.t.Renew(r.entry(h), d, r.now), Applied) }
	for _, tc := range []struct {
		name          string
		checkedPeers  bool
		say           func(r *rig, h record.Handle)
		wantUnchecked bool
		wantRevoke    bool
		wantGone      bool
	}{
		{"nobody named it", false, func(r *rig, h record.Handle) {}, true, false, false},
		{"nobody named it, all peers check", true, func(r *rig, h record.Handle) {}, false, true, false},
		{"one engine of ours", false, func(r *rig, h record.Handle) { native(r, h, engineD) }, false, true, true},
		{"two engines of ours", false, func(r *rig, h record.Handle) { native(r, h, engineE); native(r, h, engineD) }, false, true, false},
		{"a stock one", false, func(r *rig, h record.Handle) { r.beat("a") }, true, false, false},
		{"a stock one, all peers should check", true, func(r *rig, h record.Handle) { r.beat("a") }, true, false, false},
		{"ours, then a stock one", false, func(r *rig, h record.Handle) { native(r, h, engineD); r.beat("a") }, true, false, false},
		{"a stock one, then ours", false, func(r *rig, h record.Handle) { r.beat("a"); native(r, h, engineD) }, true, false, false},
		{"ours, then a stock completion", false, func(r *rig, h record.Handle) {
			native(r, h, engineD)
			r.want(r.done("a", "X", 1), Refused)
		}, true, false, false},
		{"an incomplete stock completion, then ours", false, func(r *rig, h record.Handle) {
			r.done("a", "X", 2)
			native(r, h, engineD)
		}, true, false, false},
	} {
		for _, verb := range []string{"revoke", "pressure", "gone"} {
			t.Run(tc.name+", "+verb, func(t *testing.T) {
				r := newRig(t, 2, func(c *Config) { c.AllPeersCheck = tc.checkedPeers })
				a := r.grant("a")
				tc.say(r, a)
				if got := unchecked(r, a); got != tc.wantUnchecked {
					t.Fatalf("slot flag unchecked = %v, want %v", got, tc.wantUnchecked)
				}
				want, reason := tc.wantRevoke, uint16(record.FreedRevoked)
				switch verb {
				case "revoke":
					r.t.Revoke(a, r.now)
				case "pressure":
					r.t.Pressure(1, r.now)
				case "gone":
					want, reason = tc.wantGone, record.FreedReleased
					r.t.EngineGone(engineD.Engine, engineD.Epoch, r.now)
				}
				if want {
					r.wantEnded(reason, a)
				} else {
					r.wantHeld(a)
					r.run(at(31))
					r.wantEnded(record.FreedExpired, a)
				}
				r.wantEmpty()
			})
		}
	}
}

func TestL12AReleaseByOneOfTwoEnginesOnlyTakesItsClaim(t *testing.T) {
	r := newRig(t, 2)
	a := r.grant("a")
	r.t.Renew(r.entry(a), engineD, r.now)
	r.want(r.t.Release(r.entry(a), engineE, r.now), Refused)
	r.wantHeld(a)
	if got := r.t.EngineGone(engineE.Engine, engineE.Epoch, r.now); got != 0 {
		t.Errorf("%d leases ended with an engine that had given its claim up", got)
	}
	r.want(r.t.Complete(r.entry(a), engineD, 1, r.now), Ended)
}

func TestL12ARevokeIsCarriedOutWhenTheReaderTurnsOutToBeOurs(t *testing.T) {
	r := newRig(t, 2)
	a := r.grant("a")
	r.t.Revoke(a, r.now)
	r.wantHeld(a)
	r.wantCount("revokes left waiting", r.c.RevokeWaits, 1)
	r.want(r.t.Renew(r.entry(a), engineD, r.now), Ended)
	r.wantEnded(record.FreedRevoked, a)
}

func TestL12AWrongKeyNamesNothing(t *testing.T) {
	r := newRig(t, 2)
	a := r.grant("a")
	bad := r.entry(a)
	bad.Key++
	r.want(r.t.Renew(bad, engineD, r.now), BadKey)
	r.want(r.t.Complete(bad, engineD, 1, r.now), BadKey)
	r.want(r.t.Release(bad, engineD, r.now), BadKey)
	other := Entry{Slot: 1, Generation: 0, Key: r.entry(a).Key} // the key of another slot
	r.want(r.t.Renew(other, engineD, r.now), BadKey)
	next := Entry{Slot: 0, Generation: 1, Key: Key(r.secret, 0, 1)} // right key, a use that is not there yet
	r.want(r.t.Renew(next, engineD, r.now), Unknown)
	r.want(r.t.Renew(Entry{Slot: 2}, engineD, r.now), Unknown)
	r.want(r.t.Renew(Entry{Slot: 1 << 31}, engineD, r.now), Unknown)
	r.wantHeld(a)
	if r.mem.Slots[a.Slot()].Flags&record.Unchecked == 0 {
		t.Error("a message with a wrong key cleared unchecked")
	}
	r.wantCount("bad keys", r.c.BadKey, 4)
}

func TestL12StockPeersOffIgnoresThem(t *testing.T) {
	r := newRig(t, 2, func(c *Config) { c.StockPeers = false })
	a := r.grant("a")
	r.want(r.beat("a"), Ignored)
	r.want(r.done("a", "D", 1), Ignored)
	out := make([]Outcome, 1)
	r.t.RenewIDs([][]byte{[]byte("a")}, agentD, r.now, out)
	r.want(out[0], Ignored)
	r.want(r.t.TryID([]byte("a"), agentD, r.now), Ignored)
	r.wantHeld(a)
	r.wantCount("ignored", r.c.StockIgnored, 3)
}

func TestL12StockMessagesMayExtendButNotEndWhatANativeOneNamed(t *testing.T) {
	r := newRig(t, 2)
	a := r.grant("a")
	r.t.Renew(r.entry(a), engineD, r.now)
	r.want(r.done("a", "D", 1), Refused)
	r.run(at(25))
	r.want(r.beat("a"), Applied)
	r.run(at(44.9))
	r.wantHeld(a)
	r.wantCount("refused", r.c.StockEndRefused, 1)
}

func TestL12PressureTakesTheLongestWaitingFirst(t *testing.T) {
	r := newRig(t, 8, checkedPeers)
	var hs []record.Handle
	for i := range 6 {
		hs = append(hs, r.grant(fmt.Sprint(i)))
	}
	if got := r.t.Pressure(20, r.now); got != 24 {
		t.Errorf("pressure for 20 blocks freed %d, want three leases of 8", got)
	}
	r.wantEnded(record.FreedRevoked, hs[:3]...)
	r.wantHeld(hs[3:]...)
}

func TestL12PressurePastItsBoundGoesOnInTheNextSteps(t *testing.T) {
	r := newRig(t, 1000, checkedPeers)
	for i := range 1000 {
		r.grant(fmt.Sprint(i))
	}
	if got := r.t.Pressure(6000, r.now); got != 256*8 {
		t.Fatalf("pressure freed %d blocks in one step, want 256 leases", got)
	}
	r.run(at(0.1))
	if got := r.t.Held(); got != 250 {
		t.Errorf("%d leases left, want 250", got)
	}
	if r.c.PressureCut == 0 {
		t.Error("the bound was reached and not counted")
	}
}

func TestL12AGoneEngineIsWorkedOffInBoundedSteps(t *testing.T) {
	r := newRig(t, 1000)
	for i := range 1000 {
		h := r.grant(fmt.Sprint(i))
		r.t.Renew(r.entry(h), Reader{Engine: uint64(i % 2), Epoch: 1}, r.now)
	}
	if got := r.t.EngineGone(0, 1, r.now); got != 256 {
		t.Fatalf("%d ended in one step, want 256", got)
	}
	r.t.EngineGone(1, 2, r.now) // another boot: not these
	r.run(at(0.1))
	if got := r.t.Held(); got != 500 {
		t.Errorf("%d leases left, want the 500 of the other engine", got)
	}
	r.t.EngineGone(0, 1, r.now) // gone already
	r.t.EngineGone(1, 1, r.now)
	r.run(at(0.2))
	if got := r.t.Held(); got != 0 {
		t.Errorf("%d leases left of the engine that was second in the queue", got)
	}
}

func TestL12GoneEnginesPastWhatATurnServesAreLeftToTheirDeadlines(t *testing.T) {
	const most = 1024 // engines that may die during one turn
	r := newRig(t, 1000)
	for i := range 1000 {
		r.t.Renew(r.entry(r.grant(fmt.Sprint(i))), engineD, r.now)
	}
	r.t.EngineGone(engineD.Engine, engineD.Epoch, r.now) // cut off at its bound
	for i := range uint64(most + 5) {
		r.t.EngineGone(100+i, 9, r.now)
	}
	r.wantCount("dropped", r.c.GoneDropped, 5)
	r.run(at(1))
	if r.t.Held() != 0 || !r.t.gone.empty() {
		t.Errorf("%d leases and %d gone engines left", r.t.Held(), r.t.gone.turn.used+r.t.gone.later.used)
	}
}

func TestL12ManyEnginesThatDieTogetherAreWorkedOffInTwoTurns(t *testing.T) {
	const engines = 500
	r := newRig(t, 2000)
	for i := range 2000 {
		r.t.Renew(r.entry(r.grant(fmt.Sprint(i))), Reader{Engine: uint64(i % engines), Epoch: 1}, r.now)
	}
	for i := range uint64(engines) {
		r.t.EngineGone(i, 1, r.now)
	}
	r.run(r.now.Add(10 * tick)) // 8 steps of 256 ends, and the first turn's
	if r.t.Held() != 0 {
		t.Errorf("%d leases left", r.t.Held())
	}
	r.wantEmpty()
}

func TestL12AnEngineThatDiesAgainDuringItsTurnIsLookedForOnceMore(t *testing.T) {
	r := newRig(t, 1000)
	for i := range 999 {
		r.t.Renew(r.entry(r.grant(fmt.Sprint(i))), engineD, r.now)
	}
	r.t.EngineGone(engineD.Engine, engineD.Epoch, r.now) // cut off at its bound, the first slots are free again
	r.drain()
	r.never = uint32(len(r.mem.Slots)) // from the given back ones
	again := r.grant("again")
	if again.Slot() >= 256 {
		t.Fatalf("granted in slot %d, want one that the turn has passed", again.Slot())
	}
	r.t.Renew(r.entry(again), engineD, r.now)
	r.t.EngineGone(engineD.Engine, engineD.Epoch, r.now)
	r.run(r.now.Add(10 * tick))
	r.wantEnded(record.FreedReleased, again)
	r.wantEmpty()
}

func TestL12AnEngineThatHasSaidGoodByeEndsNothingByDying(t *testing.T) {
	r := newRig(t, 4)
	a, b := r.grant("a"), r.grant("b")
	r.t.Renew(r.entry(a), engineD, r.now)
	r.t.Renew(r.entry(b), engineE, r.now)
	r.t.Leaving(engineD.Engine, engineD.Epoch)
	r.t.Leaving(engineD.Engine, engineD.Epoch)
	if got := r.t.EngineGone(engineD.Engine, engineD.Epoch, r.now); got != 0 {
		t.Errorf("%d leases ended", got)
	}
	r.wantHeld(a)
	r.wantCount("gone after a good-bye", r.c.GoneLeft, 1)
	r.t.Leaving(engineE.Engine, engineE.Epoch+1) // another boot of E
	if got := r.t.EngineGone(engineE.Engine, engineE.Epoch, r.now); got != 1 {
		t.Errorf("%d leases ended with E, want 1", got)
	}
	r.wantEnded(record.FreedReleased, b)
}

func TestL12GoodByesPastThoseRememberedGrowNothing(t *testing.T) {
	r := newRig(t, 4)
	for i := range uint64(3 * leftMax) {
		r.t.Leaving(i, 1)
	}
	if got := r.t.left.index.used; got != leftMax {
		t.Errorf("%d remembered, want %d", got, leftMax)
	}
	r.t.EngineGone(3*leftMax-1, 1, r.now)
	r.t.EngineGone(0, 1, r.now) // forgotten: its death is news again
	r.wantCount("gone after a good-bye", r.c.GoneLeft, 1)
	r.wantCount("gone", r.c.Gone, 1)
}

func TestL12ATurnThatIsOverIsNoneThatWasCut(t *testing.T) {
	r := newRig(t, 4)
	a := r.grant("a")
	r.t.Renew(r.entry(a), engineD, r.now)
	r.t.EngineGone(engineD.Engine, engineD.Epoch, r.now)
	r.wantEnded(record.FreedReleased, a)
	if r.wantCount("cut", r.c.GoneCut, 0); r.t.gone.scan != 0 || !r.t.gone.empty() {
		t.Errorf("%d slots looked at in a turn that is over", r.t.gone.scan)
	}
}

func TestL12AGoneEngineAmongManyLeasesIsLookedForInBoundedSteps(t *testing.T) {
	r := newRig(t, 3*scanMax)
	for i := range 3 * scanMax {
		r.grant(fmt.Sprint(i))
	}
	last := record.NewHandle(3*scanMax-1, 0)
	r.t.Renew(r.entry(last), engineD, r.now)
	for step := range 3 {
		if step == 0 {
			r.t.EngineGone(engineD.Engine, engineD.Epoch, r.now)
		} else {
			r.step()
		}
		if got := r.t.gone.scan; got > (step+1)*scanMax {
			t.Fatalf("step %d has looked at %d slots", step, got)
		}
	}
	r.step()
	r.wantEnded(record.FreedReleased, last)
	if r.c.GoneCut == 0 {
		t.Error("the bound was reached and not counted")
	}
	if at := r.t.NextDue(r.now); at == r.now {
		t.Error("NextDue says now, although nothing is left of the turn")
	}
}

func TestL12FenceAllClosesEveryRowForEver(t *testing.T) {
	r := newRig(t, 3)
	a := r.grant("a")
	r.expect("b")
	r.t.FenceAll()
	if r.mem.Header.Flags&record.BoardClosed == 0 {
		t.Error("the board is not marked closed")
	}
	c := r.grant("c")
	r.wantEnded(record.FreedClosed, c)
	if left := r.t.EndSome(record.FreedClosed, r.now); left != 0 {
		t.Errorf("%d left", left)
	}
	r.wantEnded(record.FreedClosed, a)
	for s := range r.mem.Rows {
		if r.mem.Rows[s].Fence != record.FenceClosed {
			t.Errorf("row %d is open again", s)
		}
	}
	r.wantEmpty()
}

// The host tells such a grant's end from its slot, one duration later if a reader may not check the fence. The table tells
// none, else it would be told at once, or twice.
func TestL12AGrantAfterPoisonIsLeftToTheHostsReport(t *testing.T) {
	r := newRig(t, 3)
	for i := range r.mem.Rows { // kvl_fence_all in C
		r.mem.Rows[i].Fence = record.FenceClosed
	}
	r.mem.Control.Poisoned = 1
	a := r.grant("a")
	r.run(r.now.Add(2 * r.t.cfg.Duration))
	if got := r.ended(a); len(got) != 0 {
		t.Errorf("the table has told %v", got)
	}
	if got := uint32(r.mem.Slots[a.Slot()].State) & record.Mask; got != record.Granted {
		t.Errorf("state %d, want granted: the host's report would pass it over", got)
	}
}
