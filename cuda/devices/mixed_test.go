package devices

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// TestARegionBehindHostMemoryIsRefusedByItsOwnNumber: numbers are those of kvl_register's list, of which the driver is asked for a part.
func TestARegionBehindHostMemoryIsRefusedByItsOwnNumber(t *testing.T) {
	g := newGPUs(t)
	c := g.open("inline")
	cache := g.cache("device")
	host := cache[0]
	host.Mem, host.Name, host.Addr = transport.DRAM, "host.0", record.Addr(make([]byte, host.Bytes))
	second := cache[0]
	second.Name, second.Addr = "layer.1", second.Addr+8
	err := c.Register([]core.Region{host, second})
	if !errors.Is(err, core.ErrInvalid) || !strings.Contains(err.Error(), `region 1 ("layer.1"`) || !strings.Contains(err.Error(), "multiple of 16") {
		t.Errorf("%v, want the number of region 1", err)
	}
}
