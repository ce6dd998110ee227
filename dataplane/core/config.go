package core

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"sort"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// ErrConfig is wrapped by every error about a key or a value of the configuration.
var ErrConfig = errors.New("configuration")

// Config is what kvl_open understands, all defaults filled in. The keys table below names each field's key.
type Config struct {
	EngineID, Role, Transport, Drive string
	SideChannelHost                  string
	SideChannelPort                  int
	SideChannelListen                bool
	CompatHash                       string
	EnforceCompat                    bool
	TPSize, TPRank, PPSize, PPRank   int
	KVHeads                          int
	Carrier, CarrierPath             string
	DeathWire                        bool
	DeathWiresMax                    int
	WireGrace                        time.Duration

	Duration         time.Duration // lease duration L
	AllowShortLeases bool
	StepMax          time.Duration
	ExpectMax        time.Duration
	Settle           time.Duration
	StallGap         time.Duration
	StockLinger      time.Duration
	HandoverMax      time.Duration
	ReadTimeout      time.Duration
	QuarantineWait   time.Duration
	HealWait         time.Duration
	BlocksTTL        time.Duration
	StallCover       time.Duration
	FenceSpin        time.Duration
	PostBudget       time.Duration
	IdleTick         time.Duration
	StockPeers       bool
	AllPeersCheck    bool

	RequestsMax, TrackedMax, ReadsMax, ReadRunsMax, EnginesMax, ProducersMax int
	SourcesMax                                                               int
	RingBytes, EventsMax, LongIDsMax                                         int
	BatchBytesMax, UnheardBytesMax, ParseMax                                 int
	NotifsStepMax, SweepMax, DescsStepMax, RowsStepMax                       int

	NixlPath string

	TransportSettings string
	// Settings are no key: what agents are opened with, as Devices have advised. OpenTransport hands them on.
	Settings []transport.Setting

	Threads       int
	CPUs          string
	PumpPriority  string
	CoreMemoryMax int
	TraceSample   int
	StatsPage     string
	Log, LogLevel string
	SelfRead      string

	BlockSize, DeviceID     int
	KVCacheLayout, AttnName string

	stepMaxSet bool
}

// Interval is the time between two heartbeats of a request: L / 6.
func (c *Config) Interval() time.Duration { return c.Duration / 6 }

// Extension is what one heartbeat buys: L x 2/3.
func (c *Config) Extension() time.Duration { return c.Duration * 2 / 3 }

// A key is one entry of the configuration.
type key struct {
	name string
	doc  string
	set  func(c *Config, raw json.RawMessage) error
	get  func(c *Config) any
}

func text(f func(*Config) *string, allowed ...string) (func(*Config, json.RawMessage) error, func(*Config) any) {
	set := func(c *Config, raw json.RawMessage) error {
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return fmt.Errorf("needs a string, got %s", short(raw))
		}
		if strings.ContainsRune(s, utf8.RuneError) { // the decoder mends without a word, and two engines could have one id
			return fmt.Errorf("is not UTF-8: %q", s[:min(len(s), 40)])
		}
		if len(s) > 4096 {
			return fmt.Errorf("is %d bytes long, at most 4096", len(s))
		}
		if len(allowed) > 0 {
			for _, a := range allowed {
				if s == a {
					*f(c) = s
					return nil
				}
			}
			return fmt.Errorf("is %q, allowed: %s", s, strings.Join(allowed, ", "))
		}
		*f(c) = s
		return nil
	}
	return set, func(c *Config) any { return *f(c) }
}

func seconds(f func(*Config) *time.Duration, least, most time.Duration) (func(*Config, json.RawMessage) error, func(*Config) any) {
	set := func(c *Config, raw json.RawMessage) error {
		var s float64
		if err := json.Unmarshal(raw, &s); err != nil {
			return fmt.Errorf("needs a number of seconds, got %s", short(raw))
		}
		if math.IsNaN(s) || s < least.Seconds() || s > most.Seconds() {
			return fmt.Errorf("is %v s, allowed: %v to %v s", s, least.Seconds(), most.Seconds())
		}
		*f(c) = time.Duration(math.Round(s * 1e9))
		return nil
	}
	return set, func(c *Config) any { return f(c).Seconds() }
}

func count(f func(*Config) *int, least, most int) (func(*Config, json.RawMessage) error, func(*Config) any) {
	set := func(c *Config, raw json.RawMessage) error {
		var n int
		if err := json.Unmarshal(raw, &n); err != nil {
			return fmt.Errorf("needs a whole number, got %s", short(raw))
		}
		if n < least || n > most {
			return fmt.Errorf("is %d, allowed: %d to %d", n, least, most)
		}
		*f(c) = n
		return nil
	}
	return set, func(c *Config) any { return *f(c) }
}

func flag(f func(*Config) *bool) (func(*Config, json.RawMessage) error, func(*Config) any) {
	set := func(c *Config, raw json.RawMessage) error {
		var b bool
		if err := json.Unmarshal(raw, &b); err != nil {
			return fmt.Errorf("needs true or false, got %s", short(raw))
		}
		*f(c) = b
		return nil
	}
	return set, func(c *Config) any { return *f(c) }
}

func short(raw json.RawMessage) string {
	s := string(bytes.TrimSpace(raw))
	if len(s) > 40 {
		s = s[:40] + "..."
	}
	return s
}

// renamed are keys of earlier designs and of vLLM's environment, with what to say instead.
var renamed = map[string]string{
	"VLLM_NIXL_ABORT_REQUEST_TIMEOUT": "the single time-out is gone: set kv_lease_duration",
	"abort_request_timeout":           "the single time-out is gone: set kv_lease_duration",
	"lease_duration":                  "write kv_lease_duration",
	"heartbeat_interval":              "it follows from kv_lease_duration (a sixth of it)",
	"lease_extension":                 "it follows from kv_lease_duration (two thirds of it)",
}

// ParseConfig reads a JSON object of keys. An error names the key, what is wrong and what is allowed.
func ParseConfig(data []byte) (*Config, error) {
	c := defaults()
	given, err := object(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", ErrConfig, err)
	}
	names := make([]string, 0, len(given))
	for name := range given {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		k := findKey(name)
		if k == nil {
			if hint, ok := renamed[name]; ok {
				return nil, fmt.Errorf("%w: key %q: %s", ErrConfig, name, hint)
			}
			return nil, fmt.Errorf("%w: unknown key %q%s", ErrConfig, name, nearest(name))
		}
		if string(given[name]) == "null" { // the decoder would take it for "leave as it is"
			return nil, fmt.Errorf("%w: key %q is null: leave it out for its default", ErrConfig, name)
		}
		if err := k.set(c, given[name]); err != nil {
			return nil, fmt.Errorf("%w: key %q %v", ErrConfig, name, err)
		}
	}
	_, c.stepMaxSet = given["step_max"]
	c.derive(given)
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrConfig, err)
	}
	return c, nil
}

// object splits a JSON object into its keys; a key said twice is an error, since one of the two would be lost.
func object(data []byte) (map[string]json.RawMessage, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, nil
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	tok, err := dec.Token()
	if err != nil {
		return nil, fmt.Errorf("not JSON: %v", err)
	}
	if tok != json.Delim('{') {
		return nil, errors.New("needs a JSON object")
	}
	given := map[string]json.RawMessage{}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("not JSON: %v", err)
		}
		name := tok.(string)
		if _, twice := given[name]; twice {
			return nil, fmt.Errorf("key %q is given twice", name)
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return nil, fmt.Errorf("key %q: not JSON: %v", name, err)
		}
		given[name] = raw
	}
	if _, err := dec.Token(); err != nil {
		return nil, fmt.Errorf("not JSON: %v", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("something follows the JSON object")
	}
	return given, nil
}

func findKey(name string) *key {
	for i := range keys {
		if keys[i].name == name {
			return &keys[i]
		}
	}
	return nil
}

// nearest suggests the known key with the smallest edit distance, if it is close.
func nearest(name string) string {
	best, at := 4, ""
	for _, k := range keys {
		if d := distance(name, k.name); d < best {
			best, at = d, k.name
		}
	}
	if at == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", at)
}

func distance(a, b string) int {
	if len(a) > 64 {
		return 64
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diag := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diag, row[j] = row[j], min(row[j]+1, row[j-1]+1, diag+cost)
		}
	}
	return row[len(b)]
}

// JSON is the configuration in force.
func (c *Config) JSON() []byte {
	all := make(map[string]any, len(keys))
	for _, k := range keys {
		all[k.name] = k.get(c)
	}
	all["interval"] = c.Interval().Seconds()
	all["extension"] = c.Extension().Seconds()
	out, err := json.Marshal(all)
	if err != nil { // only strings, numbers and booleans are in it
		panic(err)
	}
	return out
}

// KeyDocs lists every key with its default and meaning, for the README's table.
func KeyDocs() [][3]string {
	c := defaults()
	c.derive(nil)
	docs := make([][3]string, 0, len(keys))
	for _, k := range keys {
		def, _ := json.Marshal(k.get(c))
		docs = append(docs, [3]string{k.name, string(def), k.doc})
	}
	return docs
}
