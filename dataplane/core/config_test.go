package core

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/heartbeat"
)

func TestDefaultsAreThoseOfTheDesign(t *testing.T) {
	c, err := ParseConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Duration != 30*time.Second || c.Interval() != 5*time.Second || c.Extension() != 20*time.Second {
		t.Errorf("duration, interval, extension = %v, %v, %v", c.Duration, c.Interval(), c.Extension())
	}
	for name, pair := range map[string][2]time.Duration{
		"settle":                {c.Settle, 50 * time.Millisecond},
		"stall_gap":             {c.StallGap, 5 * time.Second},
		"stock_linger":          {c.StockLinger, 20 * time.Second},
		"handover_max":          {c.HandoverMax, 10 * time.Second},
		"read_timeout":          {c.ReadTimeout, 120 * time.Second},
		"quarantine_error_wait": {c.QuarantineWait, 30 * time.Second},
		"expect_max":            {c.ExpectMax, 300 * time.Second},
		"stall_cover":           {c.StallCover, 30 * time.Second},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s = %v, want %v", name, pair[0], pair[1])
		}
	}
}

func TestEachWrongKeyOrValueIsRefusedByName(t *testing.T) {
	for _, tc := range []struct{ name, config, want string }{
		{"no object", `[]`, "needs a JSON object"},
		{"no JSON", `{"drive"`, "not JSON"},
		{"something behind it", `{} {}`, "something follows"},
		{"a key twice", `{"drive":"inline","drive":"pump"}`, `"drive" is given twice`},
		{"an unknown key", `{"kv_lease_durations":30}`, `did you mean "kv_lease_duration"?`},
		{"an unknown key like no other", `{"zzzzzzzzzzzz":30}`, `unknown key "zzzzzzzzzzzz"`},
		{"the old time-out", `{"VLLM_NIXL_ABORT_REQUEST_TIMEOUT":480}`, "set kv_lease_duration"},
		{"text for seconds", `{"kv_lease_duration":"30"}`, `"kv_lease_duration" needs a number of seconds, got "30"`},
		{"negative seconds", `{"settle":-1}`, `"settle" is -1 s`},
		{"a fraction for a count", `{"requests_max":1.5}`, `"requests_max" needs a whole number`},
		{"too many", `{"requests_max":99999999}`, `"requests_max" is 99999999, allowed: 1 to 4194304`},
		{"none", `{"producers_max":0}`, `"producers_max" is 0`},
		{"another drive", `{"drive":"push"}`, `"drive" is "push", allowed: inline, pump`},
		{"another transport", `{"transport":"mooncake"}`, `allowed: nixl, loopback`},
		{"a number for a flag", `{"stock_peers":1}`, `"stock_peers" needs true or false`},
		{"null", `{"stock_peers":null}`, `"stock_peers" is null`},
		{"an unknown role", `{"role":"prefill"}`, `"role" is "prefill"`},
		{"a short lease without leave", `{"kv_lease_duration":3}`, "needs allow_short_leases and step_max"},
		{"a short lease without step_max", `{"kv_lease_duration":1.2,"allow_short_leases":true}`, "needs allow_short_leases and step_max"},
		{"two lost beats are fatal", `{"kv_lease_duration":6,"step_max":2.1}`, "two lost beats must be survivable"},
		{"a tick that is longer than the promised pass", `{"idle_tick":1.5}`, `"idle_tick" and "step_max"`},
		{"a pump that passes as promised and is not beaten for", `{"drive":"pump","stall_cover":0.5}`, `"stall_cover" and "step_max"`},
		{"a hand-over as long as the lease", `{"handover_max":30}`, `"handover_max" and "kv_lease_duration"`},
		{"more engines than nixl keeps agents", `{"engines_max":7999}`, "at most 7998 engines"},
		{"an id that no agent's name has room for", `{"engine_id":"` + strings.Repeat("P", 236) + `"}`, `"engine_id" is 236 bytes long, allowed: at most 235`},
		{"an id with a byte that ends an agent's name", `{"engine_id":"P\u0000"}`, `"engine_id" is 2 bytes long`},
		{"an id that is no UTF-8", "{\"engine_id\":\"P\xff\"}", `"engine_id" is not UTF-8`},
		{"an id with half a surrogate", `{"engine_id":"P\ud800"}`, `"engine_id" is not UTF-8`},
		{"heads that the ranks cannot share", `{"role":"rank","engine_id":"P","tp_size":4,"num_kv_heads":6}`, `"num_kv_heads" and "tp_size": 6 heads and 4 ranks`},
		{"fewer heads than ranks, and no divisor", `{"role":"host","engine_id":"P","tp_size":8,"num_kv_heads":3}`, `"num_kv_heads" and "tp_size"`},
		{"no room for two heartbeats", `{"unheard_bytes_max":32768}`, `"unheard_bytes_max" and "batch_bytes_max"`},
		{"messages of peers that are never read", `{"parse_max":65536}`, `"parse_max" is 65536, allowed: 1048576 to`},
		{"a step as long as the extension", `{"kv_lease_duration":1.2,"allow_short_leases":true,"step_max":0.4}`, "two lost beats must be survivable"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := ParseConfig([]byte(tc.config))
			if err == nil || !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), tc.want) { // shows C74.1, S17.1
				t.Errorf("ParseConfig(%s) = %v, %v; want an ErrConfig with %q", tc.config, c, err, tc.want)
			}
		})
	}
}

// Each key's own default, said aloud, must be accepted and change nothing: so the table's setters and getters agree.
func TestEachKeyAcceptsItsOwnDefault(t *testing.T) {
	base, err := ParseConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		value, err := json.Marshal(k.get(base))
		if err != nil {
			t.Fatal(err)
		}
		said, err := ParseConfig([]byte(`{"` + k.name + `":` + string(value) + `}`))
		if err != nil {
			t.Errorf("key %q with its default %s: %v", k.name, value, err)
			continue
		}
		if string(said.JSON()) != string(base.JSON()) {
			t.Errorf("key %q with its default %s changed the configuration:\n%s\n%s", k.name, value, base.JSON(), said.JSON())
		}
		if k.doc == "" {
			t.Errorf("key %q has no words for the README", k.name)
		}
	}
}

func TestEachKeyAcceptsWhatFollowsFromTheShortestAndTheLongestLease(t *testing.T) {
	for _, lease := range []string{`"kv_lease_duration":0.01,"allow_short_leases":true,"step_max":0.001`, `"kv_lease_duration":86400`} {
		base, err := ParseConfig([]byte("{" + lease + "}"))
		if err != nil {
			t.Fatal(err)
		}
		if base.IdleTick > base.StepMax {
			t.Errorf("%s: a loop that sleeps for %v breaks the promise of %v", lease, base.IdleTick, base.StepMax)
		}
		for _, k := range keys {
			if strings.Contains(lease, k.name) {
				continue
			}
			value, err := json.Marshal(k.get(base))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := ParseConfig([]byte("{" + lease + `,"` + k.name + `":` + string(value) + "}")); err != nil {
				t.Errorf("%s: %v", lease, err)
			}
		}
	}
}

func TestShortLeasesThatWereAskedForAreTaken(t *testing.T) {
	c, err := ParseConfig([]byte(`{"kv_lease_duration":1.2,"allow_short_leases":true,"step_max":0.05}`))
	if err != nil {
		t.Fatal(err)
	}
	if c.Interval() != 200*time.Millisecond || c.Extension() != 800*time.Millisecond {
		t.Errorf("interval %v, extension %v", c.Interval(), c.Extension())
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"kv_lease_duration":30,"drive":"pump"}`))
	f.Add([]byte(`{"a":{"b":[1,2,{"c":null}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseConfig(data)
		if err == nil && 2*c.Interval()+c.StepMax >= c.Extension() {
			t.Errorf("accepted a configuration that loses leases: %s", c.JSON())
		}
	})
}

func TestAZeroThatWasAskedForIsNotTheDefault(t *testing.T) {
	c, err := ParseConfig([]byte(`{"fence_spin":0,"settle":0,"handover_max":0,"stock_linger":0}`))
	if err != nil {
		t.Fatal(err)
	}
	r, l, h := c.readConfig(), c.leaseConfig(1), c.heartbeatConfig(heartbeat.Identity{Epoch: 1})
	for name, got := range map[string]time.Duration{
		"fence_spin": r.FenceSpin, "settle": l.Settle, "handover_max": h.HandoverMax,
	} {
		if got != 1 { // 0 is what the parts take for their default
			t.Errorf("%s is handed on as %v", name, got)
		}
	}
	if l.StockLinger != 0 {
		t.Errorf("stock_linger is handed on as %v", l.StockLinger)
	}
}

// The pump's posts hold up nobody's pass, so its lists go out whole.
func TestOnlyInlineStepsHaveABudgetForPosts(t *testing.T) {
	for text, want := range map[string]time.Duration{
		`{}`:                                   time.Millisecond,
		`{"post_budget":0.002}`:                2 * time.Millisecond,
		`{"post_budget":0}`:                    0,
		`{"drive":"pump"}`:                     0,
		`{"drive":"pump","post_budget":0.002}`: 0,
	} {
		c, err := ParseConfig([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.readConfig().PostBudget; got != want {
			t.Errorf("%s: a step posts for %v, want %v", text, got, want)
		}
	}
}
