package zmtp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/internal/await"
)

// Only what means nothing is malformed: neither that a handler has no answer yet, nor that it is at fault itself.
func TestAHandlersAnswersAreCountedForWhatTheyAre(t *testing.T) {
	for _, tc := range []struct {
		name   string
		reply  Reply
		err    error
		want   Stats
		report error
	}{
		{"the request means nothing", Reply{}, errors.New("not an array"), Stats{Accepted: 1, Malformed: 1}, ErrMalformed},
		{"there is no answer yet", Reply{}, fmt.Errorf("rank 2: %w", ErrDeclined), Stats{Accepted: 1, Declined: 1}, ErrDeclined},
		{"a reply without frames", Reply{}, nil, Stats{Accepted: 1, Panics: 1}, errEmpty},
	} {
		t.Run(tc.name, func(t *testing.T) {
			await.NoLeaks(t)
			reports := make(chan error, 1)
			s := listen(t, "127.0.0.1:0", Config{
				Handle: func(context.Context, [][]byte) (Reply, error) { return tc.reply, tc.err },
				Report: func(err error) { reports <- err },
			})
			if _, _, err := (Client{}).Request(t.Context(), s.Addr().String(), []byte("hi")); !errors.Is(err, ErrHungUp) {
				t.Errorf("error %v, want %v", err, ErrHungUp)
			}
			if err := <-reports; !errors.Is(err, tc.report) || errors.Is(err, ErrMalformed) != (tc.want.Malformed == 1) {
				t.Errorf("reported %v, want %v", err, tc.report)
			}
			await.True(t, "the connection is gone", func() bool { return s.Stats().Open == 0 })
			if diff := cmp.Diff(tc.want, s.Stats()); diff != "" {
				t.Errorf("stats (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHandlerPanicsEndOneConnectionOnly(t *testing.T) {
	await.NoLeaks(t)
	heard := make(chan error, 1)
	s := listen(t, "127.0.0.1:0", Config{
		Handle: func(ctx context.Context, request [][]byte) (Reply, error) {
			if string(request[0]) == "bomb" {
				panic("boom")
			}
			return echo(ctx, request)
		},
		Report: func(err error) { heard <- err; panic("once more") },
	})
	if _, _, err := (Client{}).Request(t.Context(), s.Addr().String(), []byte("bomb")); !errors.Is(err, ErrHungUp) {
		t.Errorf("error %v, want %v", err, ErrHungUp)
	}
	if err := <-heard; !strings.HasSuffix(err.Error(), ": panic: boom") {
		t.Errorf("heard %q", err)
	}
	ask(t, s)
	await.True(t, "two panics are counted", func() bool { return s.Stats().Panics == 2 })
}
