// Package jsonl is how an engine stand-in is driven: commands as JSON lines on its stdin, reports as JSON lines on its
// stdout. The C examples (docs/examples) speak the same; a person can type it.
//
// Every command may carry "n"; its answer is the one report with the same "re". Reports with "ev" are events.
// Times ("t_ns") are CLOCK_BOOTTIME in ns, which all processes of a machine share.
package jsonl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"sort"
	"strings"
)

// Bounds of a line and of what is in it.
const (
	LineBytesMax     = 262144
	IDBytesMax       = 127
	BlocksMax        = 256 // of one request
	HandshakeHexMax  = 65536
	ParamsBytesMax   = 65536
	blockIDMax       = 65536 - 1
	ranksMax         = 64
	reportBytesMax   = 1 << 20 // a report may carry a handshake or counters
	errorExcerptSize = 60
)

// Command is one line on stdin.
type Command struct {
	Cmd       string          `json:"cmd"`
	N         uint64          `json:"n,omitempty"`
	ID        string          `json:"id,omitempty"`
	Blocks    []uint32        `json:"blocks,omitempty"`
	Tokens    uint32          `json:"tokens,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	EngineID  string          `json:"engine_id,omitempty"`
	Handshake string          `json:"handshake,omitempty"` // hex
	Rank      uint32          `json:"rank,omitempty"`
	Host      string          `json:"host,omitempty"` // of the side channel
	Port      uint32          `json:"port,omitempty"`
	TP        uint32          `json:"tp,omitempty"`
	FixedS    float64         `json:"fixed_s,omitempty"` // grant: a fixed life in s
	Wanted    uint32          `json:"wanted,omitempty"`  // pressure: blocks
}

// Report is one line on stdout: an answer (Re) or an event (Ev).
type Report struct {
	Ev     string `json:"ev,omitempty"`
	Re     uint64 `json:"re,omitempty"`
	OK     *bool  `json:"ok,omitempty"`
	Status string `json:"status,omitempty"`
	Error  string `json:"error,omitempty"`

	ID        string          `json:"id,omitempty"`
	Reason    string          `json:"reason,omitempty"`
	Blocks    uint32          `json:"blocks,omitempty"`
	Local     []uint32        `json:"local,omitempty"`   // blocks that a read fills
	Reasons   []string        `json:"reasons,omitempty"` // of each rank, when there are several
	Rank      uint32          `json:"rank,omitempty"`
	Handshake string          `json:"handshake,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	Stats     json.RawMessage `json:"stats,omitempty"`

	HeldMS     float64 `json:"held_ms,omitempty"`
	LeftMS     float64 `json:"left_ms,omitempty"`
	TookMS     float64 `json:"took_ms,omitempty"`
	LateMS     float64 `json:"late_ms,omitempty"`
	BadBytes   *uint64 `json:"bad_bytes,omitempty"`
	Bytes      uint64  `json:"bytes,omitempty"`
	Landed     *uint64 `json:"landed_bytes,omitempty"`
	BlocksHeld *bool   `json:"blocks_held,omitempty"`
	HandedOut  *uint64 `json:"handed_out,omitempty"`
	Batches    uint64  `json:"batches,omitempty"`
	Beats      uint64  `json:"beats,omitempty"`

	Role       string `json:"role,omitempty"`
	Context    string `json:"context,omitempty"`
	Port       uint32 `json:"port,omitempty"` // of the side channel
	EngineID   string `json:"engine_id,omitempty"`
	Program    string `json:"program,omitempty"`
	Version    string `json:"version,omitempty"`
	Drive      string `json:"drive,omitempty"`
	PID        int    `json:"pid,omitempty"`
	BlockBytes uint64 `json:"block_bytes,omitempty"`
	Metrics    string `json:"metrics,omitempty"` // where they are served

	TimeNS uint64 `json:"t_ns"`
}

// needs says which keys a command takes beside "cmd" and "n"; those with a question mark may be left out.
var needs = map[string][]string{
	"handshake":  {"rank?"},
	"expect":     {"id"},
	"grant":      {"id", "blocks", "tokens?", "fixed_s?"},
	"overwrite":  {"id", "blocks"},
	"revoke":     {"id"},
	"cancel":     {"id"},
	"pressure":   {"wanted"},
	"engine":     {"engine_id", "handshake?", "rank?", "host?", "port?", "tp?"},
	"forget":     {"engine_id"},
	"track":      {"id", "params"},
	"read":       {"id"},
	"reject":     {"params"},
	"untrack":    {"id"},
	"fill":       {"id", "blocks"},
	"clear":      {"blocks"},
	"check":      {"id", "blocks"},
	"register":   nil,
	"unregister": nil,
	"stats":      nil,
	"quit":       nil,
}

// Commands lists the known commands in order.
func Commands() []string {
	names := make([]string, 0, len(needs))
	for name := range needs {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// Usage lists some commands with the keys that they take, for a help text; keys in brackets may be left out.
func Usage(commands ...string) string {
	var list []string
	for _, name := range commands {
		words := []string{name}
		for _, key := range needs[name] {
			if key, optional := strings.CutSuffix(key, "?"); optional {
				words = append(words, "["+key+"]")
			} else {
				words = append(words, key)
			}
		}
		list = append(list, strings.Join(words, " "))
	}
	return strings.Join(list, ", ")
}

// ParseCommand reads one line. The error names what is wrong; the command carries N where it could be read, so that the
// answer finds its way.
func ParseCommand(line []byte) (Command, error) {
	if len(line) > LineBytesMax {
		return Command{}, fmt.Errorf("a command is %d bytes long, at most %d", len(line), LineBytesMax)
	}
	var given map[string]json.RawMessage
	dec := json.NewDecoder(bytes.NewReader(line))
	if err := dec.Decode(&given); err != nil {
		return Command{}, fmt.Errorf("not a command: one JSON object with the key \"cmd\" is needed: %v", err)
	}
	var c Command
	if raw, ok := given["n"]; ok {
		if err := json.Unmarshal(raw, &c.N); err != nil {
			return Command{}, fmt.Errorf("\"n\" needs a number from 0 on")
		}
	}
	if _, err := dec.Token(); err != io.EOF {
		return c, fmt.Errorf("something follows the command")
	}
	if err := json.Unmarshal(given["cmd"], &c.Cmd); err != nil || c.Cmd == "" {
		return c, fmt.Errorf("not a command: one JSON object with the key \"cmd\" is needed")
	}
	keys, ok := needs[c.Cmd]
	if !ok {
		return c, fmt.Errorf("unknown command %s; there are %s", excerpt(c.Cmd), strings.Join(Commands(), ", "))
	}
	delete(given, "cmd")
	delete(given, "n")
	for _, key := range keys {
		key, optional := strings.CutSuffix(key, "?")
		raw, ok := given[key]
		if !ok {
			if optional {
				continue
			}
			return c, fmt.Errorf("%s needs %q", c.Cmd, key)
		}
		if err := c.set(key, raw); err != nil {
			return c, err
		}
		delete(given, key)
	}
	for key := range given {
		return c, fmt.Errorf("%s takes no %q", c.Cmd, excerpt(key))
	}
	return c, nil
}

func (c *Command) set(key string, raw json.RawMessage) error {
	switch key {
	case "id":
		return textOf(raw, key, IDBytesMax, &c.ID)
	case "engine_id":
		return textOf(raw, key, IDBytesMax, &c.EngineID)
	case "handshake":
		return textOf(raw, key, HandshakeHexMax, &c.Handshake)
	case "host":
		return textOf(raw, key, IDBytesMax, &c.Host)
	case "tokens":
		return numberOf(raw, key, 1<<32-1, &c.Tokens)
	case "rank":
		return numberOf(raw, key, ranksMax-1, &c.Rank)
	case "port":
		return numberOf(raw, key, 65535, &c.Port)
	case "tp":
		return numberOf(raw, key, ranksMax, &c.TP)
	case "wanted":
		if err := numberOf(raw, key, 1<<32-1, &c.Wanted); err != nil || c.Wanted == 0 {
			return fmt.Errorf("\"wanted\" needs a number of blocks, from 1 on")
		}
	case "fixed_s":
		if err := json.Unmarshal(raw, &c.FixedS); err != nil || c.FixedS <= 0 || c.FixedS > 86400 {
			return fmt.Errorf("\"fixed_s\" needs a number of seconds, more than 0 and at most 86400")
		}
	case "params":
		if len(raw) > ParamsBytesMax || raw[0] != '{' {
			return fmt.Errorf("\"params\" needs an object of at most %d bytes, as grant has answered it", ParamsBytesMax)
		}
		c.Params = raw
	case "blocks":
		if err := json.Unmarshal(raw, &c.Blocks); err != nil || len(c.Blocks) < 1 || len(c.Blocks) > BlocksMax {
			c.Blocks = nil
			return fmt.Errorf("\"blocks\" needs 1 to %d block ids", BlocksMax)
		}
		for _, b := range c.Blocks {
			if b > blockIDMax {
				c.Blocks = nil
				return fmt.Errorf("\"blocks\": there is no block %d", b)
			}
		}
	}
	return nil
}

func numberOf(raw json.RawMessage, key string, most uint32, out *uint32) error {
	var v uint32
	if err := json.Unmarshal(raw, &v); err != nil || v > most {
		return fmt.Errorf("%q needs a number from 0 to %d", key, most)
	}
	*out = v
	return nil
}

func textOf(raw json.RawMessage, key string, most int, out *string) error {
	var s string
	if err := json.Unmarshal(raw, &s); err != nil || s == "" || len(s) > most {
		return fmt.Errorf("%q needs 1 to %d bytes of text", key, most)
	}
	*out = s
	return nil
}

func excerpt(s string) string {
	if len(s) > errorExcerptSize {
		return s[:errorExcerptSize] + "..."
	}
	return s
}

// ParseReport reads one line of an engine; unknown keys are allowed, since an engine may say more.
func ParseReport(line []byte) (Report, error) {
	var r Report
	if len(line) > reportBytesMax {
		return r, fmt.Errorf("a report is %d bytes long, at most %d", len(line), reportBytesMax)
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return Report{}, fmt.Errorf("not a report: %v", err)
	}
	return r, nil
}

// Append writes v as one line. Unlike json.Marshal it leaves <, > and & as they are: the C examples read no \u escapes.
func Append(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// Refused reports whether an answer says no.
func (r *Report) Refused() bool { return r.OK != nil && !*r.OK }
