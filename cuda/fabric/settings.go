package fabric

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kvlease/kvlease/cuda/fabric/rdma"
)

// Setting is an environment variable that UCX reads when it is loaded, for the process of one rank.
type Setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Reason string `json:"reason"`
	Users  string `json:"users,omitempty"` // what the user has set, which stays
	IsSet  bool   `json:"is_set"`
}

// Settings are what a process should tell UCX whose GPUs are called so, for example GPU 5, and whose NICs are chosen. What the user has set is said beside
// it and stays as it is. env is os.LookupEnv, or rdma.Told.
//
// Names and meanings are those of UCX 1.20 to 1.23 (ucp_context.c, uct/ib/base/ib_md.c) and of NIXL's UCX plugin, which sets
// MAX_RMA_RAILS to 2 unless the variable is there (ucx_utils.cpp). What they choose well by themselves is left to them.
func (h *Host) Settings(gpus string, c Choice, env func(string) (string, bool)) []Setting {
	return h.settings(gpus, c, env, false)
}

// Mild are Settings for a process that nobody has asked: they leave a way open wherever UCX has one by itself. The NICs of others are left out by name, so
// peers that no NIC reaches are reached by TCP as before, where Settings name the GPU's NICs and nothing else. What only turns a slow way into an
// error is left to the user.
func (h *Host) Mild(gpus string, c Choice, env func(string) (string, bool)) []Setting {
	return h.settings(gpus, c, env, true)
}

func (h *Host) settings(gpus string, c Choice, env func(string) (string, bool), mild bool) []Setting {
	var list []Setting
	add := func(name, value, format string, args ...any) {
		s := Setting{Name: name, Value: value, Reason: fmt.Sprintf(format, args...)}
		s.Users, s.IsSet = env(name)
		list = append(list, s)
	}
	if tls, set := env("UCX_TLS"); len(c.NICs) == 0 || set && !rdma.Verbs(tls) { // without transports over NICs, NICs alone would leave nothing
		return nil
	}
	usable := h.usable()
	_, narrowed := env("UCX_NET_DEVICES") // by the user, who knows how many ports that leaves
	if rest := slices.DeleteFunc(slices.Clone(usable), func(n int) bool { return slices.Contains(c.NICs, n) }); len(rest) > 0 {
		devices := strings.Join(h.ports(c.NICs), ",")
		if mild {
			devices = "^" + strings.Join(h.ports(rest), ",")
		}
		add("UCX_NET_DEVICES", devices, "of %d NICs these are %s's: %s. Without it UCX also takes %s", len(usable), gpus, c.Why, few(h.names(rest)))
	}
	if ports := len(h.ports(c.NICs)); ports > nixlRails && !narrowed {
		add("UCX_MAX_RMA_RAILS", strconv.Itoa(ports), "one read may use all %d ports of %s at once; NIXL says %d unless this is set", ports, gpus, nixlRails)
	}
	if h.GPUMemory.Any() && !mild {
		add("UCX_IB_GPU_DIRECT_RDMA", "yes", "GPU memory can be given to the NIC (%s). With UCX's own value, try, a NIC that cannot take it is used all the same, "+
			"and reads may go through host memory without a word; with yes it is refused with an error", h.ways())
	}
	return list
}

// nixlRails is what NIXL gives UCX_MAX_RMA_RAILS.
const nixlRails = 2

// ways are the ways by which a NIC may take GPU memory, in words.
func (h *Host) ways() string {
	var ways []string
	if h.GPUMemory.Module != "" {
		ways = append(ways, "peer memory by "+h.GPUMemory.Module)
	}
	if h.GPUMemory.DMABuf == nil {
		ways = append(ways, "dma-buf")
	}
	return strings.Join(ways, ", ")
}

// few are the first of a list of names.
func few(names []string) string {
	const most = 3
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
