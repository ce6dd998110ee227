package lease

import "github.com/kvlease/kvlease/dataplane/clock"

func (t *Table) deadlineUs(now clock.Instant) uint64 { return uint64(max(now, 0))/1000 + t.extUs }

// beatRow tells the row's readers of a heartbeat applied at now.
func (t *Table) beatRow(s uint32, now clock.Instant) { t.beatRowUs(s, t.deadlineUs(now)) }

func (t *Table) beatRowUs(s uint32, us uint64) {
	r := &t.mem.Rows[s]
	put(&r.GenBeats, r.GenBeats+1<<32)
	if us > r.DeadlineUs {
		put(&r.DeadlineUs, us)
	}
}

// touch counts a heartbeat that moved nothing.
func (t *Table) touch(s uint32) {
	r := &t.mem.Rows[s]
	put(&r.GenBeats, r.GenBeats+1<<32)
}
