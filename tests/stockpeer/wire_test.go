package stockpeer

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/dataplane/wire"
)

// golden reads what vLLM's own classes send: testdata/README.md.
func golden(t *testing.T) map[string][]byte {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "vllm.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	values := map[string][]byte{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, text, _ := strings.Cut(lines.Text(), "\t")
		if values[name], err = hex.DecodeString(text); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if len(values) < 20 {
		t.Fatalf("%d golden values", len(values))
	}
	return values
}

func TestTheStandInSendsVllmsBytes(t *testing.T) {
	out, err := exec.Command("python3", filepath.Join("peer", "golden.py"), filepath.Join("testdata", "vllm.tsv")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("%s", bytes.TrimSpace(out))
}

func TestOurWireSendsAndReadsVllmsBytes(t *testing.T) {
	values := golden(t)
	ids := map[string]string{
		"plain": "chatcmpl-0a-89abcdef", "colon": "a:b", "hb": "HB:job-1", "utf8": "größe-ü", "long": strings.Repeat("x", 1000), "comma": "a,b",
	}
	for name, id := range ids {
		if got, st := wire.AppendCompletion(nil, []byte(id), 1); name == "hb" {
			if st == wire.OK {
				t.Error("a completion that a stock owner takes for a heartbeat was made")
			}
		} else if !bytes.Equal(got, values["completion."+name]) {
			t.Errorf("completion of %.20s: %q, vLLM's is %q", id, got, values["completion."+name])
		}
		if got, st := wire.AppendHeartbeatID(nil, 4096, []byte(id)); name == "comma" {
			if st == wire.OK {
				t.Error("an id with a comma went into a heartbeat, where a stock owner takes it for two")
			}
		} else if !bytes.Equal(got, values["heartbeat."+name]) {
			t.Errorf("heartbeat of %.20s: %q, vLLM's is %q", id, got, values["heartbeat."+name])
		}
		if msg, st := wire.ParseStock(values["completion."+name]); st != wire.OK || string(msg.ID) != id || msg.N != 1 {
			t.Errorf("vLLM's completion of %.20s is read as %q, %d readers, %v", id, msg.ID, msg.N, st)
		}
	}
	for _, name := range []string{"metadata.small", "metadata.full"} {
		var h wire.Handshake
		if err := wire.ParseHandshake(values[name], &h); err != nil || h.Native {
			t.Errorf("%s: native %v, %v", name, h.Native, err)
		} else if got := wire.AppendHandshake(nil, &h); !bytes.Equal(got, values[name]) {
			t.Errorf("%s: written again it is\n%x, vLLM's is\n%x", name, got, values[name])
		}
	}
	for name, second := range map[string]bool{"params.first-turn": false, "params.second-turn": true} {
		var p wire.Params
		if err := wire.ParseParams(values[name], &p); err != nil || p.Native || p.RequestID != "r1-89abcdef" || p.DoRemoteDecode != second {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
}
