package zmtp

import (
	"testing"
	"time"
)

func TestALimitThatIsNotGivenHasTheDefaultOfTheDocs(t *testing.T) {
	want := Limits{
		RequestBytesMax: 4096, ReplyBytesMax: 16 << 20, FramesMax: 16, CommandBytesMax: 1024, CommandsMax: 64, ConnectionsMax: 64,
		Idle: 60 * time.Second, Request: 5 * time.Second,
	}
	if got := (Limits{}).orDefaults(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	ours := Limits{1, 2, 3, 4, 5, 6, 7, 8}
	if got := ours.orDefaults(); got != ours {
		t.Errorf("%+v, want what was given, %+v", got, ours)
	}
}
