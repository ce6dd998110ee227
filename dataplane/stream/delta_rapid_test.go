package stream

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvlease/kvlease/dataplane/record"
)

// carried is a delta stream whose messages are lost, doubled, held back and cut by rapid, beside lists of what was written.
type carried struct {
	t       *rapid.T
	h, r    *deltaEnd
	toRank  [][]byte // taken, not delivered
	toHost  [][]byte
	written uint64

	runs    map[uint64][]uint64 // by incarnation: records that the host wrote into it
	current uint64              // incarnation that the host writes, 0: none, or a gap is known
	begun   int                 // full states so far
	run     uint64              // what the rank reads
	at      int

	said  []int // by number: full states begun when the rank wrote it
	heard []bool
	next  uint64 // the host has taken all below it, or they are lost
}

func newCarried(t *rapid.T) *carried {
	cfg := Config{EngineID: "e", TP: 1, PP: 1, WakeFd: -1, RingBytes: RingBytesMin}
	h, err := newDelta(cfg, true)
	if err != nil {
		t.Fatal(err)
	}
	r, err := newDelta(cfg, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close(); r.Close() })
	return &carried{t: t, h: h, r: r, runs: map[uint64][]uint64{}}
}

func (c *carried) size() int {
	return rapid.OneOf(rapid.IntRange(8, 200), rapid.IntRange(8, 3000)).Draw(c.t, "bytes")
}

// write is the host's: what is written while a gap is known reaches nobody.
func (c *carried) write(*rapid.T) {
	for range rapid.IntRange(1, 30).Draw(c.t, "records") {
		if c.h.Gap() {
			c.current = 0
		}
		rec := c.h.Reserve(7, c.size())
		switch {
		case rec == nil:
			if c.current != 0 && !c.h.Gap() {
				c.t.Fatal("a record found no room and there is no gap")
			}
			c.current = 0
			continue
		case c.current == 0:
			c.t.Fatal("room for a record between a gap and the full state that heals it")
		}
		putNumbered(rec, c.written)
		c.runs[c.current] = append(c.runs[c.current], c.written)
		c.written++
	}
	c.h.Publish()
}

func (c *carried) begin(*rapid.T) {
	if !c.h.Gap() {
		return
	}
	c.current = 0
	if n, ok := c.h.Begin(); ok {
		c.current = n
		c.begun++
		c.h.Publish()
	}
}

// say is the rank's.
func (c *carried) say(*rapid.T) {
	for range rapid.IntRange(1, 10).Draw(c.t, "records") {
		if rec := c.r.Reserve(9, c.size()); rec != nil {
			putNumbered(rec, uint64(len(c.said)))
			c.said, c.heard = append(c.said, c.begun), append(c.heard, false)
		}
	}
	c.r.Publish()
}

func (c *carried) rankReads(*rapid.T) {
	for {
		tag, rec, ok := c.r.Next()
		if !ok {
			break
		}
		if n := startsFull(tag, rec); n != 0 {
			if n <= c.run {
				c.t.Fatalf("full state %d after %d", n, c.run)
			}
			c.run, c.at = n, 0
			continue
		}
		run := c.runs[c.run]
		if tag != 7 || c.at >= len(run) {
			c.t.Fatalf("record %d of run %d, which has %d: tag %d", c.at, c.run, len(run), tag)
		}
		if err := checkNumbered(rec, run[c.at]); err != nil {
			c.t.Fatalf("run %d at %d: %v", c.run, c.at, err)
		}
		c.at++
	}
	c.r.Release()
}

func (c *carried) hostReads(*rapid.T) {
	for {
		tag, rec, ok := c.h.Next()
		if !ok {
			break
		}
		for c.next < uint64(len(c.said)) && checkNumbered(rec, c.next) != nil {
			c.next++ // lost
		}
		if tag != 9 || c.next == uint64(len(c.said)) {
			c.t.Fatalf("tag %d, a record that was not said, or was heard before", tag)
		}
		c.heard[c.next] = true
		c.next++
	}
	c.h.Release()
}

// take has an end write a message of a random length.
func (c *carried) take(from Delta, queue *[][]byte) bool {
	buf := make([]byte, rapid.SampledFrom([]int{MessageBytesMin, MessageBytesMin + 777, MessageBytesMax}).Draw(c.t, "room"))
	n, err := from.Take(buf)
	if err != nil {
		c.t.Fatal(err)
	}
	if n > 0 {
		*queue = append(*queue, buf[:n])
	}
	return n > 0
}

// put delivers a message; one for which the step is too slow stays.
func (c *carried) put(to Delta, queue *[][]byte, i int, keep bool) {
	err := to.Put((*queue)[i])
	switch {
	case errors.Is(err, ErrSpace):
		return
	case err != nil:
		c.t.Fatal(err)
	case !keep:
		*queue = append((*queue)[:i], (*queue)[i+1:]...)
	}
}

// fate is what becomes of one of the messages under way.
func (c *carried) fate(to Delta, queue *[][]byte) {
	if len(*queue) == 0 {
		return
	}
	i := 0
	if rapid.IntRange(0, 3).Draw(c.t, "in order") == 3 {
		i = rapid.IntRange(0, len(*queue)-1).Draw(c.t, "message")
	}
	switch msg := (*queue)[i]; rapid.SampledFrom([]string{"arrives", "arrives", "arrives", "lost", "doubled", "cut"}).Draw(c.t, "fate") {
	case "lost":
		*queue = append((*queue)[:i], (*queue)[i+1:]...)
	case "doubled":
		c.put(to, queue, i, true)
	case "cut":
		if err := to.Put(msg[:rapid.IntRange(0, len(msg)-1).Draw(c.t, "bytes left")]); !errors.Is(err, ErrInvalid) {
			c.t.Fatalf("a message that was cut: %v", err)
		}
	default:
		c.put(to, queue, i, false)
	}
}

// rest lets everything through until nobody has more to say.
func (c *carried) rest() {
	for range 500 {
		c.begin(nil)
		moved := c.take(c.h, &c.toRank)
		moved = c.take(c.r, &c.toHost) || moved
		for _, way := range []struct {
			to    Delta
			queue *[][]byte
		}{{c.r, &c.toRank}, {c.h, &c.toHost}} {
			for n := len(*way.queue); n > 0; n-- {
				moved = true
				c.put(way.to, way.queue, 0, false)
			}
		}
		c.rankReads(nil)
		c.hostReads(nil)
		if !moved && !c.h.Gap() {
			return
		}
	}
	c.t.Fatal("the ends never come to rest")
}

// What a rank sees is a run of records without a hole, which a full state begins; what a host has missed, a full state that was begun
// later heals; and once nothing is lost any more the rank has all that the host wrote.
func TestADeltaStreamGivesRunsWithoutHolesWhateverBecomesOfItsMessages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCarried(t)
		t.Repeat(map[string]func(*rapid.T){
			"host writes": c.write, "host begins": c.begin, "rank says": c.say, "rank reads": c.rankReads, "host reads": c.hostReads,
			"host sends": func(*rapid.T) { c.take(c.h, &c.toRank) }, "rank sends": func(*rapid.T) { c.take(c.r, &c.toHost) },
			"to the rank":       func(*rapid.T) { c.fate(c.r, &c.toRank) },
			"to the host":       func(*rapid.T) { c.fate(c.h, &c.toHost) },
			"to the rank again": func(*rapid.T) { c.fate(c.r, &c.toRank) },
			"all goes well": func(*rapid.T) {
				c.begin(nil)
				c.take(c.h, &c.toRank)
				c.take(c.r, &c.toHost)
				if len(c.toRank) > 0 {
					c.put(c.r, &c.toRank, 0, false)
				}
				if len(c.toHost) > 0 {
					c.put(c.h, &c.toHost, 0, false)
				}
			},
		})
		c.rest()
		if c.h.State() == Attached && (c.run != c.current || c.at != len(c.runs[c.run])) {
			t.Fatalf("at rest the rank is at %d of run %d, the host wrote %d of run %d", c.at, c.run, len(c.runs[c.current]), c.current)
		}
		for n, heard := range c.heard {
			if !heard && c.said[n] >= c.begun {
				t.Fatalf("record %d of the rank is lost, and none of the %d full states was begun since", n, c.begun)
			}
		}
	})
}

// A record of the carrier's own form is what was put, whatever its length.
func TestAMessageIsReadAsItWasMade(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := message{
			flags: msgRecords | rapid.Uint16Range(0, msgFlags).Draw(t, "flags"), engine: rapid.Uint64().Draw(t, "engine"), rank: rapid.Uint32().Draw(t, "rank"),
			from: rapid.Uint64Min(1).Draw(t, "from"), to: rapid.Uint64().Draw(t, "to"), incarnation: rapid.Uint64Max(msgNumberMax).Draw(t, "incarnation"),
			number: rapid.Uint64Range(1, msgNumberMax).Draw(t, "number"), ackedIn: rapid.Uint64().Draw(t, "acked in"), acked: rapid.Uint64().Draw(t, "acked"),
		}
		b := make([]byte, MessageBytesMax)
		n := msgHeadBytes
		var recs [][]byte
		for range rapid.IntRange(1, 12).Draw(t, "records") {
			rec := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "record")
			n += putRecord(b[n:], record.TagGrant, rec)
			recs = append(recs, rec)
		}
		m.put(b, n)
		got, err := parseMessage(b[:n])
		if err != nil {
			t.Fatal(err)
		}
		rest := got.records
		for i, want := range recs {
			tag, rec, behind, ok := cutRecord(rest)
			if !ok || tag != record.TagGrant || string(rec) != string(want) {
				t.Fatalf("record %d is %x, want %x", i, rec, want)
			}
			rest = behind
		}
		again := make([]byte, n)
		copy(again[msgHeadBytes:], got.records)
		got.put(again, n)
		if len(rest) != 0 || string(again) != string(b[:n]) {
			t.Fatalf("written again as %x, was %x", again, b[:n])
		}
	})
}
