package heartbeat

import (
	"fmt"
	"time"

	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// Identity is who speaks in native messages.
type Identity struct {
	EngineHash uint64 // wire.EngineHash of our engine id
	Epoch      uint64 // boot epoch, not 0
	Rank       uint32
}

// Config of a Tracker. Zero values take the defaults named; Duration, Self and Tracks have none.
type Config struct {
	Self     Identity
	Duration time.Duration // our own lease duration L; also assumed of stock peers

	Shape   topology.Shape // of our own engine; 1 x 1
	KVHeads uint32         // of the model; 0: not told (topology.Takes)

	Tracks     int // tracking slots: the length of the slice given to New
	Engines    int // 4096
	Links      int // 4096, at least Engines: ranks of all engines together that this rank talks to
	SourcesMax int // 64: ranks of one engine that one read takes its blocks from, as read.Config has it
	Owed       int // messages kept for requests whose slot went back: Tracks/4, at least 1024
	RunsMax    int // 262144: runs of reads that wait for their engine
	RowStates  int // Tracks, at least 1024: states of rows beside the first of each request, for engines of several ranks
	LongIDs    int // remote ids longer than 96 bytes at once: Tracks/64, at least 64

	HealWait    time.Duration // a quarter of the extension: the longest that a broken link waits for its transfers
	HandoverMax time.Duration // L/3: the longest way of a request from the owner's grant to our track
	ReadTimeout time.Duration // 4 x L: the longest that a read waits for its engine
	DriftPPM    int           // 500: how far two clocks may drift apart
	WordWait    time.Duration // how long a death wire has to say why a connection broke, before that is a warning; 0: there are none

	BatchBytesMax   int    // 16 KiB: bytes of one message
	BatchesStepMax  int    // 32: heartbeat messages of one step
	EndsStepMax     int    // 32: completion and release messages of one step
	RowsStepMax     int    // 256: row reads of one step
	EventsStepMax   int    // 256: events of one step
	UnheardBytesMax uint64 // 16 MiB: heartbeats that a silent peer may have queued

	Nonce func(engine string) [16]byte // of our death wire to an engine, for hello; any goroutine. nil: there are no death wires
	Seed  uint64                       // spreads the timers, keys the id table
	Sites *trace.Sites                 // nil: nobody can attach
	Log   *log.Writer                  // of the step; nil: nothing is said
}

// Bounds that a message needs: a stock completion of the longest id, and one native entry.
const batchBytesLeast = wire.IDMax + 16

func (c *Config) setDefaults() error {
	switch {
	case c.Tracks <= 0 || c.Tracks > 1<<24:
		return fmt.Errorf("heartbeat: %d tracking slots, want 1 to %d", c.Tracks, 1<<24)
	case c.Duration <= 0:
		return fmt.Errorf("heartbeat: lease duration %v, want more than 0", c.Duration)
	case c.Self.Epoch == 0:
		return fmt.Errorf("heartbeat: boot epoch 0 is no epoch")
	}
	def(&c.Shape.TP, 1)
	def(&c.Shape.PP, 1)
	def(&c.Engines, 4096)
	def(&c.SourcesMax, topology.RanksMax)
	def(&c.Links, max(4096, c.Engines))
	def(&c.Owed, max(c.Tracks/4, 1024))
	def(&c.LongIDs, max(c.Tracks/64, 64))
	def(&c.RowStates, max(c.Tracks, 1024))
	def(&c.RunsMax, 262144)
	def(&c.HealWait, c.Duration*2/3/4)
	def(&c.HandoverMax, c.Duration/3)
	def(&c.ReadTimeout, 4*c.Duration)
	def(&c.DriftPPM, 500)
	def(&c.BatchBytesMax, 16<<10)
	def(&c.BatchesStepMax, 32)
	def(&c.EndsStepMax, 32)
	def(&c.RowsStepMax, 256)
	def(&c.EventsStepMax, 256)
	def(&c.UnheardBytesMax, 16<<20)
	for _, n := range []int{
		c.Engines, c.Links, c.Owed, c.LongIDs, c.RowStates, c.RunsMax, c.DriftPPM, c.BatchesStepMax, c.EndsStepMax, c.RowsStepMax, c.EventsStepMax,
	} {
		if n < 0 {
			return fmt.Errorf("heartbeat: a bound of %d", n)
		}
	}
	if c.HandoverMax < 0 || c.ReadTimeout < 0 || c.HealWait < 0 {
		return fmt.Errorf("heartbeat: handover %v, read time-out %v, heal wait %v: negative", c.HandoverMax, c.ReadTimeout, c.HealWait)
	}
	if c.BatchBytesMax < batchBytesLeast || c.BatchBytesMax > wire.ParseMax {
		return fmt.Errorf("heartbeat: messages of %d bytes, want %d to %d", c.BatchBytesMax, batchBytesLeast, wire.ParseMax)
	}
	if c.Engines > 1<<20 {
		return fmt.Errorf("heartbeat: %d engines, at most %d", c.Engines, 1<<20)
	}
	return nil
}

func def[T int | uint64 | uint32 | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

// times are the spans that hold with one peer.
type times struct {
	duration  time.Duration // the peer's L
	extension time.Duration // what a heartbeat buys there
	interval  time.Duration // between our heartbeats
	drift     time.Duration // what clocks may differ over one extension
	margin    time.Duration // of the stock time guard
}

// nativeTimes are those with a peer that has said its duration.
func (c *Config) nativeTimes(peer time.Duration) times {
	t := times{duration: peer, extension: peer * 2 / 3, interval: min(c.Duration, peer) / 6}
	return c.margins(t)
}

// stockTimes are those with a peer that says nothing: our own duration is assumed, in vLLM's whole seconds rounded down,
// since a term taken too short costs a recomputation and one taken too long a wrong answer.
func (c *Config) stockTimes() times {
	l := c.Duration.Truncate(time.Second)
	return c.margins(times{duration: l, extension: (l * 2 / 3).Truncate(time.Second), interval: c.Duration / 6})
}

func (c *Config) margins(t times) times {
	t.drift = t.extension * time.Duration(c.DriftPPM) / 1_000_000
	t.margin = t.interval/2 + t.drift
	return t
}
