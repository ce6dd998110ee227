package cparams

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvlease/kvlease/dataplane/wire"
)

// FuzzReadersAgree: the reader in C and the one in Go take the same texts for parameters, and read the same in them.
func FuzzReadersAgree(f *testing.F) {
	files, err := filepath.Glob("../../../../dataplane/wire/testdata/params_*.json")
	if err != nil || len(files) == 0 {
		f.Fatal("no vectors", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, cErr := Read(text)
		var p wire.Params
		goErr := wire.ParseParams(text, &p)
		if (cErr == nil) != (goErr == nil) {
			t.Fatalf("%q:\n C: %v\nGo: %v", text, cErr, goErr)
		}
		if cErr != nil {
			return
		}
		want := &Remote{
			Native: p.Native, ID: p.RequestID, Engine: p.EngineID, Host: p.Host, Port: p.Port, TP: p.TPSize, PP: p.PPSize, Tokens: p.NumTokens,
			Groups: p.Groups,
		}
		if p.Native {
			want.Epoch, want.Key, want.Slot, want.Generation = p.Lease.Epoch, p.Lease.Key, p.Lease.Slot, p.Lease.Generation
		}
		if diff := cmp.Diff(want, c, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(Remote{}, "ExpiresNs")); diff != "" {
			t.Fatalf("%q (-Go +C):\n%s", text, diff)
		}
	})
}
