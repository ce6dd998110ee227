package demo

import (
	"fmt"
	"strings"
)

// Memories of the engines' KV caches.
const (
	MemoryDRAM     = "dram"
	MemoryVRAM     = "vram"     // of GPUs
	MemoryFakeCUDA = "fakecuda" // of a fake driver, which stands for them
)

// Device says where KV caches are when they are not in host memory.
type Device struct {
	Of      [2]int // ordinals of P's and D's
	Reads   string // transport, or ipc: the driver copies
	Machine string // folder of a machine in which NICs are looked for; "": this one
	Driver  string // file of the fake, to be named
}

// onDevice is one engine's part of it.
type onDevice struct {
	Device
	ordinal int
}

func (d *onDevice) flags() []string {
	flags := []string{"--memory", MemoryVRAM, "--device", fmt.Sprint(d.ordinal), "--device-reads", d.Reads}
	if d.Machine != "" {
		flags = append(flags, "--machine", d.Machine)
	}
	return flags
}

// deviceOf is where an engine has its cache; nil: in host memory.
func (c *Config) deviceOf(name string) *onDevice {
	switch {
	case !c.onDevices():
		return nil
	case name == "D":
		return &onDevice{c.Device, c.Device.Of[1]}
	}
	return &onDevice{c.Device, c.Device.Of[0]}
}

func (c *Config) onDevices() bool { return c.Memory != "" && c.Memory != MemoryDRAM }

// played are the runs of a scene with the memory that was asked for. The C programs hold host memory, so stand-ins take their places; over TCP
// UCX needs its way between a device and host memory, too.
func (c *Config) played(list []variant) []variant {
	if !c.onDevices() {
		return list
	}
	var played []variant
	for _, v := range list {
		v.p, v.d = "node", "node"
		if v.ucxTLS != "" && c.Device.Reads != readsIPC {
			v.ucxTLS += ",cuda_copy"
		}
		played = append(played, v)
	}
	return played
}

const readsIPC = "ipc"

// NodeFlags are what a stand-in is told of the memory that was asked for, P's.
func (c *Config) NodeFlags() []string {
	if d := c.deviceOf("P"); d != nil {
		return d.flags()
	}
	return nil
}

// replaced says what is not as in an engine with GPUs, and why.
func (c *Config) replaced() (list []string) {
	if !c.onDevices() {
		return nil
	}
	if c.Memory == MemoryFakeCUDA {
		list = append(list, fmt.Sprintf("the CUDA driver: a fake (%s), whose memory the host cannot touch. It shows what kvlease does, and nothing of a GPU", c.Device.Driver))
	}
	if c.Device.Reads == readsIPC {
		list = append(list, "NIXL's part in device memory: it registers none and reads none, since its UCX has no way to such memory here. D opens P's by IPC handles and the driver copies, as UCX's cuda_ipc does; heartbeats, rows, fences, completions and handshakes go over NIXL")
	}
	if c.Device.Machine != "" {
		list = append(list, "the machine in which registration looks for NICs: one that is made up, so that what NICs need is checked, too")
	}
	return append(list, "the C programs: they hold host memory, so stand-ins (kvlease node) take their places")
}

// tellRefusals tells what drivers have refused, though the engines went on: they meet a peer once more whose memory they could not open.
func (s *stage) tellRefusals() {
	for _, e := range s.all {
		for _, what := range e.refusals() {
			s.refused = append(s.refused, fmt.Sprintf("%s: %s: %s", s.name(), e, what))
			s.tell("%s", s.say.paint.warn(fmt.Sprintf("the CUDA driver has refused %s something: %s", e.spec.name, what)))
		}
	}
}

// tellMemory says at the start where the blocks are, and what is replaced.
func (n *narrator) tellMemory(c *Config) {
	if !c.onDevices() {
		return
	}
	n.line("KV caches are in device memory of GPU %d (P) and GPU %d (D). They are registered as an engine's are; blocks are offered when the event behind their last write has fired.",
		c.Device.Of[0], c.Device.Of[1])
	n.line("%s", n.paint.warn("replaced here:"))
	for _, what := range c.replaced() {
		n.line("  %s", strings.TrimSpace(what))
	}
}
