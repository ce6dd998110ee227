package watch

import (
	"bytes"
	"encoding/binary"
	"slices"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/siphash"
)

// readReaders takes the rows of readers, which lie in the same copy as the values, and their names.
func (p *Page) readReaders(s *Snapshot, rows []byte, n uint64) error {
	s.Readers = s.Readers[:0]
	if n > p.secs[secMain].rows {
		return bad("it has %d rows of readers", n)
	}
	if n == 0 {
		return nil
	}
	if _, err := p.whole(secNames, 0, p.names); err != nil {
		return err
	}
	for i := range n {
		row := rows[i*readerWords*8:]
		word := func(k int) uint64 { return binary.LittleEndian.Uint64(row[8*k:]) }
		number, flags := word(0), word(1)
		if number == 0 {
			continue // nobody has this row
		}
		r := Reader{
			Row: int(i), number: number, Native: flags&rowNative != 0, Unnamed: flags&rowUnnamed != 0, Other: flags&rowOther != 0,
			Hash: word(2), Epoch: word(3), Leases: word(4), Blocks: word(5), Bytes: word(5) * s.BlockBytes,
			Oldest: clock.Instant(word(6)), LastBeat: clock.Instant(word(7)), LeastSlack: max(time.Duration(word(8)), -1),
			Completed: word(9), Released: word(10), Revoked: word(11), Expired: word(12), Poisoned: word(13), Duplicate: word(14), Closed: word(15),
		}
		name := p.names[i*nameLen:][:nameLen]
		if length := binary.LittleEndian.Uint64(name[8:]); binary.LittleEndian.Uint64(name) == number && length <= nameMax {
			r.Name = string(name[16 : 16+length])
		}
		s.Readers = append(s.Readers, r)
	}
	return nil
}

// readRemotes takes the rows of engines. They are written in turns: one that has moved between two rows is taken once.
func (p *Page) readRemotes(s *Snapshot, n uint64) error {
	s.Remotes = s.Remotes[:0]
	sec := &p.secs[secRemotes]
	if n > sec.cells*remoteCell {
		return bad("it has %d rows of engines", n)
	}
	for i := uint64(0); i < n; i++ {
		if i%remoteCell == 0 {
			turn, err := p.whole(secRemotes, i/remoteCell, p.cells)
			if err != nil {
				return err
			}
			if turn == 0 {
				return nil
			}
		}
		row := p.cells[i%remoteCell*remoteLen:][:remoteLen]
		word := func(k int) uint64 { return binary.LittleEndian.Uint64(row[8*k:]) }
		r := Remote{
			Engine: word(0), Hash: word(1), Since: clock.Instant(word(2)), Native: word(3) != 0, Epoch: word(4), Ranks: int(word(5)),
			Handshake: time.Duration(word(6)), Connects: word(7), LastBeat: clock.Instant(word(8)), LastRow: clock.Instant(word(9)), Fails: word(10),
			Tracked: word(11), Reads: word(12), Bytes: word(13), Unheard: word(14), OffsetKnown: word(15) != 0, Offset: time.Duration(word(16)),
			Missed: word(remoteFlags)&1 != 0, State: cString(row[remoteState : remoteFlags*8]), ID: cString(row[remoteWords*8:][:remoteID]), Address: cString(row[remoteWords*8+remoteID:]),
		}
		if r.Engine != 0 && !slices.ContainsFunc(s.Remotes, func(o Remote) bool { return o.Engine == r.Engine }) {
			s.Remotes = append(s.Remotes, r)
		}
	}
	return nil
}

// readAsked takes how asking the engines stands that have rows.
func (p *Page) readAsked(s *Snapshot) error {
	var rows map[uint64]int
	for cell := range p.secs[secAsked].cells {
		turn, err := p.whole(secAsked, cell, p.asked)
		if err != nil {
			return err
		}
		if turn == 0 {
			return nil
		}
		if rows == nil {
			rows = make(map[uint64]int, len(s.Remotes))
			for i := range s.Remotes {
				rows[s.Remotes[i].Engine] = i
			}
		}
		for row := p.asked; len(row) >= askedLen; row = row[askedLen:] {
			word := func(k int) uint64 { return binary.LittleEndian.Uint64(row[8*k:]) }
			if i, ok := rows[word(0)]; ok {
				s.Remotes[i].Asked = Asked{State: cString(row[askedState:askedWhy]), Fails: word(1), Since: clock.Instant(word(2)), Why: cString(row[askedWhy:askedLen])}
			}
		}
	}
	return nil
}

func cString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// readEnds takes the ring of ends, but those that are being written over.
func (p *Page) readEnds(s *Snapshot) error {
	s.Ends = s.Ends[:0]
	if s.SkipEnds {
		return nil
	}
	at := int64(p.secs[secEnds].at)
	var head [16]byte
	if err := p.readAt(head[:], at); err != nil {
		return err
	}
	whole := binary.LittleEndian.Uint64(head[8:])
	if whole == 0 {
		return nil
	}
	if p.ends == nil {
		p.ends, p.ring = make([]byte, EndsMax*endLen), make([]record.LastEnd, EndsMax)
	}
	if err := p.readAt(p.ends, at+endHeadLen); err != nil {
		return err
	}
	if err := p.readAt(head[:], at); err != nil {
		return err
	}
	record.PutLastEnds(p.ring, p.ends)
	claimed := max(binary.LittleEndian.Uint64(head[:]), whole)
	for k := uint64(EndsMax); k > 0; k-- { // oldest first
		n := claimed - k + 1
		if claimed < k || n > whole {
			continue
		}
		e := &p.ring[(n-1)%EndsMax]
		if e.Number != n {
			continue // it came and went between two states
		}
		end := End{
			Number: n, At: clock.Instant(e.AtNs), Lease: uint64(e.Lease), User: e.User, IDHash: e.IDHash, IDLen: int(e.IDLen),
			ID: string(e.ID[:min(int(e.IDLen), len(e.ID))]), Held: time.Duration(e.HeldNs), Blocks: uint64(e.Blocks),
		}
		if end.IDHash == 0 && end.IDLen <= len(e.ID) && end.IDLen > 0 {
			end.IDHash = siphash.Sum64(0, 0, []byte(end.ID))
		}
		if int(e.Reason) < len(record.FreedNames) {
			end.Reason = record.FreedNames[e.Reason]
		}
		end.Reader = Reader{Hash: e.ReaderHash, Epoch: e.ReaderEpoch, Native: e.ReaderHash != 0, Unnamed: e.Reader == unnamedNumber, Other: e.Reader == otherNumber}
		for i := range s.Readers {
			if r := &s.Readers[i]; r.number == e.Reader && e.Reader != 0 {
				end.Reader = Reader{Name: r.Name, Hash: r.Hash, Epoch: r.Epoch, Native: r.Native, Unnamed: r.Unnamed, Other: r.Other}
				break
			}
		}
		s.Ends = append(s.Ends, end)
	}
	return nil
}
