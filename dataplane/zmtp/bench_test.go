package zmtp

import (
	"strconv"
	"strings"
	"testing"
)

// One request of five bytes and its reply at a time, client and server on this machine. Per request.
func BenchmarkRequest(b *testing.B) {
	b.Run("ours to ours", func(b *testing.B) {
		s := listen(b, "127.0.0.1:0", Config{Handle: echo})
		benchConn(b, s.Addr().String())
	})
	b.Run("ours to ours with connecting", func(b *testing.B) {
		s := listen(b, "127.0.0.1:0", Config{Handle: echo})
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := (Client{}).Request(b.Context(), s.Addr().String(), []byte("5 0")); err != nil {
				b.Fatal(err)
			}
		}
		perSecond(b)
	})
	b.Run("ours to libzmq", func(b *testing.B) {
		benchConn(b, theirs(b, "ROUTER", "127.0.0.1", "NULL", 0))
	})
	b.Run("libzmq to ours", func(b *testing.B) {
		s := listen(b, "127.0.0.1:0", Config{Handle: echo})
		benchTheirs(b, s.Addr().String())
	})
	b.Run("libzmq to libzmq", func(b *testing.B) {
		benchTheirs(b, theirs(b, "ROUTER", "127.0.0.1", "NULL", 0))
	})
}

func benchConn(b *testing.B, addr string) {
	c, err := Client{}.Dial(b.Context(), addr)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := c.Request(b.Context(), []byte("5 0")); err != nil {
			b.Fatal(err)
		}
	}
	perSecond(b)
}

func perSecond(b *testing.B) {
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
}

// benchTheirs reports what the process of libzmq's client has measured.
func benchTheirs(b *testing.B, addr string) {
	const requests = 3000
	var ns float64
	for range b.N {
		text := scene(b, addr, "requests", requests)
		var err error
		if ns, err = strconv.ParseFloat(strings.TrimSpace(text), 64); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(ns, "ns/op")
	b.ReportMetric(1e9/ns, "requests/s")
}
