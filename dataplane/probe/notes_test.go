package probe

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/trace"
)

func TestEverySiteOfALibraryIsFoundWithItsSemaphore(t *testing.T) {
	f, err := os.Open(fixture(t, "libsites.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sites, err := Sites(f)
	if err != nil {
		t.Fatal(err)
	}
	var names []trace.Site
	words := map[uint64]bool{}
	for _, s := range sites {
		names = append(names, s.Site)
		words[s.Semaphore] = true
		var code [5]byte
		if _, err := f.ReadAt(code[:], int64(s.Offset)); err != nil {
			t.Fatal(err)
		}
		if want := [5]byte{0x0f, 0x1f, 0x44, 0x00, 0x00}; code != want && isAMD64 {
			t.Errorf("%v: % x in the file", s.Site, code)
		}
		if s.Semaphore%4 != 0 || s.Semaphore == 0 {
			t.Errorf("%v: semaphore at %#x", s.Site, s.Semaphore)
		}
	}
	if len(names) != int(trace.Count) || !slices.IsSorted(names) || len(words) != int(trace.Count) {
		t.Errorf("sites %v, %d semaphores", names, len(words))
	}
}

// encode makes the bytes of a note.
func (n note) encode() []byte {
	desc := binary.LittleEndian.AppendUint64(nil, n.site)
	desc = binary.LittleEndian.AppendUint64(desc, n.base)
	desc = binary.LittleEndian.AppendUint64(desc, n.semaphore)
	for _, w := range []string{n.provider, n.name, n.operands} {
		desc = append(append(desc, w...), 0)
	}
	b := binary.LittleEndian.AppendUint32(nil, 8)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(desc)))
	b = binary.LittleEndian.AppendUint32(b, 3)
	b = append(append(b, "stapsdt\x00"...), desc...)
	return append(b, make([]byte, -len(b)&3)...)
}

func TestNotesAreReadAndBrokenOnesRefused(t *testing.T) {
	a := note{site: 1, base: 2, semaphore: 3, provider: "kvlease", name: "step__end", operands: "8@%rdi"}
	b := note{site: 4, base: 5, provider: "other", name: "x"}
	all := append(a.encode(), b.encode()...)
	got, err := parseNotes(all)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]note{a, b}, got, cmp.AllowUnexported(note{})); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
	for cut := 1; cut < len(a.encode())-3; cut++ {
		if got, err := parseNotes(a.encode()[:cut]); err == nil {
			t.Errorf("the first %d bytes of a note are %+v", cut, got)
		}
	}
}

func FuzzNotes(f *testing.F) {
	f.Add(note{provider: "kvlease", name: "step__end", operands: "8@%rdi"}.encode())
	f.Add(append(note{provider: "x", name: "y"}.encode(), note{}.encode()...))
	f.Fuzz(func(t *testing.T, data []byte) {
		notes, err := parseNotes(data)
		if err != nil {
			return
		}
		for _, n := range notes {
			if strings.ContainsRune(n.name+n.provider+n.operands, 0) || len(n.name) > len(data) {
				t.Errorf("%+v", n)
			}
		}
	})
}

// object makes a small ELF file with one part that is loaded and the section of notes.
func object(notes []byte) []byte {
	const header, prog, section = 64, 56, 64
	names := []byte("\x00.note.stapsdt\x00.shstrtab\x00")
	notesAt := uint64(header + prog)
	namesAt := notesAt + uint64(len(notes))
	sectionsAt := (namesAt + uint64(len(names)) + 7) &^ 7
	le := binary.LittleEndian
	b := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	b = le.AppendUint16(b, 3)  // shared object
	b = le.AppendUint16(b, 62) // x86-64
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, 0)
	b = le.AppendUint64(b, header)
	b = le.AppendUint64(b, sectionsAt)
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{header, prog, 1, section, 3, 2} {
		b = le.AppendUint16(b, v)
	}
	b = le.AppendUint32(b, 1) // PT_LOAD
	b = le.AppendUint32(b, 5)
	for _, v := range []uint64{0, 0x1000, 0x1000, sectionsAt, sectionsAt, 0x1000} {
		b = le.AppendUint64(b, v)
	}
	b = append(append(b, notes...), names...)
	b = append(b, make([]byte, sectionsAt-uint64(len(b)))...)
	b = append(b, make([]byte, section)...)
	for _, s := range []struct {
		name, kind uint32
		at, size   uint64
	}{{1, 7, notesAt, uint64(len(notes))}, {15, 3, namesAt, uint64(len(names))}} {
		b = le.AppendUint32(b, s.name)
		b = le.AppendUint32(b, s.kind)
		for _, v := range []uint64{0, 0, s.at, s.size, 0, 4, 0} {
			b = le.AppendUint64(b, v)
		}
	}
	return b
}

func TestAddressesBecomeOffsetsOfTheFile(t *testing.T) {
	n := note{site: 0x1010, base: 0, semaphore: 0x1020, provider: "kvlease", name: "step__end", operands: operands[elf.EM_X86_64]}
	got, err := Sites(bytes.NewReader(object(n.encode())))
	want := []Site{{Site: trace.StepEnd, Offset: 0x10, Semaphore: 0x20, Addr: 0x1010, SemaphoreAddr: 0x1020}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v, sites (-want +got):\n%s", err, diff)
	}
	for name, change := range map[string]func(n *note){
		"a site outside of the file":       func(n *note) { n.site = 0xfff },
		"a semaphore outside of the file":  func(n *note) { n.semaphore = 1 << 40 },
		"arguments in other places":        func(n *note) { n.operands = "-8@(%rsp)" },
		"a site that nobody here has":      func(n *note) { n.name = "step__middle" },
		"sites of another program's makes": func(n *note) { n.provider = "libc" },
	} {
		other := n
		change(&other)
		if got, err := Sites(bytes.NewReader(object(other.encode()))); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func FuzzSites(f *testing.F) {
	f.Add(object(note{site: 0x1010, semaphore: 0x1020, provider: "kvlease", name: "step__end", operands: operands[elf.EM_X86_64]}.encode()))
	f.Fuzz(func(t *testing.T, data []byte) {
		sites, err := Sites(bytes.NewReader(data))
		if err != nil {
			return
		}
		for _, s := range sites {
			if s.Site >= trace.Count {
				t.Errorf("%+v", s)
			}
		}
	})
}

func TestFilesThatAreNoneOfOursAreTurnedDown(t *testing.T) {
	for name, data := range map[string]string{"empty": "", "text": "#!/bin/sh\n", "a cut header": "\x7fELF\x02\x01\x01"} {
		if _, err := Sites(strings.NewReader(data)); !errors.Is(err, ErrNoSites) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
