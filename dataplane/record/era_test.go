package record

import (
	"sync"
	"testing"
)

func TestNobodyReadsTheWordsOfTwoEras(t *testing.T) {
	var c Control
	c.BeginEra(1, [2]uint64{10, 100})
	const eras = 20000
	var writer sync.WaitGroup
	writer.Go(func() {
		for e := uint64(2); e <= eras; e++ {
			c.BeginEra(e, [2]uint64{10 * e, 100 * e})
		}
	})
	good := 0
	for last := uint64(0); last < eras; {
		epoch, secret, ok := c.ReadEra()
		if !ok {
			continue
		}
		good++
		if secret != [2]uint64{10 * epoch, 100 * epoch} || epoch < last {
			t.Fatalf("epoch %d after %d has secret %v", epoch, last, secret)
		}
		last = epoch
	}
	writer.Wait()
	if c.Era != 2*eras || good == 0 {
		t.Errorf("era counts %d, want %d; %d reads", c.Era, 2*eras, good)
	}
}

func TestAnEraThatIsBeingWrittenIsNotRead(t *testing.T) {
	var c Control
	c.BeginEra(7, [2]uint64{1, 2})
	if epoch, secret, ok := c.ReadEra(); !ok || epoch != 7 || secret != [2]uint64{1, 2} {
		t.Errorf("ReadEra = %d, %v, %v", epoch, secret, ok)
	}
	c.Era++ // the writer stands between its stores
	if _, _, ok := c.ReadEra(); ok {
		t.Error("a half-written era was read")
	}
}
