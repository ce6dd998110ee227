// Package record is the memory that the C library and the core share, and the records of the submission stream.
// It mirrors cmd/libkvlease/src/layout.h; a test on each side holds the offsets together.
package record

// None ends a free list.
const None = 0xFFFFFFFF

// Handle names a slot and its use: (use + 1) << 32 | slot, so that 0 is none.
type Handle uint64

// NewHandle gives the handle of a slot's use.
func NewHandle(slot, use uint32) Handle { return Handle((uint64(use)+1)<<32 | uint64(slot)) }

// Slot is the index.
func (h Handle) Slot() uint32 { return uint32(h) }

// Use is how often the slot was used before; for leases it is g of the fence (docs/protocol.md).
func (h Handle) Use() uint32 { return uint32(h>>32) - 1 }

// Bits of a state word: use << 32 | bits.
const (
	Free     = 0 // in the free list, or never used
	Expected = 1 // leases: expect
	Granted  = 2 // leases: grant
	Ended    = 3 // leases: the core has ended it, the event is still to come
	Tracked  = 4 // tracks: track
	Reading  = 5 // tracks: read was called
	Lapsed   = 6 // leases: the core has forgotten an expectation, the event is still to come
	Mask     = 0xFF

	SaidCancel = 0x100 // the host has said cancel or untrack
	SaidRevoke = 0x200 // the host has said revoke
)

// State makes a state word.
func State(use uint32, bits uint32) uint64 { return uint64(use)<<32 | uint64(bits) }

// Slot is one lease slot, 128 bytes. The host sets Free -> Expected/Granted and the said bits; all else is the core's.
type Slot struct {
	State  uint64 // atomic
	Next   uint32
	Flags  uint32 // atomic: Unchecked, Unready
	User   uint64
	Blocks uint32
	IDLen  uint16
	Reason uint16
	ID     [96]byte
}

// Unchecked is set in Slot.Flags while a reader that does not check the fence may hold the parameters (L12).
const Unchecked = 1

// Unready is set in Slot.Flags by the host with a grant that has an event, and taken away by the core when that has fired: until then a device
// may be writing the blocks, and the parameters stay here.
const Unready = 2

// Track is one tracking slot, 16 bytes.
type Track struct {
	State    uint64 // atomic
	Next     uint32
	Producer uint32
}

// BoardHeader is the first 64 bytes of a board.
type BoardHeader struct {
	Version    uint32
	Flags      uint32 // atomic: BoardDraining, BoardClosed
	DurationNs uint64
	Base       uint64
	Epoch      uint64
	Zero       [4]uint64
}

// Board flags.
const (
	BoardVersion  = 1
	BoardDraining = 1
	BoardClosed   = 2
	BoardHeadLen  = 64
	RowLen        = 32
)

// Row is one slot's row on the board. w2 is Generation (low) and Beats (high).
type Row struct {
	Fence      uint64 // atomic: base + g while use g may be read; only ever raised
	DeadlineUs uint64 // atomic
	GenBeats   uint64 // atomic: beats << 32 | generation
	Zero       uint64
}

// FenceClosed is the fence word of a closed row: no use has it.
const FenceClosed = ^uint64(0)

// FenceWord is the word of a row while use g of its slot may be read; base is that of the board.
func FenceWord(base uint64, g uint32) uint64 { return base + uint64(g) }

// RowAddr is the address of a slot's row on a board that lies at board. Whether the board has that row the caller has looked.
func RowAddr(board uint64, slot uint32) uint64 { return board + BoardHeadLen + uint64(slot)*RowLen }

// Control is the page of words that both sides look at.
type Control struct {
	Magic, Version uint32
	LeaseFree      uint32 // atomic
	TrackFree      uint32 // atomic
	Poisoned       uint32 // atomic
	Draining       uint32 // atomic
	Asleep         uint32 // atomic: 0, or how the pump sleeps: Dozes, Sleeps
	WakeFd         int32
	EventFd        int32
	Held           uint32 // atomic
	PoisonNs       uint64
	PassNs         uint64 // atomic
	PauseUntilNs   uint64 // atomic
	Steps          uint64 // atomic
	DurationNs     uint64
	Stepping       uint32 // atomic: 1 while the core is inside a step; set before it looks at Poisoned
	RowsClosed     uint32 // atomic: of a broken host context 1 once no row of any rank has been open for one lease duration
	Era            uint64 // atomic: eras begun, times two; odd while the words below change
	Epoch          uint64
	Secret         [2]uint64
	LongAtNs       uint64 // atomic: from then on a step may take long; 0: now, clock.Never: never

	RefusedRing, RefusedTable uint64 // atomic: hooks that were refused for want of room in a ring, and of a slot
}

// How whoever steps waits, the lightest first. Each record of the submission stream has the lightest that it ends.
const (
	Dozes   = 1 // for a few ms
	Sleeps  = 2
	Listens = 3 // and wants to hear of every record
)

// ControlMagic is "kvlC".
const (
	ControlMagic  = 0x436c766b
	LayoutVersion = 1
)
