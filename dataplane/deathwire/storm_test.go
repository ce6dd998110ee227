package deathwire

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// from is a connection of a host.
type from struct {
	net.Conn
	ip string
}

func (f from) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(f.ip), Port: 1} }

// One host's connections give way to each other: a reader elsewhere may be as slow with its hello as it is allowed to be.
func TestACrowdOfOneHostClosesNoConnectionOfAnother(t *testing.T) {
	inWorld(t, ServerConfig{}, func(w *world) {
		slow := w.dialFrom("10.0.0.1")
		synctest.Wait()
		for range 3 * pendingMax {
			w.dialFrom("10.0.0.2")
		}
		w.pass(time.Second)
		if st := w.Stats(); st.Crowded != 2*pendingMax+1 {
			t.Errorf("stats %+v", st)
		}
		if w.hello(slow, readerD, nonce(1)) == nil {
			t.Error("its connection was closed for those of another host")
		}
	})
}

// Whatever strangers say, in the reader's name or another one, nobody is over for it whose own wire is up, and whose end is believed then is
// the reader alone. Who has its nonce, too, can no more than keep its end quiet.
func TestAStormOfHostileFramesEndsNobody(t *testing.T) {
	for seed := range uint64(4) {
		for _, heard := range []bool{false, true} {
			t.Run(fmt.Sprintf("seed %d, the nonce was overheard %v", seed, heard), func(t *testing.T) {
				over := map[who]int{}
				inWorld(t, ServerConfig{Max: 8, Withdrawn: func(engine, epoch uint64) { over[who{engine, epoch}]++ }}, func(w *world) {
					w.Heard(readerD.engine, readerD.epoch, nonce(1))
					d := w.mustHang(readerD, nonce(1))
					before := who{readerD.engine, readerD.epoch - 1} // a life of it that is over
					w.Heard(before.engine, before.epoch, nonce(2))
					w.mustHang(before, nonce(2)).Close()
					w.pass(2 * grace)
					w.wantDead(before)

					nonces := [][16]byte{{}, nonce(2), nonce(3), nonce(4)}
					if heard {
						nonces = append(nonces, nonce(1))
					}
					rnd := rand.New(rand.NewPCG(seed, 1))
					for range 600 {
						c := w.dial()
						go io.Copy(io.Discard, c) // the server's words wait for nobody, as in a socket's buffer
						var f Frame
						for n := range 1 + rnd.IntN(framesMax+2) {
							if n == 0 || rnd.IntN(6) == 0 {
								f = Frame{
									Flags: uint16(rnd.IntN(3)), Engine: []uint64{readerD.engine, readerE.engine, owner.engine}[rnd.IntN(3)],
									Epoch: readerD.epoch - uint64(rnd.IntN(2)), Nonce: nonces[rnd.IntN(len(nonces))],
								}
							}
							if f.Kind = Leaving + Kind(rnd.IntN(2)); n == 0 {
								f.Kind = Hello
							}
							if rnd.IntN(8) == 0 {
								f.Kind = Kind(rnd.IntN(int(Farewell) + 2))
							}
							b := f.Append(nil)
							if rnd.IntN(12) == 0 {
								b = b[:rnd.IntN(len(b))]
							}
							c.SetWriteDeadline(time.Now().Add(time.Millisecond))
							c.Write(b)
						}
						if rnd.IntN(3) > 0 {
							c.Close()
						}
					}
					w.pass(time.Minute)
					if st := w.Stats(); st.Kept < 100 || st.Left < 10 || st.Malformed < 10 || st.Fallen < 10 {
						t.Errorf("not much of a storm: %+v", st)
					}
					if len(w.dead) != 1 || over[readerD] != 0 {
						t.Errorf("dead %x, withdrawn %v", w.dead, over)
					}
					d.Close()
					w.pass(time.Minute)
					if !heard {
						w.wantDead(before, readerD)
					}
					delete(over, before)
					if delete(over, readerD); len(over) != 0 {
						t.Errorf("withdrawn: %v", over)
					}
				})
			})
		}
	}
}
