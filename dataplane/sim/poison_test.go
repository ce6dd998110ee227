package sim

import (
	"fmt"
	"testing"
)

// A host breaks while ranks of its engine, or all of it, stand still, which cannot hear that they have to close their rows: a reader may be told by the
// row that a lease lives whose blocks were given out again.
func TestABrokenHostTellsNoEndWhileARankOfItsStandsStill(t *testing.T) {
	const text = `
span: 70s
engines:
  - {id: P, host: true, tp: 2, lease: 12s, carrier: %s}
  - {id: D, host: true, tp: 2, lease: 12s, known: [P]}
actions:
  - {at: 1s, engine: P, do: grant, req: a, blocks: 4}
  - {at: 1s, engine: D, do: track, req: a, peer: P}
  - {at: 4s, engine: P, rank: %s, do: stop, for: %s}
  - {at: 7s, engine: P, rank: host, do: poison}
%s
expect:
  - {at: 24.1s, engine: P, event: poisoned, is: 1}
  - {until: 23.9s, from: 1.1s, held: a}
  - {by: %s, after: 35.9s, freed: a, reason: poisoned}
`
	for _, tc := range []struct{ name, carrier, rank, stop, act, by string }{
		{name: "one rank", carrier: "process", rank: "1", stop: "20s", by: "37s"},
		{name: "all of it", carrier: "process", rank: "all", stop: "20s", by: "37s"},
		{name: "all of it, on other machines", carrier: "delta", rank: "all", stop: "20s", by: "37s"},
		{name: "one rank, until its process ends", carrier: "delta", rank: "1", stop: "60s",
			act: "  - {at: 24s, engine: P, rank: 1, do: lose_rank}", by: "38s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wantRight(t, "case", parsedCase(t, fmt.Sprintf(text, tc.carrier, tc.rank, tc.stop, tc.act, tc.by)))
		})
	}
}

// Its time is up before the ranks go on, and blocks are read, written over and given out again meanwhile.
func TestNobodyIsHandedBlocksOfABrokenHostThatWereGivenOutAgain(t *testing.T) {
	wantUnbroken(t, `
span: 60s
engines:
  - {id: P, host: true, tp: 2, lease: 12s}
  - {id: D, host: true, tp: 2, lease: 12s, known: [P]}
actions:
  - {at: 0s, engine: P, do: grant, req: a, blocks: 4, for: 17s}
  - {at: 1s, engine: D, do: track, req: a, peer: P}
  - {at: 16s, engine: P, rank: all, do: stop, for: 20s}
  - {at: 19s, engine: P, rank: host, do: poison}
  - {at: 30s, engine: D, do: hold_read, for: 3s}
  - {at: 30s, engine: D, do: read, req: a, blocks: 4}
  - {at: 35s, engine: D, do: read, req: a, blocks: 4}
`)
}
