package metrics

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/kvlease/kvlease/dataplane/watch"
)

// Errors of an exporter; others are those of the page.
var (
	ErrListening = errors.New("metrics are served already")
	ErrClosed    = errors.New("the context is closed")
)

// Exporter is what one context exports of itself: text when it is asked for it, and a listener once it was told to.
//
// Threads: any.
type Exporter struct {
	open func() (*watch.Page, error)

	mu     sync.Mutex
	page   *watch.Page
	all    *Collector
	server *Server
	closed bool
}

// NewExporter makes one that opens the page when it is needed first.
func NewExporter(open func() (*watch.Page, error)) *Exporter { return &Exporter{open: open} }

// collector opens the page. Under the lock.
func (e *Exporter) collector() (*Collector, error) {
	switch {
	case e.closed:
		return nil, ErrClosed
	case e.all != nil:
		return e.all, nil
	}
	page, err := e.open()
	if err != nil {
		return nil, err
	}
	e.page, e.all = page, Own(page)
	return e.all, nil
}

// Listen serves the metrics at an address (ParseAddr). Once.
func (e *Exporter) Listen(addr string) (netip.AddrPort, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.server != nil {
		return netip.AddrPort{}, fmt.Errorf("%w at %v", ErrListening, e.server.Addr())
	}
	c, err := e.collector()
	if err != nil {
		return netip.AddrPort{}, err
	}
	if e.server, err = Listen(addr, c); err != nil {
		e.server = nil
		return netip.AddrPort{}, err
	}
	return e.server.Addr(), nil
}

// Text is all metrics in the text format, with classic histograms only.
func (e *Exporter) Text() ([]byte, error) {
	e.mu.Lock()
	c, err := e.collector()
	e.mu.Unlock()
	if err != nil {
		return nil, err
	}
	text, err := c.Text()
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil && e.closed { // meanwhile
		return nil, ErrClosed
	}
	return text, err
}

// Close ends the listener and gives the page back.
func (e *Exporter) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	if e.server != nil {
		e.server.Close()
	}
	if e.page != nil {
		e.all.end()
		e.page.Close()
	}
}
