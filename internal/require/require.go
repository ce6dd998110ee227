// Package require lets a test skip for what a machine lacks, and fail where the machine is said to have it.
package require

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Skip ends the test, naming what is missing. It fails the test instead if KVLEASE_REQUIRE, a list like "nixl,cc", has
// the name: then somebody has promised that it is there.
func Skip(t testing.TB, name, why string) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("KVLEASE_REQUIRE"), ","), name) {
		t.Fatalf("KVLEASE_REQUIRE promises %s: %s", name, why)
	}
	t.Skipf("%s is missing: %s", name, why)
}
