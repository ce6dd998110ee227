package cuda

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// wants fails the test unless the error is of a kind and its text has every word, a remedy among them.
func wants(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%v, want %v", err, kind)
		return
	}
	for _, w := range append(words, "Remedy: ") {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

func TestADriverOpensWithVersionAndFileAndMakesNoContext(t *testing.T) {
	s := newScript(t)
	d := s.open()
	if d.Version().String() != "12.8" || d.File() != s.Path {
		t.Errorf("version %s, file %s", d.Version(), d.File())
	}
	if n, err := d.Devices(); err != nil || n != 2 {
		t.Errorf("%d devices, %v", n, err)
	}
	if again := s.open(); again.handle != d.handle {
		t.Error("one file is two libraries")
	}
	if s.Do("active 0") != 0 || s.Do("count cuDevicePrimaryCtxRetain") != 0 {
		t.Error("a context was made")
	}
}

// TestADriverThatWasCutShortIsRefused: the loader would die of its missing pages, and the engine with it.
func TestADriverThatWasCutShortIsRefused(t *testing.T) {
	s := newScript(t)
	d := s.retain(0).driver
	whole, err := os.ReadFile(s.Path)
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(t.TempDir(), "libcuda.so.1")
	if err := os.WriteFile(cut, whole[:8192], 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Open(cut)
	wants(t, err, ErrUnavailable, cut, "cut short", "install the NVIDIA driver")
	t.Setenv("KVLEASE_NVML", cut)
	if _, err := d.BAR1Free(0); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "cut short") {
		t.Errorf("the management library: %v", err)
	}
}

// TestWhatIsNoFileIsNotLoaded: the loader would wait for whoever writes into a pipe, and a device may do anything when it is read.
func TestWhatIsNoFileIsNotLoaded(t *testing.T) {
	s := newScript(t)
	d := s.retain(0).driver
	pipe := filepath.Join(t.TempDir(), "libcuda.so.1")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"/dev/null", pipe} {
		_, err := Open(file)
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "is a pipe, a socket or a device") {
			t.Fatalf("%s: %v", file, err)
		}
		t.Setenv("KVLEASE_NVML", file)
		if _, err := d.BAR1Free(0); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "is a pipe, a socket or a device") {
			t.Errorf("the management library: %v", err)
		}
	}
}

// TestANameWithoutAFolderIsTheLoadersToFind: what lies under that name in the working folder is nothing that it would take.
func TestANameWithoutAFolderIsTheLoadersToFind(t *testing.T) {
	whole, err := os.ReadFile(newScript(t).Path)
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	const name = "libkvlease-nowhere.so.1"
	if err := os.WriteFile(name, whole[:8192], 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Open(name)
	wants(t, err, ErrUnavailable, name, "cannot open shared object file")
}

func TestWhatIsWrongWithADriverIsSaid(t *testing.T) {
	s := newScript(t)
	for _, tc := range []struct {
		name, script string
		words        []string
	}{
		{"an old one", "version 11080", []string{"CUDA 11.8", "12.0", "525.60.13"}},
		{"the toolkit's stub", "fail cuDriverGetVersion 1 34", []string{"cuDriverGetVersion", "CUDA_ERROR_STUB_LIBRARY", "stubs"}},
		{"no device", "fail cuInit 1 100", []string{"cuInit", "CUDA_ERROR_NO_DEVICE", "CUDA_VISIBLE_DEVICES"}},
		{"a fork", "fail cuInit 1 3", []string{"cuInit", "CUDA_ERROR_NOT_INITIALIZED", "fork"}},
		{"no nvidia-uvm", "fail cuInit 1 999", []string{"cuInit", "CUDA_ERROR_UNKNOWN", "nvidia-uvm"}},
		{"no rights", "fail cuInit 1 304", []string{"cuInit", "CUDA_ERROR_OPERATING_SYSTEM", "/dev/nvidia"}},
		{"no fabric manager", "fail cuInit 1 802", []string{"cuInit", "CUDA_ERROR_SYSTEM_NOT_READY", "fabricmanager"}},
		{"another kernel module", "fail cuInit 1 803", []string{"cuInit", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "reboot"}},
		{"a compatibility package", "fail cuInit 1 804", []string{"cuInit", "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "cuda-compat"}},
		{"a code that nobody knows", "fail cuInit 1 4711", []string{"cuInit", "CUresult 4711", "Xid"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.Do("reset")
			s.Do("%s", tc.script)
			d, err := Open(s.Path)
			wants(t, err, ErrUnavailable, append(tc.words, s.Path)...)
			if d != nil {
				t.Error("it is open")
			}
		})
	}
}

func TestASymbolThatIsMissingIsNamed(t *testing.T) {
	s := newScript(t)
	for i, symbol := range Symbols() {
		if i < 2 { // those of dlsym, below
			continue
		}
		s.Do("reset")
		s.Do("missing %s", symbol)
		_, err := Open(s.Path)
		wants(t, err, ErrUnavailable, "no symbol "+symbol, s.Path)
	}
	s.Do("reset")
	s.Do("missing cuCtxSetFlags") // of 12.1
	s.open()
	whole, err := os.ReadFile(s.Path)
	if err != nil {
		t.Fatal(err)
	}
	for _, symbol := range Symbols()[:2] {
		file := filepath.Join(t.TempDir(), "without.so")
		renamed := append([]byte{0}, symbol...)
		renamed = append(renamed, 0)
		old := bytes.Clone(renamed)
		renamed[len(renamed)-2] ^= 1
		if err := os.WriteFile(file, bytes.ReplaceAll(whole, old, renamed), 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := Open(file)
		wants(t, err, ErrUnavailable, "no symbol "+symbol, file)
	}
}

func TestNoDriverIsUnavailableAndTheEnvironmentNamesOne(t *testing.T) {
	_, err := Open(filepath.Join(t.TempDir(), "libcuda.so.1"))
	wants(t, err, ErrUnavailable, "libcuda.so.1", "KVLEASE_CUDA", "install the NVIDIA driver")
	if os.Getenv("KVLEASE_TEST_ENV") == "" {
		s := newScript(t)
		cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), "KVLEASE_TEST_ENV=1", "KVLEASE_CUDA="+s.Path, "KVL_FAKE_CUDA=version 12040;devices 3")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	d, err := Open("")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := d.Devices(); d.Version() != 12040 || n != 3 || err != nil {
		t.Errorf("version %d, %d devices, %v", d.Version(), n, err)
	}
}
