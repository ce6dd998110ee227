package record

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/kvlease/kvlease/internal/require"
)

// field is one line of cmd/libkvlease/test/offsets.c.
type field struct {
	name         string
	offset, size uintptr
}

// goLayout is what the Go side takes the shared memory for, under C's names. A row's second word is one word here and
// two halves there.
func goLayout() []field {
	var (
		s Slot
		t Track
		h BoardHeader
		r Row
		c Control
		e Expect
		g Grant
		q TrackReq
		n Run
		d Read
		v Event

		en Engine
		eg EngineGone
		bl Blob
		pa Pause
		er Era
		fu Full
		dr Drain
		po Poison
		hl HostLeaves
		rd ReaderDead
		rh ReaderHeard
		tr Trouble
		rs RankState
	)
	return []field{
		{"slot", 0, unsafe.Sizeof(s)}, {"slot.state", unsafe.Offsetof(s.State), 8}, {"slot.next", unsafe.Offsetof(s.Next), 4},
		{"slot.flags", unsafe.Offsetof(s.Flags), 4}, {"slot.user", unsafe.Offsetof(s.User), 8}, {"slot.blocks", unsafe.Offsetof(s.Blocks), 4},
		{"slot.id_len", unsafe.Offsetof(s.IDLen), 2}, {"slot.reason", unsafe.Offsetof(s.Reason), 2}, {"slot.id", unsafe.Offsetof(s.ID), unsafe.Sizeof(s.ID)},
		{"track_slot", 0, unsafe.Sizeof(t)}, {"track_slot.state", unsafe.Offsetof(t.State), 8}, {"track_slot.next", unsafe.Offsetof(t.Next), 4},
		{"track_slot.producer", unsafe.Offsetof(t.Producer), 4},
		{"board_header", 0, unsafe.Sizeof(h)}, {"board_header.version", unsafe.Offsetof(h.Version), 4}, {"board_header.flags", unsafe.Offsetof(h.Flags), 4},
		{"board_header.duration_ns", unsafe.Offsetof(h.DurationNs), 8}, {"board_header.base", unsafe.Offsetof(h.Base), 8},
		{"board_header.epoch", unsafe.Offsetof(h.Epoch), 8}, {"board_header.zero", unsafe.Offsetof(h.Zero), unsafe.Sizeof(h.Zero)},
		{"row", 0, unsafe.Sizeof(r)}, {"row.fence", unsafe.Offsetof(r.Fence), 8}, {"row.deadline_us", unsafe.Offsetof(r.DeadlineUs), 8},
		{"row.generation", unsafe.Offsetof(r.GenBeats), 4}, {"row.beats", unsafe.Offsetof(r.GenBeats) + 4, 4}, {"row.zero", unsafe.Offsetof(r.Zero), 8},
		{"control", 0, unsafe.Sizeof(c)}, {"control.magic", unsafe.Offsetof(c.Magic), 4}, {"control.version", unsafe.Offsetof(c.Version), 4},
		{"control.lease_free", unsafe.Offsetof(c.LeaseFree), 4}, {"control.track_free", unsafe.Offsetof(c.TrackFree), 4},
		{"control.poisoned", unsafe.Offsetof(c.Poisoned), 4}, {"control.draining", unsafe.Offsetof(c.Draining), 4},
		{"control.asleep", unsafe.Offsetof(c.Asleep), 4}, {"control.wake_fd", unsafe.Offsetof(c.WakeFd), 4},
		{"control.event_fd", unsafe.Offsetof(c.EventFd), 4}, {"control.held", unsafe.Offsetof(c.Held), 4},
		{"control.poison_ns", unsafe.Offsetof(c.PoisonNs), 8}, {"control.pass_ns", unsafe.Offsetof(c.PassNs), 8},
		{"control.pause_until_ns", unsafe.Offsetof(c.PauseUntilNs), 8}, {"control.steps", unsafe.Offsetof(c.Steps), 8},
		{"control.duration_ns", unsafe.Offsetof(c.DurationNs), 8}, {"control.stepping", unsafe.Offsetof(c.Stepping), 4},
		{"control.rows_closed", unsafe.Offsetof(c.RowsClosed), 4}, {"control.era", unsafe.Offsetof(c.Era), 8},
		{"control.epoch", unsafe.Offsetof(c.Epoch), 8}, {"control.secret", unsafe.Offsetof(c.Secret), 16}, {"control.long_at_ns", unsafe.Offsetof(c.LongAtNs), 8},
		{"control.refused_ring", unsafe.Offsetof(c.RefusedRing), 8}, {"control.refused_table", unsafe.Offsetof(c.RefusedTable), 8},
		{"rec_expect", 0, unsafe.Sizeof(e)}, {"rec_expect.lease", unsafe.Offsetof(e.Lease), 8}, {"rec_expect.id_len", unsafe.Offsetof(e.IDLen), 4},
		{"rec_expect.zero", unsafe.Offsetof(e.Zero), 4},
		{"rec_grant", 0, unsafe.Sizeof(g)}, {"rec_grant.lease", unsafe.Offsetof(g.Lease), 8}, {"rec_grant.key", unsafe.Offsetof(g.Key), 8},
		{"rec_grant.user", unsafe.Offsetof(g.User), 8}, {"rec_grant.ttl_ns", unsafe.Offsetof(g.TTLNs), 8}, {"rec_grant.said_ns", unsafe.Offsetof(g.SaidNs), 8},
		{"rec_grant.ready_event", unsafe.Offsetof(g.ReadyEvent), 8}, {"rec_grant.blocks", unsafe.Offsetof(g.Blocks), 4},
		{"rec_grant.tokens", unsafe.Offsetof(g.Tokens), 4}, {"rec_grant.flags", unsafe.Offsetof(g.Flags), 4}, {"rec_grant.id_len", unsafe.Offsetof(g.IDLen), 4},
		{"rec_track", 0, unsafe.Sizeof(q)}, {"rec_track.track", unsafe.Offsetof(q.Track), 8}, {"rec_track.engine", unsafe.Offsetof(q.Engine), 8},
		{"rec_track.epoch", unsafe.Offsetof(q.Epoch), 8}, {"rec_track.key", unsafe.Offsetof(q.Key), 8}, {"rec_track.user", unsafe.Offsetof(q.User), 8},
		{"rec_track.said_ns", unsafe.Offsetof(q.SaidNs), 8}, {"rec_track.expires_ns", unsafe.Offsetof(q.ExpiresNs), 8},
		{"rec_track.left_ns", unsafe.Offsetof(q.LeftNs), 8}, {"rec_track.slot", unsafe.Offsetof(q.Slot), 4},
		{"rec_track.generation", unsafe.Offsetof(q.Generation), 4}, {"rec_track.native", unsafe.Offsetof(q.Native), 4},
		{"rec_track.remote_len", unsafe.Offsetof(q.RemoteLen), 2}, {"rec_track.local_len", unsafe.Offsetof(q.LocalLen), 2},
		{"run", 0, unsafe.Sizeof(n)}, {"run.group", unsafe.Offsetof(n.Group), 4}, {"run.local", unsafe.Offsetof(n.Local), 4},
		{"run.remote", unsafe.Offsetof(n.Remote), 4}, {"run.n", unsafe.Offsetof(n.N), 4},
		{"rec_read", 0, unsafe.Sizeof(d)}, {"rec_read.track", unsafe.Offsetof(d.Track), 8}, {"rec_read.part", unsafe.Offsetof(d.Part), 4},
		{"rec_read.parts", unsafe.Offsetof(d.Parts), 4}, {"rec_read.n", unsafe.Offsetof(d.N), 4}, {"rec_read.zero", unsafe.Offsetof(d.Zero), 4},
		{"event", 0, unsafe.Sizeof(v)}, {"event.kind", unsafe.Offsetof(v.Kind), 2}, {"event.reserved", unsafe.Offsetof(v.Reserved), 2},
		{"event.flags", unsafe.Offsetof(v.Flags), 4}, {"event.status", unsafe.Offsetof(v.Status), 4}, {"event.rank", unsafe.Offsetof(v.Rank), 4},
		{"event.handle", unsafe.Offsetof(v.Handle), 8}, {"event.user", unsafe.Offsetof(v.User), 8}, {"event.value0", unsafe.Offsetof(v.Value0), 8},
		{"event.value1", unsafe.Offsetof(v.Value1), 8}, {"event.time_ns", unsafe.Offsetof(v.TimeNs), 8}, {"event.reasons", unsafe.Offsetof(v.Reasons), 8},
		{"rec_engine", 0, unsafe.Sizeof(en)}, {"rec_engine.engine", unsafe.Offsetof(en.Engine), 8}, {"rec_engine.user", unsafe.Offsetof(en.User), 8},
		{"rec_engine.tp_size", unsafe.Offsetof(en.TP), 4}, {"rec_engine.pp_size", unsafe.Offsetof(en.PP), 4},
		{"rec_engine.id_len", unsafe.Offsetof(en.IDLen), 4}, {"rec_engine.zero", unsafe.Offsetof(en.Zero), 4},
		{"rec_engine_gone", 0, unsafe.Sizeof(eg)}, {"rec_engine_gone.engine", unsafe.Offsetof(eg.Engine), 8},
		{"rec_blob", 0, unsafe.Sizeof(bl)}, {"rec_blob.kind", unsafe.Offsetof(bl.Kind), 4}, {"rec_blob.rank", unsafe.Offsetof(bl.Rank), 4},
		{"rec_blob.handle", unsafe.Offsetof(bl.Handle), 8}, {"rec_blob.total", unsafe.Offsetof(bl.Total), 4}, {"rec_blob.offset", unsafe.Offsetof(bl.Offset), 4},
		{"rec_pause", 0, unsafe.Sizeof(pa)}, {"rec_pause.left_ns", unsafe.Offsetof(pa.LeftNs), 8},
		{"rec_era", 0, unsafe.Sizeof(er)}, {"rec_era.era", unsafe.Offsetof(er.Era), 8}, {"rec_era.epoch", unsafe.Offsetof(er.Epoch), 8},
		{"rec_era.secret", unsafe.Offsetof(er.Secret), 16}, {"rec_era.duration_ns", unsafe.Offsetof(er.DurationNs), 8},
		{"rec_full", 0, unsafe.Sizeof(fu)}, {"rec_full.incarnation", unsafe.Offsetof(fu.Incarnation), 8}, {"rec_full.mark", unsafe.Offsetof(fu.Mark), 4},
		{"rec_full.zero", unsafe.Offsetof(fu.Zero), 4},
		{"rec_drain", 0, unsafe.Sizeof(dr)}, {"rec_drain.left_ns", unsafe.Offsetof(dr.LeftNs), 8},
		{"rec_poison", 0, unsafe.Sizeof(po)}, {"rec_poison.zero", unsafe.Offsetof(po.Zero), 8},
		{"rec_host_leaves", 0, unsafe.Sizeof(hl)}, {"rec_host_leaves.zero", unsafe.Offsetof(hl.Zero), 8},
		{"rec_reader_dead", 0, unsafe.Sizeof(rd)}, {"rec_reader_dead.reader", unsafe.Offsetof(rd.Reader), 8}, {"rec_reader_dead.epoch", unsafe.Offsetof(rd.Epoch), 8},
		{"rec_reader_heard", 0, unsafe.Sizeof(rh)}, {"rec_reader_heard.reader", unsafe.Offsetof(rh.Reader), 8}, {"rec_reader_heard.epoch", unsafe.Offsetof(rh.Epoch), 8},
		{"rec_reader_heard.nonce", unsafe.Offsetof(rh.Nonce), 16}, {"rec_reader_heard.left", unsafe.Offsetof(rh.Left), 4}, {"rec_reader_heard.zero", unsafe.Offsetof(rh.Zero), 4},
		{"rec_trouble", 0, unsafe.Sizeof(tr)}, {"rec_trouble.engine", unsafe.Offsetof(tr.Engine), 8}, {"rec_trouble.for_ns", unsafe.Offsetof(tr.ForNs), 8},
		{"rec_rank_state", 0, unsafe.Sizeof(rs)}, {"rec_rank_state.flags", unsafe.Offsetof(rs.Flags), 4}, {"rec_rank_state.held", unsafe.Offsetof(rs.Held), 4},
		{"rec_rank_state.tracked", unsafe.Offsetof(rs.Tracked), 4}, {"rec_rank_state.reads", unsafe.Offsetof(rs.Reads), 4},
		{"rec_rank_state.era", unsafe.Offsetof(rs.Era), 8}, {"rec_rank_state.incarnation", unsafe.Offsetof(rs.Incarnation), 8},
		{"rec_rank_state.registrations", unsafe.Offsetof(rs.Registrations), 8}, {"rec_rank_state.steps", unsafe.Offsetof(rs.Steps), 8},
	}
}

var goConstants = []struct {
	name  string
	value uint64
}{
	{"KVL_NONE", None}, {"KVL_S_FREE", Free}, {"KVL_S_EXPECTED", Expected}, {"KVL_S_GRANTED", Granted}, {"KVL_S_ENDED", Ended},
	{"KVL_S_TRACKED", Tracked}, {"KVL_S_READING", Reading}, {"KVL_S_LAPSED", Lapsed}, {"KVL_S_MASK", Mask}, {"KVL_S_CANCEL", SaidCancel}, {"KVL_S_REVOKE", SaidRevoke},
	{"KVL_SF_UNCHECKED", Unchecked}, {"KVL_SF_UNREADY", Unready}, {"KVL_GRANT_FIXED", GrantFixed}, {"KVL_BF_DRAINING", BoardDraining}, {"KVL_BF_CLOSED", BoardClosed},
	{"KVL_REC_EXPECT", TagExpect}, {"KVL_REC_GRANT", TagGrant}, {"KVL_REC_CANCEL", TagCancel}, {"KVL_REC_REVOKE", TagRevoke},
	{"KVL_REC_PRESSURE", TagPressure}, {"KVL_REC_TRACK", TagTrack}, {"KVL_REC_UNTRACK", TagUntrack}, {"KVL_REC_REJECT", TagReject},
	{"KVL_REC_READ", TagRead}, {"KVL_REC_ENGINE", TagEngine}, {"KVL_REC_ENGINE_GONE", TagEngineGone}, {"KVL_REC_BLOB", TagBlob},
	{"KVL_REC_PAUSE", TagPause}, {"KVL_REC_ERA", TagEra}, {"KVL_REC_FULL", TagFull}, {"KVL_REC_DRAIN", TagDrain}, {"KVL_REC_POISON", TagPoison},
	{"KVL_REC_HOST_LEAVES", TagHostLeaves}, {"KVL_REC_READER_DEAD", TagReaderDead}, {"KVL_REC_READER_HEARD", TagReaderHeard}, {"KVL_REC_EVENT", TagEvent}, {"KVL_REC_RETIRED", TagRetired}, {"KVL_REC_STATE", TagState}, {"KVL_REC_TROUBLE", TagTrouble},
	{"KVL_BLOB_PEER", BlobPeer}, {"KVL_BLOB_OWN", BlobOwn}, {"KVL_BLOB_PIECE_MAX", BlobPieceMax}, {"KVL_FULL_START", FullStart},
	{"KVL_FULL_END", FullEnd}, {"KVL_RS_REGISTERED", RankRegistered}, {"KVL_RS_POISONED", RankPoisoned}, {"KVL_RS_DRAINED", RankDrained},
	{"KVL_READ_RUNS_MAX", RunsMax}, {"KVL_ID_MAX", IDMax}, {"KVL_LAYOUT_VERSION", LayoutVersion},
	{"KVL_EV_FREED", EvFreed}, {"KVL_EV_READ_DONE", EvReadDone}, {"KVL_EV_READ_FAILED", EvReadFailed}, {"KVL_EV_BLOCKS_BACK", EvBlocksBack},
	{"KVL_EV_LEASE_GONE", EvLeaseGone}, {"KVL_EV_AT_RISK", EvAtRisk}, {"KVL_EV_ENGINE_UP", EvEngineUp}, {"KVL_EV_ENGINE_DOWN", EvEngineDown},
	{"KVL_EV_POISONED", EvPoisoned}, {"KVL_EV_EXPECT_LAPSED", EvExpectLapsed}, {"KVL_EV_RANK_UP", EvRankUp}, {"KVL_EV_RANK_DOWN", EvRankDown}, {"KVL_EV_HOST_DOWN", EvHostDown}, {"KVL_EV_ENGINE_DRAINS", EvEngineDrains},
	{"KVL_EVF_BLOCKS_HELD", FlagBlocksHeld},
	{"KVL_FREED_COMPLETED", FreedCompleted}, {"KVL_FREED_RELEASED", FreedReleased}, {"KVL_FREED_REVOKED", FreedRevoked},
	{"KVL_FREED_EXPIRED", FreedExpired}, {"KVL_FREED_POISONED", FreedPoisoned}, {"KVL_FREED_DUPLICATE", FreedDuplicate}, {"KVL_FREED_CLOSED", FreedClosed}, {"KVL_FREED_LOST", FreedLost},
	{"KVL_READ_OK", ReadOK}, {"KVL_READ_STALE", ReadStale}, {"KVL_READ_UNPROVEN", ReadUnproven}, {"KVL_READ_FAILED", ReadFailed},
	{"KVL_READ_TIMEOUT", ReadTimeout}, {"KVL_READ_CANCELLED", ReadCancelled}, {"KVL_READ_LOST", ReadLost},
}

func TestTheMemoryIsWhatTheCLibraryTakesItFor(t *testing.T) {
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	if _, err := exec.LookPath(cc); err != nil {
		require.Skip(t, "cc", err.Error())
	}
	program := filepath.Join(t.TempDir(), "offsets")
	var errText bytes.Buffer
	build := exec.Command(cc, "-std=c11", "-o", program, "../../cmd/libkvlease/test/offsets.c")
	build.Stderr = &errText
	if err := build.Run(); err != nil {
		t.Fatalf("%v: %s", err, errText.String())
	}
	out, err := exec.Command(program).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		t.Fatalf("offsets: %v", exit)
	} else if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, f := range goLayout() {
		if strings.Contains(f.name, ".") {
			want = append(want, fmt.Sprintf("%s %d %d", f.name, f.offset, f.size))
		} else {
			want = append(want, fmt.Sprintf("%s %d", f.name, f.size))
		}
	}
	for _, c := range goConstants {
		want = append(want, fmt.Sprintf("=%s %d", c.name, c.value))
	}
	if diff := cmp.Diff(want, strings.Split(strings.TrimSpace(string(out)), "\n")); diff != "" {
		t.Errorf("layout (-go +c):\n%s", diff)
	}
}
