package kvcache

import "unsafe"

// Addr is where a layer lies, for the transport. The memory is mapped, so the address stays true.
func (c *Cache) Addr(layer uint32) uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(c.base[layer]))))
}
