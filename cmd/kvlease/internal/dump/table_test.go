package dump

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/core/coretest"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/watch"
	"github.com/kvlease/kvlease/internal/require"
)

// bench is a lease table in this process, without a context around it.
type bench struct {
	mem   lease.Memory
	table *lease.Table
	snap  watch.Snapshot
}

func newBench(t *testing.T, slots int) *bench {
	t.Helper()
	b := &bench{}
	control := make([]byte, record.CtlLen)
	board := make([]byte, record.BoardHeadLen+slots*record.RowLen)
	header, rows := record.Board(board)
	b.mem = lease.Memory{Control: record.AsControl(control), Slots: make([]record.Slot, slots), Header: header, Rows: rows}
	b.mem.Control.Magic, b.mem.Control.Version, b.mem.Control.LeaseFree = record.ControlMagic, record.LayoutVersion, record.None
	table, err := lease.New(lease.Config{Duration: 30 * time.Second, StockPeers: true, StockLinger: 20 * time.Second}, b.mem, [2]uint64{1, 2}, 1<<40, 7)
	if err != nil {
		t.Fatal(err)
	}
	b.table = table
	b.snap.Head = watch.Head{PID: os.Getpid(), Role: "engine", Engine: "P", Stepped: core.Now()}
	places := table.Places()
	for _, k := range []struct {
		name  string
		place record.Place
	}{
		{"control", record.Place{Addr: record.Addr(control), Stride: uint64(record.CtlLen), Count: 1}}, {"slots", record.PlaceOf(b.mem.Slots)}, {"rows", record.PlaceOf(rows[:slots])},
		{"hot", places.Hot}, {"granted", places.Granted}, {"index", places.Index}, {"long_ids", places.LongIDs},
	} {
		b.snap.Tables = append(b.snap.Tables, watch.Table{Name: k.name, Addr: k.place.Addr, Stride: k.place.Stride, Count: k.place.Count})
	}
	return b
}

func (b *bench) set(name string, change func(k *watch.Table)) {
	for i := range b.snap.Tables {
		if b.snap.Tables[i].Name == name {
			change(&b.snap.Tables[i])
		}
	}
}

func TestASlotThatChangesWithEveryLookIsMarkedTorn(t *testing.T) {
	for _, tc := range []struct {
		changes int // of slot 1, one after each reading
		torn    bool
	}{{0, false}, {1, false}, {2 * triesMax, false}, {2*triesMax + 1, true}} {
		b := newBench(t, 4096)
		for i := range 3 {
			b.mem.Slots[i].State = record.State(5, record.Granted)
		}
		table, err := openTable(os.Getpid(), &b.snap)
		if err != nil {
			t.Fatal(err)
		}
		left, use := tc.changes, uint32(6)
		table.peek = func(pid int, parts ...part) error {
			err := peek(pid, parts...)
			if left > 0 {
				left--
				atomic.StoreUint64(&b.mem.Slots[1].State, record.State(use, record.Granted))
				use++
			}
			return err
		}
		list, err := table.leases()
		if err != nil || len(list) != 3 || list[0].Torn || list[2].Torn {
			t.Fatalf("%d changes: %+v, %v", tc.changes, list, err)
		}
		if list[1].Torn != tc.torn || (table.torn == 1) != tc.torn {
			t.Errorf("%d changes: torn is %v, %d of all", tc.changes, list[1].Torn, table.torn)
		}
	}
}

func TestAPageThatNamesOtherMemoryIsRefused(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(b *bench)
		is     error
	}{
		{"no table at all", func(b *bench) { b.snap.Tables = nil }, nil},
		{"slots of another size", func(b *bench) { b.set("slots", func(k *watch.Table) { k.Stride = 160 }) }, watch.ErrVersion},
		{"hot entries of another size", func(b *bench) { b.set("hot", func(k *watch.Table) { k.Stride = 40 }) }, watch.ErrVersion},
		{"more slots than there can be", func(b *bench) { b.set("slots", func(k *watch.Table) { k.Count = 1 << 40 }) }, watch.ErrVersion},
		{"past the end of all addresses", func(b *bench) { b.set("slots", func(k *watch.Table) { k.Addr = ^uint64(0) - 64 }) }, watch.ErrVersion},
		{"fewer rows than slots", func(b *bench) { b.set("rows", func(k *watch.Table) { k.Count = 1 }) }, watch.ErrVersion},
		{"memory that is not there", func(b *bench) { b.set("control", func(k *watch.Table) { k.Addr = 4096 }) }, errMoved},
		{"a control page of somebody else", func(b *bench) { b.mem.Control.Magic = 7 }, errMoved},
		{"a control page of another layout", func(b *bench) { b.mem.Control.Version = 99 }, watch.ErrVersion},
		{"slots that are not there", func(b *bench) { b.set("slots", func(k *watch.Table) { k.Addr = 1 << 46 }) }, errMoved},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, 64)
			tc.change(b)
			table, err := openTable(os.Getpid(), &b.snap)
			if err == nil {
				_, err = table.leases()
			}
			if err == nil || tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("%v, want %v", err, tc.is)
			}
		})
	}
}

// opened is a context over loopback that the test steps.
func opened(t *testing.T, config string) (*core.Core, *host.Host) {
	t.Helper()
	c, mem := coretest.Open(t, config, nil)
	h, err := host.New(mem, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c, h
}

func TestWhatTheStepHasNotTakenYetIsShownAsSubmitted(t *testing.T) {
	dir := require.Shm(t)
	c, h := opened(t, fmt.Sprintf(`{"engine_id":"P","transport":"loopback","stats_page":%q}`, dir))
	grant := func(id string) record.Handle {
		l, err := h.Grant(host.Grant{ID: []byte(id), Blocks: 3, User: 9}, core.Now())
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	step := func() {
		if err := c.Step(); err != nil {
			t.Fatal(err)
		}
	}
	first := grant("before")
	step()
	if err := h.Revoke(first); err != nil {
		t.Fatal(err)
	}
	look := func() *Context {
		t.Helper()
		r, err := Run(&Config{PID: os.Getpid(), Dir: dir})
		if err != nil || len(r.Contexts) != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
		return r.Contexts[0]
	}
	if l := look().Leases; len(l) != 1 || l[0].State != "held" || l[0].ID != "before" || strings.Join(l[0].Marks, ", ") != "revoke said, unchecked" {
		t.Errorf("held, and revoke is on its way: %+v", l)
	}
	if err := h.Cancel(first); err != nil {
		t.Fatal(err)
	}
	step()
	var events [8]record.Event
	for n := 0; n == 0; n = h.Poll(events[:], core.Now()) {
		step()
	}
	second := grant("after")
	if second.Slot() != first.Slot() {
		t.Fatalf("another slot: %x after %x", second, first)
	}
	expected, err := h.Expect([]byte("soon"))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range look().Leases {
		if l.State != "submitted" || l.ID != "" || l.Beats != 0 || l.SlackNs != nil {
			t.Errorf("a record that no step has taken: %+v", l)
		}
	}
	step()
	got := map[string]Lease{}
	ctx := look()
	for _, l := range ctx.Leases {
		got[l.State] = l
	}
	if l := got["held"]; l.ID != "after" || l.Use != second.Use() || l.Reader != "nobody yet" || l.User != "9" || l.SlackNs == nil {
		t.Errorf("held: %+v", l)
	}
	if l := got["expected"]; l.ID != "soon" || l.Slot != expected.Slot() || l.SlackNs == nil {
		t.Errorf("expected: %+v", l)
	}
	var out bytes.Buffer
	ctx.write(&out, 20)
	if !strings.Contains(out.String(), "2 slots in use in memory: 1 held, 1 expected; 2 of 16384 were ever used") {
		t.Errorf("%s", out.String())
	}
}

func TestAHostSaysThatItsRanksKnowTheRest(t *testing.T) {
	dir := require.Shm(t)
	c, h := opened(t, fmt.Sprintf(`{"engine_id":"P","role":"host","tp_size":2,"carrier":"process","transport":"loopback","stats_page":%q}`, dir))
	long := strings.Repeat("long", 60)
	for _, id := range []string{"r1", long} {
		if _, err := h.Grant(host.Grant{ID: []byte(id), Blocks: 3, User: 9}, core.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.Expect([]byte("x" + long)); err != nil {
		t.Fatal(err)
	}
	if err := c.Step(); err != nil {
		t.Fatal(err)
	}
	r, err := Run(&Config{PID: os.Getpid(), Dir: dir})
	if err != nil || len(r.Contexts) != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	k := r.Contexts[0]
	if k.Role != "host" || !k.Table || !strings.Contains(k.Why, "its ranks'") || len(k.Leases) != 3 || k.Leases[0].ID != "r1" || k.Leases[1].ID != long || k.Leases[2].ID != "x"+long || k.Leases[0].Blocks != 3 || k.Leases[0].SlackNs != nil || k.Leases[0].Reader != "" {
		t.Errorf("%+v", k)
	}
}

func TestWhatAStockReaderWasGivenIsReadFromTheIndex(t *testing.T) {
	b := newBench(t, 64)
	b.snap.Age = 0
	now := b.snap.Stepped
	grant := func(slot uint32, id string) {
		b.mem.Slots[slot].State = record.State(0, record.Granted)
		if o := b.table.Grant(&record.Grant{Lease: record.NewHandle(slot, 0), Blocks: 2}, []byte(id), now.Add(-40*time.Second)); o != lease.Applied {
			t.Fatal(o)
		}
	}
	grant(0, "beats")
	grant(1, "lingers")
	grant(2, "quiet")
	var outcomes [1]lease.Outcome
	b.table.RenewIDs([][]byte{[]byte("lingers")}, []byte("agent-d"), now.Add(-30*time.Second), outcomes[:])
	b.table.RenewIDs([][]byte{[]byte("beats")}, []byte("agent-d"), now.Add(-5*time.Second), outcomes[:])
	for left := 3 * time.Second; left >= 0; left -= time.Second / 10 { // no step was held up: two looks are enough
		b.table.Sweep(now.Add(-left), time.Second/10, 2, 2)
	}
	table, err := openTable(os.Getpid(), &b.snap)
	if err != nil {
		t.Fatal(err)
	}
	list, err := table.leases()
	if err != nil || len(list) != 3 {
		t.Fatalf("%+v, %v", list, err)
	}
	if l := list[0]; l.State != "held" || l.SlackNs == nil || *l.SlackNs < int64(14*time.Second) || *l.SlackNs > int64(18*time.Second) || l.Beats != 1 || l.account < 2 {
		t.Errorf("renewed 5 s ago for 20 s and up to an eighth of that: %+v", l)
	}
	if l := list[1]; l.State != "lingers" || l.SlackNs != nil {
		t.Errorf("past its deadline, kept for a stock reader: %+v", l)
	}
	if l := list[2]; l.State != "ended" || l.Reason != "expired" {
		t.Errorf("never named: %+v", l)
	}
	sortLeases(list)
	if list[0].State != "lingers" || list[1].State != "held" || list[2].State != "ended" {
		t.Errorf("the order is %s, %s, %s", list[0].State, list[1].State, list[2].State)
	}
}
