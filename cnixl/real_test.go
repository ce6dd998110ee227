package cnixl

import (
	"os"
	"testing"

	"github.com/kvlease/kvlease/dataplane/transport/transporttest"
)

// realNIXL opens an agent of the real library or skips, naming what is missing. KVLEASE_REQUIRE=nixl makes that a failure.
func realNIXL(t testing.TB, cfg Config) *Agent {
	t.Helper()
	cfg.Folders = []string{".."}
	a, err := Open(cfg)
	if err != nil {
		if os.Getenv("KVLEASE_REQUIRE") == "nixl" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return a
}

// haveNIXL skips like realNIXL and opens no agent: UCX's sockets would be inherited by the processes that the test starts.
func haveNIXL(t testing.TB) {
	t.Helper()
	if _, _, err := openLibrary(search{env: getenv("KVLEASE_NIXL"), maps: mappedFiles(), folders: []string{".."}}); err != nil {
		if os.Getenv("KVLEASE_REQUIRE") == "nixl" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

func TestRealNIXLKeepsTheContract(t *testing.T) {
	transporttest.Run(t, func(t *testing.T) transporttest.Pair {
		a := realNIXL(t, Config{Agent: "decode-0-" + "0123456789abcdef", ReadsMax: 20})
		b := realNIXL(t, Config{Agent: "prefill-0"})
		t.Cleanup(func() { _, _ = a.Close(), b.Close() })
		return transporttest.Pair{A: a, B: b, ReadsMax: 20}
	})
}
