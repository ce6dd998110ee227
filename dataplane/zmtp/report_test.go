package zmtp

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestEndsThatAreAsTheyShouldBeAreNotReported(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(s *Server, l *pipeListener, c interface{ Close() error })
		want Stats
	}{
		{"the peer closes between two requests", func(_ *Server, _ *pipeListener, c interface{ Close() error }) { c.Close() }, Stats{Accepted: 1, Requests: 1}},
		{"it was idle for too long", func(*Server, *pipeListener, interface{ Close() error }) { time.Sleep(time.Hour) }, Stats{Accepted: 1, Requests: 1, Idled: 1}},
		{"a newer one took its place", func(_ *Server, l *pipeListener, _ interface{ Close() error }) { l.dial() }, Stats{Open: 1, Accepted: 2, Requests: 1, Evicted: 1}},
		{"the server closes", func(s *Server, _ *pipeListener, _ interface{ Close() error }) { s.Close() }, Stats{Open: 0, Accepted: 1, Requests: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newPipeListener()
				var reported []error
				s := serve(l, Config{Limits: Limits{ConnectionsMax: 1, Idle: time.Minute}, Handle: echo, Report: func(err error) { reported = append(reported, err) }})
				c := l.dial()
				defer c.Close()
				greet(t, c)
				exchange(t, c)
				synctest.Wait()
				tc.end(s, l, c)
				synctest.Wait()
				if got := s.Stats(); got != tc.want {
					t.Errorf("stats %+v, want %+v", got, tc.want)
				}
				if len(reported) > 0 {
					t.Errorf("reported: %v", reported)
				}
				s.Close()
				synctest.Wait()
				if len(reported) > 0 {
					t.Errorf("reported when all was over: %v", reported)
				}
			})
		})
	}
}
