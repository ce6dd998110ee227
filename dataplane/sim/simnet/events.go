package simnet

const (
	evMessage uint8 = iota // a notification arrives
	evRead                 // a read goes on
	evConn                 // a connection that got nothing through is lost
)

// event is something that happens to a notification, a read or a connection. Its number in the heap, kept by its subject, says
// whether it still counts.
type event struct {
	index int32
	kind  uint8
}
