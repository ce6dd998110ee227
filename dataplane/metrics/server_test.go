package metrics

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/kvlease/kvlease/dataplane/watch"
)

func serve(t *testing.T, c *Collector) *Server {
	t.Helper()
	s, err := Listen("localhost:0", c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func own(t *testing.T) *Collector { return Own(pageOf(t, engineSpec("E"), nil)) }

func get(t *testing.T, at netip.AddrPort, accept string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", fmt.Sprintf("http://%v/metrics", at), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

func TestAddresses(t *testing.T) {
	for _, tc := range []struct{ text, want, why string }{
		{text: ":9464", want: "127.0.0.1:9464"},
		{text: "localhost:0", want: "127.0.0.1:0"},
		{text: "0.0.0.0:80", want: "0.0.0.0:80"},
		{text: "[::]:80", want: "[::]:80"},
		{text: "[::1]:80", want: "[::1]:80"},
		{text: "10.1.2.3:80", want: "10.1.2.3:80"},
		{text: "", why: "HOST:PORT"},
		{text: "9464", why: "HOST:PORT"},
		{text: "host:9464", why: "an IP address"},
		{text: "127.0.0.1:", why: "the port"},
		{text: "127.0.0.1:65536", why: "the port"},
		{text: "127.0.0.1:http", why: "the port"},
		{text: "127.0.0.1:80\x00", why: "the port"},
	} {
		got, err := ParseAddr(tc.text)
		switch {
		case tc.why == "" && (err != nil || got.String() != tc.want):
			t.Errorf("%q is %v, %v; want %s", tc.text, got, err, tc.want)
		case tc.why != "" && (!errors.Is(err, ErrAddr) || !strings.Contains(err.Error(), tc.why)):
			t.Errorf("%q: %v, want an error that says %q", tc.text, err, tc.why)
		}
	}
}

func TestAScrapeHasTheFormatThatItAskedFor(t *testing.T) {
	spec := engineSpec("E")
	spec.Histograms = []watch.Desc{{Name: distributionTable[2].page, Unit: "seconds"}}
	s := serve(t, Own(pageOf(t, spec, nil)))
	_, text := get(t, s.Addr(), "text/plain;version=0.0.4")
	if !strings.Contains(text, `kvlease_up{engine="E",rank="0",role="engine"} 1`) || !strings.Contains(text, "_bucket{") {
		t.Errorf("text:\n%s", text)
	}
	resp, body := get(t, s.Addr(), "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited")
	dec := expfmt.NewDecoder(strings.NewReader(body), expfmt.ResponseFormat(resp.Header))
	native := false
	for {
		var f dto.MetricFamily
		if err := dec.Decode(&f); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		native = native || f.GetType() == dto.MetricType_HISTOGRAM && f.Metric[0].Histogram.Schema != nil
	}
	if !native {
		t.Error("no native histogram in protobuf")
	}
	if resp, _ := http.Post(fmt.Sprintf("http://%v/metrics", s.Addr()), "", nil); resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %v", resp.Status)
	}
}

func TestATakenPortIsAnErrorThatSaysWhatToDo(t *testing.T) {
	s := serve(t, own(t))
	_, err := Listen(s.Addr().String(), own(t))
	if !errors.Is(err, ErrListen) || !strings.Contains(err.Error(), "in use") { // shows C77.3
		t.Errorf("the second listener: %v", err)
	}
	if _, err := Listen("192.0.2.1:0", own(t)); !errors.Is(err, ErrListen) || !strings.Contains(err.Error(), "no address of this machine") {
		t.Errorf("an address that is not ours: %v", err)
	}
	if _, body := get(t, s.Addr(), ""); !strings.Contains(body, "kvlease_up") {
		t.Error("the first one does not answer any more")
	}
}

func TestASecondScrapeAtOnceIsRefused(t *testing.T) {
	c := own(t)
	s := serve(t, c)
	c.mu.Lock() // the first scrape is held up in the middle
	answers := make(chan string, 2)
	for range 2 {
		go func() {
			resp, body := get(t, s.Addr(), "")
			answers <- resp.Status + " " + body
		}()
	}
	if early := <-answers; !strings.HasPrefix(early, "503 ") || !strings.Contains(early, "another scrape") {
		t.Errorf("while one scrape was being answered the other one got: %s", early)
	}
	c.mu.Unlock()
	if late := <-answers; !strings.HasPrefix(late, "200 ") {
		t.Errorf("the first one got: %s", late)
	}
	if resp, _ := get(t, s.Addr(), ""); resp.StatusCode != http.StatusOK {
		t.Errorf("afterwards: %v", resp.Status)
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	s := serve(t, own(t))
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range connsMax {
		c, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n") // it is let in, and stays
		if _, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil {
			t.Fatal(err)
		}
	}
	more, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer more.Close()
	more.SetReadDeadline(time.Now().Add(20 * time.Second))
	if n, err := more.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("one connection too many was answered: %d bytes, %v", n, err)
	}
	conns[0].Close()
	conns = conns[1:]
	for deadline := time.Now().Add(20 * time.Second); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		req, _ := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("http://%v/", s.Addr()), nil)
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err == nil {
			resp.Body.Close()
			cancel()
			break
		}
		cancel()
		if time.Now().After(deadline) {
			t.Fatalf("no place came free: %v", err)
		}
	}
}

func TestAnExporterListensOnceAndUntilItIsClosed(t *testing.T) {
	e := NewExporter(func() (*watch.Page, error) { return pageOf(t, engineSpec("E"), nil), nil })
	at, err := e.Listen(":0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Listen(":0"); !errors.Is(err, ErrListening) || !strings.Contains(err.Error(), at.String()) {
		t.Errorf("the second listener: %v", err)
	}
	if text, err := e.Text(); err != nil || !strings.Contains(string(text), "kvlease_up") {
		t.Errorf("text %q, %v", text, err)
	}
	e.Close()
	if _, err := net.Dial("tcp", at.String()); err == nil {
		t.Error("it listens after the close")
	}
	if _, err := e.Text(); !errors.Is(err, ErrClosed) {
		t.Errorf("text after the close: %v", err)
	}
}

func TestAnExporterWithoutAPageSaysWhy(t *testing.T) {
	why := errors.New("no memory")
	e := NewExporter(func() (*watch.Page, error) { return nil, why })
	if _, err := e.Listen(":0"); !errors.Is(err, why) {
		t.Errorf("listen: %v", err)
	}
	if _, err := e.Text(); !errors.Is(err, why) {
		t.Errorf("text: %v", err)
	}
}
