package core

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/ringbuf"
)

// Sizes is how much memory a context needs; the C library maps it, or NewMemory does.
type Sizes struct {
	Leases, Tracks, Producers             int
	RingBytes, OverflowBytes, EventsBytes int // capacities of rings
	LandingBytes, BoardBytes              int
	Pump                                  bool
}

const (
	handleRecord = 8 + 8 + 8 // ring header, position, handle
	eventRecord  = 8 + 64    // ring header, event
	rejectBytes  = 1 << 20   // room for rejects, the only thing in an overflow ring whose number nothing bounds
)

// Sizes follow from the configuration.
func (c *Config) Sizes() Sizes {
	return Sizes{
		Leases: c.RequestsMax, Tracks: c.TrackedMax, Producers: c.ProducersMax,
		RingBytes:     c.RingBytes,
		OverflowBytes: int(pow2(uint64(c.overflowBytes()))),
		EventsBytes:   int(pow2(uint64(max(4096, c.EventsMax*eventRecord)))),
		LandingBytes:  read.LandingBytes(c.readConfig()),
		BoardBytes:    record.BoardHeadLen + c.RequestsMax*record.RowLen,
		Pump:          c.Drive == "pump",
	}
}

// overflowBytes is the sum of all that one producer can be unable to say at once.
func (c *Config) overflowBytes() int {
	return 0 +
		c.RequestsMax*2*handleRecord + // cancel and revoke, each once per lease
		c.TrackedMax*handleRecord + // untrack, once per tracked request
		rejectBytes +
		ringbuf.RecordBytesMax // the fill at the wrap
}

// NewMemory maps the memory of a context: what the C library does for its own.
// Anonymous pages, untouched until used, so that large limits cost nothing by themselves.
func NewMemory(s Sizes) (*record.Memory, error) {
	m := &record.Memory{}
	ctl, err := pages(record.CtlLen)
	if err != nil {
		return nil, err
	}
	m.Control = record.AsControl(ctl)
	m.Control.Magic, m.Control.Version = record.ControlMagic, record.LayoutVersion
	m.Control.WakeFd = -1
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("event descriptor: %w", err)
	}
	m.Control.EventFd = int32(fd)
	atomic.StoreUint32(&m.Control.LeaseFree, record.None)
	atomic.StoreUint32(&m.Control.TrackFree, record.None)
	slots, err := pages(s.Leases * record.SlotLen)
	if err != nil {
		return nil, err
	}
	m.Slots = record.Slots(slots)[:s.Leases]
	tracks, err := pages(s.Tracks * record.TrkLen)
	if err != nil {
		return nil, err
	}
	m.Tracks = record.Tracks(tracks)[:s.Tracks]
	if m.Board, err = pages(s.BoardBytes); err != nil {
		return nil, err
	}
	if m.Landing, err = pages(s.LandingBytes); err != nil {
		return nil, err
	}
	if m.Events, err = ring(s.EventsBytes); err != nil {
		return nil, err
	}
	for range s.Producers {
		r, err := ring(s.RingBytes)
		if err != nil {
			return nil, err
		}
		o, err := ring(s.OverflowBytes)
		if err != nil {
			return nil, err
		}
		m.Rings, m.Overflows = append(m.Rings, r), append(m.Overflows, o)
	}
	var seed [32]byte
	rand.Read(seed[:])
	m.Secret = [2]uint64{binary.LittleEndian.Uint64(seed[0:]), binary.LittleEndian.Uint64(seed[8:])}
	m.Epoch = binary.LittleEndian.Uint64(seed[16:]) | 1
	m.Base = binary.LittleEndian.Uint64(seed[24:]) >> 2
	m.Control.BeginEra(m.Epoch, m.Secret)
	return m, nil
}

func pages(n int) ([]byte, error) {
	page := unix.Getpagesize()
	n = (n + page - 1) / page * page
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	return mem, nil
}

func ring(capacity int) ([]byte, error) {
	mem, err := pages(ringbuf.Bytes(uint32(capacity)))
	if err != nil {
		return nil, err
	}
	return mem[:ringbuf.Bytes(uint32(capacity))], ringbuf.Format(mem[:ringbuf.Bytes(uint32(capacity))], uint32(capacity))
}
