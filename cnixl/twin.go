package cnixl

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvlease/kvlease/dataplane/transport"
)

var _ transport.Twins = (*Agent)(nil)

// pastSharedMemory is what a twin's UCX is told, by NIXL's engine_config: which transports it may use. UCX's "self" reaches one worker only
// and "sm" names all that go through the memory of the machine (UCX's documentation of UCX_TLS); an agent of the same process would
// be reached by these, though no peer on another machine is. NIXL does not set it where UCX_TLS is in the environment.
var pastSharedMemory = transport.Setting{Name: "UCX_TLS", Value: "^sm"}

// Twin opens a second agent, which takes 20 descriptors and about 50 ms. ErrUnavailable: there can be none, or this agent answers only
// while it is polled (Config.Inline).
func (a *Agent) Twin(agent string) (transport.Twin, error) {
	if a.inline {
		return transport.Twin{}, fmt.Errorf("agent %s has no progress thread that would answer: %w", a.name, transport.ErrUnavailable)
	}
	cfg := Config{Agent: agent, PeersMax: 1, ReadsMax: transport.TwinReads, RegionsMax: 1, Settings: append(slices.Clone(a.settings), pastSharedMemory)}
	if err := cfg.checkName(); err != nil {
		return transport.Twin{}, err
	}
	tr, err := open(cfg, a.opened, a.library)
	if err != nil {
		return transport.Twin{}, err
	}
	t := transport.Twin{Transport: tr}
	t.Way, t.Near = twinWay(getenv("UCX_TLS"))
	return t, nil
}

// sharedMemory are the names that UCX has for transports through the memory of a machine, and for any.
var sharedMemory = []string{"all", "sm", "shm", "mm", "posix", "sysv", "xpmem", "cma", "knem"}

// twinWay says over what a twin reads if UCX_TLS is tls. near: it may be shared memory, which UCX prefers.
func twinWay(tls string) (way string, near bool) {
	tls = strings.TrimSpace(tls)
	if tls == "" {
		return "UCX past shared memory", false
	}
	without := strings.HasPrefix(tls, "^")
	named := false
	for name := range strings.SplitSeq(strings.TrimPrefix(tls, "^"), ",") {
		name = strings.TrimPrefix(strings.TrimSpace(name), `\`)
		if without { // all of it has to be named
			named = named || name == "sm" || name == "shm"
		} else {
			named = named || slices.Contains(sharedMemory, name)
		}
	}
	return "UCX_TLS=" + tls, named != without
}
