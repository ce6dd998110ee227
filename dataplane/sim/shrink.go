package sim

import (
	"fmt"
	"reflect"
	"slices"
	"time"
)

// Shrink makes a schedule that breaks a rule as small as it finds one that still breaks the same rule: fewer actions, then a
// simpler fleet, then rounder numbers. It takes about budget of real time at most, and less when stop (nil: never) says so. What
// came of the last run is given, too; nil if even the first one was called off.
//
// Everything random is a hash of the seed and of what it is about, so an action that is taken out changes only what it did.
func Shrink(s Schedule, budget time.Duration, stop func() bool) (Schedule, *Result) {
	o := Options{Stop: stop}
	first, err := Run(s, o)
	if err != nil || first.OK() {
		return s, first
	}
	rule := first.Violations[0].Rule
	k := &shrinker{best: s, res: first, until: time.Now().Add(budget), stop: stop, breaks: func(s *Schedule) *Result {
		res, err := runOrBreak(*s, o)
		if err != nil || res.OK() || res.Violations[0].Rule != rule {
			return nil
		}
		return res
	}}
	k.run()
	return k.best, k.res
}

// run makes the schedule smaller until nothing helps.
func (k *shrinker) run() {
	for again := true; again && !k.over(); {
		before := k.kept
		k.cut()
		k.actions()
		k.engines()
		k.earlier()
		k.numbers()
		again = k.kept != before
	}
}

type shrinker struct {
	best   Schedule
	res    *Result
	breaks func(*Schedule) *Result // nil: it does not break the same rule any more
	until  time.Time
	stop   func() bool
	runs   int
	kept   int
}

func (k *shrinker) over() bool { return time.Now().After(k.until) || k.stop != nil && k.stop() }

// try keeps a schedule if the same rule is still broken first.
func (k *shrinker) try(s Schedule) bool {
	if k.over() {
		return false
	}
	k.runs++
	res := k.breaks(&s)
	if res == nil {
		return false
	}
	k.best, k.res = s, res
	k.kept++
	return true
}

// runOrBreak is Run for a schedule that nobody has looked at: a panic is an error of it.
func runOrBreak(s Schedule, o Options) (res *Result, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("sim: panic: %v", r)
		}
	}()
	return Run(s, o)
}

// cut ends the schedule when the rule was broken.
func (k *shrinker) cut() {
	at := k.best.Span
	if len(k.res.Violations) > 0 {
		at = k.res.Violations[0].At
	}
	s := k.best
	s.Actions = slices.DeleteFunc(slices.Clone(s.Actions), func(a Action) bool { return a.At > at })
	if len(s.Actions) < len(k.best.Actions) {
		k.try(s)
	}
	if s = k.best; at < s.Span { // what was broken behind the span stays there
		s.Span = max(at, lastAction(&s))
		k.try(s)
	}
}

func lastAction(s *Schedule) time.Duration {
	if len(s.Actions) == 0 {
		return time.Millisecond
	}
	return max(s.Actions[len(s.Actions)-1].At, time.Millisecond)
}

// actions takes out ever smaller parts of the list, as long as that works.
func (k *shrinker) actions() {
	for size := (len(k.best.Actions) + 1) / 2; size >= 1; size /= 2 {
		for at := 0; at < len(k.best.Actions) && !k.over(); {
			s := k.best
			end := min(at+size, len(s.Actions))
			s.Actions = append(slices.Clone(s.Actions[:at]), s.Actions[end:]...)
			if !k.try(s) {
				at = end
			}
		}
	}
}

// engines takes out engines that nothing is said of, then makes those left ordinary, one property at a time.
func (k *shrinker) engines() {
	for i := len(k.best.Engines) - 1; i >= 0; i-- {
		k.try(withoutEngine(k.best, i))
	}
	for i := range k.best.Engines {
		for _, simpler := range ordinary {
			e := k.best.Engines[i]
			simpler(&e)
			k.engine(i, e)
		}
	}
	for _, simpler := range plainLink {
		s := k.best
		simpler(&s.Link)
		if s.Link != k.best.Link {
			k.try(s)
		}
	}
}

// withoutEngine is a schedule without its i-th engine and what that one does, or others do with it.
func withoutEngine(s Schedule, i int) Schedule {
	id := s.Engines[i].ID
	s.Engines = slices.Delete(slices.Clone(s.Engines), i, i+1)
	for j := range s.Engines {
		s.Engines[j].Known = slices.DeleteFunc(slices.Clone(s.Engines[j].Known), func(o string) bool { return o == id })
	}
	s.Actions = slices.DeleteFunc(slices.Clone(s.Actions), func(a Action) bool { return a.Engine == id || a.Peer == id })
	return s
}

func (k *shrinker) engine(i int, e Engine) {
	if sameEngine(e, k.best.Engines[i]) {
		return
	}
	s := k.best
	s.Engines = slices.Clone(s.Engines)
	s.Engines[i] = e
	k.try(s)
}

func sameEngine(a, b Engine) bool {
	known := slices.Equal(a.Known, b.Known)
	a.Known, b.Known = nil, nil
	return known && string(printed(a)) == string(printed(b))
}

func printed(e Engine) []byte { return (&Schedule{Engines: []Engine{e}}).Print() }

// ordinary are what makes an engine an ordinary one: everything at once, then one property at a time.
var ordinary = append([]func(*Engine){
	func(e *Engine) { *e = Engine{ID: e.ID, Known: e.Known} },
	func(e *Engine) { e.Host, e.TP, e.PP, e.Carrier = false, 0, 0, "" },
	func(e *Engine) { e.TP, e.PP = 0, 0 },
	func(e *Engine) { e.TP = min(e.TP, 2) },
}, without[Engine]("ID", "Known", "Host")...)

var plainLink = append([]func(*Link){func(l *Link) { *l = Link{} }}, without[Link]()...)

// without gives, for each field of a struct but those named, what takes it away.
func without[T any](but ...string) (all []func(*T)) {
	t := reflect.TypeFor[T]()
	for i := range t.NumField() {
		if !slices.Contains(but, t.Field(i).Name) {
			all = append(all, func(v *T) { reflect.ValueOf(v).Elem().Field(i).SetZero() })
		}
	}
	return all
}

// earlier takes the time away that passes before the first action.
func (k *shrinker) earlier() {
	if len(k.best.Actions) == 0 || k.best.Actions[0].At == 0 {
		return
	}
	s := k.best
	s.Actions = slices.Clone(s.Actions)
	first := s.Actions[0].At
	for i := range s.Actions {
		s.Actions[i].At -= first
	}
	s.Span -= first
	k.try(s)
}

// numbers makes times of actions round, and what counts something small.
func (k *shrinker) numbers() {
	for i := range k.best.Actions {
		for _, unit := range []time.Duration{time.Second, 100 * time.Millisecond, 10 * time.Millisecond, time.Millisecond} {
			a := k.best.Actions[i]
			a.At, a.For = a.At.Round(unit), a.For.Round(unit)
			if a.For == 0 {
				a.For = k.best.Actions[i].For // 0 has a meaning of its own
			}
			if k.action(i, a) {
				break
			}
		}
		a := k.best.Actions[i]
		if a.N > 1 {
			a.N = 1
			k.action(i, a)
		}
	}
}

// action tries another action in the place of one, if the order stays.
func (k *shrinker) action(i int, a Action) bool {
	old := k.best.Actions
	same := a.At == old[i].At && a.For == old[i].For && a.N == old[i].N
	if same || a.At < 0 || a.At > k.best.Span || i > 0 && a.At < old[i-1].At || i+1 < len(old) && a.At > old[i+1].At {
		return false
	}
	s := k.best
	s.Actions = slices.Clone(old)
	s.Actions[i] = a
	return k.try(s)
}
