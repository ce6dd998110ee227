// Package ports finds ports on which a child will listen in a moment.
package ports

import (
	"fmt"
	"net"
	"os"
	"sync"
)

// They lie below those that the system gives to whoever asks for any (UCX's listeners do, and every connection), so that one which
// was free stays so until the child listens there. The C examples' own begin at 10,000, too.
const (
	least = 10000
	most  = 29999
	tries = 256
)

var next struct {
	sync.Mutex
	port int
}

func init() { next.port = least + os.Getpid()*131%(most-least) } // another process begins elsewhere

// Free gives the first of n neighbouring ports of 127.0.0.1 that nobody listens on and that were not given out before.
func Free(n int) (uint32, error) {
	next.Lock()
	defer next.Unlock()
	var last error
	for range tries {
		if next.port+n > most+1 {
			next.port = least
		}
		first := next.port
		next.port += n
		if last = free(first, n); last == nil {
			return uint32(first), nil
		}
	}
	return 0, fmt.Errorf("no %d free ports for side channels between %d and %d: %w", n, least, most, last)
}

func free(first, n int) error {
	for port := first; port < first+n; port++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return err
		}
		l.Close()
	}
	return nil
}
