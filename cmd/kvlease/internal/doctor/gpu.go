package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/cuda/fabric"
	"github.com/kvlease/kvlease/cuda/fabric/rdma"
	"github.com/kvlease/kvlease/internal/plural"
)

// driverFixes are what to do when the driver's library has nothing to say.
var driverFixes = []struct {
	err error
	fix string
}{
	{fabric.ErrNamed, "name libnvidia-ml.so.1 of NVIDIA's driver by --nvml or KVLEASE_NVML, or neither: the loader finds the driver's own"},
	{fabric.ErrNoLibrary, "install NVIDIA's driver; in a container start it with --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility. A library elsewhere: --nvml FILE"},
	{fabric.ErrNoDriver, "modprobe nvidia; if it does not load: dmesg | grep -i nvrm, and rebuild it for this kernel (dkms status)"},
	{fabric.ErrMismatch, "reboot, or unload all of nvidia's modules and load them again: the driver was updated under a running kernel module. In a container: the same driver as the host's"},
	{fabric.ErrNoRights, "make /dev/nvidia* readable and writable for this user, or give the container its devices"},
	{fabric.ErrOldDriver, "install a driver of 525.60.13 or later"},
	{fabric.ErrSymbol, "install a driver of 525.60.13 or later, with the library that belongs to it"},
	{fabric.ErrOther, "name one library only"},
	{errSilent, silentFix},
}

// silentFix is what to do where the driver's library stands still: the driver waits for a GPU, or holds a lock that it will not give back.
const silentFix = "dmesg | grep -e NVRM -e Xid names the GPU, as a rule; nvidia-smi will stand still, too. nvidia-smi --gpu-reset, or a reboot"

func gpuDriver(_ context.Context, s *System) []Result {
	const name = "driver"
	h := s.fabric()
	if errors.Is(h.GPUErr, context.Canceled) {
		return unread(name, h.GPUErr)
	}
	if h.GPUErr == nil {
		kind := ""
		switch module := rdma.Text(s.Proc, "driver/nvidia/version"); {
		case strings.Contains(module, "Open Kernel Module"):
			kind = ", open kernel modules"
		case module != "":
			kind = ", closed kernel modules"
		}
		return one(name, Pass, fmt.Sprintf("%s%s; %s", h.Driver, kind, plural.Counted(len(h.GPUs), "GPU", "GPUs")))
	}
	if len(h.OnBus) == 0 && errors.Is(h.GPUErr, fabric.ErrNoLibrary) && !errors.Is(h.GPUErr, fabric.ErrNamed) {
		if err := s.sysfs(); err != nil {
			return unread(name, err)
		}
		return one(name, Skip, "no NVIDIA GPU on the bus, and no library of its driver")
	}
	fix := "nvidia-smi, and dmesg | grep NVRM, say more"
	for _, f := range driverFixes {
		if errors.Is(h.GPUErr, f.err) {
			fix = f.fix
			break
		}
	}
	value := h.GPUErr.Error()
	if n := len(h.OnBus); n > 0 {
		value = fmt.Sprintf("%s; %s on the bus (%s)", value, plural.Counted(n, "NVIDIA GPU", "NVIDIA GPUs"), strings.Join(h.OnBus, ", "))
	}
	return ill(name, Fail, value, "without it no GPU memory can be registered", "%s", fix)
}

func gpus(_ context.Context, s *System) (lines []Result) {
	h := s.fabric()
	for i := range h.GPUs {
		g := &h.GPUs[i]
		name := fmt.Sprintf("GPU %d", i)
		troubles := g.Troubles()
		if window := narrow(g); window.What != "" {
			troubles = append(troubles, window)
		}
		if other := h.At(g.PCI); g.PCI != "" && other != i {
			troubles = append(troubles, fabric.Trouble{
				What: fmt.Sprintf("the management library has GPU %d at the same address", other),
				Why:  "what is said of the two, and of the NICs near them, may be that of either", Fix: "nvidia-smi -L and lspci -d 10de: say which there are; a driver of another version",
			})
		}
		if len(troubles) == 0 {
			lines = append(lines, Result{Name: name, State: Pass, Value: describe(g)})
			continue
		}
		for _, t := range troubles {
			state := Warn
			if t.Fatal {
				state = Fail
			}
			value := t.What
			if g.Name != "" {
				value += " (" + g.Name + " at " + g.PCI + ")"
			}
			lines = append(lines, Result{Name: name, State: state, Value: value, Why: t.Why, Fix: t.Fix})
		}
	}
	return lines
}

// instances are the parts of GPUs in MIG mode, a line a GPU. Each is to CUDA a device of its own, and a process gets one of them; GPUDirect RDMA
// works from one (NVIDIA, MIG user guide, "Application Considerations").
func instances(_ context.Context, s *System) (lines []Result) {
	for i := range s.fabric().GPUs {
		g := &s.fabric().GPUs[i]
		if len(g.Parts) == 0 {
			continue
		}
		var parts []string
		for _, p := range g.Parts {
			kind := p.Name
			if at := strings.LastIndex(kind, "MIG "); at >= 0 {
				kind = kind[at:]
			}
			parts = append(parts, fmt.Sprintf("%s of %s, %s free: CUDA_VISIBLE_DEVICES=%s", kind, size(p.Memory.Total), size(p.Memory.Free), p.UUID))
		}
		lines = append(lines, s.partLine(fmt.Sprintf("GPU %d's instances", i), strings.Join(parts, "; "), g))
	}
	return lines
}

// partLine warns if the process names the GPU in place of a part: CUDA then takes its first one, whoever else does so, too.
func (s *System) partLine(name, value string, g *fabric.GPU) Result {
	named, set := s.Env("CUDA_VISIBLE_DEVICES")
	if len(g.Parts) == 1 || set && strings.Contains(named, "MIG-") {
		return Result{Name: name, State: Pass, Value: value}
	}
	return Result{Name: name, State: Warn, Value: value, Why: "CUDA_VISIBLE_DEVICES names none of them: CUDA takes the first, and so does every other rank",
		Fix: "one instance a rank: CUDA_VISIBLE_DEVICES=" + g.Parts[0].UUID}
}

// narrow is the trouble of a GPU whose memory does not fit through its window.
func narrow(g *fabric.GPU) fabric.Trouble {
	if !g.BAR1.Told || g.BAR1.Total > 0 && g.BAR1.Total >= g.Memory.Total {
		return fabric.Trouble{}
	}
	return fabric.Trouble{
		What: fmt.Sprintf("BAR1 is %s, %s of it free, for %s of memory", size(g.BAR1.Total), size(g.BAR1.Free), size(g.Memory.Total)),
		Why:  "a NIC reaches GPU memory through this window: a larger KV cache cannot be registered",
		Fix:  "switch on \"Above 4G Decoding\" and \"Resizable BAR\" in the firmware; some cards have no larger one: then keep the cache below it",
	}
}

// describe is a healthy GPU in a line.
func describe(g *fabric.GPU) string {
	parts := []string{fmt.Sprintf("%s at %s, memory not told", g.Name, g.PCI), "BAR1 not told"}
	if g.Memory.Told {
		parts[0] = fmt.Sprintf("%s at %s, %s", g.Name, g.PCI, size(g.Memory.Total))
	}
	if g.BAR1.Told {
		parts[1] = fmt.Sprintf("BAR1 %s, %s free", size(g.BAR1.Total), size(g.BAR1.Free))
	}
	if g.ECC.Has {
		parts = append(parts, fmt.Sprintf("ECC on, %d uncorrected", g.ECC.Uncorrected))
	}
	if g.Rows.Corrected+g.Rows.Uncorrected > 0 {
		parts = append(parts, fmt.Sprintf("%d rows remapped", g.Rows.Corrected+g.Rows.Uncorrected))
	}
	if g.MIG.Now {
		parts = append(parts, "MIG on")
	}
	if g.Node >= 0 {
		parts = append(parts, fmt.Sprintf("NUMA node %d", g.Node))
	}
	return strings.Join(parts, "; ")
}

// xidLine is how the driver tells of an Xid: NVRM: Xid (PCI:0000:1b:00): 79, pid=..., GPU has fallen off the bus.
var xidLine = regexp.MustCompile(`NVRM: Xid \(PCI:([0-9a-fA-F]+:[0-9a-fA-F]+:[0-9a-fA-F]+)[^)]*\): ([0-9]+)`)

// xidLog looks for Xid errors in the kernel's log, since the library tells those only that come while it is asked.
func xidLog(_ context.Context, s *System) []Result {
	const name = "Xid errors"
	h := s.fabric()
	if len(h.OnBus) == 0 && len(h.GPUs) == 0 {
		return nil
	}
	log, err := kernelLog(filepath.Join(s.Dev, "kmsg"))
	if err != nil {
		return unread(name, fmt.Errorf("the kernel's log: %w (root may read it)", err))
	}
	var found []string
	state := Warn
	for _, m := range xidLine.FindAllStringSubmatch(log, -1) {
		code, _ := strconv.ParseUint(m[2], 10, 64)
		if fabric.XidFatal(code) {
			state = Fail
		}
		if line := fmt.Sprintf("%s on %s", fabric.XidText(code), m[1]); !slices.Contains(found, line) {
			found = append(found, line)
		}
	}
	if len(found) == 0 {
		watched := ""
		if h.Unwatched != nil {
			watched = "; not waited for: " + h.Unwatched.Error()
		}
		return one(name, Pass, "none in the kernel's log"+watched)
	}
	return ill(name, state, strings.Join(found, "; "), "the driver has seen these since the machine was started: a GPU that fails once often fails again",
		"dmesg | grep Xid; NVIDIA's Xid catalogue says which of them need a reset (nvidia-smi --gpu-reset) or another card")
}

// kernelLog is what the kernel's log holds now. /dev/kmsg gives a record a read, and says EAGAIN at the end and EPIPE where it has
// overwritten some.
func kernelLog(file string) (string, error) {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: file, Err: err}
	}
	defer unix.Close(fd)
	var all strings.Builder
	record := make([]byte, 8192)
	const most = 64 << 20
	for deadline := time.Now().Add(10 * time.Second); all.Len() < most && time.Now().Before(deadline); {
		n, err := unix.Read(fd, record)
		switch {
		case errors.Is(err, unix.EPIPE) || errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN) || err == nil && n <= 0:
			return all.String(), nil
		case err != nil:
			return "", &os.PathError{Op: "read", Path: file, Err: err}
		}
		all.Write(record[:n])
	}
	return all.String(), nil
}
