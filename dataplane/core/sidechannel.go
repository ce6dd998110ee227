package core

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/deathwire"
	"github.com/kvlease/kvlease/dataplane/handshake"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// peerSink takes what the side channel finds out. Any goroutine; nothing in it may wait for a step.
type peerSink interface {
	// LoadEngine takes the maps of all ranks that are asked for, all of one boot.
	LoadEngine(engine uint64, ranks []heartbeat.PeerRank) error
	// SetOffset takes how the engine's CLOCK_MONOTONIC stands against our CLOCK_BOOTTIME; one that knows nothing takes it back.
	SetOffset(engine uint64, o clock.Offset)
	// EngineOver says that the engine of the maps in force is no more, and why.
	EngineOver(engine uint64, why heartbeat.Over)
	// ReaderOver says that a life of a reader is over: it reads no more (L12).
	ReaderOver(engineHash, epoch uint64)
}

// sideChannel is a context's part in what engines say to each other before and beside the transport: handshakes both
// ways, and death wires both ways. Roles engine and host have one.
//
// Threads: any. look and the two of dataplane.Wires belong to the step: no lock, no allocation.
type sideChannel struct {
	cfg  *Config
	sink peerSink
	now  func() clock.Instant
	hash uint64 // of our engine id
	log  *log.Writer

	server  *handshake.Server // nil: we do not listen
	client  *handshake.Client
	readers *deathwire.Server // nil: no death wires
	owners  *deathwire.Client // likewise

	watch peerWatch
	epoch atomic.Uint64 // of the era in which readers may come; 0: nothing is registered
	life  atomic.Pointer[life]

	mu      sync.Mutex
	closed  bool
	ranks   []ownRank
	whole   bool // the maps of all our ranks are known
	peers   map[uint64]*sidePeer
	running bool

	stop chan struct{}
	news chan struct{}
	done sync.WaitGroup
	n    sideCounters
}

// life is what peers see as one boot of our engine.
type life struct {
	epoch  uint64
	secret [2]uint64
}

type sideCounters struct {
	loads, refused, wrongEngine, misfits, moved, claims, retries, wiresFull, voids atomic.Uint64
}

// newSideChannel opens the listener if the configuration says so.
func newSideChannel(cfg *Config, sink peerSink, now func() clock.Instant, sites *trace.Sites, say *log.Writer) (*sideChannel, error) {
	s := &sideChannel{
		cfg: cfg, sink: sink, now: now, log: say, hash: wire.EngineHash([]byte(cfg.EngineID)),
		ranks: make([]ownRank, cfg.Ranks()), peers: map[uint64]*sidePeer{},
		stop: make(chan struct{}), news: make(chan struct{}, 1),
	}
	s.life.Store(new(life))
	s.watch.init(cfg.EnginesMax)
	var err error
	s.client, err = handshake.NewClient(handshake.Config{
		Now: now, Hash: cfg.CompatHash, IgnoreHash: !cfg.EnforceCompat, Check: s.check, Notify: s.notify,
		Interval: cfg.Interval(), EnginesMax: cfg.EnginesMax, Sites: sites,
	})
	if err != nil {
		return nil, err
	}
	if cfg.DeathWire {
		s.owners = deathwire.NewClient(deathwire.ClientConfig{
			Dead:      func(engine uint64, w deathwire.Wire) { s.ownerOver(engine, w, heartbeat.Died) },
			Withdrawn: func(engine uint64, w deathwire.Wire) { s.ownerOver(engine, w, heartbeat.Withdrew) },
			Lives:     s.lives,
			Changed:   s.retry, Grace: cfg.WireGrace, WiresMax: cfg.EnginesMax,
		})
	}
	if cfg.SideChannelListen {
		if err := s.listen(); err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

// listen opens the side channel.
func (s *sideChannel) listen() error {
	host := strings.TrimSuffix(strings.TrimPrefix(s.cfg.SideChannelHost, "["), "]")
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("%w: key %q: %q is no place that a peer could connect to, and the transfer parameters name it: give a name or an address of this machine",
			ErrConfig, "side_channel_host", s.cfg.SideChannelHost)
	}
	config := handshake.ServerConfig{Monotonic: serverClock, TP: uint32(s.cfg.TPSize), PP: uint32(s.cfg.PPSize)}
	if most := wiresMax(s.cfg.DeathWiresMax); s.cfg.DeathWire && most > 0 {
		s.readers = deathwire.NewServer(deathwire.ServerConfig{
			Self:      func() (uint64, uint64) { return s.hash, s.epoch.Load() },
			Dead:      func(engine, epoch uint64) { s.readerOver(log.ReaderDead, engine, epoch) },
			Withdrawn: func(engine, epoch uint64) { s.readerOver(log.ReaderWithdrawn, engine, epoch) },
			Max:       most, Grace: s.cfg.WireGrace,
		})
		config.Other = s.readers.Serve
	}
	var err error
	s.server, err = handshake.Serve(net.JoinHostPort(host, strconv.Itoa(s.cfg.SideChannelPort)), config)
	if err != nil {
		return s.listenError(err)
	}
	s.cfg.SideChannelPort = s.server.Addr().(*net.TCPAddr).Port // as it was, but for 0, which only tests have
	return nil
}

// listenError says what is to be done.
func (s *sideChannel) listenError(err error) error {
	host, port := s.cfg.SideChannelHost, s.cfg.SideChannelPort
	key, what := "side_channel_host", ""
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns):
		what = fmt.Sprintf("%q has no address: give a name that this machine can resolve, or an address of it", host)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		what = fmt.Sprintf("%q is not an address of this machine: give one that is, which peers can reach", host)
	case errors.Is(err, syscall.EADDRINUSE):
		key, what = "side_channel_port", fmt.Sprintf("port %d of %s is in use: choose another one, or end what listens there (ss -ltnp 'sport = :%d')", port, host, port)
	case errors.Is(err, syscall.EACCES):
		key, what = "side_channel_port", fmt.Sprintf("port %d of %s needs privileges: choose one from 1024 on", port, host)
	default:
		what = fmt.Sprintf("cannot listen at %s port %d", host, port)
	}
	return fmt.Errorf("%w: key %q: %s: %w", ErrConfig, key, what, err)
}

// wiresMax is how many wires this process may keep: at most half of the descriptors that it may have.
func wiresMax(wanted int) int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return wanted
	}
	return int(min(uint64(wanted), r.Cur/2))
}

// serverClock is what answers to peers show. Tests break it.
var serverClock = monotonic

// monotonic is CLOCK_MONOTONIC, which vLLM's stamps show.
func monotonic() clock.RemoteInstant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // the clock is there on every Linux that can run this
	}
	return clock.RemoteInstant(ts.Nano())
}

// notify says that the goroutine has something to do. Any goroutine, the step's among them.
func (s *sideChannel) notify() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// start runs the goroutine that looks after peers, from the first of them on. Under the lock.
func (s *sideChannel) start() {
	if !s.running && !s.closed {
		s.running = true
		s.done.Go(s.run)
	}
}

// Times of the goroutine.
const (
	sideTick = time.Second           // between two looks at clocks and refused engines
	sideGap  = 20 * time.Millisecond // least time between two looks at what steps have noted
)

// run looks after peers.
func (s *sideChannel) run() {
	tick := time.NewTicker(sideTick)
	defer tick.Stop()
	soon := time.NewTimer(0)
	defer soon.Stop()
	var looked time.Time
	hear := func() {
		s.takeResults()
		if s.watch.changed.Swap(false) {
			soon.Reset(max(sideGap-time.Since(looked), 0))
		}
	}
	for {
		select {
		case <-s.stop:
			return
		case <-s.news:
			hear()
		case <-soon.C:
			looked = time.Now()
			s.lookAtPeers()
		case <-tick.C:
			hear() // a send that found the channel full has ordered nothing, and may have come too late for the look before
			s.keepClocks()
			s.retryRefused()
			s.dropMisfits()
			s.doubtAgain()
		}
	}
}

// close ends all network work. After it nothing reaches the sink any more. The wires fall behind a farewell: this life of our
// engine is over, and owners may take back what is left of it.
func (s *sideChannel) close() {
	if !s.shut() {
		return
	}
	if s.owners != nil {
		s.owners.Reset()
	}
	if s.readers != nil {
		s.readers.EndEra()
	}
	s.cut()
}

// shut lets nothing begin any more: no wire is kept from here on. It reports false if it was called before.
func (s *sideChannel) shut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.closed = true
	close(s.stop)
	s.epoch.Store(0)
	return true
}

// cut ends what is left behind shut, and what wires are left fall without a word.
func (s *sideChannel) cut() {
	s.client.Close()
	if s.owners != nil {
		s.owners.Close()
	}
	if s.readers != nil {
		s.readers.Close() // before the listener, which waits for the goroutines of wires
	}
	if s.server != nil {
		s.server.Close()
	}
	s.done.Wait()
}

// leave tells everybody at the other end of a wire that we go on purpose.
func (s *sideChannel) leave() {
	if s.owners != nil {
		s.owners.Leave()
	}
	if s.readers != nil {
		s.readers.Leave()
	}
}

// part tells our readers that nothing is held here any more, and nothing will be: our end, however it comes, is no death then.
func (s *sideChannel) part() {
	if s.readers != nil {
		s.readers.Part()
	}
}

// Heard and Left are dataplane.Wires.
func (s *sideChannel) Heard(engine, epoch uint64, nonce [16]byte) {
	if s.readers != nil {
		s.readers.Heard(engine, epoch, nonce)
	}
}

func (s *sideChannel) Left(engine, epoch uint64) {
	if s.readers != nil {
		s.readers.Left(engine, epoch)
	}
}

// readerOver is the word of a reader's wire: one has died, or has withdrawn.
func (s *sideChannel) readerOver(kind log.Kind, engineHash, epoch uint64) {
	s.log.Put(kind, s.now(), log.Entry{Hash: engineHash})
	s.sink.ReaderOver(engineHash, epoch)
}

// shape is our own size.
func (c *Config) shape() topology.Shape {
	return topology.Shape{TP: uint32(c.TPSize), PP: uint32(c.PPSize)}
}
