package lease

// publishBarrier orders the fence words before whatever a device may see next (L10): DMB OSHST, since the inner-shareable
// barriers of Go's atomics do not reach devices.
func publishBarrier()
