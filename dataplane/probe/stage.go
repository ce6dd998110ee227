package probe

import "github.com/kvlease/kvlease/dataplane/probe/bpf"

// Stage is a way between two sites, or a value that one of them tells.
type Stage uint32

// The stages, as the program in the kernel counts them (bpf/maps.h).
const (
	Drained    = Stage(bpf.TraceStageSTAGE_DRAINED)
	Posted     = Stage(bpf.TraceStageSTAGE_POSTED)
	Seen       = Stage(bpf.TraceStageSTAGE_SEEN)
	Extended   = Stage(bpf.TraceStageSTAGE_EXTENDED)
	Renewed    = Stage(bpf.TraceStageSTAGE_RENEWED)
	Slack      = Stage(bpf.TraceStageSTAGE_SLACK)
	Arrived    = Stage(bpf.TraceStageSTAGE_ARRIVED)
	Fenced     = Stage(bpf.TraceStageSTAGE_FENCED)
	Reported   = Stage(bpf.TraceStageSTAGE_REPORTED)
	Read       = Stage(bpf.TraceStageSTAGE_READ)
	ReadFailed = Stage(bpf.TraceStageSTAGE_READ_FAIL)
	Step       = Stage(bpf.TraceStageSTAGE_STEP)
	Stall      = Stage(bpf.TraceStageSTAGE_STALL)
	Stages     = Stage(bpf.TraceStageSTAGE_COUNT)
)

// stages: a key for programs, a name for people, and what is timed.
var stages = [Stages]struct {
	key, name, meaning string
	hashes             bool // both ends are hashes of names; else the first is a context
}{
	Drained:    {"hook_drained", "hook → drained", "from a hook to the step that takes its record from the ring", false},
	Posted:     {"drained_posted", "drained → posted", "from the step's last drained ring, its begin without one, to a message of heartbeats posted", true},
	Seen:       {"posted_seen", "posted → seen by P", "from the post to the step of P that takes the message up", true},
	Extended:   {"seen_extended", "seen → extended", "from there until all its leases are renewed", true},
	Renewed:    {"posted_extended", "posted → extended", "from D's post to P's renewal, end to end", true},
	Slack:      {"slack", "slack left", "what the shortest lease of a message had left when it was renewed", true},
	Arrived:    {"read_posted_arrived", "read posted → arrived", "from the post of a read until all its data is there", false},
	Fenced:     {"arrived_fenced", "arrived → fence", "from there until the owner's fence has answered", false},
	Reported:   {"fenced_reported", "fence → reported", "from there to the event that tells the host", false},
	Read:       {"read", "read, in all", "from the post of a read to the event that tells the host, of reads that were accepted", false},
	ReadFailed: {"read_failed", "read, failed", "the same, of reads that were not accepted", false},
	Step:       {"step", "step", "from the begin of a step to its end", false},
	Stall:      {"stall_gap", "stall gap", "gaps between steps above stall_gap", false},
}

// Key names the stage in JSON and flags.
func (s Stage) Key() string {
	if s < Stages {
		return stages[s].key
	}
	return "unknown"
}

func (s Stage) String() string {
	if s < Stages {
		return stages[s].name
	}
	return "unknown"
}

// Meaning says in a line what is timed.
func (s Stage) Meaning() string {
	if s < Stages {
		return stages[s].meaning
	}
	return ""
}

// Between reports that From and To of the stage are hashes of two names. Else From is a context, and To the hash of the owner that it
// reads from, or 0.
func (s Stage) Between() bool { return s < Stages && stages[s].hashes }

// Context is a context of a process.
type Context struct {
	PID    uint32
	Number uint32
}

func contextOf(v uint64) Context { return Context{PID: uint32(v >> 32), Number: uint32(v)} }
