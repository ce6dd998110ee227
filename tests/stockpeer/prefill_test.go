package stockpeer

import (
	"encoding/hex"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Our P with stock decoders.

// granted makes a lease on P and has D know of it: tracked and connected.
func granted(t *testing.T, p *peer, id string, readers ...*peer) (params report) {
	t.Helper()
	params = throughRouter(t, p.do("grant", "id", id, "blocks", []int{3, 4, 9}))
	for _, d := range readers {
		d.do("track", "id", id, "params", params)
		d.wait("connected", "")
	}
	return params
}

func read(d *peer, id string, params report) {
	d.t.Helper()
	d.do("read", "id", id, "params", params, "blocks", []int{1, 2, 0})
}

// readWell waits for the read and looks at its bytes.
func readWell(d *peer, id string) report {
	d.t.Helper()
	done := d.wait("read_done", id)
	if done.num("wrong_blocks") != 0 {
		d.t.Errorf("%s has read wrong bytes: %v", d.name, done)
	}
	return done
}

func freed(p *peer, id, reason string) report {
	p.t.Helper()
	r := p.wait("freed", id)
	if r.text("reason") != reason {
		p.t.Errorf("%s: %v, want reason %s", p.name, r, reason)
	}
	return r
}

func TestAStockDecodersHeartbeatsKeepALeaseAndItsReadEndsIt(t *testing.T) {
	p, d := ours(t, "P", nil), stock(t, "decode", "D")
	params := granted(t, p, "r1", d)
	p.none("freed", "", duration+extension/2) // D's queue is long; without heartbeats the lease would be over
	read(d, "r1", params)
	done := readWell(d, "r1")
	within(t, "freed", freed(p, "r1", "completed").at()-done.at(), -slack, slack)
	if beats := p.stat("beats_applied"); beats < 6 {
		t.Errorf("%d heartbeats applied in more than 7 intervals", beats)
	}
}

func TestAnAbortAtAStockDecoderFreesAtOnce(t *testing.T) {
	p, d := ours(t, "P", nil), stock(t, "decode", "D")
	params := granted(t, p, "r1", d)
	d.do("abort", "id", "r1", "params", params)
	told := d.wait("released", "r1")
	within(t, "freed", freed(p, "r1", "completed").at()-told.at(), -slack, slack)
}

func TestAKilledStockDecodersLeaseExpiresAndItsBlocksLinger(t *testing.T) {
	p, d := ours(t, "P", nil), stock(t, "decode", "D")
	granted(t, p, "r1", d)
	var last report
	for range 4 {
		last = d.wait("beat_sent", "")
	}
	d.signal(syscall.SIGKILL)
	r := freed(p, "r1", "expired")
	within(t, "freed after the last heartbeat", r.at()-last.at(), extension+linger, extension+settle+linger+slack)
	if n := p.stat("lingering"); n != 0 {
		t.Errorf("%d leases linger after the end", n)
	}
}

func TestPressureTakesLingeringBlocksFirst(t *testing.T) {
	p, d := ours(t, "P", nil), stock(t, "decode", "D")
	granted(t, p, "r1", d)
	d.wait("beat_sent", "")
	d.signal(syscall.SIGKILL)
	until(t, "the lease lingers", func() bool { return p.stat("lingering") == 1 })
	p.do("grant", "id", "young", "blocks", []int{21}) // nobody has named it: it must not be taken
	asked := p.do("pressure", "blocks", 4)
	within(t, "freed", freed(p, "r1", "revoked").at()-asked.at(), 0, slack) // of a linger of 2 s
	p.none("freed", "young", interval)
}

func TestTheFirstOfTwoStockDecodersThatCompletesFrees(t *testing.T) { // as with vLLM's own owner (S07): n counts readers, and the two cannot be told apart
	p, d1, d2 := ours(t, "P", nil), stock(t, "decode", "D1"), stock(t, "decode", "D2")
	params := granted(t, p, "r1", d1, d2)
	read(d1, "r1", params)
	readWell(d1, "r1")
	freed(p, "r1", "completed")
	read(d2, "r1", params)
	d2.wait("read_done", "r1")
	until(t, "one late completion is counted", func() bool { return p.stat("lease_late_done") == 1 })
	p.none("freed", "", interval)
}

func TestBothRanksOfAStockDecoderMustReport(t *testing.T) {
	p := ours(t, "P", nil)
	var ranks [2]*peer
	for i, rank := range []string{"0", "1"} {
		ranks[i] = stock(t, "decode", "D", "--tp-size", "2", "--tp-rank", rank)
	}
	params := granted(t, p, "r1", ranks[0], ranks[1])
	read(ranks[0], "r1", params)
	readWell(ranks[0], "r1") // its half of the heads
	p.none("freed", "", interval)
	ranks[0].do("send", "engine_id", "P", "messages", []string{hex.EncodeToString([]byte("r1:2"))}) // the same rank once more
	p.none("freed", "", interval)
	read(ranks[1], "r1", params)
	readWell(ranks[1], "r1")
	freed(p, "r1", "completed")
}

func TestStrangeIDsLiveAsOthersDo(t *testing.T) {
	ids := []string{
		"chatcmpl-a,b-0a1b2c3d", "a,b,c", // S04: vLLM's own owner takes them for several ids, and the leases lapse
		"HB:job-1", // S05: it takes the completion for a heartbeat
		strings.Repeat("0123456789", 100),
	}
	p, d := ours(t, "P", nil), stock(t, "decode", "D")
	params := map[string]report{}
	for i, id := range ids {
		params[id] = throughRouter(t, p.do("grant", "id", id, "blocks", []int{10 * i, 10*i + 1, 10*i + 2}))
		d.do("track", "id", id, "params", params[id])
	}
	p.none("freed", "", duration+extension/2) // all of them in one heartbeat, neighbours of each other
	for _, id := range ids {
		t.Run(fmt.Sprintf("%.30s", id), func(t *testing.T) {
			read(d, id, params[id])
			readWell(d, id)
			freed(p, id, "completed") // shows S04.1, S05.1
		})
	}
}

func TestACompletionMayOvertakeItsGrant(t *testing.T) {
	p, d := ours(t, "P", nil), stock(t, "decode", "D")
	granted(t, p, "other", d) // for the connection
	p.do("expect", "id", "r1")
	d.do("send", "engine_id", "P", "messages", []string{hex.EncodeToString([]byte("r1:1"))})
	until(t, "the early completion is kept", func() bool { return p.stat("lease_kept") > 0 })
	p.do("grant", "id", "r1", "blocks", []int{20})
	freed(p, "r1", "completed") // shows C15.2
}

func TestNothingThatAStockPeerSendsStopsUs(t *testing.T) { // S01, S02, S03 end a stock owner
	p, d := ours(t, "P", nil), stock(t, "decode", "D")
	params := granted(t, p, "r1", d)
	messages := map[string]string{
		"not UTF-8": "\xff\xfe", "no colon": "hello", "empty": "", "a count that is no number": "r1:x", "no count": "r1:",
		"count 0": "r1:0", "a negative count": "r1:-1", "a count of 30 digits": "r1:" + strings.Repeat("9", 30), "no id": ":1",
		"a heartbeat of nothing": "HB:", "a heartbeat of commas": "HB:,,,,", "a heartbeat that is not UTF-8": "HB:r1,\xc3\x28",
		"an unknown id": "nobody:1", "unknown ids": "HB:nobody,no one", "a registration without content": "PUSH_REG:",
		"a registration": "PUSH_REG:\x8a\xaarequest_id\xa1d", "a registration that claims 4 billion keys": "PUSH_REG:\xdf\xff\xff\xff\xff",
		"half a native message": "\xff\x4b\x01\x02", "a native message with a count": "\xff\x4b\x01\x02" + strings.Repeat("\xff", 28),
		"a megabyte": strings.Repeat("x", 1<<20), "a heartbeat of a megabyte": "HB:" + strings.Repeat("nobody,", 1<<17), "zeros": strings.Repeat("\x00", 64),
	}
	before := p.stat("notifs_received")
	for name, m := range messages {
		if r := d.try("send", "engine_id", "P", "messages", []string{hex.EncodeToString([]byte(m))}); r["ok"] != true {
			t.Errorf("%s could not be sent: %v", name, r["error"])
		}
	}
	until(t, "all messages have arrived", func() bool { return p.stat("notifs_received") >= before+uint64(len(messages)) })
	// Heartbeats are among what was received, so that the last of the messages may be on their way still.
	until(t, "what is malformed is counted", func() bool { return p.stat("malformed_stock")+p.stat("malformed_native") >= 8 })
	p.none("freed", "", duration+extension/4) // the lease stands, and heartbeats still count
	read(d, "r1", params)
	readWell(d, "r1")
	freed(p, "r1", "completed") // shows S01.1, S02.1, S03.1
}

func TestASecondTurnOfAStockReaderFreesOurFixedLease(t *testing.T) {
	p, d := ours(t, "P", nil), stock(t, "decode", "D") // the owner is the engine that decoded in the first turn
	life := 4 * time.Second
	params := map[string]report{}
	for i, id := range []string{"in-time", "late"} {
		params[id] = throughRouter(t, p.do("grant", "id", id, "blocks", []int{10 * i, 10*i + 1, 10*i + 2}, "fixed", life.Seconds()))
		if params[id]["do_remote_decode"] != true || params[id]["do_remote_prefill"] != false || params[id].num("remote_blocks_expiry_time") == 0 {
			t.Fatalf("parameters of a fixed lease: %v", params[id])
		}
	}
	begun := p.do("stats").at()
	read(d, "in-time", params["in-time"])
	readWell(d, "in-time")
	freed(p, "in-time", "completed")
	d.do("send", "engine_id", "P", "messages", []string{hex.EncodeToString([]byte("HB:late"))}) // renews nothing
	end := freed(p, "late", "expired")
	within(t, "freed", end.at()-begun, life-slack, life+extension/8+settle+slack)
	read(d, "late", params["late"])
	if left := d.wait("declined", "late").num("left"); left > 0.5 {
		t.Errorf("%v s were left in the reader's clock", left)
	}
}
