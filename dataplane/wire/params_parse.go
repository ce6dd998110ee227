package wire

import (
	"fmt"
	"math"
)

// ParseParams reads transfer parameters into p, which changes only on success and keeps no byte of text. Unknown keys are
// skipped, and null stands for an absent key. Errors name the key and wrap one of the errors of this package. It allocates
// at most about 24 bytes for each byte of text.
func ParseParams(text []byte, p *Params) error {
	if len(text) > ParamsMax {
		return fmt.Errorf("parameters of %d bytes: %w", len(text), ErrTooLong)
	}
	s := jsonScan{b: text}
	var buf [64]byte
	out := Params{TPSize: 1, DCPSize: 1, PPSize: 1}
	var seen, given uint32
	s.want('{', ErrType)
	for first := true; s.err == nil && s.more(first, '}'); first = false {
		key := s.key(buf[:0], paramNames[:])
		sub := ""
		switch {
		case s.err != nil:
		case key < 0:
			s.skip(1)
		case seen&(1<<key) != 0:
			s.fail(ErrDuplicate)
		default:
			seen |= 1 << key
			if s.word("null") {
				break
			}
			given |= 1 << key
			sub = out.parseValue(&s, key)
		}
		if s.err != nil {
			return paramError(key, sub, s.err)
		}
	}
	if s.err == nil && s.peek() != 0 || s.err == nil && s.i < len(s.b) {
		s.fail(ErrTrailing)
	}
	if s.err != nil {
		return paramError(-1, "", s.err)
	}
	for _, key := range paramsRequired {
		if given&(1<<key) == 0 {
			return paramError(key, "", ErrMissing)
		}
	}
	*p = out
	return nil
}

func paramError(key int, sub string, err error) error {
	switch {
	case key < 0:
		return fmt.Errorf("parameters: %w", err)
	case sub != "":
		return fmt.Errorf("parameter kvlease.%s: %w", sub, err)
	}
	return fmt.Errorf("parameter %s: %w", paramNames[key], err)
}

// key reads a key and its colon; -1: not one of names.
func (s *jsonScan) key(scratch []byte, names []string) int {
	scratch = s.str(scratch, ParamsMax) // a long one is not ours, and no error
	s.want(':', ErrSyntax)
	if s.err != nil {
		return -1
	}
	for i, name := range names {
		if string(scratch) == name {
			return i
		}
	}
	return -1
}

// text reads a string that must not be empty.
func (s *jsonScan) text(most int) string {
	b := s.str(nil, most)
	if s.err == nil && len(b) == 0 {
		s.fail(ErrValue)
	}
	return string(b)
}

// size reads a number of ranks.
func (s *jsonScan) size(most uint64) uint32 {
	v := s.uint(most)
	if s.err == nil && v == 0 {
		s.fail(ErrValue)
	}
	return uint32(v)
}

// parseValue reads one value that is not null; sub is the key within kvlease that an error is about.
func (p *Params) parseValue(s *jsonScan, key int) (sub string) {
	switch key {
	case paramPrefill:
		p.DoRemotePrefill = s.bool()
	case paramDecode:
		p.DoRemoteDecode = s.bool()
	case paramBlocks:
		p.Groups = s.groups()
	case paramEngine:
		p.EngineID = s.text(StringMax)
	case paramRequest:
		p.RequestID = s.text(IDMax)
	case paramHost:
		p.Host = s.text(StringMax)
	case paramPort:
		p.Port = s.size(math.MaxUint16)
	case paramTP:
		p.TPSize = s.size(math.MaxUint16)
	case paramDCP:
		p.DCPSize = s.size(math.MaxUint16)
	case paramPP:
		p.PPSize = s.size(math.MaxUint16)
	case paramTokens:
		p.NumTokens = uint32(s.uint(math.MaxUint32))
	case paramExpiry:
		f := s.float()
		p.ExpiryTime = &f
	case paramGeneration:
		p.RegistrationGeneration = s.uint(math.MaxUint64)
	case paramMode:
		p.TransferMode = string(s.str(nil, StringMax))
	case paramLease:
		return p.parseLease(s)
	}
	return ""
}

// groups reads the lists of block ids.
func (s *jsonScan) groups() [][]uint32 {
	out := [][]uint32{}
	s.want('[', ErrType)
	for first := true; s.err == nil && s.more(first, ']'); first = false {
		ids := []uint32{}
		s.want('[', ErrType)
		for first := true; s.err == nil && s.more(first, ']'); first = false {
			ids = append(ids, uint32(s.uint(math.MaxUint32)))
		}
		if len(out) == GroupsMax {
			s.fail(ErrLimit)
		}
		out = append(out, ids)
	}
	return out
}

// hex16 reads 16 lower-case hexadecimal digits.
func (s *jsonScan) hex16() uint64 {
	var buf [16]byte
	text := s.str(buf[:0], StringMax)
	if s.err == nil && len(text) != len(buf) {
		s.fail(ErrValue)
	}
	v := uint64(0)
	for _, c := range text {
		d, ok := hexDigit(c)
		if !ok {
			s.fail(ErrValue)
		}
		v = v<<4 | d
	}
	return v
}

// parseLease reads our key. The version is looked for first, since of another version nothing else is known.
func (p *Params) parseLease(s *jsonScan) (sub string) {
	if s.peek() != '{' {
		s.wrong()
		return ""
	}
	ahead := *s
	p.Lease.Version = paramsVersion(&ahead)
	if ahead.err != nil {
		s.fail(ahead.err)
		return plNames[plV]
	}
	if p.Lease.Version != LeaseVersion {
		s.skip(1)
		return ""
	}
	var buf [64]byte
	l := &p.Lease
	var seen uint32
	s.want('{', ErrType)
	for first := true; s.err == nil && s.more(first, '}'); first = false {
		key := s.key(buf[:0], plNames[:])
		switch {
		case s.err != nil:
			return ""
		case key < 0:
			s.skip(2)
			continue
		case seen&(1<<key) != 0:
			s.fail(ErrDuplicate)
		}
		seen |= 1 << key
		switch key {
		case plV:
			s.uint(LeaseVersion)
		case plEpoch:
			if l.Epoch = s.hex16(); s.err == nil && l.Epoch == 0 {
				s.fail(ErrValue)
			}
		case plSlot:
			l.Slot = uint32(s.uint(SlotsMax - 1))
		case plG:
			l.Generation = uint32(s.uint(math.MaxUint32 - 1)) // the handle holds g + 1
		case plKey:
			l.Key = s.hex16()
		}
		if s.err != nil {
			return plNames[key]
		}
	}
	if s.err != nil {
		return ""
	}
	for key, name := range plNames {
		if seen&(1<<key) == 0 {
			s.fail(ErrMissing)
			return name
		}
	}
	p.Native = true
	return ""
}

// paramsVersion finds v in the kvlease object.
func paramsVersion(s *jsonScan) uint32 {
	var buf [64]byte
	s.want('{', ErrType)
	for first := true; s.err == nil && s.more(first, '}'); first = false {
		if key := s.key(buf[:0], plNames[:1]); key == plV {
			return uint32(s.uint(math.MaxUint32))
		}
		s.skip(2)
	}
	s.fail(ErrMissing)
	return 0
}
