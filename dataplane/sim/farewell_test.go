package sim

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// Wires of the simulator say what those of an engine say: who gives its memory up has withdrawn, who is killed has died.
func TestWhoUnregistersIsNotDead(t *testing.T) {
	const (
		text = `
span: 20s
engines:
  - {id: P, lease: 12s}
  - {id: D, lease: 12s, known: [P]}
actions:
`
		held = `  - {at: 1s, engine: P, do: grant, req: a, blocks: 4}
  - {at: 1s, engine: D, do: track, req: a, peer: P}
`
		act = "  - {at: 6s, engine: %s, do: %s}\n"
	)
	const (
		drainedFirst               = "drain}\n  - {at: 7s, engine: P, do: kill"
		readerDied, readerWithdrew = "a reader has died", "a reader has withdrawn"
		ownerDied, ownerWithdrew   = "engine P is gone", "engine P has given its memory up"
	)
	for _, tc := range []struct{ name, held, engine, do, want string }{
		{"a reader that unregisters", held, "D", "unregister", readerWithdrew},
		{"a reader that is killed", held, "D", "kill", readerDied},
		{"an owner that unregisters", held, "P", "unregister", ownerWithdrew},
		{"an owner that is killed", held, "P", "kill", ownerDied},
		{"an owner that has drained and is killed", "", "P", drainedFirst, ownerWithdrew},
		{"an owner that drains and is killed", held, "P", drainedFirst, ownerDied},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := parsedCase(t, text+tc.held+fmt.Sprintf(act, tc.engine, tc.do))
			r, err := Run(c.Schedule, Options{Log: true})
			if err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			r.Log.WriteTo(&log)
			for _, said := range []string{readerDied, readerWithdrew, ownerDied, ownerWithdrew} {
				if n := strings.Count(log.String(), said); (n == 1) != (said == tc.want) || n > 1 {
					t.Errorf("%q is said %d times, want %q", said, n, tc.want)
				}
			}
		})
	}
}
