package capacity

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// FuzzTrace: whatever a trace has in it, reading ends, with requests in order and within their bounds, or with an error that names the
// line.
func FuzzTrace(f *testing.F) {
	f.Add(line(0, 10, 1) + "\n" + line(5*time.Millisecond, 1, 0) + "\n\n")
	f.Add(line(time.Second, 1, 1) + "\n" + line(0, 1, 1))
	f.Add(`{"timestamp": 1e12, "input_length": 1.5, "output_length": 0, "hash_ids": [1, 2]}`)
	f.Add("{}\n[]\nnull\n")
	f.Fuzz(func(t *testing.T, text string) {
		r := newReader(strings.NewReader(text))
		lines, last := strings.Count(text, "\n")+1, time.Duration(0)
		for n := 0; ; n++ {
			e, err := r.next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				if !strings.Contains(err.Error(), "of the trace") {
					t.Fatalf("%v names no line", err)
				}
				return
			}
			if n > lines || e.at < last || e.input < 1 || e.input > tokensMax || e.output < 0 || e.output > tokensMax {
				t.Fatalf("request %d of %d lines: %+v after %v", n, lines, e, last)
			}
			last = e.at
		}
	})
}
