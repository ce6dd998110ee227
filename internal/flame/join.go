package flame

import (
	"slices"
	"strings"
)

// Go and C have a stack each, so an unwinder that copies one of them ends where the other goes on: inside out at asmcgocall,
// which calls C from Go, at cgocallback, which calls Go from C, and at systemstack. Frame pointers lead across all three.
var switches = []string{"runtime.asmcgocall", "runtime.cgocallback", "runtime.systemstack"}

// Whole reports whether a stack goes down to where its thread began.
func Whole(s Stack) bool {
	if len(s.Frames) < 2 {
		return false
	}
	switch s.Frames[1].Name {
	case "_start", "__libc_start_call_main", "clone3", "__clone3", "thread_start", "runtime.goexit", "runtime.mstart", "runtime.mcall", "ret_from_fork_asm":
		return true
	}
	return false
}

// Several stands in a joined stack for what lies between, where a call was seen to come in several ways.
const Several = "(several callers)"

// Join completes stacks that DWARF unwound up to a change of stacks. What comes outside of it is learnt from whole stacks of
// the same thread name that frame pointers gave in the same run: by the C function that Go called, by the Go function that C
// called. Where several ways lead to a call, what they share at both ends is taken: which of them it was nobody knows, and the
// whole ones do not tell, since few of them come from inside of a long call. Stacks that fit nothing stay as they are. It
// returns the weight that was joined, too.
func Join(dwarf, fp []Stack) (joined []Stack, weight int64) {
	ways := map[string][]Frame{} // by call: what comes outside
	for _, s := range fp {
		if !Whole(s) {
			continue
		}
		for i := 1; i < len(s.Frames)-1; i++ {
			call := callAt(s.Frames, i)
			if call == "" {
				continue
			}
			if way, seen := ways[call]; seen {
				ways[call] = common(way, s.Frames[:i+1])
			} else {
				ways[call] = s.Frames[:i+1]
			}
		}
	}
	for _, s := range dwarf {
		if len(s.Frames) > 2 && !Whole(s) && slices.Contains(switches, s.Frames[1].Name) {
			if way := ways[callOf(s.Frames[0].Name, s.Frames[1].Name, s.Frames[2].Name)]; way != nil {
				s.Frames = slices.Concat(way, s.Frames[2:]) // the switch itself is the last frame of the way
				weight += s.Weight
			}
		}
		joined = append(joined, s)
	}
	return joined, weight
}

// common gives what two ways share, with Several between if that is not all of both.
func common(a, b []Frame) []Frame {
	if slices.Equal(a, b) {
		return a
	}
	outer := 0
	for outer < min(len(a), len(b)) && a[outer] == b[outer] && a[outer].Name != Several {
		outer++
	}
	inner := 0
	for inner < min(len(a), len(b))-outer && a[len(a)-1-inner] == b[len(b)-1-inner] && a[len(a)-1-inner].Name != Several {
		inner++
	}
	return slices.Concat(a[:outer], []Frame{{Name: Several}}, a[len(a)-inner:])
}

// callAt names the call for which frames[:i+1] is the way, or is empty.
func callAt(frames []Frame, i int) string {
	if !slices.Contains(switches, frames[i].Name) {
		return ""
	}
	return callOf(frames[0].Name, frames[i].Name, frames[i+1].Name)
}

// callOf names what is called across a switch. A C function has two names: its own where the compiler made the wrapper's call
// a jump, else its wrapper's, _cgo_0123456789ab_Cfunc_name.
func callOf(thread, at, callee string) string {
	if _, name, found := strings.Cut(callee, "_Cfunc_"); found {
		callee = name
	}
	return thread + "\x00" + at + "\x00" + callee
}
