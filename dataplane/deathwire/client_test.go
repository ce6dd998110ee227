package deathwire

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// shore is what a reader's wire meets at an address, in a bubble.
type shore struct {
	t     *testing.T
	start time.Time
	*Client

	mu      sync.Mutex
	answer  func(ctx context.Context) (net.Conn, error) // to a dial
	dials   []time.Duration
	dead    []time.Duration // when, since start
	changed int
	ends    []net.Conn // of the owner's side
	said    []Frame
	running sync.WaitGroup
}

var wireD = Wire{
	Addr: "P", Self: Frame{Engine: readerD.engine, Epoch: readerD.epoch, Nonce: nonce(1)},
	Owner: owner.engine, OwnersEpoch: owner.epoch,
}

func onShore(t *testing.T, do func(s *shore)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &shore{t: t, start: time.Now()}
		s.answer = s.owner(owner)
		s.Client = NewClient(ClientConfig{
			Dead: func(engine uint64, w Wire) {
				if engine != 7 || w != wireD {
					t.Errorf("engine %d", engine)
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				s.dead = append(s.dead, time.Since(s.start))
			},
			Changed: func(uint64) { s.mu.Lock(); defer s.mu.Unlock(); s.changed++ },
			Grace:   grace,
			Dial: func(ctx context.Context, addr string) (net.Conn, error) {
				s.mu.Lock()
				s.dials = append(s.dials, time.Since(s.start))
				answer := s.answer
				s.mu.Unlock()
				return answer(ctx)
			},
		})
		do(s)
		s.Close()
		s.fall()
		s.running.Wait()
	})
}

// owner answers as an owner that takes the wire.
func (s *shore) owner(who who) func(context.Context) (net.Conn, error) {
	return func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		s.mu.Lock()
		s.ends = append(s.ends, theirs)
		s.mu.Unlock()
		s.running.Go(func() {
			defer theirs.Close()
			hello := readFrame(theirs)
			if hello == nil {
				return
			}
			f := Frame{Kind: Welcome, Engine: who.engine, Epoch: who.epoch, Nonce: hello.Nonce}
			theirs.Write(f.Append(nil))
			for f := hello; f != nil; f = readFrame(theirs) {
				s.mu.Lock()
				s.said = append(s.said, *f)
				s.mu.Unlock()
			}
		})
		return ours, nil
	}
}

func refuse(context.Context) (net.Conn, error) {
	return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}

func lacking(context.Context) (net.Conn, error) {
	return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}
}

func lost(ctx context.Context) (net.Conn, error) {
	<-ctx.Done()
	return nil, &net.OpError{Op: "dial", Err: ctx.Err()}
}

// hangUp takes the connection and closes it.
func (s *shore) hangUp(context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	s.running.Go(func() { readFrame(theirs); theirs.Close() })
	return ours, nil
}

// parts answers as an owner whose life is over.
func (s *shore) parts(who who) func(context.Context) (net.Conn, error) {
	return func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		s.running.Go(func() {
			defer theirs.Close()
			if hello := readFrame(theirs); hello != nil {
				f := Frame{Kind: Farewell, Engine: who.engine, Epoch: who.epoch, Nonce: hello.Nonce}
				theirs.Write(f.Append(nil))
			}
		})
		return ours, nil
	}
}

// stands takes the connection and says nothing: a process that is stopped.
func (s *shore) stands(context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	s.mu.Lock()
	s.ends = append(s.ends, theirs)
	s.mu.Unlock()
	s.running.Go(func() { readFrame(theirs) })
	return ours, nil
}

// then says what the next dials meet.
func (s *shore) then(answer func(context.Context) (net.Conn, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

// fall closes the owner's ends.
func (s *shore) fall() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.ends {
		c.Close()
	}
	s.ends = nil
}

// ownerSays sends a frame on the wire that is up.
func (s *shore) ownerSays(f Frame) {
	s.mu.Lock()
	c := s.ends[len(s.ends)-1]
	s.mu.Unlock()
	c.Write(f.Append(nil))
}

func (s *shore) keep() {
	s.t.Helper()
	if err := s.Keep(7, wireD); err != nil {
		s.t.Fatal(err)
	}
	synctest.Wait()
}

func (s *shore) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// kept has a wire that is up.
func (s *shore) kept() {
	s.t.Helper()
	s.keep()
	if st := s.Stats(); st.States[Up] != 1 {
		s.t.Fatalf("stats %+v", st)
	}
}

func (s *shore) wantDead(at ...time.Duration) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.dead, at) {
		s.t.Fatalf("dead at %v, want %v", s.dead, at)
	}
}

func TestAnOwnersDeathIsSeen(t *testing.T) {
	const step = graceStep
	for _, tc := range []struct {
		name string
		then func(s *shore) func(context.Context) (net.Conn, error)
		at   time.Duration // after the fall, which is a minute after the start
	}{
		{"at once where nobody listens any more", func(*shore) func(context.Context) (net.Conn, error) { return refuse }, 0},
		{"at once where another life of it listens", func(s *shore) func(context.Context) (net.Conn, error) {
			return s.owner(who{owner.engine, owner.epoch + 1})
		}, 0},
		{"at once where another engine listens", func(s *shore) func(context.Context) (net.Conn, error) {
			return s.owner(who{owner.engine + 1, owner.epoch})
		}, 0},
		{"as any other where it has said that it leaves", func(s *shore) func(context.Context) (net.Conn, error) {
			s.ownerSays(Frame{Kind: Leaving, Engine: owner.engine, Epoch: owner.epoch, Nonce: nonce(1)})
			return refuse
		}, 0},
		{"after the grace where the network does not answer", func(*shore) func(context.Context) (net.Conn, error) { return lost }, grace},
		{"after the grace where somebody hangs up", func(s *shore) func(context.Context) (net.Conn, error) { return s.hangUp }, grace},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onShore(t, func(s *shore) {
				s.kept()
				s.pass(time.Minute)
				s.then(tc.then(s))
				s.fall()
				if tc.at > 0 {
					s.pass(tc.at - 1)
					s.wantDead()
				}
				s.pass(step)
				s.mu.Lock()
				dead := slices.Clone(s.dead)
				changed := s.changed
				s.mu.Unlock()
				if len(dead) != 1 || dead[0] < time.Minute+tc.at || dead[0] > time.Minute+tc.at+step || changed != 1 {
					t.Fatalf("dead at %v, changed %d; want %v after a minute", dead, changed, tc.at)
				}
				n := len(s.dials)
				s.pass(time.Hour)
				if len(s.dials) != n || s.Stats().States[Gone] != 1 {
					t.Errorf("it is looked for again: %d dials, then %d", n, len(s.dials))
				}
				s.then(s.owner(owner)) // its handshake was answered, by the same life as it seems
				s.kept()
			})
		})
	}
}

func TestWhatIsNoDeathOfAnOwner(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(s *shore)
		up   bool // at the end
	}{
		{"a wire that never was up", func(s *shore) {
			s.then(refuse)
			s.keep()
			s.pass(time.Hour)
		}, false},
		{"an owner that has no place", func(s *shore) {
			s.then(s.hangUp)
			s.keep()
			s.pass(time.Hour)
		}, false},
		{"another life of it before it was ever met", func(s *shore) {
			s.then(s.owner(who{owner.engine, 99}))
			s.keep()
			s.pass(time.Hour)
		}, false},
		{"a fall that is mended", func(s *shore) {
			s.kept()
			s.pass(time.Minute)
			s.fall()
		}, true},
		{"a fall that is mended late in the grace", func(s *shore) {
			s.kept()
			s.pass(time.Minute)
			s.then(s.hangUp)
			s.fall()
			s.pass(grace - 30*time.Millisecond)
			s.then(s.owner(owner))
		}, true},
		{"an owner without a place any more, which answers otherwise", func(s *shore) {
			s.cfg.Lives = func(_ context.Context, engine uint64, w Wire) bool { return engine == 7 && w == wireD }
			s.kept()
			s.then(s.hangUp)
			s.fall()
			s.pass(time.Hour)
			s.then(s.owner(owner))
		}, true},
		{"an owner that said that it leaves, while it serves on", func(s *shore) {
			s.kept()
			s.ownerSays(Frame{Kind: Leaving, Engine: owner.engine, Epoch: owner.epoch, Nonce: nonce(1)})
			s.pass(time.Hour)
		}, true},
		{"an owner that stands still when the wire falls", func(s *shore) {
			s.kept()
			s.then(s.stands)
			s.fall()
			s.pass(time.Hour)
			s.then(s.owner(owner))
		}, true},
		{"a lack of descriptors of our own", func(s *shore) {
			s.kept()
			s.then(lacking)
			s.fall()
			s.pass(time.Hour)
			s.then(s.owner(owner))
		}, true},
		{"a frame that is none", func(s *shore) {
			s.kept()
			s.ownerSays(Frame{Kind: Welcome, Engine: 1, Epoch: 1})
		}, true},
		{"nor its wire's end by us", func(s *shore) {
			s.kept()
			s.Drop(7)
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onShore(t, func(s *shore) {
				tc.do(s)
				s.pass(2 * time.Minute)
				s.wantDead()
				if st := s.Stats(); (st.States[Up] == 1) != tc.up || st.Dead != 0 {
					t.Errorf("stats %+v", st)
				}
			})
		})
	}
}

func TestANetworkThatFailsIsNoDeathButAPortWithoutAListenerIs(t *testing.T) {
	onShore(t, func(s *shore) {
		s.then(func(ctx context.Context) (net.Conn, error) {
			c, err := s.owner(owner)(ctx)
			return failing{c, errKeepAlive}, err
		})
		s.kept()
		s.then(lost)
		s.fall()
		s.pass(time.Hour)
		s.wantDead()
		s.then(refuse)
		s.pass(2 * time.Minute)
		if st := s.Stats(); st.Dead != 1 {
			t.Errorf("stats %+v", st)
		}
	})
}

func TestAWireThatCannotBeHadIsTriedLessAndLess(t *testing.T) {
	onShore(t, func(s *shore) {
		s.then(refuse)
		s.keep()
		s.pass(10 * time.Minute)
		want := []time.Duration{0, 1, 3, 7, 15, 31, 63, 123, 183}
		for i, d := range want {
			if s.dials[i] != d*time.Second {
				t.Fatalf("dials at %v", s.dials)
			}
		}
	})
}

func TestAnOwnerThatTakesAndDropsWiresIsNotChased(t *testing.T) {
	onShore(t, func(s *shore) {
		s.then(func(ctx context.Context) (net.Conn, error) {
			c, err := s.owner(owner)(ctx)
			s.mu.Lock()
			end := s.ends[len(s.ends)-1]
			s.mu.Unlock()
			time.AfterFunc(time.Millisecond, func() { end.Close() })
			return c, err
		})
		s.keep()
		s.pass(time.Minute)
		if n := len(s.dials); n > 400 {
			t.Errorf("%d connections in a minute", n)
		}
		s.wantDead()
	})
}

func TestWhoLeavesSaysSoAndWhoseLifeEndsDoesNot(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(s *shore)
		want []Kind
	}{
		{"leave", func(s *shore) { s.Leave() }, []Kind{Hello, Leaving}},
		{"drop", func(s *shore) { s.Drop(7) }, []Kind{Hello, Leaving}},
		{"reset", func(s *shore) { s.Reset() }, []Kind{Hello}},
		{"close", func(s *shore) { s.Close() }, []Kind{Hello}},
		{"leave, then a fall", func(s *shore) { s.Leave(); s.fall() }, []Kind{Hello, Leaving, Hello, Leaving}},
		{"another life of ours", func(s *shore) {
			w := wireD
			w.Self.Epoch++
			s.Keep(7, w)
		}, []Kind{Hello, Leaving, Hello}},
		{"the same again", func(s *shore) { s.Keep(7, wireD) }, []Kind{Hello}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onShore(t, func(s *shore) {
				s.kept()
				go tc.do(s)
				s.pass(time.Second)
				s.mu.Lock()
				defer s.mu.Unlock()
				var kinds []Kind
				for _, f := range s.said {
					kinds = append(kinds, f.Kind)
					if f.Engine != readerD.engine || f.Nonce != nonce(1) {
						t.Errorf("frame %+v", f)
					}
				}
				if !slices.Equal(kinds, tc.want) {
					t.Errorf("said %v, want %v", kinds, tc.want)
				}
			})
		})
	}
}

func TestWiresOfAReaderAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClient(ClientConfig{Dial: func(ctx context.Context, _ string) (net.Conn, error) { return lost(ctx) }, WiresMax: 3})
		for i := range uint64(5) {
			if err := c.Keep(i, wireD); (err != nil) != (i >= 3) {
				t.Errorf("wire %d: %v", i, err)
			}
		}
		c.Drop(0)
		if err := c.Keep(9, wireD); err != nil {
			t.Error(err)
		}
		c.Close()
		if err := c.Keep(1, wireD); fmt.Sprint(err) != ErrClosed.Error() {
			t.Errorf("after close: %v", err)
		}
	})
}
