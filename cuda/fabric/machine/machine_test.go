package machine

import (
	"os"
	"path/filepath"
	"testing"
)

func TestEachDescriptionCanBeBuilt(t *testing.T) {
	names := Names()
	if len(names) < 4 {
		t.Fatalf("%q", names)
	}
	for _, name := range names {
		m, err := Load(name)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := m.Build(dir); err != nil {
			t.Fatal(err)
		}
		for _, g := range m.GPUs {
			link := filepath.Join(dir, "sys/bus/pci/devices", g.PCI)
			if real, err := filepath.EvalSymlinks(link); err != nil || filepath.Base(real) != g.PCI {
				t.Errorf("%s: GPU %s is %s, %v", name, g.PCI, real, err)
			}
		}
		for _, n := range m.NICs {
			if _, err := os.Stat(filepath.Join(dir, "sys/bus/pci/devices", n.PCI, "vendor")); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if m.Text == "" || len(m.Script()) < 1+len(m.GPUs) {
			t.Errorf("%s: %+v", name, m)
		}
	}
	if _, err := Load("no-such-machine"); err == nil {
		t.Error("a machine that nobody has described")
	}
}
