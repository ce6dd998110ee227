package tracing

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/kvlease/kvlease/dataplane/probe"
	"github.com/kvlease/kvlease/internal/plural"
)

// outliers are the latest ones, collected beside the rest.
type outliers struct {
	mu   sync.Mutex
	list []probe.Outlier // a ring once it is full
	at   []time.Time     // when each one ended
	next int
	seen uint64
}

// Outlier is one span that was as long as asked for.
type Outlier struct {
	At     time.Time `json:"at"`
	Stage  string    `json:"stage"`
	From   string    `json:"from"`
	To     string    `json:"to,omitempty"`
	TookNs int64     `json:"took_ns"`
	PID    uint32    `json:"pid"`
	Thread uint32    `json:"thread"`
	What   string    `json:"what"`

	stage probe.Stage
}

// collect takes them from the probe until it is told to stop.
func (o *outliers) collect(p *probe.Probe, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		one, err := p.Outlier(time.Now().Add(100 * time.Millisecond))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			return
		}
		o.add(one, time.Now().Add(-one.Ago))
	}
}

func (o *outliers) add(one probe.Outlier, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen++
	if len(o.list) < outliersKept {
		o.list, o.at = append(o.list, one), append(o.at, at)
		return
	}
	o.list[o.next], o.at[o.next] = one, at
	o.next = (o.next + 1) % outliersKept
}

// take gives those between the engines asked for, in order, and how many there were of all.
func (o *outliers) take(n *names, engines []string) (list []Outlier, seen uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range o.list {
		k := (o.next + i) % len(o.list)
		one := &o.list[k]
		from, to := n.ends(one.Stage, one.Context, one.From, one.To)
		if !matches(engines, from, to) {
			continue
		}
		list = append(list, Outlier{
			At: o.at[k], Stage: one.Stage.Key(), From: from, To: to, TookNs: int64(one.Took), PID: one.PID, Thread: one.Thread, What: what(one),
			stage: one.Stage,
		})
	}
	return list, o.seen
}

// what says in words what took so long.
func what(o *probe.Outlier) string {
	switch o.Stage {
	case probe.Posted, probe.Seen, probe.Extended, probe.Renewed:
		return fmt.Sprintf("message %d of %s", o.What>>32, plural.Counted(uint32(o.What), "request", "requests"))
	case probe.Arrived, probe.Fenced, probe.Reported, probe.Read, probe.ReadFailed:
		return fmt.Sprintf("track %#x", o.What)
	case probe.Drained:
		return fmt.Sprintf("ring position %d", o.What)
	case probe.Step:
		return plural.Counted(o.What, "thing", "things") + " done"
	case probe.Stall:
		return plural.Counted(o.What, "notification", "notifications") + " waited"
	}
	return ""
}
