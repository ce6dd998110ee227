package watch

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/internal/require"
)

// FuzzPage reads pages in which bytes were changed. Whatever stands there: an error or a snapshot, no panic, and no memory that the file
// does not account for.
func FuzzPage(f *testing.F) {
	dir := f.TempDir() // a reader does not mind where a page lies
	s := spec(require.Shm(f))
	s.Remotes = 40
	w, why, err := New(s)
	if err != nil || why != nil {
		f.Fatal(why, err)
	}
	defer w.Close()
	for i := range 33 {
		w.PutRemote(i, &Remote{Engine: uint64(i + 1), ID: "id", State: "idle"})
	}
	w.FinishRemotes(33)
	var last record.LastEnds
	last.Next().Reason = 4
	w.PutEnds(&last)
	w.NameReader(3, 4, []byte("name"))
	w.Publish(fillState(w, 7))
	good, err := os.ReadFile(w.Path())
	if err != nil {
		f.Fatal(err)
	}
	secs := &w.secs
	place := func(at uint64, v uint64) []byte { // a change: where, and 8 bytes
		return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(nil, uint32(at)), v)
	}
	f.Add(place(hwTable+8, 1<<63))
	f.Add(place(hwSize, 1<<40))
	f.Add(place(hwStep, 1<<62))
	f.Add(place(secs[secMain].place(0, 1)+8*mwReaders, 1<<60))
	f.Add(place(secs[secMain].place(0, 1)+8*mwRemotes, 1<<60))
	f.Add(place(secs[secNames].place(0, 1)+3*nameLen+8, 1<<63))
	f.Add(append(place(secs[secEnds].at, ^uint64(0)), place(secs[secEnds].at+8, ^uint64(0))...))
	f.Add(place(secs[secMain].at, ^uint64(0)))
	f.Add(place(headLen+1, 0xffff))
	path := filepath.Join(dir, "page")
	f.Fuzz(func(t *testing.T, in []byte) {
		data := append([]byte(nil), good...)
		for len(in) >= 12 {
			at := binary.LittleEndian.Uint32(in) % uint32(len(data)-8)
			copy(data[at:], in[4:12])
			in = in[12:]
		}
		if len(in) > 0 {
			data = data[:len(data)*int(in[0])/255]
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := Open(path)
		if err != nil {
			if !errors.Is(err, ErrNotAPage) && !errors.Is(err, ErrVersion) {
				t.Fatal(err)
			}
			return
		}
		defer p.Close()
		var s Snapshot
		if err := p.Read(&s); err != nil && !errors.Is(err, ErrNotAPage) && !errors.Is(err, ErrTorn) {
			t.Fatal(err)
		}
		if len(s.Ends) > EndsMax || len(s.Readers) > ReadersMax || len(s.Remotes) > RemotesMax {
			t.Fatalf("%d ends, %d readers, %d engines", len(s.Ends), len(s.Readers), len(s.Remotes))
		}
	})
}
