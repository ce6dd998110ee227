package core

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestASleepEndsByItsTimeOrByAWordAndAllocatesNothing(t *testing.T) {
	for name, own := range map[string]bool{"as a goroutine": false, "on its thread": true} {
		t.Run(name, func(t *testing.T) {
			fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			b := makeBed(fd, own)
			defer b.close()
			if parks := b.clock >= 0; parks == own {
				t.Fatalf("own %v, sleeps without a thread: %v", own, parks)
			}
			for _, d := range []time.Duration{time.Microsecond, 1500 * time.Microsecond, 30 * time.Millisecond} {
				if began := time.Now(); b.sleep(d) || time.Since(began) < d {
					t.Errorf("nobody wrote, and a sleep of %v ended after %v", d, time.Since(began))
				}
			}
			writeEventFd(fd) // before it lies down
			if !b.sleep(time.Hour) {
				t.Error("a word said before was not heard")
			}
			if b.sleep(time.Millisecond) {
				t.Error("a word is heard twice")
			}
			time.AfterFunc(20*time.Millisecond, func() { writeEventFd(fd) })
			if !b.sleep(time.Hour) {
				t.Error("a word said meanwhile was not heard")
			}
			if n := testing.AllocsPerRun(500, func() { b.sleep(10 * time.Microsecond); writeEventFd(fd); b.sleep(time.Hour) }); n != 0 {
				t.Errorf("%v allocations a sleep", n)
			}
		})
	}
}

func TestABedWithoutDescriptorsBlocks(t *testing.T) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &was)
	var next int // what is open stays, and so many more may come
	if next, err = unix.Dup(fd); err != nil {
		t.Fatal(err)
	}
	unix.Close(next)
	for more := range 2 { // none at all; the epoll descriptor alone
		none := was
		none.Cur = uint64(next + more)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
			t.Fatal(err)
		}
		b := makeBed(fd, false)
		if b.clock >= 0 || b.file != nil {
			t.Errorf("with room for %d descriptors it says that it sleeps without a thread", more)
		}
		writeEventFd(fd)
		if !b.sleep(time.Hour) || b.sleep(time.Millisecond) {
			t.Errorf("with room for %d descriptors: a word was not heard once", more)
		}
		b.close()
	}
}
