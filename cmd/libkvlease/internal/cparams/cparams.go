// Package cparams is kvl_params_read of the C library for Go tests, which cannot use cgo themselves. Nothing else imports it.
package cparams

// #cgo CFLAGS: -std=c11 -I${SRCDIR}/../../include -I${SRCDIR}/../../src -I${SRCDIR}/../../../../ringbuf/include
// #include <stdlib.h>
// #include "kvlease.h"
import "C"

import (
	"errors"
	"unsafe"
)

// Remote is what the reader gives.
type Remote struct {
	Native           bool
	ID, Engine, Host string
	Port, TP, PP     uint32
	Tokens           uint32
	Groups           [][]uint32
	Epoch, Key       uint64
	Slot, Generation uint32
	ExpiresNs        uint64
}

// Read reads parameters in a buffer that is as long as the reader says that it must be.
func Read(text []byte) (*Remote, error) {
	var r C.kvl_remote_t
	r.size = C.uint32_t(unsafe.Sizeof(r))
	in := C.CBytes(append([]byte(nil), text...)) // its end is the block's, so that a sanitizer sees a read behind it
	defer C.free(in)
	var need C.size_t
	st := C.kvl_params_read((*C.char)(in), C.size_t(len(text)), &r, nil, 0, &need)
	buf := unsafe.Pointer(nil)
	if st == C.KVL_ERR_SPACE {
		buf = C.malloc(need)
		defer C.free(buf)
		st = C.kvl_params_read((*C.char)(in), C.size_t(len(text)), &r, buf, need, &need)
	}
	if st != C.KVL_OK {
		return nil, errors.New(C.GoString(C.kvl_last_error()))
	}
	text8 := func(b C.kvl_bytes_t) string { return C.GoStringN((*C.char)(b.data), C.int(b.len)) }
	out := &Remote{
		Native: r.native != 0, ID: text8(r.id), Engine: text8(r.engine_id), Host: text8(r.host), Port: uint32(r.port), TP: uint32(r.tp_size),
		PP: uint32(r.pp_size), Tokens: uint32(r.tokens), Epoch: uint64(r.epoch), Key: uint64(r.key), Slot: uint32(r.slot),
		Generation: uint32(r.generation), ExpiresNs: uint64(r.expires_ns),
	}
	if r.groups_n > 0 {
		for _, g := range unsafe.Slice(r.groups, int(r.groups_n)) {
			ids := make([]uint32, 0, int(g.n))
			if g.n > 0 {
				for _, id := range unsafe.Slice(g.ids, int(g.n)) {
					ids = append(ids, uint32(id))
				}
			}
			out.Groups = append(out.Groups, ids)
		}
	}
	return out, nil
}
