package cnixl

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/transport"
)

func TestWhetherATwinMayReadThroughSharedMemory(t *testing.T) {
	for _, tc := range []struct {
		tls, way string
		near     bool
	}{
		{"", "UCX past shared memory", false},
		{"all", "UCX_TLS=all", true},
		{"tcp", "UCX_TLS=tcp", false},
		{"tcp,self", "UCX_TLS=tcp,self", false},
		{"rc_x, cuda_copy, sm", "UCX_TLS=rc_x, cuda_copy, sm", true},
		{"rc,posix", "UCX_TLS=rc,posix", true},
		{`\rc,\cma`, `UCX_TLS=\rc,\cma`, true},
		{"^sm", "UCX_TLS=^sm", false},
		{"^posix,cma", "UCX_TLS=^posix,cma", true}, // sysv is left
		{"^rc", "UCX_TLS=^rc", true},
	} {
		if way, near := twinWay(tc.tls); way != tc.way || near != tc.near {
			t.Errorf("%q: %q, near %v, want %q, %v", tc.tls, way, near, tc.way, tc.near)
		}
	}
}

// received is how many bytes have come over the TCP connections that this process has open.
func received(t *testing.T) (n uint64) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if i, err := strconv.Atoi(fd.Name()); err == nil {
			if info := established(i); info != nil {
				n += info.Bytes_received
			}
		}
	}
	return n
}

// readByTwin reads mem, which a has registered, and says whether its bytes came over TCP and whether the twin says that they may have
// come another way.
func readByTwin(t *testing.T, a *Agent, mem []byte) (got []byte, tcp, near bool) {
	t.Helper()
	blob, err := a.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	twin, err := a.Twin(a.Agent() + "~")
	if err != nil {
		t.Fatal(err)
	}
	landing := memory(len(mem))
	if err := twin.Register([]transport.Region{{Addr: address(landing), Bytes: uint64(len(mem))}}); err != nil {
		t.Fatal(err)
	}
	peer, err := twin.Load(blob)
	if err != nil {
		t.Fatal(err)
	}
	x, err := twin.PostRead(&transport.ReadSpec{Peer: peer, Descs: []transport.Desc{{Local: address(landing), Remote: address(mem), Len: uint64(len(mem))}}})
	if err != nil {
		t.Fatal(err)
	}
	status := []transport.Status{transport.Pending}
	for end := time.Now().Add(20 * time.Second); status[0] == transport.Pending && time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
		twin.PollReads([]transport.Xfer{x}, status, 0)
	}
	if status[0] != transport.Done {
		t.Fatalf("the read is %d", status[0])
	}
	tcp = received(t) >= uint64(len(mem))
	if err := errors.Join(twin.Release(x), twin.Drop(peer), twin.Close()); err != nil {
		t.Error(err)
	}
	return landing, tcp, twin.Near
}

func TestATwinReadsWhatItsAgentHasRegistered(t *testing.T) {
	for _, tls := range []string{"", "tcp", "sm,tcp"} {
		t.Run("UCX_TLS="+tls, func(t *testing.T) {
			var env []string
			if tls != "" {
				env = append(env, "UCX_TLS="+tls)
			}
			if !alone(t, env...) {
				return
			}
			a := realNIXL(t, Config{Agent: "prefill-0"})
			defer a.Close()
			mem := memory(1 << 16)
			for i := range mem {
				mem[i] = byte(i * 7)
			}
			if err := a.Register([]transport.Region{{Addr: address(mem), Bytes: 1 << 16}}); err != nil {
				t.Fatal(err)
			}
			for range 3 { // as often as memory is registered anew
				got, tcp, near := readByTwin(t, a, mem)
				if !bytes.Equal(got, mem) || near != (tls == "sm,tcp") || tcp == near {
					t.Errorf("read well %v, over TCP %v, may have been near %v", bytes.Equal(got, mem), tcp, near)
				}
			}
		})
	}
}

func TestATwinOfTheFakeReadsAndOfAnInlineAgentThereIsNone(t *testing.T) {
	s := newScript(t)
	a := s.open(Config{Agent: "P"})
	mem := memory(4096)
	copy(mem, "kv")
	if err := a.Register([]transport.Region{{Addr: address(mem), Bytes: 4096}}); err != nil {
		t.Fatal(err)
	}
	if got, _, _ := readByTwin(t, a, mem); !bytes.Equal(got, mem) || s.do("count params_add") != 2 {
		t.Errorf("read %q, %d settings", got[:2], s.do("count params_add"))
	}
	s.do("fail params_add 1 -2")
	if _, err := a.Twin("P~"); !errors.Is(err, transport.ErrUnavailable) {
		t.Errorf("a backend that takes no settings: %v", err)
	}
	if _, err := a.Twin(""); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("no name: %v", err)
	}
	if _, err := s.open(Config{Agent: "I", Inline: true}).Twin("I~"); !errors.Is(err, transport.ErrUnavailable) {
		t.Errorf("of an inline agent: %v", err)
	}
}

func TestTheLargestCacheFitsWithWhatAContextHasBesideIt(t *testing.T) {
	s := newScript(t)
	a := s.open(Config{Agent: "P"})
	mem := memory(4098 * 8)
	var regions []transport.Region
	for i := range uint64(4098) {
		regions = append(regions, transport.Region{Addr: address(mem) + 8*i, Bytes: 8})
	}
	if err := a.Register(regions); err != nil {
		t.Error(err)
	}
}
