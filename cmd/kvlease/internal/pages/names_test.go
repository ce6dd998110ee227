package pages

import (
	"testing"

	"github.com/kvlease/kvlease/dataplane/watch"
	"github.com/kvlease/kvlease/dataplane/wire"
)

func TestAnEngineHasTheNameThatAnyPageKnows(t *testing.T) {
	n := NewNames()
	n.Learn(&watch.Snapshot{
		Head:    watch.Head{Engine: "own", Hash: 1},
		Remotes: []watch.Remote{{ID: "remote", Hash: 2}, {ID: "without a hash"}, {Hash: 3}},
		Readers: []watch.Reader{{Name: "agent"}, {Hash: 4}},
	})
	for hash, want := range map[uint64]string{
		1: "own", 2: "remote", wire.EngineHash([]byte("agent")): "agent",
		0: "engine 0000000000000000", 3: "engine 0000000000000003", 4: "engine 0000000000000004",
	} {
		if got := n.Engine(hash); got != want {
			t.Errorf("%d is called %q, want %q", hash, got, want)
		}
	}
}

func TestAReaderWithoutANameIsSaidToHaveNone(t *testing.T) {
	n := NewNames()
	n.Add(1, "decode-0")
	for _, tc := range []struct {
		want string
		r    watch.Reader
	}{
		{"nobody yet", watch.Reader{Unnamed: true}},
		{"all others", watch.Reader{Other: true}},
		{"agent", watch.Reader{Name: "agent", Hash: 1}},
		{"decode-0", watch.Reader{Hash: 1}},
		{"engine 0000000000000002", watch.Reader{Hash: 2}},
		{"", watch.Reader{}},
	} {
		if got := n.Reader(&tc.r); got != tc.want {
			t.Errorf("%+v is called %q, want %q", tc.r, got, tc.want)
		}
	}
}
