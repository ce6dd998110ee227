package core

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/internal/child"
	"github.com/kvlease/kvlease/internal/require"
)

// The tests here are between a whole context and a stand-in of vLLM's ends on libzmq, that of dataplane/handshake.

func vllm(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	path := require.PyZMQ(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "python3", append([]string{filepath.Join("..", "handshake", "testdata", "vllm.py")}, args...)...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+path, "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stderr = os.Stderr
	return cmd
}

func TestStockVllmConnectsTwoHundredTimesToAContext(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		t.Run(host, func(t *testing.T) {
			noLeaks(t)
			l := newSideLab(t)
			l.host = host
			p := l.node("P", `{}`)
			at := host
			if strings.Contains(at, ":") {
				at = "[" + at + "]"
			}
			out, err := vllm(t, "connects", at, strconv.Itoa(p.port()), "200").Output()
			if err != nil || !strings.HasSuffix(string(out), "ok\n") {
				t.Fatalf("vllm.py: %v: %s", err, out)
			}
			if p.stat("side_server_answered") != 200 || p.stat("side_zmtp_accepted") != 200 || p.stat("side_zmtp_evicted") != 0 {
				t.Errorf("stats %s", p.core.Stats())
			}
		})
	}
}

func TestStrangeRequestsToAContextEndNothing(t *testing.T) { // S19
	l := newSideLab(t)
	p := l.node("P", `{}`)
	out, err := vllm(t, "strange", l.host, strconv.Itoa(p.port())).Output()
	if err != nil || !strings.HasSuffix(string(out), "ok\n") {
		t.Fatalf("vllm.py: %v: %s", err, out)
	}
	if _, err := fetch(t, p); err != nil {
		t.Errorf("after them: %v", err)
	}
	if p.stat("side_zmtp_panics") != 0 || p.stat("side_server_unknown") != 1 { // shows S19.1
		t.Errorf("stats %s", p.core.Stats())
	}
}

// vllmListens starts a stock listener of one rank.
func vllmListens(t *testing.T, engine, hash string) (port int) {
	t.Helper()
	cmd := vllm(t, "listen", "127.0.0.1", engine, hash, "1", "1")
	in, out := child.Pipes(t, cmd)
	if err := cmd.Start(); err != nil {
		require.Skip(t, "pyzmq", err.Error())
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if port, err = strconv.Atoi(strings.TrimSpace(line)); err != nil {
		t.Fatal(err)
	}
	return port
}

// stockFit gives an engine the memory that the stand-in's map describes: two layers of group 0.
func stockFit(t *testing.T, n *node) {
	t.Helper()
	if err := n.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	kv, err := pages(2 * 64 * 8192)
	if err != nil {
		t.Fatal(err)
	}
	regions := append([]Region(nil), n.regions...)
	for i := range regions {
		regions[i].Addr, regions[i].Bytes = record.Addr(kv[i*64*8192:]), 64*8192
		regions[i].BlockLen, regions[i].BlockStride, regions[i].Blocks, regions[i].Group = 4096, 8192, 64, 0
	}
	if err := n.core.Register(regions); err != nil {
		t.Fatal(err)
	}
}

func TestAContextMeetsAStockListener(t *testing.T) {
	noLeaks(t)
	l := newSideLab(t)
	d := l.node("D", `{"compatibility_hash": "hash"}`)
	stockFit(t, d)
	l.nameAt(d, "P", "127.0.0.1", vllmListens(t, "P", "hash"))
	l.until("its map is handed on", func() bool { return d.stat("side_loads") == 1 }, d)
	if n := d.stat("side_owners_ups") + d.stat("side_owners_full"); n != 0 {
		t.Errorf("%d wires were tried with a stock engine", n)
	}
	// Its blob is none of our transport's: that is the transport's to find out, in a step.
	l.until("it was loaded", func() bool { return d.stat("beat_loads_failed") > 0 }, d)

	other := l.nameAt(d, "P2", "127.0.0.1", vllmListens(t, "P2", "another hash"))
	l.until("another model is refused", func() bool { return d.core.side.client.Stats().Engines[4] == 1 }, d)
	if s := d.view(other).State; s != heartbeat.Idle && s != heartbeat.Absent {
		t.Errorf("it is %v", s)
	}
	small := l.node("D2", `{"compatibility_hash": "hash"}`) // its blocks are of another size
	l.nameAt(small, "P", "127.0.0.1", vllmListens(t, "P", "hash"))
	l.until("other blocks are refused", func() bool {
		return small.core.side.client.Stats().Engines[4] == 1 || small.stat("side_refused") == 1
	}, small)
}
