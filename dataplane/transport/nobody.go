package transport

// Nobody is the transport of a context without registered memory: nothing arrives, nobody can be reached.
type Nobody struct{ Of, As string } // its name, and its agent's

var _ Transport = Nobody{}

func (n Nobody) Name() string                   { return n.Of }
func (n Nobody) Agent() string                  { return n.As }
func (Nobody) Register([]Region) error          { return ErrClosed }
func (Nobody) Unregister([]Region) error        { return ErrClosed }
func (Nobody) Metadata() ([]byte, error)        { return nil, ErrClosed }
func (Nobody) Load([]byte) (Peer, error)        { return 0, ErrClosed }
func (Nobody) Drop(Peer) error                  { return nil } // it went with the agent
func (Nobody) Abandon(Peer) error               { return nil }
func (Nobody) Send(Peer, []byte) error          { return ErrPeer }
func (Nobody) Poll(*Inbox) int                  { return 0 }
func (Nobody) Backlog() int                     { return 0 }
func (Nobody) Release(Xfer) error               { return nil }
func (Nobody) FastFence() bool                  { return false }
func (Nobody) Close() error                     { return nil }
func (Nobody) PostRead(*ReadSpec) (Xfer, error) { return 0, ErrPeer }

// PollReads has nothing to report: no agent goes while a read of it is in flight.
func (Nobody) PollReads(_ []Xfer, out []Status, _ int64) {
	for i := range out {
		out[i] = Pending
	}
}
