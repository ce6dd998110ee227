package zmtp

import (
	"encoding/hex"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/internal/await"
)

func TestWhatWeSayFirstIsByteForByteZMTP(t *testing.T) {
	want := "ff00000000000000007f" + "0301" + hex.EncodeToString([]byte("NULL")) + strings.Repeat("00", 16) + "00" + strings.Repeat("00", 31) +
		"0426" + "05" + hex.EncodeToString([]byte("READY")) +
		"0b" + hex.EncodeToString([]byte("Socket-Type")) + "00000003" + hex.EncodeToString([]byte("REQ")) +
		"08" + hex.EncodeToString([]byte("Identity")) + "00000000"
	if diff := cmp.Diff(want, hex.EncodeToString(reqHello)); diff != "" {
		t.Errorf("hello (-want +got):\n%s", diff)
	}
}

func TestFrameHeadsAreGolden(t *testing.T) {
	for _, tc := range []struct {
		flags byte
		n     int
		want  string
	}{
		{0, 0, "0000"},
		{flagMore, 255, "01ff"},
		{0, 256, "020000000000000100"},
		{flagMore, 1 << 20, "030000000000100000"},
		{flagCommand, 300, "06000000000000012c"},
	} {
		if got := hex.EncodeToString(appendHead(nil, tc.flags, tc.n)); got != tc.want {
			t.Errorf("head of flags %d and %d bytes: %s, want %s", tc.flags, tc.n, got, tc.want)
		}
	}
}

// mechanism is a greeting that asks for another one.
func mechanism(name string) []byte {
	g := slices.Clone(reqHello[:greetingLen])
	copy(g[mechanismAt:mechanismAt+mechanismLen], append([]byte(name), make([]byte, mechanismLen)...))
	return g
}

func ready(properties ...string) []byte {
	var data []byte
	for i := 0; i < len(properties); i += 2 {
		data = appendProperty(data, properties[i], properties[i+1])
	}
	return commandBytes("READY", string(data))
}

// badOpenings are what no peer of either role may begin with. text is in the error.
var badOpenings = []struct {
	name string
	says []byte
	is   error
	text string
}{
	{"another protocol", []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), ErrNotZMTP, `greeting: not ZMTP 3: it says "HTTP/1.1 400 Bad Request\r\n\r\n"`},
	{"one wrong byte and no more", []byte("S"), ErrNotZMTP, `it says "S"`},
	{"a signature with a wrong end", []byte("\xff\x00\x00\x00\x00\x00\x00\x00\x01\x00"), ErrNotZMTP, "not ZMTP 3"},
	{"ZMTP 2", []byte("\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x01\x05"), ErrNotZMTP, "version 1"},
	{"PLAIN", mechanism("PLAIN"), ErrMechanism, `greeting: security mechanism is not NULL: "PLAIN"`},
	{"CURVE", mechanism("CURVE"), ErrMechanism, `"CURVE"`},
	{"a mechanism that only begins with NULL", mechanism("NULLIFY"), ErrMechanism, `"NULLIFY"`},
	{"a message instead of READY", slices.Concat(reqHello[:greetingLen], message("", "hi")), ErrMalformed, "ready: malformed: a message before READY"},
	{"the 73 bytes that kill other libraries", slices.Concat(reqHello[:greetingLen], killer), ErrMalformed, "a message before READY"},
	{"a READY of 2^62 bytes", slices.Concat(reqHello[:greetingLen], []byte{flagLong | flagCommand}, killer[1:]), ErrTooLong, "ready: too long: a command of 4611686018427387904 bytes, 1024 allowed"},
	{"a READY with more to come", slices.Concat(reqHello[:greetingLen], []byte{flagMore | flagCommand, 0}), ErrMalformed, "frame flags 0x05"},
	{"flags that do not exist", slices.Concat(reqHello[:greetingLen], []byte{0x84, 0}), ErrMalformed, "frame flags 0x84"},
	{"a command without a name", slices.Concat(reqHello[:greetingLen], []byte{flagCommand, 0}), ErrMalformed, "without a name"},
	{"a command with a name past its end", slices.Concat(reqHello[:greetingLen], []byte{flagCommand, 2, 2, 'A'}), ErrMalformed, "without a name"},
	{"another command instead of READY", slices.Concat(reqHello[:greetingLen], commandBytes("HELLO", "")), ErrMalformed, `command "HELLO" before READY`},
	{"an ERROR instead of READY", slices.Concat(reqHello[:greetingLen], commandBytes("ERROR", "\x0ago away now, please")), ErrPeer, `ready: peer reports an error: "go away no"`},
	{"an ERROR without a reason", slices.Concat(reqHello[:greetingLen], commandBytes("ERROR", "")), ErrPeer, `""`},
	{"an ERROR whose reason is cut off", slices.Concat(reqHello[:greetingLen], commandBytes("ERROR", "\xffno")), ErrPeer, `"no"`},
	{"a READY without a socket type", slices.Concat(reqHello[:greetingLen], ready("Identity", "")), ErrSocketType, `""`},
	{"a READY of a publisher", slices.Concat(reqHello[:greetingLen], ready("Socket-Type", "PUB")), ErrSocketType, `ready: wrong socket type: "PUB", want R`},
	{"a READY with a property without a name", slices.Concat(reqHello[:greetingLen], ready("", "")), ErrMalformed, "cut off"},
	{"a READY with a property that is cut off", slices.Concat(reqHello[:greetingLen], commandBytes("READY", "\x0bSocket-Type\x00")), ErrMalformed, "cut off"},
	{"a READY with a property of 4 GiB", slices.Concat(reqHello[:greetingLen], commandBytes("READY", "\x0bSocket-Type\xff\xff\xff\xffREQ")), ErrMalformed, `property "Socket-Type" of READY is cut off`},
}

// badTalk is what no peer may send after READY; each is made of one that is right until there.
var badTalk = []struct {
	name string
	says []byte
	is   error
	text string
}{
	{"a frame of 2^62 bytes", killer, ErrTooLong, "a frame of 4611686018427387904 bytes, 4096 of 4096 left"},
	{"a frame of 2^64-1 bytes", []byte{flagLong, 255, 255, 255, 255, 255, 255, 255, 255}, ErrTooLong, "18446744073709551615"},
	{"a message one byte too long", appendHead(message("", "x")[:2:2], 0, 4097), ErrTooLong, "4097 bytes, 4096 of 4096 left"},
	{"a message too long in two frames", slices.Concat(appendHead(message("", "x")[:2:2], flagMore, 4000), make([]byte, 4000), appendHead(nil, 0, 97)), ErrTooLong, "a frame of 97 bytes, 96 of 4096 left"},
	{"too many frames", slices.Repeat([]byte{flagMore, 0}, 17), ErrTooLong, "more than 16 frames"},
	{"a message without an envelope", message("hi"), ErrMalformed, "without an"},
	{"only an envelope", message(""), ErrMalformed, "without an"},
	{"flags that do not exist", []byte{8, 0}, ErrMalformed, "frame flags 0x08"},
	{"a command of 2^62 bytes", append([]byte{flagLong | flagCommand}, killer[1:]...), ErrTooLong, "a command of 4611686018427387904"},
	{"a command one byte too long", appendHead(nil, flagCommand, 1025), ErrTooLong, "a command of 1025 bytes, 1024 allowed"},
	{"too many commands", slices.Repeat(commandBytes("HI", ""), 65), ErrTooLong, "more than 64 commands"},
	{"a PING without a time to live", commandBytes("PING", "1"), ErrMalformed, "PING of 1 bytes"},
	{"a PING with a long context", commandBytes("PING", strings.Repeat("x", 19)), ErrMalformed, "PING of 19 bytes"},
	{"a command without a name", []byte{flagCommand, 1, 0}, ErrMalformed, "without a name"},
	{"an ERROR", commandBytes("ERROR", "\x04over"), ErrPeer, `peer reports an error: "over"`},
}

// peer serves one connection with a script: what it says at once and after the request. It then reads to the end.
func peer(t *testing.T, says []byte) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		c.Write(says)
		io.Copy(io.Discard, c)
	}()
	return l.Addr().String()
}

func TestClientEndsWithWhatIsWrongWithItsPeer(t *testing.T) {
	await.NoLeaks(t)
	try := func(name string, says []byte, is error, text string) {
		t.Run(name, func(t *testing.T) {
			addr := peer(t, says)
			reply, _, err := Client{Limits: Limits{ReplyBytesMax: 4096, Request: longest}}.Request(t.Context(), addr, []byte("hi"))
			if reply != nil || !errors.Is(err, is) || !strings.HasPrefix(err.Error(), "zmtp "+addr+": ") || !strings.Contains(err.Error(), text) {
				t.Errorf("reply %q, error %v, want %v with %q", reply, err, is, text)
			}
		})
	}
	for _, tc := range badOpenings {
		try(tc.name, tc.says, tc.is, tc.text)
	}
	for _, tc := range badTalk {
		try(tc.name+" as reply", slices.Concat(routerHello, tc.says), tc.is, tc.text)
	}
	try("a reply to a proxy", slices.Concat(routerHello, message("who", "", "x")), ErrMalformed, "without an envelope")
}

func TestServerEndsWhoeverSendsNonsenseAndGoesOn(t *testing.T) {
	await.NoLeaks(t)
	try := func(name string, says []byte, is error, text string) {
		t.Run(name, func(t *testing.T) {
			heard := make(chan error, 1)
			s := listen(t, "127.0.0.1:0", Config{Handle: echo, Report: func(err error) { heard <- err }})
			c := dialRaw(t, s)
			mustWrite(t, c, says)
			mustEnd(t, c)
			err := <-heard
			if !errors.Is(err, is) || !strings.HasPrefix(err.Error(), "zmtp peer "+c.LocalAddr().String()+": ") || !strings.Contains(err.Error(), text) {
				t.Errorf("error %v, want %v with %q", err, is, text)
			}
			ask(t, s)
			want := Stats{Accepted: 2, Requests: 1, Malformed: 1}
			if is == ErrPeer {
				want.Malformed, want.PeerErrors = 0, 1
			}
			await.True(t, "both connections are over", func() bool { return s.Stats().Open == 0 })
			if diff := cmp.Diff(want, s.Stats()); diff != "" {
				t.Errorf("stats (-want +got):\n%s", diff)
			}
		})
	}
	for _, tc := range badOpenings {
		try(tc.name, tc.says, tc.is, tc.text)
	}
	for _, tc := range badTalk {
		try(tc.name+" as request", slices.Concat(reqHello, tc.says), tc.is, tc.text)
	}
}

func TestServerCountsPeersThatLeaveInTheMiddle(t *testing.T) {
	await.NoLeaks(t)
	whole := slices.Concat(reqHello, message("", "hi"))
	s := listen(t, "127.0.0.1:0", Config{Handle: echo})
	torn := uint64(0)
	for n := range len(whole) {
		c := dialRaw(t, s)
		mustWrite(t, c, whole[:n])
		c.(*net.TCPConn).CloseWrite()
		mustEnd(t, c)
		if n != 0 && n != len(reqHello) { // nothing said, and between two messages: not in the middle
			torn++
		}
	}
	await.True(t, "all are over", func() bool { return s.Stats().Open == 0 })
	if diff := cmp.Diff(Stats{Accepted: uint64(len(whole)), Torn: torn}, s.Stats()); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
	ask(t, s)
}

func TestClientIsToldOfPeersThatLeave(t *testing.T) {
	await.NoLeaks(t)
	whole := slices.Concat(routerHello, message("", "hi"))
	for n := range len(whole) {
		near, far := net.Pipe()
		go func() {
			go io.Copy(io.Discard, far)
			far.Write(whole[:n])
			far.Close()
		}()
		c, err := Client{Limits: Limits{}.orDefaults()}.start(t.Context(), "peer:1", near)
		if err == nil {
			_, _, err = c.Request(t.Context(), []byte("hi"))
		}
		if !errors.Is(err, ErrHungUp) {
			t.Errorf("after %d bytes: %v, want %v", n, err, ErrHungUp)
		}
	}
}
