package ports

import (
	"fmt"
	"net"
	"testing"
)

func TestNoPortIsGivenTwiceAndNoneThatIsTaken(t *testing.T) {
	next.port = most - 100 // and past the end of the range
	given := map[uint32]bool{}
	for i := range 200 {
		n := 1 + i%3
		first, err := Free(n)
		if err != nil {
			t.Fatal(err)
		}
		for port := first; port < first+uint32(n); port++ {
			if port < least || port > most || given[port] {
				t.Fatalf("port %d after %v", port, given)
			}
			given[port] = true
		}
	}
	var first uint32
	var l net.Listener
	for l == nil { // somebody else may take it meanwhile: then the next one
		var err error
		if first, err = Free(1); err != nil {
			t.Fatal(err)
		}
		l, _ = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first))
	}
	defer l.Close()
	next.Lock()
	next.port = int(first)
	next.Unlock()
	if again, err := Free(1); err != nil || again == first {
		t.Errorf("port %d, which is taken, was given: %v", again, err)
	}
}
