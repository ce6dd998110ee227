package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
)

// request is what D says to P, a line each, and answer what P says to each of them.
type request struct {
	Op   string `json:"op"`
	Spec *Spec  `json:"spec,omitempty"`
	N    int    `json:"n,omitempty"`
}

// Requests. P steps once per pass, as an engine does; while it spins it does nothing but look.
const (
	opOpen  = "open"  // a side by Spec; its answer has Addr, Device, Meta, Handshake
	opClose = "close" // the side
	opGrant = "grant" // N leases; Leases
	opPing  = "ping"
	opSpin  = "spin"
	opPass  = "pass"
	opNotif = "notif" // once N raw notifications have come since the last such answer; At
	opFreed = "freed" // once N leases have been freed since; At
)

const passTime = 200 * time.Microsecond // short, so that a lease is granted and its completion is put away soon

type answer struct {
	Err       string  `json:"err,omitempty"`
	Addr      uint64  `json:"addr,omitempty"`
	Device    uint32  `json:"device,omitempty"`
	Meta      []byte  `json:"meta,omitempty"`
	Handshake []byte  `json:"handshake,omitempty"`
	Leases    []lease `json:"leases,omitempty"`
	At        []int64 `json:"at,omitempty"` // CLOCK_BOOTTIME in ns
}

// lease is what transfer parameters say of one.
type lease struct {
	ID         string `json:"id"`
	Epoch      uint64 `json:"epoch"`
	Key        uint64 `json:"key"`
	Slot       uint32 `json:"slot"`
	Generation uint32 `json:"generation"`
}

// owner is P.
//
// Threads: one; another one only reads lines.
type owner struct {
	*side
	transports map[string]core.OpenTransport
	answers    *json.Encoder
	spins      bool
	waits      *request // for what has still to come
	notifs     []int64  // when the raw ones came that no answer has told, and of leases when they were freed
	freed      []int64
	granted    uint64
}

// Serve is P: it carries out what comes in, until the end of it.
func Serve(ctx context.Context, in io.Reader, out io.Writer, transports map[string]core.OpenTransport) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	o := &owner{transports: transports, answers: json.NewEncoder(out)}
	requests := make(chan *request)
	go func() {
		defer close(requests)
		lines := json.NewDecoder(bufio.NewReader(in))
		for {
			r := &request{}
			if lines.Decode(r) != nil {
				return
			}
			select {
			case requests <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	err := o.loop(ctx, requests)
	if o.side != nil {
		err = errors.Join(err, o.close())
	}
	return err
}

func (o *owner) loop(ctx context.Context, requests <-chan *request) error {
	always := make(chan struct{})
	close(always)
	for {
		steps := always
		if o.side == nil { // nothing to step: only a request goes on
			steps = nil
		}
		select {
		case r, ok := <-requests:
			if !ok {
				return nil
			}
			if err := o.take(r); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		case <-steps:
			if err := o.pass(); err != nil {
				return err
			}
		}
	}
}

// pass looks once at everything that may have come.
func (o *owner) pass() error {
	for o.raw.Poll(o.in) > 0 {
		now := int64(core.Now())
		for range o.in.Len() {
			o.notifs = append(o.notifs, now)
		}
		o.in.Reset()
	}
	if err := o.core.Step(); err != nil {
		return err
	}
	if err := o.poll(func(e *record.Event) error {
		if e.Kind == record.EvFreed {
			o.freed = append(o.freed, int64(core.Now()))
		}
		return nil
	}); err != nil {
		return err
	}
	if o.waits != nil {
		return o.tell()
	}
	if !o.spins {
		time.Sleep(passTime)
	}
	return nil
}

// tell answers what waits, if it has come.
func (o *owner) tell() error {
	list := &o.notifs
	if o.waits.Op == opFreed {
		list = &o.freed
	}
	n := o.waits.N
	if len(*list) < n {
		return nil
	}
	o.waits = nil
	err := o.answers.Encode(answer{At: (*list)[:n]})
	*list = append((*list)[:0], (*list)[n:]...)
	return err
}

func (o *owner) take(r *request) error {
	if o.waits = nil; r.Op == opNotif || r.Op == opFreed {
		o.waits = r
		return nil
	}
	a, err := o.carryOut(r)
	if err != nil {
		a = answer{Err: err.Error()}
	}
	return o.answers.Encode(a)
}

func (o *owner) carryOut(r *request) (a answer, err error) {
	if (o.side == nil) != (r.Op == opOpen) {
		return a, fmt.Errorf("%s is out of turn", r.Op)
	}
	switch r.Op {
	case opOpen:
		return o.open(r.Spec)
	case opClose:
		err = o.close()
		o.side = nil
		runtime.GC()
	case opPing:
	case opSpin:
		o.spins = true
	case opPass:
		o.spins, o.notifs, o.freed = false, o.notifs[:0], o.freed[:0]
	case opGrant:
		for range r.N {
			l, err := o.grant()
			if err != nil {
				return a, err
			}
			a.Leases = append(a.Leases, l)
		}
	default:
		err = fmt.Errorf("unknown request %q", r.Op)
	}
	return a, err
}

func (o *owner) open(spec *Spec) (a answer, err error) {
	if spec == nil {
		return a, errors.New("open needs a spec")
	}
	s, err := openSide("P", spec, o.transports)
	if err != nil {
		return a, err
	}
	for b := range uint64(spec.Blocks) {
		if err = marks(b).put(s.mem, b, spec.Block); err != nil {
			return a, errors.Join(err, s.close())
		}
	}
	a.Addr, a.Device = s.mem.addr(), s.mem.device()
	a.Meta, err = s.raw.Metadata()
	if err == nil {
		a.Handshake, err = s.core.OwnHandshake(0)
	}
	if err != nil {
		return a, errors.Join(err, s.close())
	}
	o.side = s
	return a, nil
}

// grant holds blocks under one more lease; the ring may be full until a step has taken what is in it.
func (o *owner) grant() (lease, error) {
	o.granted++
	l := lease{ID: fmt.Sprintf("chatcmpl-%032x-%08x", o.granted, o.granted)} // as long as that of an OpenAI-style server
	for until := core.Now().Add(longest); ; {
		h, err := o.host.Grant(host.Grant{ID: []byte(l.ID), Blocks: 1, Tokens: 16}, core.Now())
		if err == nil {
			l.Slot, l.Generation = h.Slot(), h.Use()
			l.Epoch, l.Key, _ = o.host.Era(h)
			return l, nil
		}
		if !errors.Is(err, host.ErrFull) || until.Before(core.Now()) {
			return l, fmt.Errorf("grant: %w", err)
		}
		if err := o.pass(); err != nil {
			return l, err
		}
	}
}
