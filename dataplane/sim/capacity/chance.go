package capacity

import (
	"math"
	"time"
)

// What is drawn. Each draw is a hash of the seed, what it is for, and of what, so that one request more changes no other one.
const (
	drawCopies uint64 = iota
	drawSpread
	drawPhase
	drawSecret
	drawCrash
	drawWired
	drawStall
	drawStallFor
)

func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func draw(seed, what uint64, of ...uint64) uint64 {
	h := mix(seed ^ mix(what))
	for _, v := range of {
		h = mix(h ^ v)
	}
	return h
}

// unit is a number from 0 up to 1.
func unit(seed, what uint64, of ...uint64) float64 {
	return float64(draw(seed, what, of...)>>11) / (1 << 53)
}

// wait is the time, in hours, to the next of what happens rate times an hour.
func wait(rate float64, seed, what uint64, of ...uint64) float64 {
	return -math.Log(1-unit(seed, what, of...)) / rate
}

// spanOf is a span of so many seconds, at most a century.
func spanOf(seconds float64) time.Duration {
	return time.Duration(min(seconds, 3e9) * float64(time.Second))
}
