package wire

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// ParseHandshake reads a metadata map into h, which changes only on success and keeps no byte of msg. Keys that it does
// not know are skipped. Errors name the key and wrap one of the errors of this package. It allocates at most about 16
// bytes for each byte of msg.
func ParseHandshake(msg []byte, h *Handshake) error {
	if len(msg) > HandshakeMax {
		return fmt.Errorf("handshake map of %d bytes: %w", len(msg), ErrTooLong)
	}
	p := pack{b: msg}
	out := Handshake{DCPSize: 1, PCPSize: 1}
	var seen uint32
	for n := p.mapLen(HandshakeMax); n > 0; n-- {
		key := lookup(&p, handshakeKeys[:])
		if key < 0 {
			p.skip(1)
		} else if seen&(1<<key) != 0 {
			p.fail(ErrDuplicate)
		} else {
			seen |= 1 << key
			if sub := out.parseValue(&p, key); sub != "" {
				return fmt.Errorf("handshake key kvlease.%s: %w", sub, p.err)
			}
		}
		if p.err != nil {
			return keyError(key, p.err)
		}
	}
	if err := p.end(); err != nil {
		return fmt.Errorf("handshake map: %w", err)
	}
	for key := range keyPhysicalPerLogical + 1 {
		if seen&(1<<key) == 0 {
			return keyError(key, ErrMissing)
		}
	}
	if err := out.check(); err != nil {
		return err
	}
	*h = out
	return nil
}

func keyError(key int, err error) error {
	if key < 0 {
		return fmt.Errorf("handshake map: %w", err)
	}
	return fmt.Errorf("handshake key %s: %w", handshakeKeys[key], err)
}

// lookup reads a map's key; -1: not one of ours, or an error.
func lookup(p *pack, names []string) int {
	s := p.str(StringMax)
	if p.err != nil {
		return -1
	}
	for i, name := range names {
		if string(s) == name {
			return i
		}
	}
	return -1
}

// parseValue reads one value; sub is the key within kvlease that an error is about.
func (h *Handshake) parseValue(p *pack, key int) (sub string) {
	switch key {
	case keyEngineID:
		h.EngineID = string(p.str(StringMax))
	case keyAgentMetadata:
		h.AgentMetadata = append([]byte(nil), p.bin()...)
	case keyBaseAddr:
		h.BaseAddrs = p.uints()
	case keyDeviceID:
		h.DeviceID = uint32(p.uint(math.MaxInt32))
	case keyNumBlocks:
		h.NumBlocks = p.uint(math.MaxUint32)
	case keyBlockLens:
		h.BlockLens = p.uints()
	case keyBlockStrides:
		h.BlockStrides = p.uints()
	case keyLayout:
		h.Layout = string(p.str(StringMax))
	case keyBlockSize:
		h.BlockSize = p.uint(math.MaxUint32)
	case keySSMSizes:
		if n := p.array(2); p.err == nil && n != 2 {
			p.fail(ErrValue)
		}
		h.SSMSizes[0], h.SSMSizes[1] = p.uint(math.MaxInt64), p.uint(math.MaxInt64)
	case keyAttnBackend:
		h.AttnBackend = string(p.str(StringMax))
	case keyPhysicalPerLogical:
		h.PhysicalPerLogical = p.uint(math.MaxUint32)
	case keyRegionNumBlocks:
		h.RegionNumBlocks = list(p, func() uint64 { return p.uint(math.MaxUint32) })
	case keyRegionGroupIDs:
		h.RegionGroupIDs = list(p, func() int64 { return p.sint(-1, math.MaxInt32) })
	case keyRegionNames:
		h.RegionNames = list(p, func() string { return string(p.str(StringMax)) })
	case keyRegionMemTypes:
		h.RegionMemTypes = list(p, p.mem)
	case keyDCPSize:
		h.DCPSize = p.uint(math.MaxUint32)
	case keyPCPSize:
		h.PCPSize = p.uint(math.MaxUint32)
	case keyPLEBlockLen:
		if !p.isNil() {
			v := p.uint(math.MaxInt64)
			h.PLEBlockLen = &v
		}
	case keyRegionMembers:
		h.RegionMembers = list(p, func() []string {
			return list(p, func() string { return string(p.str(StringMax)) })
		})
	case keyPackedMembers:
		h.PackedMembers = packedMembers(p)
	case keyLease:
		if !p.isNil() {
			return h.parseLease(p)
		}
	}
	return ""
}

// uints reads the numbers of the regions.
func (p *pack) uints() []uint64 {
	out := make([]uint64, p.array(RegionsMax))
	for i := range out {
		out[i] = p.uint(math.MaxUint64)
	}
	return out
}

// list reads a list over regions, or nil. Room is made for what the header says, which array has checked.
func list[T any](p *pack, one func() T) []T {
	if p.isNil() {
		return nil
	}
	out := make([]T, 0, p.array(RegionsMax))
	for range cap(out) {
		v := one()
		if p.err != nil {
			return nil
		}
		out = append(out, v)
	}
	return out
}

// mem reads VRAM or DRAM.
func (p *pack) mem() transport.Mem {
	s := p.str(StringMax)
	for m, name := range memNames {
		if string(s) == name {
			return transport.Mem(m)
		}
	}
	p.fail(ErrValue)
	return 0
}

func packedMembers(p *pack) []PackedMember {
	out := make([]PackedMember, 0, p.mapLen(RegionsMax))
	for range cap(out) {
		m := PackedMember{Name: string(p.str(StringMax))}
		if n := p.array(2); p.err == nil && n != 2 {
			p.fail(ErrValue)
		}
		m.Offset, m.Bytes = p.uint(math.MaxInt64), p.uint(math.MaxInt64)
		if p.err != nil {
			return nil
		}
		out = append(out, m)
	}
	return out
}

// parseLease reads our key. The version is looked for first, since of another version nothing else is known: what the
// keys mean, or whether they are numbers.
func (h *Handshake) parseLease(p *pack) (sub string) {
	ahead := pack{b: p.b}
	if ahead.mapLen(HandshakeMax); ahead.err != nil {
		p.fail(ahead.err)
		return ""
	}
	ahead = pack{b: p.b}
	h.Lease.Version = leaseVersion(&ahead)
	if ahead.err != nil {
		p.fail(ahead.err)
		return leaseKeys[leaseV]
	}
	if h.Lease.Version != LeaseVersion {
		p.skip(1)
		return ""
	}
	l := &h.Lease
	var seen uint32
	for n := p.mapLen(HandshakeMax); n > 0; n-- {
		key := lookup(p, leaseKeys[:])
		if key < 0 {
			p.skip(2)
			if p.err != nil {
				return ""
			}
			continue
		}
		if seen&(1<<key) != 0 {
			p.fail(ErrDuplicate)
		}
		seen |= 1 << key
		l.parseValue(p, key)
		if p.err != nil {
			return leaseKeys[key]
		}
	}
	for key := range leaseRank + 1 {
		if seen&(1<<key) == 0 {
			p.fail(ErrMissing)
			return leaseKeys[key]
		}
	}
	l.TP, l.PP = max(l.TP, 1), max(l.PP, 1)
	h.Native = true
	return ""
}

// leaseVersion finds v in the kvlease map.
func leaseVersion(p *pack) uint32 {
	for n := p.mapLen(HandshakeMax); n > 0; n-- {
		key := lookup(p, leaseKeys[:1])
		if key == leaseV {
			return uint32(p.uint(math.MaxUint32))
		}
		p.skip(2)
		if p.err != nil {
			return 0
		}
	}
	p.fail(ErrMissing)
	return 0
}

func (l *HandshakeLease) parseValue(p *pack, key int) {
	switch key {
	case leaseV:
		p.uint(LeaseVersion)
	case leaseEpoch:
		l.Epoch = p.uint(math.MaxUint64)
	case leaseBase:
		l.Base = p.uint(1<<62 - 1)
	case leaseBoard:
		l.Board = p.uint(math.MaxUint64)
	case leaseBoardDevice:
		l.BoardDevice = uint32(p.uint(math.MaxInt32))
	case leaseBoardMem:
		l.BoardMem = p.mem()
	case leaseSlots:
		l.Slots = uint32(p.uint(SlotsMax))
	case leaseDuration:
		l.Duration = time.Duration(p.uint(uint64(DurationMax)))
	case leaseAgent:
		l.Agent = string(p.str(StringMax))
	case leaseRank:
		l.Rank = uint32(p.uint(math.MaxUint32))
	case leaseHash:
		l.Hash = string(p.str(StringMax))
	case leaseTP:
		l.TP = p.size(RanksMax)
	case leasePP:
		l.PP = p.size(RanksMax)
	case leaseKVHeads:
		l.KVHeads = uint32(p.uint(KVHeadsMax))
	case leaseParts:
		l.Parts = list(p, func() uint32 { return p.size(PartsMax) })
		if !slices.ContainsFunc(l.Parts, func(n uint32) bool { return n != 1 }) {
			l.Parts = nil
		}
	case leaseReplicated:
		if l.Replicated = list(p, p.bool); !slices.Contains(l.Replicated, true) {
			l.Replicated = nil
		}
	}
}

// size reads a number from 1 to most.
func (p *pack) size(most uint64) uint32 {
	n := p.uint(most)
	if n == 0 {
		p.fail(ErrValue)
	}
	return uint32(n)
}

// check looks at what the keys say together, so that no address made from them can wrap.
func (h *Handshake) check() error {
	n := len(h.BaseAddrs)
	for _, l := range []struct{ key, got int }{
		{keyBlockLens, len(h.BlockLens)},
		{keyBlockStrides, len(h.BlockStrides)},
		{keyRegionNumBlocks, lenOr(h.RegionNumBlocks, n)},
		{keyRegionGroupIDs, lenOr(h.RegionGroupIDs, n)},
		{keyRegionNames, lenOr(h.RegionNames, n)},
		{keyRegionMemTypes, lenOr(h.RegionMemTypes, n)},
	} {
		if l.got != n {
			return fmt.Errorf("handshake key %s: %d items for %d regions: %w", handshakeKeys[l.key], l.got, n, ErrValue)
		}
	}
	for i, base := range h.BaseAddrs {
		if _, ok := extent(base, h.BlockStrides[i], h.Blocks(i), h.BlockLens[i]); !ok {
			return fmt.Errorf("handshake key kv_caches_base_addr: region %d wraps: %w", i, ErrValue)
		}
	}
	for _, v := range []struct {
		key int
		n   uint64
	}{{keyBlockSize, h.BlockSize}, {keyPhysicalPerLogical, h.PhysicalPerLogical}, {keyDCPSize, h.DCPSize}, {keyPCPSize, h.PCPSize}} {
		if v.n == 0 {
			return keyError(v.key, ErrValue)
		}
	}
	if h.EngineID == "" {
		return keyError(keyEngineID, ErrValue)
	}
	if h.Native {
		return h.Lease.check(n)
	}
	return nil
}

func (l *HandshakeLease) check(regions int) error {
	_, fits := extent(l.Board, record.RowLen, uint64(l.Slots), record.BoardHeadLen)
	for _, v := range []struct {
		key int
		ok  bool
	}{
		{leaseEpoch, l.Epoch != 0},
		{leaseSlots, l.Slots != 0},
		{leaseBoard, l.Board != 0 && l.Board%8 == 0 && fits},
		{leaseDuration, l.Duration >= DurationMin},
		{leaseAgent, l.Agent != ""},
		{leasePP, l.TP*l.PP <= RanksMax},
		{leaseRank, l.TP*l.PP == 1 || l.Rank < l.TP*l.PP}, // of a map without sizes nothing is known
		{leaseParts, lenOr(l.Parts, regions) == regions},
		{leaseReplicated, lenOr(l.Replicated, regions) == regions},
	} {
		if !v.ok {
			return fmt.Errorf("handshake key kvlease.%s: %w", leaseKeys[v.key], ErrValue)
		}
	}
	return nil
}

// extent is the end of n pieces of stride bytes from base, and more bytes after the last start.
func extent(base, stride, n, more uint64) (end uint64, ok bool) {
	if n > math.MaxUint32 || n > 0 && stride > math.MaxUint64/n {
		return 0, false
	}
	end = base + stride*n
	return end + more, end >= base && end+more >= end
}

// lenOr is the length of a list, or n for nil.
func lenOr[T any](list []T, n int) int {
	if list == nil {
		return n
	}
	return len(list)
}

// Blocks is the number of blocks in region i.
func (h *Handshake) Blocks(i int) uint64 {
	if h.RegionNumBlocks != nil {
		return h.RegionNumBlocks[i]
	}
	return h.NumBlocks
}

// Parts is the number of pieces of a block in region i; 0: not told, the peer is a stock one.
func (h *Handshake) Parts(i int) uint32 {
	switch {
	case !h.Native:
		return 0
	case i >= len(h.Lease.Parts):
		return 1
	}
	return h.Lease.Parts[i]
}

// Replicated says whether every rank holds the whole blocks of region i. False says nothing of a stock peer.
func (h *Handshake) Replicated(i int) bool {
	return h.Native && i < len(h.Lease.Replicated) && h.Lease.Replicated[i]
}
