package deathwire

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvlease/kvlease/internal/await"
)

// over is what is heard of lives that have ended.
type over struct {
	mu              sync.Mutex
	dead, withdrawn []who
}

func (o *over) hear(list *[]who) func(engine, epoch uint64) {
	return func(engine, epoch uint64) {
		o.mu.Lock()
		defer o.mu.Unlock()
		*list = append(*list, who{engine, epoch})
	}
}

func (o *over) want(t *testing.T, dead, withdrawn []who) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.Equal(o.dead, dead) || !slices.Equal(o.withdrawn, withdrawn) {
		t.Errorf("dead %x and withdrawn %x, want %x and %x", o.dead, o.withdrawn, dead, withdrawn)
	}
}

// A reader's farewell changes what its end is called, and neither whether it counts nor when.
func TestAReadersFarewellIsNoDeath(t *testing.T) {
	d := []who{readerD}
	for _, tc := range []struct {
		name            string
		do              func(w *world)
		dead, withdrawn []who
	}{
		{"a farewell, then the end", func(w *world) {
			c := w.mustHang(readerD, nonce(1))
			w.say(c, Farewell, readerD, nonce(1))
			c.Close()
		}, nil, d},
		{"the end alone", func(w *world) { w.mustHang(readerD, nonce(1)).Close() }, d, nil},
		{"a farewell on the wire before", func(w *world) {
			c := w.mustHang(readerD, nonce(1))
			w.say(c, Farewell, readerD, nonce(1))
			c.Close()
			w.pass(grace / 2)
			w.mustHang(readerD, nonce(1)).Close()
		}, d, nil},
		{"a farewell of another reader", func(w *world) {
			c := w.mustHang(readerD, nonce(1))
			w.say(c, Farewell, readerE, nonce(1)) // shuts the wire, which is no end of the reader's doing
			w.pass(0)
			c.Close()
		}, nil, nil},
		{"a farewell behind a good-bye", func(w *world) {
			c := w.mustHang(readerD, nonce(1))
			w.say(c, Leaving, readerD, nonce(1))
			w.say(c, Farewell, readerD, nonce(1))
			c.Close()
		}, nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var heard over
			inWorld(t, ServerConfig{Withdrawn: heard.hear(&heard.withdrawn)}, func(w *world) {
				w.cfg.Dead = heard.hear(&heard.dead)
				w.Heard(readerD.engine, readerD.epoch, nonce(1))
				w.pass(0)
				tc.do(w)
				w.pass(grace - 1)
				heard.want(t, nil, nil)
				w.pass(time.Hour)
				heard.want(t, tc.dead, tc.withdrawn)
				if st := w.Stats(); st.Dead != uint64(len(tc.dead)) || st.Withdrawn != uint64(len(tc.withdrawn)) {
					t.Errorf("stats %+v", st)
				}
			})
		})
	}
}

// An owner's farewell is said to who understands it; to others its wire falls as ever.
func TestAnOwnerSaysFarewellToWhoUnderstandsIt(t *testing.T) {
	for _, tc := range []struct {
		name  string
		flags uint16
		want  []Kind
	}{
		{"a reader of today", Farewells, []Kind{Welcome, Farewell}},
		{"one of before", 0, []Kind{Welcome}},
		{"one of later", ^uint16(0), []Kind{Welcome, Farewell}},
		{"one of later that does not know it", ^uint16(Farewells), []Kind{Welcome}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inWorld(t, ServerConfig{}, func(w *world) {
				c := w.dial()
				c.Write((&Frame{Kind: Hello, Flags: tc.flags, Engine: readerD.engine, Epoch: readerD.epoch, Nonce: nonce(1)}).Append(nil))
				said := make(chan []Kind, 1)
				go func() {
					var kinds []Kind
					for f := readFrame(c); f != nil; f = readFrame(c) {
						if f.Engine != owner.engine || f.Epoch != owner.epoch || f.Nonce != nonce(1) {
							t.Errorf("frame %+v", f)
						}
						kinds = append(kinds, f.Kind)
					}
					said <- kinds
				}()
				w.pass(0)
				w.EndEra()
				if got := <-said; !slices.Equal(got, tc.want) {
					t.Errorf("said %v, want %v", got, tc.want)
				}
			})
		})
	}
}

// A reader tells what it has heard: an owner that has said farewell withdrew, whoever is met at its address then.
func TestAnOwnersFarewellIsNoDeath(t *testing.T) {
	farewell := Frame{Kind: Farewell, Engine: owner.engine, Epoch: owner.epoch, Nonce: nonce(1)}
	for _, tc := range []struct {
		name            string
		do              func(s *shore)
		dead, withdrawn int
	}{
		{"nobody listens any more", func(s *shore) { s.then(refuse); s.ownerSays(farewell); s.fall() }, 0, 1},
		{"it sleeps: its listener hangs up", func(s *shore) { s.then(s.hangUp); s.ownerSays(farewell); s.fall() }, 0, 1},
		{"it has woken already", func(s *shore) {
			s.then(s.owner(who{owner.engine, owner.epoch + 1}))
			s.ownerSays(farewell)
			s.fall()
		}, 0, 1},
		{"no word", func(s *shore) { s.then(refuse); s.fall() }, 1, 0},
		{"a word, then a life that goes on, and dies", func(s *shore) {
			s.ownerSays(farewell)
			s.fall()
			s.pass(time.Minute)
			s.then(refuse)
			s.fall()
		}, 1, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onShore(t, func(s *shore) {
				withdrawn := 0
				s.cfg.Withdrawn = func(engine uint64, w Wire) {
					if engine != 7 || w != wireD {
						t.Errorf("engine %d", engine)
					}
					withdrawn++
				}
				s.kept()
				s.pass(time.Minute)
				tc.do(s)
				s.pass(time.Hour)
				if len(s.dead) != tc.dead || withdrawn != tc.withdrawn {
					t.Errorf("%d dead and %d withdrawn, want %d and %d", len(s.dead), withdrawn, tc.dead, tc.withdrawn)
				}
				if st := s.Stats(); st.Dead != uint64(tc.dead) || st.Withdrawn != uint64(tc.withdrawn) || st.States[Gone] != 1 {
					t.Errorf("stats %+v", st)
				}
			})
		})
	}
}

// Both ends over real connections: who goes on purpose is known to, whichever of the two it is, and each in a grace.
func TestWhoGoesOnPurposeIsKnownToOverARealConnection(t *testing.T) {
	await.NoLeaks(t)
	owners, readers := new(over), new(over)
	l := listen(t, "127.0.0.1", ServerConfig{Withdrawn: readers.hear(&readers.withdrawn)})
	gone := func(list *[]who) func(uint64, Wire) {
		return func(_ uint64, w Wire) { owners.hear(list)(w.Owner, w.OwnersEpoch) }
	}
	c := NewClient(ClientConfig{Grace: grace, Dead: gone(&owners.dead), Withdrawn: gone(&owners.withdrawn)})
	defer c.Close()
	w := wireD
	w.Addr = l.addr
	keep := func() {
		t.Helper()
		if err := c.Keep(7, w); err != nil {
			t.Fatal(err)
		}
		l.Heard(w.Self.Engine, w.Self.Epoch, w.Self.Nonce)
		await.True(t, "the wire is up and heard of", func() bool { return c.Stats().States[Up] == 1 && l.Stats().Wires == 1 && l.Stats().Known == 1 })
	}
	keep()
	c.Reset()
	await.True(t, "the reader's life is known to be over", func() bool { return l.Stats().Withdrawn+l.Stats().Dead == 1 })
	keep()
	l.EndEra()
	l.Close()
	await.True(t, "the owner's is", func() bool { return c.Stats().Withdrawn+c.Stats().Dead == 1 })
	readers.want(t, nil, []who{readerD})
	if n := len(l.dead); n != 0 {
		t.Errorf("%d readers are known dead", n)
	}
	owners.want(t, nil, []who{owner})
}
