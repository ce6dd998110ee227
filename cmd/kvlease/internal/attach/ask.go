package attach

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/handshake"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// engine is what the side channel has said.
type engine struct {
	cfg     *Config
	asker   *handshake.Asker
	connect time.Duration
	trips   []time.Duration
	offset  clock.Offset
	tp, pp  uint32
	ranks   []rank
}

// rank is one rank of the engine.
type rank struct {
	handshake.Map
	layout read.Layout
}

func (e *engine) native() bool                { return e.ranks[0].Handshake.Native }
func (e *engine) id() string                  { return e.ranks[0].Handshake.EngineID }
func (e *engine) lease() *wire.HandshakeLease { return &e.ranks[0].Handshake.Lease }
func (e *engine) shape() topology.Shape       { return topology.Shape{TP: e.tp, PP: e.pp} }
func (e *engine) close()                      { e.asker.Close() }

// ask shakes hands with all ranks of an engine. The first one is asked several times, for the round trip and the clock.
func ask(ctx context.Context, cfg *Config) (*engine, error) {
	e := &engine{cfg: cfg}
	began := monotonic()
	var err error
	if e.asker, err = handshake.Dial(ctx, cfg.Addr, cfg.Timeout, monotonic); err != nil {
		return nil, explain(cfg.Addr, err)
	}
	e.connect = monotonic().Sub(began)
	e.asker.Expect(cfg.EngineID, "")
	if err := e.askRanks(ctx); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

func (e *engine) askRanks(ctx context.Context) error {
	for range max(e.cfg.Samples, 1) {
		m, err := e.sample(ctx)
		if err != nil {
			return explain(e.cfg.Addr, err)
		}
		if len(e.ranks) == 0 {
			e.ranks = []rank{{Map: m}}
		}
	}
	if err := e.sizes(); err != nil {
		return err
	}
	for n := uint32(1); n < e.tp*e.pp; n++ {
		r := handshake.Rank{PP: n / e.tp, Transfer: n % e.tp}
		m, _, err := e.asker.Ask(ctx, r)
		if err != nil {
			return fmt.Errorf("%s of %d: %w: %s", r, e.tp*e.pp, err, e.blame())
		}
		e.ranks = append(e.ranks, rank{Map: m})
	}
	return e.layouts()
}

// layouts says where each rank's blocks are.
func (e *engine) layouts() (err error) {
	for i := range e.ranks {
		if e.ranks[i].layout, err = heartbeat.LayoutOf(e.ranks[i].Handshake); err != nil {
			return fmt.Errorf("%s of %q: %w", e.ranks[i].Rank, e.id(), err)
		}
	}
	return nil
}

// blame says what it means that a rank gave no answer after the first one had.
func (e *engine) blame() string {
	if e.native() {
		return "it says that it has that rank, and does not know it yet, or any more"
	}
	return "if it has no such rank, its listener has died of the question, and answers nobody until the engine is started again: are --tp and --pp right?"
}

// sample asks the first rank once more.
func (e *engine) sample(ctx context.Context) (handshake.Map, error) {
	m, sample, err := e.asker.Ask(ctx, handshake.Rank{})
	if err == nil {
		e.trips = append(e.trips, sample.Received.Sub(sample.Sent))
		e.offset.Observe(sample)
	}
	return m, err
}

// sizes decides how many ranks there are. A stock engine does not say, and its listener dies of a rank that it does not have, so it
// is asked only for what the user has named.
func (e *engine) sizes() error {
	e.tp, e.pp = max(e.cfg.TP, 1), max(e.cfg.PP, 1)
	if l := e.lease(); e.native() {
		e.tp, e.pp = max(l.TP, 1), max(l.PP, 1)
		if e.cfg.TP != 0 && e.cfg.TP != e.tp || e.cfg.PP != 0 && e.cfg.PP != e.pp {
			return fmt.Errorf("engine %q has TP %d and PP %d, not TP %d and PP %d", e.id(), e.tp, e.pp, max(e.cfg.TP, 1), max(e.cfg.PP, 1))
		}
	}
	if e.tp > wire.RanksMax || e.pp > wire.RanksMax || e.tp*e.pp > wire.RanksMax {
		return fmt.Errorf("TP %d and PP %d are more than %d ranks", e.tp, e.pp, wire.RanksMax)
	}
	return nil
}

// clock gives what the peer's CLOCK_MONOTONIC is ahead of ours, and the bound of the error of that.
func (e *engine) clock() (ahead, bound time.Duration, ok bool) {
	const at = clock.RemoteInstant(0)
	here, _, ok := e.offset.Local(at)
	return -time.Duration(here), e.offset.ErrorAt(monotonic()), ok
}

// notes are what does not go together in what the ranks say.
func (e *engine) notes() (notes []string) {
	first := e.ranks[0]
	for _, r := range e.ranks[1:] {
		h := r.Handshake
		switch {
		case h.EngineID != first.Handshake.EngineID:
			notes = append(notes, fmt.Sprintf("%s is of engine %q", r.Rank, h.EngineID))
		case h.Native != first.Handshake.Native || h.Native && h.Lease.Epoch != first.Handshake.Lease.Epoch:
			notes = append(notes, fmt.Sprintf("%s is of another boot than %s: no reader will use them together", r.Rank, first.Rank))
		case r.Hash != first.Hash:
			notes = append(notes, fmt.Sprintf("%s has compatibility_hash %s", r.Rank, plain(r.Hash)))
		}
	}
	if l := first.Handshake.Lease; !first.Handshake.Native && l.Version != 0 {
		notes = append(notes, fmt.Sprintf("its kvlease key is of version %d, which this build does not speak: treated as stock", l.Version))
	}
	if e.cfg.Hash != "" && e.cfg.Hash != first.Hash {
		notes = append(notes, fmt.Sprintf("would not fit: compatibility_hash is %s there, %s was expected", plain(first.Hash), e.cfg.Hash))
	}
	if _, _, ok := e.clock(); !ok {
		notes = append(notes, "its stamps say nothing of its clock")
	}
	return notes
}

// against compares what two engines publish, as the second one would if it were to read from the first.
func against(ctx context.Context, cfg *Config, owner *engine) *Fit {
	if cfg.Against == "" {
		return nil
	}
	f := &Fit{Addr: cfg.Against}
	reader, err := ask(ctx, &Config{Addr: cfg.Against, Samples: 1, Timeout: cfg.Timeout})
	if err != nil {
		f.Misfits = []string{err.Error()}
		return f
	}
	defer reader.close()
	f.EngineID = reader.id()
	if a, b := reader.ranks[0].Hash, owner.ranks[0].Hash; a != b && a != "" && b != "" {
		f.Misfits = append(f.Misfits, fmt.Sprintf("compatibility_hash is %s there and %s here (another vLLM version, model, element type or backend)", plain(a), plain(b)))
	}
	here, there := *reader.ranks[0].Handshake, *owner.ranks[0].Handshake
	here.Lease.Hash, there.Lease.Hash = "", ""
	if err := wire.Compatible(&here, &there); err != nil {
		f.Misfits = append(f.Misfits, err.Error())
	}
	reach, err := topology.Reach(reader.shape(), owner.shape(), 0)
	if err != nil {
		f.Misfits = append(f.Misfits, err.Error())
		return f
	}
	var remotes []read.Remote
	for _, r := range reach {
		remotes = append(remotes, read.Remote{Rank: r, Layout: &owner.ranks[r].layout})
	}
	heads := max(here.Lease.KVHeads, there.Lease.KVHeads)
	if _, err := read.NewMaps(&reader.ranks[0].layout, reader.shape(), 0, owner.shape(), heads, remotes); err != nil {
		f.Misfits = append(f.Misfits, err.Error())
	}
	return f
}

// Explained is an error of the side channel with what a person at a terminal may not know.
type Explained struct {
	Err  error
	Hint string
}

func (e *Explained) Error() string { return e.Err.Error() + ": " + e.Hint }
func (e *Explained) Unwrap() error { return e.Err }

// explain adds to an error of the side channel what a person at a terminal may not know.
func explain(addr string, err error) error {
	hint := ""
	switch handshake.ClassOf(err) {
	case handshake.Unreachable:
		if _, isName := errors.AsType[*net.DNSError](err); isName {
			hint = "the name has no address here: see /etc/hosts and the name server, or write the address"
			break
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			hint = "there is no way to it from here: ip route get shows which would be taken"
			break
		}
		hint = "nobody listens there: the side channel of a stock engine is VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT (5600 if not set) plus the data-parallel index, and closes when its listener dies of a request for a rank that it does not have"
	case handshake.Silent, handshake.NotZMTP:
		switch {
		case errors.Is(err, context.Canceled):
			return err
		case handshake.ClassOf(err) == handshake.Silent && strings.HasPrefix(err.Error(), "zmtp "+addr+": connect: "):
			hint = "no machine with that address answers, or a firewall between the two drops what comes: its port must be let through"
		case answersHTTP(addr):
			hint = "a web server answers there, perhaps the engine's API: the side channel is VLLM_NIXL_SIDE_CHANNEL_PORT (5600 if not set)"
		case handshake.ClassOf(err) == handshake.Silent:
			hint = "something listens and does not answer: an engine that stands still or loads its model, or a stock engine whose listener has died"
		default:
			hint = "what listens there is no NIXL side channel"
		}
	case handshake.Metadata:
		hint = "it speaks ZeroMQ, but is no NIXL side channel that is understood here"
	}
	if hint == "" {
		return err
	}
	return &Explained{err, hint}
}

// answersHTTP looks whether what gave no greeting is a web server; those wait for the end of a line.
func answersHTTP(addr string) bool {
	const patience = time.Second
	c, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte("GET / HTTP/1.0\r\n\r\n")); err != nil {
		return false
	}
	buf := make([]byte, 5)
	n, _ := c.Read(buf)
	return strings.HasPrefix(string(buf[:n]), "HTTP/")
}

// spread is the least, the middle and the greatest of some times.
func spread(d []time.Duration) Spread {
	if len(d) == 0 {
		return Spread{}
	}
	s := slices.Sorted(slices.Values(d))
	return Spread{N: len(s), LeastMs: ms(s[0]), MedianMs: ms(s[len(s)/2]), MostMs: ms(s[len(s)-1])}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
