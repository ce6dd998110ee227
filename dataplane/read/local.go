package read

import "fmt"

// SetLocal says where the local blocks are, for a machine that was made before they were registered.
// It fails while a read is being built or is open.
func (m *Machine) SetLocal(local *Layout) error {
	if why := local.check(); why != "" {
		return fmt.Errorf("%w: local layout: %s", ErrConfig, why)
	}
	if m.freeJob.Used() != 0 {
		return fmt.Errorf("%w: local layout: %d reads are open", ErrConfig, m.freeJob.Used())
	}
	m.takeLocal(*local)
	return nil
}

// takeLocal sets the layout and the bound that each group's block ids must keep.
func (m *Machine) takeLocal(local Layout) {
	m.local = Layout{Regions: append([]Region(nil), local.Regions...)}
	m.localSum = m.local.sum()
	clear(m.localLimit[:])
	for i := range m.local.Regions {
		r := &m.local.Regions[i]
		for g := range m.localLimit {
			if (r.Group == -1 || int(r.Group) == g) && (m.localLimit[g] == 0 || r.Blocks < m.localLimit[g]) {
				m.localLimit[g] = r.Blocks
			}
		}
	}
}
