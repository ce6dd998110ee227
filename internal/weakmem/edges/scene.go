// Package edges holds the lock-free edges of kvlease as small programs, and runs them with internal/weakmem.
//
// The sources name both ends of an edge in a comment, P1 and C1, say. A scene is the code around some of these edges, cut down
// to a few words and rounds, with the weakest orders that it needs: what the sources use is that or stronger. Each
// named end made weaker must lead to a bad execution, and so must each shortcut that the code could have taken. A test
// compares the names here with those in the sources.
package edges

import (
	"fmt"
	"slices"

	wm "github.com/kvlease/kvlease/internal/weakmem"
)

// Site is one place of a scene that an order belongs to.
type Site struct {
	Edge   string // as in the sources
	Where  string // file: function
	Order  wm.Order
	Weaker wm.Order // refuted
}

// Shortcut is a change of the code, not of an order, that is refuted.
type Shortcut struct{ Name, What string }

// Scene is a program over some edges.
type Scene struct {
	Name      string
	What      string // what must hold
	Sites     []Site
	Shortcuts []Shortcut
	Long      bool // more than a second: left out of ordinary tests
	build     func(b *build) wm.Program
}

// build is how a scene is to be made: as it is, or with one change.
type build struct {
	scene    *Scene
	site     int // made weaker; -1: none
	shortcut string
}

// at is the order of the scene's i-th site.
func (b *build) at(i int) wm.Order {
	s := b.scene.Sites[i]
	if i == b.site {
		return s.Weaker
	}
	return s.Order
}

// takes reports that the shortcut of that name is to be taken.
func (b *build) takes(name string) bool { return b.shortcut == name }

// Run is one exploration: a scene as it is, or changed in one place.
type Run struct {
	Scene  *Scene
	Change string // "": none
	wm.Result
}

// OK reports that the outcome is the one wanted.
func (r *Run) OK() bool { return (r.Bad == nil) == (r.Change == "") }

// graphsMax is far more than any scene needs.
const graphsMax = 20_000_000

// Run explores the scene as it is, then with each change.
func (s *Scene) Run(done func(Run)) {
	explore := func(change string, b build) {
		p := s.build(&b)
		p.Name = s.Name
		done(Run{Scene: s, Change: change, Result: wm.Explore(p, graphsMax)})
	}
	explore("", build{scene: s, site: -1})
	for i, site := range s.Sites {
		change := fmt.Sprintf("%s %s, not %s", site.Edge, site.Weaker, site.Order)
		if site.Weaker == wm.Plain {
			change = site.Edge + " left out"
		}
		explore(change, build{scene: s, site: i})
	}
	for _, c := range s.Shortcuts {
		explore(c.Name, build{scene: s, site: -1, shortcut: c.Name})
	}
}

// fence is a fence of a site; Plain leaves it out.
func fence(t *wm.T, o wm.Order) {
	if o != wm.Plain {
		t.Fence(o)
	}
}

func nonzero(v uint64) bool { return v != 0 }

func word(name string, i uint64) string { return fmt.Sprint(name, i) }

// Scenes gives all of them.
func Scenes() []Scene {
	return slices.Concat(ringScenes(), listScenes(), wakeScenes(), poisonScenes(), wordScenes())
}
