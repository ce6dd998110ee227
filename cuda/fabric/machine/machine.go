// Package machine has descriptions of whole machines, and builds from them what this package's parent looks at: a sysfs tree in a
// folder, device files and procfs entries, and the script of a fake NVIDIA management library.
//
// The descriptions are our own, written after what vendors publish of such machines (each names its source). They are no captures.
package machine

import (
	"bytes"
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

//go:embed *.yaml
var files embed.FS

// Machine is a description.
type Machine struct {
	Text   string   `yaml:"text"`   // what it is, and the source of the shape
	Arch   string   `yaml:"arch"`   // of its processors, as Go names them; empty: amd64
	Nodes  []string `yaml:"nodes"`  // processors of each NUMA node, as 0-51,104-155; empty: a node of memory only
	Driver string   `yaml:"driver"` // version of the NVIDIA driver; empty: none is loaded
	CUDA   int      `yaml:"cuda"`   // that it serves, 12040 for 12.4
	Open   bool     `yaml:"open"`   // its kernel modules are the open ones
	Peer   string   `yaml:"peer"`   // peer memory module that is loaded
	GPUs   []GPU    `yaml:"gpus"`
	NICs   []NIC    `yaml:"nics"`

	IOMMU    string   `yaml:"iommu"`    // type of the groups of GPUs and NICs; empty: there is none
	Redirect []string `yaml:"redirect"` // ports of switches with P2P redirect, by their addresses
}

// GPU is one GPU. Path is the way to it without itself: host bridge, root port, ports of switches.
type GPU struct {
	PCI    string `yaml:"pci"`
	Path   string `yaml:"path"`
	Node   int    `yaml:"node"`
	Name   string `yaml:"name"`
	Memory uint64 `yaml:"memory"` // MiB
	BAR1   uint64 `yaml:"bar1"`   // MiB
	Link   string `yaml:"link"`   // GT/s and lanes, as 32.0 16
}

// NIC is one RDMA device with one port, or, without a name, a network interface without RDMA.
type NIC struct {
	Name  string `yaml:"name"`
	PCI   string `yaml:"pci"`
	Path  string `yaml:"path"`
	Node  int    `yaml:"node"`
	Layer string `yaml:"layer"` // InfiniBand or Ethernet
	Rate  string `yaml:"rate"`
	State string `yaml:"state"` // as sysfs has it; 4: ACTIVE if not given
	Shut  bool   `yaml:"shut"`  // this process has no device file for it
	Net   string `yaml:"net"`
	Link  string `yaml:"link"` // GT/s and lanes, as 32.0 16
	GIDs  []GID  `yaml:"gids"` // of Ethernet
}

// GID is an entry of a RoCE port's table.
type GID struct {
	Index   int    `yaml:"index"`
	Type    string `yaml:"type"`    // RoCE v2, IB/RoCE v1
	Address string `yaml:"address"` // as netip reads it
}

// gidEntries is how many entries a port's table has here; a NIC's own has more, and all but a few are empty.
const gidEntries = 8

// Names are the descriptions that there are.
func Names() (names []string) {
	entries, err := files.ReadDir(".")
	if err != nil {
		panic(err) // they are built in
	}
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	return names
}

// Load reads one of them.
func Load(name string) (*Machine, error) {
	text, err := files.ReadFile(path.Clean(name) + ".yaml")
	if err != nil {
		return nil, fmt.Errorf("machine %q, there are %s: %w", name, strings.Join(Names(), ", "), err)
	}
	m := &Machine{}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(m); err != nil {
		return nil, fmt.Errorf("machine %q: %w", name, err)
	}
	return m, nil
}

// Script is what the fake management library has to be told, a command an element.
func (m *Machine) Script() []string {
	lines := []string{"reset", fmt.Sprintf("driver %s %d", m.Driver, m.CUDA)}
	for i, g := range m.GPUs {
		lines = append(lines, fmt.Sprintf("gpu %d %s %s", i, g.PCI, strings.ReplaceAll(g.Name, " ", "_")), fmt.Sprintf("memory %d %d 0", i, g.Memory<<20),
			fmt.Sprintf("bar1 %d %d 0", i, g.BAR1<<20), fmt.Sprintf("mig %d 0 0", i))
	}
	return lines
}

// builder writes files below a root, and remembers the first error.
type builder struct {
	root     string
	err      error
	redirect []string
	iommu    string
	groups   int
}

func (b *builder) put(name, text string) {
	if b.err == nil {
		name = filepath.Join(b.root, name)
		if b.err = os.MkdirAll(filepath.Dir(name), 0o755); b.err == nil {
			b.err = os.WriteFile(name, []byte(text+"\n"), 0o644)
		}
	}
}

// link makes name a link to what lies below the root.
func (b *builder) link(name, to string) {
	if b.err == nil {
		name = filepath.Join(b.root, name)
		if b.err = os.MkdirAll(filepath.Dir(name), 0o755); b.err == nil {
			b.err = os.Symlink(filepath.Join(b.root, to), name)
		}
	}
}

// Build makes the machine below a folder: sys, dev and proc.
func (m *Machine) Build(root string) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	b := &builder{root: root, redirect: m.Redirect, iommu: m.IOMMU}
	m.nodes(b)
	for _, g := range m.GPUs {
		dir := function(b, g.Path, g.PCI, g.Node, g.Link)
		b.put(dir+"/vendor", "0x10de")
		b.put(dir+"/class", "0x030200")
	}
	for i := range m.NICs {
		m.NICs[i].build(b, i)
	}
	if m.Driver != "" {
		kind := "NVIDIA UNIX x86_64 Kernel Module"
		if m.Open {
			kind = "NVIDIA UNIX Open Kernel Module for x86_64"
		}
		b.put("proc/driver/nvidia/version", "NVRM version: "+kind+"  "+m.Driver)
	}
	if m.Peer != "" {
		b.put("sys/module/"+m.Peer+"/version", m.Driver)
	}
	return b.err
}

func (m *Machine) nodes(b *builder) {
	var all, withCPU []string
	for n, cpus := range m.Nodes {
		all = append(all, fmt.Sprint(n))
		if cpus != "" {
			withCPU = append(withCPU, fmt.Sprint(n))
		}
		b.put(fmt.Sprintf("sys/devices/system/node/node%d/cpulist", n), cpus)
	}
	b.put("sys/devices/system/node/online", strings.Join(all, ","))
	b.put("sys/devices/system/node/has_cpu", strings.Join(withCPU, ","))
}

// function makes the folder of a PCI function, with all bridges above it, and gives it.
func function(b *builder, way, pci string, node int, link string) string {
	parts := append(strings.Fields(way), pci)
	dir := "sys/devices"
	for i, part := range parts {
		dir += "/" + part
		if _, err := os.Lstat(filepath.Join(b.root, "sys/bus/pci/devices", part)); i > 0 && err != nil {
			b.put(dir+"/numa_node", fmt.Sprint(node))
			b.link("sys/bus/pci/devices/"+part, dir)
			if part != pci {
				b.put(dir+"/config", b.config(part))
			}
		}
	}
	if b.iommu != "" {
		group := fmt.Sprintf("sys/kernel/iommu_groups/%d", b.groups)
		b.put(group+"/type", b.iommu)
		b.link(dir+"/iommu_group", group)
		b.groups++
	}
	if speed, width, ok := strings.Cut(link, " "); ok {
		for _, which := range []string{"current", "max"} {
			b.put(dir+"/"+which+"_link_speed", speed+" GT/s PCIe")
			b.put(dir+"/"+which+"_link_width", width)
		}
	}
	return dir
}

// config is the configuration space of a port as root sees it: two extended capabilities, of which the second is access control services with all
// that it can do and, if they redirect, with both redirects on (include/uapi/linux/pci_regs.h).
func (b *builder) config(port string) string {
	const first, second, acs = 0x100, 0x148, 0x0d
	space := make([]byte, 4096)
	binary.LittleEndian.PutUint32(space[first:], 1|1<<16|second<<20) // error reporting
	binary.LittleEndian.PutUint32(space[second:], acs|1<<16)
	binary.LittleEndian.PutUint16(space[second+4:], 0x1f)
	if slices.Contains(b.redirect, port) {
		binary.LittleEndian.PutUint16(space[second+6:], 0x1d) // source validation, both redirects, upstream forwarding
	}
	return string(space)
}

func (n *NIC) build(b *builder, index int) {
	dir := function(b, n.Path, n.PCI, n.Node, n.Link)
	b.put(dir+"/vendor", "0x15b3")
	b.put(dir+"/class", "0x020000")
	if n.Net != "" {
		b.put(dir+"/net/"+n.Net+"/operstate", "up")
	}
	if n.Name == "" {
		return
	}
	class := dir + "/infiniband/" + n.Name
	b.link("sys/class/infiniband/"+n.Name, class)
	b.link(class+"/device", dir)
	b.put(class+"/fw_ver", "28.39.1002")
	state := n.State
	if state == "" {
		state = "4: ACTIVE"
	}
	phys := "5: LinkUp"
	if !strings.HasPrefix(state, "4:") {
		phys = "3: Disabled"
	}
	for file, text := range map[string]string{"state": state, "phys_state": phys, "rate": n.Rate, "link_layer": n.Layer} {
		b.put(class+"/ports/1/"+file, text)
	}
	for i := range gidEntries {
		if n.Layer != "Ethernet" { // nobody looks at InfiniBand's
			break
		}
		b.put(fmt.Sprintf("%s/ports/1/gids/%d", class, i), "0000:0000:0000:0000:0000:0000:0000:0000")
	}
	for _, g := range n.GIDs {
		a, err := netip.ParseAddr(g.Address)
		if err != nil {
			b.err = errors.Join(b.err, err)
			continue
		}
		var words []string
		for raw := a.As16(); len(words) < 8; {
			words = append(words, fmt.Sprintf("%x", raw[2*len(words):2*len(words)+2]))
		}
		for file, text := range map[string]string{"gids": strings.Join(words, ":"), "gid_attrs/types": g.Type, "gid_attrs/ndevs": n.Net} {
			b.put(fmt.Sprintf("%s/ports/1/%s/%d", class, file, g.Index), text)
		}
	}
	verbs := fmt.Sprintf("uverbs%d", index)
	b.put("sys/class/infiniband_verbs/"+verbs+"/ibdev", n.Name)
	if !n.Shut {
		b.put("dev/infiniband/"+verbs, "")
	}
}
