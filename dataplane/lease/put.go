//go:build !race

package lease

// put stores a word of a row that readers use alone. A plain aligned store is not torn on amd64 and arm64; nothing is
// ordered by it and nothing has to be: the fence word is the only one that proves anything, and it is atomic.
func put(w *uint64, v uint64) { *w = v }
