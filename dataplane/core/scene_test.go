package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
)

func TestARequestThatWaitsLongerThanItsLeaseIsReadWholeAndFreedAtOnce(t *testing.T) {
	l := newLab(t, `{}`)
	there, here := blocks(3, 8), blocks(40, 8)
	lease, remote := l.grant("r1", 7, there)
	track := l.track(remote, "d-r1", 70)
	l.run(90*time.Second, 30*time.Millisecond)
	if got := l.p.take(record.EvFreed); len(got) != 0 {
		t.Fatalf("freed while D waits: %+v", got)
	}
	l.read(track, here, there)
	l.run(300*time.Millisecond, 30*time.Millisecond)
	done := l.d.take(record.EvReadDone)
	if len(done) != 1 || done[0].Handle != uint64(track) || done[0].User != 70 || done[0].Value0 != 8*labLayers*labBlockLen {
		t.Fatalf("read: %+v, left %+v", done, l.d.evs)
	}
	if bad := l.d.wrong(7, here); bad != 0 {
		t.Errorf("%d words are wrong", bad)
	}
	freed := l.p.take(record.EvFreed)
	if len(freed) != 1 || freed[0].Handle != uint64(lease) || freed[0].Status != record.FreedCompleted || freed[0].User != 7 || freed[0].Value0 != 8 {
		t.Fatalf("freed: %+v", freed)
	}
	if alive := l.p.core.plane.Alive() + l.d.core.plane.Alive(); alive != 0 {
		t.Errorf("%d objects are left", alive)
	}
	beats := l.p.core.plane.Counters.BatchesReceived
	if beats < 16 || beats > 20 { // 90 s in intervals of 5 s, and the first beat at once
		t.Errorf("%d batches in 90 s, want one per 5 s", beats)
	}
}

func TestADecodeEngineThatDiesIsReclaimedFromWithinItsBound(t *testing.T) {
	l := newLab(t, `{}`)
	_, remote := l.grant("r1", 7, blocks(0, 8))
	l.track(remote, "d-r1", 70)
	l.run(60*time.Second, 30*time.Millisecond)
	dies := l.now
	for len(l.p.take(record.EvFreed)) == 0 { // D is not stepped any more
		l.advance(30 * time.Millisecond)
		l.stepOne(l.p)
		if l.now.Sub(dies) > time.Minute {
			t.Fatal("never freed")
		}
	}
	// extension 20 s + jitter at most 1/8 of it + settle 50 ms + tick 117 ms + two steps
	if held := l.now.Sub(dies); held < 14*time.Second || held > 20*time.Second+2500*time.Millisecond+400*time.Millisecond {
		t.Errorf("held %v after the death", held)
	}
}

func TestAStoppedDecodeEngineIsRefusedWhatWasReusedMeanwhile(t *testing.T) {
	l := newLab(t, `{}`)
	there, here := blocks(3, 8), blocks(40, 8)
	_, remote := l.grant("r1", 7, there)
	track := l.track(remote, "d-r1", 70)
	l.run(10*time.Second, 30*time.Millisecond)
	for end := l.now.Add(60 * time.Second); l.now < end; { // D is stopped
		l.advance(30 * time.Millisecond)
		l.stepOne(l.p)
	}
	freed := l.p.take(record.EvFreed)
	if len(freed) != 1 || freed[0].Status != record.FreedExpired {
		t.Fatalf("freed: %+v", freed)
	}
	l.grant("other", 8, there) // P reuses and overwrites
	l.read(track, here, there)
	l.run(time.Second, 30*time.Millisecond)
	failed := l.d.take(record.EvReadFailed)
	if len(failed) != 1 || failed[0].Status != record.ReadStale || failed[0].Flags&record.FlagBlocksHeld != 0 { // shows C26.2, S20.1
		t.Fatalf("read of a lost lease: %+v, left %+v", failed, l.d.evs)
	}
	if done := l.d.take(record.EvReadDone); len(done) != 0 {
		t.Errorf("data was handed out: %+v", done)
	}
}

func TestAReadThatIsOvertakenByTheEndOfItsLeaseIsStale(t *testing.T) {
	l := newLab(t, `{}`)
	there, here := blocks(3, 8), blocks(40, 8)
	lease, remote := l.grant("r1", 7, there)
	track := l.track(remote, "d-r1", 70)
	l.run(10*time.Second, 30*time.Millisecond)
	agent(t, l.d).HoldReads(true)
	l.read(track, here, there)
	l.step(30 * time.Millisecond)
	if err := l.p.host.Revoke(lease); err != nil {
		t.Fatal(err)
	}
	l.run(time.Second, 30*time.Millisecond)
	if freed := l.p.take(record.EvFreed); len(freed) != 1 || freed[0].Status != record.FreedRevoked {
		t.Fatalf("freed: %+v", freed)
	}
	agent(t, l.d).HoldReads(false)
	l.run(time.Second, 30*time.Millisecond)
	if failed := l.d.take(record.EvReadFailed); len(failed) != 1 || failed[0].Status != record.ReadStale { // shows C27.1
		t.Fatalf("outcome: %+v, left %+v", failed, l.d.evs)
	}
}

func TestWhatIsUntrackedBeforeItWasReadIsReleasedAtOnce(t *testing.T) {
	l := newLab(t, `{}`)
	_, remote := l.grant("r1", 7, blocks(0, 8))
	track := l.track(remote, "d-r1", 70)
	l.run(time.Second, 30*time.Millisecond)
	if err := l.d.host.Untrack(track); err != nil {
		t.Fatal(err)
	}
	l.run(200*time.Millisecond, 30*time.Millisecond)
	if freed := l.p.take(record.EvFreed); len(freed) != 1 || freed[0].Status != record.FreedReleased {
		t.Fatalf("freed: %+v", freed)
	}
}

// Parameters may lose our key on their way (a router that knows only vLLM's). An owner whose readers all check the fence takes
// blocks back at will, so what is read without the fence proves nothing.
func TestAnOwnerThatSpeaksKvleaseIsNotReadWithoutItsKey(t *testing.T) {
	l := newLab(t, `{"all_peers_check":true}`)
	there, here := blocks(3, 8), blocks(40, 8)
	_, remote := l.grant("r1", 7, there)
	l.run(100*time.Millisecond, 30*time.Millisecond)
	track := l.track(&host.Remote{ID: remote.ID}, "d-r1", 70)
	if err := l.p.host.Pressure(8); err != nil {
		t.Fatal(err)
	}
	l.stepOne(l.p)
	if freed := l.p.take(record.EvFreed); len(freed) != 1 || freed[0].Status != record.FreedRevoked {
		t.Fatalf("freed: %+v", freed)
	}
	l.p.fill(8, there)
	l.read(track, here, there)
	l.run(time.Second, 30*time.Millisecond)
	if done := l.d.take(record.EvReadDone); len(done) != 0 {
		t.Errorf("data of another request was handed out: %d words are wrong", l.d.wrong(7, here))
	}
	if failed := l.d.take(record.EvReadFailed); len(failed) != 1 || failed[0].Status != record.ReadUnproven {
		t.Errorf("failed: %+v", failed)
	}
	if n := l.d.core.tracker.Counters().Keyless; n != 1 {
		t.Errorf("%d counted, want 1", n)
	}
}

func TestRowsLeavePlacesForTheSignsOfLifeOfOtherEngines(t *testing.T) {
	l := newLab(t, `{"kv_lease_duration":6,"step_max":0.5,"rows_step_max":1}`)
	p2 := l.node("P2", `{"kv_lease_duration":6,"step_max":0.5}`)
	other := l.connect(l.d, p2)
	for i := range 40 { // 40 rows an interval of ten steps
		_, remote := l.grant(fmt.Sprint("r", i), uint64(i), []uint32{uint32(i)})
		l.track(remote, "local", 1)
	}
	stock := &host.Remote{ID: []byte("s")} // no row of it is read
	if _, err := l.d.host.Track(other, stock, nil, 2, l.now); err != nil {
		t.Fatal(err)
	}
	for range 600 {
		l.step(100 * time.Millisecond)
		l.stepOne(p2)
	}
	if g := l.d.core.tracker.Gauges(); g.UnheardMax > 20000 { // a few messages
		t.Errorf("%d bytes unheard after a minute", g.UnheardMax)
	}
}

// The agent of the boot before stays loaded while a transfer from it is open, perhaps for ever.
func TestTheOnlyEngineComesBackUnderAReadThatNeverEnds(t *testing.T) {
	l := newLab(t, `{"engines_max":1}`)
	_, remote := l.grant("r1", 7, blocks(0, 8))
	track := l.track(remote, "local", 1)
	l.step(time.Millisecond)
	l.hub.Stop(l.p.core.tr.Agent())
	l.read(track, blocks(8, 8), blocks(0, 8))
	l.step(time.Millisecond)
	old := l.p
	l.p = l.node("P", `{}`)
	l.connect(l.d, l.p)
	l.run(time.Second, 100*time.Millisecond)
	if n := old.core.plane.Alive(); n != 1 {
		t.Errorf("%d alive at the old boot, want its lease", n)
	}
	there := blocks(16, 8)
	_, remote = l.grant("r2", 9, there)
	track = l.track(remote, "local", 2)
	l.read(track, blocks(24, 8), there)
	l.run(time.Second, 100*time.Millisecond)
	if got := l.d.take(record.EvReadDone); len(got) != 1 || got[0].User != 2 {
		t.Errorf("%d reads from the new boot are done, want 1", len(got))
	}
}

// A kvl_step reads the clock before it gets the lock, so another step may have been told a later time meanwhile.
func TestAStepThatIsToldAnEarlierTimeKeepsTheLaterOne(t *testing.T) {
	l := newLab(t, `{}`)
	l.grant("r1", 7, blocks(0, 8))
	l.run(29*time.Second, 100*time.Millisecond)
	if err := l.p.core.StepAt(l.now.Add(-20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	lease, _ := l.grant("r2", 8, blocks(8, 8)) // its term begins at the later time
	if err := l.p.core.StepAt(l.now.Add(-20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if got, want := rowDeadline(l, lease), uint64(l.now.Add(30*time.Second))/1000; got != want {
		t.Errorf("deadline %d us, want %d", got, want)
	}
}
