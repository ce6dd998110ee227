package attach

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/handshake"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
	"github.com/kvlease/kvlease/dataplane/wire"
	"github.com/kvlease/kvlease/dataplane/zmtp"
)

// Stock engines, and what is none.

func TestAStockEngineIsAskedForNoRankThatWasNotNamed(t *testing.T) { // its listener would die of it
	hub, addr := loopback.NewHub(), freeAddr(t)
	s := startStock(t, hub, addr, 2, nil)
	for _, tc := range []struct {
		name       string
		change     func(c *Config)
		ranks      int
		answered   uint64
		unanswered uint64
	}{
		{name: "nothing is said", change: func(*Config) {}, ranks: 1, answered: 2},
		{name: "two are named", change: func(c *Config) { c.TP = 2 }, ranks: 2, answered: 3},
		{name: "a request says two", change: func(c *Config) {
			c.TP = 2
			c.Request = &Request{ID: "r", Params: &wire.Params{EngineID: "S", RequestID: "r", TPSize: 2, PPSize: 1}}
		}, ranks: 2, answered: 3},
		{name: "a watch goes on with the first", change: func(c *Config) { c.Samples = 5 }, ranks: 1, answered: 5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := s.server.Stats()
			cfg := looking(hub, addr)
			tc.change(&cfg)
			r, err := look(t, cfg)
			if err != nil {
				t.Fatal(err)
			}
			if r.Speaks != "stock" || r.Lease != nil || len(r.Ranks) != tc.ranks || r.Ranks[0].Board != nil || r.Ranks[0].Read.N != cfg.Samples {
				t.Errorf("%+v", r)
			}
			after := s.server.Stats()
			if n := after.Answered - before.Answered; n != tc.answered || after.Unknown != before.Unknown {
				t.Errorf("%d answers, %d for ranks that it does not have", n, after.Unknown-before.Unknown)
			}
		})
	}
	if heard := s.messages(); heard != nil {
		t.Errorf("it was told %q", heard)
	}
}

func TestANamedRankThatAStockEngineDoesNotHaveIsExplained(t *testing.T) {
	hub, addr := loopback.NewHub(), freeAddr(t)
	startStock(t, hub, addr, 1, nil)
	cfg := looking(hub, addr)
	cfg.TP = 2
	if _, err := look(t, cfg); err == nil || !strings.Contains(err.Error(), "pp 0 rank 1 of 2") || !strings.Contains(err.Error(), "are --tp and --pp right?") {
		t.Error(err)
	}
}

func TestARequestOfAStockEngineIsReadUnproven(t *testing.T) {
	hub, addr := loopback.NewHub(), freeAddr(t)
	s := startStock(t, hub, addr, 2, nil)
	cfg := looking(hub, addr)
	cfg.TP = 2
	cfg.Request, cfg.Out = &Request{ID: "r1", Groups: [][]uint32{{5, 2, 3}}}, filepath.Join(t.TempDir(), "blocks")
	r, err := look(t, cfg)
	if err != nil {
		t.Fatal(err)
	}
	d, data := readDump(t, cfg.Out)
	var want []byte
	for rank := range 2 {
		for region := range 2 {
			for _, id := range []uint32{5, 2, 3} {
				want = append(want, s.block(rank, region, id)...)
			}
		}
	}
	if !bytes.Equal(data, want) || d.Proven || d.Why != unprovenStock {
		t.Errorf("%+v", d)
	}
	if heard := s.messages(); heard != nil {
		t.Errorf("it was told %q", heard)
	}
	if r.Request.Left != "left as it is: nothing was sent about it" {
		t.Errorf("%q", r.Request.Left)
	}

	cfg.Out, cfg.Beat, cfg.Interval, cfg.Complete = "", 25*time.Millisecond, time.Minute, true
	if r, err = look(t, cfg); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"0 HB:r1", "0 r1:1", "1 HB:r1", "1 r1:1"}, s.messages()); diff != "" {
		t.Errorf("heard (-want +got):\n%s", diff)
	}
	if q := r.Request; q.Beats != 1 || q.Send.N != 2 || q.Applied != nil || !q.Completed || q.EndedMs != nil {
		t.Errorf("%+v", q)
	}
}

func TestIDsThatNoStockMessageCanCarryAreSaid(t *testing.T) {
	hub, addr := loopback.NewHub(), freeAddr(t)
	s := startStock(t, hub, addr, 1, nil)
	for id, change := range map[string]func(c *Config){
		"a,b":  func(c *Config) { c.Beat = time.Millisecond },
		"HB:x": func(c *Config) { c.Complete = true },
	} {
		cfg := looking(hub, addr)
		cfg.Request = &Request{ID: id}
		change(&cfg)
		if _, err := look(t, cfg); err == nil || !strings.Contains(err.Error(), "can name") {
			t.Errorf("%s: %v", id, err)
		}
	}
	if heard := s.messages(); heard != nil {
		t.Errorf("it was told %q", heard)
	}
}

func TestGroupsAndKernelBlocksAreReadWhereTheyLie(t *testing.T) {
	groups := [][]uint32{{1, 4}, {}, {2}}
	for _, tc := range []struct {
		name   string
		change func(h *wire.Handshake)
		groups [][]uint32
		want   []Part // without what is the same for all
	}{
		{
			name: "one group of regions takes the ids of all groups", groups: groups,
			want: []Part{
				{Region: 0, Group: 0, Blocks: []uint32{1, 4}}, {Region: 0, Group: 2, Blocks: []uint32{2}},
				{Region: 1, Group: 0, Blocks: []uint32{1, 4}}, {Region: 1, Group: 2, Blocks: []uint32{2}},
			},
		},
		{
			name: "each region takes those of its group", groups: [][]uint32{{1, 4}, {2}}, change: func(h *wire.Handshake) { h.RegionGroupIDs = []int64{1, 0} },
			want: []Part{{Region: 0, Group: 1, Blocks: []uint32{2}}, {Region: 1, Group: 0, Blocks: []uint32{1, 4}}},
		},
		{
			name: "a shared region takes all", groups: [][]uint32{{1, 4}, {2}}, change: func(h *wire.Handshake) { h.RegionGroupIDs = []int64{-1, 1} },
			want: []Part{{Region: 0, Group: 0, Blocks: []uint32{1, 4}}, {Region: 0, Group: 1, Blocks: []uint32{2}}, {Region: 1, Group: 1, Blocks: []uint32{2}}},
		},
		{
			name: "a block of two kernel blocks", groups: [][]uint32{{1, 4}}, change: func(h *wire.Handshake) { h.PhysicalPerLogical = 2 },
			want: []Part{{Region: 0, Blocks: []uint32{2, 3, 8, 9}}, {Region: 1, Blocks: []uint32{2, 3, 8, 9}}},
		},
		{
			name: "blocks with gaps between them", groups: [][]uint32{{1, 2}}, change: func(h *wire.Handshake) { h.BlockLens = []uint64{40, stockBlock} },
			want: []Part{{Region: 0, Blocks: []uint32{1, 2}}, {Region: 1, Blocks: []uint32{1, 2}}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			hub, addr := loopback.NewHub(), freeAddr(t)
			s := startStock(t, hub, addr, 1, tc.change)
			cfg := looking(hub, addr)
			cfg.Request, cfg.Out = &Request{ID: "r1", Groups: tc.groups}, filepath.Join(t.TempDir(), "blocks")
			if _, err := look(t, cfg); err != nil {
				t.Fatal(err)
			}
			d, data := readDump(t, cfg.Out)
			var bytesWanted []byte
			for i := range tc.want {
				p := &tc.want[i]
				p.Name, p.BlockBytes, p.Offset = s.maps[0].RegionNames[p.Region], s.maps[0].BlockLens[p.Region], uint64(len(bytesWanted))
				for _, id := range p.Blocks {
					bytesWanted = append(bytesWanted, s.block(0, p.Region, id)...)
				}
			}
			if diff := cmp.Diff(tc.want, []Part(d.Parts)); diff != "" {
				t.Errorf("parts (-want +got):\n%s", diff)
			}
			if !bytes.Equal(data, bytesWanted) {
				t.Error("other bytes than those in these blocks")
			}
		})
	}
}

func TestWhatCannotBeReadIsSaidBeforeAnythingIsRead(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(h *wire.Handshake)
		groups [][]uint32
		want   string
	}{
		{name: "a recurrent model", change: func(h *wire.Handshake) { h.SSMSizes = [2]uint64{8, 8} }, groups: [][]uint32{{1}}, want: "recurrent model"},
		{name: "a block beyond the end", groups: [][]uint32{{16}}, want: "no block 16, but 16 blocks"},
		{name: "an id that wraps", change: func(h *wire.Handshake) { h.PhysicalPerLogical = 2 }, groups: [][]uint32{{1 << 31}}, want: "there is no block 2147483648"},
		{name: "a group that no region has", change: func(h *wire.Handshake) { h.RegionGroupIDs = []int64{0, 1} }, groups: [][]uint32{{1}, {1}, {1}}, want: "no region is of group 2"},
		{name: "more than there is memory for", change: func(h *wire.Handshake) {
			h.BlockLens, h.BlockStrides = []uint64{1 << 40, 1 << 40}, []uint64{1 << 40, 1 << 40}
		}, groups: [][]uint32{{1}}, want: "more than 8589934592 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			hub, addr := loopback.NewHub(), freeAddr(t)
			startStock(t, hub, addr, 1, tc.change)
			cfg := looking(hub, addr)
			cfg.Request, cfg.Out = &Request{ID: "r1", Groups: tc.groups}, filepath.Join(t.TempDir(), "blocks")
			if _, err := look(t, cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

func TestMisfitsAreToldAndNoError(t *testing.T) {
	hub, a, b, c := loopback.NewHub(), freeAddr(t), freeAddr(t), freeAddr(t)
	startStock(t, hub, a, 1, nil)
	startStock(t, hub, b, 1, func(h *wire.Handshake) { h.EngineID = "D" })
	startStock(t, hub, c, 1, func(h *wire.Handshake) { h.EngineID, h.BlockSize, h.BlockLens[0] = "E", 32, 32 })
	cfg := looking(hub, a)
	cfg.Hash, cfg.Against = strings.Repeat("cd", 32), b
	r, err := look(t, cfg)
	if err != nil || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "would not fit: compatibility_hash is abab") {
		t.Errorf("%v: %q", err, r.Notes)
	}
	if r.Against == nil || r.Against.EngineID != "D" || len(r.Against.Misfits) != 0 {
		t.Errorf("%+v", r.Against)
	}
	cfg.Against = c
	if r, err = look(t, cfg); err != nil || len(r.Against.Misfits) != 2 || !strings.Contains(r.Against.Misfits[0], "block_size is 32 here and 16 there") {
		t.Errorf("%v: %+v", err, r.Against)
	}
	cfg.Against = freeAddr(t)
	if r, err = look(t, cfg); err != nil || len(r.Against.Misfits) != 1 || !strings.Contains(r.Against.Misfits[0], "nobody listens") {
		t.Errorf("%v: %+v", err, r.Against)
	}
}

func TestWithoutATransportTheSideChannelIsLookedAt(t *testing.T) {
	hub, addr := loopback.NewHub(), freeAddr(t)
	startStock(t, hub, addr, 1, nil)
	cfg := looking(hub, addr)
	cfg.Open, cfg.Missing = nil, "no NIXL here"
	r, err := look(t, cfg)
	if err != nil || r.Unread != "no NIXL here" || len(r.Ranks) != 1 || r.Ranks[0].Read != nil {
		t.Errorf("%v: %+v", err, r)
	}
	cfg.Request = &Request{ID: "r1"}
	if r, err = look(t, cfg); err == nil || !strings.Contains(err.Error(), "a request needs the transport: no NIXL here") || r == nil {
		t.Errorf("%v: %+v", err, r)
	}
}

func TestWhatAnswersAndIsNoSideChannelIsNamed(t *testing.T) {
	web := &http.Server{ReadHeaderTimeout: longest}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = web.Serve(l) }()
	t.Cleanup(func() { web.Close() })
	says := func(text string) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte(text))
				t.Cleanup(func() { c.Close() })
			}
		}()
		return l.Addr().String()
	}
	empty, err := handshake.Serve("127.0.0.1:0", handshake.ServerConfig{Monotonic: stamps})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { empty.Close() })
	strange, err := handshake.Serve("127.0.0.1:0", handshake.ServerConfig{Monotonic: stamps})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { strange.Close() })
	if err := strange.Set(handshake.Rank{}, handshake.Payload{Metadata: []byte{0x80}}); err != nil {
		t.Fatal(err)
	}
	hub, addr := loopback.NewHub(), freeAddr(t)
	startStock(t, hub, addr, 1, nil)
	for _, tc := range []struct{ name, addr, engine, want string }{
		{name: "nobody", addr: freeAddr(t), want: "nobody listens there"},
		{name: "a machine that does not answer", addr: deaf(t), want: "a firewall between the two"},
		{name: "a name that is none", addr: "no such name:5600", want: "the name has no address here"},
		{name: "a web server", addr: l.Addr().String(), want: "a web server answers there"},
		{name: "a server of something else", addr: says("SSH-2.0-OpenSSH_9.2p1\r\n"), want: "no NIXL side channel"},
		{name: "a server that says nothing", addr: says(""), want: "does not answer"},
		{name: "an engine that has not registered", addr: empty.Addr().String(), want: "until that rank's memory is registered"},
		{name: "a side channel of something else", addr: strange.Addr().String(), want: "no NIXL side channel that is understood here"},
		{name: "another engine", addr: addr, engine: "Q", want: `it is "S", not "Q"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := looking(hub, tc.addr)
			cfg.Timeout, cfg.EngineID = 300*time.Millisecond, tc.engine
			if _, err := look(t, cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

func TestBlockListsAreReadAsPeopleWriteThem(t *testing.T) {
	for _, tc := range []struct {
		text string
		want [][]uint32
		err  string
	}{
		{text: "3", want: [][]uint32{{3}}},
		{text: "0-3,7", want: [][]uint32{{0, 1, 2, 3, 7}}},
		{text: " 5, 1 ;9", want: [][]uint32{{5, 1}, {9}}},
		{text: ";9", want: [][]uint32{{}, {9}}},
		{text: "", err: "no block"},
		{text: ";", err: "no block"},
		{text: "3-1", err: `block "3-1"`},
		{text: "x", err: `block "x"`},
		{text: "-1", err: `block "-1"`},
		{text: "4294967296", err: "block"},
		{text: "0-4294967295", err: "more than 524288 blocks"},
		{text: "0-524287,1", err: "more than 524288 blocks"},
	} {
		got, err := ParseBlocks(tc.text)
		if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%q: %v", tc.text, err)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tc.text, diff)
		}
	}
}

func TestParametersAreTakenAloneAndOutOfAResponse(t *testing.T) {
	params := `{"remote_engine_id":"S","remote_request_id":"r1","remote_host":"h","remote_port":5600,"remote_block_ids":[[1,2]],"tp_size":1}`
	for _, text := range []string{params, `{"id":"cmpl-1","kv_transfer_params":` + params + `,"choices":[]}`} {
		req, err := ParseRequest([]byte(text))
		if err != nil || req.ID != "r1" || !slices.Equal(req.Groups[0], []uint32{1, 2}) || req.Params.EngineID != "S" {
			t.Errorf("%v: %+v", err, req)
		}
	}
	for _, text := range []string{``, `{`, `[]`, `{"id":"cmpl-1"}`, `{"kv_transfer_params":{}}`} {
		if _, err := ParseRequest([]byte(text)); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

// FuzzAMapNeverPanicsAPlan: whatever a peer says of its memory, a plan is an error or lies within what it says.
func FuzzAMapNeverPanicsAPlan(f *testing.F) {
	f.Add(wire.AppendHandshake(nil, &wire.Handshake{
		EngineID: "S", AgentMetadata: []byte("x"), BaseAddrs: []uint64{1 << 40, 1 << 41}, NumBlocks: 16, BlockLens: []uint64{64, 32}, BlockStrides: []uint64{64, 64},
		Layout: "LBHNC", BlockSize: 16, AttnBackend: "A", PhysicalPerLogical: 2, RegionGroupIDs: []int64{0, 1},
	}), uint32(3), uint32(5))
	f.Fuzz(func(t *testing.T, m []byte, a, b uint32) {
		e := engine{cfg: &Config{}, ranks: []rank{{Map: handshake.Map{Handshake: new(wire.Handshake), Raw: m}}}}
		if wire.ParseHandshake(m, e.ranks[0].Handshake) != nil || e.layouts() != nil {
			return
		}
		e.report()
		p, err := planOf(&e.ranks[0], [][]uint32{{a}, {b}})
		if err != nil {
			return
		}
		if p.bytes > bytesMax {
			t.Errorf("%d bytes", p.bytes)
		}
		for i, r := range p.local.Regions {
			if r.Addr+uint64(r.Blocks)*r.BlockLen > p.bytes || r.BlockLen != p.remote.Regions[i].BlockLen {
				t.Errorf("region %d: %+v of %d bytes", i, r, p.bytes)
			}
		}
	})
}

func TestTextOfAPeerDoesNothingToATerminal(t *testing.T) {
	hub, addr := loopback.NewHub(), freeAddr(t)
	startStock(t, hub, addr, 1, func(h *wire.Handshake) {
		h.EngineID, h.Layout, h.AttnBackend = "S\x1b[2J", "\x1b]0;x\a", strings.Repeat("long", 1000)
		h.RegionNames = []string{"layer\n.0", "\u202egpj"}
	})
	cfg := looking(hub, addr)
	cfg.JSON, cfg.EngineID, cfg.Against = false, "S\x1b[2J", freeAddr(t)
	startStock(t, hub, cfg.Against, 1, func(h *wire.Handshake) { h.Layout = "\x1b[1m" })
	var out bytes.Buffer
	if err := Run(t.Context(), cfg, &out); err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n") {
		if strings.ContainsFunc(line, func(r rune) bool { return !strconv.IsPrint(r) }) || len(line) > 300 {
			t.Errorf("%q", line)
		}
	}
}

// deaf is an address that answers no connection: its queue of them is full, so the kernel drops what comes, as a firewall does.
func deaf(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
	for range 8 {
		conn, err := net.DialTimeout("tcp", addr, 100*time.Millisecond)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { conn.Close() })
	}
	t.Fatal("a queue for no connection takes eight")
	return ""
}

func TestAnAddressWithoutAWayIsNotCalledSilent(t *testing.T) {
	err := explain("h:1", fmt.Errorf("zmtp h:1: connect: %w: %w", zmtp.ErrUnreachable, unix.EHOSTUNREACH))
	if e, ok := errors.AsType[*Explained](err); !ok || !strings.Contains(e.Hint, "no way to it") || !errors.Is(err, unix.EHOSTUNREACH) {
		t.Errorf("%v", err)
	}
}
