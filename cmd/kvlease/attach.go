package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/attach"
	"github.com/kvlease/kvlease/cnixl"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
	"github.com/kvlease/kvlease/dataplane/wire"
)

type attachCmd struct {
	Addr string `arg:"" help:"Side channel of the engine, HOST:PORT; for stock vLLM VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT." placeholder:"HOST:PORT"`

	EngineID string `help:"The engine that has to answer; any if empty."`
	Hash     string `help:"compatibility_hash that is expected; another one is noted." placeholder:"HEX"`
	Against  string `help:"Compare with what this engine publishes: could it read from the first one? A stock one counts as a single rank." placeholder:"HOST:PORT"`
	Tp       uint32 `help:"Ranks of a stage. A stock engine does not say, and its listener dies of a rank that it does not have; 1 if not given." placeholder:"N"`
	Pp       uint32 `help:"Stages, as --tp." placeholder:"N"`

	Params   string        `help:"A request, by its kv_transfer_params as the owner has answered them: a file, or - for stdin." placeholder:"FILE"`
	Request  string        `help:"A request, by the id that its owner gives it." placeholder:"ID"`
	Blocks   string        `help:"With --request: its blocks, as 0-3,7 with ; between groups." placeholder:"LIST"`
	For      time.Duration `help:"Beat for the request so long."`
	Interval time.Duration `help:"Time between heartbeats; a sixth of the lease's duration if not given, 5s for a stock engine." placeholder:"TIME"`
	Out      string        `help:"Read the request's blocks into this file, and an index into FILE.json; a pipe has none." placeholder:"FILE"`
	Complete bool          `help:"At the end tell the owner that the request has been read: it gives its blocks to others."`

	Watch       time.Duration `help:"Look again after this time, until interrupted." placeholder:"TIME"`
	JSON        bool          `help:"Print one JSON object; with --watch one a line."`
	Samples     int           `help:"How often the first rank is asked and each one is read from." default:"10"`
	Timeout     time.Duration `help:"For connecting, for each answer and for each small read." default:"5s"`
	ReadTimeout time.Duration `help:"For the blocks of a rank." default:"2m"`
	Transport   string        `help:"What reads: nixl, none (only the side channel is looked at), or loopback (this process only)." enum:"nixl,none,loopback" default:"nixl"`
	Nixl        string        `help:"libnixl_capi.so or a folder that holds it; searched for if empty." placeholder:"PATH"`
}

func (attachCmd) Help() string {
	return `What it does to the engine: it asks for handshakes, loads the ranks' agents and reads 8 bytes some times, and boards of ours. It tells the engine nothing, unless a request is given and --for or --complete:

  $ kvlease attach 127.0.0.1:5600
  $ kvlease attach 127.0.0.1:5600 --params answer.json --for 60s --out blocks.bin
  $ kvlease attach 127.0.0.1:5600 --request cmpl-1-0-8f3a91c2 --blocks 4-9 --out blocks.bin

--params takes the kv_transfer_params object or the response that has it. The bytes in --out stand rank by rank, region by region, in the order of the request's blocks; the index says where each part lies. With the parameters of an engine that speaks kvlease they are proven by its fence, or not written. Of a stock engine they are unproven: it may have given the blocks to another request before they were read.

With --for a request is kept by us beside its reader. If that gives it back without having read it, its blocks are freed when our heartbeats have run out. After --complete the owner takes the request as read, whatever its reader still does.`
}

func (c *attachCmd) check() error {
	if host, port, err := net.SplitHostPort(c.Addr); err != nil || host == "" || !isPort(port) {
		return fmt.Errorf("%q is no HOST:PORT", c.Addr)
	}
	if c.Against != "" {
		if host, port, err := net.SplitHostPort(c.Against); err != nil || host == "" || !isPort(port) {
			return fmt.Errorf("--against is %q, wanted: HOST:PORT", c.Against)
		}
	}
	switch {
	case c.Params != "" && (c.Request != "" || c.Blocks != ""):
		return errors.New("--params says the request and its blocks: leave --request and --blocks out")
	case c.Blocks != "" && c.Request == "":
		return errors.New("--blocks are those of a --request")
	case c.Params == "" && c.Request == "" && (c.For != 0 || c.Out != "" || c.Complete):
		return errors.New("--for, --out and --complete are about a request: give --params or --request")
	case c.Out != "" && c.Params == "" && c.Blocks == "":
		return errors.New("--out needs the request's blocks: give --params or --blocks")
	case len(c.Request) > wire.IDMax:
		return fmt.Errorf("--request has %d bytes, allowed: 1 to %d", len(c.Request), wire.IDMax)
	case c.Tp > wire.RanksMax || c.Pp > wire.RanksMax:
		return fmt.Errorf("--tp is %d and --pp is %d, allowed: at most %d ranks", c.Tp, c.Pp, wire.RanksMax)
	case c.Samples < 1 || c.Samples > 1000:
		return fmt.Errorf("--samples is %d, allowed: 1 to 1000", c.Samples)
	}
	for _, v := range []struct {
		name        string
		d           time.Duration
		least, most time.Duration
		off         bool // 0 is allowed, too
	}{
		{"--for", c.For, time.Millisecond, 24 * time.Hour, true},
		{"--interval", c.Interval, time.Millisecond, time.Hour, true},
		{"--watch", c.Watch, 10 * time.Millisecond, 24 * time.Hour, true},
		{"--timeout", c.Timeout, time.Millisecond, time.Minute, false},
		{"--read-timeout", c.ReadTimeout, time.Millisecond, time.Hour, false},
	} {
		if (v.d != 0 || !v.off) && (v.d < v.least || v.d > v.most) {
			return fmt.Errorf("%s is %v, allowed: %v to %v", v.name, v.d, v.least, v.most)
		}
	}
	return nil
}

// request is the one that the arguments name, nil if they name none.
func (c *attachCmd) request(stdin io.Reader) (*attach.Request, error) {
	switch {
	case c.Params != "":
		text, err := readBounded(c.Params, stdin)
		if err != nil {
			return nil, fmt.Errorf("--params: %w", err)
		}
		req, err := attach.ParseRequest(text)
		if err != nil {
			return nil, fmt.Errorf("--params: %w", err)
		}
		return req, nil
	case c.Request != "":
		req := &attach.Request{ID: c.Request}
		if c.Blocks == "" {
			return req, nil
		}
		var err error
		if req.Groups, err = attach.ParseBlocks(c.Blocks); err != nil {
			return nil, fmt.Errorf("--blocks: %w", err)
		}
		return req, nil
	}
	return nil, nil
}

// readBounded reads a file, or stdin for -; more than a response with parameters can have is refused.
func readBounded(name string, stdin io.Reader) ([]byte, error) {
	in := stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	const most = 2 * wire.ParamsMax
	text, err := io.ReadAll(io.LimitReader(in, most+1))
	if err == nil && len(text) > most {
		err = fmt.Errorf("more than %d bytes", most)
	}
	return text, err
}

func (c *attachCmd) Run(w *world) error {
	if err := c.check(); err != nil {
		return usageError{err}
	}
	req, err := c.request(w.stdin)
	if err != nil {
		return usageError{err}
	}
	cfg := attach.Config{
		Addr: c.Addr, EngineID: c.EngineID, Hash: c.Hash, Against: c.Against, TP: c.Tp, PP: c.Pp, Samples: c.Samples, Timeout: c.Timeout,
		Request: req, Beat: c.For, Interval: c.Interval, Out: c.Out, ReadTimeout: c.ReadTimeout, Complete: c.Complete, Watch: c.Watch, JSON: c.JSON,
	}
	if req != nil && req.Params != nil { // so the user has named its ranks
		cfg.TP, cfg.PP = max(c.Tp, req.Params.TPSize), max(c.Pp, req.Params.PPSize)
		if cfg.EngineID == "" {
			cfg.EngineID = req.Params.EngineID
		}
	}
	c.transport(&cfg)
	err = attach.Run(w.ctx, cfg, w.stdout)
	if errors.Is(err, context.Canceled) {
		return errors.New("interrupted")
	}
	return err
}

// transport says how an agent is made. Without NIXL an engine can still be looked at over its side channel.
func (c *attachCmd) transport(cfg *attach.Config) {
	switch c.Transport {
	case "none":
		cfg.Missing = "--transport none"
	case "loopback":
		cfg.Open = func(agent string) (transport.Transport, error) {
			return hub.New(agent, loopback.Config{ReadsMax: 1 << 10})
		}
	default:
		nixl := cnixl.Config{Path: c.Nixl, Folders: nixlFolders(), PeersMax: wire.RanksMax, ReadsMax: 1 << 10}
		if _, err := cnixl.Find(nixl); err != nil {
			cfg.Missing = err.Error()
			return
		}
		cfg.Open = func(agent string) (transport.Transport, error) {
			nixl.Agent = agent
			return cnixl.Open(nixl)
		}
	}
}
