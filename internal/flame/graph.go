package flame

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kvlease/kvlease/internal/svg"
)

// Picture says what stands around a graph.
type Picture struct {
	Title, Story string
	Cut          float64 // frames with a smaller share of all are left out
}

// Sizes in px.
const (
	rowHeight = 16.0
	margin    = 10.0
	storyTop  = 44.0
	storyLine = 15.0
	storyWrap = 175 // characters
	inner     = svg.Width - 2*margin
	textInset = 3.0
	nameWidth = 6.4 // of a character: names have more wide ones than texts
)

const style = `
rect { stroke: #ffffff; stroke-width: 0.5; }
.bg { stroke: none; }
.h { fill: #d0d7de; } .g { fill: #7fc8e8; } .c { fill: #6fbf8f; } .n { fill: #e7b168; } .r { fill: #c3b1e1; } .k { fill: #e3a5a0; } .o { fill: #dcd8c0; }
.f { fill: #1b1f24; }
`

const dark = `
	rect { stroke: #0d1117; }
`

// node is a frame with all that it was seen to call.
type node struct {
	frame    Frame
	weight   int64
	children map[Frame]*node
}

func (n *node) add(frames []Frame, weight int64) {
	n.weight += weight
	if len(frames) == 0 {
		return
	}
	if n.children == nil {
		n.children = map[Frame]*node{}
	}
	child := n.children[frames[0]]
	if child == nil {
		child = &node{frame: frames[0]}
		n.children[frames[0]] = child
	}
	child.add(frames[1:], weight)
}

// inOrder gives the children by name, so that the same code lies at the same place in each picture.
func (n *node) inOrder() []*node {
	var out []*node
	for _, c := range n.children {
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b *node) int { return strings.Compare(a.frame.String(), b.frame.String()) })
	return out
}

func (n *node) depth(least int64) int {
	d := 0
	for _, c := range n.children {
		if c.weight >= least {
			d = max(d, c.depth(least))
		}
	}
	return d + 1
}

// WriteSVG draws stacks as a flame graph: widths are shares of the weight, callers lie below what they call, and a tooltip has
// what a frame has no room for.
func WriteSVG(w io.Writer, stacks []Stack, p Picture) error {
	root := &node{frame: Frame{Name: "all"}}
	for _, s := range stacks {
		root.add(s.Frames, s.Weight)
	}
	least := max(1, int64(p.Cut*float64(root.weight)))
	depth := root.depth(least)
	lines := svg.Wrap(clean(p.Story), storyWrap)
	legend := storyTop + storyLine*float64(len(lines)) - 4
	height := legend + 22 + float64(depth)*rowHeight + margin
	var pen svg.Pen
	pen.Text("title", margin, 26, "start", clean(p.Title))
	for i, line := range lines {
		pen.Text("story", margin, storyTop+storyLine*float64(i), "start", line)
	}
	x := margin
	for k := OursGo; k < kinds; k++ {
		pen.Rect(kindClass[k], x, legend, 11, 11)
		pen.Text("quiet", x+15, legend+9, "start", kindName[k])
		x += 15 + svg.CharWidth*float64(len(kindName[k])) + 22
	}
	if root.weight > 0 {
		draw(&pen, root, root.weight, least, margin, height-margin-rowHeight)
	}
	picture := svg.Picture{Title: clean(p.Title), Description: clean(p.Story), Style: style, Dark: dark, Height: height}
	return picture.Write(w, &pen)
}

func draw(pen *svg.Pen, n *node, all, least int64, x, y float64) {
	width := inner * float64(n.weight) / float64(all)
	pen.Open(fmt.Sprintf("%s, %.2f %%", clean(n.frame.String()), 100*float64(n.weight)/float64(all)))
	pen.Rect(kindClass[KindOf(n.frame)], x, y, width, rowHeight)
	if room := int((width - 2*textInset) / nameWidth); room >= 3 {
		name := []rune(clean(n.frame.Name))
		if len(name) > room {
			name = append(name[:room-1], '…')
		}
		pen.Text("f", x+textInset, y+rowHeight-4.5, "start", string(name))
	}
	pen.End()
	for _, c := range n.inOrder() {
		if c.weight >= least {
			draw(pen, c, all, least, x, y-rowHeight)
		}
		x += inner * float64(c.weight) / float64(all)
	}
}
