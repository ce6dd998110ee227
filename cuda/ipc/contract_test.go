package ipc

import (
	"sync"
	"testing"

	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
	"github.com/kvlease/kvlease/dataplane/transport/transporttest"
)

const testReads = 20

// pair is two agents over loopback with an IPC half each.
func pair(t *testing.T, r *rig) (h *loopback.Hub, inner, a, b transport.Transport) {
	t.Helper()
	h = loopback.NewHub()
	list := make([]transport.Transport, 0, 3)
	for _, name := range []string{"decode-0", "prefill-0"} {
		agent, err := h.New(name, loopback.Config{ReadsMax: testReads})
		if err != nil {
			t.Fatal(err)
		}
		tr, err := New(agent, Config{Driver: r.driver, ReadsMax: testReads, DescsMax: 4096})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tr.Close() })
		if inner == nil {
			inner = agent
		}
		list = append(list, tr)
	}
	return h, inner, list[0], list[1]
}

func TestTheContractOfWhatIsNotOnADevice(t *testing.T) {
	r := newRig(t)
	transporttest.Run(t, func(t *testing.T) transporttest.Pair {
		h, inner, a, b := pair(t, r)
		return transporttest.Pair{
			A: a, B: b, ReadsMax: testReads, Hold: inner.(*loopback.Agent).HoldReads,
			KillB: func() { h.Kill("prefill-0") },
			CutA:  func() { h.Cut("decode-0", "prefill-0") },
		}
	})
	if n := r.Do("count cuMemcpyDtoDAsync") + r.Do("count cuIpcGetMemHandle"); n != 0 {
		t.Errorf("the driver was asked %d times about host memory", n)
	}
}

func TestTheContractOfDeviceMemory(t *testing.T) {
	r := newRig(t)
	transporttest.Run(t, func(t *testing.T) transporttest.Pair {
		r.Do("hold 0")
		h, _, a, b := pair(t, r)
		m := &mirrors{r: r}
		return transporttest.Pair{
			A: newMirrored(a, m), B: newMirrored(b, m), ReadsMax: testReads, Hold: func(on bool) {
				held := 0
				if on {
					held = 1
				}
				r.Do("hold %d", held)
			},
			CutA: func() { h.Cut("decode-0", "prefill-0") },
			// A dead owner's memory can be read on, so its end is not shown by such a read: the fence behind it goes over the other transport.
		}
	})
	if n := r.Do("count cuMemcpyDtoDAsync"); n == 0 {
		t.Error("no copy was made")
	}
}

// mirrors gives each region of host memory that the suite registers a copy on the device.
type mirrors struct {
	r    *rig
	mu   sync.Mutex
	list []mirror
}

type mirror struct {
	host, device, bytes uint64
}

// of is the device's address of a host one. What has no mirror stays as it is: no device has it.
func (m *mirrors) of(addr uint64) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.list {
		if addr >= r.host && addr < r.host+r.bytes {
			return r.device + (addr - r.host)
		}
	}
	return addr
}

func (m *mirrors) region(r transport.Region) transport.Region {
	if r.Addr = m.of(r.Addr); r.Mem == transport.DRAM {
		r.Mem = transport.VRAM
	}
	return r
}

// mirrored has the suite's regions and reads on the device: what a read will bring is put there before it, and what it has brought is fetched
// when it is done.
type mirrored struct {
	transport.Transport
	m     *mirrors
	spec  transport.ReadSpec // what it is on the device
	descs []transport.Desc
	posts map[transport.Xfer][]transport.Desc // in host memory
	spare [][]transport.Desc
}

func newMirrored(tr transport.Transport, m *mirrors) *mirrored {
	return &mirrored{Transport: tr, m: m, posts: make(map[transport.Xfer][]transport.Desc, 64)}
}

func (m *mirrored) translate(regions []transport.Region, alloc bool) []transport.Region {
	var list []transport.Region
	for _, r := range regions {
		if alloc && r.Mem == transport.DRAM && r.Addr != 0 && r.Bytes > 0 && r.Addr+r.Bytes > r.Addr && m.m.of(r.Addr) == r.Addr {
			device, err := m.m.r.ctx.Alloc(r.Bytes)
			if err == nil {
				m.m.mu.Lock()
				m.m.list = append(m.m.list, mirror{r.Addr, device, r.Bytes})
				m.m.mu.Unlock()
			}
		}
		list = append(list, m.m.region(r))
	}
	return list
}

func (m *mirrored) Register(regions []transport.Region) error {
	return m.Transport.Register(m.translate(regions, true))
}

func (m *mirrored) Unregister(regions []transport.Region) error {
	return m.Transport.Unregister(m.translate(regions, false))
}

func (m *mirrored) PostRead(spec *transport.ReadSpec) (transport.Xfer, error) {
	m.descs = m.descs[:0]
	for _, d := range spec.Descs {
		if from := m.m.of(d.Remote); from != d.Remote && m.m.of(d.Remote+d.Len-1) == from+d.Len-1 {
			if err := m.m.r.ctx.CopyIn(from, bytesAt(d.Remote, d.Len)); err != nil {
				return 0, err
			}
		}
		d.Local, d.Remote = m.m.of(d.Local), m.m.of(d.Remote)
		m.descs = append(m.descs, d)
	}
	m.spec = *spec
	m.spec.Descs, m.spec.LocalMem, m.spec.RemoteMem = m.descs, transport.VRAM, transport.VRAM
	x, err := m.Transport.PostRead(&m.spec)
	if err == nil {
		var keep []transport.Desc
		if n := len(m.spare); n > 0 {
			keep, m.spare = m.spare[n-1], m.spare[:n-1]
		}
		m.posts[x] = append(keep[:0], spec.Descs...)
	}
	return x, err
}

func (m *mirrored) PollReads(xfers []transport.Xfer, out []transport.Status, spinNs int64) {
	m.Transport.PollReads(xfers, out, spinNs)
	for i, x := range xfers {
		descs, posted := m.posts[x]
		if !posted || out[i] == transport.Pending {
			continue
		}
		delete(m.posts, x)
		m.spare = append(m.spare, descs)
		for _, d := range descs {
			if out[i] == transport.Done && m.m.r.ctx.CopyOut(bytesAt(d.Local, d.Len), m.m.of(d.Local)) != nil {
				out[i] = transport.Failed
			}
		}
	}
}
