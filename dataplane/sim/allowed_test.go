package sim

import "testing"

// What random runs were once told off for, and is allowed. Each is a run made small.
func TestTheCheckerDoesNotSpeakOfWhatIsAllowed(t *testing.T) {
	for _, tc := range []struct{ name, text string }{
		{"an expectation comes while its id is held, in a step that ends that lease: what is said of the id then is of nobody", `
seed: 190700000000000924
span: 11s
engines:
  - {id: P1, all_peers_check: true}
  - {id: D1, stock: true, known: [P1]}
actions:
  - {at: 0s, engine: P1, do: stall, for: 8s, rank: all}
  - {at: 7s, engine: P1, do: grant, blocks: 6, req: r23, id: r9}
  - {at: 8s, engine: P1, do: expect, req: r9}
  - {at: 8s, engine: D1, do: track, peer: P1, req: r23, as: r23}
  - {at: 8s, engine: D1, do: read, as: r23}
  - {at: 8s, engine: P1, do: revoke, req: r23}
  - {at: 10s, engine: P1, do: grant, blocks: 5, req: r9}
`},
		{"a rank that joins a host which has been broken for long has had no row that anybody knew of", `
seed: 190800000000003042
span: 14s
engines:
  - {id: P1, host: true, carrier: delta, lease: 6s, pass: 12s}
actions:
  - {at: 0s, engine: P1, do: grant, blocks: 3, req: r42}
  - {at: 1s, engine: P1, do: poison, rank: host}
`},
		{"a stock owner's failed read lands late in blocks that it has put under a fixed lease", `
seed: 183200000000003821
span: 59s
link: {late: 8s}
engines:
  - {id: P1}
  - {id: D2, stock: true, known: [P1]}
actions:
  - {at: 0s, engine: P1, do: grant, blocks: 5, for: 49s, req: r15, id: r2}
  - {at: 0s, engine: D2, do: fail_read, n: 1, for: 18s, rank: all}
  - {at: 14s, engine: D2, do: grant, blocks: 4, fixed: true, for: 13s, req: r11}
  - {at: 14s, engine: P1, do: track, peer: D2, req: r11, as: r11}
  - {at: 17s, engine: D2, do: track, peer: P1, req: r15, as: r15}
  - {at: 19s, engine: D2, do: read, all: true, as: r15}
  - {at: 37.3s, engine: D2, do: grant, blocks: 2, fixed: true, for: 14.7s, req: r20, id: 'HB:20'}
  - {at: 44s, engine: P1, do: track, peer: D2, req: r20, as: r20}
  - {at: 46s, engine: P1, do: read, all: true, as: r20}
`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wantUnbroken(t, tc.text)
		})
	}
}
