package cuda

// #include "shim.h"
import "C"

// Stream is an order of work on a device: a CUstream, which is a cudaStream_t, too. 0 is the default stream.
type Stream uint64

// Event is a point in a stream: a CUevent, which is a cudaEvent_t, too. A number that is none is undefined behaviour in the driver.
type Event uint64

// NewStream makes a stream that does not wait for the default one.
func (c *Context) NewStream() (Stream, error) {
	var fault C.kvlc_fault_t
	var s C.uint64_t
	err := c.told(C.kvlc_stream(c.driver.handle, c.device, &s, &fault), &fault)
	return Stream(s), err
}

// EndStream gives a stream of NewStream back.
func (c *Context) EndStream(s Stream) error {
	var fault C.kvlc_fault_t
	return c.told(C.kvlc_stream_end(c.driver.handle, c.device, C.uint64_t(s), &fault), &fault)
}

// NewEvent makes an event that keeps no time.
func (c *Context) NewEvent() (Event, error) {
	var fault C.kvlc_fault_t
	var e C.uint64_t
	err := c.told(C.kvlc_event(c.driver.handle, c.device, &e, &fault), &fault)
	return Event(e), err
}

// EndEvent gives an event of NewEvent back.
func (c *Context) EndEvent(e Event) error {
	var fault C.kvlc_fault_t
	return c.told(C.kvlc_event_end(c.driver.handle, c.device, C.uint64_t(e), &fault), &fault)
}

// Record has the event stand for all that is in the stream so far.
func (c *Context) Record(e Event, s Stream) error {
	var fault C.kvlc_fault_t
	return c.told(C.kvlc_event_record(c.driver.handle, c.device, C.uint64_t(e), C.uint64_t(s), &fault), &fault)
}

// Wait has work that is put into the stream later begin after the event. It returns at once.
func (c *Context) Wait(s Stream, e Event) error {
	var fault C.kvlc_fault_t
	return c.told(C.kvlc_stream_wait(c.driver.handle, c.device, C.uint64_t(s), C.uint64_t(e), &fault), &fault)
}

// Fired reports whether all that the event stands for is done. An event that was never recorded has fired. It does not wait.
func (c *Context) Fired(e Event) (bool, error) {
	var fault C.kvlc_fault_t
	st := C.kvlc_event_query(c.driver.handle, c.device, C.uint64_t(e), &fault)
	if st < 0 {
		kept := fault
		return false, c.told(st, &kept)
	}
	return st == C.KVLC_OK, nil
}
