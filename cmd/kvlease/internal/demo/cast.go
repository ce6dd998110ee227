package demo

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/ports"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/scratch"
	"github.com/kvlease/kvlease/dataplane/watch"
)

// cast says which processes play in a scene. The zero value is P and D, a process each, with P's map handed to D.
type cast struct {
	side         bool // they meet over the side channel, as engines do, not through us
	both         bool // each reads from the other
	holds        bool // the work of D's device stands still meanwhile
	pKeys, dKeys map[string]any
}

// processes are the specs of one engine: the one that takes requests first, then its ranks.
func (s *stage) processes(name, role, program string, tp uint32, keys map[string]any) ([]spec, error) {
	first := spec{
		run: s.name(), name: name, role: role, program: program, drive: s.variant.drive, ucxTLS: s.variant.ucxTLS, lease: s.cfg.Lease, pass: s.cfg.Pass,
		context: "engine", tp: tp, keys: keys, device: s.cfg.deviceOf(name),
	}
	if s.scene.cast.holds && s.cfg.Memory == MemoryFakeCUDA {
		first.hold = filepath.Join(s.folder.Path, name+".held")
	}
	if s.scene.cast.side {
		port, err := ports.Free(1)
		if err != nil {
			return nil, err
		}
		first.port = port
	}
	if tp <= 1 {
		return []spec{first}, nil
	}
	first.context, first.carrier = "host", filepath.Join(s.folder.Path, name+".sock")
	list := []spec{first}
	for rank := range tp {
		r := first
		r.context, r.rank, r.port = "rank", rank, 0
		list = append(list, r)
	}
	return list, nil
}

// open starts all processes and lets the engines meet.
func (s *stage) open() (err error) {
	if s.folder, err = scratch.New("demo"); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	pRole, dRole := "prefill", "decode"
	if s.scene.cast.both {
		pRole, dRole = "both", "both"
	}
	for _, side := range []struct {
		name, role, program string
		tp                  uint32
		keys                map[string]any
		engine              **engine
		ranks               *[]*engine
	}{
		{"P", pRole, s.variant.p, max(s.variant.pTP, 1), s.scene.cast.pKeys, &s.p, &s.pRanks},
		{"D", dRole, s.variant.d, max(s.variant.dTP, 1), s.scene.cast.dKeys, &s.d, &s.dRanks},
	} {
		specs, err := s.processes(side.name, side.role, side.program, side.tp, side.keys)
		if err != nil {
			return err
		}
		for i, sp := range specs {
			e, err := start(s.cfg.launch, sp)
			if err != nil {
				return err
			}
			s.all = append(s.all, e)
			if i == 0 {
				*side.engine = e
			} else {
				*side.ranks = append(*side.ranks, e)
			}
		}
	}
	return s.connect()
}

// close leaves no process and no file behind.
func (s *stage) close() {
	for _, e := range s.all {
		e.kill()
		watch.RemoveDead("", e.proc.PID())
	}
	s.folder.Remove()
}

// connect waits until every process is ready and D knows P.
func (s *stage) connect() error {
	for _, e := range s.all {
		if _, err := e.await(s.ctx, `"ready"`, readyMax, 0, isEvent("ready", "")); err != nil {
			return err
		}
	}
	for _, side := range []struct {
		host  *engine
		ranks []*engine
	}{{s.p, s.pRanks}, {s.d, s.dRanks}} {
		for rank := range side.ranks {
			_, err := side.host.await(s.ctx, fmt.Sprintf(`"rank_up" of rank %d`, rank), answerMax, 0, func(r *jsonl.Report) bool {
				return r.Ev == "rank_up" && r.Rank == uint32(rank)
			})
			if err != nil {
				return err
			}
		}
	}
	if err := s.introduce(s.d, s.p); err != nil {
		return err
	}
	if s.scene.cast.both {
		if err := s.introduce(s.p, s.d); err != nil {
			return err
		}
	}
	s.start = bootNow() // until the first grant
	s.tell("P is %s, D is %s; D knows P", s.what(s.p, s.pRanks), s.what(s.d, s.dRanks))
	return nil
}

// introduce lets a reader know an owner, and waits until it is connected.
func (s *stage) introduce(reader, owner *engine) error {
	c := jsonl.Command{Cmd: "engine", EngineID: owner.spec.name, TP: owner.spec.tp}
	if owner.spec.port != 0 {
		c.Host, c.Port = "127.0.0.1", owner.spec.port
	} else {
		hello, err := owner.ask(s.ctx, jsonl.Command{Cmd: "handshake"})
		if err != nil {
			return err
		}
		c.Handshake, c.TP = hello[0].Handshake, 0
	}
	mark := reader.mark()
	if _, err := reader.ask(s.ctx, c); err != nil {
		return err
	}
	_, err := reader.await(s.ctx, `"engine_up" for `+owner.spec.name, answerMax, mark, isEvent("engine_up", ""))
	return err
}

// what is a word for an engine's processes.
func (s *stage) what(e *engine, ranks []*engine) string {
	switch {
	case len(ranks) > 0:
		var pids []string
		for _, r := range ranks {
			pids = append(pids, fmt.Sprint(r.proc.PID()))
		}
		return fmt.Sprintf("a host (pid %d) and %d ranks (pids %s)", e.proc.PID(), len(ranks), strings.Join(pids, ", "))
	case e.spec.program == "c":
		return fmt.Sprintf("a C program (pid %d)", e.proc.PID())
	}
	return fmt.Sprintf("kvlease node (pid %d)", e.proc.PID())
}

// ofHeads has every rank of an engine do the same with its heads of some blocks, and adds up what they say.
func (s *stage) ofHeads(ranks []*engine, c jsonl.Command) (bad, bytes uint64, err error) {
	for _, r := range ranks {
		answers, err := r.ask(s.ctx, c)
		if err != nil {
			return 0, 0, err
		}
		if a := &answers[0]; a.BadBytes != nil {
			bad += *a.BadBytes
			bytes += a.Bytes
		}
	}
	return bad, bytes, nil
}
