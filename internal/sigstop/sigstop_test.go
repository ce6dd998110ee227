package sigstop

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/internal/child"
)

const envCounter = "KVLEASE_TEST_COUNTER"

func TestMain(m *testing.M) {
	if file := os.Getenv(envCounter); file != "" {
		if err := count(file); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// count raises a word of file on more threads than there are cores, for ever.
func count(file string) error {
	word, err := mapped(file)
	if err != nil {
		return err
	}
	threads := 2 * runtime.NumCPU()
	runtime.GOMAXPROCS(threads + 1)
	for range threads {
		go func() {
			for {
				word.Add(1)
			}
		}()
	}
	fmt.Println("ready")
	select {}
}

func mapped(file string) (*atomic.Uint64, error) {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	mem, err := unix.Mmap(int(f.Fd()), 0, 8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*atomic.Uint64)(unsafe.Pointer(&mem[0])), nil
}

func TestAProcessThatWasStoppedStandsStill(t *testing.T) {
	file := filepath.Join(t.TempDir(), "word")
	if err := os.WriteFile(file, make([]byte, 8), 0o600); err != nil {
		t.Fatal(err)
	}
	word, err := mapped(file)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envCounter+"="+file)
	_, out := child.Pipes(t, cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	for round := range 20 {
		if err := Signal(cmd.Process, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		stopped := word.Load()
		time.Sleep(5 * time.Millisecond) // of all that it may run: there is no condition to wait for
		if now := word.Load(); now != stopped {
			t.Fatalf("round %d: it counted %d more", round, now-stopped)
		}
		if err := Signal(cmd.Process, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		for word.Load() == stopped {
			runtime.Gosched()
		}
	}
}

func TestAProcessThatEndsDoesNotStandStill(t *testing.T) {
	cmd := exec.Command("true")
	_, out := child.Pipes(t, cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out.Read(make([]byte, 1)) // its end
	for _, when := range []string{"not waited for", "waited for"} {
		if err := Signal(cmd.Process, syscall.SIGSTOP); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("%s: %v, want %v", when, err, os.ErrProcessDone)
		}
		cmd.Wait()
	}
}
