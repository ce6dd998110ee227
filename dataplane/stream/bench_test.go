package stream

import "testing"

// Records of 100 bytes from a host to its rank, 64 published at a time, as a step does; with delta the message that carries them is taken
// and put, too. An op is one record.
func BenchmarkRecord(b *testing.B) {
	const batch = 64
	for _, kind := range kinds {
		b.Run(kind, func(b *testing.B) {
			g := attached(b, kind)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i%batch != 0 {
					continue
				}
				for range batch {
					putNumbered(g.h.Reserve(7, 100), 1)
				}
				g.h.Publish()
				g.carry()
				for n := range batch {
					if tag, _, ok := g.r.Next(); !ok || tag != 7 {
						b.Fatalf("record %d of %d is tag %d, %v", n, batch, tag, ok)
					}
				}
				g.r.Release()
			}
		})
	}
}
