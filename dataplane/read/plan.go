package read

import "github.com/kvlease/kvlease/dataplane/transport"

// cursor is where the plan of one source stands. Descriptors are made from runs x regions as they are posted, so a read
// of many blocks over many layers needs no list of its own.
//
// Order: kind of memory, region, group, run, block.
type cursor struct {
	pair   int32 // kind of memory
	region int32
	group  int32
	piece  int32 // none: at the group's first
	run    int32
	block  uint32 // within the run, where blocks do not lie beside each other
}

func startOfPlan() cursor { return cursor{piece: none} }

// descsOf is the number of descriptors that one pair of regions takes.
func (j *job) descsOf(l, r *Region) (descs uint64) {
	lo, hi := 0, GroupsMax
	if l.Group >= 0 {
		lo, hi = int(l.Group), int(l.Group)+1
	}
	dense := l.dense() && r.dense()
	for g := lo; g < hi; g++ {
		if dense {
			descs += uint64(j.groups[g].runs)
		} else {
			descs += j.groups[g].blocks
		}
	}
	return descs
}

// plan counts the descriptors of a source.
func (m *Machine) plan(j *job, s *source) (descs uint64) {
	s.left = [memPairs]uint64{}
	for k := range s.remote.Regions {
		l, r := &m.local.Regions[s.first+k], &s.remote.Regions[k]
		n := j.descsOf(l, r)
		s.left[memPair(l.Mem, r.Mem)] += n
		descs += n
	}
	s.leftAll = descs
	return descs
}

// fill makes the next descriptors of a source: as many as out takes, but of one kind of memory only. The caller has
// seen that there are some. It reports their number, bytes and kind.
func (m *Machine) fill(j *job, s *source, out []transport.Desc) (n int, bytes uint64, pair int) {
	c := &s.cur
	for s.left[c.pair] == 0 {
		c.pair++
		c.region, c.group, c.piece, c.run, c.block = 0, 0, none, 0, 0
	}
	pair = int(c.pair)
	if left := s.left[pair]; uint64(len(out)) > left {
		out = out[:left]
	}
	for n < len(out) {
		l, r := &m.local.Regions[s.first+int(c.region)], &s.remote.Regions[c.region]
		if memPair(l.Mem, r.Mem) != pair {
			c.region++
			c.group = 0
			continue
		}
		if l.Group >= 0 {
			c.group = l.Group
		}
		k, b, ended := m.fillGroup(j, l, r, c, out[n:])
		n += k
		bytes += b
		if !ended {
			break
		}
		c.piece, c.run, c.block = none, 0, 0
		c.group++
		if l.Group >= 0 || c.group == GroupsMax {
			c.group = 0
			c.region++
		}
	}
	s.left[pair] -= uint64(n)
	s.leftAll -= uint64(n)
	return n, bytes, pair
}

// fillGroup makes descriptors for one group's runs in one pair of regions. ended: the group has no more.
func (m *Machine) fillGroup(j *job, l, r *Region, c *cursor, out []transport.Desc) (n int, bytes uint64, ended bool) {
	if c.piece == none {
		if c.piece = j.groups[c.group].head; c.piece == none {
			return 0, 0, true
		}
	}
	dense := l.dense() && r.dense()
	d := transport.Desc{LocalDevice: l.Device, RemoteDevice: r.Device}
	for {
		p := &m.runs.pieces[c.piece]
		for c.run < p.n {
			run := p.runs[c.run]
			if dense {
				if n == len(out) {
					return n, bytes, false
				}
				d.Local = l.Addr + uint64(run.local)*l.BlockStride
				d.Remote = r.Addr + uint64(run.remote)*r.BlockStride
				d.Len = uint64(run.n) * l.BlockLen
				out[n] = d
				n++
				bytes += d.Len
				c.run++
				continue
			}
			d.Len = l.BlockLen
			for c.block < run.n {
				if n == len(out) {
					return n, bytes, false
				}
				d.Local = l.Addr + uint64(run.local+c.block)*l.BlockStride
				d.Remote = r.Addr + uint64(run.remote+c.block)*r.BlockStride
				out[n] = d
				n++
				bytes += d.Len
				c.block++
			}
			c.block = 0
			c.run++
		}
		if p.next == none {
			return n, bytes, true
		}
		c.piece = p.next
		c.run = 0
	}
}
