package attach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/internal/jsons"
)

// Dump is what was read of a request; beside the file of its bytes it is the index.
type Dump struct {
	File     string           `json:"file"`
	EngineID string           `json:"engine_id"`
	ID       string           `json:"request_id"`
	Proven   bool             `json:"proven"` // the fence was equal at every rank after all of its bytes had come
	Why      string           `json:"why"`    // proven, or not
	Bytes    uint64           `json:"bytes"`
	TookMs   float64          `json:"took_ms"` // of the reads, fences included
	Parts    jsons.List[Part] `json:"parts"`
}

// Part is a run of bytes of the file: the blocks of one region, in the request's order, each block_bytes long.
type Part struct {
	PP         uint32             `json:"pp_rank"`
	Rank       uint32             `json:"rank"`
	Region     int                `json:"region"`
	Name       string             `json:"name,omitempty"`
	Group      int                `json:"group"` // of the request, whose blocks these are
	Offset     uint64             `json:"offset"`
	BlockBytes uint64             `json:"block_bytes"`
	Blocks     jsons.List[uint32] `json:"blocks"` // as the region counts them
}

// bytesMax is the most that is read of one rank, since it is in memory at once.
const bytesMax = 8 << 30

const (
	unprovenStock = "unproven: a stock engine has no fence, so it may have given the blocks to another request before they were read"
	unprovenBlind = "unproven: without the engine's own transfer parameters it is not known which row would prove it"
	provenFence   = "proven: the lease still stood at every rank when all of it had been read"
)

// dump reads the request's blocks from every rank, one after the other, into the file, and writes the index beside it.
func (q *subject) dump(ctx context.Context) error {
	if q.req.Groups == nil {
		return errors.New("which blocks are to be read? give --params or --blocks")
	}
	plans, most, err := q.plans()
	if err != nil {
		return err
	}
	d := &Dump{File: q.cfg.Out, EngineID: q.eng.id(), ID: q.req.ID, Why: unprovenStock}
	switch {
	case q.native:
		d.Proven, d.Why = true, provenFence
	case q.eng.native():
		d.Why = unprovenBlind
	}
	mem, err := pages(int(most))
	if err != nil {
		return err
	}
	if err := q.reader.tr.Register([]transport.Region{{Addr: record.Addr(mem), Bytes: most}}); err != nil {
		return fmt.Errorf("register %d bytes to read into: %w", most, err)
	}
	err = q.blocks.Write(func(w io.Writer) error {
		for i := range plans {
			took, err := q.readRank(ctx, i, &plans[i], record.Addr(mem))
			if err != nil {
				return err
			}
			d.TookMs += ms(took)
			if err := plans[i].write(w, mem, d, q.eng.ranks[i].Handshake.RegionNames); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	index, err := json.MarshalIndent(d, "", " ")
	if err != nil {
		return err
	}
	q.out.Read = d
	return q.index.WriteBytes(append(index, '\n'))
}

// plan is how the blocks of one rank come to lie here: every region has room for the request's blocks of all groups, one behind the
// other, and those of other groups stay empty.
type plan struct {
	rank   *rank
	local  read.Layout // with addresses from 0
	remote read.Layout
	runs   []record.Run
	groups []groupAt
	bytes  uint64
}

// groupAt are a group's blocks, as the regions count them, and the place of the first one.
type groupAt struct {
	group int
	first uint32
	ids   []uint32
}

// plans makes one for every rank; most is the memory of the largest.
func (q *subject) plans() (plans []plan, most uint64, err error) {
	for i := range q.eng.ranks {
		p, err := planOf(&q.eng.ranks[i], q.req.Groups)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", q.eng.ranks[i].Rank, err)
		}
		plans, most = append(plans, p), max(most, p.bytes)
	}
	return plans, most, nil
}

func planOf(k *rank, groups [][]uint32) (p plan, err error) {
	h := k.Handshake
	if h.SSMSizes != [2]uint64{} {
		return p, errors.New("it holds states of a recurrent model beside its blocks, which are not read here")
	}
	p.rank = k
	ratio := max(h.PhysicalPerLogical, 1)
	at := uint32(0)
	for g, ids := range groups {
		if len(ids) == 0 {
			continue
		}
		if uint64(at)+uint64(len(ids))*ratio > BlocksMax {
			return p, fmt.Errorf("more than %d blocks", BlocksMax)
		}
		v := groupAt{group: g, first: at}
		for _, id := range ids { // parameters count blocks as the scheduler does, regions as the kernels do
			for n := range ratio {
				kernel := uint64(id)*ratio + n
				if kernel > math.MaxUint32 {
					return p, fmt.Errorf("there is no block %d", id)
				}
				v.ids = append(v.ids, uint32(kernel))
			}
		}
		p.groups, at = append(p.groups, v), at+uint32(len(v.ids))
	}
	if at == 0 {
		return p, errors.New("the request has no blocks")
	}
	p.remote.Regions = append(p.remote.Regions, k.layout.Regions...)
	one := true // one group of regions: then every id is one of each region
	for _, r := range p.remote.Regions {
		one = one && r.Group == p.remote.Regions[0].Group
	}
	for i := range p.remote.Regions {
		r := &p.remote.Regions[i]
		if one {
			r.Group = -1
		}
		here := *r
		here.Addr, here.BlockStride, here.Blocks, here.Device, here.Mem = p.bytes, r.BlockLen, at, 0, transport.DRAM
		p.local.Regions = append(p.local.Regions, here)
		if p.bytes += uint64(at) * r.BlockLen; p.bytes > bytesMax || r.BlockLen > bytesMax {
			return p, fmt.Errorf("more than %d bytes", uint64(bytesMax))
		}
		for _, v := range p.groups {
			if !belongs(r, v.group) {
				continue
			}
			for _, id := range v.ids {
				if id >= r.Blocks {
					return p, fmt.Errorf("region %d has no block %d, but %d blocks", i, id, r.Blocks)
				}
			}
		}
	}
	for _, v := range p.groups {
		if !hasGroup(&p.remote, v.group) {
			return p, fmt.Errorf("no region is of group %d", v.group)
		}
		for n, id := range v.ids {
			p.runs = append(p.runs, record.Run{Group: uint32(v.group), Local: v.first + uint32(n), Remote: id, N: 1})
		}
	}
	return p, nil
}

func belongs(r *read.Region, group int) bool { return r.Group == -1 || int(r.Group) == group }

func hasGroup(l *read.Layout, group int) bool {
	for i := range l.Regions {
		if group < read.GroupsMax && belongs(&l.Regions[i], group) {
			return true
		}
	}
	return false
}

// readRank reads the blocks of one rank and proves them if that can be. Heartbeats go on.
func (q *subject) readRank(ctx context.Context, i int, p *plan, base uint64) (took time.Duration, err error) {
	for r := range p.local.Regions {
		p.local.Regions[r].Addr += base
	}
	m, k := q.reader.m, &q.eng.ranks[i]
	if err := m.SetLocal(&p.local); err != nil {
		return 0, err
	}
	self := topology.Shape{TP: 1, PP: 1} // rank by rank, each as if it were alone
	maps, err := read.NewMaps(&p.local, self, 0, self, 0, []read.Remote{{Layout: &p.remote}})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", k.Rank, err)
	}
	source := read.Source{Peer: q.reader.peers[i], Map: maps[0]}
	if q.native {
		at, l := k.row(q.req), &k.Handshake.Lease
		source.Fence = read.Fence{Native: true, Mem: at.mem, Device: at.device, Addr: at.addr, Want: record.FenceWord(l.Base, q.req.Params.Lease.Generation)}
	}
	now := monotonic()
	job, st := m.Begin(1, now)
	if st == read.OK {
		st = m.AddSource(job, source)
	}
	if st == read.OK {
		st = m.AddRuns(job, p.runs)
	}
	if st == read.OK {
		st = m.Commit(job, now)
	}
	if st != read.OK {
		return 0, fmt.Errorf("the read from %s was not begun: %s %s", k.Rank, st, m.Why())
	}
	for {
		at := monotonic()
		m.Step(at)
		if o, ok := m.NextOutcome(); ok {
			return monotonic().Sub(now), outcomeError(k, &o)
		}
		if err := q.tick(ctx); err != nil {
			return 0, err
		}
		if err := q.reader.rest(ctx, at.Sub(now)); err != nil {
			return 0, err
		}
	}
}

// outcomeError says why data that came, or did not, is not written down.
func outcomeError(k *rank, o *read.Outcome) error {
	switch o.Status {
	case record.ReadOK:
		return nil
	case record.ReadStale:
		return fmt.Errorf("%s: %d bytes were read and thrown away: %w", k.Rank, o.Bytes, errOver)
	case record.ReadUnproven:
		return fmt.Errorf("%s: %d bytes were read, and thrown away because the fence could not be", k.Rank, o.Bytes)
	case record.ReadTimeout:
		return fmt.Errorf("%s: the read has not ended in time; %d bytes had come", k.Rank, o.Bytes)
	}
	return fmt.Errorf("%s: the read failed in the transport; %d bytes had come", k.Rank, o.Bytes)
}

// write appends a rank's blocks to the file and their places to the index.
func (p *plan) write(w io.Writer, mem []byte, d *Dump, names []string) error {
	at := uint64(0)
	for i := range p.remote.Regions {
		r := &p.remote.Regions[i]
		for _, v := range p.groups {
			if !belongs(r, v.group) {
				continue
			}
			part := Part{
				PP: p.rank.Rank.PP, Rank: p.rank.Rank.Transfer, Region: i, Group: v.group, Offset: d.Bytes, BlockBytes: r.BlockLen, Blocks: v.ids,
			}
			if i < len(names) {
				part.Name = names[i]
			}
			n := uint64(len(v.ids)) * r.BlockLen
			if _, err := w.Write(mem[at+uint64(v.first)*r.BlockLen:][:n]); err != nil {
				return err
			}
			d.Parts, d.Bytes = append(d.Parts, part), d.Bytes+n
		}
		at += uint64(p.local.Regions[i].Blocks) * r.BlockLen
	}
	return nil
}
