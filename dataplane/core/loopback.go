package core

import (
	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// Loopback opens agents of one hub, each sized for whatever its configuration allows at once, up to 16,384 reads. A completion may
// ride on one read of each rank that a request reads from.
func Loopback(hub *loopback.Hub) OpenTransport {
	return func(cfg *Config, agent string) (transport.Transport, error) {
		const most = 1 << 14
		return hub.New(agent, loopback.Config{
			ReadsMax: most, AttachedMax: min(cfg.ReadsMax*topology.RanksMax, most), PeersMax: cfg.PeersMax(), NotifBytesMax: 2 * cfg.ParseMax,
		})
	}
}
