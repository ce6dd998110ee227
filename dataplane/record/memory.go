package record

// Memory is one context: all that the host side and the core share. It is not Go memory where a transport reads it.
type Memory struct {
	Control   *Control
	Slots     []Slot
	Tracks    []Track
	Board     []byte   // header and rows, registered
	Landing   []byte   // rows of peers land here, registered
	Events    []byte   // completion ring
	Rings     [][]byte // submission rings, one per producer
	Overflows [][]byte // what must not be refused, one per producer

	Secret [2]uint64 // keys of the slots
	Epoch  uint64    // boot epoch, not 0
	Base   uint64    // fence word of use 0, below 2^62
}
