package output

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/internal/require"
)

// envWrites makes this program one that writes a file.
const envWrites = "KVLEASE_OUTPUT_TEST"

func TestMain(m *testing.M) {
	path := os.Getenv(envWrites)
	if path == "" {
		os.Exit(m.Run())
	}
	fmt.Print("before, ")
	if err := WriteFile(path, "name another", []byte("new, ")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Print("after")
	os.Exit(0)
}

// writer is a process that writes path between two words on stdout.
func writer(path string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envWrites+"="+path)
	return cmd
}

// full is a folder of a file system that has no room left but a page.
func full(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8k"); err != nil {
		require.Skip(t, "mount", err.Error())
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
}

// holds says what a folder has: names, and the text of each.
func holds(t *testing.T, dir string) string {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range all {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, e.Name()+"="+string(text))
	}
	return strings.Join(list, " ")
}

func TestAFileIsReplacedWhole(t *testing.T) {
	for _, tc := range []struct {
		name, path, want string
		mode             os.FileMode
	}{
		{"a new one", "new", "link=good new=text old=good", 0o644},
		{"in place of an old one, with its rights", "old", "link=text old=text", 0o640},
		{"behind a link, which stays one", "link", "link=text old=text", 0o640},
		{"behind a link to what is not there yet", "dangling", "dangling=text later=text link=good old=good", 0o644},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			put(t, filepath.Join(dir, "old"), "good")
			if err := errors.Join(os.Symlink("old", filepath.Join(dir, "link")), WriteFile("", "", nil)); err != nil {
				t.Fatal(err)
			}
			if tc.path == "dangling" {
				if err := os.Symlink(filepath.Join(dir, "later"), filepath.Join(dir, "dangling")); err != nil {
					t.Fatal(err)
				}
			}
			path := filepath.Join(dir, tc.path)
			if err := WriteFile(path, "", []byte("text")); err != nil {
				t.Fatal(err)
			}
			if got := holds(t, dir); got != tc.want {
				t.Errorf("there is %q, want %q", got, tc.want)
			}
			if st, err := os.Stat(path); err != nil || st.Mode() != tc.mode {
				t.Errorf("%v, %v, want mode %v", st.Mode(), err, tc.mode)
			}
			if st, err := os.Lstat(filepath.Join(dir, "link")); err != nil || st.Mode()&os.ModeSymlink == 0 {
				t.Errorf("the link has become %v, %v", st.Mode(), err)
			}
		})
	}
}

func TestWhatCannotBeWrittenIsKnownBeforeTheWork(t *testing.T) {
	dir := t.TempDir()
	pipe, loop := filepath.Join(dir, "pipe"), filepath.Join(dir, "loop")
	if err := errors.Join(unix.Mkfifo(pipe, 0o600), os.Symlink("loop", loop)); err != nil {
		t.Fatal(err)
	}
	read, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	cannot := map[string]string{
		dir:                                  "is a directory; name another",
		dir + "/":                            "is a directory; name another",
		filepath.Join(dir, "none", "x"):      "no such file or directory; make its folder first, or name another",
		pipe:                                 "nobody reads this pipe; start its reader first, or name another",
		loop:                                 "too many levels of symbolic links; name another",
		fmt.Sprintf("/dev/fd/%d", read.Fd()): "it is open for reading alone; name another",
		"/dev/fd/999":                        "bad file descriptor; name another",
	}
	fd, err := unix.Open(os.Args[0], unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil { // not every kernel keeps programs from being written while they run
		unix.Close(fd)
	} else {
		cannot[os.Args[0]] = "text file busy; name another"
	}
	for path, why := range cannot {
		if _, err := Open(path, "name another"); err == nil || err.Error() != path+" cannot be written: "+why {
			t.Errorf("%v, want %s: %s", err, path, why)
		}
	}
}

func TestAFileThatIsMountedByItselfIsNotPromised(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	put(t, from, "good")
	put(t, to, "under")
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		require.Skip(t, "mount", err.Error())
	}
	t.Cleanup(func() { _ = unix.Unmount(to, unix.MNT_DETACH) })
	if _, err := Open(to, "name another"); err == nil || !strings.Contains(err.Error(), "it is mounted by itself") {
		t.Errorf("%v", err)
	}
}

func TestAFullDiskIsToldAndLeavesWhatWasThere(t *testing.T) {
	for _, was := range []string{"", "good=text"} {
		dir := full(t)
		if was != "" {
			put(t, filepath.Join(dir, "good"), "text")
		}
		path := filepath.Join(dir, "good")
		err := WriteFile(path, "name another", bytes.Repeat([]byte("x"), 1<<20))
		if !errors.Is(err, unix.ENOSPC) || !strings.HasPrefix(err.Error(), path+" cannot be written: no space left") || !strings.HasSuffix(err.Error(), "; make room there, or name another") {
			t.Errorf("%v", err)
		}
		if got := holds(t, dir); got != was {
			t.Errorf("there is %.40q, want %q", got, was)
		}
	}
}

func TestADeviceIsWrittenThrough(t *testing.T) {
	if err := WriteFile(os.DevNull, "", []byte("text")); err != nil {
		t.Error(err)
	}
	if st, err := os.Lstat(os.DevNull); err != nil || st.Mode()&os.ModeCharDevice == 0 {
		t.Errorf("%s is %v, %v", os.DevNull, st, err)
	}
	if _, err := os.Stat("/dev/full"); err != nil {
		require.Skip(t, "/dev/full", err.Error())
	}
	if err := WriteFile("/dev/full", "name another", []byte("text")); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v", err)
	}
}

func TestWhatFillsAFileMayFail(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "old"), "good")
	f, err := Open(filepath.Join(dir, "old"), "name another")
	if err != nil {
		t.Fatal(err)
	}
	wrong := errors.New("no figures")
	if err := f.Write(func(w io.Writer) error { fmt.Fprint(w, "half"); return wrong }); err != wrong {
		t.Errorf("%v", err)
	}
	if got := holds(t, dir); got != "old=good" {
		t.Errorf("there is %q", got)
	}
}

// opened is a pipe with its reader, opened for writing.
func opened(t *testing.T) (pipe string, reader *os.File, f *File) {
	t.Helper()
	pipe = filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reader.Close() })
	if f, err = Open(pipe, "name another"); err != nil || !f.Through() {
		t.Fatal(f, err)
	}
	return pipe, reader, f
}

// TestAPipeHasOneEnd: a reader takes the first close for the end, so the pipe that was looked at must be the one that is written.
func TestAPipeHasOneEnd(t *testing.T) {
	pipe, reader, f := opened(t)
	if n, err := unix.Read(int(reader.Fd()), make([]byte, 1)); n == 0 {
		t.Errorf("the pipe has ended before it was written: %v", err)
	}
	want := strings.Repeat("0123456789abcdef", 1<<14) // four times what a pipe holds
	got := make(chan string)
	go func() {
		text, _ := io.ReadAll(reader)
		got <- string(text)
	}()
	if err := f.WriteBytes([]byte(want)); err != nil {
		t.Error(err)
	}
	if text := <-got; text != want {
		t.Errorf("%d bytes have come, want %d", len(text), len(want))
	}
	if st, err := os.Lstat(pipe); err != nil || st.Mode()&os.ModeNamedPipe == 0 {
		t.Errorf("the pipe has become %v, %v", st.Mode(), err)
	}
}

func TestAReaderThatTakesNothingOrIsGoneIsToldOf(t *testing.T) {
	defer func(was int) { patienceMs = was }(patienceMs)
	patienceMs = 10
	for _, gone := range []bool{false, true} {
		pipe, reader, f := opened(t)
		want := "its reader takes nothing; name another"
		if gone {
			reader.Close()
			want = "nobody reads this pipe; start its reader first, or name another"
		}
		err := f.WriteBytes(make([]byte, 1<<20))
		if err == nil || err.Error() != pipe+" cannot be written: "+want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestStdoutIsWrittenWhereItIs, also where it is a file: what stands before and after in it stays.
func TestStdoutIsWrittenWhereItIs(t *testing.T) {
	for _, path := range []string{"/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/proc/thread-self/fd/1"} {
		file := filepath.Join(t.TempDir(), "out")
		to, err := os.Create(file)
		if err != nil {
			t.Fatal(err)
		}
		cmd := writer(path)
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = to, &said
		err = cmd.Run()
		text, _ := os.ReadFile(file)
		if to.Close(); err != nil || string(text) != "before, new, after" {
			t.Errorf("%s: %v, %q in the file, %q", path, err, text, said.String())
		}
		out, err := writer(path).Output()
		if err != nil || string(out) != "before, new, after" {
			t.Errorf("%s: %v, %q in the pipe", path, err, out)
		}
	}
}
