package core

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// Setting is what the agent should be told for reads of device memory, and why.
type Setting struct {
	transport.Setting
	Reason string
	Kept   string // what the user has said in its place, which stays; empty: nothing
}

// Advisor is what Devices may know, too: which settings of the transport the places of devices in the machine ask for.
type Advisor interface {
	// Advise says them for regions of device memory. What cannot be found out is left to the transport.
	Advise(regions []Region) []Setting
}

// agentFor sees to it that regions, which have been checked, meet an agent that was opened with what their devices ask for. Under the lock.
func (c *Core) agentFor(regions []Region) error {
	changed := c.tell(c.advise(regions))
	switch {
	case c.gone && c.met:
		return c.wake()
	case c.gone:
		return c.reopen(true)
	case changed:
		return c.remake()
	}
	return nil
}

// advise asks which settings the device memory among regions wants. Nothing if it may not be asked, or if the driver says nothing: Hold says why.
func (c *Core) advise(regions []Region) []Setting {
	t, tellable := c.tr.(transport.Tellable)
	device := slices.DeleteFunc(slices.Clone(regions), func(r Region) bool { return r.Mem != transport.VRAM })
	if c.cfg.TransportSettings == "off" || c.openDevices == nil || !tellable || len(device) == 0 {
		return nil
	}
	devices, err := c.openDevices()
	if err != nil {
		return nil
	}
	a, ok := devices.(Advisor)
	if !ok {
		return nil
	}
	list := a.Advise(device)
	for i := range list {
		if s := &list[i]; s.Kept == "" && !t.Carries(s.Setting) {
			s.Kept = "nothing: the transport takes it from the environment only"
		}
	}
	return list
}

// valueSaid is how much of a setting's value a line has, so that its reason has room, too.
const valueSaid = 36

// tell has agents opened with what was advised from now on, and says so. Under the lock. changed: an agent that is open was opened with something else.
func (c *Core) tell(advice []Setting) (changed bool) {
	told := []transport.Setting(nil)
	for _, s := range advice {
		value := s.Value
		if len(value) > valueSaid {
			value = value[:valueSaid-3] + "..."
		}
		text := s.Name + " is " + value
		if s.Kept == "" {
			told = append(told, s.Setting)
		} else {
			text = s.Name + " stays " + s.Kept + ", and would be " + value
		}
		c.log.side().Put(log.TransportTold, c.clock(), log.Entry{Text: text + ": " + s.Reason})
	}
	changed = !slices.Equal(told, c.cfg.Settings)
	c.cfg.Settings = told
	return changed
}

// newAgent opens an agent under the name of an era, and says if it is of no use to peers on other machines: it looks for networks once.
func (c *Core) newAgent(epoch uint64) (transport.Transport, error) {
	tr, err := c.open(c.cfg, c.agentName(epoch))
	if l, ok := tr.(transport.Lonely); ok && err == nil {
		if down := l.Alone(); len(down) > 0 {
			c.log.side().Put(log.NetworkDown, c.clock(), log.Entry{Text: strings.Join(down, ", ")})
		}
	}
	return tr, err
}

// remake gives a context that has registered nothing another agent, which is opened with what tell has said: NIXL takes settings at that time only, and of
// which device the memory is shows when it is registered. The era stays, since nobody has read from the agent, and so does what is tracked: engines that
// it has loaded, as the ranks of a host do, are loaded anew. On an error of the next one there is no agent, and the next registration makes it. Under the
// lock.
func (c *Core) remake() error {
	if atomic.LoadUint32(&c.mem.Control.Poisoned) != 0 {
		return ErrPoisoned
	}
	loaded := c.tracker.Loaded()
	if err := c.dropAgent(); err != nil {
		return err
	}
	if loaded {
		if err := c.offStep(c.tracker.Part); err != nil {
			return err
		}
	}
	err := c.reopen(loaded)
	if err != nil && !loaded {
		_ = c.offStep(c.tracker.Part) // until there is an agent nobody can be loaded, which is nobody's fault
	}
	return err
}

// dropAgent destroys an agent that nobody has met. Under the lock.
func (c *Core) dropAgent() error {
	if err := c.closeAgent(); err != nil {
		return fmt.Errorf("%w: %w", ErrTransport, err)
	}
	c.gone = true
	c.agent.Transport = transport.Nobody{Of: c.tr.Name(), As: c.tr.Agent()}
	return nil
}

// reopen goes on with another agent in an era that nobody has met. asleep: the tracker has parted with the one before. Under the lock.
func (c *Core) reopen(asleep bool) error {
	if atomic.LoadUint32(&c.mem.Control.Poisoned) != 0 {
		return ErrPoisoned
	}
	tr, err := c.newAgent(c.nextEra().epoch)
	if err != nil {
		return err
	}
	c.tr, c.agent.Transport, c.gone = tr, tr, false
	if asleep {
		c.now = max(c.now, c.clock())
		c.tracker.Wake(c.mem.Epoch, c.now)
	}
	return nil
}
