package wire

import "fmt"

// AppendMerged appends the metadata map m with our kvlease key in it: in place of the one that m has, else as the last. All
// other keys stay as they are, byte for byte, those that we do not know among them. m is walked within the bounds of
// ParseHandshake, and not otherwise looked at.
func AppendMerged(dst, m []byte, l *HandshakeLease) ([]byte, error) {
	if len(m) > HandshakeMax {
		return dst, fmt.Errorf("handshake map of %d bytes: %w", len(m), ErrTooLong)
	}
	p := pack{b: m}
	pairs := p.mapLen(HandshakeMax)
	body := p.b
	at := func() int { return len(body) - len(p.b) }
	from, to := len(body), len(body) // of the key and its value
	found := false
	for range pairs {
		start := at()
		key := p.str(StringMax)
		ours := p.err == nil && string(key) == handshakeKeys[keyLease]
		if p.skip(1); p.err != nil {
			return dst, fmt.Errorf("handshake map: %w", p.err)
		}
		if ours {
			if found {
				return dst, keyError(keyLease, ErrDuplicate)
			}
			found, from, to = true, start, at()
		}
	}
	if err := p.end(); err != nil {
		return dst, fmt.Errorf("handshake map: %w", err)
	}
	if !found {
		pairs++
	}
	start := len(dst)
	dst = append(packMap(dst, pairs), body[:from]...)
	dst = l.append(packStr(dst, handshakeKeys[keyLease]))
	dst = append(dst, body[to:]...)
	if n := len(dst) - start; n > HandshakeMax {
		return dst[:start], fmt.Errorf("handshake map of %d bytes with ours: %w", n, ErrTooLong)
	}
	return dst, nil
}
