package core

import (
	"time"

	"github.com/kvlease/kvlease/dataplane"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// The configuration of each part, out of the one of the context. The parts take 0 for their default; where the context's key
// may be 0 and means it, they get the least that is more.

func (c *Config) leaseConfig(seed uint64) lease.Config {
	return lease.Config{
		Duration: c.Duration, Extension: c.Extension(), Interval: c.Interval(), Settle: max(c.Settle, 1), StallGap: c.StallGap,
		StockLinger: c.StockLinger, ExpectMax: c.ExpectMax, FixedTTL: c.BlocksTTL, SweepMax: c.SweepMax, LongIDs: c.LongIDsMax,
		AllPeersCheck: c.AllPeersCheck, StockPeers: c.StockPeers, Seed: seed, TraceSample: c.TraceSample,
	}
}

// probesStepMax is what a step may read beside rows_step_max rows: signs of life of engines of which no row is read.
const probesStepMax = 32

func (c *Config) readConfig() read.Config {
	budget := c.PostBudget
	if c.Drive == "pump" { // nobody's pass waits for its posts
		budget = 0
	}
	return read.Config{
		ReadsMax: c.ReadsMax, RunsMax: c.ReadRunsMax, DescsStepMax: c.DescsStepMax, RowsStepMax: c.RowsStepMax + probesStepMax,
		ReadTimeout: c.ReadTimeout, QuarantineErrorWait: c.QuarantineWait, FenceSpin: max(c.FenceSpin, 1), PostBudget: budget,
		PeersMax: c.PeersMax(), SourcesMax: c.SourcesMax,
	}
}

// linksMax is how many ranks of other engines this rank talks to, all engines together: of most engines one.
func (c *Config) linksMax() int { return c.EnginesMax + 2*RanksMax }

// PeersMax is how many agents the transport must keep loaded: those that this rank talks to, and those of engines that came back
// under another boot, which stay until their transfers have ended.
func (c *Config) PeersMax() int { return c.linksMax() + heartbeat.ParkedMax }

func (c *Config) heartbeatConfig(self heartbeat.Identity) heartbeat.Config {
	return heartbeat.Config{
		Self: self, Shape: topology.Shape{TP: uint32(c.TPSize), PP: uint32(c.PPSize)}, KVHeads: uint32(c.KVHeads),
		Links: c.linksMax(), SourcesMax: c.SourcesMax, HealWait: max(c.HealWait, 1), Duration: c.Duration, Tracks: c.TrackedMax,
		Engines: c.EnginesMax, HandoverMax: max(c.HandoverMax, 1),
		ReadTimeout: c.ReadTimeout, BatchBytesMax: c.BatchBytesMax, RowsStepMax: c.RowsStepMax,
		UnheardBytesMax: uint64(c.UnheardBytesMax), RunsMax: c.ReadRunsMax,
		LongIDs: max(64, c.TrackedMax/64), Seed: self.Epoch, WordWait: c.wordWait(),
	}
}

// wordSlack is what the word of a wire may take from the goroutine that finds it out to the step of a rank.
const wordSlack = 250 * time.Millisecond

// wordWait is how long what breaks at an engine waits for the word of its death wire; 0: there are none.
func (c *Config) wordWait() time.Duration {
	if !c.DeathWire {
		return 0
	}
	return c.WireGrace + wordSlack
}

func (c *Config) planeConfig() dataplane.Config {
	return dataplane.Config{
		RecordsStepMax: 1 << 16, NotifsStepMax: c.NotifsStepMax, ParseMax: c.ParseMax, StockPeers: c.StockPeers,
		Engine: wire.EngineHash([]byte(c.EngineID)), Rank: uint32(c.Rank()),
	}
}
