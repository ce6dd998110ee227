package rdma

import (
	"slices"
	"strings"
)

// Takes tells which NICs UCX uses of those that it can, by what its user says in UCX_TLS and UCX_NET_DEVICES. Empty is not said. Their form is that of
// UCX's lists (openucx/ucx, ucs/config/parser.c, "allow list"): names, all, or, behind ^, all but what is named.
func Takes(tls, netDevices string) func(nic string) bool {
	if !Verbs(tls) {
		return func(string) bool { return false }
	}
	names, not := listOf(netDevices)
	if len(names) == 0 || !not && slices.Contains(names, "all") {
		return func(string) bool { return true }
	}
	return func(nic string) bool {
		return not != slices.ContainsFunc(names, func(name string) bool {
			device, _, _ := strings.Cut(name, ":")
			return device == nic
		})
	}
}

// Verbs tells whether UCX_TLS leaves UCX a transport over RDMA NICs.
func Verbs(tls string) bool {
	names, not := listOf(tls)
	has := func(name string) bool { return slices.Contains(names, name) }
	if not {
		return !has("ib") && !(has("rc") && has("dc") && has("ud"))
	}
	return len(names) == 0 || slices.ContainsFunc(names, func(name string) bool {
		base, _, _ := strings.Cut(strings.TrimPrefix(name, `\`), "_")
		return base == "ib" || base == "rc" || base == "dc" || base == "ud" || name == "all"
	})
}

// listOf reads a list as UCX does: what is named, or, behind ^, all but what is named.
func listOf(text string) (names []string, not bool) {
	text, not = strings.CutPrefix(strings.TrimSpace(text), "^")
	for name := range strings.SplitSeq(text, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	return names, not
}
