package read

import (
	"bytes"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// Fence is where the proof of a source is read. Not native: the source does not speak kvlease; the machine then reports
// what the transport says, with Proven false, and the caller's time guard decides.
type Fence struct {
	Native bool
	Mem    transport.Mem
	Device uint32
	Addr   uint64 // of the lease's row on the source's board
	Want   uint64 // base + g: the word while the use may be read
}

// Source is one source rank of a read.
type Source struct {
	Peer  transport.Peer
	Owner uint64 // wire.EngineHash of its engine, for trace sites
	Map   *Map   // of NewMaps; a read has one source for each map that came with it
	Fence Fence
	// Notif leaves with the last part of the read (stock completions) and is copied. Only for a source that is not
	// native: the completion of a native source goes out after its fence.
	Notif []byte
}

type stage uint8

const (
	reading  stage = iota
	fenceDue       // all data is DONE, the fence read is to be posted
	fencing        // the fence read is in flight
	sound          // all data is DONE and, with a native source, the word was equal
)

type source struct {
	peer     transport.Peer
	fence    Fence
	how      *Map
	notif    []byte
	stage    stage
	inFlight int32            // data parts pending
	left     [memPairs]uint64 // descriptors not yet posted
	leftAll  uint64
	cur      cursor
	arrived  clock.Instant // when all its data had landed
}

type jobState uint8

const (
	jobFree jobState = iota
	jobBuilding
	jobBroken   // building, but a run did not fit: only good for Abort
	jobRunning  // committed
	jobReported // the outcome is known
)

type job struct {
	token    uint64
	mapped   uint64 // maps that have a source
	use      uint32
	state    jobState
	verdict  uint8 // record.Read*; final once bad or reported
	bad      bool  // the verdict is not OK, the outcome waits for the other parts
	here     bool  // for a reason of this side
	posted   bool  // a part was
	held     bool  // the outcome says BlocksHeld
	back     bool  // and the hold is over
	told     bool  // the outcome was handed out
	backTold bool  // so was the end of the hold
	sources  int32
	nextSrc  int32 // posting goes round the sources
	notifLen int32
	badPeer  transport.Peer
	owner    uint64 // of the sources

	inFlight    int32 // data parts pending
	aside       int32 // data parts without DONE that may still write: after an error, or abandoned
	fences      int32 // fence reads pending: they write only the job's own landing rows
	fencesAside int32
	sound       int32  // sources that are sound
	done        uint64 // bytes of parts that are DONE
	landed      uint64 // the same at the outcome
	began       clock.Instant
	deadline    clock.Instant
	took        time.Duration

	links  [jobLists]link
	groups [GroupsMax]groupRuns
}

func (j *job) clear() {
	*j = job{use: j.use}
	for i := range j.links {
		j.links[i] = link{off, off}
	}
	for i := range j.groups {
		j.groups[i].head, j.groups[i].tail = none, none
	}
}

func (m *Machine) jobAt(h Job, s jobState) (*job, int32) {
	i := int32(uint32(h)) - 1
	if i < 0 || int(i) >= len(m.jobs) {
		return nil, none
	}
	j := &m.jobs[i]
	if j.use != uint32(h>>32) || j.state != s {
		return nil, none
	}
	return j, i
}

func (m *Machine) handle(i int32) Job { return Job(m.jobs[i].use)<<32 | Job(i+1) }

func (m *Machine) sourcesOf(i int32) []source {
	at := int(i) * m.cfg.SourcesMax
	return m.sources[at : at+int(m.jobs[i].sources)]
}

// Begin starts to build a read. Full: ReadsMax reads are not free yet, those with blocks held included.
func (m *Machine) Begin(token uint64, now clock.Instant) (Job, Status) {
	m.tick(now)
	if m.closed {
		return 0, Closed
	}
	i := int32(m.freeJob.Take())
	if i == none {
		m.Counters.Full++
		return 0, Full
	}
	j := &m.jobs[i]
	j.clear()
	j.use++
	j.token = token
	j.state = jobBuilding
	m.gauges.Reads++
	return m.handle(i), OK
}

// AddSource adds a source rank. All sources come before the first run.
func (m *Machine) AddSource(h Job, s Source) Status {
	j, i := m.jobAt(h, jobBuilding)
	if j == nil {
		return Stale
	}
	if int(j.sources) == m.cfg.SourcesMax {
		return m.invalid("more sources than SourcesMax")
	}
	if s.Peer == 0 {
		return m.invalid("source without peer")
	}
	if s.Map == nil {
		return m.invalid("source without map")
	}
	if s.Map.local != m.localSum {
		return m.invalid("map of another local layout")
	}
	if j.sources > 0 && m.sourcesOf(i)[0].how.set != s.Map.set {
		return m.invalid("maps that were not made together")
	}
	if j.mapped&s.Map.bit != 0 {
		return m.invalid("two sources with one map")
	}
	if s.Fence.Native && len(s.Notif) > 0 {
		return m.invalid("a native source takes no notification with its read")
	}
	if s.Fence.Native && (s.Fence.Addr&7 != 0 || s.Fence.Addr == 0 || s.Fence.Mem > transport.VRAM) {
		return m.invalid("fence address")
	}
	if s.Fence.Native && s.Fence.Want == record.FenceClosed {
		return m.invalid("fence word of a closed board") // it would be equal to every closed row
	}
	for g := range j.groups {
		if j.groups[g].blocks > 0 {
			return m.invalid("source after the first run")
		}
	}
	notif, ok := m.keepNotif(j, i, s.Notif)
	if !ok {
		return m.invalid("notifications longer than NotifMax")
	}
	j.sources++
	j.owner = s.Owner
	j.mapped |= s.Map.bit
	m.sourcesOf(i)[j.sources-1] = source{peer: s.Peer, fence: s.Fence, how: s.Map, notif: notif, cur: startOfPlan()}
	for g, n := range s.Map.limit {
		if l := &j.groups[g].limit; n != 0 && (*l == 0 || n < *l) {
			*l = n
		}
	}
	return OK
}

// keepNotif copies a notification into the job's room. Sources of one read usually say the same: that is kept once.
func (m *Machine) keepNotif(j *job, i int32, msg []byte) ([]byte, bool) {
	if len(msg) == 0 {
		return nil, true
	}
	if n := j.sources; n > 0 {
		if last := m.sourcesOf(i)[n-1].notif; bytes.Equal(last, msg) {
			return last, true
		}
	}
	room := m.notifs[int(i)*m.cfg.NotifMax:][:m.cfg.NotifMax]
	if int(j.notifLen)+len(msg) > len(room) {
		return nil, false
	}
	at := int(j.notifLen)
	end := at + copy(room[at:], msg)
	j.notifLen = int32(end)
	return room[at:end:end], true
}

// AddRuns adds runs of blocks, each checked against the regions of both sides before any is kept. A run that follows
// the one before it on both sides is merged with it. Full: RunsMax is used up; the job is then only good for Abort.
//
// Not checked: that no local block comes twice.
func (m *Machine) AddRuns(h Job, runs []record.Run) Status {
	j, _ := m.jobAt(h, jobBuilding)
	if j == nil {
		return Stale
	}
	if j.sources == 0 {
		return m.invalid("run before the first source")
	}
	for k := range runs {
		r := &runs[k]
		if r.Group >= GroupsMax || m.localLimit[r.Group] == 0 || j.groups[r.Group].limit == 0 {
			return m.invalid("run of a group that no region has")
		}
		if r.N == 0 {
			return m.invalid("run of no blocks")
		}
		if uint64(r.Local)+uint64(r.N) > uint64(m.localLimit[r.Group]) {
			return m.invalid("local block past the end of its region")
		}
		if uint64(r.Remote)+uint64(r.N) > uint64(j.groups[r.Group].limit) {
			return m.invalid("remote block past the end of its region")
		}
	}
	for k := range runs {
		if !j.groups[runs[k].Group].add(&m.runs, &runs[k]) {
			j.state = jobBroken
			m.Counters.Full++
			return Full
		}
	}
	return OK
}

// Commit makes the read due: the next steps post it. Empty: no run was added, so there is nothing to prove either; Abort it.
func (m *Machine) Commit(h Job, now clock.Instant) Status {
	m.tick(now)
	j, i := m.jobAt(h, jobBuilding)
	if j == nil {
		return Stale
	}
	if m.closed {
		return Closed
	}
	if j.sources == 0 || j.mapped != m.sourcesOf(i)[0].how.set.all {
		return m.invalid("a map has no source")
	}
	descs := uint64(0)
	for k := range m.sourcesOf(i) {
		descs += m.plan(j, &m.sourcesOf(i)[k])
	}
	if descs == 0 {
		return Empty
	}
	for k := range m.sourcesOf(i) {
		if s := &m.sourcesOf(i)[k]; s.leftAll == 0 && len(s.notif) > 0 {
			return m.invalid("a source has a notification but no block to read") // without a part to ride on it would be lost
		}
	}
	j.state = jobRunning
	j.deadline = m.now.Add(m.cfg.ReadTimeout) // each part that is posted moves it: only one that finds no room waits out this one
	m.push(timerList, i)
	for k := range m.sourcesOf(i) {
		if s := &m.sourcesOf(i)[k]; s.leftAll == 0 {
			m.dataDone(i, s) // no block of its regions is wanted: only its fence is
		}
	}
	m.enlist(postList, i)
	m.Counters.Reads++
	return OK
}

// Abort forgets a read that was not committed. There is no outcome.
func (m *Machine) Abort(h Job) Status {
	j, i := m.jobAt(h, jobBuilding)
	if j == nil {
		if j, i = m.jobAt(h, jobBroken); j == nil {
			return Stale
		}
	}
	m.freeRuns(j)
	m.free(i)
	return OK
}

// Cancel ends a committed read now with the outcome ReadCancelled. Stale: the outcome is known already and stands.
func (m *Machine) Cancel(h Job, now clock.Instant) Status { return m.End(h, record.ReadCancelled, now) }

// End is Cancel with the caller's own reason, record.ReadOK excepted: the engine is lost, the lease is gone, the time guard broke.
// What is in flight goes on writing: the outcome says BlocksHeld, NextBack follows.
func (m *Machine) End(h Job, verdict uint8, now clock.Instant) Status {
	m.tick(now)
	if verdict == record.ReadOK || verdict > record.ReadLost {
		return m.invalid("a read cannot be ended with this verdict")
	}
	j, i := m.jobAt(h, jobRunning)
	if j == nil {
		return Stale
	}
	m.report(i, verdict)
	return OK
}
