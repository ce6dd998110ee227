package main

// #include <stdint.h>
// #include "../include/kvlease.h"
// #include "../src/layout.h"
import "C"

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/kvlease/kvlease/cuda/devices"
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// roles of the configuration as C numbers them.
var roles = map[string]C.uint32_t{"engine": C.KVL_ROLE_ENGINE, "host": C.KVL_ROLE_HOST, "rank": C.KVL_ROLE_RANK}

// Each export recovers, so that nothing unwinds through the boundary, and answers with a status. Pointers from C were
// checked by the C library; memory that C reads later is never Go's.

//export kvlgo_config
func kvlgo_config(cfg *C.char, n C.uint64_t, out *C.kvl_core_sizes_t, errText *C.char, errCap C.uint64_t) (st C.int32_t) {
	defer recovered(&st, errText, errCap)
	c, err := core.ParseConfig(C.GoBytes(unsafe.Pointer(cfg), C.int(n)))
	if err != nil {
		return fail(err, errText, errCap)
	}
	s := c.Sizes()
	*out = C.kvl_core_sizes_t{
		size: C.uint32_t(unsafe.Sizeof(*out)), leases: C.uint32_t(s.Leases), tracks: C.uint32_t(s.Tracks),
		producers: C.uint32_t(s.Producers), ring_bytes: C.uint32_t(s.RingBytes), overflow_bytes: C.uint32_t(s.OverflowBytes),
		events_bytes: C.uint32_t(s.EventsBytes), landing_bytes: C.uint32_t(s.LandingBytes), long_ids: C.uint32_t(c.LongIDsMax),
		idle_tick_ns: C.uint64_t(c.IdleTick), role: roles[c.Role], ranks: C.uint32_t(c.Ranks()),
		blocks_ttl_ns: C.uint64_t(c.BlocksTTL),
	}
	if s.Pump {
		out.pump = 1
	}
	return C.KVL_OK
}

//export kvlgo_open
func kvlgo_open(args *C.kvl_core_args_t, handle *C.int64_t, errText *C.char, errCap C.uint64_t) (st C.int32_t) {
	defer recovered(&st, errText, errCap)
	if args.size != C.uint32_t(unsafe.Sizeof(*args)) || args.abi != C.KVL_CORE_ABI {
		return fail(fmt.Errorf("%w: libkvlease.so and libkvlease-core.so are of different versions (argument size %d and %d, ABI %d and %d): install both from one build",
			core.ErrInvalid, args.size, unsafe.Sizeof(*args), args.abi, uint32(C.KVL_CORE_ABI)), errText, errCap)
	}
	cfg, err := core.ParseConfig(C.GoBytes(unsafe.Pointer(args.config), C.int(args.config_len)))
	if err != nil {
		return fail(err, errText, errCap)
	}
	mem := memoryOf(args, cfg.Sizes())
	tuneRuntime(cfg)
	c, err := core.Open(cfg, mem, transports, nil)
	if err != nil {
		return fail(err, errText, errCap)
	}
	devices.Machine{}.Use(c)
	*handle = C.int64_t(put(c))
	return C.KVL_OK
}

//export kvlgo_close
func kvlgo_close(handle C.int64_t, timeoutNs C.uint64_t, errText *C.char, errCap C.uint64_t) (st C.int32_t) {
	defer recovered(&st, errText, errCap)
	c := get(int64(handle))
	if c == nil {
		return C.KVL_ERR_STALE
	}
	if err := c.Close(span(timeoutNs)); err != nil {
		return fail(err, errText, errCap)
	}
	dropExporter(int64(handle))
	drop(int64(handle))
	return C.KVL_OK
}

//export kvlgo_drain
func kvlgo_drain(handle C.int64_t, timeoutNs C.uint64_t, errText *C.char, errCap C.uint64_t) (st C.int32_t) {
	defer recovered(&st, errText, errCap)
	c := get(int64(handle))
	if c == nil {
		return C.KVL_ERR_STALE
	}
	return fail(c.Drain(span(timeoutNs)), errText, errCap)
}

//export kvlgo_step
func kvlgo_step(handle C.int64_t, nowNs C.uint64_t) (st C.int32_t) {
	defer recovered(&st, nil, 0)
	c := get(int64(handle))
	if c == nil {
		return C.KVL_ERR_STALE
	}
	return status(c.StepAt(clock.Instant(nowNs)))
}

//export kvlgo_register
func kvlgo_register(handle C.int64_t, regions *C.kvl_region_t, n C.uint32_t, errText *C.char, errCap C.uint64_t) (st C.int32_t) {
	defer recovered(&st, errText, errCap)
	c := get(int64(handle))
	if c == nil {
		return C.KVL_ERR_STALE
	}
	list := make([]core.Region, 0, n)
	for _, r := range unsafe.Slice(regions, int(n)) {
		list = append(list, core.Region{
			Addr: uint64(r.addr), Bytes: uint64(r.bytes), BlockLen: uint64(r.block_len), BlockStride: uint64(r.block_stride),
			Blocks: uint32(r.blocks), Group: int32(r.group), Device: uint32(r.device), Mem: transport.Mem(r.mem), Name: string(bytesOf(r.name)),
			Parts: uint32(r.parts), Replicated: r.flags&C.KVL_REGION_REPLICATED != 0,
		})
	}
	return fail(c.Register(list), errText, errCap)
}

//export kvlgo_unregister
func kvlgo_unregister(handle C.int64_t, errText *C.char, errCap C.uint64_t) (st C.int32_t) {
	defer recovered(&st, errText, errCap)
	c := get(int64(handle))
	if c == nil {
		return C.KVL_ERR_STALE
	}
	return fail(c.Unregister(), errText, errCap)
}

//export kvlgo_engine_add
func kvlgo_engine_add(handle C.int64_t, d *C.kvl_engine_desc_t, engine *C.uint64_t, errText *C.char, errCap C.uint64_t) (st C.int32_t) {
	defer recovered(&st, errText, errCap)
	c := get(int64(handle))
	if c == nil {
		return C.KVL_ERR_STALE
	}
	e, err := c.AddPeer(heartbeat.EngineDesc{
		ID: string(bytesOf(d.engine_id)), TP: uint32(d.ranks), PP: uint32(d.pp_size), User: uint64(d.user),
	}, string(bytesOf(d.host)), int(d.port))
	if err == nil {
		*engine = C.uint64_t(e)
	}
	return fail(err, errText, errCap)
}

//export kvlgo_engine_remove
func kvlgo_engine_remove(handle C.int64_t, engine C.uint64_t) (st C.int32_t) {
	defer recovered(&st, nil, 0)
	c := get(int64(handle))
	if c == nil {
		return C.KVL_ERR_STALE
	}
	return status(c.RemoveEngine(uint64(engine)))
}

//export kvlgo_engine_handshake
func kvlgo_engine_handshake(handle C.int64_t, engine C.uint64_t, rank C.uint32_t, data unsafe.Pointer, n C.uint64_t, errText *C.char, errCap C.uint64_t) (st C.int32_t) {
	defer recovered(&st, errText, errCap)
	c := get(int64(handle))
	if c == nil {
		return C.KVL_ERR_STALE
	}
	if n > 1<<20 {
		return fail(fmt.Errorf("%w: handshake map of %d bytes, at most 1 MiB", core.ErrInvalid, uint64(n)), errText, errCap)
	}
	return fail(c.Handshake(uint64(engine), uint32(rank), C.GoBytes(data, C.int(n))), errText, errCap)
}

//export kvlgo_handshake_get
func kvlgo_handshake_get(handle C.int64_t, rank C.uint32_t, buf unsafe.Pointer, bufCap C.uint64_t, n *C.uint64_t, errText *C.char, errCap C.uint64_t) (st C.int32_t) {
	defer recovered(&st, errText, errCap)
	c := get(int64(handle))
	if c == nil {
		return C.KVL_ERR_STALE
	}
	m, err := c.OwnHandshake(uint32(rank))
	if err != nil {
		return fail(err, errText, errCap)
	}
	return copyOut(m, buf, bufCap, n)
}

//export kvlgo_handshake_set
func kvlgo_handshake_set(handle C.int64_t, rank C.uint32_t, data unsafe.Pointer, n C.uint64_t, errText *C.char, errCap C.uint64_t) (st C.int32_t) {
	defer recovered(&st, errText, errCap)
	c := get(int64(handle))
	if c == nil {
		return C.KVL_ERR_STALE
	}
	if n > 1<<20 {
		return fail(fmt.Errorf("%w: handshake map of %d bytes, at most 1 MiB", core.ErrInvalid, uint64(n)), errText, errCap)
	}
	return fail(c.HandshakeSet(uint32(rank), C.GoBytes(data, C.int(n))), errText, errCap)
}

//export kvlgo_delta_take
func kvlgo_delta_take(handle C.int64_t, rank C.uint32_t, buf unsafe.Pointer, bufCap C.uint64_t, n *C.uint64_t, errText *C.char, errCap C.uint64_t) (st C.int32_t) {
	defer recovered(&st, errText, errCap)
	c := get(int64(handle))
	if c == nil {
		return C.KVL_ERR_STALE
	}
	got, err := c.DeltaTake(uint32(rank), unsafe.Slice((*byte)(buf), int(min(bufCap, C.KVL_DELTA_MAX))))
	*n = C.uint64_t(got)
	return fail(err, errText, errCap)
}

//export kvlgo_delta_put
func kvlgo_delta_put(handle C.int64_t, rank C.uint32_t, data unsafe.Pointer, n C.uint64_t, errText *C.char, errCap C.uint64_t) (st C.int32_t) {
	defer recovered(&st, errText, errCap)
	c := get(int64(handle))
	if c == nil {
		return C.KVL_ERR_STALE
	}
	return fail(c.DeltaPut(uint32(rank), unsafe.Slice((*byte)(data), int(n))), errText, errCap)
}

//export kvlgo_delta_lost
func kvlgo_delta_lost(handle C.int64_t, rank C.uint32_t, errText *C.char, errCap C.uint64_t) (st C.int32_t) {
	defer recovered(&st, errText, errCap)
	c := get(int64(handle))
	if c == nil {
		return C.KVL_ERR_STALE
	}
	return fail(c.DeltaLost(uint32(rank)), errText, errCap)
}

//export kvlgo_stats
func kvlgo_stats(handle C.int64_t, buf unsafe.Pointer, bufCap C.uint64_t, n *C.uint64_t) (st C.int32_t) {
	defer recovered(&st, nil, 0)
	c := get(int64(handle))
	if c == nil {
		return C.KVL_ERR_STALE
	}
	return copyOut(c.Stats(), buf, bufCap, n)
}

//export kvlgo_config_json
func kvlgo_config_json(handle C.int64_t, buf unsafe.Pointer, bufCap C.uint64_t, n *C.uint64_t) (st C.int32_t) {
	defer recovered(&st, nil, 0)
	c := get(int64(handle))
	if c == nil {
		return C.KVL_ERR_STALE
	}
	return copyOut(c.Config().JSON(), buf, bufCap, n)
}

//export kvlgo_params_info
func kvlgo_params_info(handle C.int64_t, buf unsafe.Pointer, bufCap C.uint64_t, n *C.uint64_t) (st C.int32_t) {
	defer recovered(&st, nil, 0)
	c := get(int64(handle))
	if c == nil {
		return C.KVL_ERR_STALE
	}
	return copyOut(c.ParamsInfo(), buf, bufCap, n)
}

func span(ns C.uint64_t) time.Duration { return time.Duration(min(uint64(ns), 1<<62)) }

func bytesOf(b C.kvl_bytes_t) []byte {
	if b.len == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(b.data), int(b.len))
}

// copyOut copies what fits or tells the length that is needed.
func copyOut(data []byte, buf unsafe.Pointer, bufCap C.uint64_t, n *C.uint64_t) C.int32_t {
	*n = C.uint64_t(len(data))
	if buf == nil || uint64(bufCap) < uint64(len(data)) {
		return C.KVL_ERR_SPACE
	}
	copy(unsafe.Slice((*byte)(buf), int(bufCap)), data)
	return C.KVL_OK
}

// fail writes the error's text for kvl_last_error and gives its status; nil is KVL_OK.
func fail(err error, errText *C.char, errCap C.uint64_t) C.int32_t {
	if err != nil && errText != nil && errCap > 0 {
		dst := unsafe.Slice((*byte)(unsafe.Pointer(errText)), int(errCap))
		dst[copy(dst[:len(dst)-1], err.Error())] = 0
	}
	return status(err)
}

// recovered turns a panic outside a step into a poisoned-looking answer of this one call. The step has its own, which
// fences first.
func recovered(st *C.int32_t, errText *C.char, errCap C.uint64_t) {
	if what := recover(); what != nil {
		*st = fail(errors.Join(core.ErrPoisoned, fmt.Errorf("panic: %v", what)), errText, errCap)
	}
}
