package top

import (
	"fmt"
	"strings"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/text"
	"github.com/kvlease/kvlease/internal/plural"
)

// view is what is on the screen: the model of the terminal's program, and all that its tests look at.
type view struct {
	reading       Reading
	width, height int
	colours       bool

	order   Order
	reverse bool
	paused  bool
	help    bool
	peers   bool // keys move the peers, not the engines

	moved           bool   // the user has selected one; else the first line is, whoever that is
	key             string // of the engine that is selected
	at              int    // its place, for when it goes
	first, peerFrom int    // of what is shown
	failed          string // why the last look failed
	where           string // what is looked at, in words
}

// set takes another reading, and keeps what was selected.
func (v *view) set(r Reading) {
	v.reading, v.failed = r, ""
	v.sort()
}

func (v *view) sort() {
	sortEngines(v.reading.Engines, v.order, v.reverse)
	v.find()
}

// find looks for the selected engine in the new order; one that has gone leaves its place to the next.
func (v *view) find() {
	list := v.reading.Engines
	for i, e := range list {
		if e.key == v.key && v.moved {
			v.at = i
			return
		}
	}
	if v.at = max(0, min(v.at, len(list)-1)); !v.moved {
		v.at = 0
	}
	key := ""
	if len(list) > 0 {
		key = list[v.at].key
	}
	if key != v.key {
		v.key, v.peerFrom = key, 0
	}
}

func (v *view) selected() *Engine {
	if v.at < len(v.reading.Engines) {
		return v.reading.Engines[v.at]
	}
	return nil
}

// move goes so many lines down.
func (v *view) move(n int) {
	if v.peers {
		v.peerFrom += n // render holds it within its bounds
		return
	}
	v.moved = true
	v.at = max(0, min(v.at+n, len(v.reading.Engines)-1))
	if e := v.selected(); e != nil && e.key != v.key {
		v.key, v.peerFrom = e.key, 0
	}
}

// press takes a key by its name; quit: the user has seen enough.
func (v *view) press(key string) (quit bool) {
	if v.help {
		v.help = false
		return key == "q" || key == "ctrl+c"
	}
	page := max(1, v.height/2)
	switch key {
	case "q", "ctrl+c", "esc":
		return true
	case "down", "j":
		v.move(1)
	case "up", "k":
		v.move(-1)
	case "pgdown", "ctrl+f", "space":
		v.move(page)
	case "pgup", "ctrl+b":
		v.move(-page)
	case "home", "g":
		v.move(-1 << 20)
	case "end", "G":
		v.move(1 << 20)
	case "tab":
		v.peers = !v.peers
	case "s", "right":
		v.order = (v.order + 1) % orders
		v.sort()
	case "S", "left":
		v.order = (v.order + orders - 1) % orders
		v.sort()
	case "r":
		v.reverse = !v.reverse
		v.sort()
	case "p":
		v.paused = !v.paused
	case "h", "?":
		v.help = true
	}
	return false
}

// lines are the whole screen, exactly as high as it is.
func (v *view) lines() []line {
	if v.width < 40 || v.height < 8 {
		return []line{say(text.Cut("make the window larger", v.width))}
	}
	out := []line{v.title()}
	switch {
	case v.help:
		out = append(out, helpLines()...)
	case len(v.reading.Engines) == 0:
		out = append(out, say(""), say(v.empty()))
	default:
		out = append(out, v.body(v.height-3)...)
	}
	out = out[:min(len(out), v.height-2)]
	for len(out) < v.height-2 {
		out = append(out, say(""))
	}
	out = append(out, v.notes(), v.keys())
	for i := range out {
		out[i] = out[i].cut(v.width)
	}
	return out
}

func (v *view) empty() string {
	if v.failed != "" {
		return "nothing can be read"
	}
	return "no engine on kvlease has a stats page in " + v.where + " (stats_page, --dir)"
}

func (v *view) title() line {
	t := v.reading.totals()
	pieces := []piece{{"kvlease", bold}, {text: " " + v.reading.At.Format("15:04:05")}}
	if v.paused {
		pieces = append(pieces, piece{" PAUSED", yellow})
	}
	if t.Troubled > 0 {
		pieces = append(pieces, piece{fmt.Sprintf("  %d of %d in trouble", t.Troubled, t.Contexts), red})
	} else {
		pieces = append(pieces, piece{text: "  " + plural.Counted(t.Contexts, "context", "contexts")})
	}
	pieces = append(pieces, piece{text: fmt.Sprintf("  %s %s  %s %s %sB  %s GB/s",
		count(t.Leases), plural.Of(t.Leases, "lease", "leases"), count(t.Blocks), plural.Of(t.Blocks, "block", "blocks"), text.Bytes(float64(t.Bytes)), gigabytes(t.Rate))})
	return of(pieces...)
}

// body shares the lines between the engines and the peers of the one selected: each gets what it needs, up to half.
func (v *view) body(room int) []line {
	list, e := v.reading.Engines, v.selected()
	const heads = 3 // two headings, and what is said of the one selected
	room -= heads
	peers := max(1, len(e.Peers))
	top := min(len(list), max(room-peers, room/2))
	below := room - top

	columns := engineColumns(v.width, list)
	v.first = max(0, min(v.first, v.at, len(list)-top))
	v.first = max(v.first, v.at-top+1)
	out := []line{headLine(columns)}
	for i := v.first; i < v.first+top; i++ {
		l := row(columns, list[i], list[i].Level)
		l.selected = i == v.at
		out = append(out, l)
	}
	out = append(out, v.about(e, len(list), top))
	if len(e.Peers) == 0 {
		return append(out, of(piece{" no peers: nobody holds its blocks, and it tracks at nobody", dim}))
	}
	pc := peerColumns(v.width, e)
	out = append(out, headLine(pc))
	v.peerFrom = max(0, min(v.peerFrom, len(e.Peers)-below))
	for i := v.peerFrom; i < min(v.peerFrom+below, len(e.Peers)); i++ {
		out = append(out, row(pc, &e.Peers[i], e.Peers[i].Level))
	}
	return out
}

// about is the line between the tables: whose peers follow, where one is in the list, and the first trouble.
func (v *view) about(e *Engine, all, shown int) line {
	place := ""
	if shown < all {
		place = fmt.Sprintf("%d of %d  ", v.at+1, all)
	}
	who := text.Cut(text.Printable(e.Name), 40)
	if e.PID != 0 {
		who += fmt.Sprintf(" process %d", e.PID)
	}
	pieces := []piece{{text: place}, {who, bold}}
	if v.peers {
		pieces[1].look = inverse
	}
	if len(e.Trouble) > 0 {
		more := ""
		if n := len(e.Trouble) - 1; n > 0 {
			more = fmt.Sprintf(" (+%d)", n)
		}
		pieces = append(pieces, piece{": " + text.Printable(e.Trouble[0]) + more, e.Level.look()})
		return of(pieces...)
	}
	pieces = append(pieces, piece{text: fmt.Sprintf(": leases of %s, a beat every %s buys %s", spanText(e.Duration), spanText(e.Interval), spanText(e.Extension))})
	return of(pieces...)
}

func (v *view) notes() line {
	list := v.reading.Notes
	if v.failed != "" {
		list = append([]string{v.failed}, list...)
	}
	if len(list) == 0 {
		return say("")
	}
	return of(piece{text.Printable(strings.Join(list, "; ")), yellow})
}

func (v *view) keys() line {
	order := v.order.String()
	if v.reverse {
		order += ", reversed"
	}
	return of(piece{"q quit  ↑↓ move  tab peers  s sort: " + order + "  r reverse  p pause  h help", dim})
}

func helpLines() []line {
	var out []line
	for l := range strings.SplitSeq(strings.TrimSpace(helpText), "\n") {
		out = append(out, say(l))
	}
	return out
}

const helpText = `
A line is a context: an engine, its host, or one of its ranks (r0, r1, ...).
! alarm  * getting worse  . something has happened
BEAT   since the last heartbeat, of the peer for which that is the longest
LEAS   leases that hold blocks here   BLKS HELD  blocks and bytes under them
SLACK  least time left to a lease of a reader: what its heartbeats found left,
       or what is left since the last one. Red: less than one interval
BT/S   heartbeats received and sent   READ GB/S  reads in flight, and their rate
STL    reads that the fence kept out, or that could not be proven
QUA    reads that are over and whose blocks stay aside
LAT    completions of stock readers that came after the lease had ended
STATE  idle: has nothing to do   still: does not step   stopped: by a signal
       sleeps: gave its memory up   drains: takes nothing new
       cut off: reaches none of its engines
       broken: poisoned   dead: its page is left
Below: who holds blocks of the one selected, and whom it reads from (LEAS: the
requests tracked there; HEARD: since its memory has answered). Trouble first.
q quit  up down pgup pgdown home end, j k g G  move   tab  to the peers and back
s S  sort   r  reverse   p  pause   h ?  this text; any key leaves it
`

// paint is the screen for a terminal.
func (v *view) paint() string {
	var b strings.Builder
	for i, l := range v.lines() {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(l.paint(v.colours))
	}
	return b.String()
}
