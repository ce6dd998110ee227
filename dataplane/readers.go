package dataplane

import "github.com/kvlease/kvlease/dataplane/record"

// readersMax is how many words of readers wait for room in the stream. More are dropped: without its nonce a wire means nothing,
// and the leases decide.
const readersMax = 256

// readersSaid are words of readers about their death wires, on their way to the host.
type readersSaid struct {
	list    [readersMax]record.ReaderHeard
	head, n int
}

func (l *Link) sayReader(h record.ReaderHeard) {
	q := &l.said
	if q.n == readersMax {
		l.Counters.ReadersDropped++
		return
	}
	q.list[(q.head+q.n)%readersMax] = h
	q.n++
}

// Heard and Left are Wires of a rank: its host keeps the wires. Of a reader that has none it hears, too: nobody else can name one.
func (l *Link) Heard(engine, epoch uint64, nonce [16]byte) {
	l.sayReader(record.ReaderHeard{Reader: engine, Epoch: epoch, Nonce: nonce})
}

func (l *Link) Left(engine, epoch uint64) {
	l.sayReader(record.ReaderHeard{Reader: engine, Epoch: epoch, Left: 1})
}

// tellReaders sends what there is room for.
func (l *Link) tellReaders() {
	for q := &l.said; q.n > 0; q.n-- {
		rec := l.carrier.Reserve(record.TagReaderHeard, record.ReaderHeardLen)
		if rec == nil {
			return
		}
		record.PutReaderHeard(rec, q.list[q.head])
		q.head = (q.head + 1) % readersMax
	}
}
