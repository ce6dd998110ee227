package top

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/text"
	"github.com/kvlease/kvlease/dataplane/watch"
)

// Config of a top.
type Config struct {
	Dir      string   // of the stats pages
	URLs     []string // instead of them; as ParseURL gives them
	Interval time.Duration
	Once     bool
	JSON     bool
	Colours  bool
}

// source reads everything there is to see.
type source struct {
	machine *machine
	remotes []*remote
	rates   *rates
	now     func() time.Time
}

func newSource(cfg *Config) *source {
	s := &source{rates: newRates(), now: time.Now}
	for _, u := range cfg.URLs {
		s.remotes = append(s.remotes, newRemote(u))
	}
	if len(cfg.URLs) == 0 {
		s.machine = newMachine(cfg.Dir)
	}
	return s
}

func (s *source) close() {
	if s.machine != nil {
		s.machine.close()
	}
	for _, r := range s.remotes {
		r.close()
	}
}

func (s *source) read(ctx context.Context) (Reading, error) {
	r := Reading{At: s.now(), Engines: []*Engine{}}
	if s.machine != nil {
		list, notes, err := s.machine.read()
		if err != nil {
			return r, err
		}
		r.Engines, r.Notes = append(r.Engines, list...), notes
	}
	list, notes := readAll(ctx, s.remotes)
	r.Engines, r.Notes = append(r.Engines, list...), append(r.Notes, notes...)
	join(r.Engines)
	s.rates.fill(r.Engines)
	calmRanks(r.Engines)
	for _, e := range r.Engines {
		e.judge()
		if e.Peers == nil {
			e.Peers = []Peer{}
		}
	}
	return r, nil
}

// Run shows what there is, until the user or the context ends it; once, if that is asked for.
func Run(ctx context.Context, cfg *Config, in io.Reader, out io.Writer) error {
	s := newSource(cfg)
	defer s.close()
	switch {
	case cfg.Once:
		return once(ctx, cfg, s, out)
	case cfg.JSON:
		return stream(ctx, cfg, s, out)
	}
	return interact(ctx, cfg, s, in, out)
}

// onceWait is between the two looks that rates need.
const onceWait = time.Second

func once(ctx context.Context, cfg *Config, s *source, out io.Writer) error {
	r, err := s.read(ctx)
	if err == nil && len(r.Engines) > 0 {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(min(cfg.Interval, onceWait)):
		}
		r, err = s.read(ctx)
	}
	if err != nil {
		return err
	}
	if cfg.JSON {
		return writeJSON(out, r)
	}
	return writeText(out, r, cfg)
}

// stream prints a line of JSON for each look.
func stream(ctx context.Context, cfg *Config, s *source, out io.Writer) error {
	tick := time.NewTicker(cfg.Interval)
	defer tick.Stop()
	for {
		r, err := s.read(ctx)
		if err != nil {
			return err
		}
		if err := writeJSON(out, r); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func writeJSON(w io.Writer, r Reading) error {
	sortEngines(r.Engines, ByTrouble, false)
	b, err := text.JSON(r)
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

// writeText prints everything: no line is cut, and the peers of every context follow.
func writeText(w io.Writer, r Reading, cfg *Config) error {
	v := view{where: where(cfg), width: 1 << 12}
	v.set(r)
	var b bytes.Buffer
	fmt.Fprintln(&b, v.title())
	if len(r.Engines) == 0 {
		fmt.Fprintln(&b, v.empty())
	} else {
		columns := engineColumns(0, r.Engines)
		fmt.Fprintln(&b, headLine(columns))
		for _, e := range r.Engines {
			fmt.Fprintln(&b, row(columns, e, e.Level))
		}
	}
	for _, e := range r.Engines {
		if len(e.Peers)+len(e.Trouble) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n%s", text.Printable(e.Name))
		if e.Role != "" {
			fmt.Fprintf(&b, ", %s", roleText(e))
		}
		if e.PID != 0 {
			fmt.Fprintf(&b, ", process %d", e.PID)
		}
		fmt.Fprintln(&b)
		for _, t := range e.Trouble {
			fmt.Fprintf(&b, "  %s\n", text.Printable(t))
		}
		if len(e.Peers) == 0 {
			continue
		}
		columns := peerColumns(0, e)
		fmt.Fprintln(&b, headLine(columns))
		for i := range e.Peers {
			fmt.Fprintln(&b, row(columns, &e.Peers[i], e.Peers[i].Level))
		}
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", text.Printable(n))
	}
	_, err := w.Write(b.Bytes())
	return err
}

func where(cfg *Config) string {
	if cfg.Dir == "" {
		return watch.DefaultDir
	}
	return text.Printable(cfg.Dir)
}
