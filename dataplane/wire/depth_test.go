package wire

import (
	"errors"
	"testing"
)

// What is nested in an unknown key may be as deep as the limit says, counted from the outermost map.
func TestTheDepthOfAnUnknownKeyCountsFromTheOutermostMap(t *testing.T) {
	h := fullMap()
	good := AppendHandshake(nil, &h)
	for _, tc := range []struct {
		name string
		with func(levels int) []byte
		most int
	}{
		{"a key of the map", func(n int) []byte { return edit(t, good, "later", nest(n)) }, DepthMax - 1},
		{"a key of ours", func(n int) []byte { return editLease(t, good, "later", nest(n)) }, DepthMax - 2},
	} {
		var got Handshake
		if err := ParseHandshake(tc.with(tc.most), &got); err != nil {
			t.Errorf("%s, %d levels deep: %v", tc.name, tc.most, err)
		}
		if err := ParseHandshake(tc.with(tc.most+1), &got); !errors.Is(err, ErrDepth) {
			t.Errorf("%s, %d levels deep: %v, want %v", tc.name, tc.most+1, err, ErrDepth)
		}
	}
}
