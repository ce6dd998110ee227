package main

import (
	"io"
	"sync"
)

// told is stdout that remembers why it could not be written: whoever ran the command was not told what it says, so it has failed, whatever it came
// to. Commands that print lines as they go need not look after each.
type told struct {
	out io.Writer
	mu  sync.Mutex
	err error // the first
}

func (t *told) Write(p []byte) (int, error) {
	n, err := t.out.Write(p)
	if err != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.err == nil {
			t.err = err
		}
	}
	return n, err
}

// failed is why something was not told, nil if all was.
func (t *told) failed() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}
