package flame

import (
	"bytes"
	"encoding/xml"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

const script = `D 28415     1003009 cpu-clock: 
	          13d105 runtime.cgocallbackg1 (/x/libkvlease-core.so)
	    7ffc3dd8f070 [unknown] ([unknown])
	           28321 [unknown] (/x/libucs-14c218c5.so.0.0.0)
	          30ad2e github.com/kvlease/kvlease/dataplane.(*Plane).Step (/x/libkvlease-core.so (deleted))
	            3b80 std::function<void (int)>::operator()(int) const (/x/libnixl.so)

a thread 7     2 cycles:P: 
	ffffffff815d9b46 follow_page_pte ([kernel.kallsyms])
	               0 x (inlined)

`

func TestPerfsOutputIsRead(t *testing.T) {
	got, err := ReadScript(strings.NewReader(script))
	if err != nil {
		t.Fatal(err)
	}
	want := []Stack{
		{[]Frame{{"D", ""}, {"std::function<void (int)>::operator()(int) const", "libnixl.so"}, {"dataplane.(*Plane).Step", "libkvlease-core.so"},
			{"(no name)", "libucs-14c218c5.so.0.0.0"}, {"runtime.cgocallbackg1", "libkvlease-core.so"}}, 1003009},
		{[]Frame{{"a thread", ""}, {"x", "inlined"}, {"follow_page_pte", "kernel"}}, 2},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stacks (-want +got):\n%s", diff)
	}
}

func TestWhatPerfDoesNotPrintIsAnError(t *testing.T) {
	for _, text := range []string{"\t12 x (y)\n", "D 1 2\n", "D 1 x ev:\n", "D 1 -5 ev:\n", "D 1 5 ev:\n\tnothing\n", "D 1 5 ev:\n\t12 x\n"} {
		if got, err := ReadScript(strings.NewReader(text)); err == nil {
			t.Errorf("%q was read as %v", text, got)
		}
	}
	for _, text := range []string{"a;b\n", "a;b x\n", "12\n", "a -3\n"} {
		if got, err := ReadFolded(strings.NewReader(text)); err == nil {
			t.Errorf("%q was read as %v", text, got)
		}
	}
}

// hostile names try to end a frame, a line, an element or an attribute, or are no text at all.
var hostile = []Stack{
	{[]Frame{{"all;of it", ""}, {"</title><script>alert(1)</script>", "x\"onload=\"y"}, {"a\nb 7", "c;d"}}, 30},
	{[]Frame{{"all;of it", ""}, {"\x00\x1b[31m\xff\ufffe", "f"}, {"operator<&'\"", "]"}}, 60},
	{[]Frame{{"all;of it", ""}, {strings.Repeat("long ", 400), ""}}, 10},
}

func TestFoldedTextReadsAsWhatWasWritten(t *testing.T) {
	var first, second bytes.Buffer
	if err := WriteFolded(&first, append(hostile, hostile[0])); err != nil {
		t.Fatal(err)
	}
	stacks, err := ReadFolded(bytes.NewReader(first.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if len(stacks) != 3 {
		t.Errorf("%d stacks, want 3: the same frames twice are one", len(stacks))
	}
	if err := WriteFolded(&second, stacks); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first.String(), second.String()); diff != "" {
		t.Errorf("written again (-first +second):\n%s", diff)
	}
	for _, s := range stacks {
		if len(s.Frames) > 3 || s.Frames[0].Name != "all:of it" {
			t.Errorf("a name has made frames: %v", s.Frames)
		}
	}
}

func FuzzFolded(f *testing.F) {
	f.Add("a;b [c] 12\n")
	f.Add("x [y;z] w [] 0")
	f.Add("0 [] 0")
	f.Fuzz(func(t *testing.T, text string) {
		stacks, err := ReadFolded(strings.NewReader(text))
		if err != nil {
			return
		}
		var once, twice, picture bytes.Buffer
		if err := WriteFolded(&once, stacks); err != nil {
			t.Fatal(err)
		}
		again, err := ReadFolded(bytes.NewReader(once.Bytes()))
		if err != nil {
			t.Fatalf("%q: written as %q, which is not read: %v", text, once.String(), err)
		}
		if err := WriteFolded(&twice, again); err != nil || !bytes.Equal(once.Bytes(), twice.Bytes()) {
			t.Errorf("%q, then %q", once.String(), twice.String())
		}
		if err := WriteSVG(&picture, stacks, Picture{}); err != nil {
			t.Fatal(err)
		}
		elements(t, picture.Bytes())
	})
}

// elements counts what an XML reader finds; it fails the test for what none may accept.
func elements(t *testing.T, picture []byte) map[string]int {
	t.Helper()
	found := map[string]int{}
	in := xml.NewDecoder(bytes.NewReader(picture))
	for {
		token, err := in.Token()
		if err == io.EOF {
			return found
		}
		if err != nil {
			t.Fatalf("no XML: %v", err)
		}
		if e, ok := token.(xml.StartElement); ok {
			found[e.Name.Local]++
			for _, a := range e.Attr {
				found["@"+a.Name.Local]++
			}
		}
	}
}

func TestNamesInAPictureAreTextOnly(t *testing.T) {
	var picture bytes.Buffer
	if err := WriteSVG(&picture, hostile, Picture{Title: "</svg>\x01", Story: "<b>\xff"}); err != nil {
		t.Fatal(err)
	}
	found := elements(t, picture.Bytes())
	if found["script"] != 0 || found["@onload"] != 0 || found["b"] != 0 || found["svg"] != 1 {
		t.Errorf("a name has become markup: %v", found)
	}
	if found["g"] != 7 { // all, the heading and five functions
		t.Errorf("%d frames, want 7", found["g"])
	}
}

func stacksOf(t *testing.T, file string) []Stack {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	stacks, err := ReadFolded(f)
	if err != nil {
		t.Fatal(err)
	}
	return stacks
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	file = filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

func TestAPictureAndATableOfAKnownRun(t *testing.T) {
	stacks := stacksOf(t, "testdata/known.folded")
	var picture, table bytes.Buffer
	if err := WriteSVG(&picture, stacks, Picture{Title: "Known", Story: "12 s", Cut: 0.01}); err != nil {
		t.Fatal(err)
	}
	elements(t, picture.Bytes())
	golden(t, "known.svg", picture.Bytes())
	if err := WriteTop(&table, stacks, 3, map[string]string{"kvl_step": "nothing: a | b"}); err != nil {
		t.Fatal(err)
	}
	golden(t, "known.md", table.Bytes())
}

func TestSharesAreOfAllSamples(t *testing.T) {
	top, byKind := Top(stacksOf(t, "testdata/known.folded"), 2)
	want := []Cost{
		{"dataplane.(*Plane).Step", 0.3, 0.8}, // of two programs, and of itself inside itself once
		{"kvlx_poll", 0.1, 0.2},
	}
	if diff := cmp.Diff(want, top); diff != "" {
		t.Errorf("top (-want +got):\n%s", diff)
	}
	if byKind[Kernel] != 0.3 || byKind[OursGo] != 0.3 || byKind[OursC] != 0.2 || byKind[Transport] != 0.1 || byKind[GoRuntime] != 0.1 {
		t.Errorf("by kind: %v", byKind)
	}
}

// frames of one file, from the outermost on.
func frames(names ...string) []Frame {
	out := make([]Frame, len(names))
	for i, name := range names {
		out[i].Name = name
	}
	return out
}

func TestHalvesOfAStackAreJoinedByTheCallBetweenThem(t *testing.T) {
	way := []string{"D", "clone3", "kvl_step", "runtime.cgocallback", "_cgoexp_1_kvlgo_step"}
	fp := []Stack{
		{frames(append(way, "rows", "post", "runtime.asmcgocall", "_cgo_1_Cfunc_kvlx_post", "kvlx_post")...), 30},
		{frames(append(way, "reads", "half", "post", "runtime.asmcgocall", "_cgo_1_Cfunc_kvlx_post")...), 10},
		{frames("D", "lost", "runtime.asmcgocall", "kvlx_post"), 1000},
		{frames("P", "_start", "runtime.asmcgocall", "kvlx_post"), 1000},
	}
	fp = append(fp, fp[0]) // a way seen twice is one
	dwarf := []Stack{
		{frames("D", "runtime.asmcgocall", "kvlx_post", "nixl"), 101}, // the wrapper's call was made a jump
		{frames("D", "runtime.cgocallback", "_cgoexp_1_kvlgo_step", "Step"), 7},
		{frames("D", "runtime.asmcgocall", "kvlx_send", "nixl"), 5}, // never seen whole
		{frames("D", "clone3", "start_thread"), 3},
	}
	got, weight := Join(dwarf, fp)
	if weight != 108 {
		t.Errorf("weight %d was joined, want 108", weight)
	}
	want := []Stack{
		{frames(append(way, Several, "post", "runtime.asmcgocall", "kvlx_post", "nixl")...), 101},
		{frames(append(way[:4:4], "_cgoexp_1_kvlgo_step", "Step")...), 7},
		dwarf[2], dwarf[3],
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("joined (-want +got):\n%s", diff)
	}
}

func TestRunsOfDifferentLengthCountTheSame(t *testing.T) {
	stacks := Scale(Under([]Stack{{frames("T", "a", "b"), 30}, {frames("T", "b"), 10}, {frames("T", "c"), 500}}, regexp.MustCompile("^b$")), 4000)
	if diff := cmp.Diff([]Stack{{frames("T", "a", "b"), 3000}, {frames("T", "b"), 1000}}, stacks); diff != "" {
		t.Errorf("stacks (-want +got):\n%s", diff)
	}
}

func TestNotesNameTheirFunction(t *testing.T) {
	got, err := ReadNotes(strings.NewReader("# of a day\n\nlease.(*Table).Renew: nothing: it is a walk\n"))
	if diff := cmp.Diff(map[string]string{"lease.(*Table).Renew": "nothing: it is a walk"}, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if _, err := ReadNotes(strings.NewReader("no note\n")); err == nil {
		t.Error("a line without a note was taken")
	}
}
