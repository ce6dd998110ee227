package core

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
)

// kernels are a device of the owner whose work takes its time: each writes a request's blocks, and then its event fires.
type kernels struct {
	*lab
	dev  *device
	next uint64
	runs map[uint64]kernel // by event
}

type kernel struct {
	ends   clock.Instant
	write  func()
	broken bool
}

// newKernels has the owner's cache on a device. The reader's is in host memory: it is the owner's blocks that are written late.
func newKernels(t *testing.T, config string) *kernels {
	l := newDeviceLab(t, config) // its reader has a device
	k := &kernels{lab: l.lab, dev: l.dev, runs: map[uint64]kernel{}}
	k.p, k.d = k.d, k.p
	k.peer = k.connect(k.d, k.p)
	k.dev.fired = func(event uint64) (bool, error) {
		run, ok := k.runs[event]
		if !ok || run.broken {
			return false, errors.New("cuEventQuery: CUDA_ERROR_INVALID_HANDLE")
		}
		return k.now >= run.ends, nil
	}
	return k
}

// launch writes half of a request's blocks at once and the others at the end of the time, and gives the event behind them.
func (k *kernels) launch(request uint64, blocks []uint32, takes time.Duration) uint64 {
	k.next++
	k.p.fill(request, blocks[:len(blocks)/2])
	k.runs[k.next] = kernel{ends: k.now.Add(takes), write: func() { k.p.fill(request, blocks) }}
	return k.next
}

// pass steps both engines a millisecond later, behind what the device has done by then.
func (k *kernels) pass() {
	k.t.Helper()
	for event, run := range k.runs {
		if run.write != nil && k.now.Add(time.Millisecond) >= run.ends {
			run.write()
			run.write = nil
			k.runs[event] = run
		}
	}
	k.step(time.Millisecond)
}

// grantWith grants blocks that are still being written, behind an event, and tells what a reader will need.
func (k *kernels) grantWith(id string, request uint64, blocks []uint32, event uint64) (record.Handle, *host.Remote) {
	k.t.Helper()
	lease, err := k.p.host.Grant(host.Grant{ID: []byte(id), Blocks: uint32(len(blocks)), User: request, Event: event}, k.now)
	if err != nil {
		k.t.Fatal(err)
	}
	return lease, &host.Remote{ID: []byte(id), Native: true, Epoch: k.p.core.mem.Epoch, Key: k.p.host.Key(lease), Slot: lease.Slot(), Generation: lease.Use()}
}

// scene grants behind a kernel and reads once the lease is offered, or at once; it counts the words that are not the request's.
func (k *kernels) scene(request uint64, takes time.Duration, atOnce bool) (wrong int) {
	k.t.Helper()
	there, here := blocks(uint32(request%7)*8, 8), blocks(40, 8)
	k.p.fill(request+1<<20, there) // what was in them before
	lease, remote := k.grantWith("r", request, there, k.launch(request, there, takes))
	for n := 0; !atOnce && !k.p.host.Ready(lease); n++ {
		if n > 1000 {
			k.t.Fatal("never offered")
		}
		k.pass()
	}
	track := k.track(remote, "d", request)
	k.read(track, here, there)
	var evs []record.Event
	for n := 0; len(evs) == 0; n++ {
		if n > 1000 {
			k.t.Fatal("the read does not end")
		}
		k.pass()
		evs = k.d.take(record.EvReadDone)
	}
	if evs[0].Status != record.ReadOK {
		k.t.Fatalf("the read ended as %d", evs[0].Status)
	}
	wrong = k.d.wrong(request, here)
	for n := 0; len(k.p.take(record.EvFreed)) == 0; n++ {
		if n > 1000 {
			k.t.Fatal("the lease does not end")
		}
		k.pass()
	}
	return wrong
}

func TestALeaseIsOfferedOnlyWhenTheEventBehindItsBlocksHasFired(t *testing.T) {
	k := newKernels(t, `{}`)
	there := blocks(3, 8)
	lease, _ := k.grantWith("r", 7, there, k.launch(7, there, 20*time.Millisecond))
	for k.now < k.runs[1].ends {
		if k.p.host.Ready(lease) { // shows C32.1
			t.Fatalf("offered %v before the blocks are written", k.runs[1].ends.Sub(k.now))
		}
		k.pass()
	}
	if !k.p.host.Ready(lease) {
		t.Error("not offered although the event has fired")
	}
	if c := k.p.core.plane.Counters; c.ReadyFired != 1 || c.ReadyFailed != 0 || k.p.core.plane.Awaited() != 0 {
		t.Errorf("%d offered, %d failed, %d wait", c.ReadyFired, c.ReadyFailed, k.p.core.plane.Awaited())
	}
	if written, err := k.p.host.Grant(host.Grant{ID: []byte("s"), Blocks: 1}, k.now); err != nil || !k.p.host.Ready(written) {
		t.Errorf("a grant without an event is not offered at once: %v", err)
	}
}

func TestAThousandReadsBehindEventsBringWhatWasWrittenLast(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	chance := rand.New(rand.NewPCG(seed, 0))
	k := newKernels(t, `{}`)
	for run := range uint64(1000) {
		if wrong := k.scene(run+1, time.Duration(chance.Int64N(int64(40*time.Millisecond))), false); wrong != 0 { // shows C32.2
			t.Fatalf("run %d: %d words are not the request's", run, wrong)
		}
	}
	early := 0
	for run := range uint64(50) { // a fence alone does not see it: the blocks were the lease's all along
		if k.scene(2000+run, 20*time.Millisecond, true) != 0 {
			early++
		}
	}
	if early == 0 {
		t.Error("reads that do not wait bring the right data, too: this test shows nothing")
	}
}

func TestALeaseWhoseEventCannotBeAskedIsNeverOfferedAndEnds(t *testing.T) {
	k := newKernels(t, `{"kv_lease_duration":6}`)
	there := blocks(3, 8)
	event := k.launch(7, there, 20*time.Millisecond)
	run := k.runs[event]
	run.broken = true
	k.runs[event] = run
	lease, _ := k.grantWith("r", 7, there, event)
	for range 100 {
		k.pass()
	}
	if c := k.p.core.plane.Counters; k.p.host.Ready(lease) || c.ReadyFailed != 1 || k.p.core.plane.Awaited() != 0 {
		t.Errorf("ready %v, %d failed, %d wait", k.p.host.Ready(lease), c.ReadyFailed, k.p.core.plane.Awaited())
	}
	k.p.wantSaid(t, log.ReadyFailed, "", "")
	k.run(10*time.Second, 10*time.Millisecond)
	if evs := k.p.take(record.EvFreed); len(evs) != 1 || evs[0].Handle != uint64(lease) || evs[0].Status != record.FreedExpired {
		t.Errorf("freed: %+v", evs)
	}
}

func TestASlotThatIsGrantedAgainWaitsForItsNewEventOnly(t *testing.T) {
	for _, event := range []bool{true, false} {
		t.Run(map[bool]string{true: "with an event", false: "without one"}[event], func(t *testing.T) {
			const many = 600 // more than a step asks: some of the first use are still listed when the second comes
			k := newKernels(t, `{"requests_max":600}`)
			grant := func(use string, with bool) (leases []record.Handle) {
				for i := range uint64(many) {
					at := uint64(0)
					if with {
						at = k.launch(i, nil, time.Hour)
					}
					lease, _ := k.grantWith(fmt.Sprint(use, i), i, nil, at)
					leases = append(leases, lease)
				}
				return leases
			}
			for _, lease := range grant("first", true) {
				if err := k.p.host.Cancel(lease); err != nil {
					t.Fatal(err)
				}
			}
			k.pass()
			old, fired := k.next, k.dev.fired
			if n := len(k.p.take(record.EvFreed)); n != many || k.p.core.plane.Awaited() != many-256 {
				t.Fatalf("%d freed, %d listed", n, k.p.core.plane.Awaited())
			}
			k.dev.fired = func(event uint64) (bool, error) {
				if event <= old {
					t.Errorf("the event of an ended lease is asked: its handle may be anything by now")
				}
				return fired(event)
			}
			leases := grant("second", event)
			for range 5 {
				k.pass()
			}
			if n := k.p.core.plane.Awaited(); n != map[bool]int{true: many}[event] {
				t.Errorf("%d wait", n)
			}
			for _, lease := range leases {
				if k.p.host.Ready(lease) == event {
					t.Fatalf("a lease of slot %d is offered: %v", lease.Slot(), event)
				}
			}
		})
	}
}

func TestEventsPastTheBoundOfAStepAreAskedInLaterOnes(t *testing.T) {
	k := newKernels(t, `{"requests_max":1000}`)
	asked := 0
	fired := k.dev.fired
	k.dev.fired = func(event uint64) (bool, error) {
		asked++
		return fired(event)
	}
	var leases []record.Handle
	for i := range uint64(600) {
		lease, _ := k.grantWith(fmt.Sprint("r", i), i, nil, k.launch(i, nil, time.Duration(i%3)*10*time.Millisecond))
		leases = append(leases, lease)
	}
	k.pass()
	if asked > 256 {
		t.Errorf("%d events asked in a step", asked)
	}
	for range 60 {
		k.pass()
	}
	for i, lease := range leases {
		if !k.p.host.Ready(lease) {
			t.Fatalf("lease %d is not offered", i)
		}
	}
	if n := testing.AllocsPerRun(50, func() {
		event := k.next // one that has not fired
		k.runs[event] = kernel{ends: k.now.Add(time.Hour)}
		k.now = k.now.Add(time.Millisecond)
		if err := k.p.core.Step(); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a step", n)
	}
}
