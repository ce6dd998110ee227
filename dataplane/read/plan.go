package read

import "github.com/kvlease/kvlease/dataplane/transport"

// cursor is where the plan of one source stands. Descriptors are made from runs x pairs of regions as they are posted, so a
// read of many blocks over many layers needs no list of its own.
//
// Order: kind of memory, pair of regions, group, run, block, cut.
type cursor struct {
	mem   int32 // memPair
	pair  int32
	group int32
	piece int32 // none: at the group's first
	run   int32
	block uint32 // within the run, where blocks do not lie beside each other
	cut   int32
	part  uint64 // bytes of the descriptor that parts before have read
}

func startOfPlan() cursor { return cursor{piece: none} }

// groupsOf are the groups whose blocks one pair of regions takes: from lo on, up to hi.
func groupsOf(p *pair) (lo, hi int) {
	if p.group >= 0 {
		return int(p.group), int(p.group) + 1
	}
	return 0, GroupsMax
}

// descsOf is the number of descriptors that one pair of regions takes.
func (j *job) descsOf(p *pair) (descs uint64) {
	lo, hi := groupsOf(p)
	for g := lo; g < hi; g++ {
		if p.dense {
			descs += uint64(j.groups[g].runs)
		} else {
			descs += j.groups[g].blocks * uint64(p.cutsN)
		}
	}
	return descs
}

// blocksOf is the number of blocks that one pair of regions takes.
func (j *job) blocksOf(p *pair) (blocks uint64) {
	lo, hi := groupsOf(p)
	for g := lo; g < hi; g++ {
		blocks += j.groups[g].blocks
	}
	return blocks
}

// plan counts the descriptors of a source.
func (m *Machine) plan(j *job, s *source) (descs uint64) {
	s.left = [memPairs]uint64{}
	for k := range s.how.pairs {
		p := &s.how.pairs[k]
		n := j.descsOf(p)
		s.left[p.mem] += n
		descs += n
	}
	s.leftAll = descs
	return descs
}

// fill makes the next descriptors of a source: as many as out has room for and the allowance covers, of one kind of
// memory. The caller has seen that there are some. The last may be the beginning of one, whose rest is the next part's. It reports
// their number, bytes and kind; 0: the allowance covers not one, and nothing has changed.
func (m *Machine) fill(j *job, s *source, out []transport.Desc, may allowance) (n int, bytes uint64, mem int) {
	c := &s.cur
	for s.left[c.mem] == 0 {
		*c = cursor{mem: c.mem + 1, piece: none}
	}
	mem = int(c.mem)
	if left := s.left[mem]; uint64(len(out)) > left {
		out = out[:left]
	}
	l := list{out: out, may: may}
	for !l.full && l.n < len(out) {
		p := &s.how.pairs[c.pair]
		if int(p.mem) != mem {
			c.pair++
			c.group = 0
			continue
		}
		if p.group >= 0 {
			c.group = p.group
		}
		if !m.fillGroup(j, s.how, p, c, &l) {
			break
		}
		c.piece, c.run, c.block, c.cut = none, 0, 0, 0
		c.group++
		if p.group >= 0 || c.group == GroupsMax {
			c.group = 0
			c.pair++
		}
	}
	s.left[mem] -= l.ended
	s.leftAll -= l.ended
	return l.n, l.bytes, mem
}

// list is the part that fill makes.
type list struct {
	out   []transport.Desc
	n     int
	ended uint64 // of these, but for one whose rest is the next part's
	bytes uint64
	may   allowance
	full  bool
}

// add takes a descriptor, but for the bytes that parts before have read, and reports that this was all of it.
func (l *list) add(d transport.Desc, part *uint64) bool {
	if l.full || l.n == len(l.out) {
		return false
	}
	left := d.Len - *part
	n := l.may.take(left)
	if l.full = n < left; n == 0 {
		return false
	}
	d.Local += *part
	d.Remote += *part
	d.Len = n
	l.out[l.n] = d
	l.n++
	l.bytes += n
	if l.full {
		*part += n
		return false
	}
	*part = 0
	l.ended++
	return true
}

// fillGroup makes descriptors for one group's runs in one pair of regions. It reports that the group has no more.
func (m *Machine) fillGroup(j *job, how *Map, p *pair, c *cursor, l *list) (ended bool) {
	if c.piece == none {
		if c.piece = j.groups[c.group].head; c.piece == none {
			return true
		}
	}
	cuts := how.cuts[p.firstCut : p.firstCut+p.cutsN]
	d := transport.Desc{LocalDevice: p.hereDevice, RemoteDevice: p.thereDevice}
	for {
		at := &m.runs.pieces[c.piece]
		for c.run < at.n {
			run := at.runs[c.run]
			if p.dense {
				d.Local = p.here + uint64(run.local)*p.hereStride
				d.Remote = p.there + uint64(run.remote)*p.thereStride
				d.Len = uint64(run.n) * p.len
				if !l.add(d, &c.part) {
					return false
				}
				c.run++
				continue
			}
			for c.block < run.n {
				here := p.here + uint64(run.local+c.block)*p.hereStride
				there := p.there + uint64(run.remote+c.block)*p.thereStride
				for int(c.cut) < len(cuts) {
					k := &cuts[c.cut]
					d.Local, d.Remote, d.Len = here+k.here, there+k.there, k.len
					if !l.add(d, &c.part) {
						return false
					}
					c.cut++
				}
				c.cut = 0
				c.block++
			}
			c.block = 0
			c.run++
		}
		if at.next == none {
			return true
		}
		c.piece = at.next
		c.run = 0
	}
}
