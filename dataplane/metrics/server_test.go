package metrics

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/kvlease/kvlease/dataplane/watch"
	"github.com/kvlease/kvlease/internal/require"
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

// waiting opens a connection that has had an answer, and says nothing more.
func waiting(t *testing.T, s *Server) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp, err)
	}
	answered(t, s) // the answer comes before the server says that it has ended
	return c
}

// answered waits until no connection is being answered.
func answered(t *testing.T, s *Server) {
	t.Helper()
	room := s.listen.(*bounded)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		busy := 0
		room.mu.Lock()
		for _, since := range room.conns {
			if since.IsZero() {
				busy++
			}
		}
		room.mu.Unlock()
		if busy == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are still being answered", busy)
		}
	}
}

// closed waits until the other end has closed a connection, without an answer.
func closed(t *testing.T, c net.Conn) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection is open: %d bytes, %v", n, err)
	}
}

func TestWhoKeepsConnectionsKeepsNobodyOut(t *testing.T) {
	s := serve(t, own(t))
	conns := make([]net.Conn, connsMax)
	for i := range conns {
		conns[i] = waiting(t, s)
	}
	waiting(t, s) // is let in, in the place of
	closed(t, conns[0])
	silent, err := net.Dial("tcp", s.Addr().String()) // one that never asks gets a place, too, and loses it like the others
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	closed(t, conns[1])
	for range connsMax {
		waiting(t, s)
	}
	closed(t, silent)
}

func TestConnectionsThatAreBeingAnsweredAreBounded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	room := &bounded{Listener: l, conns: map[*held]time.Time{}}
	came := make(chan net.Conn)
	go func() {
		for {
			c, err := room.Accept()
			if err != nil {
				return
			}
			came <- c
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	var conns []net.Conn
	for range connsMax {
		dial()
		conns = append(conns, <-came)
		room.note(conns[len(conns)-1], http.StateActive)
	}
	closed(t, dial()) // one too many
	room.note(conns[3], http.StateIdle)
	dial()
	<-came
	conns[5].Close() // by the server, when it is done
	conns[5].Close()
	dial()
	<-came
	if len(room.conns) != connsMax {
		t.Errorf("%d places are taken", len(room.conns))
	}
}

// A machine has megabytes of metrics, more than the kernel takes for somebody who does not read.
func TestWhoDoesNotReadHoldsUpNobody(t *testing.T) {
	dir := require.Shm(t)
	for i := range 16 {
		spec := engineSpec(fmt.Sprint("E", i))
		spec.Dir, spec.Readers = dir, watch.ReadersMax
		pageOf(t, spec, func(w *watch.Writer) {
			for k := range watch.ReadersMax {
				w.PutReader(k, &watch.ReaderRow{Number: uint64(k + 3), Native: true, Hash: uint64(k + 1)})
			}
			w.SetReaders(watch.ReadersMax)
		})
	}
	s := serve(t, Machine(dir))
	for range 3 {
		c, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.(*net.TCPConn).SetReadBuffer(4096)
		fmt.Fprintf(c, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
		if _, err := c.Read(make([]byte, 1)); err != nil { // it is being written
			t.Fatal(err)
		}
	}
	resp, body := get(t, s.Addr(), "")
	if resp.StatusCode != http.StatusOK || len(body) < 5<<20 {
		t.Errorf("%v with %d bytes", resp.Status, len(body))
	}
}

func TestTextDuringTheCloseIsWholeOrRefused(t *testing.T) {
	for range 50 {
		page := pageOf(t, engineSpec("E"), nil)
		e := NewExporter(func() (*watch.Page, error) { return page, nil })
		var readers sync.WaitGroup
		for range 2 {
			readers.Go(func() {
				for {
					text, err := e.Text()
					if errors.Is(err, ErrClosed) {
						return
					}
					if err != nil || !strings.Contains(string(text), "kvlease_up") {
						t.Errorf("%q, %v", text, err)
						return
					}
				}
			})
		}
		e.Close()
		readers.Wait()
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
