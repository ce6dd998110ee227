package wire

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// vector is a line of testdata/params_index.tsv, which the C reader is tested with, too.
type vector struct {
	file, outcome, key string
	want               []string // id (hex), engine, host, port, tp_size, tokens, groups, block ids, epoch, slot, g, key
}

func vectors(t testing.TB) []vector {
	t.Helper()
	text, err := os.ReadFile("testdata/params_index.tsv")
	if err != nil {
		t.Fatal(err)
	}
	var out []vector
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n")[1:] {
		f := strings.Split(line, "\t")
		if len(f) != 15 {
			t.Fatalf("index line of %d fields: %q", len(f), line)
		}
		out = append(out, vector{f[0], f[1], f[2], f[3:]})
	}
	return out
}

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// asFields is the part of a Params that the index tells.
func asFields(p *Params) []string {
	var groups []string
	for _, ids := range p.Groups {
		groups = append(groups, strings.Trim(strings.ReplaceAll(fmt.Sprint(ids), " ", ","), "[]"))
	}
	blocks := strings.Join(groups, "|")
	if blocks == "" {
		blocks = "-"
	}
	out := []string{hex.EncodeToString([]byte(p.RequestID)), p.EngineID, p.Host, fmt.Sprint(p.Port), fmt.Sprint(p.TPSize),
		fmt.Sprint(p.NumTokens), fmt.Sprint(len(p.Groups)), blocks}
	if !p.Native {
		return append(out, "-", "-", "-", "-")
	}
	l := &p.Lease
	return append(out, fmt.Sprintf("%016x", l.Epoch), fmt.Sprint(l.Slot), fmt.Sprint(l.Generation), fmt.Sprintf("%016x", l.Key))
}

func TestParameterVectorsAreReadAsTheIndexSays(t *testing.T) {
	listed := map[string]bool{}
	for _, v := range vectors(t) {
		listed[v.file] = true
		t.Run(v.file, func(t *testing.T) {
			var p Params
			err := ParseParams(readFile(t, v.file), &p)
			if v.outcome == "error" {
				if err == nil {
					t.Fatal("was read, but the index says error")
				}
				want := "parameters: "
				if v.key != "-" {
					want = "parameter " + v.key + ":"
				}
				if !strings.HasPrefix(err.Error(), want) {
					t.Errorf("error %q does not start with %q", err, want)
				}
				if diff := cmp.Diff(Params{}, p); diff != "" {
					t.Errorf("an error changed the output:\n%s", diff)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if p.Native != (v.outcome == "native") {
				t.Errorf("native %v, index says %s", p.Native, v.outcome)
			}
			if diff := cmp.Diff(v.want, asFields(&p)); diff != "" {
				t.Errorf("fields (-index +read):\n%s", diff)
			}
		})
	}
	files, err := filepath.Glob("testdata/params_*.json")
	if err != nil || len(files) != len(listed) {
		t.Errorf("%d files, %d in the index (%v)", len(files), len(listed), err)
	}
}

func TestParametersAreWrittenAsTheGoldenFile(t *testing.T) {
	p := Params{
		DoRemotePrefill: true, EngineID: "P-1", RequestID: "chatcmpl-7f-89abcdef", Host: "10.0.0.1", Port: 5600,
		NumTokens: 48, Groups: [][]uint32{{1, 2, 7}, {4294967295}}, RegistrationGeneration: 1, TransferMode: "pull",
		Native: true, Lease: ParamsLease{Epoch: 0xfedcba9876543210, Slot: 5, Generation: 3, Key: 0x0123456789abcdef},
	}
	if diff := cmp.Diff(string(readFile(t, "params_native.json")), string(AppendParams(nil, &p))); diff != "" {
		t.Errorf("with the key (-golden +written):\n%s", diff)
	}
	p.Native = false
	if diff := cmp.Diff(string(readFile(t, "params_stock.json")), string(AppendParams(nil, &p))); diff != "" {
		t.Errorf("without the key (-golden +written):\n%s", diff)
	}
}

func TestTurnTwoExpiryIsKept(t *testing.T) {
	var p Params
	if err := ParseParams(readFile(t, "params_turn_two.json"), &p); err != nil {
		t.Fatal(err)
	}
	if p.ExpiryTime == nil || *p.ExpiryTime != 12345.678 || p.PPSize != 2 || !p.DoRemoteDecode || p.DoRemotePrefill {
		t.Errorf("turn two read as %+v", p)
	}
}

func TestParametersOfALaterVersionAreStockAndSayWhich(t *testing.T) {
	var p Params
	if err := ParseParams(readFile(t, "params_future.json"), &p); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ParamsLease{Version: 2}, p.Lease); p.Native || diff != "" { // shows C09.1
		t.Errorf("native %v, lease (-want +got):\n%s", p.Native, diff)
	}
}

func TestParameterErrorsSayWhy(t *testing.T) {
	for _, tc := range []struct {
		file string
		want error
	}{
		{"params_missing_host.json", ErrMissing},
		{"params_missing_block_ids.json", ErrMissing}, // S31
		{"params_port_text.json", ErrType},
		{"params_port_float.json", ErrType},
		{"params_port_zero.json", ErrValue},
		{"params_port_too_large.json", ErrRange},
		{"params_port_twice.json", ErrDuplicate},
		{"params_port_leading_zero.json", ErrSyntax},
		{"params_tokens_negative.json", ErrNegative},
		{"params_id_too_long.json", ErrTooLong},
		{"params_lease_array.json", ErrType},
		{"params_lease_no_version.json", ErrMissing},
		{"params_epoch_number.json", ErrType},
		{"params_epoch_upper.json", ErrValue},
		{"params_slot_null.json", ErrType},
		{"params_g_twice.json", ErrDuplicate},
		{"params_too_many_groups.json", ErrLimit},
		{"params_nested_deep.json", ErrDepth},
		{"params_truncated.json", ErrTruncated},
		{"params_empty.json", ErrTruncated},
		{"params_trailing.json", ErrTrailing},
		{"params_not_utf8.json", ErrUTF8},
		{"params_half_surrogate.json", ErrUTF8},
		{"params_control_character.json", ErrSyntax},
		{"params_comma_at_the_end.json", ErrSyntax},
	} {
		var p Params
		if err := ParseParams(readFile(t, tc.file), &p); !errors.Is(err, tc.want) { // shows S31.1, S32.1, C10.3
			t.Errorf("%s: %v, want %v", tc.file, err, tc.want)
		}
	}
	var p Params
	if err := ParseParams(make([]byte, ParamsMax+1), &p); !errors.Is(err, ErrTooLong) {
		t.Errorf("too long a text: %v", err)
	}
}

func TestWritingParametersIntoRoomAllocatesNothing(t *testing.T) {
	var p Params
	if err := ParseParams(readFile(t, "params_native.json"), &p); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 0, 4096)
	if n := testing.AllocsPerRun(100, func() { buf = AppendParams(buf[:0], &p) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// What was read is written and read again as the same; whatever comes in, nothing panics.
func FuzzParams(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(readFile(f, v.file))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var p, again Params
		if ParseParams(text, &p) != nil {
			return
		}
		if !p.Native {
			p.Lease = ParamsLease{} // a later version is not written again
		}
		out := AppendParams(nil, &p)
		if err := ParseParams(out, &again); err != nil {
			t.Fatalf("written as %s: %v", out, err)
		}
		if diff := cmp.Diff(p, again); diff != "" {
			t.Fatalf("read (-first +again):\n%s", diff)
		}
	})
}
