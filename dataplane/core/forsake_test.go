package core

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// refusedOnce is an engine without memory, to which the next registration is refused since its twin hangs, and none after it. by: while it
// is set its agent may not go.
func refusedOnce(t *testing.T, l *lab, by *bool) *node {
	proofsTake(t, time.Millisecond)
	hangs := true
	l.wrap = func(_ string, tr transport.Transport) transport.Transport {
		return &untaken{&scripted{Transport: tr, twin: func(tw *transport.Twin) error {
			tw.Transport.(*loopback.Agent).HoldReads(hangs)
			hangs = false
			return nil
		}}, by}
	}
	e := l.unregistered("E")
	l.step(time.Millisecond)
	return e
}

// untaken is an agent that may not go while somebody has answers to take.
type untaken struct {
	*scripted
	by *bool
}

func (u *untaken) Close() error {
	if *u.by {
		return transport.ErrUntaken
	}
	return u.scripted.Close()
}

// TestAnAgentOfRefusedMemoryThatMayNotGoReadsOn: the twin that hangs may be who does not take its answer. The next registration is over the same
// agent, with the peers that it had loaded before.
func TestAnAgentOfRefusedMemoryThatMayNotGoReadsOn(t *testing.T) {
	l := newAdviceLab(t, `{}`)
	by := true
	defer func() { by = false }() // else nothing is closed
	e := refusedOnce(t, l.lab, &by)
	l.d = e
	l.knows(e)
	_, remote := l.grant("early", 9, blocks(3, 8))
	l.track(remote, "d-early", 90)
	l.run(200*time.Millisecond, 10*time.Millisecond)
	was := e.core.tr
	if err := e.core.Register(e.regions); !errors.Is(err, ErrTransport) || e.core.gone || !e.core.tracker.Loaded() {
		t.Fatalf("%v, the agent is gone: %v, P is loaded: %v", err, e.core.gone, e.core.tracker.Loaded())
	}
	proofMax = time.Minute
	if err := e.core.Register(e.regions); err != nil || e.core.tr != was {
		t.Fatalf("%v, another agent: %v", err, e.core.tr != was)
	}
	l.reads("r1", 7)
}

// TestALeaseFromBeforeMemoryOutlivesARefusalThatTakesTheAgent, since nobody has met that agent.
func TestALeaseFromBeforeMemoryOutlivesARefusalThatTakesTheAgent(t *testing.T) {
	l := newLab(t, `{}`)
	e := refusedOnce(t, l, new(bool))
	there, here := blocks(3, 8), blocks(40, 8)
	l.p = e
	_, remote := l.grant("early", 9, there)
	if err := e.core.Register(e.regions); !errors.Is(err, ErrTransport) || !e.core.gone {
		t.Fatalf("%v, the agent is gone: %v", err, e.core.gone)
	}
	l.run(200*time.Millisecond, 10*time.Millisecond)
	proofMax = time.Minute
	if err := e.core.Register(e.regions); err != nil {
		t.Fatal(err)
	}
	l.peer = l.connect(l.d, e)
	l.run(200*time.Millisecond, 10*time.Millisecond)
	l.read(l.track(remote, "d-early", 90), here, there)
	l.run(200*time.Millisecond, 10*time.Millisecond)
	if evs := l.d.take(record.EvReadDone); len(evs) != 1 || evs[0].Status != record.ReadOK || l.d.wrong(9, here) != 0 {
		t.Errorf("read: %+v, left %+v", evs, l.d.evs)
	}
	if freed := e.take(record.EvFreed); len(freed) != 1 || freed[0].Status != record.FreedCompleted {
		t.Errorf("freed: %+v", freed)
	}
}

// TestTheAgentOfRefusedMemoryGoesWhateverHasRefusedIt: a read of it that is open is answered, in software, for as long as the agent is there.
func TestTheAgentOfRefusedMemoryGoesWhateverHasRefusedIt(t *testing.T) {
	for _, tc := range []struct {
		name  string
		noNIC bool // so that a twin that hangs refuses nothing
		want  error
	}{
		{"a twin that hangs, in a context that broke meanwhile", false, ErrTransport},
		{"a context that broke while a twin hung", true, ErrPoisoned},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLab(t, `{}`)
			e := refusedOnce(t, l, new(bool))
			dev := &device{current: map[int]bool{}, noNIC: tc.noNIC}
			e.core.UseDevices(func() (Devices, error) {
				atomic.StoreUint32(&e.core.mem.Control.Poisoned, 1)
				return dev.open()
			})
			regions := mixed(e.regions)
			regions[0].Mem = transport.VRAM
			if err := e.core.Register(regions); !errors.Is(err, tc.want) || !e.core.gone || len(strays.list) != 1 {
				t.Errorf("%v, the agent is gone: %v, %d twins are kept", err, e.core.gone, len(strays.list))
			}
		})
	}
}

// TestNoStepWaitsForMemoryThatIsTakenBack: it is unpinned page by page, too.
func TestNoStepWaitsForMemoryThatIsTakenBack(t *testing.T) {
	l := newLab(t, `{}`)
	if err := l.d.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	l.d.core.pace = registrationPace{pieceBytes: 1, every: time.Hour, slow: time.Hour}
	var reach []heartbeat.Reach
	l.wrap = func(_ string, tr transport.Transport) transport.Transport {
		return &takenBack{refusesThird{Transport: tr}, func() { reach = append(reach, l.d.core.agent.reach) }}
	}
	if err := l.d.core.Register(l.d.regions); !errors.Is(err, ErrTransport) {
		t.Fatal(err)
	}
	if len(reach) != 1 || reach[0] != heartbeat.ReachNothing || l.d.core.agent.reach != heartbeat.ReachMessages {
		t.Errorf("memory was taken back under %v, and steps go on under %v", reach, l.d.core.agent.reach)
	}
}

// TestMemoryThatTheTransportDoesNotTakeBackTakesTheAgentAlong: it may answer reads of it for as long as it is there.
func TestMemoryThatTheTransportDoesNotTakeBackTakesTheAgentAlong(t *testing.T) {
	l := newLab(t, `{}`)
	refuses := true
	l.wrap = func(_ string, tr transport.Transport) transport.Transport {
		if !refuses {
			return tr
		}
		refuses = false
		return &notTakenBack{refusesThird{Transport: tr}}
	}
	e := l.unregistered("E")
	e.core.pace = registrationPace{pieceBytes: 1, every: time.Hour, slow: time.Hour}
	was := e.core.tr
	if err := e.core.Register(e.regions); !errors.Is(err, ErrTransport) || !e.core.gone {
		t.Fatalf("%v, the agent is gone: %v", err, e.core.gone)
	}
	if _, err := was.Metadata(); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("the agent goes on: %v", err)
	}
	if err := e.core.Register(e.regions); err != nil || e.core.tr == was {
		t.Errorf("the next one: %v", err)
	}
}

// TestMemoryThatIsRefusedAndStuckTakesTheAgentAlong: the transport took a part of the first piece.
func TestMemoryThatIsRefusedAndStuckTakesTheAgentAlong(t *testing.T) {
	l := newLab(t, `{}`)
	l.wrap = func(_ string, tr transport.Transport) transport.Transport { return keepsSome{tr} }
	e := l.unregistered("E")
	was := e.core.tr
	if err := e.core.Register(e.regions); !errors.Is(err, transport.ErrStuck) || !e.core.gone {
		t.Fatalf("%v, the agent is gone: %v", err, e.core.gone)
	}
	if _, err := was.Metadata(); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("the agent goes on: %v", err)
	}
}

type keepsSome struct{ transport.Transport }

func (keepsSome) Register([]transport.Region) error { return transport.ErrStuck }

type notTakenBack struct{ refusesThird }

func (*notTakenBack) Unregister([]transport.Region) error { return transport.ErrInvalid }

type takenBack struct {
	refusesThird
	at func()
}

func (b *takenBack) Unregister(regions []transport.Region) error {
	b.at()
	return b.refusesThird.Unregister(regions)
}
