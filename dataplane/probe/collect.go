package probe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kvlease/kvlease/dataplane/probe/bpf"
)

// Series is one stage between two ends.
type Series struct {
	Stage    Stage
	From, To uint64 // hashes, see Stage.Between; both 0: all that found no place of their own
	Context  Context
	Histogram
}

// Counters are what was counted beside the spans.
type Counters struct {
	Hits         uint64 // of all sites
	OutliersLost uint64 // the ring of outliers was full
	Folded       uint64 // spans that found no place of their own, and are in their stage's series for all others
	ValuesLost   uint64 // spans that are in none
	HooksSkipped uint64 // hooks that were not timed, since 64 others waited in their ring

	// What could not be paired. Some are usual right after attaching, and where the other engine is on another host.
	PostNoStep     uint64 // posted in a step whose begin was not seen
	PostUnseen     uint64 // posted, and not seen before its number came up again
	SeenNoPost     uint64 // seen, and nobody here had posted it
	SeenDiffers    uint64 // seen with another count of requests than the post of that number had: not timed
	ExtendedNoSeen uint64
	ReadNoPost     uint64
	StepNoBegin    uint64

	Evicted uint64 // of what was on its way, forgotten for newer: more at a time than is kept
	Misses  uint64 // hits that the kernel has left out
}

// Alias is a hash under which a context sends and receives.
type Alias struct {
	Context Context
	Hash    uint64
}

// Snapshot is what a probe has counted since it was opened.
type Snapshot struct {
	Series   []Series
	Counters Counters
	Aliases  []Alias
}

// Read gives what has been counted. Spans that end meanwhile may be in or not.
func (p *Probe) Read() (*Snapshot, error) {
	s := &Snapshot{}
	var key bpf.TraceSeries
	var cpus []bpf.TraceHistogram
	it := p.objects.Histograms.Iterate()
	for it.Next(&key, &cpus) {
		entry := Series{Stage: Stage(key.Stage), From: key.From, To: key.To}
		if !entry.Stage.Between() {
			entry.Context = contextOf(key.From)
		}
		for i := range cpus {
			entry.add(&cpus[i])
		}
		if entry.Count > 0 && entry.Stage < Stages {
			s.Series = append(s.Series, entry)
		}
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("histograms: %w", err)
	}
	var self bpf.TraceSelf
	var first uint64
	it = p.objects.LruSelves.Iterate()
	for it.Next(&self, &first) {
		s.Aliases = append(s.Aliases, Alias{Context: contextOf(self.Context), Hash: self.Hash})
	}
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) { // entries may go meanwhile
		return nil, fmt.Errorf("aliases: %w", err)
	}
	return s, p.counters(&s.Counters)
}

func (h *Histogram) add(cpu *bpf.TraceHistogram) {
	h.Count += cpu.Count
	h.Sum += cpu.Sum
	h.Max = max(h.Max, cpu.Max)
	for i, n := range cpu.Buckets {
		h.Counts[i] += n
	}
}

// evictable are the maps that forget, and the counters of what was put into them and taken out.
func (p *Probe) evictable() []evictable {
	const never = bpf.TraceCounterCOUNTER_COUNT
	return []evictable{
		{p.objects.LruPosts, bpf.TraceCounterCOUNTER_ADDED_POSTS, bpf.TraceCounterCOUNTER_TAKEN_POSTS},
		{p.objects.LruSeen, bpf.TraceCounterCOUNTER_ADDED_SEEN, bpf.TraceCounterCOUNTER_TAKEN_SEEN},
		{p.objects.LruReads, bpf.TraceCounterCOUNTER_ADDED_READS, bpf.TraceCounterCOUNTER_TAKEN_READS},
		{p.objects.LruSteps, bpf.TraceCounterCOUNTER_ADDED_STEPS, never},
		{p.objects.LruThreads, bpf.TraceCounterCOUNTER_ADDED_THREADS, never},
		{p.objects.LruProducers, bpf.TraceCounterCOUNTER_ADDED_PRODUCERS, never},
		{p.objects.LruSelves, bpf.TraceCounterCOUNTER_ADDED_SELVES, never},
	}
}

type evictable struct {
	m            *ebpf.Map
	added, taken bpf.TraceCounter
}

// counters reads them all. What was added is read before the maps are counted and what was taken after, so what comes and goes
// meanwhile does not count as evicted.
func (p *Probe) counters(c *Counters) error {
	before, err := p.counts()
	if err != nil {
		return err
	}
	maps := p.evictable()
	there := make([]uint64, len(maps))
	for i, e := range maps {
		if before[e.added] == 0 {
			continue
		}
		if there[i], err = entries(e.m); err != nil {
			return err
		}
	}
	all, err := p.counts()
	if err != nil {
		return err
	}
	*c = Counters{
		Hits: all[bpf.TraceCounterCOUNTER_HITS], OutliersLost: all[bpf.TraceCounterCOUNTER_OUTLIERS_LOST],
		Folded: all[bpf.TraceCounterCOUNTER_FOLDED], ValuesLost: all[bpf.TraceCounterCOUNTER_VALUES_LOST],
		HooksSkipped: all[bpf.TraceCounterCOUNTER_HOOKS_SKIPPED], PostNoStep: all[bpf.TraceCounterCOUNTER_POST_NO_STEP],
		PostUnseen: all[bpf.TraceCounterCOUNTER_POST_UNSEEN], SeenNoPost: all[bpf.TraceCounterCOUNTER_SEEN_NO_POST],
		SeenDiffers: all[bpf.TraceCounterCOUNTER_SEEN_DIFFERS], ExtendedNoSeen: all[bpf.TraceCounterCOUNTER_EXTENDED_NO_SEEN],
		ReadNoPost: all[bpf.TraceCounterCOUNTER_READ_NO_POST], StepNoBegin: all[bpf.TraceCounterCOUNTER_STEP_NO_BEGIN],
	}
	for i, e := range maps {
		kept := there[i]
		if e.taken < bpf.TraceCounterCOUNTER_COUNT {
			kept += all[e.taken]
		}
		if before[e.added] > kept {
			c.Evicted += before[e.added] - kept
		}
	}
	if stats, err := p.objects.Fired.Stats(); err == nil {
		c.Misses = stats.RecursionMisses
	}
	return nil
}

// counts adds up what each CPU has counted.
func (p *Probe) counts() (all [bpf.TraceCounterCOUNTER_COUNT]uint64, err error) {
	for i := range all {
		var cpus []uint64
		if err := p.objects.Counters.Lookup(uint32(i), &cpus); err != nil {
			return all, fmt.Errorf("counters: %w", err)
		}
		for _, n := range cpus {
			all[i] += n
		}
	}
	return all, nil
}

// entries counts what is in a map.
func entries(m *ebpf.Map) (uint64, error) {
	var n uint64
	key, err := m.NextKeyBytes(nil)
	for ; key != nil && err == nil && n < uint64(m.MaxEntries()); key, err = m.NextKeyBytes(key) {
		n++
	}
	if err != nil {
		return 0, fmt.Errorf("%v: %w", m, err)
	}
	return n, nil
}

// Outlier is one span that was as long as Config.Outliers, or longer.
type Outlier struct {
	Stage    Stage
	From, To uint64 // as in Series
	Context  Context
	Took     time.Duration
	Ago      time.Duration // from its end until it was read
	Thread   uint32        // as the kernel's first pid namespace calls it
	// What it was: of messages number << 32 | requests, of reads the track, of hooks the ring's position, of steps the work done, of gaps
	// the backlog.
	What uint64
	PID  uint32
}

// Outlier waits for the next one until the time given; os.ErrDeadlineExceeded then, os.ErrClosed when the probe is closed.
func (p *Probe) Outlier(until time.Time) (Outlier, error) {
	p.ring.SetDeadline(until)
	rec, err := p.ring.Read()
	if err != nil {
		return Outlier{}, err
	}
	var raw bpf.TraceOutlier
	if err := binary.Read(bytes.NewReader(rec.RawSample), binary.NativeEndian, &raw); err != nil {
		return Outlier{}, fmt.Errorf("outlier: %w", err)
	}
	if raw.Stage >= uint32(Stages) {
		return Outlier{}, fmt.Errorf("outlier of an unknown stage %d", raw.Stage)
	}
	o := Outlier{
		Stage: Stage(raw.Stage), From: raw.From, To: raw.To, Took: time.Duration(raw.Took), What: raw.What, Thread: raw.Thread, PID: raw.Process,
		Ago: max(monotonic()-time.Duration(raw.End), 0),
	}
	if !o.Stage.Between() {
		o.Context = contextOf(raw.From)
	}
	return o, nil
}
