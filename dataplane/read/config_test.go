package read

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDefaultsOfAMachineAreThoseOfItsConfig(t *testing.T) {
	want := Config{
		ReadsMax: 1024, SourcesMax: 16, PartsMax: 16, RunsMax: 524288, NotifMax: 1280, PeersMax: 4096, RowsMax: 4096, RowsPeer: 256,
		DescsStepMax: 4096, RowsStepMax: 256, PostsStepMax: 256, EndsStepMax: 1024,
		ReadTimeout: 120 * time.Second, RowTimeout: 120 * time.Second, QuarantineErrorWait: 30 * time.Second,
		FenceSpin: 300 * time.Microsecond, FenceSpinFast: 50 * time.Microsecond,
	}
	if diff := cmp.Diff(want, Config{}.withDefaults()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(7*time.Second, Config{ReadTimeout: 7 * time.Second}.withDefaults().RowTimeout); diff != "" {
		t.Errorf("time-out of rows (-want +got):\n%s", diff)
	}
}

func TestEachBoundOfAMachineIsHeldAgainstItsLimits(t *testing.T) {
	most := map[string]int64{"ReadsMax": 1 << 20, "SourcesMax": 64, "PartsMax": 1 << 10, "RunsMax": 1 << 30, "NotifMax": 1 << 20}
	fields := reflect.TypeFor[Config]()
	for i := range fields.NumField() {
		name := fields.Field(i).Name
		if name == "Sites" {
			continue // no bound
		}
		with := func(v int64) error {
			cfg := Config{}.withDefaults()
			reflect.ValueOf(&cfg).Elem().Field(i).SetInt(v)
			return cfg.check()
		}
		least, limit := int64(1), int64(1<<24)
		if most[name] != 0 {
			limit = most[name]
		}
		if fields.Field(i).Type == reflect.TypeFor[time.Duration]() {
			least, limit = 0, 1<<62
		}
		for _, v := range []int64{least, limit} {
			if err := with(v); err != nil {
				t.Errorf("%s = %d: %v", name, v, err)
			}
		}
		for _, v := range []int64{least - 1, limit + 1} {
			if err := with(v); !errors.Is(err, ErrConfig) && v != 1<<62+1 {
				t.Errorf("%s = %d: %v, want %v", name, v, err, ErrConfig)
			}
		}
	}
}
