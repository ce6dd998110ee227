package probe

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/internal/kernel"
)

// Missing says what this machine or process lacks, and how to get it. It wraps ErrMissing.
type Missing struct {
	What, Remedy string
	Cause        error // what the kernel has answered, if it was asked
}

// ErrMissing is in every error that says that tracing is not possible here.
var ErrMissing = errors.New("tracing is not possible here")

func (m *Missing) Error() string {
	text := m.What
	if m.Cause != nil {
		text += fmt.Sprintf(" (%v)", m.Cause)
	}
	return text + ". " + m.Remedy
}

func (m *Missing) Unwrap() []error { return []error{ErrMissing, m.Cause} }

// machine is what is asked of the kernel; tests put answers of other kernels there.
type machine struct {
	arch        string
	release     string
	status      func() (string, error) // /proc/self/status
	uidMap      func() (string, error) // /proc/self/uid_map
	program     func() error           // can programs of this kind be loaded
	uprobeMulti func() error
	self        string // this program
}

func thisMachine() *machine {
	self, err := os.Executable()
	if err != nil {
		self = "/path/to/kvlease"
	}
	file := func(name string) func() (string, error) {
		return func() (string, error) {
			text, err := os.ReadFile(name)
			return string(text), err
		}
	}
	return &machine{
		arch:    runtime.GOARCH,
		release: kernel.Release(),
		status:  file("/proc/self/status"), uidMap: file("/proc/self/uid_map"),
		program:     func() error { return features.HaveProgramType(ebpf.Kprobe) },
		uprobeMulti: features.HaveBPFLinkUprobeMulti,
		self:        self,
	}
}

// Check tells whether processes can be traced from here, before anything is attached. Its errors are of type *Missing.
func Check() error { return thisMachine().check() }

// Of capabilities(7).
const (
	capSysAdmin = 1 << 21
	capPerfmon  = 1 << 38
	capBPF      = 1 << 39
)

// The first kernels with uprobe-multi, and with the correction of its filter by process, which stable ones have since 6.6.33 and 6.9.4.
const (
	uprobeMultiMajor, uprobeMultiMinor = 6, 6
	wholeProcessMinor                  = 10
)

func (m *machine) check() error {
	if m.arch != "amd64" && m.arch != "arm64" {
		return &Missing{What: "the trace sites are not made for " + m.arch, Remedy: "They are for amd64 and arm64"}
	}
	if err := m.rights(); err != nil {
		return err
	}
	if err := m.program(); err != nil {
		if errors.Is(err, unix.EPERM) {
			return &Missing{
				What:   "bpf() is refused although this process has the capabilities for it",
				Remedy: "Containers' seccomp profiles and kernel lockdown do that: run it on the host, or in a container with a seccomp profile that allows bpf()",
				Cause:  err,
			}
		}
		return &Missing{What: "the kernel " + m.release + " loads no programs for probes", Remedy: "It needs CONFIG_BPF_SYSCALL, CONFIG_BPF_EVENTS and CONFIG_UPROBES", Cause: err}
	}
	if err := m.uprobeMulti(); err != nil {
		major, minor := version(m.release)
		remedy := fmt.Sprintf("It came with Linux %d.%d; boot a later kernel", uprobeMultiMajor, uprobeMultiMinor)
		if major > uprobeMultiMajor || major == uprobeMultiMajor && minor >= uprobeMultiMinor {
			remedy = "This version has it if built with CONFIG_UPROBES, CONFIG_UPROBE_EVENTS and CONFIG_BPF_EVENTS: see /boot/config-" + m.release
		}
		return &Missing{
			What:   "the kernel " + m.release + " has no uprobe-multi, by which a program is attached with CAP_BPF and CAP_PERFMON alone",
			Remedy: remedy + ". Until then: bpftrace, as root, attaches to the same sites (docs/tracing-sites.md)",
			Cause:  err,
		}
	}
	return nil
}

// rights compares the capabilities of this process with those that are needed.
func (m *machine) rights() error {
	text, err := m.status()
	if err != nil {
		return fmt.Errorf("capabilities of this process: %w", err)
	}
	have, err := strconv.ParseUint(statusField(text, "CapEff"), 16, 64)
	if err != nil {
		return fmt.Errorf("capabilities of this process: %w", err)
	}
	var lacks []string
	if have&capSysAdmin == 0 {
		if have&capBPF == 0 {
			lacks = append(lacks, "CAP_BPF")
		}
		if have&capPerfmon == 0 {
			lacks = append(lacks, "CAP_PERFMON")
		}
	}
	if len(lacks) > 0 {
		remedy := "Run it as root, or once: setcap cap_bpf,cap_perfmon+ep " + m.self
		if statusField(text, "NoNewPrivs") == "1" {
			remedy += ". Here no_new_privs is set, so a program's own capabilities do not count: " +
				"a container needs them from its runtime (--cap-add BPF --cap-add PERFMON), a unit from AmbientCapabilities"
		}
		return &Missing{What: "tracing needs CAP_BPF and CAP_PERFMON, and this process lacks " + strings.Join(lacks, " and "), Remedy: remedy}
	}
	if ids, err := m.uidMap(); err == nil {
		if f := strings.Fields(ids); len(f) != 3 || f[0] != "0" || f[1] != "0" || f[2] != "4294967295" {
			return &Missing{
				What:   "this process is in a user namespace of its own, where capabilities do not reach the kernel's probes",
				Remedy: "Run it outside of the rootless container, on the host; it sees the processes inside",
			}
		}
	}
	return nil
}

// statusField is the value of a line of /proc/PID/status.
func statusField(text, name string) string {
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, ":"); ok && key == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// version is the beginning of a kernel's release.
func version(release string) (major, minor int) {
	fmt.Sscanf(release, "%d.%d", &major, &minor)
	return major, minor
}

// Caveats are what this kernel does worse than others, in words.
func Caveats() []string { return thisMachine().caveats() }

func (m *machine) caveats() []string {
	major, minor := version(m.release)
	var list []string
	if major == 6 && minor < wholeProcessMinor {
		list = append(list, "kernel "+m.release+": before 6.10 (6.6.33, 6.9.4) a probe of one process may see its first thread alone. Name the library with --lib instead: that sees all threads")
	}
	if major < 6 || major == 6 && minor < optimizedMinor {
		list = append(list, "kernel "+m.release+": each hit of a site costs a process about 5 us; from 6.18 on, on x86-64, 0.7 us")
	}
	return list
}

// optimizedMinor is the first 6.x in which a five-byte nop becomes a call instead of a trap.
const optimizedMinor = 18
