package wire

import (
	"errors"
	"testing"
)

// What is nested in an unknown key may be as deep as the limit says, counted from the outermost map.
func TestTheDepthOfAnUnknownKeyCountsFromTheOutermostMap(t *testing.T) {
	h := fullMap()
	good := AppendHandshake(nil, &h)
	handshake := func(msg []byte) error { return ParseHandshake(msg, new(Handshake)) }
	payload := func(msg []byte) error { _, _, err := ParsePayload(msg); return err }
	for _, tc := range []struct {
		name  string
		parse func(msg []byte) error
		with  func(levels int) []byte
		most  int
	}{
		{"a key of the map", handshake, func(n int) []byte { return edit(t, good, "later", nest(n)) }, DepthMax - 1},
		{"a key of ours", handshake, func(n int) []byte { return editLease(t, good, "later", nest(n)) }, DepthMax - 2},
		{"a key beside the map", payload, func(n int) []byte { return edit(t, AppendPayload(nil, "hash", good), "later", nest(n)) }, DepthMax - 1},
	} {
		if err := tc.parse(tc.with(tc.most)); err != nil {
			t.Errorf("%s, %d levels deep: %v", tc.name, tc.most, err)
		}
		if err := tc.parse(tc.with(tc.most + 1)); !errors.Is(err, ErrDepth) {
			t.Errorf("%s, %d levels deep: %v, want %v", tc.name, tc.most+1, err, ErrDepth)
		}
	}
}
