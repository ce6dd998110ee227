package tracing

import (
	"fmt"
	"os"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/pages"
	"github.com/kvlease/kvlease/dataplane/probe"
	"github.com/kvlease/kvlease/dataplane/watch"
)

// names are what hashes and contexts are called: processes say it in their stats pages.
type names struct {
	dir      string // of the pages
	contexts map[probe.Context]string
	engines  *pages.Names
	aliases  map[uint64]probe.Context // hashes that only a context of ours sends or receives under
	strange  map[uint32]bool          // processes that are not, or no more, to be found here
}

// namesMax bounds what is remembered of each kind.
const namesMax = 1 << 14

func newNames(dir string) *names {
	return &names{dir: dir, contexts: map[probe.Context]string{}, engines: pages.NewNames(), aliases: map[uint64]probe.Context{}, strange: map[uint32]bool{}}
}

// learn reads the pages of processes.
func (n *names) learn(pids []uint32, aliases []probe.Alias) {
	strange := false
	for _, pid := range pids {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil {
			if !n.strange[pid] && len(n.strange) < namesMax {
				n.strange[pid], strange = true, true
			}
			continue
		}
		n.pages(pid)
	}
	if strange { // gone, or of another container: what goes by a hash may have a name nevertheless
		n.engines.LearnAll(n.dir)
	}
	for _, a := range aliases {
		if len(n.aliases) < namesMax {
			n.aliases[a.Hash] = a.Context
		}
		if name := n.engines.Of(a.Hash); name != "" && n.contexts[a.Context] == "" && len(n.contexts) < namesMax {
			n.contexts[a.Context] = name
		}
	}
}

// pages reads those of one process, in its own view of the file system; there it may go by another number.
func (n *names) pages(pid uint32) {
	inner := pages.InnerPID(int(pid))
	paths, err := pages.Of(int(pid), n.dir)
	if err != nil {
		return
	}
	for _, path := range paths {
		page, err := watch.Open(path)
		if err != nil {
			continue
		}
		s := watch.Snapshot{SkipEnds: true}
		if page.Read(&s) == nil && s.PID == inner {
			n.page(pid, &s)
		}
		page.Close()
	}
}

func (n *names) page(pid uint32, s *watch.Snapshot) {
	if len(n.contexts) < namesMax {
		n.contexts[probe.Context{PID: pid, Number: uint32(s.Context)}] = s.Engine
	}
	n.engines.Learn(s)
}

// context is what a context is called.
func (n *names) context(c probe.Context) string {
	if name := n.contexts[c]; name != "" {
		return name
	}
	return fmt.Sprintf("process %d", c.PID)
}

// hash is what a hash stands for: an id, else the engine of the context that goes by it, else its digits.
func (n *names) hash(h uint64) string {
	if c, ok := n.aliases[h]; ok && n.engines.Of(h) == "" {
		return n.context(c)
	}
	return n.engines.Engine(h)
}

// others is what all are called that found no place of their own.
const others = "all others"

// ends names both ends of a series or an outlier. To is empty for what happens within one engine.
func (n *names) ends(stage probe.Stage, c probe.Context, from, to uint64) (string, string) {
	switch {
	case from == 0 && to == 0:
		return others, ""
	case stage.Between():
		return n.hash(from), n.hash(to)
	case to == 0:
		return n.context(c), ""
	}
	return n.context(c), n.hash(to)
}
