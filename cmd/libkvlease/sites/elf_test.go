package sites_test

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/probe"
	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/internal/require"
)

// nops is what stands at a site: on x86-64 five bytes in one instruction, which newer kernels replace by a jump.
var nops = map[elf.Machine][]byte{
	elf.EM_X86_64:  {0x0f, 0x1f, 0x44, 0x00, 0x00},
	elf.EM_AARCH64: {0x1f, 0x20, 0x03, 0xd5},
}

// wantSites checks that a file has exactly these sites, as tools will find them.
func wantSites(t *testing.T, path string, want ...string) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	sites, err := probe.Sites(file)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	var names []string
	words := map[uint64]bool{}
	for _, s := range sites {
		name := s.Site.String()
		names = append(names, name)
		code := make([]byte, len(nops[f.Machine]))
		if _, err := file.ReadAt(code, int64(s.Offset)); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(code, nops[f.Machine]) {
			t.Errorf("%s: at %s stands % x", path, name, code)
		}
		if flags := segment(f, s.Addr); flags&elf.PF_X == 0 {
			t.Errorf("%s: %s is in a segment %v", path, name, flags)
		}
		if flags := segment(f, s.SemaphoreAddr); flags&elf.PF_W == 0 {
			t.Errorf("%s: the semaphore of %s is in a segment %v", path, name, flags)
		}
		word := make([]byte, 4)
		if _, err := file.ReadAt(word, int64(s.Semaphore)); err != nil || !slices.Equal(word, make([]byte, 4)) {
			t.Errorf("%s: the semaphore of %s begins as % x, %v", path, name, word, err)
		}
		if s.SemaphoreAddr%4 != 0 || words[s.SemaphoreAddr] {
			t.Errorf("%s: the semaphore of %s is at %#x, or another site's", path, name, s.SemaphoreAddr)
		}
		words[s.SemaphoreAddr] = true
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// segment gives the rights that memory at an address of a loaded file has.
func segment(f *elf.File, addr uint64) elf.ProgFlag {
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && addr >= p.Vaddr && addr < p.Vaddr+p.Memsz {
			return p.Flags
		}
	}
	return 0
}

func TestTheSitesSurviveEveryWayOfLinking(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		require.Skip(t, "cc", err.Error())
	}
	for _, tc := range []struct {
		name  string
		flags []string
		env   string
	}{
		{"a program", nil, ""},
		{"a program at any address", []string{"-buildmode=pie"}, ""},
		{"a library", []string{"-buildmode=c-shared"}, ""},
		{"a library without symbols", []string{"-buildmode=c-shared", "-ldflags=-s -w"}, ""},
		{"a program that gcc has not optimised", nil, "CGO_CFLAGS=-O0 -g"},
		{"a program with the sections that are not used thrown out", []string{"-ldflags=-extldflags=-Wl,--gc-sections"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "prog")
			cmd := exec.Command("go", append(append([]string{"build", "-o", out}, tc.flags...), "./testdata/prog")...)
			cmd.Env = os.Environ()
			if tc.env != "" {
				cmd.Env = append(cmd.Env, tc.env)
			}
			if said, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("go build: %v: %s", err, said)
			}
			wantSites(t, out, trace.Names[:]...)
			if strip, err := exec.LookPath("strip"); err == nil {
				if said, err := exec.Command(strip, out).CombinedOutput(); err != nil {
					t.Fatalf("strip: %v: %s", err, said)
				}
				wantSites(t, out, trace.Names[:]...)
			}
		})
	}
}

// compiler gives the first of these that is here.
func compiler(t *testing.T, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	require.Skip(t, names[0], "none of "+strings.Join(names, ", ")+" is here")
	return ""
}

// compile makes a library, or an object with -c, of the sites.
func compile(t *testing.T, cc string, flags ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	args := append([]string{"-std=c11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-o", out, "sites.c"}, flags...)
	if said, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		for _, lack := range []string{"cannot find", "LLVMgold", "No such file"} {
			if strings.Contains(string(said), lack) {
				t.Skipf("%s lacks what %v needs: %s", cc, flags, said)
			}
		}
		t.Fatalf("%v: %s", err, said)
	}
	return out
}

func TestTheSitesSurviveEveryWayOfCompiling(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		require.Skip(t, "cc", err.Error())
	}
	for _, names := range [][]string{{"cc"}, {"clang", "clang-14"}} {
		for _, flags := range []string{"-O0", "-O2", "-O3 -flto", "-O1 -fsanitize=address,undefined", "-O1 -fsanitize=thread"} {
			t.Run(names[0]+" "+flags, func(t *testing.T) {
				wantSites(t, compile(t, compiler(t, names...), append(strings.Fields(flags), "-shared")...), trace.Names[1:]...)
			})
		}
	}
}

// What is not linked has no addresses yet; what the notes and the code say can be seen.
func TestTheSitesCompileForARM(t *testing.T) {
	for _, flags := range []string{"-O0", "-O2"} {
		t.Run(flags, func(t *testing.T) {
			cc := compiler(t, "aarch64-linux-gnu-gcc", "clang", "clang-14")
			args := []string{"-c", "-ffreestanding", flags}
			if strings.Contains(filepath.Base(cc), "clang") {
				args = append(args, "--target=aarch64-linux-gnu")
			}
			f, err := elf.Open(compile(t, cc, args...))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			notes, err := f.Section(".note.stapsdt").Data()
			if err != nil {
				t.Fatal(err)
			}
			code, err := f.Section(".text").Data()
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range trace.Names[1:] {
				if note := "kvlease\x00" + name + "\x008@x0 8@x1 8@x2 8@x3\x00"; !strings.Contains(string(notes), note) {
					t.Errorf("no note %q", note)
				}
			}
			if n := strings.Count(string(code), string(nops[elf.EM_AARCH64])); f.Machine != elf.EM_AARCH64 || n < int(trace.Count)-1 {
				t.Errorf("%v: %d nops", f.Machine, n)
			}
		})
	}
}

// buildFolder is where `make build` has put things.
func buildFolder() string {
	if core := os.Getenv("KVLEASE_CORE"); core != "" {
		return filepath.Dir(core)
	}
	return filepath.Join("..", "..", "..", "build")
}

// built gives the path of what `make build` makes.
func built(t testing.TB, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(buildFolder(), name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		require.Skip(t, "core", "no "+name+": run make build")
	}
	return path
}

func TestWhatIsBuiltHasItsSites(t *testing.T) {
	wantSites(t, built(t, "libkvlease.so"), trace.HookSubmit.String())
	wantSites(t, built(t, "libkvlease-core.so"), trace.Names[1:]...) // not hook__submit
	wantSites(t, built(t, "kvlease"), trace.Names[:]...)
}
