package attach

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/node"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/ports"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/standin"
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/handshake"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// longest bounds every wait for something that comes.
const longest = 30 * time.Second

// ours is a stand-in of ours in this process: over loopback, with a real side channel.
type ours struct{ *standin.Tested }

func freeAddr(t *testing.T) string {
	t.Helper()
	port, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", port)
}

func startOurs(t *testing.T, hub *loopback.Hub, cfg node.Config) *ours {
	t.Helper()
	if cfg.Lease == 0 {
		cfg.Lease = 30 * time.Second
	}
	if cfg.Context == "" {
		cfg.Context, cfg.TP = "engine", 1
	}
	cfg.Role, cfg.Drive, cfg.Layers, cfg.Blocks, cfg.PassTime = "prefill", "inline", 2, 32, time.Millisecond
	return &ours{standin.RunTested(t, cfg, core.Loopback(hub))}
}

// grant holds blocks, and gives the request as a tool would read it.
func (e *ours) grant(id string, blocks ...uint32) *Request {
	e.T.Helper()
	r := e.Do(jsonl.Command{Cmd: "grant", ID: id, Blocks: blocks, Tokens: 16})
	req, err := ParseRequest(r.Params)
	if err != nil {
		e.T.Fatal(err)
	}
	return req
}

func (e *ours) freed(id string) jsonl.Report {
	e.T.Helper()
	return e.Wait("the end of "+id, func(r *jsonl.Report) bool { return r.Ev == "freed" && r.ID == id })
}

// held fails the test if the request's lease has ended.
func (e *ours) held(id string) {
	e.T.Helper()
	e.Do(jsonl.Command{Cmd: "stats"}) // whatever has ended was told before
	if e.Kept(func(r *jsonl.Report) bool { return r.Ev == "freed" && r.ID == id }) {
		e.T.Errorf("%s has ended", id)
	}
}

// stock is a stock engine as far as it can be seen from outside: maps on a side channel, memory, and what it hears.
type stock struct {
	t      *testing.T
	addr   string
	server *handshake.Server
	agents []transport.Transport
	mem    [][]byte // by rank
	maps   []*wire.Handshake
}

const stockBlock = 64 // bytes

func stamps() clock.RemoteInstant { return clock.RemoteInstant(monotonic()) }

// startStock makes an engine of tp ranks whose blocks are filled by place; change may make its maps unusual.
func startStock(t *testing.T, hub *loopback.Hub, addr string, tp int, change func(h *wire.Handshake)) *stock {
	t.Helper()
	s := &stock{t: t, addr: addr}
	var err error
	if s.server, err = handshake.Serve(addr, handshake.ServerConfig{Monotonic: stamps}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.server.Close() })
	for r := range tp {
		agent, err := hub.New("stock-"+hex64(randomWord()), loopback.Config{})
		if err != nil {
			t.Fatal(err)
		}
		mem, err := pages(2 * 16 * stockBlock)
		if err != nil {
			t.Fatal(err)
		}
		for i := range mem {
			mem[i] = byte(i/stockBlock*7 + r*101 + i)
		}
		if err := agent.Register([]transport.Region{{Addr: record.Addr(mem), Bytes: uint64(len(mem))}}); err != nil {
			t.Fatal(err)
		}
		blob, err := agent.Metadata()
		if err != nil {
			t.Fatal(err)
		}
		h := &wire.Handshake{
			EngineID: "S", AgentMetadata: blob, BaseAddrs: []uint64{record.Addr(mem), record.Addr(mem[16*stockBlock:])}, NumBlocks: 16,
			BlockLens: []uint64{stockBlock, stockBlock}, BlockStrides: []uint64{stockBlock, stockBlock}, Layout: "LBHNC", BlockSize: 16,
			AttnBackend: "FLASH_ATTN", PhysicalPerLogical: 1, DCPSize: 1, PCPSize: 1, RegionGroupIDs: []int64{0, 0},
			RegionNames: []string{"layer.0", "layer.1"}, RegionMemTypes: []wire.RegionMem{transport.DRAM, transport.DRAM},
		}
		if change != nil {
			change(h)
		}
		p := handshake.Payload{Hash: strings.Repeat("ab", 32), Metadata: wire.AppendHandshake(nil, h)}
		if err := s.server.Set(handshake.Rank{Transfer: uint32(r)}, p); err != nil {
			t.Fatal(err)
		}
		s.agents, s.mem, s.maps = append(s.agents, agent), append(s.mem, mem), append(s.maps, h)
	}
	return s
}

// messages are what has been heard since the last call, each with its rank.
func (s *stock) messages() (heard []string) {
	in := transport.NewInbox(64, 1<<16)
	for r, a := range s.agents {
		in.Reset()
		a.Poll(in)
		for {
			_, body, ok := in.Next()
			if !ok {
				break
			}
			heard = append(heard, fmt.Sprintf("%d %s", r, body))
		}
	}
	return heard
}

// block is what lies in a block of a region.
func (s *stock) block(rank, region int, id uint32) []byte {
	h := s.maps[rank]
	at := h.BaseAddrs[region] + uint64(id)*h.BlockStrides[region] - record.Addr(s.mem[rank])
	return s.mem[rank][at:][:h.BlockLens[region]]
}

// looking is how tests look: everything once, over the hub.
func looking(hub *loopback.Hub, addr string) Config {
	return Config{
		Addr: addr, Samples: 2, Timeout: 5 * time.Second, ReadTimeout: longest, JSON: true,
		Open: func(agent string) (transport.Transport, error) { return hub.New(agent, loopback.Config{}) },
	}
}

// look runs and gives the report.
func look(t *testing.T, cfg Config) (*Report, error) {
	t.Helper()
	var out bytes.Buffer
	runErr := Run(t.Context(), cfg, &out)
	if out.Len() == 0 {
		return nil, runErr
	}
	r := new(Report)
	if err := json.NewDecoder(&out).Decode(r); err != nil {
		t.Fatalf("%v: %s", err, out.Bytes())
	}
	return r, runErr
}

// read gives what a dump has written.
func readDump(t *testing.T, file string) (*Dump, []byte) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	index, err := os.ReadFile(file + ".json")
	if err != nil {
		t.Fatal(err)
	}
	d := new(Dump)
	if err := json.Unmarshal(index, d); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(file + ".*"); err != nil || len(left) != 1 {
		t.Errorf("beside %s: %v %v", file, left, err)
	}
	return d, data
}

// lineLog is an output whose lines can be waited for.
type lineLog struct {
	mu   sync.Mutex
	text []string
	news chan struct{}
}

func newLines() *lineLog { return &lineLog{news: make(chan struct{}, 1)} }

func (l *lineLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	l.text = append(l.text, string(b))
	l.mu.Unlock()
	select {
	case l.news <- struct{}{}:
	default:
	}
	return len(b), nil
}

// wait takes lines until one has all words.
func (l *lineLog) wait(t *testing.T, words ...string) {
	t.Helper()
	late := time.After(longest)
	var last string
	for {
		l.mu.Lock()
		lines := l.text
		l.text = nil
		l.mu.Unlock()
		for i, line := range lines {
			last = line
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
				l.mu.Lock()
				l.text = append(lines[i+1:len(lines):len(lines)], l.text...)
				l.mu.Unlock()
				return
			}
		}
		select {
		case <-l.news:
		case <-late:
			t.Fatalf("no line with %q, the last one is %s", words, last)
		}
	}
}
