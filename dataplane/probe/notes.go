package probe

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/kvlease/kvlease/dataplane/trace"
)

// Provider is the name that kvlease's sites go by.
const Provider = "kvlease"

// Bounds of what is read of a file, which may be anybody's.
const (
	notesBytesMax = 1 << 20
	sitesMax      = 256
)

// Site is one trace site of a file. Offsets are of the file, as the kernel wants them.
type Site struct {
	Site      trace.Site
	Offset    uint64
	Semaphore uint64 // of its low two bytes; 0: it has none
	// Addr and SemaphoreAddr are where the file wants both in memory, relative to where it is loaded.
	Addr, SemaphoreAddr uint64
}

// ErrNoSites says that a file has no site of kvlease.
var ErrNoSites = errors.New("no trace sites of kvlease")

// operands are what every site's note must say; the in-kernel program takes arguments from there.
var operands = map[elf.Machine]string{
	elf.EM_X86_64:  "8@%rdi 8@%rsi 8@%rdx 8@%rcx",
	elf.EM_AARCH64: "8@x0 8@x1 8@x2 8@x3",
}

// note is an entry of .note.stapsdt.
type note struct {
	site, base, semaphore    uint64
	provider, name, operands string
}

// parseNotes walks a section of notes. What is cut or contradicts itself ends the walk with an error.
func parseNotes(data []byte) ([]note, error) {
	var list []note
	le := binary.LittleEndian
	for len(data) > 0 {
		if len(data) < 12 {
			return nil, errors.New("a note is cut")
		}
		nameLen, descLen, kind := uint64(le.Uint32(data)), uint64(le.Uint32(data[4:])), le.Uint32(data[8:])
		data = data[12:]
		namePad, descPad := (nameLen+3)&^3, (descLen+3)&^3
		if namePad > uint64(len(data)) || descLen > uint64(len(data))-namePad {
			return nil, errors.New("a note is longer than its section")
		}
		owner, desc := data[:nameLen], data[namePad:namePad+descLen]
		data = data[min(namePad+descPad, uint64(len(data))):] // the last one may lack its padding
		if kind != 3 || !bytes.Equal(owner, []byte("stapsdt\x00")) {
			continue
		}
		if len(desc) < 24 {
			return nil, errors.New("a trace site's note is cut")
		}
		n := note{site: le.Uint64(desc), base: le.Uint64(desc[8:]), semaphore: le.Uint64(desc[16:])}
		words := bytes.SplitN(desc[24:], []byte{0}, 4)
		if len(words) != 4 {
			return nil, errors.New("a trace site's note lacks a name")
		}
		n.provider, n.name, n.operands = string(words[0]), string(words[1]), string(words[2])
		if list = append(list, n); len(list) > sitesMax*16 {
			return nil, errors.New("too many trace sites")
		}
	}
	return list, nil
}

// Sites gives the sites of kvlease in an ELF file; ErrNoSites if it has none.
func Sites(r io.ReaderAt) ([]Site, error) {
	f, err := elf.NewFile(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoSites, err)
	}
	defer f.Close()
	section := f.Section(".note.stapsdt")
	if section == nil {
		return nil, ErrNoSites
	}
	if section.Size > notesBytesMax || section.Flags&elf.SHF_COMPRESSED != 0 {
		return nil, fmt.Errorf("%w: %d bytes of notes, read are at most %d", ErrNoSites, section.Size, notesBytesMax)
	}
	data := make([]byte, section.Size)
	if _, err := section.ReadAt(data, 0); err != nil && err != io.EOF {
		return nil, fmt.Errorf("%w: %w", ErrNoSites, err)
	}
	notes, err := parseNotes(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoSites, err)
	}
	notes = slices.DeleteFunc(notes, func(n note) bool { return n.provider != Provider })
	if len(notes) == 0 {
		return nil, ErrNoSites
	}
	var base uint64
	if s := f.Section(".stapsdt.base"); s != nil {
		base = s.Addr
	}
	var sites []Site
	for _, n := range notes {
		i := slices.Index(trace.Names[:], n.name)
		if i < 0 {
			continue // of a later version
		}
		if want := operands[f.Machine]; n.operands != want || want == "" {
			return nil, fmt.Errorf("%s has its arguments in %q, known is %q for %v: another version of kvlease", n.name, n.operands, want, f.Machine)
		}
		moved := uint64(0) // what a linker has done since the note was written
		if base != 0 && n.base != 0 {
			moved = base - n.base
		}
		s := Site{Site: trace.Site(i), Addr: n.site + moved}
		if s.Offset, err = fileOffset(f, s.Addr); err != nil {
			return nil, fmt.Errorf("%s: %w", n.name, err)
		}
		if n.semaphore != 0 {
			s.SemaphoreAddr = n.semaphore + moved
			if s.Semaphore, err = fileOffset(f, s.SemaphoreAddr); err != nil {
				return nil, fmt.Errorf("semaphore of %s: %w", n.name, err)
			}
		}
		if sites = append(sites, s); len(sites) > sitesMax {
			return nil, fmt.Errorf("more than %d trace sites", sitesMax)
		}
	}
	if len(sites) == 0 {
		return nil, fmt.Errorf("%w that this version knows", ErrNoSites)
	}
	return sites, nil
}

// fileOffset is where in the file the bytes of an address stand.
func fileOffset(f *elf.File, addr uint64) (uint64, error) {
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && addr >= p.Vaddr && addr-p.Vaddr < p.Filesz {
			return addr - p.Vaddr + p.Off, nil
		}
	}
	return 0, fmt.Errorf("address %#x is in no part of the file that is loaded", addr)
}
