// Package probe times what happens between the trace sites of running processes, with a program in the kernel. Nothing in them is
// restarted or changed; a site that nobody is attached to is a nop.
package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/probe/bpf"
	"github.com/kvlease/kvlease/dataplane/trace"
)

// Probe is the program in the kernel and what it has counted.
//
// Threads: one, and another one for Outlier.
// Memory: in the kernel about 8 MiB, and for each stage and pair of engines that come up 1.3 KiB a CPU, at most histogramBytes.
type Probe struct {
	objects bpf.TraceObjects
	ring    *ringbuf.Reader
}

// Config of a probe.
type Config struct {
	// Outliers: spans that long and longer are told one by one. 0: none.
	Outliers time.Duration
}

// timed are the sites that stages begin or end at. Nothing is attached to others.
var timed = map[trace.Site]bool{
	trace.HookSubmit: true, trace.HookDrained: true, trace.StepBegin: true, trace.StepEnd: true,
	trace.BatchPosted: true, trace.NotificationSeen: true, trace.BatchExtended: true,
	trace.ReadPosted: true, trace.DataArrived: true, trace.FenceChecked: true, trace.ReadReported: true, trace.StallGap: true,
}

// Open loads the program. What is missing here is a *Missing.
func Open(cfg Config) (*Probe, error) {
	if err := Check(); err != nil {
		return nil, err
	}
	spec, err := bpf.LoadTrace()
	if err != nil {
		return nil, err
	}
	if cfg.Outliers > 0 {
		if err := spec.Variables[bpf.TraceVarOutlierNs].Set(uint64(cfg.Outliers)); err != nil {
			return nil, err
		}
	}
	dev, ino, err := pidNamespace()
	if err == nil {
		err = errors.Join(spec.Variables[bpf.TraceVarPidnsDev].Set(dev), spec.Variables[bpf.TraceVarPidnsIno].Set(ino))
	}
	if err != nil {
		return nil, err
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, err
	}
	spec.Maps[bpf.TraceMapHistograms].MaxEntries = histogramsMax(cpus)
	p := &Probe{}
	if err := spec.LoadAndAssign(&p.objects, nil); err != nil {
		return nil, fmt.Errorf("the kernel does not take the program: %w", err)
	}
	if err := p.prepare(cpus); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// histogramBytes bounds all histograms in the kernel together, which keep a copy for each CPU; those of 16 engines always find room.
const histogramBytes = 128 << 20

func histogramsMax(cpus int) uint32 {
	const least, most = 16 * uint32(Stages), 4096
	return min(max(uint32(histogramBytes/(binary.Size(bpf.TraceHistogram{})*cpus)), least), most)
}

// prepare makes the histograms that take what finds no room.
func (p *Probe) prepare(cpus int) error {
	for stage := range Stages {
		key := bpf.TraceSeries{Stage: uint32(stage)}
		if err := p.objects.Histograms.Put(&key, make([]bpf.TraceHistogram, cpus)); err != nil {
			return err
		}
	}
	var err error
	p.ring, err = ringbuf.NewReader(p.objects.Outliers)
	return err
}

// Close gives the program back. What is attached must be detached before.
func (p *Probe) Close() error {
	var err error
	if p.ring != nil {
		err = p.ring.Close()
	}
	return errors.Join(err, p.objects.Close())
}

// Attachment is the probe at the sites of one file.
type Attachment struct{ link link.Link }

// Attach times what happens at the sites of a file: in one process, or, with pid 0, in all that have it mapped or map it later.
func (p *Probe) Attach(f *File, pid int) (*Attachment, error) {
	exe, err := link.OpenExecutable(fmt.Sprintf("/proc/self/fd/%d", f.f.Fd()))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path, err)
	}
	opts := &link.UprobeMultiOptions{PID: uint32(pid)}
	for _, s := range f.Sites {
		if timed[s.Site] {
			opts.Addresses = append(opts.Addresses, s.Offset)
			opts.RefCtrOffsets = append(opts.RefCtrOffsets, s.Semaphore)
			opts.Cookies = append(opts.Cookies, uint64(pid)<<32|uint64(s.Site))
		}
	}
	if len(opts.Addresses) == 0 {
		return nil, fmt.Errorf("%s: %w that are timed", f.Path, ErrNoSites)
	}
	l, err := exe.UprobeMulti(nil, p.objects.Fired, opts)
	switch {
	case errors.Is(err, os.ErrNotExist) && pid != 0:
		return nil, fmt.Errorf("process %d: %w", pid, ErrGone)
	case errors.Is(err, unix.EPERM):
		return nil, &Missing{What: "the kernel refuses to attach", Remedy: "It needs CAP_PERFMON; a security module may also forbid it", Cause: err}
	case err != nil:
		return nil, fmt.Errorf("%s: attach: %w", f.Path, err)
	}
	return &Attachment{link: l}, nil
}

// Detach takes the probe away: nops and semaphores are as they were. It takes tens of milliseconds.
func (a *Attachment) Detach() error { return a.link.Close() }
