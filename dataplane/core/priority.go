package core

import (
	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/log"
)

// priority is what the kernel has granted the pump's thread.
type priority int

const (
	priorityNone priority = iota
	priorityNice
	priorityRR
)

var priorityNames = [...]string{"none", "nice", "rr"}

func (p priority) String() string { return priorityNames[p] }

const (
	pumpNice = -10
	pumpRR   = 1 // the least real-time priority: above every ordinary thread, below whatever else an operator has set up
)

// Priority is off by default. The transport's own threads have ordinary priority and hold spin locks that a step takes: on two busy
// cores eight real-time pumps stood for up to three seconds, until the kernel throttled them, and nice ones for 0.2 s, where those
// at ordinary priority stood for 0.06 s and a lease of 50 ms held (kvlease soak --priority rr, nice, off).

// prioritize asks for what pump_priority says. What is not permitted is counted, and the thread stays as it is: a pump without
// priority is late only on a machine that is overcommitted.
func (p *pump) prioritize() priority {
	want := p.core.cfg.PumpPriority
	var got priority
	refused := uint64(0)
	try := func(class priority, err error) {
		switch {
		case err != nil:
			refused++
		case got == priorityNone:
			got = class
		}
	}
	if want == "rr" || want == "auto" {
		// Threads made by this one (inside the transport) do not inherit it.
		try(priorityRR, unix.SchedSetAttr(0, &unix.SchedAttr{
			Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: pumpRR, Flags: unix.SCHED_FLAG_RESET_ON_FORK,
		}, 0))
	}
	if want == "nice" || want == "auto" && got == priorityNone {
		try(priorityNice, unix.Setpriority(unix.PRIO_PROCESS, 0, pumpNice)) // on Linux 0 is this thread
	}
	p.core.mu.Lock()
	defer p.core.mu.Unlock()
	if p.class, p.counters.PriorityOff = got, refused; refused > 0 && got == priorityNone {
		p.core.log.step().Put(log.PriorityOff, p.core.clock(), log.Entry{A: refused})
	}
	return got
}
