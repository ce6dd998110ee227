package soak

import (
	"bufio"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// LoadName says what Load does, for the report.
func LoadName() string {
	return strconv.Itoa(runtime.NumCPU()) + " spinning threads and one that copies 64 MiB back and forth, at ordinary priority"
}

// Load keeps every core busy until the process ends: a thread a core that counts, and one that copies memory.
func Load() {
	runtime.GOMAXPROCS(runtime.NumCPU() + 1)
	for range runtime.NumCPU() {
		go func() {
			for n := uint64(1); ; n++ {
				n ^= n << 13
			}
		}()
	}
	a, b := make([]byte, 64<<20), make([]byte, 64<<20)
	for {
		copy(a, b)
		copy(b, a)
	}
}

// cpuTimes are the times of all cores since boot, in seconds.
type cpuTimes struct{ busy, idle, steal float64 }

func readTimes() (t cpuTimes) {
	f, err := os.Open("/proc/stat")
	if err != nil {
		return t
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	if !s.Scan() {
		return t
	}
	for i, field := range strings.Fields(s.Text()) { // cpu user nice system idle iowait irq softirq steal guest guest_nice
		n, err := strconv.ParseFloat(field, 64)
		if err != nil || i > 8 {
			continue
		}
		switch n /= 100; i {
		case 4, 5:
			t.idle += n
		case 8:
			t.steal += n
		default:
			t.busy += n
		}
	}
	return t
}

// since gives shares of the time that has passed for all cores together, in percent.
func (t cpuTimes) since(before cpuTimes) (busy, steal float64) {
	b, i, s := t.busy-before.busy, t.idle-before.idle, t.steal-before.steal
	all := max(b+i+s, 0.01)
	return 100 * b / all, 100 * s / all
}

// stealWatch is the largest share of a second that the machine withheld.
type stealWatch struct {
	stop chan struct{}
	most chan float64
}

func watchSteal() *stealWatch {
	w := &stealWatch{stop: make(chan struct{}), most: make(chan float64, 1)}
	go func() {
		most := 0.0
		defer func() { w.most <- most }()
		before := readTimes()
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-w.stop:
				return
			case <-tick.C:
				now := readTimes()
				_, steal := now.since(before)
				most, before = max(most, steal), now
			}
		}
	}()
	return w
}

func (w *stealWatch) end() float64 {
	close(w.stop)
	return <-w.most
}
