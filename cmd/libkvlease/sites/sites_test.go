package sites_test

import (
	"bytes"
	"os"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	_ "github.com/kvlease/kvlease/cmd/libkvlease/sites/hooks"
	"github.com/kvlease/kvlease/dataplane/trace"
)

func TestTheHeaderHasTheSitesOfThePlaneInTheirOrder(t *testing.T) {
	text, err := os.ReadFile("sites.h")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"hook__submit"}
	_, text, _ = bytes.Cut(text, []byte("define KVL_SITES_OF_CORE"))
	for _, m := range regexp.MustCompile(`(?m)^\tX\((\w+)\)`).FindAllSubmatch(text, -1) {
		names = append(names, string(m[1]))
	}
	if diff := cmp.Diff(trace.Names[:], names); diff != "" {
		t.Errorf("(-dataplane/trace +sites.h):\n%s", diff)
	}
	if words := regexp.MustCompile(`KVL_SITE_WORDS (\d+)`).FindSubmatch(text); string(words[1]) != "16" || len(trace.Words{}) != 16 || trace.Count > 16 {
		t.Errorf("%s words in sites.h, %d in dataplane/trace, %d sites", words[1], len(trace.Words{}), trace.Count)
	}
}

// Nobody is attached to this process, so the call that costs is made for its own sake: it does nothing, and allocates nothing.
func TestACallThroughASiteAllocatesNothing(t *testing.T) {
	s := trace.Process().For(1)
	for site := range trace.Count {
		if s.On(site) {
			t.Skipf("somebody is attached to %v of this process", site)
		}
	}
	if n := testing.AllocsPerRun(100, func() {
		for site := range trace.Count + 2 { // also a number that is none
			s.Fire(site, 1, 2, 3, 4)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkOff(b *testing.B) {
	s := trace.Process().For(1)
	for b.Loop() {
		if s.On(trace.StepBegin) {
			s.Fire(trace.StepBegin, 1, 2, 3, 4)
		}
	}
}

// The way into C, which is gone only while somebody is attached.
func BenchmarkFire(b *testing.B) {
	s := trace.Process().For(1)
	for b.Loop() {
		s.Fire(trace.StepBegin, 1, 2, 3, 4)
	}
}
