package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/cnixl"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/internal/child"
	"github.com/kvlease/kvlease/internal/require"
	"github.com/kvlease/kvlease/internal/sigstop"
)

// sideEnv makes this test program one engine of its own process, which takes lines and answers each with one.
const sideEnv = "KVLEASE_TEST_SIDE"

func TestMain(m *testing.M) {
	if id := os.Getenv(sideEnv); id != "" {
		if err := serveSide(id); err != nil {
			fmt.Fprintln(os.Stderr, id, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// line is a command or an answer.
type line struct {
	Do        string `json:",omitempty"`
	Err       string `json:",omitempty"`
	Missing   bool   `json:",omitempty"` // NIXL is not here
	Handshake []byte `json:",omitempty"`
	ID        string `json:",omitempty"`
	Epoch     uint64 `json:",omitempty"`
	Key       uint64 `json:",omitempty"`
	Slot, Use uint32
	Kind      uint16 `json:",omitempty"`
	Status    int32  `json:",omitempty"`
	Sum       uint64 `json:",omitempty"`
}

type served struct {
	core   *core.Core
	host   *host.Host
	kv     []byte
	engine uint64
	track  record.Handle
	n      int
}

func serveSide(id string) error {
	cfg, err := core.ParseConfig([]byte(`{"engine_id":"` + id + `","drive":"pump","requests_max":64,"tracked_max":64,"engines_max":4,"read_timeout":8}`))
	if err != nil {
		return err
	}
	mem, err := core.NewMemory(cfg.Sizes())
	if err != nil {
		return err
	}
	open := map[string]core.OpenTransport{"nixl": func(cfg *core.Config, agent string) (transport.Transport, error) {
		return cnixl.Open(cnixl.Config{Folders: []string{"../../.."}, Agent: agent, PeersMax: cfg.PeersMax(), ReadsMax: 1 << 12})
	}}
	out := json.NewEncoder(os.Stdout)
	s := &served{}
	if s.core, err = core.Open(cfg, mem, open, nil); err != nil {
		return out.Encode(line{Err: err.Error(), Missing: errors.Is(err, core.ErrUnavailable)})
	}
	if s.host, err = host.New(mem, s.core.Wake); err == nil {
		err = s.wake()
	}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for answer := (line{}); ; {
		if answer.Err = ""; err != nil {
			answer.Err = err.Error()
		}
		if err := out.Encode(answer); err != nil {
			return err
		}
		if !in.Scan() {
			return nil
		}
		var c line
		if err := json.Unmarshal(in.Bytes(), &c); err != nil {
			return err
		}
		answer, err = s.do(&c)
	}
}

func (s *served) do(c *line) (line, error) {
	switch c.Do {
	case "grant":
		s.n++
		id := fmt.Sprint("r", s.n)
		for i := range s.kv {
			s.kv[i] = byte(s.n)
		}
		h, err := s.host.Grant(host.Grant{ID: []byte(id), Blocks: kvBlocks}, core.Now())
		if err != nil {
			return line{}, err
		}
		epoch, key, _ := s.host.Era(h)
		m, err := s.core.OwnHandshake(0)
		return line{Handshake: m, ID: id, Epoch: epoch, Key: key, Slot: h.Slot(), Use: h.Use()}, err
	case "track":
		var err error
		if s.engine, err = s.core.AddEngine(heartbeat.EngineDesc{ID: "P"}); err != nil {
			return line{}, err
		}
		if err = s.core.Handshake(s.engine, 0, c.Handshake); err != nil {
			return line{}, err
		}
		s.track, err = s.host.Track(s.engine, &host.Remote{ID: []byte(c.ID), Native: true, Epoch: c.Epoch, Key: c.Key, Slot: c.Slot, Generation: c.Use},
			[]byte(c.ID), 0, core.Now())
		return line{}, err
	case "read":
		if err := s.host.Read(s.track, []record.Run{{N: kvBlocks}}); err != nil {
			return line{}, err
		}
		return s.outcome()
	case "sleep":
		if err := s.core.Unregister(); err != nil {
			return line{}, err
		}
		return line{}, unix.Munmap(s.kv)
	case "wake":
		return line{}, s.wake()
	}
	return line{}, nil
}

// wake maps memory, where the kernel likes, and registers it.
func (s *served) wake() (err error) {
	if s.kv, err = unix.Mmap(-1, 0, kvBlocks*kvBlockLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		return err
	}
	return s.core.Register([]core.Region{{
		Addr: uint64(uintptr(unsafe.Pointer(&s.kv[0]))), Bytes: kvBlocks * kvBlockLen, BlockLen: kvBlockLen, BlockStride: kvBlockLen,
		Blocks: kvBlocks, Group: -1, Name: "layer.0",
	}})
}

// outcome waits for what becomes of the read.
func (s *served) outcome() (line, error) {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		var buf [16]record.Event
		for _, ev := range buf[:s.host.Poll(buf[:], core.Now())] {
			if ev.Handle == uint64(s.track) && (ev.Kind == record.EvReadDone || ev.Kind == record.EvReadFailed) {
				sum := uint64(0)
				for _, b := range s.kv {
					sum += uint64(b)
				}
				return line{Kind: ev.Kind, Status: ev.Status, Sum: sum}, nil
			}
		}
	}
	return line{}, errors.New("the read has no outcome after 30 s")
}

// far is an engine in a process of its own.
type far struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.Writer
	out  *json.Decoder
	name string
}

func openFar(t *testing.T, name string, env ...string) *far {
	t.Helper()
	f := &far{t: t, name: name, cmd: exec.Command(os.Args[0])}
	f.cmd.Env = append(append(os.Environ(), sideEnv+"="+name), env...)
	var errs strings.Builder
	f.cmd.Stderr = &errs
	in, out := child.Pipes(t, f.cmd)
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f.in, f.out = in, json.NewDecoder(out)
	t.Cleanup(func() {
		f.cmd.Process.Signal(syscall.SIGCONT)
		f.cmd.Process.Kill()
		f.cmd.Wait()
		if t.Failed() {
			t.Logf("%s said on its error output:\n%s", name, errs.String())
		}
	})
	if a := f.answer(); a.Missing {
		require.Skip(t, "nixl", a.Err)
	} else if a.Err != "" {
		t.Fatalf("%s: %s", name, a.Err)
	}
	return f
}

func (f *far) say(c line) {
	f.t.Helper()
	if err := json.NewEncoder(f.in).Encode(c); err != nil {
		f.t.Fatalf("%s is gone: %v", f.name, err)
	}
}

func (f *far) answer() (a line) {
	f.t.Helper()
	got := make(chan error, 1)
	go func() { got <- f.out.Decode(&a) }()
	select {
	case err := <-got:
		if err != nil {
			f.t.Fatalf("%s is gone: %v", f.name, err)
		}
	case <-time.After(60 * time.Second):
		f.t.Fatalf("%s does not answer", f.name)
	}
	return a
}

func (f *far) do(c line) line {
	f.t.Helper()
	f.say(c)
	a := f.answer()
	if a.Err != "" {
		f.t.Fatalf("%s, %s: %s", f.name, c.Do, a.Err)
	}
	return a
}

// A reader that stands still keeps the addresses of an owner that goes to sleep meanwhile. Over TCP the owner's software answers
// reads of memory that it has unmapped by dying, unless its agent is gone.
func TestAStoppedReaderThatGoesOnAfterItsOwnerSleptGetsAnErrorAndTheOwnerLives(t *testing.T) {
	for _, tls := range []string{"tcp", "shm,tcp", ""} {
		for _, awake := range []bool{true, false} {
			t.Run(fmt.Sprintf("UCX_TLS=%s, owner awake again %v", tls, awake), func(t *testing.T) {
				var env []string
				if tls != "" {
					env = append(env, "UCX_TLS="+tls)
				}
				p, d := openFar(t, "P", env...), openFar(t, "D", env...)
				first := p.do(line{Do: "grant"})
				first.Do = "track"
				d.do(first)
				if a := d.do(line{Do: "read"}); a.Kind != record.EvReadDone || a.Sum != kvBlocks*kvBlockLen {
					t.Fatalf("the first read: %+v", a)
				}
				second := p.do(line{Do: "grant"})
				second.Do = "track"
				d.do(second)
				time.Sleep(300 * time.Millisecond) // heartbeats flow
				if err := sigstop.Signal(d.cmd.Process, syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
				p.do(line{Do: "sleep"})
				if awake {
					p.do(line{Do: "wake"})
				}
				d.say(line{Do: "read"})
				d.cmd.Process.Signal(syscall.SIGCONT)
				if a := d.answer(); a.Kind == record.EvReadDone || a.Kind == 0 && a.Err == "" {
					t.Errorf("the read of the old address: %+v", a)
				} else {
					t.Logf("the read of the old address: %+v", a)
				}
				if !awake {
					p.do(line{Do: "wake"})
				}
				third := p.do(line{Do: "grant"})
				third.Do = "track"
				d.do(third)
				if a := d.do(line{Do: "read"}); a.Kind != record.EvReadDone || a.Sum != 3*kvBlocks*kvBlockLen {
					t.Errorf("a read in the next era: %+v", a)
				}
			})
		}
	}
}
