package heartbeat

import "github.com/kvlease/kvlease/dataplane/clock"

// Reach is what a step may do with the transport.
type Reach uint8

const (
	// ReachAll is the zero value: everything.
	ReachAll Reach = iota
	// ReachMessages: no memory of ours is known to the transport, so no row and no block can land. Engines are loaded and heartbeats leave;
	// reads wait, and nobody is taken for silent because his rows are not read.
	ReachMessages
	// ReachNothing: who called it would wait, as while memory is registered. What is due stays due, and nothing has failed.
	ReachNothing
)

// SetReach says what a step may do. Off the step, in its place.
func (t *Tracker) SetReach(r Reach) { t.reach = r }

// Calls reports that a step at now would load an engine or send a message, if it may.
func (t *Tracker) Calls(now clock.Instant) bool { return !now.Before(t.nextCall()) }

// nextCall is when an engine is loaded, or hears something, next.
func (t *Tracker) nextCall() clock.Instant {
	_, beats := t.beats.First()
	_, loads := t.loads.First()
	_, ends := t.ends.First()
	return min(beats, loads, ends)
}
