package cnixl

import (
	"fmt"
	"strings"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// netDevices is the setting that NIXL takes by a parameter of its own.
const netDevices = "UCX_NET_DEVICES"

// connectAside has UCX's TCP connect beside the call that loads a peer. It waits there by default (UCX_TCP_CONN_NB), for one or two minutes where the network
// swallows what is sent (tcp_syn_retries), and no step goes on meanwhile: no other engine is beaten for. What a user has told UCX of it stays.
var connectAside = transport.Setting{Name: "UCX_TCP_CONN_NB", Value: "y"}

// backendParams are what NIXL's UCX backend takes of settings of UCX, for one agent alone (ai-dynamo/nixl, src/plugins/ucx, ucx_backend.cpp and
// ucx_utils.cpp, the same since 1.0): engine_config, a list KEY=VALUE split by commas, each of which gives way to the variable UCX_KEY; and device_list, names
// split by ", " that become the first port of each, which does not give way. set tells whether a variable is set.
//
// ErrInvalid: a value that neither can carry.
func backendParams(settings []transport.Setting, set func(name string) bool) (engine, devices string, err error) {
	var list []string
	for _, s := range settings {
		key, ucx := strings.CutPrefix(s.Name, "UCX_")
		if !ucx || strings.ContainsAny(s.Name+s.Value, "\x00") || strings.Contains(key, "=") {
			return "", "", fmt.Errorf("setting %q: no variable of UCX's: %w", s.Name, transport.ErrInvalid)
		}
		if !strings.Contains(s.Value, ",") {
			list = append(list, key+"="+s.Value)
			continue
		}
		names, carried := firstPorts(s.Value)
		if s.Name != netDevices || !carried {
			return "", "", fmt.Errorf("setting %s=%s: NIXL takes lists of the first ports of devices alone: %w", s.Name, s.Value, transport.ErrInvalid)
		}
		if !set(s.Name) {
			devices = strings.Join(names, ", ")
		}
	}
	return strings.Join(list, ","), devices, nil
}

// firstPorts takes the port from devices of which each has port 1. A ^ before the first, which stands for all but these, stays where it is.
func firstPorts(list string) (names []string, ok bool) {
	list, not := strings.CutPrefix(list, "^")
	for d := range strings.SplitSeq(list, ",") {
		name, first := strings.CutSuffix(strings.TrimSpace(d), ":1")
		if !first || name == "" || strings.ContainsAny(name, ":^ ") {
			return nil, false
		}
		names = append(names, name)
	}
	if not {
		names[0] = "^" + names[0]
	}
	return names, true
}

var _ transport.Tellable = (*Agent)(nil)

// Carries tells whether NIXL takes a setting.
func (a *Agent) Carries(s transport.Setting) bool {
	_, _, err := backendParams([]transport.Setting{s}, func(string) bool { return false })
	return err == nil
}

// named is what settings say of UCX_NET_DEVICES, unless the user has said it.
func named(settings []transport.Setting, told func(name string) (string, bool)) string {
	if users, set := told(netDevices); set {
		return users
	}
	for _, s := range settings {
		if s.Name == netDevices {
			return s.Value
		}
	}
	return ""
}
