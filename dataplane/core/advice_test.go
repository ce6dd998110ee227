package core

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// adviser is a device that knows its place in the machine.
type adviser struct {
	*device
	advice  []Setting
	regions []Region // that it was asked about last
}

func (a *adviser) Advise(regions []Region) []Setting {
	a.regions = regions
	return a.advice
}

// tellable is a transport that takes settings, all but lists.
type tellable struct{ transport.Transport }

func (tellable) Carries(s transport.Setting) bool { return !strings.Contains(s.Value, ",") }

// adviceLab is a deviceLab whose D is told things.
type adviceLab struct {
	*lab
	of     *adviser
	opened [][]transport.Setting // of D's agents, what each was opened with
	agents []string
}

func newAdviceLab(t *testing.T, config string, advice ...Setting) *adviceLab {
	l := &adviceLab{of: &adviser{device: &device{current: map[int]bool{}}, advice: advice}}
	l.lab = &lab{t: t, now: clock.Instant(time.Hour), hub: loopback.NewHub(), size: loopbackConfig}
	l.p = l.node("P", `{}`)
	var cfg *Config
	l.edit = func(c *Config) { cfg = c }
	l.mem, l.devices = transport.VRAM, func() (Devices, error) { return l.of, l.of.openErr }
	l.wrap = func(_ string, tr transport.Transport) transport.Transport {
		l.opened, l.agents = append(l.opened, cfg.Settings), append(l.agents, tr.Agent())
		return tellable{tr}
	}
	l.d = l.node("D", config)
	l.peer = l.connect(l.d, l.p)
	return l
}

func one(name, value, kept string) Setting {
	return Setting{Setting: transport.Setting{Name: name, Value: value}, Reason: "because", Kept: kept}
}

func (l *adviceLab) says() (texts []string) {
	l.t.Helper()
	for _, line := range l.d.said(l.t, log.TransportTold) {
		texts = append(texts, line.What)
	}
	return texts
}

func (l *adviceLab) reads(id string, request uint64) {
	l.t.Helper()
	there, here := blocks(3, 8), blocks(40, 8)
	_, remote := l.grant(id, request, there)
	track := l.track(remote, "d-"+id, request)
	l.run(200*time.Millisecond, 10*time.Millisecond)
	l.read(track, here, there)
	l.run(200*time.Millisecond, 10*time.Millisecond)
	if evs := l.d.take(record.EvReadDone); len(evs) != 1 || evs[0].Status != record.ReadOK || l.d.wrong(request, here) != 0 {
		l.t.Errorf("read %s: %+v", id, evs)
	}
}

func TestWhatDevicesAdviseTheAgentIsOpenedWith(t *testing.T) {
	nic, rails := one("UCX_NET_DEVICES", "^mlx5_1:1", ""), one("UCX_MAX_RMA_RAILS", "4", "")
	l := newAdviceLab(t, `{}`, nic, one("UCX_IB_X", "y", "n by the environment"), rails, one("UCX_LIST", "a,b", ""))
	want := [][]transport.Setting{nil, {nic.Setting, rails.Setting}} // the first knows of no memory yet
	if diff := cmp.Diff(want, l.opened); diff != "" {
		t.Errorf("agents were opened with (-want +got):\n%s", diff)
	}
	if len(l.of.regions) != labLayers || l.agents[0] == l.agents[1] {
		t.Errorf("asked about %d regions, agents %q", len(l.of.regions), l.agents)
	}
	wantSaid := []string{
		"for reads of this device memory UCX_NET_DEVICES is ^mlx5_1:1: because",
		"for reads of this device memory UCX_IB_X stays n by the environment, and would be y: because",
		"for reads of this device memory UCX_MAX_RMA_RAILS is 4: because",
		"for reads of this device memory UCX_LIST stays nothing: the transport takes it from the environment only, and would be a,b: because",
	}
	if diff := cmp.Diff(wantSaid, l.says()); diff != "" {
		t.Errorf("said (-want +got):\n%s", diff)
	}
	l.reads("r1", 7)

	// Asleep and awake: the next agent is opened with what is advised then, at once.
	if err := l.d.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	l.of.advice = []Setting{rails}
	l.awake(l.d)
	if len(l.opened) != 3 || !slices.Equal(l.opened[2], []transport.Setting{rails.Setting}) {
		t.Errorf("after a sleep agents were opened with %v", l.opened)
	}
	l.peer = l.connect(l.d, l.p)
	l.reads("r2", 8)
}

func TestAnAgentIsNotMadeAnewForNothing(t *testing.T) {
	nic := one("UCX_NET_DEVICES", "^mlx5_1:1", "")
	for _, tc := range []struct {
		name, config string
		advice       []Setting
		edit         func(l *adviceLab)
	}{
		{"nothing is advised", `{}`, nil, nil},
		{"the user has said all", `{}`, []Setting{one("UCX_NET_DEVICES", "^mlx5_1:1", "all by the environment")}, nil},
		{"it is switched off", `{"transport_settings":"off"}`, []Setting{nic}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newAdviceLab(t, tc.config, tc.advice...)
			if len(l.opened) != 1 || l.opened[0] != nil {
				t.Errorf("opened %d agents with %v", len(l.opened), l.opened)
			}
			l.reads("r1", 7)
		})
	}
}

func TestHostMemoryAsksNobodyForAdvice(t *testing.T) {
	l := newAdviceLab(t, `{}`, one("UCX_NET_DEVICES", "^mlx5_1:1", ""))
	l.mem, l.of.regions = transport.DRAM, nil
	l.node("H", `{}`)
	if l.of.regions != nil || len(l.opened) != 3 { // D's two and this one's
		t.Errorf("asked about %d regions, %d agents", len(l.of.regions), len(l.opened))
	}
}

func TestTheEraStaysWhenTheAgentIsMadeAnew(t *testing.T) {
	l := newAdviceLab(t, `{}`)
	l.of.advice = []Setting{one("UCX_NET_DEVICES", "^mlx5_1:1", "")}
	e := l.unregistered("E")
	for range 3 {
		if err := e.core.Step(); err != nil {
			t.Fatal(err)
		}
	}
	was := *e.core.mem.Control
	if err := e.core.Register(e.regions); err != nil {
		t.Fatal(err)
	}
	if now := *e.core.mem.Control; now.Epoch != was.Epoch || now.Era != was.Era || len(l.opened) != 3 {
		t.Errorf("era %d, epoch %#x after %d, %#x; %d agents", now.Era, now.Epoch, was.Era, was.Epoch, len(l.opened))
	}
	l.d = e
	l.peer = l.connect(e, l.p)
	l.reads("r1", 7)
}

func TestWhatIsTrackedBeforeMemoryIsRegisteredOutlivesTheFirstAgent(t *testing.T) {
	l := newAdviceLab(t, `{}`)
	l.of.advice = []Setting{one("UCX_NET_DEVICES", "^mlx5_1:1", "")}
	e := l.unregistered("E")
	engine, err := e.core.AddEngine(heartbeat.EngineDesc{ID: "P"})
	if err != nil {
		t.Fatal(err)
	}
	l.d, l.peer = e, engine
	there, here := blocks(3, 8), blocks(40, 8)
	_, remote := l.grant("early", 9, there)
	track := l.track(remote, "d-early", 90)
	l.run(200*time.Millisecond, 10*time.Millisecond)
	if err := e.core.Register(e.regions); err != nil || len(l.opened) != 3 {
		t.Fatalf("%v, %d agents", err, len(l.opened))
	}
	m, err := l.p.core.OwnHandshake(0)
	if err == nil {
		err = e.core.Handshake(engine, 0, m)
	}
	if err != nil {
		t.Fatal(err)
	}
	l.run(200*time.Millisecond, 10*time.Millisecond)
	l.read(track, here, there)
	l.run(200*time.Millisecond, 10*time.Millisecond)
	if evs := e.take(record.EvReadDone); len(evs) != 1 || evs[0].User != 90 || e.wrong(9, here) != 0 {
		t.Errorf("read: %+v, left %+v", evs, e.evs)
	}
}

// TestWhatIsTrackedAtEnginesThatTheFirstAgentHasLoadedOutlivesIt: a host's ranks load engines before they register. P hears of nothing but another
// sender of heartbeats, as often as before.
func TestWhatIsTrackedAtEnginesThatTheFirstAgentHasLoadedOutlivesIt(t *testing.T) {
	l := newAdviceLab(t, `{}`)
	l.of.advice = []Setting{one("UCX_NET_DEVICES", "^mlx5_1:1", "")}
	l.d = l.unregistered("E")
	l.knows(l.d)
	there, here := blocks(3, 8), blocks(40, 8)
	_, remote := l.grant("early", 9, there)
	track := l.track(remote, "d-early", 90)
	l.run(2*l.p.core.cfg.Duration, 100*time.Millisecond)
	if !l.d.core.tracker.Loaded() {
		t.Fatal("nothing is loaded before the registration")
	}
	if err := l.d.core.Register(l.d.regions); err != nil || len(l.opened) != 3 {
		t.Fatalf("%v, %d agents", err, len(l.opened))
	}
	if n := l.d.core.tracker.Tracked(); n != 1 {
		t.Errorf("%d requests are tracked after it", n)
	}
	l.run(3*l.p.core.cfg.Duration, 100*time.Millisecond)
	if freed, gone := l.p.take(record.EvFreed), l.d.take(record.EvLeaseGone); len(freed)+len(gone) != 0 {
		t.Fatalf("P has ended %+v, D is told %+v", freed, gone)
	}
	l.read(track, here, there)
	l.run(200*time.Millisecond, 10*time.Millisecond)
	if evs := l.d.take(record.EvReadDone); len(evs) != 1 || evs[0].User != 90 || l.d.wrong(9, here) != 0 {
		t.Errorf("read: %+v, left %+v", evs, l.d.evs)
	}
}

func TestPeersOfAnAgentAreKnown(t *testing.T) {
	l := newLab(t, `{}`)
	if l.p.core.tracker.Loaded() {
		t.Error("an owner has loaded somebody")
	}
	l.run(time.Second, 30*time.Millisecond)
	if !l.d.core.tracker.Loaded() {
		t.Error("a reader that is connected has nobody loaded")
	}
	if err := l.d.core.Unregister(); err != nil || l.d.core.tracker.Loaded() {
		t.Errorf("%v; or somebody is loaded in an agent that is gone", err)
	}
}

func TestRanksWhoseAgentsAreMadeAnewReadAndServe(t *testing.T) {
	f := newFleet(t, stream.KindProcess)
	p, d := f.open("P", 2, 1), f.open("D", 2, 1)
	for _, m := range []*team{p, d} {
		f.turns(3)
		for r := range m.ranks {
			c := m.ranks[r].core
			c.mu.Lock()
			changed := c.tell([]Setting{one("UCX_NET_DEVICES", "^mlx5_1:1", "")})
			err := c.remake()
			c.mu.Unlock()
			if !changed || err != nil {
				t.Fatalf("changed %v, %v", changed, err)
			}
			m.register(r)
		}
		f.until(m.id+" has all its maps", m.whole)
	}
	e := f.connect(d, p)
	there, here := blocks(3, 8), blocks(20, 8)
	lease, remote := p.grant("r1", 7, there)
	track := d.track(e, remote, 70)
	d.read(track, here, there)
	if done := d.event(record.EvReadDone, track); done.Status != record.ReadOK || d.wrong(7, here) != 0 {
		t.Errorf("%+v, %d bytes are wrong", done, d.wrong(7, here))
	}
	if freed := p.event(record.EvFreed, lease); freed.Status != record.FreedCompleted {
		t.Errorf("freed: %+v", freed)
	}
}

// withoutAgent is an engine whose first agent went at a registration, and the next one could not be made.
func (l *adviceLab) withoutAgent() *node {
	l.of.advice = []Setting{one("UCX_NET_DEVICES", "^mlx5_1:1", "")}
	e := l.unregistered("E")
	open, fails := e.core.open, 1
	e.core.open = func(cfg *Config, agent string) (transport.Transport, error) {
		if fails--; fails >= 0 {
			return nil, errors.New("no descriptors left")
		}
		return open(cfg, agent)
	}
	if err := e.core.Register(e.regions); err == nil || !strings.Contains(err.Error(), "no descriptors left") {
		l.t.Fatalf("%v", err)
	}
	return e
}

// knows has an engine told of P as a rank's host tells it, before its own memory is registered.
func (l *adviceLab) knows(e *node) {
	l.t.Helper()
	m, err := l.p.core.OwnHandshake(0)
	h := new(wire.Handshake)
	if err == nil {
		err = wire.ParseHandshake(m, h)
	}
	if err == nil {
		l.peer, err = e.core.AddEngine(heartbeat.EngineDesc{ID: "P"})
	}
	if err == nil {
		err = e.core.tracker.LoadHandshake(l.peer, 0, h)
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

// TestWhereThereIsNoAgentNoEngineIsToBlame: what is tracked waits for the next registration, and whoever owns it has done nothing.
func TestWhereThereIsNoAgentNoEngineIsToBlame(t *testing.T) {
	l := newAdviceLab(t, `{}`)
	l.d = l.withoutAgent()
	l.knows(l.d)
	there, here := blocks(3, 8), blocks(40, 8)
	_, remote := l.grant("early", 9, there)
	track := l.track(remote, "d-early", 90)
	l.run(2*time.Second, 100*time.Millisecond)
	if n := l.d.core.tracker.Counters().LoadsFailed; n != 0 || len(l.d.said(t, log.LoadFailed)) != 0 {
		t.Errorf("%d loads failed without an agent", n)
	}
	if err := l.d.core.Register(l.d.regions); err != nil {
		t.Fatal(err)
	}
	l.run(200*time.Millisecond, 10*time.Millisecond)
	l.read(track, here, there)
	l.run(200*time.Millisecond, 10*time.Millisecond)
	if evs := l.d.take(record.EvReadDone); len(evs) != 1 || evs[0].Status != record.ReadOK || l.d.wrong(9, here) != 0 {
		t.Errorf("read: %+v, left %+v", evs, l.d.evs)
	}
}

func TestAnAgentThatCannotBeMadeAnewIsMadeAtTheNextRegistration(t *testing.T) {
	l := newAdviceLab(t, `{}`)
	e := l.withoutAgent()
	for range 3 {
		if err := e.core.Step(); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.core.Register(e.regions); err != nil {
		t.Fatal(err)
	}
	l.d = e
	l.peer = l.connect(e, l.p)
	l.reads("r1", 7)
	if err := e.core.Close(time.Second); err != nil {
		t.Error(err)
	}
}

// lonely is a transport that was opened before the network was up.
type lonely struct {
	transport.Transport
	down []string
}

func (l lonely) Alone() []string { return l.down }

func TestAnAgentThatWasMadeBeforeTheNetworkWasUpIsSaid(t *testing.T) {
	l := &lab{t: t, now: clock.Instant(time.Hour), hub: loopback.NewHub(), size: loopbackConfig}
	down := []string{"eth0", "mlx5_0"}
	l.wrap = func(_ string, tr transport.Transport) transport.Transport { return lonely{tr, down} }
	p := l.node("P", `{}`)
	if said := p.said(t, log.NetworkDown); len(said) != 1 || !strings.Contains(said[0].What, "(eth0, mlx5_0)") {
		t.Errorf("%+v: want one line that names both", said)
	}
	if err := p.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	down = nil // it is up now
	if err := p.core.Register(p.regions); err != nil {
		t.Fatal(err)
	}
	if said := p.said(t, log.NetworkDown); len(said) != 1 {
		t.Errorf("of the next agent, which has found it: %+v", said[1:])
	}
}
