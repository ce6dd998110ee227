package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/attach"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/text"
	"github.com/kvlease/kvlease/dataplane/probe"
)

// tracing says whether kvlease trace would work from here. Engines need none of it.
func tracing(_ context.Context, s *System) []Result {
	const name = "kvlease trace"
	err := s.Trace()
	if err == nil {
		value := "possible from here"
		if c := s.Caveats(); len(c) > 0 {
			value += "; " + strings.Join(c, "; ")
		}
		return one(name, Pass, value)
	}
	var m *probe.Missing
	if !errors.As(err, &m) {
		return unread(name, err)
	}
	value := m.What
	if m.Cause != nil {
		value += fmt.Sprintf(" (%v)", m.Cause)
	}
	return ill(name, Warn, value, "engines run all the same; where the time of heartbeats and reads goes cannot be seen from here", "%s", m.Remedy)
}

// peers shakes hands with engines on their side channels.
func peers(ctx context.Context, s *System) (lines []Result) {
	for _, addr := range s.Peers {
		lines = append(lines, s.peer(ctx, addr)...)
	}
	return lines
}

func (s *System) peer(ctx context.Context, addr string) []Result {
	r, err := s.Ask(ctx, addr)
	if err != nil {
		what, fix := err.Error(), "kvlease attach "+addr+" says more; a firewall between the machines must let the port through"
		if e, ok := errors.AsType[*attach.Explained](err); ok {
			what, fix = e.Err.Error(), e.Hint
		}
		return ill(addr, Fail, what, "no request that names this engine can be read, and none of its leases be kept", "%s", fix)
	}
	value := fmt.Sprintf("engine %s, %s, TP %d, PP %d; handshake in %.3f ms (least of %d), clock %+.3f ms against ours", text.Printable(r.EngineID), r.Speaks, r.TP, r.PP,
		r.RoundTrip.LeastMs, r.RoundTrip.N, r.AheadMs)
	if len(r.Notes) > 0 {
		return ill(addr, Warn, value, text.Printable(strings.Join(r.Notes, "; ")), "kvlease attach %s shows all of it", addr)
	}
	return one(addr, Pass, value)
}

// samples is how often a peer is asked.
const samples = 3

// AskPeer shakes hands with an engine as kvlease attach does, and reads nothing of its memory.
func AskPeer(timeout time.Duration) func(context.Context, string) (*attach.Report, error) {
	return func(ctx context.Context, addr string) (*attach.Report, error) {
		var out bytes.Buffer
		err := attach.Run(ctx, attach.Config{Addr: addr, Samples: samples, Timeout: timeout, JSON: true, Missing: "only the side channel was asked"}, &out)
		if err != nil {
			return nil, err
		}
		r := &attach.Report{}
		return r, json.Unmarshal(out.Bytes(), r)
	}
}
