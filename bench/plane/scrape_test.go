package plane

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/metrics"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// scraper gets a URL once for each line that it is told, over one connection, as Prometheus does, and says how many bytes came.
const scraper = `
import http.client, sys
to = http.client.HTTPConnection(sys.argv[1])
for _ in sys.stdin:
    to.request("GET", "/metrics")
    print(len(to.getresponse().read()), flush=True)
`

// BenchmarkStepScraped times steps of an engine that holds 100,000 leases, without pause, in turns of one second: nobody looks, and its own
// listener is scraped once. The mean has all that a scrape may do to a step; the heap is collected as in the core.
func BenchmarkStepScraped(b *testing.B) {
	const leases = 100_000
	e := open(b, loopback.NewHub(), "P", fmt.Sprintf(`{"requests_max":%d,"kv_lease_duration":3600}`, leases+1))
	e.hold(leases)
	exporter := metrics.NewExporter(e.core.Page)
	defer exporter.Close()
	at, err := exporter.Listen(":0")
	must(b, err)
	cmd := exec.Command("python3", "-c", scraper, at.String())
	in, err := cmd.StdinPipe()
	must(b, err)
	out, err := cmd.StdoutPipe()
	must(b, err)
	must(b, cmd.Start())
	defer func() {
		in.Close()
		must(b, cmd.Wait())
	}()
	lines := bufio.NewReader(out)
	bytes := 0
	scrape := func(done chan<- error) {
		_, err := io.WriteString(in, "\n")
		if err == nil {
			_, err = fmt.Fscanln(lines, &bytes)
		}
		done <- err
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer core.StartCollector().Stop()

	start, began := e.now, time.Now()
	var mean, worst [2][]float64 // ns, of each second
	second := func(scraped int) {
		done := make(chan error, 1)
		if scraped == 1 {
			go scrape(done)
		} else {
			done <- nil
		}
		steps, longest := 0, time.Duration(0)
		begin := time.Now()
		for last := begin; last.Sub(begin) < time.Second; steps++ {
			e.now = start.Add(last.Sub(began))
			must(b, e.core.Step())
			now := time.Now()
			longest, last = max(longest, now.Sub(last)), now
		}
		must(b, <-done)
		mean[scraped] = append(mean[scraped], float64(time.Second)/float64(steps))
		worst[scraped] = append(worst[scraped], float64(longest))
	}
	second(1) // what is made once
	mean[1], worst[1] = nil, nil
	for i := 0; b.Loop(); i++ {
		second(i % 2)
		second(1 - i%2)
	}
	if bytes < 10_000 {
		b.Fatalf("a scrape brought %d bytes", bytes)
	}
	for k, name := range [2]string{"quiet", "scraped"} {
		slices.Sort(mean[k])
		slices.Sort(worst[k])
		b.ReportMetric(mean[k][len(mean[k])/2], name+"-ns/step")
		b.ReportMetric(worst[k][len(worst[k])/2], name+"-worst-ns")
	}
	b.ReportMetric(float64(bytes), "bytes/scrape")
}

// BenchmarkScrape times one scrape of the same engine, from its page to text.
func BenchmarkScrape(b *testing.B) {
	e := open(b, loopback.NewHub(), "P", `{"requests_max":100001,"kv_lease_duration":3600}`)
	e.hold(100_000)
	exporter := metrics.NewExporter(e.core.Page)
	defer exporter.Close()
	b.ReportAllocs()
	for b.Loop() {
		_, err := exporter.Text()
		must(b, err)
	}
}
