package demo

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
)

// helperEnv makes the test program start one child through launch, print its pid, and wait to be killed.
const helperEnv = "KVLEASE_DEMO_HELPER"

func TestMain(m *testing.M) {
	if os.Getenv(helperEnv) != "" {
		p := Programs{Prefill: []string{"/bin/sh", "-c", "exec sleep 600"}}
		child, err := p.launch(spec{role: "prefill", program: "c"}, io.Discard)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(child.PID())
		select {}
	}
	os.Exit(m.Run())
}

func TestChildrenEndWithTheDemoEvenWhenItIsKilled(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	helper := exec.Command(exe)
	helper.Env = append(os.Environ(), helperEnv+"=1")
	out, err := helper.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := helper.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatalf("helper: %s", line)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil { // a stopped child reads no end of input
		t.Fatal(err)
	}
	if err := helper.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	helper.Wait()
	for end := time.Now().Add(10 * time.Second); alive(pid); {
		if time.Now().After(end) {
			syscall.Kill(pid, syscall.SIGKILL)
			t.Fatalf("child %d outlived the demo", pid)
		}
	}
}

// alive tells whether a process runs; one that waits to be collected does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

func shellEngine(t *testing.T, script string) *engine {
	t.Helper()
	p := Programs{Prefill: []string{"/bin/sh", "-c", script}}
	e, err := start(p.launch, spec{run: "scene x", name: "P", role: "prefill", program: "c"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.kill)
	return e
}

func TestAWaitThatTakesTooLongNamesWhatItWaitedFor(t *testing.T) {
	e := shellEngine(t, `echo '{"ev":"ready","t_ns":1}'; cat > /dev/null`)
	if _, err := e.await(t.Context(), `"ready"`, 10*time.Second, 0, isEvent("ready", "")); err != nil {
		t.Fatal(err)
	}
	_, err := e.await(t.Context(), "the end of the lease of r1", 20*time.Millisecond, 0, isEvent("freed", "r1"))
	if err == nil {
		t.Fatal("no time-out")
	}
	for _, word := range []string{"scene x", "P (prefill", "the end of the lease of r1", "20ms", `"ready"`} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not name %q", err, word)
		}
	}
}

func TestTheLastReportOfADyingEngineIsStillHeard(t *testing.T) {
	e := shellEngine(t, `echo '{"ev":"freed","id":"r1","t_ns":5}'; exit 0`)
	<-e.dead
	r, err := e.await(t.Context(), "freed", time.Second, 0, isEvent("freed", "r1"))
	if err != nil || r.TimeNS != 5 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestAnEngineThatIsGoneTakesNoCommands(t *testing.T) {
	e := shellEngine(t, `echo gone >&2; exit 4`)
	<-e.dead
	_, err := e.ask(t.Context(), jsonl.Command{Cmd: "stats"})
	if err == nil || !strings.Contains(err.Error(), "has died") || !strings.Contains(err.Error(), "gone") {
		t.Errorf("%v", err)
	}
}

func TestARefusedCommandIsAnError(t *testing.T) {
	e := shellEngine(t, `read line; echo '{"re":1,"ok":false,"status":"KVL_ERR_FULL","error":"no room","t_ns":1}'; cat > /dev/null`)
	_, err := e.ask(t.Context(), jsonl.Command{Cmd: "grant", ID: "r1", Blocks: []uint32{1}})
	if err == nil || !strings.Contains(err.Error(), "KVL_ERR_FULL") || !strings.Contains(err.Error(), "no room") {
		t.Errorf("%v", err)
	}
}

func TestKillEndsAStoppedProcess(t *testing.T) {
	e := shellEngine(t, `exec sleep 600`)
	if err := e.signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	e.kill()
	select {
	case <-e.dead:
	default:
		t.Fatal("it lives")
	}
	var exit *exec.ExitError
	if !errors.As(e.exit, &exit) {
		t.Errorf("ended with %v", e.exit)
	}
}

func TestTheTailKeepsTheEnd(t *testing.T) {
	var tl tail
	for i := range 1000 {
		fmt.Fprintf(&tl, "line %d\n", i)
	}
	if s := tl.String(); len(s) > tailMax || !strings.HasSuffix(s, "line 999") {
		t.Errorf("%d bytes, ends in %q", len(s), s[len(s)-20:])
	}
}

func TestAnEngineOfAFakeDeviceIsToldWhatHoldsIt(t *testing.T) {
	t.Setenv("UCX_TLS", "all")
	t.Setenv(fakeScript, "work 2")
	p := Programs{Prefill: []string{"/bin/sh", "-c", `echo "{\"ev\":\"$UCX_TLS\",\"error\":\"$KVL_FAKE_CUDA\"}"`}}
	for _, tc := range []struct {
		spec        spec
		tls, script string
	}{
		{spec{}, "all", "work 2"},
		{spec{ucxTLS: "tcp", hold: "/x/D.held"}, "tcp", "work 2;held /x/D.held"},
	} {
		tc.spec.run, tc.spec.name, tc.spec.role, tc.spec.program = "scene x", "P", "prefill", "c"
		e, err := start(p.launch, tc.spec)
		if err != nil {
			t.Fatal(err)
		}
		<-e.dead
		if r := e.reports(0); len(r) != 1 || r[0].Ev != tc.tls || r[0].Error != tc.script {
			t.Errorf("%+v, want UCX_TLS=%s and %q", r, tc.tls, tc.script)
		}
	}
}

func TestTheCommandLineOfAnEngineSaysWhatItIs(t *testing.T) {
	p := Programs{Prefill: []string{"/p"}, Decode: []string{"/d"}, Node: []string{"/k", "node"}}
	base := spec{name: "P", role: "prefill", program: "node", drive: "pump", lease: 1200 * time.Millisecond, pass: 10 * time.Millisecond, context: "engine", tp: 1}
	for _, tc := range []struct {
		name   string
		change func(*spec)
		want   string
	}{
		{"a C program", func(s *spec) { s.program = "c" }, "/p --engine-id P --drive pump --pass-ms 10 --lease 1.2 --watch"},
		{"a decode engine hears no heartbeats", func(s *spec) { s.program, s.role, s.name = "c", "decode", "D" }, "/d --engine-id D --drive pump --pass-ms 10 --lease 1.2"},
		{"a stand-in", func(*spec) {}, "/k node --engine-id P --drive pump --role prefill --pass-time 10ms --lease 1.2s --watch"},
		{"with a side channel and a key", func(s *spec) { s.role, s.port, s.keys = "both", 5600, map[string]any{"read_timeout": 1.5} },
			`/k node --engine-id P --drive pump --role both --pass-time 10ms --lease 1.2s --listen 127.0.0.1:5600 --config {"read_timeout":1.5} --watch`},
		{"with its cache on a device", func(s *spec) {
			s.device = &onDevice{Device{Reads: "ipc", Machine: "/m"}, 3}
		}, "/k node --engine-id P --drive pump --role prefill --pass-time 10ms --lease 1.2s --memory vram --device 3 --device-reads ipc --machine /m --watch"},
		{"a host of ranks holds no memory", func(s *spec) {
			s.context, s.tp, s.carrier, s.device = "host", 2, "/c.sock", &onDevice{Device{Reads: "transport"}, 3}
		}, "/k node --engine-id P --drive pump --role prefill --pass-time 10ms --lease 1.2s --context host --tp 2 --tp-rank 0 --carrier /c.sock --watch"},
		{"one rank of two", func(s *spec) { s.context, s.tp, s.rank, s.carrier = "rank", 2, 1, "/c.sock" },
			"/k node --engine-id P --drive pump --role prefill --pass-time 10ms --lease 1.2s --context rank --tp 2 --tp-rank 1 --carrier /c.sock --watch"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := base
			tc.change(&s)
			got, err := p.command(s)
			if err != nil || strings.Join(got, " ") != tc.want {
				t.Errorf("%v\n%s, want\n%s", err, strings.Join(got, " "), tc.want)
			}
		})
	}
	if _, err := (&Programs{}).command(base); err == nil {
		t.Error("an engine without a program")
	}
}

func TestAWaitThatTakesTooLongTellsWhatTheEngineComplainedOf(t *testing.T) {
	e := shellEngine(t, `echo 'first' >&2; echo 'kvlease level=warning what="no way to it. Remedy: build one" remedy="see"' >&2; echo '{"ev":"ready","t_ns":1}'; cat > /dev/null`)
	if _, err := e.await(t.Context(), `"ready"`, 10*time.Second, 0, isEvent("ready", "")); err != nil {
		t.Fatal(err)
	}
	_, err := e.await(t.Context(), `"engine_up"`, 20*time.Millisecond, 0, isEvent("engine_up", ""))
	if err == nil || !strings.HasSuffix(err.Error(), "; its log says: no way to it. Remedy: build one") {
		t.Errorf("%v", err)
	}
}
