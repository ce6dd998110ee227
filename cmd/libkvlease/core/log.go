package main

// #include <stdint.h>
// #include "../include/kvlease.h"
import "C"

import (
	"math"
	"unsafe"
)

//export kvlgo_log_take
func kvlgo_log_take(handle C.int64_t, buf unsafe.Pointer, bufCap C.uint64_t, n *C.uint64_t) (st C.int32_t) {
	defer recovered(&st, nil, 0)
	c := get(int64(handle))
	if c == nil {
		return C.KVL_ERR_STALE
	}
	lines, need := c.Log(int(min(uint64(bufCap), math.MaxInt32)))
	if need > 0 {
		*n = C.uint64_t(need)
		return C.KVL_ERR_SPACE
	}
	if *n = C.uint64_t(len(lines)); len(lines) > 0 {
		copy(unsafe.Slice((*byte)(buf), int(bufCap)), lines)
	}
	return C.KVL_OK
}
