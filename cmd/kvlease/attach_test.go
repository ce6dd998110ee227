package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/attach"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/kvcache"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/ports"
	"github.com/kvlease/kvlease/internal/child"
)

func TestAnAttachWithoutNIXLLooksAtTheSideChannel(t *testing.T) {
	t.Setenv("KVLEASE_NIXL", "/nowhere")
	nobody, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := invoke(t, "", "attach", fmt.Sprintf("127.0.0.1:%d", nobody))
	if code != exitFailed || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "nobody listens there") {
		t.Errorf("code %d\n%s\n%s", code, stdout, stderr)
	}
}

// engineProcess is `kvlease node` in a process of its own.
type engineProcess struct {
	t    *testing.T
	in   *json.Encoder
	out  *bufio.Scanner
	addr string
}

func startNode(t *testing.T, args ...string) *engineProcess {
	t.Helper()
	node := builtPrograms(t).Node
	port, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	e := &engineProcess{t: t, addr: fmt.Sprintf("127.0.0.1:%d", port)}
	cmd := exec.Command(node[0], append([]string{node[1], "--role", "prefill", "--listen", e.addr}, args...)...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the death signal comes with the end of the thread that started the process
	t.Cleanup(runtime.UnlockOSThread)
	in, out := child.Pipes(t, cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	e.in, e.out = json.NewEncoder(in), bufio.NewScanner(out)
	e.out.Buffer(nil, 1<<20)
	e.wait("ready", func(r *jsonl.Report) bool { return r.Ev == "ready" })
	return e
}

// wait takes reports until one fits; the process is killed after a while, which ends them.
func (e *engineProcess) wait(what string, fits func(*jsonl.Report) bool) jsonl.Report {
	e.t.Helper()
	for e.out.Scan() {
		r, err := jsonl.ParseReport(e.out.Bytes())
		if err != nil {
			e.t.Fatal(err)
		}
		if fits(&r) {
			return r
		}
	}
	e.t.Fatalf("the engine ended before: %s", what)
	return jsonl.Report{}
}

func (e *engineProcess) grant(id string, blocks ...uint32) (params string) {
	e.t.Helper()
	if err := e.in.Encode(jsonl.Command{Cmd: "grant", N: 1, ID: id, Blocks: blocks, Tokens: 16}); err != nil {
		e.t.Fatal(err)
	}
	r := e.wait("grant", func(r *jsonl.Report) bool { return r.Re == 1 })
	file := filepath.Join(e.t.TempDir(), "answer.json")
	if err := os.WriteFile(file, fmt.Appendf(nil, `{"id":"cmpl-1","kv_transfer_params":%s}`, r.Params), 0o644); err != nil {
		e.t.Fatal(err)
	}
	return file
}

func TestAnEngineInAnotherProcessIsLookedAtOverRealNIXL(t *testing.T) {
	p := startNode(t, "--engine-id", "P", "--lease", "30s", "--layers", "2")
	params, out := p.grant("r1", 3, 4, 9), filepath.Join(t.TempDir(), "blocks")
	code, stdout, stderr := invoke(t, "", "attach", p.addr, "--json", "--params", params, "--for", "500ms", "--interval", "100ms", "--out", out)
	var r attach.Report
	if err := json.Unmarshal([]byte(stdout), &r); code != exitOK || err != nil {
		t.Fatalf("code %d, %v\n%s\n%s", code, err, stdout, stderr)
	}
	if r.EngineID != "P" || r.Speaks != "kvlease" || r.Lease.DurationMs != 30000 || r.Ranks[0].Board.Held != 1 || r.Ranks[0].Read.N != 10 {
		t.Errorf("%s", stdout)
	}
	if r.AheadMs > r.AheadMostMs || -r.AheadMs > r.AheadMostMs { // one machine has one clock
		t.Errorf("clock %v ± %v ms", r.AheadMs, r.AheadMostMs)
	}
	if q := r.Request; q.Applied == nil || q.Beats < 2 || !q.Read.Proven || !q.Rows[0].Held {
		t.Errorf("%+v", q)
	}
	want, err := kvcache.New(2, 3)
	if err != nil {
		t.Fatal(err)
	}
	want.Fill("r1", []uint32{0, 1, 2})
	if data, err := os.ReadFile(out); err != nil || !bytes.Equal(data, slices.Concat(want.Layer(0), want.Layer(1))) {
		t.Errorf("other bytes than the request's: %v", err)
	}

	code, stdout, stderr = invoke(t, "", "attach", p.addr, "--params", params, "--complete")
	if code != exitOK || !strings.Contains(stdout, "the lease: over: it was completed") {
		t.Errorf("code %d\n%s\n%s", code, stdout, stderr)
	}
	freed := p.wait("freed", func(r *jsonl.Report) bool { return r.Ev == "freed" })
	if freed.Reason != "completed" {
		t.Errorf("%+v", freed)
	}

	if err := os.Remove(out); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr = invoke(t, "", "attach", p.addr, "--params", params, "--out", out)
	if code != exitFailed || !strings.Contains(stderr, "the lease has ended") || !strings.Contains(stdout, "0 leases held") {
		t.Errorf("code %d\n%s\n%s", code, stdout, stderr)
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("blocks that are not the request's any more were written")
	}
}
