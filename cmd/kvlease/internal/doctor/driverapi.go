package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kvlease/kvlease/cuda"
)

// CUDA is what the driver's API says, which an engine uses: the management library says other things, and can be there alone.
type CUDA struct {
	Version string
	File    string
	Devices []cuda.Features // those that the process sees, after CUDA_VISIBLE_DEVICES
}

// askCUDA opens the driver as an engine's core does. No context is made.
func askCUDA() (*CUDA, error) {
	d, err := cuda.Open("")
	if err != nil {
		return nil, err
	}
	c := &CUDA{Version: d.Version().String(), File: d.File()}
	n, err := d.Devices()
	for i := 0; i < n && err == nil; i++ {
		var f cuda.Features
		f, err = d.Features(i)
		c.Devices = append(c.Devices, f)
	}
	return c, err
}

func driverAPI(ctx context.Context, s *System) []Result {
	const name = "CUDA"
	h := s.fabric()
	if _, named := s.Env("KVLEASE_CUDA"); len(h.GPUs)+len(h.OnBus) == 0 && !named {
		return nil
	}
	c, err := within(ctx, s.Patience, s.CUDA)
	if errors.Is(err, context.Canceled) {
		return unread(name, err)
	}
	if err != nil {
		value, fix := err.Error(), "nvidia-smi, and dmesg | grep NVRM, say more"
		var refusal *cuda.Error
		if errors.As(err, &refusal) {
			value, fix = strings.TrimSuffix(value, ". Remedy: "+refusal.Fix), refusal.Fix
		}
		if errors.Is(err, errSilent) {
			fix = silentFix
		}
		return ill(name, Fail, value, "an engine's kvl_register of GPU memory fails in the same way", "%s", fix)
	}
	lines := one(name, Pass, fmt.Sprintf("driver for %s, %s; %d visible", c.Version, c.File, len(c.Devices)))
	for i, f := range c.Devices {
		lines = append(lines, s.device(fmt.Sprintf("device %d", i), f))
	}
	return lines
}

// device is the line of a device that the process sees.
func (s *System) device(name string, f cuda.Features) Result {
	yes := func(has bool, what string) string {
		if has {
			return what
		}
		return "no " + what
	}
	order := map[cuda.Ordering]string{cuda.OrderingNone: "NICs' writes are ordered for nobody", cuda.OrderingOwner: "NICs' writes are ordered for the device itself",
		cuda.OrderingAll: "NICs' writes are ordered for all devices"}[f.Ordering]
	r := Result{Name: name, State: Pass, Value: strings.Join([]string{f.PCI, yes(f.RDMA, "GPUDirect RDMA"), yes(f.RDMAWithVMM, "GPUDirect RDMA of VMM memory"),
		yes(f.DMABuf, "dma-buf"), order, yes(f.FlushHost, "flush from the host")}, ", ")}
	refusal := f.Refusal(s.fabric().GPUMemory.Module != "")
	switch {
	case refusal != nil:
		r.State, r.Why, r.Fix = Fail, refusal.Cause, refusal.Fix
	case !f.RDMAWithVMM:
		r.State, r.Why = Warn, "a KV cache that is mapped by cuMemMap (PyTorch's expandable_segments, vLLM's sleep mode) cannot be registered"
		r.Fix = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False, or a later driver"
	}
	return r
}
