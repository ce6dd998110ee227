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
	if len(c.NICs) < len(usable) {
		add("UCX_NET_DEVICES", strings.Join(h.ports(c.NICs), ","), "of %d NICs these are %s's: %s. Without it UCX also takes %s",
			len(usable), gpus, c.Why, h.others(c, usable))
	}
	if ports := len(h.ports(c.NICs)); ports > nixlRails && !narrowed {
		add("UCX_MAX_RMA_RAILS", strconv.Itoa(ports), "one read may use all %d ports of %s at once; NIXL says %d unless this is set", ports, gpus, nixlRails)
	}
	if h.GPUMemory.Any() {
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

// others are the NICs that were not chosen, with what is wrong with the nearest of them.
func (h *Host) others(c Choice, usable []int) string {
	var rest []string
	for _, n := range usable {
		if !slices.Contains(c.NICs, n) {
			rest = append(rest, h.NICs[n].Name)
		}
	}
	const most = 3
	if len(rest) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(rest[:most], ", "), len(rest)-most)
	}
	return strings.Join(rest, ", ")
}
