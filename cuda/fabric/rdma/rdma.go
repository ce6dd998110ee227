// Package rdma tells which RDMA devices this machine has, which of them a process can use, and whether they reach GPU memory.
//
// It reads sysfs, whose files Documentation/ABI/stable/sysfs-class-infiniband of the Linux kernel describes, and opens no device.
package rdma

import (
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// NIC is one RDMA device: for hardware with two ports on two functions each function is one.
type NIC struct {
	Name     string // as UCX_NET_DEVICES has it, without the port
	PCI      string // address of its function; empty: it is none of PCI, such as rxe and siw
	Driver   string
	Firmware string
	Net      []string // network interfaces of the same function
	Verbs    string   // the file by which a process opens it; empty: ib_uverbs is not loaded
	Closed   error    // why this process cannot open it
	Ports    []Port
}

// Port is one port of a NIC.
type Port struct {
	N     int
	State string  // ACTIVE, DOWN, INIT, ARMED
	Phys  string  // LinkUp, Polling, Disabled
	Layer string  // InfiniBand or Ethernet
	Rate  string  // in the kernel's words: 400 Gb/sec (4X NDR)
	Gbps  float64 // the same as a number, Gbit/s; 0: not told
	GIDs  []GID   // of a RoCE port, those that are not empty
}

// RoCE tells whether the port is one of Ethernet.
func (p *Port) RoCE() bool { return p.Layer == "Ethernet" }

// Active tells whether the port carries traffic.
func (p *Port) Active() bool { return p.State == "ACTIVE" }

// Active are the ports that carry traffic.
func (n *NIC) Active() (ports []*Port) {
	for i := range n.Ports {
		if n.Ports[i].Active() {
			ports = append(ports, &n.Ports[i])
		}
	}
	return ports
}

// Usable tells whether UCX in this process would take it: it can be opened and has a port that is up. A container sees all NICs
// of its machine in sysfs, whether it was given any or not.
func (n *NIC) Usable() bool { return n.Verbs != "" && n.Closed == nil && len(n.Active()) > 0 }

// Usable are those of nics that UCX in this process would take.
func Usable(nics []NIC) (usable []NIC) {
	for _, n := range nics {
		if n.Usable() {
			usable = append(usable, n)
		}
	}
	return usable
}

// Look lists the RDMA devices below a sysfs root and a root of device files, /sys and /dev on a machine, in the order of their names.
func Look(sys, dev string) []NIC {
	links, _ := filepath.Glob(filepath.Join(sys, "class", "infiniband", "*"))
	verbs := verbsFiles(sys)
	nics := make([]NIC, 0, len(links))
	for _, link := range links {
		nics = append(nics, look(link, dev, verbs))
	}
	slices.SortFunc(nics, func(a, b NIC) int { return natural(a.Name, b.Name) })
	return nics
}

func look(link, dev string, verbs map[string]string) NIC {
	n := NIC{Name: filepath.Base(link), Firmware: Text(link, "fw_ver")}
	function := filepath.Join(link, "device")
	if real, err := filepath.EvalSymlinks(function); err == nil && isPCI(filepath.Base(real)) {
		n.PCI = filepath.Base(real)
	}
	if driver, err := filepath.EvalSymlinks(filepath.Join(function, "driver")); err == nil {
		n.Driver = filepath.Base(driver)
	}
	interfaces, _ := filepath.Glob(filepath.Join(function, "net", "*"))
	for _, i := range interfaces {
		n.Net = append(n.Net, filepath.Base(i))
	}
	if file, ok := verbs[n.Name]; ok {
		n.Verbs = filepath.Join(dev, "infiniband", file)
		n.Closed = unix.Access(n.Verbs, unix.R_OK|unix.W_OK)
	}
	ports, _ := filepath.Glob(filepath.Join(link, "ports", "*"))
	for _, p := range ports {
		if port, ok := lookPort(p); ok {
			n.Ports = append(n.Ports, port)
		}
	}
	slices.SortFunc(n.Ports, func(a, b Port) int { return a.N - b.N })
	return n
}

func lookPort(dir string) (Port, bool) {
	n, err := strconv.Atoi(filepath.Base(dir))
	if err != nil {
		return Port{}, false
	}
	p := Port{N: n, State: second(Text(dir, "state")), Phys: second(Text(dir, "phys_state")),
		Layer: Text(dir, "link_layer"), Rate: Text(dir, "rate")}
	p.Gbps = Rate(p.Rate)
	if p.RoCE() {
		p.GIDs = gids(dir)
	}
	return p, true
}

// verbsFiles gives the device file of each NIC.
func verbsFiles(sys string) map[string]string {
	files := map[string]string{}
	all, _ := filepath.Glob(filepath.Join(sys, "class", "infiniband_verbs", "uverbs*"))
	for _, v := range all {
		if name := Text(v, "ibdev"); name != "" {
			files[name] = filepath.Base(v)
		}
	}
	return files
}

// Rate is the number that a rate of the kernel's begins with: 400 Gb/sec (4X NDR), 32.0 GT/s PCIe. 0: it tells none, also not by NaN, Inf or a
// number below 0, which would go into sums, comparisons and JSON.
func Rate(text string) float64 {
	number, _, _ := strings.Cut(text, " ")
	rate, err := strconv.ParseFloat(number, 64)
	if err != nil || !(rate > 0) || math.IsInf(rate, 0) {
		return 0
	}
	return rate
}

// second is what stands behind the number in a state such as "4: ACTIVE".
func second(text string) string {
	if _, name, ok := strings.Cut(text, ": "); ok {
		return name
	}
	return text
}

// isPCI tells whether a name is the address of a PCI function: 0000:1a:00.0.
func isPCI(name string) bool {
	return len(name) >= len("0000:00:00.0") && strings.Count(name, ":") == 2 && strings.Contains(name, ".")
}

// natural compares names whose last part is a number: mlx5_2 comes before mlx5_10.
func natural(a, b string) int {
	stem := func(s string) (string, int) {
		cut := strings.TrimRight(s, "0123456789")
		n, _ := strconv.Atoi(s[len(cut):])
		return cut, n
	}
	x, i := stem(a)
	y, j := stem(b)
	if c := strings.Compare(x, y); c != 0 {
		return c
	}
	return i - j
}
