// Package trace is the plane's side of its trace sites: fixed points of the code that a tool outside the process can attach to.
// The sites themselves are machine code of the library (cmd/libkvlease/sites); here stand their names, what their arguments
// mean, and the test whether anybody listens.
package trace

import "sync/atomic"

// Site is one of the fixed points. Its four arguments are unsigned 64-bit words. Times and spans are nanoseconds of CLOCK_BOOTTIME,
// taken from the steps that saw both ends, so none is finer than a step. ctx is the number of the context in its process, from 1. Engines are wire.EngineHash of their ids.
type Site uint32

// The sites, in the order of their words. The same order stands in cmd/libkvlease/sites/sites.h.
const (
	// HookSubmit: ctx, producer, position of the producer's ring after the push, record.Tag of what was pushed. A record that
	// found no room there and overflowed has the position that stood.
	HookSubmit Site = iota
	// HookDrained: ctx, producer, position that its ring was taken to, records taken. Once a producer and step that took any.
	HookDrained
	// StepBegin: ctx, now, time since the step before (0: the first), 0.
	StepBegin
	// StepEnd: ctx, the now of its StepBegin, work done (records, notifications, events), notifications known of but not applied.
	StepEnd
	// BatchPosted: sender, receiver, sender's rank << 32 | receiver's rank, number << 32 | requests named. One message of
	// heartbeats was handed to the transport for one rank of the receiver. To a peer that speaks kvlease: sender and receiver are engines, and the
	// number is that in the low byte of the message's flags. In stock text the sender is EngineHash of its agent's name, its
	// rank 0, and the number says that it is the number-th heartbeat, from 1, that this agent has sent to that rank.
	BatchPosted
	// NotificationSeen: as in BatchPosted, at the receiver, when the step begins to apply the message. Requests named is 0 in stock
	// text: they are counted while they are applied.
	NotificationSeen
	// BatchExtended: sender, receiver, number << 32 | requests that named a lease or an expected one, least slack. The message
	// has been applied. Slack is a lease's time left when the heartbeat came, 0 past
	// its deadline; MaxInt64 if it moved none.
	BatchExtended
	// LeaseFreed: ctx, record.Freed* reason, leases ended for it, the longest that one of them was held. Once a reason and step.
	LeaseFreed
	// LeaseFreedOne: ctx, lease, reason, time held. Only of leases that are sampled (the key trace_sample).
	LeaseFreedOne
	// ReadPosted: ctx, track, owner, bytes. The first part of a read was handed to the transport.
	ReadPosted
	// DataArrived: ctx, track, owner, time since ReadPosted. Every part has landed; the fence is asked next.
	DataArrived
	// FenceChecked: ctx, track, verdict (Fence*), time since the data of this source rank had landed. Once a source rank.
	FenceChecked
	// ReadReported: ctx, track, status of the event, time since ReadPosted (0: nothing was posted).
	ReadReported
	// HandshakeState: ctx, owner, new state (Handshake*), time in the former.
	HandshakeState
	// StallGap: ctx, gap, what is allowed (stall_gap), notifications known of but not applied. The steps were further apart than that, and there was something to do.
	StallGap
	// Count is how many sites there are.
	Count
)

// Names as tools show them, provider "kvlease".
var Names = [Count]string{
	HookSubmit: "hook__submit", HookDrained: "hook__drained", StepBegin: "step__begin", StepEnd: "step__end",
	BatchPosted: "batch__posted", NotificationSeen: "notification__seen", BatchExtended: "batch__extended",
	LeaseFreed: "lease__freed", LeaseFreedOne: "lease__freed__one",
	ReadPosted: "read__posted", DataArrived: "data__arrived", FenceChecked: "fence__checked", ReadReported: "read__reported",
	HandshakeState: "handshake__state", StallGap: "stall__gap",
}

func (s Site) String() string {
	if s < Count {
		return Names[s]
	}
	return "unknown"
}

// Words are the semaphores: a word is not 0 while somebody is attached to its site. The kernel writes them.
type Words [16]uint32

// Sites are the sites of a process, as one of its contexts sees them. nil has none: nothing listens.
//
// Threads: any.
type Sites struct {
	words *Words
	fire  func(site Site, a, b, c, d uint64)
	ctx   uint64
}

// New makes sites of their words and of what runs through a site.
func New(words *Words, fire func(site Site, a, b, c, d uint64)) *Sites {
	return &Sites{words: words, fire: fire}
}

// For gives the same sites to the context of this number.
func (s *Sites) For(ctx uint64) *Sites {
	if s == nil {
		return nil
	}
	return &Sites{words: s.words, fire: s.fire, ctx: ctx}
}

// Ctx is the number of the context.
func (s *Sites) Ctx() uint64 {
	if s == nil {
		return 0
	}
	return s.ctx
}

// On reports that somebody is attached: one load. Callers ask before they gather arguments.
func (s *Sites) On(site Site) bool { return s != nil && atomic.LoadUint32(&s.words[site]) != 0 }

// Fire runs through a site. The caller has asked On.
func (s *Sites) Fire(site Site, a, b, c, d uint64) { s.fire(site, a, b, c, d) }

// process holds the sites of this process.
var process atomic.Pointer[Sites]

// SetProcess says where the sites of this process are: the package with their machine code does it when it is loaded, tests do
// with words of their own. Contexts opened from then on use them.
func SetProcess(s *Sites) { process.Store(s) }

// Process gives the sites of this process, nil without any.
func Process() *Sites { return process.Load() }
