package core

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// One rank of D takes its heads from four of P. An engine of more ranks than a read has room for is refused when it is loaded, not
// with each read.
func TestAnEngineOfMoreRanksThanAReadTakesIsRefused(t *testing.T) {
	f := newFleet(t, stream.KindProcess)
	p := f.team("P", 4, 1)
	f.config = strings.Replace(teamConfig, "{", `{"sources_max":3,`, 1)
	d, two := f.team("D", 1, 1), f.team("D2", 2, 1) // two takes from two each
	e, err := d.core.AddEngine(heartbeat.EngineDesc{ID: "P", TP: 4, PP: 1})
	if err != nil {
		t.Fatal(err)
	}
	for r := range uint32(4) {
		m, err := p.core.OwnHandshake(r)
		if err != nil {
			t.Fatal(err)
		}
		err = d.core.Handshake(e, r, m)
		if r < 3 && err != nil {
			t.Fatal(err)
		}
		if r == 3 && (!errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "sources_max")) {
			t.Errorf("the fourth map: %v", err)
		}
	}
	f.turns(50)
	if d.connected(e) {
		t.Error("connected to an engine that cannot be read from")
	}
	f.exchange(p, two, f.connect(two, p), 7)

	f.config = strings.Replace(teamConfig, "{", `{"sources_max":1,`, 1)
	host := f.team("D3", 2, 1)
	e = f.name(host, p)
	f.until("both ranks have counted it", func() bool {
		return host.ranks[0].core.stat("maps_refused") > 0 && host.ranks[1].core.stat("maps_refused") > 0
	})
	wantLine(t, host.ranks[0].core, log.MapRefused, "")
	if host.connected(e) || kinds(host.evs, record.EvEngineUp) != 0 {
		t.Error("connected to an engine that cannot be read from")
	}
}
