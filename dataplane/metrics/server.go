package metrics

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/common/expfmt"
)

// Bounds of the listener: a scraper that misbehaves costs some descriptors, the text of a scrape for each, and nothing else.
const (
	connsMax    = 16
	headerMax   = 16 << 10
	headerWait  = 5 * time.Second
	writeWait   = 10 * time.Second
	idleWait    = 3 * time.Minute // longer than any sensible scrape interval
	gatherAfter = time.Second     // how long a scrape waits for the one before
)

// Errors of Listen; each is wrapped by one that says what is wrong.
var (
	ErrAddr   = errors.New("address")         // its text
	ErrListen = errors.New("nothing listens") // the system refused
)

// ParseAddr reads HOST:PORT. Without a host, and as localhost, it is 127.0.0.1: what listens for others too is said as 0.0.0.0, [::] or an
// address of this machine.
func ParseAddr(text string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%w %q: wanted HOST:PORT", ErrAddr, text)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%w %q: the port is %q, wanted: 0 (any) to 65535", ErrAddr, text, port)
	}
	ip := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if host != "" && host != "localhost" {
		if ip, err = netip.ParseAddr(host); err != nil {
			return netip.AddrPort{}, fmt.Errorf("%w %q: the host is %q, wanted: an IP address of this machine, localhost, or none (127.0.0.1); 0.0.0.0 listens on all", ErrAddr, text, host)
		}
	}
	return netip.AddrPortFrom(ip, uint16(n)), nil
}

// Server answers GET /metrics with what a collector gathers.
//
// Threads: those of net/http, at most connsMax at once, none of them in a step.
type Server struct {
	http   *http.Server
	listen net.Listener
	done   chan struct{}
}

// Listen begins to serve a collector. addr is for ParseAddr; of port 0 Addr tells which it became.
func Listen(addr string, c *Collector) (*Server, error) {
	at, err := ParseAddr(addr)
	if err != nil {
		return nil, err
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	if err != nil {
		return nil, refused(at, err)
	}
	room := &bounded{Listener: l, conns: map[*held]time.Time{}}
	s := &Server{listen: room, done: make(chan struct{})}
	s.http = &http.Server{
		ConnState: room.note,
		Handler:   Handler(c), ReadHeaderTimeout: headerWait, ReadTimeout: headerWait, WriteTimeout: writeWait, IdleTimeout: idleWait,
		MaxHeaderBytes: headerMax, ErrorLog: log.New(io.Discard, "", 0), DisableGeneralOptionsHandler: true,
	}
	go func() {
		defer close(s.done)
		_ = s.http.Serve(s.listen)
	}()
	return s, nil
}

// refused says what to do about an address that cannot be had.
func refused(at netip.AddrPort, err error) error {
	what := "cannot listen there"
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		what = fmt.Sprintf("the port is in use: choose another one, 0 for any, or end what listens there (ss -ltnp 'sport = :%d')", at.Port())
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		what = "that is no address of this machine"
	case errors.Is(err, syscall.EACCES):
		what = "that port needs privileges: choose one from 1024 on"
	}
	return fmt.Errorf("%w for metrics at %v: %s: %w", ErrListen, at, what, err)
}

// Addr is where it listens.
func (s *Server) Addr() netip.AddrPort {
	return s.listen.Addr().(*net.TCPAddr).AddrPort()
}

// Close ends the listener and every connection. A scrape that is being gathered goes on without anybody to tell it to.
func (s *Server) Close() {
	s.http.Close()
	<-s.done
}

// Handler serves the format that the scraper asks for, native histograms in protobuf. One scrape is made at a time, and written while the next
// one is made, so who does not read holds up nobody.
func Handler(c *Collector) http.Handler {
	one := make(chan struct{}, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		wait := time.NewTimer(gatherAfter)
		defer wait.Stop()
		select {
		case one <- struct{}{}:
		case <-wait.C:
			http.Error(w, "another scrape is being made", http.StatusServiceUnavailable)
			return
		case <-r.Context().Done():
			return
		}
		format := expfmt.NegotiateAccept(r.Header, expfmt.DefaultOpenMetricsAcceptedFormats()...)
		body, err := func() ([]byte, error) {
			defer func() { <-one }()
			return c.encode(format)
		}()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", string(format))
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.Write(body)
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "kvlease metrics: /metrics\n")
	})
	return mux
}

// encode makes the whole answer to a scrape.
func (c *Collector) encode(format expfmt.Format) ([]byte, error) {
	families, err := c.Gather()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	enc := expfmt.NewEncoder(&out, format)
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			return nil, err
		}
	}
	if closer, ok := enc.(expfmt.Closer); ok {
		err = closer.Close()
	}
	return out.Bytes(), err
}

// Text is all metrics in the text format of Prometheus, with classic histograms only.
func (c *Collector) Text() ([]byte, error) {
	return c.encode(expfmt.NewFormat(expfmt.TypeTextPlain))
}

// bounded lets at most connsMax connections be open. One more takes the place of the one that has waited for a request for the longest; if
// all are being answered it is closed as it comes.
type bounded struct {
	net.Listener
	mu    sync.Mutex
	conns map[*held]time.Time // since when it waits; 0: it is being answered
}

func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if h := b.admit(c); h != nil {
			return h, nil
		}
		c.Close()
	}
}

func (b *bounded) admit(c net.Conn) *held {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.conns) >= connsMax {
		var oldest *held
		for h, since := range b.conns {
			if !since.IsZero() && (oldest == nil || since.Before(b.conns[oldest])) {
				oldest = h
			}
		}
		if oldest == nil {
			return nil
		}
		delete(b.conns, oldest)
		oldest.Conn.Close()
	}
	h := &held{Conn: c, room: b}
	b.conns[h] = time.Now()
	return h
}

// note keeps which connections wait; net/http tells.
func (b *bounded) note(c net.Conn, state http.ConnState) {
	h := c.(*held)
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, open := b.conns[h]; !open {
		return
	}
	switch state {
	case http.StateActive:
		b.conns[h] = time.Time{}
	case http.StateIdle:
		b.conns[h] = time.Now()
	}
}

type held struct {
	net.Conn
	room *bounded
}

func (h *held) Close() error {
	h.room.mu.Lock()
	delete(h.room.conns, h)
	h.room.mu.Unlock()
	return h.Conn.Close()
}
