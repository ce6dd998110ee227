package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/doctor"
	"github.com/kvlease/kvlease/cnixl"
)

type doctorCmd struct {
	Pid     int           `help:"Look at this process, an engine that runs: its limits, processors, cgroup, environment, libraries." placeholder:"PID"`
	Peer    []string      `help:"Shake hands with this engine's side channel. May be repeated." placeholder:"HOST:PORT" sep:"none"`
	Timeout time.Duration `help:"For connecting to a peer and for each of its answers." default:"5s"`
	Env     int           `help:"Print only what the rank on this GPU should set for UCX, for a shell's eval." default:"-1" placeholder:"GPU"`
	Nvml    string        `help:"NVIDIA's management library; KVLEASE_NVML or what the loader finds if not given." placeholder:"FILE"`
	Nixl    string        `help:"libnixl_capi.so or a folder that holds it; searched for if empty." placeholder:"PATH"`
	NoLoad  bool          `help:"Do not open a NIXL agent, which takes half a second of a core."`
	JSON    bool          `help:"Print one JSON object."`
}

func (doctorCmd) Help() string {
	return `What an engine would find on this machine: limits of a process, processors, clock, cgroup, memory, GPUs, RDMA NICs and how near they are to the GPUs, NIXL and UCX, what kvlease trace needs, and whether peers can be reached. Each line says pass, warn, fail or skip with what was measured; what is not well says why it matters and what exactly to do. Nothing is changed.

  $ kvlease doctor                               as this user, in this container
  $ kvlease doctor --pid 4711                    as a running engine has it
  $ kvlease doctor --peer 10.0.0.2:5600          and whether that engine answers
  $ eval "$(kvlease doctor --env 3)"             before the rank on GPU 3 is started
  $ kvlease doctor --json | jq '.results[] | select(.state == "fail")'

It ends with 1 if a line says fail. docs/doctor.md explains each check. What is said of GPUs and RDMA NICs has not been tried on a machine that has them yet.`
}

func (c *doctorCmd) check() error {
	for _, p := range c.Peer {
		if host, port, err := net.SplitHostPort(p); err != nil || host == "" || !isPort(port) {
			return fmt.Errorf("--peer is %q, wanted: HOST:PORT", p)
		}
	}
	switch {
	case c.Pid < 0:
		return fmt.Errorf("--pid is %d, and %d is no process", c.Pid, c.Pid)
	case c.Env < -1:
		return fmt.Errorf("--env is %d, GPUs count from 0", c.Env)
	case c.Env >= 0 && c.JSON:
		return errors.New("--env is for a shell: leave --json out")
	case c.Timeout < time.Millisecond || c.Timeout > time.Minute:
		return fmt.Errorf("--timeout is %v, allowed: 1ms to 1m", c.Timeout)
	}
	return nil
}

func (c *doctorCmd) Run(w *world) error {
	if err := c.check(); err != nil {
		return usageError{err}
	}
	s, err := doctor.This(c.Pid, func() (cnixl.Library, error) {
		return cnixl.Find(cnixl.Config{Path: c.Nixl, Folders: nixlFolders()})
	})
	if errors.Is(err, fs.ErrNotExist) {
		return usageError{fmt.Errorf("--pid: there is no process %d", c.Pid)}
	}
	if err != nil {
		return err
	}
	s.NVML, s.Peers, s.Ask = c.Nvml, c.Peer, doctor.AskPeer(c.Timeout)
	if c.NoLoad {
		s.LoadNIXL = nil
	}
	if c.Env >= 0 {
		set, err := doctor.SettingsOf(w.ctx, s, c.Env)
		if err != nil {
			return err
		}
		return set.WriteShell(w.stdout)
	}
	r := doctor.Look(w.ctx, s)
	if c.JSON {
		enc := json.NewEncoder(w.stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(r)
	} else {
		err = r.Write(w.stdout)
	}
	switch {
	case err != nil:
		return err
	case w.ctx.Err() != nil:
		return errors.New("interrupted: what it says was not seen was not waited for")
	case r.Counts[doctor.Fail] > 0:
		return errBroken
	}
	return nil
}
