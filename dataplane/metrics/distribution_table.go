package metrics

// Ranges of classic buckets, as exponents of two.
const (
	micros  = -20 // 0.95 us
	millis  = -10 // 0.98 ms
	second  = 0
	minutes = 8  // 4.3 min
	hours   = 13 // 2.3 h
	million = 20
)

// distributionTable is every histogram that a page may have.
var distributionTable = []struct {
	page string // its name there
	distribution
}{
	{"slack", distribution{"deadline_slack_seconds", ofRanks, "Time left to a lease's deadline when a heartbeat renewed it.", millis, minutes}},
	{"beat_late", distribution{"heartbeat_lateness_seconds", ofRanks, "From when a round of heartbeats was due to the step that began it.", micros, hours}},
	{"step_time", distribution{"step_seconds", ofAll, "Length of a step, with its wait for the lock of the context.", micros, 3}},
	{"stall", distribution{"stall_gap_seconds", ofRanks, "Time between two steps of a context with something to do (leases, tracked requests, reads) where it was longer than stall_gap.", millis, minutes}},
	{"handshake_time", distribution{"handshake_seconds", ofRequests, "From when an engine was known to be without a connection to when it had one.", millis, minutes}},
	{"read_time", distribution{"read_seconds", ofRanks, "From a read's first post to its report.", micros, minutes}},
	{"fence_time", distribution{"read_fence_seconds", ofRanks, "From the arrival of a read's data to the word of its fence.", micros, 3}},
	{"reclaim_time", distribution{"reclaim_seconds", ofRanks, "From a dead reader's last heartbeat to its blocks being free.", millis, minutes}},
	{"lease_life", distribution{"lease_seconds", ofRequests, "From the grant of a lease to its end.", millis, hours}},
	{"batch_size", distribution{"message_requests", ofRanks, "Requests named in a received message of heartbeats, completions or releases.", 0, million}},
	{"drain_time", distribution{"submission_seconds", ofAll, "From kvl_grant or kvl_track to the step that took its record.", micros, 3}},
	{"ring_depth", distribution{"ring_depth_bytes", ofRequests, "Bytes that a step found in a producer's ring.", 0, million}},
}
