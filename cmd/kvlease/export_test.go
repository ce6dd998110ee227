package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/internal/require"
)

func TestExportShowsThePagesOfAFolder(t *testing.T) {
	dir := require.Shm(t)
	code, out, errs := invoke(t, "", "export", "--once", "--dir", dir)
	if code != exitOK || strings.Contains(out, "kvlease_up") || !strings.Contains(out, `kvlease_pages{state="alive"} 0`) {
		t.Fatalf("of no page: code %d, %s%s", code, out, errs)
	}

	stdin, quit := io.Pipe()
	said, stdout := io.Pipe()
	ended := make(chan int, 1)
	var stderr bytes.Buffer
	go func() {
		args := []string{"node", "--transport", "loopback", "--engine-id", "E", "--metrics", "localhost:0", "--config", fmt.Sprintf(`{"stats_page":%q}`, dir)}
		ended <- run(args, world{ctx: t.Context(), stdin: stdin, stdout: stdout, stderr: &stderr})
		stdout.Close()
	}()
	lines := bufio.NewReader(said)
	ready, err := lines.ReadString('\n')
	if err != nil || !strings.Contains(ready, `"metrics":"http://127.0.0.1:`) {
		t.Errorf("the node says %q (%v), not where its metrics are", ready, err)
	}
	code, out, errs = invoke(t, "", "export", "--once", "--dir", dir)
	if want := fmt.Sprintf(`engine="E",pid="%d",rank="0",role="engine"} 1`, os.Getpid()); code != exitOK || !strings.Contains(out, want) {
		t.Errorf("of one page: code %d, no %s in\n%s%s", code, want, out, errs)
	}
	quit.Close()
	if _, err := io.Copy(io.Discard, lines); err != nil {
		t.Error(err)
	}
	if code := <-ended; code != exitOK {
		t.Errorf("node: code %d, %s", code, &stderr)
	}
}
