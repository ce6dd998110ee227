package fabric

import (
	"testing"

	"github.com/kvlease/kvlease/cuda/fabric/machine"
)

// lab is a machine in a folder, whose GPUs are all well.
type lab struct {
	t   *testing.T
	cfg Config
}

func newLab(t *testing.T, name string) *lab {
	t.Helper()
	m, err := machine.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return labOf(t, m)
}

func labOf(t *testing.T, m *machine.Machine) *lab {
	t.Helper()
	dir := t.TempDir()
	if err := m.Build(dir); err != nil {
		t.Fatal(err)
	}
	return &lab{t: t, cfg: Config{Sys: dir + "/sys", Proc: dir + "/proc", Dev: dir + "/dev", Release: "6.8.0", Ask: func() (a Answer, err error) {
		for i, g := range m.GPUs {
			a.GPUs = append(a.GPUs, GPU{Index: i, PCI: g.PCI})
		}
		return a, nil
	}}}
}

// look expects GPUs to be found.
func (l *lab) look() *Host {
	l.t.Helper()
	h := Look(l.cfg)
	if h.GPUErr != nil {
		l.t.Fatal(h.GPUErr)
	}
	return h
}

// unset is the environment of a user who has set nothing.
func unset(string) (string, bool) { return "", false }
