package faults

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzRegistryText: whatever text is called a registry, it is refused, or each of its lines says something under a rule of the list.
func FuzzRegistryText(f *testing.F) {
	f.Add([]byte("rules: [{name: L1, says: x, where: a.md}]\ncases: [{id: C01, title: t, kind: k, rule: L1, right: [one, {says: two, not_applicable: why}]}]\n"))
	f.Add([]byte("cases: [{id: C1, title: t, kind: k, not_applicable: why}]\n"))
	f.Add([]byte("cases: &a [*a]\n"))
	if text, err := os.ReadFile(filepath.Join(root, RegistryFile)); err == nil {
		f.Add(text[:min(len(text), 2000)])
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := Parse(text)
		if err != nil {
			return
		}
		rules := map[string]bool{}
		for _, rule := range r.Rules {
			rules[rule.Name] = true
		}
		for _, c := range r.Cases {
			for i, right := range c.Right {
				if right.Says == "" || right.NA == "" && !rules[right.Rule] {
					t.Errorf("%s: %+v", line(&c, i), right)
				}
			}
		}
		r.Check(nil)
		WriteDoc(r, nil)
	})
}
