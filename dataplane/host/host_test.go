package host_test

import (
	"errors"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/ringbuf"
)

// rig is a host side whose core is the test.
type rig struct {
	*testing.T
	mem  *record.Memory
	host *host.Host
	ring *ringbuf.Consumer
}

func newRig(t *testing.T) *rig {
	mem, err := core.NewMemory(core.Sizes{Leases: 256, Tracks: 4, Producers: 1, RingBytes: 1 << 16, OverflowBytes: 1 << 16, EventsBytes: 1 << 12, LandingBytes: 64, BoardBytes: 1 << 14})
	if err != nil {
		t.Fatal(err)
	}
	h, err := host.New(mem, nil)
	if err != nil {
		t.Fatal(err)
	}
	ring, err := ringbuf.NewConsumer(mem.Rings[0])
	if err != nil {
		t.Fatal(err)
	}
	return &rig{T: t, mem: mem, host: h, ring: ring}
}

func (r *rig) next(tag uint32) []byte {
	got, rec, ok := r.ring.Next()
	if !ok || got != tag {
		r.Fatalf("next record: tag %d, %v, want tag %d", got, ok, tag)
	}
	return rec
}

func (r *rig) grant(g host.Grant) (record.Handle, record.Grant) {
	l, err := r.host.Grant(g, 1000)
	if err != nil {
		r.Fatal(err)
	}
	rec, _, ok := record.AsGrant(r.next(record.TagGrant))
	if !ok {
		r.Fatal("not a grant")
	}
	return l, *rec
}

func TestAFixedGrantSaysSoAndNeedsItsTerm(t *testing.T) {
	r := newRig(t)
	if _, err := r.host.Grant(host.Grant{ID: []byte("a"), Fixed: true}, 1000); !errors.Is(err, host.ErrInvalid) {
		t.Errorf("a fixed grant without a term: %v, want ErrInvalid", err)
	}
	_, fixed := r.grant(host.Grant{ID: []byte("a"), Fixed: true, TTL: time.Second})
	_, plain := r.grant(host.Grant{ID: []byte("b"), TTL: time.Second})
	if fixed.Flags != record.GrantFixed || plain.Flags != 0 {
		t.Errorf("flags of a fixed grant %#x, of a plain one %#x", fixed.Flags, plain.Flags)
	}
}

func TestKeysAreOfTheEraInWhichTheyAreAskedFor(t *testing.T) {
	r := newRig(t)
	l, first := r.grant(host.Grant{ID: []byte("a")})
	epoch, key, ok := r.host.Era(l)
	if !ok || epoch != r.mem.Epoch || key != first.Key || key != r.host.Key(l) || key != lease.Key(r.mem.Secret, l.Slot(), l.Use()) {
		t.Errorf("the first era: epoch %#x, key %#x, %v; the grant says %#x", epoch, key, ok, first.Key)
	}
	r.mem.Control.BeginEra(7, [2]uint64{1, 2})
	if epoch, key, ok = r.host.Era(l); !ok || epoch != 7 || key != lease.Key([2]uint64{1, 2}, l.Slot(), l.Use()) {
		t.Errorf("the second era: epoch %#x, key %#x, %v", epoch, key, ok)
	}
	if _, second := r.grant(host.Grant{ID: []byte("b")}); second.Key == first.Key {
		t.Error("a grant of the second era has a key of the first")
	}
	r.mem.Control.Era++ // the core stands between its stores
	if _, err := r.host.Grant(host.Grant{ID: []byte("c")}, 1000); !errors.Is(err, host.ErrBusy) {
		t.Errorf("a grant while the era changes: %v, want ErrBusy", err)
	}
	if _, _, ok := r.host.Era(l); ok {
		t.Error("half an era was given out")
	}
}

func TestATrackCarriesTheEndOfAFixedLease(t *testing.T) {
	r := newRig(t)
	if _, err := r.host.Track(1, &host.Remote{ID: []byte("a"), ExpiresNs: 77}, nil, 0, 1000); err != nil {
		t.Fatal(err)
	}
	req, _, _, ok := record.AsTrack(r.next(record.TagTrack))
	if !ok || req.ExpiresNs != 77 || req.LeftNs != 0 {
		t.Errorf("track = %+v, %v", req, ok)
	}
}

// A broken context's ends: at once where every reader checks the fence, but for a host context, whose rows are elsewhere, one
// duration later and once they are closed; the reason is each rank's.
func TestEndsOfABrokenContextNameTheReasonOfEachRank(t *testing.T) {
	for _, tc := range []struct {
		name    string
		ranks   int
		checked bool
		soon    int // events at once, EvPoisoned among them
		reasons uint64
	}{
		{name: "one rank, its readers check the fence", checked: true, soon: 2, reasons: 5},
		{name: "one rank, a reader does not", soon: 1, reasons: 5},
		{name: "a host of two ranks", ranks: 2, checked: true, soon: 1, reasons: 0x55},
		{name: "a host of 20 ranks", ranks: 20, checked: true, soon: 1, reasons: 0x5555555555555555},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			r.host.HostOf(tc.ranks)
			l, _ := r.grant(host.Grant{ID: []byte("a"), User: 9})
			if tc.checked {
				r.mem.Slots[l.Slot()].Flags = 0
			}
			r.mem.Control.DurationNs, r.mem.Control.PoisonNs, r.mem.Control.Poisoned = 100, 1000, 1
			var out [4]record.Event
			r.mem.Control.RowsClosed = 1
			if n := r.host.Poll(out[:], 1099); n != tc.soon {
				t.Fatalf("%d events before the duration has passed, want %d", n, tc.soon)
			}
			if tc.ranks > 0 {
				r.mem.Control.RowsClosed = 0
				if n := r.host.Poll(out[tc.soon:], 9999); n != 0 {
					t.Fatalf("told while rows of a rank are open: %+v", out[tc.soon:][:n])
				}
				r.mem.Control.RowsClosed = 1
			}
			n := tc.soon + r.host.Poll(out[tc.soon:], clock.Instant(1100))
			if n != 2 || out[0].Kind != record.EvPoisoned || out[1].Kind != record.EvFreed || out[1].Handle != uint64(l) || out[1].User != 9 {
				t.Fatalf("events: %+v", out[:n])
			}
			if out[1].Reasons != tc.reasons || out[0].Reasons != 0 {
				t.Errorf("reasons %#x, want %#x", out[1].Reasons, tc.reasons)
			}
		})
	}
}

func TestGrantsAndKeysAllocateNothing(t *testing.T) {
	r := newRig(t)
	id := []byte("request")
	if n := testing.AllocsPerRun(100, func() {
		l, err := r.host.Grant(host.Grant{ID: id, Fixed: true, TTL: time.Second}, 1000)
		if err == nil {
			r.host.Era(l)
		}
		r.ring.Next()
		r.ring.Release()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
