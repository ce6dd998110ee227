package soak

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/kvlease/kvlease/internal/plural"
)

// Pressure is what the machine, or this process, has waited for in a window of time.
type Pressure struct {
	Seconds     float64 `json:"s"`
	CPUSome     uint64  `json:"cpu_some_us"` // some thread had to wait for a core
	CPUFull     uint64  `json:"cpu_full_us"`
	MemSome     uint64  `json:"mem_some_us"` // some thread waited for memory
	MemFull     uint64  `json:"mem_full_us"` // nobody who wanted to run could
	IOSome      uint64  `json:"io_some_us"`
	IOFull      uint64  `json:"io_full_us"`
	Reclaimed   uint64  `json:"direct_reclaim_pages"` // by threads that wanted memory themselves, of the machine
	MachineMaj  uint64  `json:"machine_major_faults"`
	MajorFaults uint64  `json:"major_faults"` // of this process

	at time.Time
}

// readPressure reads the counts since boot; what a kernel does not have stays 0.
func readPressure() Pressure {
	p := Pressure{at: time.Now()}
	for name, to := range map[string][2]*uint64{"cpu": {&p.CPUSome, &p.CPUFull}, "memory": {&p.MemSome, &p.MemFull}, "io": {&p.IOSome, &p.IOFull}} {
		text, _ := os.ReadFile("/proc/pressure/" + name)
		*to[0], *to[1] = pressureTotals(string(text))
	}
	text, _ := os.ReadFile("/proc/vmstat")
	for _, line := range strings.Split(string(text), "\n") {
		switch name, value, _ := strings.Cut(line, " "); name {
		case "pgsteal_direct":
			p.Reclaimed, _ = strconv.ParseUint(value, 10, 64)
		case "pgmajfault":
			p.MachineMaj, _ = strconv.ParseUint(value, 10, 64)
		}
	}
	text, _ = os.ReadFile("/proc/self/stat")
	p.MajorFaults = majorFaults(string(text))
	return p
}

// pressureTotals reads a file of /proc/pressure.
func pressureTotals(text string) (some, full uint64) {
	for _, line := range strings.Split(text, "\n") {
		kind, rest, _ := strings.Cut(line, " ")
		_, total, ok := strings.Cut(rest, "total=")
		if n, err := strconv.ParseUint(total, 10, 64); ok && err == nil && kind == "some" {
			some = n
		} else if ok && err == nil && kind == "full" {
			full = n
		}
	}
	return some, full
}

// majorFaults reads the twelfth field of /proc/self/stat; the second is a name in brackets, which may hold anything.
func majorFaults(text string) uint64 {
	if at := strings.LastIndexByte(text, ')'); at >= 0 {
		if f := strings.Fields(text[at+1:]); len(f) > 9 {
			n, _ := strconv.ParseUint(f[9], 10, 64)
			return n
		}
	}
	return 0
}

// since gives what has come since before.
func (p Pressure) since(before Pressure) Pressure {
	return Pressure{
		Seconds: p.at.Sub(before.at).Seconds(),
		CPUSome: p.CPUSome - before.CPUSome, CPUFull: p.CPUFull - before.CPUFull,
		MemSome: p.MemSome - before.MemSome, MemFull: p.MemFull - before.MemFull,
		IOSome: p.IOSome - before.IOSome, IOFull: p.IOFull - before.IOFull,
		Reclaimed: p.Reclaimed - before.Reclaimed, MachineMaj: p.MachineMaj - before.MachineMaj, MajorFaults: p.MajorFaults - before.MajorFaults,
	}
}

func (p Pressure) String() string {
	s := func(us uint64) float64 { return float64(us) / 1e6 }
	return fmt.Sprintf("in %.1f s waited for cores %.2f s, memory %.2f s (all %.2f), disks %.2f s (all %.2f); %d major faults here, %d on the machine; %s reclaimed by who wanted them",
		p.Seconds, s(p.CPUSome), s(p.MemSome), s(p.MemFull), s(p.IOSome), s(p.IOFull), p.MajorFaults, p.MachineMaj, plural.Counted(p.Reclaimed, "page", "pages"))
}

// Stall is the longest time that a context of a process did not go on, with what the machine waited for around it.
type Stall struct {
	LeaseMs float64  `json:"lease_ms"`
	What    string   `json:"what"` // step, or pause: between two steps
	Ms      float64  `json:"ms"`
	At      float64  `json:"at_s"`           // since the load began, of the end of the window
	LoadMs  float64  `json:"load_ms"`        // longest load of metadata into the transport by this context in that window
	Others  int      `json:"others_stalled"` // contexts of this process that stood at least half as long in that window
	Window  Pressure `json:"window"`
}

func (s *Stall) String() string {
	with := ""
	if s.LoadMs > 0 {
		with = fmt.Sprintf(" with a load of %.1f ms", s.LoadMs)
	}
	return fmt.Sprintf("a %s of %.1f ms%s, %.0f ms lease, at %.0f s, %d other contexts with it; %v", s.What, s.Ms, with, s.LeaseMs, s.At, s.Others, s.Window)
}
