package fabric

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// GPU is one GPU as NVML numbers them: in the order of their bus addresses, which CUDA_VISIBLE_DEVICES does not change.
type GPU struct {
	Index int
	UUID  string
	Name  string
	PCI   string // address of its function as sysfs has it
	Node  int    // NUMA node, -1: not told

	Memory Room
	BAR1   Room // the window through which a NIC reaches its memory
	MIG    Mode
	ECC    ECC
	Rows   Rows
	Action Action   // what the driver wants to be done
	Xids   []uint64 // errors that came while it was looked at; older ones are in the kernel's log

	Err     error    // why it could not be looked at, in whole or from some point on: ErrLost, ErrReset
	Untold  []string // functions that this driver or GPU does not have
	path    []string
	handle  nvml.Device
	handled bool
}

// Room is memory, in bytes.
type Room struct{ Total, Free, Used uint64 }

// Mode is a switch that takes effect with the next reset.
type Mode struct{ Has, Now, Next bool }

// ECC is the state of error correction, and what was not corrected since the driver was loaded.
type ECC struct {
	Mode
	Uncorrected uint64
}

// Rows are the rows of memory that were replaced by spare ones.
type Rows struct {
	Corrected, Uncorrected int
	Pending, Failed        bool
}

// Action is nvmlDeviceGpuRecoveryAction_t.
type Action uint32

var actions = [...]string{"none", "reset the GPU", "reboot the node", "drain its peer traffic", "drain its peer traffic and reset it", "recover its IMEX domain",
	"reset its PCIe bus", "reboot the system"}

func (a Action) String() string {
	if int(a) < len(actions) {
		return actions[a]
	}
	return fmt.Sprintf("action %d", uint32(a))
}

// look asks for everything of a GPU. What it does not tell is noted; once it is lost, nothing more is asked.
func (m *management) look(index int) GPU {
	g := GPU{Index: index, Node: -1}
	for _, step := range []struct {
		symbol string
		ask    func() nvml.Return
	}{
		{"nvmlDeviceGetHandleByIndex_v2", func() (r nvml.Return) { g.handle, r = m.lib.DeviceGetHandleByIndex(index); return r }},
		{"nvmlDeviceGetPciInfo_v3", func() nvml.Return {
			pci, r := g.handle.GetPciInfo()
			if r == nvml.SUCCESS {
				g.PCI, g.handled = fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device), true
			}
			return r
		}},
		{"nvmlDeviceGetName", func() (r nvml.Return) { g.Name, r = g.handle.GetName(); return r }},
		{"nvmlDeviceGetUUID", func() (r nvml.Return) { g.UUID, r = g.handle.GetUUID(); return r }},
		{"nvmlDeviceGetMemoryInfo", func() nvml.Return {
			v, r := g.handle.GetMemoryInfo()
			g.Memory = Room{v.Total, v.Free, v.Used}
			return r
		}},
		{"nvmlDeviceGetBAR1MemoryInfo", func() nvml.Return {
			v, r := g.handle.GetBAR1MemoryInfo()
			g.BAR1 = Room{v.Bar1Total, v.Bar1Free, v.Bar1Used}
			return r
		}},
		{"nvmlDeviceGetMigMode", func() nvml.Return {
			now, next, r := g.handle.GetMigMode()
			g.MIG = Mode{r == nvml.SUCCESS, now == nvml.DEVICE_MIG_ENABLE, next == nvml.DEVICE_MIG_ENABLE}
			return r
		}},
		{"nvmlDeviceGetEccMode", func() nvml.Return {
			now, next, r := g.handle.GetEccMode()
			g.ECC.Mode = Mode{r == nvml.SUCCESS, now == nvml.FEATURE_ENABLED, next == nvml.FEATURE_ENABLED}
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
				g.Action = Action(binary.NativeEndian.Uint32(field[0].Value[:]))
			}
			return r
		}},
	} {
		err := m.ask(step.symbol, step.ask)
		switch {
		case err == nil:
		case errors.Is(err, ErrLost) || errors.Is(err, ErrReset) || !g.handled:
			g.Err = err
			return g
		case errors.Is(err, ErrUntold) || errors.Is(err, ErrSymbol):
			g.Untold = append(g.Untold, step.symbol)
		default:
			g.Err = errors.Join(g.Err, err)
		}
	}
	return g
}

// watch waits so long for Xid errors of the GPUs, and notes those that come. NVML tells no older ones.
func (m *management) watch(gpus []GPU, d time.Duration) error {
	for _, symbol := range []string{"nvmlEventSetWait_v2", "nvmlEventSetFree", "nvmlDeviceRegisterEvents"} {
		if err := m.symbol(symbol); err != nil {
			return fmt.Errorf("%s: %w", symbol, ErrSymbol)
		}
	}
	var set nvml.EventSet
	if err := m.ask("nvmlEventSetCreate", func() (r nvml.Return) { set, r = m.lib.EventSetCreate(); return r }); err != nil {
		return err
	}
	defer set.Free()
	watched := 0
	for i := range gpus {
		if gpus[i].handled && gpus[i].handle.RegisterEvents(nvml.EventTypeXidCriticalError, set) == nvml.SUCCESS {
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
			if gpus[i].handled && gpus[i].handle == event.Device && len(gpus[i].Xids) < eventsMax {
				gpus[i].Xids = append(gpus[i].Xids, event.EventData)
			}
		}
		if !time.Now().Before(deadline) {
			return nil
		}
	}
	return nil
}
