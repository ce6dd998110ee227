package stream

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/ringbuf"
)

// The memory between two ends, all little-endian: a page of words, the ring from host to rank, the ring from rank to host, each
// on its own pages.
//
//	offset  what    who writes it
//	     0  magic   u32 'kvlM' = 0x4d6c766b, the host, before the rank sees it
//	     4  version u32 1
//	     8  ring    u32 capacity of each ring
//	    64  asleep  u32, host: 1 while it sleeps and has to be woken
//	   128  asleep  u32, rank
const (
	linkMagic      = 0x4d6c766b
	linkVersion    = 1
	linkHeadBytes  = 4096
	offLinkRing    = 8
	offAsleepHost  = 64
	offAsleepRank  = 128
	linkBytesLimit = linkHeadBytes + 2*(1<<30+4096)
)

// ringSpan is how far apart two rings are.
func ringSpan(ringBytes uint32) int { return (ringbuf.Bytes(ringBytes) + 4095) &^ 4095 }

func linkBytes(ringBytes uint32) int { return linkHeadBytes + 2*ringSpan(ringBytes) }

// formatLink makes two empty rings. Nobody else may see the memory yet.
func formatLink(mem []byte, ringBytes uint32) error {
	if err := ringbuf.Format(mem[linkHeadBytes:], ringBytes); err != nil {
		return err
	}
	if err := ringbuf.Format(mem[linkHeadBytes+ringSpan(ringBytes):], ringBytes); err != nil {
		return err
	}
	*word32(mem, 4), *word32(mem, offLinkRing) = linkVersion, ringBytes
	atomic.StoreUint32(word32(mem, 0), linkMagic)
	return nil
}

// link is one end's view of the memory.
type link struct {
	mem    []byte
	tx     *ringbuf.Producer
	rx     *ringbuf.Consumer
	asleep *uint32 // ours
	other  *uint32 // the other end's asleep
	peer   wake    // its descriptor, ours to close
	free   func()  // gives the memory back
}

// openLink views memory that the other end may have written anything into.
func openLink(mem []byte, host bool) (*link, error) {
	if len(mem) < linkHeadBytes {
		return nil, fmt.Errorf("%w: %d bytes of memory", ErrCorrupt, len(mem))
	}
	magic, version, ringBytes := atomic.LoadUint32(word32(mem, 0)), *word32(mem, 4), *word32(mem, offLinkRing)
	if magic != linkMagic || version != linkVersion {
		return nil, fmt.Errorf("%w: magic %#x, version %d", ErrCorrupt, magic, version)
	}
	if ringBytes < RingBytesMin || ringBytes > 1<<30 || ringBytes&(ringBytes-1) != 0 || len(mem) != linkBytes(ringBytes) {
		return nil, fmt.Errorf("%w: rings of %d bytes in %d", ErrCorrupt, ringBytes, len(mem))
	}
	down := mem[linkHeadBytes:][:ringbuf.Bytes(ringBytes)]
	up := mem[linkHeadBytes+ringSpan(ringBytes):][:ringbuf.Bytes(ringBytes)]
	l := &link{mem: mem, asleep: word32(mem, offAsleepHost), other: word32(mem, offAsleepRank), peer: -1, free: func() {}}
	if !host {
		down, up = up, down
		l.asleep, l.other = l.other, l.asleep
	}
	var err error
	if l.tx, err = ringbuf.NewProducer(down); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if l.rx, err = ringbuf.NewConsumer(up); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return l, nil
}

// drop gives back what the view holds.
func (l *link) drop() {
	if l != nil {
		l.peer.close()
		l.free()
	}
}

// mapPages maps anonymous memory of this process alone, untouched until used.
func mapPages(n int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	return mem, nil
}
