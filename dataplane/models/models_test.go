package models

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/internal/weakmem/edges"
)

var withSpin = flag.Bool("spin", false, "run the models that take less than a few seconds")

// Defines that do not break a model.
var parameters = []string{"USES", "BASE", "DIGIT", "LOSSES", "BEATS", "READS", "BLOCKS", "STOCK", "LIVENESS"}

func modelFiles(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("*.pml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no models: %v", err)
	}
	texts := map[string]string{}
	for _, p := range paths {
		text, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		texts[p] = string(text)
	}
	return texts
}

func TestEachVariantOfAModelIsRunAndNothingElseIs(t *testing.T) {
	asked := regexp.MustCompile(`(?m)^#(?:ifn?def (\w+)|.*defined\((\w+)\).*?(?:defined\((\w+)\))?)`)
	inText := map[string]bool{}
	for model, text := range modelFiles(t) {
		for _, m := range asked.FindAllStringSubmatch(text, -1) {
			for _, name := range m[1:] {
				if name != "" && !slices.Contains(parameters, name) {
					inText[model+" "+name] = true
				}
			}
		}
	}
	run, holds, ideas := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, i := range Ideas {
		ideas[i.Model] = true
	}
	for _, r := range Runs {
		if r.Variant == "" {
			holds[r.Model] = true
			continue
		}
		run[r.Model+" "+r.Variant] = true
		if r.Violates == "" || r.Rule == "" {
			t.Errorf("%s %s is not said to violate anything", r.Model, r.Variant)
		}
		if !inText[r.Model+" "+r.Variant] {
			t.Errorf("%s has no variant %s", r.Model, r.Variant)
		}
	}
	for v := range inText {
		if !run[v] {
			t.Errorf("%s is never run", v)
		}
	}
	for model := range modelFiles(t) {
		if !holds[model] || !ideas[model] {
			t.Errorf("%s is not run as it is (%v), or has no idea (%v)", model, holds[model], ideas[model])
		}
	}
}

func TestThePageOfTheModelsHasARowOfEachRunAndEachScene(t *testing.T) {
	page, err := os.ReadFile("../../docs/models.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range Runs {
		if row := "| " + r.Name() + " | " + r.What + " | "; !strings.Contains(string(page), row) {
			t.Errorf("no row %q: make models writes it", row)
		}
	}
	for _, s := range edges.Scenes() {
		if !strings.Contains(strings.ToLower(string(page)), "**"+strings.ToLower(s.Name)+"**: ") {
			t.Errorf("no scene %q: make models writes it", s.Name)
		}
	}
}

func TestQuickModelsComeOutAsExpected(t *testing.T) {
	if !*withSpin {
		t.Skip("-spin runs them")
	}
	for _, r := range Runs {
		if r.Model != "quarantine.pml" && r.Model != "lease.pml" {
			continue
		}
		t.Run(r.Model+" "+r.Name(), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			o, err := r.Check(ctx, ".")
			if err != nil {
				t.Fatal(err)
			}
			if !r.OK(o) {
				t.Errorf("found %q, expected %q", o.Found, r.Violates)
			}
		})
	}
}
