package fabric

import (
	"errors"
	"fmt"
	"slices"
)

// Trouble is something that ails a GPU.
type Trouble struct {
	What  string
	Why   string
	Fix   string
	Fatal bool // no engine should run on it
}

// xids are the Xid errors after which the GPU or its memory is not to be trusted until something is done (NVIDIA's Xid
// error catalogue). Others are told, too; most of them are an application's own.
var xids = map[uint64]string{
	48: "double-bit ECC error", 63: "a row of memory is to be remapped", 64: "a row of memory could not be remapped", 74: "NVLink error", 79: "the GPU has fallen off the bus",
	92: "many single-bit ECC errors", 94: "contained ECC error", 95: "uncontained ECC error", 119: "GSP does not answer", 120: "GSP error", 140: "unrecovered ECC error",
}

// appXids come from programs: illegal accesses and the like.
var appXids = []uint64{13, 31, 43, 45, 69}

// XidText is an Xid in words.
func XidText(code uint64) string {
	if text, ok := xids[code]; ok {
		return fmt.Sprintf("Xid %d, %s", code, text)
	}
	if slices.Contains(appXids, code) {
		return fmt.Sprintf("Xid %d, an application's error", code)
	}
	return fmt.Sprintf("Xid %d", code)
}

// XidFatal tells whether a GPU should not be used after it.
func XidFatal(code uint64) bool { return xids[code] != "" && code != 63 && code != 92 && code != 94 }

// Troubles are what ails a GPU, worst first.
func (g *GPU) Troubles() []Trouble {
	var list []Trouble
	add := func(fatal bool, what, why, fix string) { list = append(list, Trouble{what, why, fix, fatal}) }
	reset := fmt.Sprintf("drain the node, then nvidia-smi --gpu-reset -i %d, or reboot", g.Index)
	switch {
	case errors.Is(g.Err, ErrLost):
		add(true, g.Err.Error(), "nothing can be read from it or written to it, and every lease on it is void", "reboot; if it comes again, reseat or replace the GPU (dmesg | grep Xid)")
	case errors.Is(g.Err, ErrReset):
		add(true, g.Err.Error(), "the driver refuses work on it", reset)
	case g.Err != nil:
		add(true, g.Err.Error(), "the driver does not answer for it", "nvidia-smi -q -i "+fmt.Sprint(g.Index)+", and dmesg | grep NVRM")
	}
	if g.Action != 0 {
		add(true, "the driver asks: "+g.Action.String(), "it has seen a fault that it cannot work around", reset)
	}
	for _, code := range g.Xids {
		add(XidFatal(code), XidText(code)+", just now", "an Xid is an error that the driver has seen on this GPU", "dmesg | grep Xid; look it up in NVIDIA's Xid catalogue")
	}
	if g.Rows.Failed {
		add(true, "a row of memory could not be remapped", "its spare rows are used up: data there is lost silently", "replace the GPU")
	}
	if g.ECC.Uncorrected > 0 {
		add(true, fmt.Sprintf("%d uncorrected ECC errors since the driver was loaded", g.ECC.Uncorrected), "KV blocks on it may have been wrong", reset)
	}
	if g.Rows.Pending {
		add(false, "a row of memory waits to be remapped", "the faulty row stays in use until the GPU is reset", reset)
	}
	if g.ECC.Has && !g.ECC.Now {
		add(false, "ECC is off", "flipped bits in KV blocks are neither corrected nor seen", fmt.Sprintf("nvidia-smi -i %d -e 1, then a reset", g.Index))
	}
	if g.MIG.Has && g.MIG.Now != g.MIG.Next {
		add(false, "a change of MIG waits for a reset", "what runs now is not what is configured", reset)
	}
	if g.MIG.Now && len(g.Parts) == 0 && !slices.Contains(g.Untold, PartsSymbol) && g.Err == nil {
		add(true, "MIG is on, and no instance is made", "CUDA finds no device on it", fmt.Sprintf("nvidia-smi mig -i %d -cgi PROFILE -C (nvidia-smi mig -lgip lists them), or nvidia-smi -i %d -mig 0", g.Index, g.Index))
	}
	return list
}

// PartsSymbol is the function of NVML without which nobody knows a GPU's instances.
const PartsSymbol = "nvmlDeviceGetMigDeviceHandleByIndex"
