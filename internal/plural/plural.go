// Package plural has the words for a number of things: 1 lease, 2 leases.
package plural

import "fmt"

// Number is what things are counted in.
type Number interface {
	~int | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// Counted is a number with what it counts.
func Counted[N Number](n N, one, many string) string {
	return fmt.Sprintf("%d %s", n, Of(n, one, many))
}

// Of is what so many are called.
func Of[N Number](n N, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
