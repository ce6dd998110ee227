package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// What lies beyond these is no engine and no network that there could be: a run of it would end in a panic, take all memory or
// years, or be called a fault of the plane.
const (
	ranksMax  = 64
	slotsMax  = 1 << 16 // of blocks, leases, reads and messages of an engine each
	leaseMin  = time.Second
	leaseMax  = 48 * time.Hour
	passMin   = 100 * time.Microsecond
	offsetMax = 48 * time.Hour // startInstant lies further from 0
	driftMax  = 100_000        // a tenth
	rateMin   = 1.0
	copiesMax = 10_000
	readerMax = 1<<16 - 1 // of a message
	seedsMax  = 1_000_000
)

// check says which value of an engine cannot be. 0 is the default of each.
func (e *Engine) check() error {
	switch {
	case !e.Host && (max(e.TP, 1) > 1 || max(e.PP, 1) > 1) && !e.Stock:
		return fmt.Errorf("engine %q has several ranks: it needs host: true", e.ID)
	case e.Carrier != "" && e.Carrier != "process" && e.Carrier != "delta":
		return fmt.Errorf("engine %q: carrier %q, allowed: process, delta", e.ID, e.Carrier)
	case uint64(max(e.TP, 1))*uint64(max(e.PP, 1)) > ranksMax:
		return fmt.Errorf("engine %q has %d x %d ranks, at most %d", e.ID, max(e.TP, 1), max(e.PP, 1), ranksMax)
	case headsN%max(e.TP, 1) != 0 && max(e.TP, 1)%headsN != 0:
		return fmt.Errorf("engine %q: tp is %d, which the model's %d KV heads cannot be shared out to: want 1, 2, 4, 8 and so on", e.ID, e.TP, headsN)
	case layersN%max(e.PP, 1) != 0:
		return fmt.Errorf("engine %q: pp is %d, and the model has %d layers: want 1 or %d", e.ID, e.PP, layersN, layersN)
	case e.Drift < -driftMax || e.Drift > driftMax:
		return fmt.Errorf("engine %q: drift is %d, allowed: %d to %d", e.ID, e.Drift, -driftMax, driftMax)
	}
	for _, k := range []struct {
		key         string
		is          time.Duration
		least, most time.Duration
	}{
		{"lease", e.Lease, leaseMin, leaseMax}, {"pass", e.Pass, passMin, timeMax}, {"offset", e.Offset, -offsetMax, offsetMax},
		{"ranks", e.Ranks, -offsetMax, offsetMax}, {"read_timeout", e.ReadTimeout, time.Millisecond, timeMax}, {"posting", e.Posting, 0, timeMax},
		{"expect_max", e.ExpectMax, time.Millisecond, timeMax}, {"blocks_ttl", e.BlocksTTL, time.Millisecond, timeMax},
		{"stock_linger", e.StockLinger, -timeMax, timeMax}, {"wire_grace", e.WireGrace, -timeMax, timeMax},
	} {
		if k.is != 0 && (k.is < k.least || k.is > k.most) {
			return fmt.Errorf("engine %q: %s is %v, allowed: %v to %v", e.ID, k.key, k.is, k.least, k.most)
		}
	}
	for _, k := range []struct {
		key string
		is  uint32
	}{{"blocks", e.Blocks}, {"slots", e.Slots}, {"reads", e.Reads}, {"notifs", e.Notifs}} {
		if k.is > slotsMax {
			return fmt.Errorf("engine %q: %s is %d, at most %d", e.ID, k.key, k.is, slotsMax)
		}
	}
	if !isShare(e.CarrierLoss) {
		return fmt.Errorf("engine %q: carrier_loss is %v, a share is from 0 to 1", e.ID, e.CarrierLoss)
	}
	return nil
}

// check says which value of an action cannot be.
func (a *Action) check() error {
	hows := []string{Refuse, Never, Slow, Other}
	switch {
	case a.For > timeMax || a.For < -timeMax || a.For < 0 && a.Do != Clock: // a clock may be set back
		return fmt.Errorf("for is %v, allowed: 0s to %v", a.For, timeMax)
	case a.N < 0 || a.N > copiesMax:
		return fmt.Errorf("n is %d, allowed: 0 to %d", a.N, copiesMax)
	case a.Readers < 0 || a.Readers > readerMax:
		return fmt.Errorf("readers is %d, allowed: 0 to %d", a.Readers, readerMax)
	case a.Rank < HostOnly || a.Rank >= ranksMax || a.ToRank < AllRanks || a.ToRank >= ranksMax:
		return fmt.Errorf("rank is %d and to_rank %d: ranks are below %d", a.Rank, a.ToRank, ranksMax)
	case a.Do == Handshake && a.How != Well && !slices.Contains(hows, a.How):
		return fmt.Errorf("how is %q, allowed: %s%s", a.How, strings.Join(hows, ", "), instead(a.How, hows))
	case a.Link != nil:
		return a.Link.check()
	}
	return nil
}

func isShare(v float64) bool { return v >= 0 && v <= 1 }

// check says which value of a link cannot be.
func (l *Link) check() error {
	for _, k := range []struct {
		key string
		is  float64
	}{{"loss", l.Loss}, {"dup", l.Dup}, {"reorder", l.Reorder}, {"read_fail", l.ReadFail}, {"torn", l.Torn}} {
		if !isShare(k.is) {
			return fmt.Errorf("%s of a link is %v, a share is from 0 to 1", k.key, k.is)
		}
	}
	for _, k := range []struct {
		key string
		is  time.Duration
	}{
		{"delay", l.Delay}, {"jitter", l.Jitter}, {"spread", l.Spread}, {"read_delay", l.ReadDelay}, {"desc_time", l.DescTime},
		{"late", l.Late}, {"break", l.Break},
	} {
		if k.is < 0 || k.is > timeMax {
			return fmt.Errorf("%s of a link is %v, allowed: 0s to %v", k.key, k.is, timeMax)
		}
	}
	if l.Rate != 0 && !(l.Rate >= rateMin) {
		return fmt.Errorf("rate of a link is %v, want bytes a second", l.Rate)
	}
	return nil
}
