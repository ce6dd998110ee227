// Package ringbuf is a ring of variable-length records between one producer and one consumer. The header-only C half,
// include/kvlease/ring.h, works on the same memory: either end may be in either language, or in another process.
//
// # Memory
//
// A header of 256 bytes, then capacity bytes, capacity a power of two of at least 4,096. All words are little-endian;
// the memory is 8-byte aligned (64 keeps the cache lines apart).
//
//	offset  what      who writes it
//	     0  magic     u32 'kvlR' = 0x526c766b, Format
//	     4  version   u32 1, Format
//	     8  capacity  u32, Format; both ends read it once, when they attach
//	    64  head      u64, producer: bytes ever published
//	    72  refused   u64, producer: records that found no room
//	   128  tail      u64, consumer: bytes ever given back
//	   256  records
//
// A record is 8 bytes of header {u32 payload length, u32 tag}, the payload, and zero to seven bytes up to a multiple
// of 8; at most 4,096 bytes in all. A record never wraps: where the rest of the ring is too short for one, a padding
// record (tag 0xFFFFFFFF) fills it and the record starts at offset 0. Positions are counts of bytes and never wrap.
//
// # Memory edges
//
// Each edge orders everything before its release against everything after its acquire.
//
//	release                          acquire                           what it orders
//	P1  head, Producer.Publish       C1  head, Consumer.Next, Empty    records are written before they are seen
//	C2  tail, Consumer.Release       P2  tail, Producer.Reserve        records are read before they are overwritten
//
// Refused is a relaxed counter: it orders nothing. That it is not 0 tells the consumer to look where the producer puts what found no room; it
// is counted before anything is put there, so whoever is sure to see that publish is sure to see the count. The copy of the other side's index that each end keeps is in the
// Producer or Consumer, never in the shared memory, so an end that is not out of room or records touches no cache line
// of the other.
//
// # Trust
//
// Neither end trusts the other with memory safety. A consumer reads each record header once and checks it against the
// limits and the published bytes; what does not fit makes it Corrupt for good and nothing more is handed out. A
// producer masks every offset, so a tail that lies can lose records but not move a store out of the ring. A hostile
// producer can change a payload while it is read: whoever shares memory with one copies before checking.
package ringbuf
