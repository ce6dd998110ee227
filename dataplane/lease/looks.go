package lease

// looks remembers when the sweeps looked at leases, so that it can be said of a passed deadline that it has had its two looks
// (L8): one by a sweep after it, another at least settle later with all applied that had arrived by then. Leases that linger
// are not looked at again before their linger is over, and pressure must not take what a heartbeat on its way would have renewed.
type looks struct {
	at   [looksMax]uint64 // units: times of sweeps, oldest first from next
	next int
	ripe uint64 // units: a deadline not after this has had both looks
	calm uint64 // units: ripe stands still until then, after a stall
}

// looksMax times, at least an eighth of settle apart, reach back further than settle.
const looksMax = 16

// note takes the time of a sweep, and whether all that has arrived is applied.
func (l *looks) note(past, settle uint64, applied bool) {
	if last := l.at[(l.next+looksMax-1)%looksMax]; past >= last+max(settle/8, 1) {
		l.at[l.next] = past
		l.next = (l.next + 1) % looksMax
	}
	if past < l.calm || !applied {
		return
	}
	for _, at := range l.at {
		if at+settle <= past {
			l.ripe = max(l.ripe, at)
		}
	}
}
