package metrics

import (
	"cmp"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/watch"
	"github.com/kvlease/kvlease/dataplane/wire"
)

var readerLabels = []string{"reader", "hash", "kind"}

// reader is who the metrics of a reader are about.
type reader struct{ name, hash, kind string }

func readerOf(r *watch.Reader) reader {
	who := reader{name: clean(r.Name), kind: "stock"}
	switch {
	case r.Other:
		return reader{"other", "", "other"}
	case r.Unnamed:
		return reader{"unnamed", "", "unnamed"}
	case r.Native || r.Hash != 0:
		who.kind, who.hash = "native", wire.HashText(r.Hash)
	}
	if who.name == "" {
		who.name = who.hash
	}
	return who
}

// readers sends a row for each reader. Boots of one engine are one reader: the latest heartbeat, the oldest lease and the least slack
// of them count, and all else adds up.
func (e *emitter) readers() {
	if !ofRanks.has(e.snap.Role) {
		return
	}
	rows := make(map[reader]*watch.Reader, len(e.snap.Readers))
	order := make([]reader, 0, len(e.snap.Readers))
	var oldest clock.Instant
	for i := range e.snap.Readers[:min(len(e.snap.Readers), watch.ReadersMax+2)] {
		r := &e.snap.Readers[i]
		oldest = earlier(oldest, r.Oldest)
		who := readerOf(r)
		have, ok := rows[who]
		if !ok {
			first := *r
			rows[who] = &first
			order = append(order, who)
			continue
		}
		have.Leases, have.Blocks, have.Bytes = have.Leases+r.Leases, have.Blocks+r.Blocks, have.Bytes+r.Bytes
		have.Oldest, have.LastBeat = earlier(have.Oldest, r.Oldest), max(have.LastBeat, r.LastBeat)
		if have.LeastSlack < 0 || r.LeastSlack >= 0 && r.LeastSlack < have.LeastSlack {
			have.LeastSlack = r.LeastSlack
		}
		have.Completed, have.Released, have.Expired = have.Completed+r.Completed, have.Released+r.Released, have.Expired+r.Expired
		have.Revoked, have.Closed = have.Revoked+r.Revoked, have.Closed+r.Closed
		have.Poisoned, have.Duplicate = have.Poisoned+r.Poisoned, have.Duplicate+r.Duplicate
	}
	for _, who := range order {
		e.reader(who, rows[who])
	}
	e.age("oldest_lease_age_seconds", oldest)
}

func earlier(a, b clock.Instant) clock.Instant {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

func (e *emitter) reader(who reader, r *watch.Reader) {
	labels := []string{who.name, who.hash, who.kind}
	e.put("reader_leases", float64(r.Leases), labels...)
	e.put("reader_blocks", float64(r.Blocks), labels...)
	if e.snap.BlockBytes > 0 {
		e.put("reader_held_bytes", float64(r.Bytes), labels...)
	}
	e.age("reader_oldest_lease_age_seconds", r.Oldest, labels...)
	e.age("reader_beat_age_seconds", r.LastBeat, labels...)
	if r.LeastSlack >= 0 && !r.Unnamed {
		e.seconds("reader_least_slack_seconds", r.LeastSlack, labels...)
	}
	for _, end := range [...]struct {
		reason string
		n      uint64
	}{
		{"completed", r.Completed}, {"released", r.Released}, {"revoked", r.Revoked}, {"expired", r.Expired}, {"poisoned", r.Poisoned},
		{"duplicate", r.Duplicate}, {"closed", r.Closed},
	} {
		e.put("reader_leases_freed_total", float64(end.n), who.name, who.hash, who.kind, end.reason)
	}
}

// remotes sends a row for each engine that is read from; past remotesMax what stands now and can be added goes under "other". Counters do
// not: which engines have no row changes as others go, and a sum over them would go back.
func (e *emitter) remotes() {
	seen := make(map[string]bool, len(e.snap.Remotes))
	var other watch.Remote
	left := false
	for i := range e.snap.Remotes {
		r := &e.snap.Remotes[i]
		id := clean(r.ID)
		if len(seen) < remotesMax && !seen[id] && (id != "other" || r.Hash != 0) {
			seen[id] = true
			e.remote(id, r)
			continue
		}
		left = true
		other.Tracked, other.Reads, other.Unheard = other.Tracked+r.Tracked, other.Reads+r.Reads, other.Unheard+r.Unheard
	}
	if left {
		e.totals("other", "", &other)
	}
}

func (e *emitter) remote(id string, r *watch.Remote) {
	hash := wire.HashText(r.Hash)
	e.put("remote_connected", truth(r.State == "connected"), id, hash)
	e.age("remote_state_age_seconds", r.Since, id, hash, clean(r.State))
	if r.Handshake > 0 {
		e.seconds("remote_handshake_seconds", r.Handshake, id, hash)
	}
	if r.Asked.State != "" {
		e.put("remote_handshake_failures", float64(r.Asked.Fails), id, hash, clean(cmp.Or(r.Asked.Why, "none")))
	}
	e.put("remote_connects_total", float64(r.Connects), id, hash)
	e.age("remote_beat_age_seconds", r.LastBeat, id, hash)
	e.age("remote_row_age_seconds", r.LastRow, id, hash)
	e.put("remote_fails", float64(r.Fails), id, hash)
	e.put("remote_missed", truth(r.Missed), id, hash)
	if r.OffsetKnown {
		e.seconds("remote_clock_offset_seconds", time.Duration(r.Offset), id, hash)
	}
	e.totals(id, hash, r)
	e.put("remote_read_bytes_total", float64(r.Bytes), id, hash)
}

func (e *emitter) totals(id, hash string, r *watch.Remote) {
	e.put("remote_requests_tracked", float64(r.Tracked), id, hash)
	e.put("remote_reads_in_flight", float64(r.Reads), id, hash)
	e.put("remote_unheard_bytes", float64(r.Unheard), id, hash)
}
