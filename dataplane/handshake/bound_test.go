package handshake

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/dataplane/wire"
)

func TestTheMapsOfAnEngineMayFillTheirBoundToTheByte(t *testing.T) {
	const ranks, most = 17, 1_000_000
	raw := func(n int) int {
		_, b, err := wire.ParsePayload(payload("P", strings.Repeat("x", n)))
		if err != nil {
			t.Fatal(err)
		}
		return len(b)
	}
	around := raw(most) - most
	for _, over := range []int{0, 1} {
		inLab(t, Config{}, func(l *lab) {
			last := mapBytesMax - (ranks-1)*(most+around) - around + over
			l.put("P", func(_ context.Context, r *Rank) ([][]byte, error) {
				n := most
				if r != nil && r.Transfer == ranks-1 {
					n = last
				}
				return [][]byte{payload("P", strings.Repeat("x", n)), l.stamp()}, nil
			})
			l.Want(1, Desc{ID: "P", Addr: "P", Ranks: allRanks(1, ranks)})
			l.sleep(0)
			if r := l.takeOne(); over == 0 && r.Err != nil || over == 1 && !errors.Is(r.Err, wire.ErrTooLong) {
				t.Errorf("%d bytes more than allowed: %v", over, r.Err)
			}
		})
	}
}
