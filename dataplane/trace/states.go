package trace

// Verdicts of FenceChecked.
const (
	FenceEqual    = 0 // the row shows the use that the parameters named: the data of this source is accepted
	FenceStale    = 1 // it shows another one, or is closed
	FenceUnproven = 2 // it could not be read
)

// States of HandshakeState. An engine has one of each group: where asking it for its maps stands (the side channel), and, from 16
// on, where the connection to its ranks stands.
const (
	HandshakeQueued       = 0 // due, and waits for its turn
	HandshakeFetching     = 1
	HandshakeReady        = 2 // its maps have been fetched
	HandshakeFailed       = 3
	HandshakeIncompatible = 4

	Connection = 16 // what the states of a connection begin at: forgotten

	ConnectionIdle      = 17 // no maps yet
	ConnectionLoading   = 18
	ConnectionConnected = 19 // with all ranks that this one talks to
	ConnectionBroken    = 20
	ConnectionRemoving  = 21
)
