package read

import (
	"encoding/binary"
	"testing"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// FuzzWhatAPeerSaysOfItsMemory builds reads from layouts and runs as a peer may send them. Whatever is not refused must
// stay within the regions of both sides.
func FuzzWhatAPeerSaysOfItsMemory(f *testing.F) {
	region := func(addr, blockLen, stride uint64, blocks uint32, group int32) []byte {
		b := binary.LittleEndian.AppendUint64(nil, addr)
		b = binary.LittleEndian.AppendUint64(b, blockLen)
		b = binary.LittleEndian.AppendUint64(b, stride)
		b = binary.LittleEndian.AppendUint32(b, blocks)
		return binary.LittleEndian.AppendUint32(b, uint32(group))
	}
	f.Add(region(1<<32, 64, 64, 16, -1), uint32(0), uint32(3), uint32(4), uint32(5))
	f.Add(region(1<<32, 64, 100, 16, -1), uint32(31), uint32(0), uint32(15), uint32(1))
	f.Add(region(1<<32, 64, 1<<62, 1<<31, -1), uint32(0), uint32(0), uint32(0), uint32(16))
	f.Add(region(^uint64(0)-1000, 64, 64, 16, -1), uint32(0), uint32(0), uint32(0), uint32(16))
	f.Add(region(0, 64, 1<<60, 16, -1), uint32(40), uint32(0xFFFFFFFF), uint32(2), uint32(0xFFFFFFFE))
	f.Fuzz(func(t *testing.T, raw []byte, group, local, remote, n uint32) {
		if len(raw) < 32 {
			return
		}
		r := Region{
			Addr: binary.LittleEndian.Uint64(raw), BlockLen: binary.LittleEndian.Uint64(raw[8:]), BlockStride: binary.LittleEndian.Uint64(raw[16:]),
			Blocks: binary.LittleEndian.Uint32(raw[24:]), Group: int32(binary.LittleEndian.Uint32(raw[28:])),
		}
		fk := &fake{t: t, remote: map[uint64]uint64{}}
		own := Region{Addr: 1 << 40, BlockLen: 64, BlockStride: 64, Blocks: 64, Group: -1}
		b := newBenchOver(t, Config{ReadsMax: 1, RowsMax: 1, RunsMax: 256, PeersMax: 4}, fk, fk, &Layout{Regions: []Region{own}})
		j, _ := b.m.Begin(1, 1)
		ok := add(b.m, j, from{Source: Source{Peer: 1}, Remote: &Layout{Regions: []Region{r}}}) == OK &&
			b.m.AddRuns(j, []record.Run{{Group: group, Local: local, Remote: remote, N: n}, {Group: group, Local: local, Remote: remote, N: 1}}) == OK &&
			b.m.Commit(j, 1) == OK
		if !ok {
			b.ok(b.m.Abort(j))
			b.m.Step(2)
			if len(fk.posted) != 0 {
				t.Fatal("posted although refused")
			}
			b.wantIdle()
			return
		}
		within := func(r *Region, addr, n uint64) bool {
			return addr >= r.Addr && n <= uint64(r.Blocks)*r.BlockStride && addr-r.Addr <= uint64(r.Blocks)*r.BlockStride-n
		}
		fk.onPost = func(x *fakeXfer) {
			x.status = transport.Done
			for _, d := range x.spec.Descs {
				if !within(&own, d.Local, d.Len) || !within(&r, d.Remote, d.Len) {
					t.Fatalf("descriptor %+v leaves its region: ours %+v, theirs %+v", d, own, r)
				}
			}
		}
		b.m.Step(2)
		b.wantOutcome(1, record.ReadOK, false)
		b.wantIdle()
	})
}
