package read

import "github.com/kvlease/kvlease/dataplane/trace"

// tracePosted says that the first part of a read was posted.
func (m *Machine) tracePosted(i int32) {
	if s := m.cfg.Sites; s.On(trace.ReadPosted) {
		j := &m.jobs[i]
		s.Fire(trace.ReadPosted, s.Ctx(), j.token, j.owner, m.bytesOf(i))
	}
}

// traceArrived says that a read's data has landed from every source, if it has.
func (m *Machine) traceArrived(i int32) {
	sites := m.cfg.Sites
	if !sites.On(trace.DataArrived) {
		return
	}
	j := &m.jobs[i]
	srcs := m.sourcesOf(i)
	for k := range srcs {
		if srcs[k].stage == reading {
			return
		}
	}
	if j.posted {
		sites.Fire(trace.DataArrived, sites.Ctx(), j.token, j.owner, uint64(m.now.Sub(j.began)))
	}
}

// traceFence says what a source's fence has shown.
func (m *Machine) traceFence(t *xfer, verdict uint64) {
	if s := m.cfg.Sites; s.On(trace.FenceChecked) {
		since := m.now.Sub(m.sourcesOf(t.owner)[t.source].arrived)
		s.Fire(trace.FenceChecked, s.Ctx(), m.jobs[t.owner].token, verdict, uint64(since))
	}
}

// bytesOf is what a read brings in all.
func (m *Machine) bytesOf(i int32) (bytes uint64) {
	j := &m.jobs[i]
	srcs := m.sourcesOf(i)
	for k := range srcs {
		how := srcs[k].how
		for n := range how.pairs {
			p := &how.pairs[n]
			each := uint64(0) // of a block
			for _, c := range how.cuts[p.firstCut : p.firstCut+p.cutsN] {
				each += c.len
			}
			bytes += j.blocksOf(p) * each
		}
	}
	return bytes
}
