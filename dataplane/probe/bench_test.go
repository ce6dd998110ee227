package probe

import (
	"fmt"
	"os"
	"testing"
)

// ran is how many ns of processor time a process has had.
func (h *host) ran() (ns uint64) {
	h.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", h.pid))
	if err == nil {
		_, err = fmt.Sscan(string(text), &ns)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return ns
}

// What a traced process pays, in its own processor time: a step's begin and end are two hits, each with two or three looks into maps, and the two
// looks at the clock between them.
func BenchmarkAHit(b *testing.B) {
	const steps = 200_000
	for _, attached := range []bool{false, true} {
		name := map[bool]string{false: "nobody attached", true: "attached"}[attached]
		b.Run(name, func(b *testing.B) {
			d := startHost(b)
			if attached {
				p, fs := open(b, Config{}), NewFiles()
				defer fs.Close()
				attach(b, p, fs, d.pid)
			}
			d.number("steps 0 %d 0", steps) // around an attach hits cost more
			began, rounds := d.ran(), 0
			for b.Loop() {
				d.number("steps 0 %d 0", steps)
				rounds++
			}
			b.ReportMetric(float64(d.ran()-began)/float64(rounds*steps*2), "cpu-ns/hit")
		})
	}
}
