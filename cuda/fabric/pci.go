package fabric

import (
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kvlease/kvlease/cuda/fabric/rdma"
)

// tree is sysfs below a root.
type tree string

// rootComplex is the folder below which the kernel puts the devices of a host bridge.
var rootComplex = regexp.MustCompile(`^pci[0-9a-f]{4,}:[0-9a-f]{2}$`)

// path is the way from the host bridge to a function: pci0000:17, its root port, the ports of switches, and the function itself.
// nil if sysfs does not know it.
func (t tree) path(pci string) []string {
	if pci == "" {
		return nil
	}
	real, err := filepath.EvalSymlinks(filepath.Join(string(t), "bus", "pci", "devices", pci))
	if err != nil {
		return nil
	}
	parts := strings.Split(real, string(filepath.Separator))
	at := slices.IndexFunc(parts, rootComplex.MatchString)
	if at < 0 {
		return nil
	}
	return parts[at:]
}

// node is the NUMA node of a function, -1 if nothing tells. Firmware may say it for a bridge above it only; where there is
// one node, it is that.
func (t tree) node(pci string) int {
	dir, err := filepath.EvalSymlinks(filepath.Join(string(t), "bus", "pci", "devices", pci))
	if pci == "" || err != nil {
		return -1
	}
	for ; filepath.Base(dir) != "devices" && dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if n, err := strconv.Atoi(rdma.Text(dir, "numa_node")); err == nil && n >= 0 {
			return n
		}
	}
	if nodes := t.nodes(); len(nodes) == 1 {
		return nodes[0]
	}
	return -1
}

// nodes are the NUMA nodes that have processors: Grace Hopper's GPU memory is a node, too.
func (t tree) nodes() []int {
	for _, file := range []string{"has_cpu", "online"} {
		if nodes := List(rdma.Text(string(t), "devices/system/node", file)); len(nodes) > 0 {
			return nodes
		}
	}
	return nil
}

// nvidiaOnBus lists the addresses of NVIDIA's display and 3D controllers on the bus, whatever drives them.
func (t tree) nvidiaOnBus() (gpus []string) {
	all, _ := filepath.Glob(filepath.Join(string(t), "bus/pci/devices", "*"))
	for _, dir := range all {
		if rdma.Text(dir, "vendor") == "0x10de" && strings.HasPrefix(rdma.Text(dir, "class"), "0x03") {
			gpus = append(gpus, filepath.Base(dir))
		}
	}
	return gpus
}

// listMax is more than the kernel has processors or nodes (CONFIG_NR_CPUS, 8,192 at most).
const listMax = 1 << 16

// List reads a list as the kernel writes it: 0-3,8. What is none gives nothing, and so does one with numbers that nothing has.
func List(text string) (list []int) {
	for part := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		first, last, isRange := strings.Cut(part, "-")
		from, err := strconv.Atoi(first)
		to := from
		if isRange && err == nil {
			to, err = strconv.Atoi(last)
		}
		if err != nil || from < 0 || to >= listMax || len(list)+to-from >= listMax {
			return nil
		}
		for n := from; n <= to; n++ {
			list = append(list, n)
		}
	}
	return list
}
