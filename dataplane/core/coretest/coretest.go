// Package coretest opens contexts for the tests of what shows, reads or drives them.
package coretest

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// Open makes a context and its memory, and closes it when the test ends. open is its transport "loopback"; nil: one that it has for itself.
func Open(t testing.TB, config string, open core.OpenTransport) (*core.Core, *record.Memory) {
	t.Helper()
	cfg, err := core.ParseConfig([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	mem, err := core.NewMemory(cfg.Sizes())
	if err != nil {
		t.Fatal(err)
	}
	if open == nil {
		open = core.Loopback(loopback.NewHub())
	}
	c, err := core.Open(cfg, mem, map[string]core.OpenTransport{"loopback": open}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(time.Second); err != nil {
			t.Error(err)
		}
	})
	return c, mem
}
