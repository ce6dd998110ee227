package attach

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/text"
	"github.com/kvlease/kvlease/internal/plural"
)

// writeEngine prints what the side channel has told.
func (r *Report) writeEngine(w io.Writer) {
	fmt.Fprintf(w, "engine %q at %s: %s\n", r.EngineID, r.Addr, r.kind())
	fmt.Fprintf(w, "  handshake    %s, after %.2f ms to connect\n", r.RoundTrip, r.ConnectMs)
	fmt.Fprintf(w, "  its clock    %+.3f ms against ours, at most %.3f ms off (CLOCK_MONOTONIC of both)\n", r.AheadMs, r.AheadMostMs)
	fmt.Fprintf(w, "  hash         %s\n", plain(r.Hash))
	if l := r.Lease; l != nil {
		fmt.Fprintf(w, "  epoch        %s\n", l.Epoch)
		fmt.Fprintf(w, "  leases       %d slots, %s each, a heartbeat every %s buys %s\n", l.Slots, seconds(l.DurationMs), seconds(l.BeatMs), seconds(l.ExtendMs))
	}
	for i := range r.Ranks {
		r.Ranks[i].write(w)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "  note: %s\n", text.Printable(n))
	}
	if f := r.Against; f != nil {
		f.write(w)
	}
}

func (r *Report) kind() string {
	size := fmt.Sprintf("TP %d, PP %d", r.TP, r.PP)
	if r.Lease != nil {
		return fmt.Sprintf("kvlease, protocol %d, %s", r.Lease.Version, size)
	}
	return "stock vLLM, " + size + " as asked for, since it does not say"
}

// plain makes a name of a peer's fit for a line on a terminal.
func plain(s string) string {
	const most = 120
	if s == "" {
		return "none"
	}
	if cut := []rune(text.Printable(s)); len(cut) > most {
		return string(cut[:most]) + "..."
	}
	return text.Printable(s)
}

func seconds(ms float64) string { return fmt.Sprintf("%.4g s", ms/1e3) }

// String is for people: the least first, since it is nearest to what the way costs.
func (s Spread) String() string {
	if s.N == 0 {
		return "not measured"
	}
	return fmt.Sprintf("%.3f ms (least of %d; middle %.3f, most %.3f)", s.LeastMs, s.N, s.MedianMs, s.MostMs)
}

func (k *Rank) write(w io.Writer) {
	fmt.Fprintf(w, "  pp %d rank %d  layout %s, %s, %d tokens a block, %d blocks\n", k.PP, k.Rank, plain(k.Layout), plain(k.Backend), k.BlockTokens, k.Blocks)
	var more []string
	for _, v := range []struct {
		name string
		n    uint64
		dull uint64
	}{{"kernel blocks per block", k.PerLogical, 1}, {"DCP", k.DCP, 1}, {"PCP", k.PCP, 1}, {"device", uint64(k.Device), 0}} {
		if v.n != v.dull {
			more = append(more, fmt.Sprintf("%s %d", v.name, v.n))
		}
	}
	if k.SSM != [2]uint64{} {
		more = append(more, fmt.Sprintf("SSM state %d and %d bytes", k.SSM[0], k.SSM[1]))
	}
	if k.PLE != nil {
		more = append(more, fmt.Sprintf("PLE pages of %d bytes", *k.PLE))
	}
	if len(more) > 0 {
		fmt.Fprintf(w, "    %s\n", strings.Join(more, ", "))
	}
	if b := k.Board; b != nil {
		fmt.Fprintf(w, "    board at %s in %s, base %s, agent %q\n", b.Addr, b.Mem, b.Base, k.Agent)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "    region\taddress\tblocks\tbytes\tstride\tgroup\tmemory\tname")
	for i, g := range k.Regions {
		name := plain(g.Name)
		if len(g.Members) > 1 {
			name += fmt.Sprintf(" and %d more layers", len(g.Members)-1)
		}
		fmt.Fprintf(t, "    %d\t%s\t%d\t%d%s\t%d\t%d\t%s\t%s\n", i, g.Addr, g.Blocks, g.BlockBytes, g.shape(), g.Stride, g.Group, g.Mem, name)
	}
	t.Flush()
}

// shape is what is unusual about a block.
func (g *Region) shape() string {
	s := ""
	if g.Parts > 1 {
		s = fmt.Sprintf(" in %d", g.Parts)
	}
	if g.Replicated {
		s += " on every rank"
	}
	return s
}

// writeReads prints what was measured over the transport.
func (r *Report) writeReads(w io.Writer) {
	if r.Unread != "" {
		fmt.Fprintf(w, "  not read from: %s\n", r.Unread)
	}
	for i := range r.Ranks {
		k := &r.Ranks[i]
		if k.Read == nil {
			continue
		}
		fmt.Fprintf(w, "  reads        pp %d rank %d: 8 bytes in %s; its agent was loaded in %.2f ms, and the first read took %.2f ms\n",
			k.PP, k.Rank, *k.Read, k.LoadMs, k.First)
		if k.Board != nil && k.Board.Seen {
			fmt.Fprintf(w, "  board        pp %d rank %d: %s\n", k.PP, k.Rank, k.Board.state())
		}
	}
}

func (b *Board) state() string {
	s := plural.Counted(b.Held, "lease", "leases") + " held in the first " + plural.Counted(b.Looked, "slot", "slots")
	if b.Draining {
		s += ", draining: it takes no new work"
	}
	if b.Closed {
		s += ", closed: every row is closed for ever"
	}
	return s
}

func (f *Fit) write(w io.Writer) {
	if len(f.Misfits) == 0 {
		fmt.Fprintf(w, "  against      engine %q at %s could read from it\n", f.EngineID, f.Addr)
		return
	}
	for _, m := range f.Misfits {
		fmt.Fprintf(w, "  against      %s: %s\n", f.Addr, text.Printable(m))
	}
}

// write prints what was found out about a request.
func (q *RequestReport) write(w io.Writer) {
	fmt.Fprintf(w, "  request      %s\n", plain(q.ID))
	for _, r := range q.Rows {
		if r.Held {
			fmt.Fprintf(w, "    pp %d rank %d: held, %s so far, until %.3f s of its host's CLOCK_BOOTTIME\n", r.PP, r.Rank, plural.Counted(r.Beats, "heartbeat", "heartbeats"), float64(r.DeadlineUs)/1e6)
		} else {
			fmt.Fprintf(w, "    pp %d rank %d: ended\n", r.PP, r.Rank)
		}
	}
	if q.FixedLeftMs != nil {
		fmt.Fprintf(w, "    ends by itself in %s, whatever heartbeats say\n", seconds(*q.FixedLeftMs))
	}
	if q.Beats > 0 {
		fmt.Fprintf(w, "    %s to each rank; handed to the transport in %s\n", plural.Counted(q.Beats, "heartbeat", "heartbeats"), q.Send)
		switch {
		case q.Applied != nil:
			fmt.Fprintf(w, "    a notification until its row showed it: %s\n", *q.Applied)
		case !q.Native:
			fmt.Fprintf(w, "    whether they arrived and were applied is not known: nothing answers them without the lease's row\n")
		}
		if q.Unapplied > 0 {
			fmt.Fprintf(w, "    %d of them were not applied in time\n", q.Unapplied)
		}
	}
	if d := q.Read; d != nil {
		fmt.Fprintf(w, "    %d bytes read in %.2f ms into %s, where each lies is in %s.json\n    %s\n", d.Bytes, d.TookMs, d.File, d.File, d.Why)
	}
	if q.EndedMs != nil {
		fmt.Fprintf(w, "    completed: its rows showed the end after %.2f ms\n", *q.EndedMs)
	}
	fmt.Fprintf(w, "    the lease: %s\n", q.Left)
}
