package read

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// ErrConfig is wrapped by every error of New.
var ErrConfig = errors.New("read: configuration")

// Config sizes a Machine. Zero takes the default.
type Config struct {
	ReadsMax   int // reads not yet free: building, in flight, or with blocks held; 1,024
	SourcesMax int // source ranks of one read, at most 64; 16
	PartsMax   int // data transfers of one read in flight at once; 16
	RunsMax    int // runs of all reads together, after merging; 524,288 (12 bytes each), kept in pieces of 64 per read and group
	NotifMax   int // bytes of all notifications of one read; 1,280: an id, ":" and a number
	PeersMax   int // peers with a transfer open at once; 4,096
	RowsMax    int // row reads open at once; 4,096
	RowsPeer   int // row reads open at once to one peer; 256

	DescsStepMax int // descriptors posted in one step, also the longest list of one post; 4,096
	RowsStepMax  int // row reads posted between two steps; 256
	PostsStepMax int // data posts in one step, and fence posts; 256
	EndsStepMax  int // ends of transfers taken in one step; 1,024

	ReadTimeout         time.Duration // from the post of a read's last part to its outcome, fence included, and from its start to its first post; 120 s
	RowTimeout          time.Duration // from the post of a row read to its result; ReadTimeout
	QuarantineErrorWait time.Duration // how long memory stays aside after a transfer's error; 30 s
	FenceSpin           time.Duration // the longest wait for fences in a step where the peer's software answers; 300 µs (1 ns: none)
	FenceSpinFast       time.Duration // the same where its NIC does (transport.FastFence); 50 µs

	// PostBudget is how long a step should take for its data posts. A list that takes longer is posted in parts, over several steps;
	// how long one takes is what the transport has measured of the peer's earlier ones. 0: no matter how long.
	PostBudget time.Duration

	Sites *trace.Sites // nil: nobody can attach
}

func (c Config) withDefaults() Config {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	span := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.ReadsMax, 1024)
	def(&c.SourcesMax, 16)
	def(&c.PartsMax, 16)
	def(&c.RunsMax, 1<<19)
	def(&c.NotifMax, 1280)
	def(&c.PeersMax, 4096)
	def(&c.RowsMax, 4096)
	def(&c.RowsPeer, 256)
	def(&c.DescsStepMax, 4096)
	def(&c.RowsStepMax, 256)
	def(&c.PostsStepMax, 256)
	def(&c.EndsStepMax, 1024)
	span(&c.ReadTimeout, 120*time.Second)
	span(&c.RowTimeout, c.ReadTimeout)
	span(&c.QuarantineErrorWait, 30*time.Second)
	span(&c.FenceSpin, 300*time.Microsecond)
	span(&c.FenceSpinFast, 50*time.Microsecond)
	return c
}

func (c *Config) check() error {
	const most = 1 << 24 // keeps every index below an int32 and every sum below an int
	for _, v := range []struct {
		name string
		n    int
		max  int
	}{
		{"ReadsMax", c.ReadsMax, 1 << 20}, {"SourcesMax", c.SourcesMax, topology.RanksMax}, {"PartsMax", c.PartsMax, 1 << 10},
		{"RunsMax", c.RunsMax, 1 << 30}, {"NotifMax", c.NotifMax, 1 << 20}, {"PeersMax", c.PeersMax, most},
		{"RowsMax", c.RowsMax, most}, {"RowsPeer", c.RowsPeer, most}, {"DescsStepMax", c.DescsStepMax, most},
		{"RowsStepMax", c.RowsStepMax, most}, {"PostsStepMax", c.PostsStepMax, most}, {"EndsStepMax", c.EndsStepMax, most},
	} {
		if v.n < 1 || v.n > v.max {
			return fmt.Errorf("%w: %s = %d, must be 1..%d", ErrConfig, v.name, v.n, v.max)
		}
	}
	for _, v := range []struct {
		name string
		d    time.Duration
	}{
		{"ReadTimeout", c.ReadTimeout}, {"RowTimeout", c.RowTimeout}, {"QuarantineErrorWait", c.QuarantineErrorWait},
		{"PostBudget", c.PostBudget}, {"FenceSpin", c.FenceSpin}, {"FenceSpinFast", c.FenceSpinFast},
	} {
		if v.d < 0 {
			return fmt.Errorf("%w: %s is negative", ErrConfig, v.name)
		}
	}
	return nil
}

// LandingBytes is the length of the registered memory that New wants: a row for each row read that may be open and one
// for each fence. Every read has its own fence rows, so a fence never waits for room and no two reads share one.
func LandingBytes(c Config) int {
	c = c.withDefaults()
	return record.RowLen * (c.RowsMax + c.ReadsMax*c.SourcesMax)
}

// New makes a machine that reads into the regions of local over tr. local may be nil until SetLocal: then no read fits.
//
// landing is at least LandingBytes(cfg) bytes of host memory, 8-byte aligned and registered with tr; with anything but
// loopback it must be C memory. It and the blocks of local belong to the machine's transfers until Open is 0.
func New(cfg Config, tr transport.Transport, landing []byte, local *Layout) (*Machine, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if local == nil {
		local = &Layout{}
	} else if why := local.check(); why != "" {
		return nil, fmt.Errorf("%w: local layout: %s", ErrConfig, why)
	}
	if len(landing) < LandingBytes(cfg) {
		return nil, fmt.Errorf("%w: landing memory has %d bytes, needs %d", ErrConfig, len(landing), LandingBytes(cfg))
	}
	rows, ok := asRows(landing)
	if !ok {
		return nil, fmt.Errorf("%w: landing memory is not 8-byte aligned", ErrConfig)
	}
	m := &Machine{cfg: cfg, tr: tr, landing: rows, landingAddr: record.Addr(landing)}
	m.takeLocal(*local)
	m.init()
	return m, nil
}
