//lint:file-ignore ST1005 errors begin with P, which is a name

package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Peer is P as D speaks to it: a line there, a line back.
//
// Threads: one for ask; another one only reads lines.
type Peer struct {
	in      io.WriteCloser
	answers chan answer
	said    json.Encoder
	died    func() string // why there are no more answers
}

// NewPeer speaks over both ends of a pipe. died tells why it has ended.
func NewPeer(in io.WriteCloser, out io.Reader, died func() string) *Peer {
	p := &Peer{in: in, answers: make(chan answer, 1), said: *json.NewEncoder(in), died: died}
	go func() {
		defer close(p.answers)
		lines := json.NewDecoder(bufio.NewReader(out))
		for {
			var a answer
			if lines.Decode(&a) != nil {
				return
			}
			p.answers <- a
		}
	}()
	return p
}

// ask says a request and takes its answer.
func (p *Peer) ask(ctx context.Context, r request) (answer, error) {
	if err := p.said.Encode(r); err != nil {
		return answer{}, fmt.Errorf("P has ended%s", p.died())
	}
	late := time.NewTimer(longest)
	defer late.Stop()
	select {
	case a, ok := <-p.answers:
		switch {
		case !ok:
			return a, fmt.Errorf("P has ended%s", p.died())
		case a.Err != "":
			return a, fmt.Errorf("P: %s", a.Err)
		}
		return a, nil
	case <-ctx.Done():
		return answer{}, ctx.Err()
	case <-late.C:
		return answer{}, fmt.Errorf("P has not answered %q in %v", r.Op, longest)
	}
}

// Start starts P as a process. It ends with end, which tells how, and with the calling thread, which has to stay: Ctrl-C on a terminal
// goes to a whole group, and P must be there until D has closed.
func Start(cmd *exec.Cmd) (p *Peer, end func() error, err error) {
	said := &strings.Builder{}
	cmd.Stderr = said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	read, write, err := os.Pipe() // the one that exec makes is closed by Wait, maybe before the last line was read
	if err != nil {
		return nil, nil, err
	}
	cmd.Stdout = write
	err = cmd.Start()
	write.Close()
	if err != nil {
		read.Close()
		return nil, nil, err
	}
	ended := make(chan struct{})
	var how error
	go func() {
		how = cmd.Wait()
		close(ended)
	}()
	wait := func() error {
		select {
		case <-ended:
		case <-time.After(endMax):
			_ = cmd.Process.Kill()
			<-ended
			how = errors.Join(how, fmt.Errorf("P did not end in %v and was killed", endMax))
		}
		if how == nil {
			return nil
		}
		if text := strings.TrimPrefix(strings.TrimSpace(said.String()), "kvlease: "); text != "" {
			return fmt.Errorf("P: %s (%w)", text, how)
		}
		return fmt.Errorf("P: %w", how)
	}
	p = NewPeer(in, read, func() string {
		if err := wait(); err != nil {
			return ": " + err.Error()
		}
		return ""
	})
	return p, func() error {
		in.Close()
		err := wait()
		read.Close()
		return err
	}, nil
}

const endMax = 5 * time.Second
