package transport

import "testing"

func TestInboxGivesBackWhatWasPutIn(t *testing.T) {
	in := NewInbox(3, 16)
	if !in.Put([]byte("ab"), []byte("cde")) || !in.Put(nil, nil) {
		t.Fatal("no room in an empty inbox")
	}
	free, entries := in.Raw()
	if len(free) != 11 || entries != 1 || in.Bytes() != 16 {
		t.Fatalf("%d bytes and %d entries free of %d", len(free), entries, in.Bytes())
	}
	copy(free, "namebody")
	in.AddRaw(4, 4)
	if in.Put(nil, nil) {
		t.Error("a fourth notification went into three entries")
	}
	for _, want := range [][2]string{{"ab", "cde"}, {"", ""}, {"name", "body"}} {
		agent, body, ok := in.Next()
		if !ok || string(agent) != want[0] || string(body) != want[1] {
			t.Errorf("got %q %q %v, want %q", agent, body, ok, want)
		}
	}
	if _, _, ok := in.Next(); ok || in.Len() != 0 {
		t.Error("a notification too many")
	}
	in.Reset()
	if in.Put(make([]byte, 8), make([]byte, 8)) != true || in.Put(nil, []byte("x")) || in.TooLong != 0 {
		t.Error("an inbox filled to the last byte")
	}
	if !in.Put(make([]byte, 8), make([]byte, 9)) || in.TooLong != 1 || in.Len() != 1 {
		t.Errorf("one that can never fit: %d too long, %d inside; want it dropped and counted", in.TooLong, in.Len())
	}
}
