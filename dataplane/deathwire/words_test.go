package deathwire

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlease/kvlease/internal/await"
)

// Whoever says the same again and again costs the other end its connection, and no more.
func TestWordsWithoutEndAreCutOff(t *testing.T) {
	for _, k := range []Kind{Leaving, Farewell} {
		inWorld(t, ServerConfig{}, func(w *world) {
			w.Heard(readerD.engine, readerD.epoch, nonce(1))
			c := w.mustHang(readerD, nonce(1))
			f := (&Frame{Kind: k, Engine: readerD.engine, Epoch: readerD.epoch, Nonce: nonce(1)}).Append(nil)
			taken := 0
			for ; taken < 100; taken++ {
				if _, err := c.Write(f); err != nil {
					break
				}
			}
			w.pass(time.Hour)
			left := uint64(0)
			if k == Leaving {
				left = 1
			}
			if st := w.Stats(); taken != framesMax+1 || st.Left != left || st.Malformed != 1 || st.Wires != 0 || st.Withdrawn != 0 {
				t.Errorf("kind %d: %d were taken, stats %+v", k, taken, st)
			}
			w.wantDead() // we have closed it ourselves
		})
		onShore(t, func(s *shore) {
			s.kept()
			for range framesMax + 1 {
				s.ownerSays(Frame{Kind: k, Engine: owner.engine, Epoch: owner.epoch, Nonce: nonce(1)})
			}
			synctest.Wait()
			st := s.Stats()
			if st.States[Up] != 0 || st.Left > 1 || s.changed != 1 {
				t.Errorf("kind %d: changed %d, stats %+v", k, s.changed, st)
			}
			s.pass(time.Minute)
			s.wantDead()
			if st := s.Stats(); st.States[Up] != 1 || st.Fallen != 0 {
				t.Errorf("kind %d: a minute later %+v", k, st)
			}
		})
	}
}

// Who drains says that it leaves, and lets a wire go later.
func TestAReaderSaysOnceThatItLeaves(t *testing.T) {
	onShore(t, func(s *shore) {
		s.kept()
		s.Leave()
		s.Leave()
		synctest.Wait()
		s.Drop(7)
		synctest.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.said) != 2 || s.said[1].Kind != Leaving {
			t.Errorf("said %+v", s.said)
		}
	})
}

// The good-bye of a wire that was let go may be read later than the hello of the one that has taken its place.
func TestTheLatestWireSaysHowAReaderEnds(t *testing.T) {
	for _, k := range []Kind{Leaving, Farewell} {
		inWorld(t, ServerConfig{}, func(w *world) {
			w.Heard(readerD.engine, readerD.epoch, nonce(1))
			old, c := w.mustHang(readerD, nonce(1)), w.mustHang(readerD, nonce(1))
			w.say(old, k, readerD, nonce(1))
			old.Close()
			w.pass(time.Minute)
			c.Close()
			w.pass(time.Minute)
			w.wantDead(readerD)
			if st := w.Stats(); st.Withdrawn != 0 {
				t.Errorf("stats %+v", st)
			}
		})
	}
}

// deaf is a connection whose reader has not come to look at what has arrived.
type deaf struct {
	net.Conn
	once sync.Once
	shut chan struct{}
}

func (d *deaf) Read([]byte) (int, error) { <-d.shut; return 0, net.ErrClosed }

func (d *deaf) Close() error {
	d.once.Do(func() { close(d.shut) })
	return d.Conn.Close()
}

// A reader may go between its hello and the welcome, which the owner has sent by then: it closes over bytes that it has not read.
func TestAReaderThatGoesBeforeItsWelcomeIsNotDead(t *testing.T) {
	for _, tc := range []struct {
		name      string
		goes      func(c *Client)
		withdrawn int
	}{
		{"with its life", (*Client).Reset, 1},
		{"from this owner", func(c *Client) { c.Drop(7) }, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			await.NoLeaks(t)
			var heard over
			l := listen(t, "127.0.0.1", ServerConfig{Withdrawn: heard.hear(&heard.withdrawn)})
			met := make(chan struct{}, 1)
			c := NewClient(ClientConfig{Grace: grace, Dial: func(_ context.Context, addr string) (net.Conn, error) {
				conn, err := net.Dial("tcp", addr)
				met <- struct{}{}
				return &deaf{Conn: conn, shut: make(chan struct{})}, err
			}})
			defer c.Close()
			w := wireD
			w.Addr = l.addr
			l.Heard(w.Self.Engine, w.Self.Epoch, w.Self.Nonce)
			if err := c.Keep(7, w); err != nil {
				t.Fatal(err)
			}
			<-met
			await.True(t, "the wire is kept and heard of", func() bool { return l.Stats().Wires == 1 && l.Stats().Known == 1 })
			tc.goes(c)
			await.True(t, "what it was is known", func() bool {
				st := l.Stats()
				return st.Withdrawn+st.Dead+st.Left == 1 && st.Places == 0
			})
			heard.want(t, nil, []who{readerD}[:tc.withdrawn])
			if st := l.Stats(); st.Dead != 0 || st.Withdrawn != uint64(tc.withdrawn) {
				t.Errorf("stats %+v", st)
			}
		})
	}
}

// An owner whose life is over says so to who comes back to it, and has not heard.
func TestAHelloToALifeThatIsOverIsAnsweredWithAFarewell(t *testing.T) {
	for _, tc := range []struct {
		name  string
		flags uint16
		met   bool // a wire was kept in that life
		want  []Kind
	}{
		{"a reader of today", Farewells, true, []Kind{Farewell}},
		{"one of before", 0, true, nil},
		{"where no wire was kept", Farewells, false, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			epoch := owner.epoch
			inWorld(t, ServerConfig{Self: func() (uint64, uint64) { return owner.engine, epoch }}, func(w *world) {
				if tc.met {
					w.mustHang(readerE, nonce(2))
				}
				epoch = 0
				w.EndEra()
				c := w.dial()
				c.Write((&Frame{Kind: Hello, Flags: tc.flags, Engine: readerD.engine, Epoch: readerD.epoch, Nonce: nonce(1)}).Append(nil))
				var kinds []Kind
				for f := readFrame(c); f != nil; f = readFrame(c) {
					if f.Engine != owner.engine || f.Epoch != owner.epoch || f.Nonce != nonce(1) {
						t.Errorf("frame %+v", f)
					}
					kinds = append(kinds, f.Kind)
				}
				if !slices.Equal(kinds, tc.want) {
					t.Errorf("said %v, want %v", kinds, tc.want)
				}
				if st := w.Stats(); st.Unwanted != 1 || st.Wires != 0 {
					t.Errorf("stats %+v", st)
				}
			})
		})
	}
}

// A wire may fall, or be lost on the way, just when its owner goes: who comes back to it hears that nobody has died.
func TestAFarewellInPlaceOfAWelcomeIsNoDeath(t *testing.T) {
	for _, tc := range []struct {
		name      string
		do        func(s *shore)
		who       who
		withdrawn int
		dead      int
		gone      int
	}{
		{"within the grace", func(s *shore) { s.fall() }, owner, 1, 0, 1},
		{"long after", func(s *shore) { s.then(s.stands); s.fall(); s.pass(time.Hour) }, owner, 1, 0, 1},
		{"of another life", func(s *shore) { s.fall() }, who{owner.engine, owner.epoch + 1}, 0, 1, 1},
		{"to a wire that never was up", nil, owner, 0, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onShore(t, func(s *shore) {
				withdrawn := 0
				s.cfg.Withdrawn = func(uint64, Wire) {
					if !s.InGrace(7) && tc.name == "within the grace" {
						t.Error("the grace is over before its word is told")
					}
					withdrawn++
				}
				parts := s.parts(tc.who)
				if tc.do == nil {
					s.then(parts)
					s.keep()
				} else {
					s.kept()
					tc.do(s)
					s.then(parts)
				}
				s.pass(time.Hour)
				st := s.Stats()
				if withdrawn != tc.withdrawn || len(s.dead) != tc.dead || st.States[Gone] != tc.gone || st.Others == 0 || s.changed == 0 || s.InGrace(7) {
					t.Errorf("%d withdrawn, %d dead, changed %d, stats %+v", withdrawn, len(s.dead), s.changed, st)
				}
			})
		})
	}
}

// An owner that has drained holds nothing. Its wires stay, and their end, whoever brings it about, is no death.
func TestAnOwnerThatHasDrainedDoesNotDie(t *testing.T) {
	inWorld(t, ServerConfig{}, func(w *world) {
		said := func(c net.Conn) (kinds []Kind) {
			for range 2 {
				kinds = append(kinds, readFrame(c).Kind)
			}
			return kinds
		}
		today := func(who who, nonce [16]byte) net.Conn {
			c := w.dial()
			c.Write((&Frame{Kind: Hello, Flags: Farewells, Engine: who.engine, Epoch: who.epoch, Nonce: nonce}).Append(nil))
			if f := readFrame(c); f == nil || f.Kind != Welcome {
				t.Fatalf("answered %+v", f)
			}
			return c
		}
		want := []Kind{Leaving, Farewell}
		d := today(readerD, nonce(1))
		go func() { w.Leave(); w.Part(); w.Part() }()
		if got := said(d); !slices.Equal(got, want) {
			t.Errorf("said %v", got)
		}
		if got := said(today(readerE, nonce(2))); !slices.Equal(got, want) {
			t.Errorf("to a new wire is said %v", got)
		}
		old := w.mustHang(who{3, 3}, nonce(3))
		if f := readFrame(old); f == nil || f.Kind != Leaving {
			t.Errorf("to who knows no farewell is said %+v", f)
		}
		w.pass(time.Hour)
		if st := w.Stats(); st.Wires != 3 {
			t.Errorf("stats %+v", st)
		}
		last := make(chan *Frame)
		go func() { last <- readFrame(d) }()
		w.EndEra()
		if f := <-last; f != nil {
			t.Errorf("at the end is said %+v", f)
		}
	})
}
