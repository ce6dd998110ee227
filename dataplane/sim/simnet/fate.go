package simnet

import "time"

// mix spreads a number over 64 bits (the finalizer of SplitMix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// hashText is FNV-1a.
func hashText(s string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 0x100000001b3
	}
	return mix(h)
}

// Classes of what has a fate: a message's class has its first three bytes above it, which tell a heartbeat from a completion.
const (
	classMessage = iota
	classAttached
	classRead
	classSmallRead // of rows and words
)

func classOf(class uint32, msg []byte) uint32 {
	for i := range min(len(msg), 3) {
		class |= uint32(msg[i]) << (8 * (i + 1))
	}
	return class
}

// bucketBits makes the millisecond in which something is posted: 2^20 ns.
const bucketBits = 20

// tally counts what one connection has posted in the present millisecond. Classes beyond its room share the last counter.
type tally struct {
	bucket int64
	class  [4]uint32
	n      [4]uint32 // 0: this one and those behind it are free
}

func (t *tally) count(bucket int64, class uint32) uint32 {
	if bucket != t.bucket {
		*t = tally{bucket: bucket}
	}
	i := 0
	for i < len(t.n)-1 && t.n[i] != 0 && t.class[i] != class {
		i++
	}
	t.class[i] = class
	t.n[i]++
	return t.n[i]
}

// draws is the fate of one message or read: as many numbers as are asked for, each by its own key.
type draws uint64

// fate draws the next fate of a class on a connection.
func (n *Net) fate(c *conn, class uint32) draws {
	bucket := int64(n.now) >> bucketBits
	return draws(mix(mix(c.hash^uint64(bucket)) ^ uint64(c.tally.count(bucket, class))<<32 ^ uint64(class)))
}

// Keys of draws.
const (
	drawLoss = iota
	drawDup
	drawReorder
	drawDelay
	drawSpread
	drawCopy
	drawReset
	drawRequest
	drawAnswer
	drawFail
	drawFailAt
	drawTorn
	drawOrder
	drawCut
	drawLate
	drawGo
	drawPiece // and as many after it as there are pieces
)

func (d draws) of(key uint64) uint64 { return mix(uint64(d) + key*0x9e3779b97f4a7c15) }

// unit is a number from 0 up to 1.
func (d draws) unit(key uint64) float64 { return float64(d.of(key)>>11) / (1 << 53) }

func (d draws) chance(key uint64, p float64) bool { return p > 0 && d.unit(key) < p }

func (d draws) span(key uint64, most time.Duration) time.Duration {
	if most <= 0 {
		return 0
	}
	return time.Duration(d.unit(key) * float64(most))
}
