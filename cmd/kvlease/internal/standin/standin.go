// Package standin runs engine stand-ins (package node) within a test's process, over loopback: what tools look at from outside.
package standin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/node"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/ports"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// Longest bounds every wait for something that comes.
const Longest = 30 * time.Second

// Engine is one of them.
type Engine struct {
	ID      string
	in      *io.PipeWriter
	reports chan jsonl.Report
	kept    []jsonl.Report
	stop    context.CancelFunc
	ended   chan struct{}
	err     error // why it ended, once ended is closed
	n       uint64
}

// Hub is the network of the engines of one process.
type Hub struct {
	Pages string        // folder of their stats pages
	Lease time.Duration // kv_lease_duration
	hub   *loopback.Hub
}

// NewHub makes one.
func NewHub(pages string, lease time.Duration) *Hub {
	return &Hub{Pages: pages, Lease: lease, hub: loopback.NewHub()}
}

// Start opens an engine and waits until it is ready. listen is the side channel, empty for none.
func (h *Hub) Start(role, id, listen string) (*Engine, error) {
	return Run(node.Config{
		Role: role, EngineID: id, Drive: "inline", PassTime: 2 * time.Millisecond, Lease: h.Lease,
		Layers: 2, Blocks: 256, Listen: listen, Context: "engine", TP: 1, Keys: map[string]any{"stats_page": h.Pages},
	}, core.Loopback(h.hub))
}

// Run opens an engine over this transport and waits until it is ready.
func Run(cfg node.Config, open core.OpenTransport) (*Engine, error) {
	inRead, inWrite := io.Pipe()
	outRead, outWrite := io.Pipe()
	ctx, stop := context.WithCancel(context.Background())
	e := &Engine{ID: cfg.EngineID, in: inWrite, reports: make(chan jsonl.Report, 1<<14), ended: make(chan struct{}), stop: stop}
	cfg.Transport = "loopback"
	go func() {
		defer close(e.ended)
		runtime.LockOSThread() // a step stays on its thread, as it does in the libraries
		defer runtime.UnlockOSThread()
		e.err = node.Run(ctx, cfg, map[string]core.OpenTransport{cfg.Transport: open}, inRead, outWrite, "test")
		outWrite.Close()
		inRead.Close()
	}()
	go func() {
		defer close(e.reports)
		lines := bufio.NewScanner(outRead)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if r, err := jsonl.ParseReport(lines.Bytes()); err == nil {
				e.reports <- r
			}
		}
	}()
	if _, err := e.Wait("ready", func(r *jsonl.Report) bool { return r.Ev == "ready" }); err != nil {
		return nil, errors.Join(err, e.Quit())
	}
	return e, nil
}

// Quit ends the engine, and returns when it is gone. A second time it says the same.
func (e *Engine) Quit() error {
	e.stop()
	select {
	case <-e.ended:
		return e.err
	case <-time.After(Longest):
		return fmt.Errorf("engine %s does not end", e.ID)
	}
}

// Wait takes the first report that fits.
func (e *Engine) Wait(what string, fits func(*jsonl.Report) bool) (jsonl.Report, error) {
	if i := slices.IndexFunc(e.kept, func(r jsonl.Report) bool { return fits(&r) }); i >= 0 {
		r := e.kept[i]
		e.kept = slices.Delete(e.kept, i, i+1)
		return r, nil
	}
	late := time.After(Longest)
	for {
		select {
		case r, ok := <-e.reports:
			if !ok {
				return r, fmt.Errorf("engine %s ended before: %s", e.ID, what)
			}
			if fits(&r) {
				return r, nil
			}
			e.kept = append(e.kept, r)
		case <-late:
			return jsonl.Report{}, fmt.Errorf("engine %s: waited for: %s", e.ID, what)
		}
	}
}

// Kept tells whether a report that fits has come and was not taken.
func (e *Engine) Kept(fits func(*jsonl.Report) bool) bool {
	return slices.ContainsFunc(e.kept, func(r jsonl.Report) bool { return fits(&r) })
}

// Do says a command and takes its answer.
func (e *Engine) Do(c jsonl.Command) (jsonl.Report, error) {
	e.n++
	c.N = e.n
	line, err := jsonl.Append(c)
	if err != nil {
		return jsonl.Report{}, err
	}
	if _, err := e.in.Write(line); err != nil {
		return jsonl.Report{}, err
	}
	r, err := e.Wait(c.Cmd, func(r *jsonl.Report) bool { return r.Re == c.N })
	if err == nil && r.Refused() {
		err = fmt.Errorf("engine %s: %s: %s", e.ID, c.Cmd, r.Error)
	}
	return r, err
}

// Pair starts an owner and a reader that knows it.
func (h *Hub) Pair(owner, reader string) (p, d *Engine, err error) {
	port, err := ports.Free(1)
	if err != nil {
		return nil, nil, err
	}
	if p, err = h.Start("prefill", owner, fmt.Sprintf("127.0.0.1:%d", port)); err != nil {
		return nil, nil, err
	}
	if d, err = h.Start("decode", reader, ""); err == nil {
		_, err = d.Do(jsonl.Command{Cmd: "engine", EngineID: owner, Host: "127.0.0.1", Port: uint32(port)})
	}
	if err != nil {
		return nil, nil, errors.Join(err, p.Quit())
	}
	return p, d, nil
}

// Hold lets e wait with a request of p: heartbeats go to the lease until e reads or goes.
func (e *Engine) Hold(p *Engine, id string, blocks ...uint32) error {
	granted, err := p.Do(jsonl.Command{Cmd: "grant", ID: id, Blocks: blocks, Tokens: uint32(16 * len(blocks))})
	if err != nil {
		return err
	}
	_, err = e.Do(jsonl.Command{Cmd: "track", ID: id, Params: granted.Params})
	return err
}

// Read lets e read a request that it holds, and waits until p has its blocks back.
func (e *Engine) Read(p *Engine, id string) error {
	if _, err := e.Do(jsonl.Command{Cmd: "read", ID: id}); err != nil {
		return err
	}
	if _, err := e.Wait("read", func(r *jsonl.Report) bool { return r.Ev == "read_done" && r.ID == id }); err != nil {
		return err
	}
	_, err := p.Wait("freed", func(r *jsonl.Report) bool { return r.Ev == "freed" && r.ID == id })
	return err
}
