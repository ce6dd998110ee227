package nvml

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/kvlease/kvlease/cuda/fabric"
)

// gpu is a GPU that is asked.
type gpu struct {
	fabric.GPU
	handle nvml.Device
	known  bool // it has told where it is
}

// look asks for everything of a GPU. What it does not tell is noted; once it is lost, nothing more is asked.
func (m *management) look(index int) gpu {
	g := gpu{GPU: fabric.GPU{Index: index, Node: -1}}
	for _, step := range []struct {
		symbol string
		ask    func() nvml.Return
	}{
		{"nvmlDeviceGetHandleByIndex_v2", func() (r nvml.Return) { g.handle, r = m.lib.DeviceGetHandleByIndex(index); return r }},
		{"nvmlDeviceGetPciInfo_v3", func() nvml.Return {
			pci, r := g.handle.GetPciInfo()
			if r == nvml.SUCCESS {
				g.PCI, g.known = fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device), true
			}
			return r
		}},
		{"nvmlDeviceGetName", func() (r nvml.Return) { g.Name, r = g.handle.GetName(); return r }},
		{"nvmlDeviceGetUUID", func() (r nvml.Return) { g.UUID, r = g.handle.GetUUID(); return r }},
		{"nvmlDeviceGetMemoryInfo", func() nvml.Return {
			v, r := g.handle.GetMemoryInfo()
			g.Memory = fabric.Room{Total: v.Total, Free: min(v.Free, v.Total), Used: v.Used, Told: r == nvml.SUCCESS}
			return r
		}},
		{"nvmlDeviceGetBAR1MemoryInfo", func() nvml.Return {
			v, r := g.handle.GetBAR1MemoryInfo()
			g.BAR1 = fabric.Room{Total: v.Bar1Total, Free: min(v.Bar1Free, v.Bar1Total), Used: v.Bar1Used, Told: r == nvml.SUCCESS}
			return r
		}},
		{"nvmlDeviceGetMigMode", func() nvml.Return {
			now, next, r := g.handle.GetMigMode()
			g.MIG = fabric.Mode{Has: r == nvml.SUCCESS, Now: now == nvml.DEVICE_MIG_ENABLE, Next: next == nvml.DEVICE_MIG_ENABLE}
			return r
		}},
		{fabric.PartsSymbol, func() nvml.Return { return m.parts(&g) }},
		{"nvmlDeviceGetEccMode", func() nvml.Return {
			now, next, r := g.handle.GetEccMode()
			g.ECC.Mode = fabric.Mode{Has: r == nvml.SUCCESS, Now: now == nvml.FEATURE_ENABLED, Next: next == nvml.FEATURE_ENABLED}
			return r
		}},
		{"nvmlDeviceGetTotalEccErrors", func() (r nvml.Return) {
			g.ECC.Uncorrected, r = g.handle.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
			return r
		}},
		{"nvmlDeviceGetRemappedRows", func() (r nvml.Return) {
			g.Rows.Corrected, g.Rows.Uncorrected, g.Rows.Pending, g.Rows.Failed, r = g.handle.GetRemappedRows()
			return r
		}},
		{"nvmlDeviceGetFieldValues", func() nvml.Return {
			field := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
			r := g.handle.GetFieldValues(field)
			if r == nvml.SUCCESS {
				r = nvml.Return(field[0].NvmlReturn)
			}
			if r == nvml.SUCCESS {
				g.Action = fabric.Action(binary.NativeEndian.Uint32(field[0].Value[:]))
			}
			return r
		}},
	} {
		err := m.ask(step.symbol, step.ask)
		switch {
		case err == nil:
		case errors.Is(err, fabric.ErrLost) || errors.Is(err, fabric.ErrReset) || !g.known:
			g.Err = err
			return g
		case errors.Is(err, fabric.ErrUntold) || errors.Is(err, fabric.ErrSymbol):
			g.Untold = append(g.Untold, step.symbol)
		default:
			g.Err = errors.Join(g.Err, err)
		}
	}
	return g
}

// parts asks for the instances of a GPU in MIG mode.
func (m *management) parts(g *gpu) nvml.Return {
	if !g.MIG.Now {
		return nvml.SUCCESS
	}
	if m.symbol("nvmlDeviceGetMaxMigDeviceCount") != nil {
		return nvml.ERROR_NOT_SUPPORTED
	}
	n, r := g.handle.GetMaxMigDeviceCount()
	for i := 0; i < n && i < partsMax && r == nvml.SUCCESS; i++ {
		var part nvml.Device
		part, r = g.handle.GetMigDeviceHandleByIndex(i)
		if r == nvml.ERROR_NOT_FOUND { // places need not be filled in order
			r = nvml.SUCCESS
			continue
		}
		if r != nvml.SUCCESS {
			break
		}
		g.Parts = append(g.Parts, m.part(part))
	}
	return r
}

// part asks for an instance. What it does not tell stays empty.
func (m *management) part(d nvml.Device) (p fabric.Instance) {
	_ = m.ask("nvmlDeviceGetName", func() (r nvml.Return) { p.Name, r = d.GetName(); return r })
	_ = m.ask("nvmlDeviceGetUUID", func() (r nvml.Return) { p.UUID, r = d.GetUUID(); return r })
	_ = m.ask("nvmlDeviceGetMemoryInfo", func() nvml.Return {
		v, r := d.GetMemoryInfo()
		p.Memory = fabric.Room{Total: v.Total, Free: min(v.Free, v.Total), Used: v.Used, Told: r == nvml.SUCCESS}
		return r
	})
	return p
}

// watch waits so long for Xid errors of the GPUs, and notes those that come. NVML tells no older ones.
func (m *management) watch(gpus []gpu, d time.Duration) error {
	for _, symbol := range []string{"nvmlEventSetWait_v2", "nvmlEventSetFree", "nvmlDeviceRegisterEvents"} {
		if err := m.symbol(symbol); err != nil {
			return fmt.Errorf("%s: %w", symbol, fabric.ErrSymbol)
		}
	}
	var set nvml.EventSet
	if err := m.ask("nvmlEventSetCreate", func() (r nvml.Return) { set, r = m.lib.EventSetCreate(); return r }); err != nil {
		return err
	}
	defer set.Free()
	watched := 0
	for i := range gpus {
		if gpus[i].known && gpus[i].handle.RegisterEvents(nvml.EventTypeXidCriticalError, set) == nvml.SUCCESS {
			watched++
		}
	}
	const eventsMax = 64 // a GPU that fails tells one after the other
	for deadline := time.Now().Add(d); watched > 0; {
		event, r := set.Wait(uint32(max(time.Until(deadline), 0).Milliseconds()))
		if r != nvml.SUCCESS {
			if r == nvml.ERROR_TIMEOUT {
				return nil
			}
			return fmt.Errorf("nvmlEventSetWait_v2: %w", asError(r))
		}
		for i := range gpus {
			if gpus[i].known && gpus[i].handle == event.Device && len(gpus[i].Xids) < eventsMax {
				gpus[i].Xids = append(gpus[i].Xids, event.EventData)
			}
		}
		if !time.Now().Before(deadline) {
			return nil
		}
	}
	return nil
}
