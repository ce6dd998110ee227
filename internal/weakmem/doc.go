// Package weakmem runs small concurrent programs in every way that the memory model of C11, as repaired since, allows.
//
// A program is a few threads over named words. Threads are ordinary Go functions that touch the words only through T:
// atomic loads, stores and read-modify-writes with an order, fences, and plain accesses. Explore builds every consistent
// execution and reports the first bad one: a data race, a failed assertion, or a thread that sleeps for ever.
//
// # The model
//
// RC11 (Lahav, Vafeiadis, Kang, Hur, Dreyer 2017) with the release sequences of C++20: an execution is a set of events with
// program order, a source for each read (rf), and an order of the writes of each word (mo). It is consistent if
//
//   - no event happens before one that it follows in the word's order (coherence),
//   - a read-modify-write reads the write just before its own (atomicity),
//   - program order and rf together have no cycle (no values out of thin air, so no load buffering: the one behaviour of
//     relaxed atomics on ARM that is left out), and
//   - sequentially consistent accesses and fences have one order (psc), which is weaker than it sounds: an acquire load
//     between two of them does not carry it.
//
// Store buffering, late and reordered visibility, and reads of old values follow from this. Plain words have no such freedom: two
// accesses that are not ordered, one a write, are a race, and a race is an error.
// Atomics of Go are sequentially consistent ones here.
//
// # The search
//
// Events are added one by one, and consistency is checked after each. Writes, fences and plain accesses are added as soon as they are
// next in their thread: every execution has such an order, since none of them depends on what others do. Reads are where the
// search branches, over threads and sources. Executions that come about in two ways are met once: a set of hashes of 128 bits.
// A thread's function is run anew for each new history of values that it has read, so it must do the same for the same values.
package weakmem
