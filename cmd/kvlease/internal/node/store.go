package node

import (
	"fmt"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/gpucache"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/kvcache"
	"github.com/kvlease/kvlease/cuda"
	"github.com/kvlease/kvlease/cuda/ipc"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// store is the KV cache of this process: in host memory, or in that of a device, where everything can fail.
type store interface {
	Addr(layer uint32) uint64
	// Fill writes a request's KV, by position in the request, into these blocks.
	Fill(request string, blocks []uint32) error
	// Launch is Fill by a device's own work. The event tells that they are written, until Done; 0: they are.
	Launch(request string, blocks []uint32) (event uint64, err error)
	Fired(event uint64) (bool, error)
	Done(event uint64)
	Clear(blocks []uint32) error
	// BadBytes counts the bytes that are not the request's, Landed those of cleared blocks that have been written since.
	BadBytes(request string, blocks []uint32) (uint64, error)
	Landed(blocks []uint32) (uint64, error)
	Close() error
}

// inHost is host memory, which stays until the process ends: a late transfer may still write there.
type inHost struct{ cache *kvcache.Cache }

func (h inHost) Addr(layer uint32) uint64          { return h.cache.Addr(layer) }
func (h inHost) Fired(uint64) (bool, error)        { return true, nil }
func (h inHost) Done(uint64)                       {}
func (h inHost) Landed(b []uint32) (uint64, error) { return h.cache.Landed(b), nil }
func (h inHost) Close() error                      { return nil }

func (h inHost) Fill(request string, blocks []uint32) error {
	h.cache.Fill(request, blocks)
	return nil
}

func (h inHost) Launch(request string, blocks []uint32) (uint64, error) {
	return 0, h.Fill(request, blocks)
}

func (h inHost) Clear(blocks []uint32) error {
	h.cache.Clear(blocks)
	return nil
}

func (h inHost) BadBytes(request string, blocks []uint32) (uint64, error) {
	return h.cache.BadBytes(request, blocks), nil
}

// Bounds of the reads that the driver carries (ReadsIPC).
const (
	ipcReadsMax = 1 << 10
	ipcDescsMax = 4096 // descs_step_max: no read of the plane has more
)

// MemoryVRAM and ReadsIPC are values of Config.
const (
	MemoryVRAM = "vram"
	ReadsIPC   = "ipc"
)

// memory is what a process holds of KV, and what has to be known for it.
type memory struct {
	shape *kvcache.Cache
	store store
	mem   transport.Mem
	of    uint32           // device
	view  core.OpenDevices // nil: no device memory
	wrap  func(core.OpenTransport) core.OpenTransport
}

// openMemory makes the cache of this process, where its configuration says.
func openMemory(cfg *Config) (*memory, error) {
	shape, err := kvcache.NewRank(cfg.Layers, cfg.Blocks, cfg.TPRank, max(cfg.TP, 1))
	if err != nil {
		return nil, err
	}
	m := &memory{shape: shape, store: inHost{shape}}
	if cfg.Memory != MemoryVRAM {
		return m, nil
	}
	driver, err := cuda.Open("")
	if err != nil {
		return nil, err
	}
	cache, err := gpucache.Open(driver, cfg.Device, shape)
	if err != nil {
		return nil, err
	}
	m.store, m.mem, m.of, m.view = cache, transport.VRAM, uint32(cfg.Device), cfg.Machine.Open
	if cfg.Reads == ReadsIPC {
		m.wrap = func(open core.OpenTransport) core.OpenTransport {
			return func(cfg *core.Config, agent string) (transport.Transport, error) {
				inner, err := open(cfg, agent)
				if err != nil {
					return nil, err
				}
				return ipc.New(inner, ipc.Config{Driver: driver, ReadsMax: ipcReadsMax, DescsMax: ipcDescsMax})
			}
		}
	}
	return m, nil
}

// transports are those of the process, with what this memory needs in front.
func (m *memory) transports(list map[string]core.OpenTransport) map[string]core.OpenTransport {
	if m.wrap == nil {
		return list
	}
	wrapped := map[string]core.OpenTransport{}
	for name, open := range list {
		wrapped[name] = m.wrap(open)
	}
	return wrapped
}

// regions is one per layer.
func (m *memory) regions() []core.Region {
	var list []core.Region
	length := uint64(m.shape.BlockLen)
	for l := range m.shape.Layers {
		list = append(list, core.Region{
			Addr: m.store.Addr(l), Bytes: uint64(m.shape.Blocks) * length, BlockLen: length, BlockStride: length, Blocks: m.shape.Blocks, Group: -1,
			Mem: m.mem, Device: m.of, Name: fmt.Sprintf("layer.%d", l), Parts: kvcache.Parts,
		})
	}
	return list
}

// looked is what is in blocks, for a report; the text says why it cannot be known.
func (m *memory) looked(request string, blocks []uint32) (bad, landed *uint64, why string) {
	landedNow, err := m.store.Landed(blocks)
	if err == nil {
		var badNow uint64
		if badNow, err = m.store.BadBytes(request, blocks); err == nil {
			return &badNow, &landedNow, ""
		}
	}
	return nil, nil, err.Error()
}
