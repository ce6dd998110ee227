package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func invoke(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = run(args, world{ctx: t.Context(), stdin: strings.NewReader(stdin), stdout: &out, stderr: &err})
	return code, out.String(), err.String()
}

func TestAWrongArgumentGetsOneClearLine(t *testing.T) {
	for _, tc := range []struct {
		args  string
		names string
	}{
		{"dmeo", "dmeo"},
		{"demo --transport loopback", "cannot run over loopback"},
		{"demo --transport tcp", "allowed: nixl"},
		{"demo --lease 30s", "allowed: 600ms to 3s"},
		{"demo --pass-time 60ms", "allowed: 1ms to 40ms"},
		{"demo --lease x", "--lease"},
		{"node --role owner", "--role"},
		{"node --pass-time 2h", "allowed: 1ms to 1m"},
		{"node --blocks 0", "allowed: 1 to 65536"},
		{"node --layers 65", "allowed: 1 to 64"},
		{"demo --only xyz", "there is no scene \"xyz\""},
		{"node --tp 2", "--context host"},
		{"node --context host", "--engine-id"},
		{"node --context rank --engine-id P --tp 3", "allowed: 1, 2 or 4"},
		{"node --context rank --engine-id P --tp 2 --tp-rank 2", "--tp-rank is 2, of --tp 2"},
		{"node --context host --engine-id P --tp 2 --tp-rank 1", "--tp-rank is for --context rank"},
		{"node --context rank --engine-id P --listen 127.0.0.1:5600", "not for its ranks"},
		{"node --carrier /tmp/x", "--carrier is for"},
		{"node --listen 127.0.0.1", "HOST:PORT"},
		{"node --listen 127.0.0.1:http", "HOST:PORT"},
		{"node --listen 127.0.0.1:0", "HOST:PORT"},
		{"node --config 7", "JSON object"},
		{"node --metrics example.org:80", "an IP address"},
		{"export --listen 9478", "HOST:PORT"},
		{"export --dir /no/such/folder", "no such file"},
		{"soak --minutes 0", "--minutes is 0"},
		{"soak --minutes -1", "--minutes"},
		{"soak --modes pump,inlin", "has \"inlin\""},
		{"soak --pass 2s", "allowed: 1ms to 1s"},
		{"sim", "say one of --case, --replay"},
		{"sim --case a.yaml --seed 3", "--case and --seed"},
		{"sim --seed x", "--seed is \"x\""},
		{"sim --seed -1", "--seed"},
		{"sim --seed 1 --faults los", "no kind of fault \"los\""},
		{"sim --case a.yaml --faults all", "--faults means nothing with --case, only with --seed"},
		{"sim --replay a.yaml --out b.yaml", "--out means nothing with --replay, only with --seed"},
		{"sim --seed 1 --json b.json", "--json means nothing with --seed, only with --trace"},
		{"sim --seed 1 --p 8", "--p means nothing with --seed"},
		{"sim --trace a.jsonl --seed 1 --log", "--log means nothing with --trace, only with --case, --replay, --seed"},
		{"sim --trace a.jsonl --seed 1 --out b.yaml", "--out means nothing with --trace"},
		{"sim --case", "--case needs a value"},
		{"sim --seed 1 --shrink 2h", "allowed: 0s to 1h"},
		{"version --yaml", "--yaml"},
		{"attach", "<addr>"},
		{"attach localhost", "\"localhost\" is no HOST:PORT"},
		{"attach :5600", "no HOST:PORT"},
		{"attach h:0", "no HOST:PORT"},
		{"attach h:1 --against x", "--against is \"x\""},
		{"attach h:1 --out x", "give --params or --request"},
		{"attach h:1 --for 1s", "give --params or --request"},
		{"attach h:1 --complete", "give --params or --request"},
		{"attach h:1 --blocks 1", "--blocks are those of a --request"},
		{"attach h:1 --request r --out x", "give --params or --blocks"},
		{"attach h:1 --request r --params x", "leave --request and --blocks out"},
		{"attach h:1 --request r --blocks 3-1", "block \"3-1\""},
		{"attach h:1 --params /nowhere", "/nowhere"},
		{"attach h:1 --params main.go", "--params: parameters"},
		{"attach h:1 --tp 65", "at most 64 ranks"},
		{"attach h:1 --samples 0", "allowed: 1 to 1000"},
		{"attach h:1 --timeout 0s", "allowed: 1ms to 1m"},
		{"attach h:1 --request r --for 25h", "allowed: 1ms to 24h"},
		{"attach h:1 --watch 1us", "allowed: 10ms to 24h"},
		{"attach h:1 --transport tcp", "--transport"},
		{"top", "--once prints it as text"},
		{"top --interval 1ms", "allowed: 100ms to 1h"},
		{"top --url ftp://x", "http or https"},
		{"top --url http://", "names no host"},
		{"top --url %zz", "wanted: HOST:PORT"},
		{"top --once --dir /nowhere", "--dir"},
		{"top --url h:1 --dir /dev/shm", "leave --dir out"},
		{"top x", "x"},
		{"dump", "<pid>"},
		{"dump 1 --context 0", "count from 1"},
		{"dump x", "x"},
		{"dump -- -3", "-3 is no process"},
		{"dump 1 --ends 1025", "allowed: 0 to 1024"},
		{"dump 1 --context=-1", "count from 1"},
		{"doctor x", "x"},
		{"doctor --peer localhost", "HOST:PORT"},
		{"doctor --pid=-3", "is no process"},
		{"doctor --env=-2", "count from 0"},
		{"doctor --env 0 --json", "leave --json out"},
		{"doctor --timeout 2m", "allowed: 1ms to 1m"},
		{"trace x", "x"},
		{"trace -- -3", "-3 is no process"},
		{"trace 4294967297", "4294967297 is no process"},
		{"trace 1 --lib /usr/lib/libkvlease-core.so", "leave the pids out"},
		{"trace --engine [", "no id and no pattern"},
		{"trace --for 1ms", "allowed: 10ms to 720h"},
		{"trace --every 1ms", "allowed: 100ms to 24h"},
		{"trace --outliers 10ns", "allowed: 1µs to 1h"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			code, stdout, stderr := invoke(t, "", strings.Fields(tc.args)...)
			if code != exitUsage || stdout != "" {
				t.Errorf("code %d, stdout %q", code, stdout)
			}
			if strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, tc.names) {
				t.Errorf("stderr %q, want one line that names %s", stderr, tc.names)
			}
		})
	}
}

func TestHelpShowsANewcomerWhereToStart(t *testing.T) {
	for _, args := range [][]string{nil, {"--help"}, {"-h"}} {
		code, stdout, _ := invoke(t, "", args...)
		if code != exitOK || !strings.Contains(stdout, "kvlease demo") || !strings.Contains(stdout, "prefill engine (P)") {
			t.Errorf("%v: code %d\n%s", args, code, stdout)
		}
	}
	for cmd, word := range map[string]string{"demo": "k  pressure", "node": "pressure wanted", "soak": "false expiries", "sim": "--case C26", "version": "--json", "attach": "unproven", "trace": "posted → seen by P", "doctor": "--env 3"} {
		code, stdout, _ := invoke(t, "", cmd, "--help")
		if code != exitOK || !strings.Contains(stdout, word) {
			t.Errorf("%s: code %d, does not mention %q\n%s", cmd, code, word, stdout)
		}
	}
}

func TestVersionIsReadByPeopleAndPrograms(t *testing.T) {
	code, stdout, _ := invoke(t, "", "version")
	if code != exitOK || !strings.Contains(stdout, "kvlease "+version) || !strings.Contains(stdout, "nixl") || !strings.Contains(stdout, "\ntrace   ") {
		t.Errorf("code %d\n%s", code, stdout)
	}
	code, stdout, _ = invoke(t, "", "version", "--json")
	var v versions
	if err := json.Unmarshal([]byte(stdout), &v); code != exitOK || err != nil {
		t.Fatalf("code %d, %v\n%s", code, err, stdout)
	}
	if v.Kvlease != version || v.Go == "" || v.Kernel == "" || (v.File == "") == (v.Missing == "") {
		t.Errorf("%+v", v)
	}
}

func TestVersionSaysWhereAMissingNIXLWasNamed(t *testing.T) {
	t.Setenv("KVLEASE_NIXL", "/nowhere")
	code, stdout, _ := invoke(t, "", "version")
	if code != exitOK || !strings.Contains(stdout, "not found") || !strings.Contains(stdout, "/nowhere") {
		t.Errorf("code %d\n%s", code, stdout)
	}
}

func TestTheDemoSaysBeforeItRunsWhatWouldFailAfterwards(t *testing.T) {
	t.Setenv("KVLEASE_NIXL", "/nowhere")
	programs := t.TempDir()
	for _, name := range []string{"prefill", "decode"} {
		if err := os.WriteFile(filepath.Join(programs, name), []byte("#!/bin/sh\nexit 3\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	svg := filepath.Join(t.TempDir(), "demo.svg")
	for _, tc := range []struct {
		name, svg, want string
	}{
		{name: "a NIXL that is not there", svg: svg, want: "/nowhere"},
		{name: "a picture that cannot be written", svg: "/nowhere/demo.svg", want: "--svg"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := invoke(t, "", "demo", "--examples", programs, "--svg", tc.svg)
			if code != exitFailed || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, tc.want) {
				t.Errorf("code %d\n%s\n%s", code, stdout, stderr)
			}
			if _, err := os.Stat(tc.svg); err == nil {
				t.Errorf("%s was made", tc.svg)
			}
		})
	}
}

func TestASoakSaysBeforeItRunsWhatWouldFailAfterwards(t *testing.T) {
	code, stdout, stderr := invoke(t, "", "soak", "--out", "/nowhere")
	if code != exitFailed || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "--out") {
		t.Errorf("a folder that is not there: code %d\n%s\n%s", code, stdout, stderr)
	}
	t.Setenv("KVLEASE_NIXL", "/nowhere")
	code, stdout, stderr = invoke(t, "", "soak")
	if code != exitFailed || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "/nowhere") {
		t.Errorf("a NIXL that is not there: code %d\n%s\n%s", code, stdout, stderr)
	}
}

func TestANodeOverLoopbackAnswersWithoutNIXL(t *testing.T) {
	code, stdout, stderr := invoke(t, `{"cmd":"grant","n":1,"id":"r1","blocks":[0],"tokens":16}`+"\n"+`{"cmd":"quit"}`+"\n",
		"node", "--transport", "loopback", "--engine-id", "P", "--pass-time", "1ms")
	if code != exitOK {
		t.Fatalf("code %d: %s", code, stderr)
	}
	for _, word := range []string{`"ev":"ready"`, `"re":1,"ok":true`, `"remote_engine_id":"P"`, `"ev":"bye"`} {
		if !strings.Contains(stdout, word) { // shows C72.2
			t.Errorf("no %s in\n%s", word, stdout)
		}
	}
}
