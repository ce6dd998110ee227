package main

// #include <stdint.h>
// #include "../include/kvlease.h"
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/metrics"
)

// exporters of the cores that were asked for metrics, by handle.
var exporters struct {
	sync.Mutex
	of map[int64]*metrics.Exporter
}

func exporterOf(handle int64, c *core.Core) *metrics.Exporter {
	exporters.Lock()
	defer exporters.Unlock()
	e := exporters.of[handle]
	if e == nil {
		if exporters.of == nil {
			exporters.of = map[int64]*metrics.Exporter{}
		}
		e = metrics.NewExporter(c.Page)
		exporters.of[handle] = e
	}
	return e
}

// dropExporter ends what a closed context exports.
func dropExporter(handle int64) {
	exporters.Lock()
	e := exporters.of[handle]
	delete(exporters.of, handle)
	exporters.Unlock()
	if e != nil {
		e.Close()
	}
}

//export kvlgo_metrics_text
func kvlgo_metrics_text(handle C.int64_t, buf unsafe.Pointer, bufCap C.uint64_t, n *C.uint64_t) (st C.int32_t) {
	defer recovered(&st, nil, 0)
	c := get(int64(handle))
	if c == nil {
		return C.KVL_ERR_STALE
	}
	text, err := exporterOf(int64(handle), c).Text()
	if err != nil {
		return status(metricsError(err))
	}
	return copyOut(text, buf, bufCap, n)
}

//export kvlgo_metrics_listen
func kvlgo_metrics_listen(handle C.int64_t, addr *C.char, addrLen C.uint64_t, port *C.uint32_t, errText *C.char, errCap C.uint64_t) (st C.int32_t) {
	defer recovered(&st, errText, errCap)
	c := get(int64(handle))
	if c == nil {
		return C.KVL_ERR_STALE
	}
	at, err := exporterOf(int64(handle), c).Listen(C.GoStringN(addr, C.int(addrLen)))
	if err != nil {
		return fail(metricsError(err), errText, errCap)
	}
	*port = C.uint32_t(at.Port())
	return C.KVL_OK
}

// metricsError gives an error of package metrics the sentinel that has a status.
func metricsError(err error) error {
	switch {
	case errors.Is(err, metrics.ErrAddr), errors.Is(err, metrics.ErrListening):
		return fmt.Errorf("%w: %w", core.ErrInvalid, err)
	case errors.Is(err, metrics.ErrListen):
		return fmt.Errorf("%w: %w", core.ErrUnavailable, err)
	case errors.Is(err, metrics.ErrClosed):
		return fmt.Errorf("%w: %w", core.ErrClosed, err)
	}
	return err
}
