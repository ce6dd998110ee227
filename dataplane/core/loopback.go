package core

import (
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// Loopback opens agents of one hub, each sized for whatever its configuration allows at once.
func Loopback(hub *loopback.Hub) OpenTransport {
	return func(cfg *Config, agent string) (transport.Transport, error) {
		return hub.New(agent, loopback.Config{ReadsMax: 1 << 14, PeersMax: cfg.PeersMax(), NotifBytesMax: 2 * cfg.ParseMax})
	}
}
