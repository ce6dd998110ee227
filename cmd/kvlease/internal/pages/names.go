package pages

import (
	"fmt"

	"github.com/kvlease/kvlease/dataplane/watch"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// namesMax bounds what is remembered, pagesMax the pages that LearnAll reads.
const (
	namesMax = 1 << 16
	pagesMax = 4096
)

// Names are what engines are called, by their hashes. An owner knows a reader of ours by its hash only; the reader's own page, or that of
// somebody who reads from it, has its id.
type Names struct{ hashes map[uint64]string }

// NewNames knows nobody.
func NewNames() *Names { return &Names{hashes: map[uint64]string{}} }

// Learn takes the names that a page has. A stock reader goes by the hash of its agent's name.
func (n *Names) Learn(s *watch.Snapshot) {
	n.Add(s.Hash, s.Engine)
	for i := range s.Remotes {
		n.Add(s.Remotes[i].Hash, s.Remotes[i].ID)
	}
	for i := range s.Readers {
		if name := s.Readers[i].Name; name != "" {
			n.Add(wire.EngineHash([]byte(name)), name)
		}
	}
}

// LearnAll takes the names of all pages in a folder that may be read.
func (n *Names) LearnAll(dir string) {
	paths, _ := watch.List(dir)
	for _, path := range paths[:min(len(paths), pagesMax)] {
		if page, err := watch.Open(path); err == nil {
			s := watch.Snapshot{SkipEnds: true}
			if page.Read(&s) == nil {
				n.Learn(&s)
			}
			page.Close()
		}
	}
}

// Add takes one name.
func (n *Names) Add(hash uint64, id string) {
	if hash != 0 && id != "" && len(n.hashes) < namesMax {
		n.hashes[hash] = id
	}
}

// Of is the name of an engine; empty if it is not known.
func (n *Names) Of(hash uint64) string { return n.hashes[hash] }

// Reader is what a reader is called. Leases that nobody has named yet, and those of readers without a place of their own, have none.
func (n *Names) Reader(r *watch.Reader) string {
	switch {
	case r.Unnamed:
		return "nobody yet"
	case r.Other:
		return "all others"
	case r.Name != "":
		return r.Name
	case r.Hash != 0:
		return n.Engine(r.Hash)
	}
	return ""
}

// Engine is what an engine is called: its name, or its hash in digits.
func (n *Names) Engine(hash uint64) string {
	if name := n.Of(hash); name != "" {
		return name
	}
	return fmt.Sprintf("engine %016x", hash)
}
