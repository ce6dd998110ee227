package clock

import "time"

// Jump watches the distance between this host's CLOCK_BOOTTIME and CLOCK_MONOTONIC, which a suspend changes. The zero
// value has seen nothing.
type Jump struct {
	known bool
	gap   time.Duration // the largest distance seen
}

// jumpLeast is the shortest suspend that counts. Two clocks are never read at once: a pause of the thread between the two
// readings makes the distance look smaller, and must not make the next one look like a jump.
const jumpLeast = 10 * time.Millisecond

// Seen takes readings of both clocks, CLOCK_BOOTTIME first, and reports whether the distance has grown since the last call
// by more than reading them can explain. Then offsets and time guards made before are void.
func (j *Jump) Seen(boot Instant, monotonic int64) bool {
	gap := time.Duration(int64(boot) - monotonic)
	jumped := j.known && gap-j.gap > jumpLeast
	if !j.known || gap > j.gap {
		j.known, j.gap = true, gap
	}
	return jumped
}
