package stream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// What a rank and its host say on the socket (SOCK_SEQPACKET, so a message comes whole), little-endian, 64 bytes and for a refusal
// its text:
//
//	offset  hello, rank -> host            answer, host -> rank            done, rank -> host; attached, host -> rank
//	     0  magic u32 'kvlS' = 0x536c766b  the same                        the same
//	     4  version u16 1                  the same                        the same
//	     6  kind u16 1                     2                               3; 4
//	     8  engine u64: hash of its id     the same                        the same
//	    16  rank u32                       status u32: shm*
//	    20  tp u32
//	    24  pp u32                         bytes u64 of the memory
//	        a wake eventfd                 memory, the host's wake eventfd
//
// A rank that has said done waits for the host without a limit. So one that the host has given up gets the end of the connection,
// not attached, and tries again; neither end can count the other as lost that has not been attached.
// Nothing is said afterwards: the end of the connection is the end of the process behind it.
const (
	shmMagic    = 0x536c766b
	shmVersion  = 1
	shmMsgBytes = 64
	shmTextMax  = 512

	shmHello    = 1
	shmAnswer   = 2
	shmDone     = 3
	shmAttached = 4

	shmOK    = 0
	shmTaken = 1
	shmBad   = 2
)

type hello struct {
	engine       uint64
	rank, tp, pp uint32
}

func putShmHead(b []byte, kind uint16, engine uint64) {
	binary.LittleEndian.PutUint32(b[0:], shmMagic)
	binary.LittleEndian.PutUint16(b[4:], shmVersion)
	binary.LittleEndian.PutUint16(b[6:], kind)
	binary.LittleEndian.PutUint64(b[8:], engine)
}

func checkShmHead(b []byte, kind uint16, engine uint64) error {
	if len(b) < shmMsgBytes {
		return fmt.Errorf("%w: a message of %d bytes", ErrInvalid, len(b))
	}
	magic, version, k := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint16(b[4:]), binary.LittleEndian.Uint16(b[6:])
	switch {
	case magic != shmMagic || k != kind:
		return fmt.Errorf("%w: magic %#x, kind %d", ErrInvalid, magic, k)
	case version != shmVersion:
		return fmt.Errorf("%w: version %d, this end speaks %d: host and ranks must run the same kvlease", ErrInvalid, version, shmVersion)
	case binary.LittleEndian.Uint64(b[8:]) != engine:
		return fmt.Errorf("%w: the other end has another engine_id", ErrInvalid)
	}
	return nil
}

func putHello(b []byte, h hello) {
	putShmHead(b, shmHello, h.engine)
	binary.LittleEndian.PutUint32(b[16:], h.rank)
	binary.LittleEndian.PutUint32(b[20:], h.tp)
	binary.LittleEndian.PutUint32(b[24:], h.pp)
}

func parseHello(b []byte, engine uint64) (h hello, err error) {
	if err = checkShmHead(b, shmHello, engine); err != nil {
		return h, err
	}
	return hello{engine, binary.LittleEndian.Uint32(b[16:]), binary.LittleEndian.Uint32(b[20:]), binary.LittleEndian.Uint32(b[24:])}, nil
}

// answerTo puts the host's answer; text for a refusal.
func answerTo(err error, engine uint64, bytes int) []byte {
	b := make([]byte, shmMsgBytes, shmMsgBytes+shmTextMax)
	putShmHead(b, shmAnswer, engine)
	binary.LittleEndian.PutUint64(b[24:], uint64(bytes))
	if err == nil {
		return b
	}
	status := uint32(shmBad)
	if errors.Is(err, ErrTaken) {
		status = shmTaken
	}
	binary.LittleEndian.PutUint32(b[16:], status)
	text := err.Error()
	return append(b, text[:min(len(text), shmTextMax)]...)
}

// parseAnswer gives the bytes of the memory, or why there is none.
func parseAnswer(b []byte, engine uint64) (bytes uint64, err error) {
	if len(b) >= shmMsgBytes {
		why := strings.ToValidUTF8(string(b[shmMsgBytes:]), "?")
		switch status := binary.LittleEndian.Uint32(b[16:]); {
		case binary.LittleEndian.Uint32(b) != shmMagic || status == shmOK:
		case status == shmTaken:
			return 0, fmt.Errorf("%w: the host says: %s", ErrTaken, why)
		default:
			return 0, fmt.Errorf("%w: the host says: %s", ErrInvalid, why)
		}
	}
	if err := checkShmHead(b, shmAnswer, engine); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b[24:]), nil
}

// sendMark sends done or attached.
func sendMark(conn *net.UnixConn, kind uint16, engine uint64) error {
	var b [shmMsgBytes]byte
	putShmHead(b[:], kind, engine)
	return sendMsg(conn, b[:])
}

// waitMark receives done or attached.
func waitMark(conn *net.UnixConn, kind uint16, engine uint64) error {
	var b [shmMsgBytes]byte
	n, fds, err := recvMsg(conn, b[:], 1)
	closeAll(fds)
	if err != nil {
		return err
	}
	return checkShmHead(b[:n], kind, engine)
}

// sendMsg sends one message with descriptors.
func sendMsg(conn *net.UnixConn, b []byte, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err := conn.WriteMsgUnix(b, oob, nil)
	return err
}

// recvMsg receives one message and at most want descriptors, which are the caller's to close even after an error.
func recvMsg(conn *net.UnixConn, b []byte, want int) (n int, fds []int, err error) {
	oob := make([]byte, unix.CmsgSpace(4*want)) // what does not fit the kernel closes
	n, oobn, flags, _, err := conn.ReadMsgUnix(b, oob)
	if err != nil {
		return 0, nil, err
	}
	controls, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return 0, nil, err
	}
	for i := range controls {
		if got, err := unix.ParseUnixRights(&controls[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	if len(fds) > want { // the room is rounded up
		closeAll(fds[want:])
		fds = fds[:want]
	}
	if flags&unix.MSG_TRUNC != 0 {
		return 0, fds, fmt.Errorf("%w: a message longer than %d bytes", ErrInvalid, len(b))
	}
	return n, fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// takeWake accepts a descriptor as the other end's wake eventfd. Anything else could block whoever writes to it. (The other end shares
// the file's flags and could make it block later: on purpose only, and a process of our user can stop us in simpler ways.)
func takeWake(fd int) (wake, error) {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err == nil && name != "anon_inode:[eventfd]" {
		return -1, fmt.Errorf("%w: wake descriptor is %s", ErrInvalid, name)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return -1, err
	}
	return wake(fd), nil
}

// peerIsOurs checks that the process behind a connection runs under our user. It is the one that listens or has connected, whoever
// holds the socket now.
func peerIsOurs(conn *net.UnixConn) (pid int32, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, credErr
	}
	if int(cred.Uid) != os.Geteuid() {
		return cred.Pid, fmt.Errorf("%w: process %d on the other end runs as user %d, this one as %d: host and ranks must run as one user",
			ErrPath, cred.Pid, cred.Uid, os.Geteuid())
	}
	return cred.Pid, nil
}
