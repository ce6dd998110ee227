package stream

import (
	"errors"
	"fmt"
	"testing"

	"github.com/kvlease/kvlease/dataplane/record"
)

func take(t testing.TB, c Carrier) []byte {
	t.Helper()
	var b [MessageBytesMax]byte
	n, err := c.(Delta).Take(b[:])
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte(nil), b[:n]...)
}

func put(t testing.TB, c Carrier, msg []byte) {
	t.Helper()
	if err := c.(Delta).Put(msg); err != nil {
		t.Fatal(err)
	}
}

func TestARankThatWasStartedAgainUnderTheSameHostIsRefused(t *testing.T) {
	g := attached(t, KindDelta)
	again := g.openRank(0, -1)
	if err := g.h.(Delta).Put(take(t, again)); !errors.Is(err, ErrTaken) {
		t.Errorf("hello of a rank that was started again: %v, want %v", err, ErrTaken)
	}
	g.h.Reserve(7, 8)
	g.h.Publish()
	msg := take(t, g.h)
	if err := again.(Delta).Put(msg); !errors.Is(err, ErrTaken) {
		t.Errorf("its message for the first: %v, want %v", err, ErrTaken)
	}
	put(t, g.r, msg)
	if tag, _, _ := g.r.Next(); tag != 7 || again.State() != Waiting {
		t.Errorf("the first got tag %d, the second is %v", tag, again.State())
	}
}

func TestAHostThatWasStartedAgainIsRefusedByAnOldRank(t *testing.T) {
	g := attached(t, KindDelta)
	next, err := OpenHost(KindDelta, g.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	g.r.Reserve(7, 8)
	g.r.Publish()
	if err := next.End(0).(Delta).Put(take(t, g.r)); !errors.Is(err, ErrTaken) || next.End(0).State() != Waiting {
		t.Errorf("an old rank's message: %v, %v; want %v", err, next.End(0).State(), ErrTaken)
	}
	fresh := g.openRank(0, -1)
	put(t, next.End(0), take(t, fresh))
	next.End(0).Begin()
	next.End(0).Publish()
	if err := g.r.(Delta).Put(take(t, next.End(0))); !errors.Is(err, ErrTaken) {
		t.Errorf("a message of the new host: %v, want %v", err, ErrTaken)
	}
}

func TestWithNothingNewThereIsNoMessage(t *testing.T) {
	g := newRig(t, KindDelta)
	if msg := take(t, g.h); len(msg) != 0 {
		t.Errorf("a host speaks before it was spoken to: %d bytes", len(msg))
	}
	g.meet()
	g.full()
	for _, c := range []Carrier{g.h, g.r} {
		if msg := take(t, c); len(msg) != 0 {
			t.Errorf("%d bytes with nothing to say", len(msg))
		}
	}
	g.r.Reserve(7, 8)
	if msg := take(t, g.r); len(msg) != 0 {
		t.Error("a record left before Publish")
	}
	g.r.Publish()
	if msg := take(t, g.r); len(msg) != msgHeadBytes+16 {
		t.Errorf("%d bytes for a record of 8", len(msg))
	}
	for range 3 {
		if msg := take(t, g.r); len(msg) != msgHeadBytes {
			t.Fatalf("%d bytes although a message is not acknowledged", len(msg))
		}
	}
	g.carry()
	if msg := take(t, g.r); len(msg) != 0 {
		t.Errorf("%d bytes after the acknowledgement", len(msg))
	}
}

func TestAMessageIsAsLongAsTheCallersBuffer(t *testing.T) {
	g := attached(t, KindDelta)
	for range 40 {
		g.h.Reserve(7, 4000)
	}
	g.h.Publish()
	var b [2 * MessageBytesMax]byte
	if _, err := g.h.(Delta).Take(b[:MessageBytesMin-1]); !errors.Is(err, ErrSpace) {
		t.Errorf("a buffer without room for a record: %v, want %v", err, ErrSpace)
	}
	got := 0
	for i, size := range []int{MessageBytesMin, 10_000, MessageBytesMax, len(b)} {
		n, err := g.h.(Delta).Take(b[:size])
		if err != nil || n > min(size, MessageBytesMax) || n < min(size, MessageBytesMax)-4096 {
			t.Fatalf("message %d: %d bytes into a buffer of %d: %v", i, n, size, err)
		}
		put(t, g.r, b[:n])
		for {
			if _, _, ok := g.r.Next(); !ok {
				break
			}
			got++
		}
		g.r.Release()
	}
	if g.carry(); got < 33 || g.h.Gap() {
		t.Errorf("%d records, gap %v", got, g.h.Gap())
	}
}

func TestAMessageForWhichTheStepIsTooSlowMayBePutAgain(t *testing.T) {
	g := attached(t, KindDelta, func(c *Config) { c.RingBytes = 1 << 20 })
	small := g.openSmallRank()
	for range 200 {
		g.h.Reserve(7, 4000)
	}
	g.h.Publish()
	got, waited := 0, 0
	for range 100 {
		msg := take(t, g.h)
		if len(msg) == 0 {
			break
		}
		for errors.Is(small.(Delta).Put(msg), ErrSpace) {
			waited++
			for {
				tag, _, ok := small.Next()
				if !ok {
					break
				}
				if tag == 7 {
					got++
				}
			}
			small.Release()
		}
		if back := take(t, small); len(back) > 0 {
			put(t, g.h, back)
		}
	}
	for {
		tag, _, ok := small.Next()
		if !ok {
			break
		}
		if tag == 7 {
			got++
		}
	}
	if got != 200 || waited == 0 || g.h.Gap() {
		t.Errorf("%d records of 200, waited %d times, gap %v", got, waited, g.h.Gap())
	}
}

// openSmallRank gives the host another rank 0, with less room than the host's.
func (g *rig) openSmallRank() Carrier {
	g.t.Helper()
	g.host.Close()
	var err error
	if g.host, err = OpenHost(KindDelta, g.cfg); err != nil {
		g.t.Fatal(err)
	}
	g.cfg.RingBytes = RingBytesMin
	g.h = g.host.End(0)
	g.ranks[0] = g.openRank(0, -1)
	g.r = g.ranks[0]
	g.meet()
	g.full()
	return g.r
}

func TestAFullStateThrowsAwayWhatWasNotSentYet(t *testing.T) {
	g := attached(t, KindDelta)
	for range 50 {
		g.h.Reserve(7, 4000)
	}
	g.h.Publish()
	if _, ok := g.h.Begin(); !ok {
		t.Fatal("no room")
	}
	g.h.Reserve(8, 8)
	g.h.Publish()
	msg := take(t, g.h)
	if want := msgHeadBytes + RecordBytes(record.FullLen) + RecordBytes(8); len(msg) != want {
		t.Errorf("a message of %d bytes, want %d: the mark and what follows", len(msg), want)
	}
	put(t, g.r, msg)
	for i, want := range []uint32{record.TagFull, 8} {
		if tag, _, _ := g.r.Next(); tag != want {
			t.Errorf("record %d has tag %d, want %d", i, tag, want)
		}
	}
}

func TestAMessageOfNobodyChangesNothing(t *testing.T) {
	g := attached(t, KindDelta)
	g.h.Reserve(7, 8)
	g.h.Publish()
	good := take(t, g.h)
	for _, tc := range []struct {
		name   string
		change func(b []byte) []byte
	}{
		{"nothing", func(b []byte) []byte { return nil }},
		{"one byte short", func(b []byte) []byte { return b[:len(b)-1] }},
		{"one byte long", func(b []byte) []byte { return append(b, 0) }},
		{"another magic", func(b []byte) []byte { b[0]++; return b }},
		{"a later version", func(b []byte) []byte { b[4]++; return b }},
		{"an unknown flag", func(b []byte) []byte { b[6] |= 0x80; return b }},
		{"its own direction", func(b []byte) []byte { b[6] &^= msgFromHost; return b }},
		{"another engine", func(b []byte) []byte { b[8]++; return b }},
		{"another rank", func(b []byte) []byte { b[16]++; return b }},
		{"no sender", func(b []byte) []byte { clear(b[24:32]); return b }},
		{"an incarnation at the end of numbers", func(b []byte) []byte { b[47] = 0xFF; return b }},
		{"a number at the end of numbers", func(b []byte) []byte { b[55] = 0xFF; return b }},
		{"records that the flags deny", func(b []byte) []byte { b[6] &^= msgRecords; return b }},
		{"records with number 0", func(b []byte) []byte { clear(b[48:56]); return b }},
		{"no records where the flags say some", func(b []byte) []byte { b = b[:msgHeadBytes]; b[20] = msgHeadBytes; return b }},
		{"a record longer than the message", func(b []byte) []byte { b[msgHeadBytes]++; return b }},
		{"a record longer than any", func(b []byte) []byte { b[msgHeadBytes+2] = 0xFF; return b }},
		{"padding", func(b []byte) []byte { copy(b[msgHeadBytes+4:], "\xFF\xFF\xFF\xFF"); return b }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := g.r.(Delta).Put(tc.change(append([]byte(nil), good...))); !errors.Is(err, ErrInvalid) {
				t.Errorf("%v, want %v", err, ErrInvalid)
			}
			if g.r.Pending() {
				t.Error("something of it was taken")
			}
		})
	}
	put(t, g.r, good)
	if tag, _, _ := g.r.Next(); tag != 7 {
		t.Errorf("the good message afterwards: tag %d", tag)
	}
}

func TestADeltaEndIsLostWhenTheEngineSaysSo(t *testing.T) {
	for _, attached := range []bool{true, false} {
		t.Run(fmt.Sprint("attached ", attached), func(t *testing.T) {
			cfg := Config{EngineID: t.Name(), TP: 1, PP: 1, WakeFd: -1, RingBytes: RingBytesMin}
			h, err := OpenHost(KindDelta, cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			c, err := OpenRank(KindDelta, cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			host, rank := h.End(0).(Delta), c.(Delta)
			var buf [MessageBytesMin]byte
			say := func() []byte {
				n, err := rank.Take(buf[:])
				if err != nil || n == 0 {
					t.Fatalf("take: %d, %v", n, err)
				}
				return buf[:n]
			}
			if attached {
				if err := host.Put(say()); err != nil || host.State() != Attached {
					t.Fatalf("attach: %v, %v", err, host.State())
				}
			}
			host.Lose()
			host.Lose()
			if host.State() != Lost || !errors.Is(host.Err(), ErrGone) {
				t.Errorf("state %v, %v", host.State(), host.Err())
			}
			if err := host.Put(say()); !errors.Is(err, ErrTaken) {
				t.Errorf("a message of a rank that is gone: %v", err)
			}
			host.Begin()
			host.Next()
			host.Close()
			host.Lose()
		})
	}
}
