package metrics

import (
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

// Bounds of the listener: a scraper that misbehaves costs some descriptors and nothing else.
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
	s := &Server{listen: &bounded{Listener: l, room: make(chan struct{}, connsMax)}, done: make(chan struct{})}
	s.http = &http.Server{
		Handler: Handler(c), ReadHeaderTimeout: headerWait, ReadTimeout: headerWait, WriteTimeout: writeWait, IdleTimeout: idleWait,
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

// Handler serves one scrape at a time: the format that the scraper asks for, native histograms in protobuf.
func Handler(c *Collector) http.Handler {
	one := make(chan struct{}, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		wait := time.NewTimer(gatherAfter)
		defer wait.Stop()
		select {
		case one <- struct{}{}:
			defer func() { <-one }()
		case <-wait.C:
			http.Error(w, "another scrape is being answered", http.StatusServiceUnavailable)
			return
		case <-r.Context().Done():
			return
		}
		format := expfmt.NegotiateIncludingOpenMetrics(r.Header)
		w.Header().Set("Content-Type", string(format))
		if err := c.write(w, format); err != nil {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "kvlease metrics: /metrics\n")
	})
	return mux
}

// write gathers, and then encodes: an error of gathering comes before anything is written.
func (c *Collector) write(w io.Writer, format expfmt.Format) error {
	families, err := c.Gather()
	if err != nil {
		return err
	}
	enc := expfmt.NewEncoder(w, format)
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			return nil // the scraper has gone
		}
	}
	if closer, ok := enc.(expfmt.Closer); ok {
		_ = closer.Close()
	}
	return nil
}

// WriteText writes all metrics in the text format of Prometheus, with classic histograms only.
func (c *Collector) WriteText(w io.Writer) error {
	return c.write(w, expfmt.NewFormat(expfmt.TypeTextPlain))
}

// bounded lets at most cap(room) connections be open; more are closed as they come.
type bounded struct {
	net.Listener
	room chan struct{}
}

func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case b.room <- struct{}{}:
			return &held{Conn: c, room: b.room}, nil
		default:
			c.Close()
		}
	}
}

type held struct {
	net.Conn
	once sync.Once
	room chan struct{}
}

func (h *held) Close() error {
	h.once.Do(func() { <-h.room })
	return h.Conn.Close()
}
