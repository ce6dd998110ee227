package core

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

const readme = "../../README.md"

// keysTable is the README's table of the configuration, made from the keys themselves.
func keysTable() string {
	var b strings.Builder
	b.WriteString("| key | default | meaning |\n|---|---|---|\n")
	for _, d := range KeyDocs() {
		fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", d[0], d[1], d[2])
	}
	return b.String()
}

// The README's table of keys is the keys' own. KVLEASE_UPDATE=1 writes it.
func TestTheREADMEsTableOfKeysIsTrue(t *testing.T) {
	data, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	const from, to = "<!-- keys -->\n", "<!-- /keys -->"
	head, rest, ok := strings.Cut(string(data), from)
	table, tail, ok2 := strings.Cut(rest, to)
	if !ok || !ok2 {
		t.Fatalf("README.md has no %q ... %q", from, to)
	}
	if table == keysTable() {
		return
	}
	if os.Getenv("KVLEASE_UPDATE") == "" {
		t.Fatalf("README.md's table of keys is not the code's: run `make generate`. The code's:\n%s", keysTable())
	}
	if err := os.WriteFile(readme, []byte(head+from+keysTable()+to+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}
