package bpf

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/dataplane/trace"
)

func TestTheCompiledProgramIsOfTheSourceThatStandsHere(t *testing.T) {
	headers, err := filepath.Glob("*.h")
	if err != nil {
		t.Fatal(err)
	}
	var source []byte
	for _, name := range append([]string{"trace.c"}, headers...) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		source = append(source, text...)
	}
	noted, err := os.ReadFile("source.sha256")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(source)
	if got := hex.EncodeToString(sum[:]); got != strings.TrimSpace(string(noted)) {
		t.Errorf("trace.c or a header has changed since `make generate`: %s, noted is %s", got, noted)
	}
}

func TestTheProgramNumbersSitesAsThePlaneDoes(t *testing.T) {
	for site, number := range map[trace.Site]TraceSite{
		trace.HookSubmit: TraceSiteSITE_HOOK_SUBMIT, trace.HookDrained: TraceSiteSITE_HOOK_DRAINED,
		trace.StepBegin: TraceSiteSITE_STEP_BEGIN, trace.StepEnd: TraceSiteSITE_STEP_END,
		trace.BatchPosted: TraceSiteSITE_BATCH_POSTED, trace.NotificationSeen: TraceSiteSITE_NOTIFICATION_SEEN, trace.BatchExtended: TraceSiteSITE_BATCH_EXTENDED,
		trace.ReadPosted: TraceSiteSITE_READ_POSTED, trace.DataArrived: TraceSiteSITE_DATA_ARRIVED, trace.FenceChecked: TraceSiteSITE_FENCE_CHECKED,
		trace.ReadReported: TraceSiteSITE_READ_REPORTED, trace.StallGap: TraceSiteSITE_STALL_GAP,
	} {
		if uint32(site) != uint32(number) {
			t.Errorf("%v is %d in the plane and %d in the program", site, site, number)
		}
	}
}

// Some machines have no kernel with uprobe-multi: what the program asks for is looked at anywhere.
func TestTheProgramIsReadAndBounded(t *testing.T) {
	spec, err := LoadTrace()
	if err != nil {
		t.Fatal(err)
	}
	if len(spec.Programs) != 1 || spec.Programs[TraceProgFired] == nil {
		t.Errorf("programs: %v", spec.Programs)
	}
	for name, m := range spec.Maps {
		if m.MaxEntries == 0 || m.MaxEntries > 1<<18 {
			t.Errorf("map %s has %d entries", name, m.MaxEntries)
		}
	}
}
