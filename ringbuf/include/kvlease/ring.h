/* A ring of variable-length records between one producer and one consumer, header only, C11 and C++11.
 *
 * The Go half, github.com/kvlease/kvlease/ringbuf, works on the same memory. Layout, record format, memory edges
 * (P1/C1 head, C2/P2 tail) and what each end may trust are described in ringbuf/doc.go.
 *
 * Threads: one producer, one consumer. Memory: the ring's, which must outlive both ends; nothing is allocated, and
 * nothing waits. Reserve and next are a few nanoseconds; publish and release are one store each.
 */
#ifndef KVLEASE_RING_H
#define KVLEASE_RING_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
#define KVL_RING_ATOMIC(type) type
#define KVL_RING_LOAD_RELAXED(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define KVL_RING_LOAD_ACQUIRE(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define KVL_RING_STORE_RELAXED(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define KVL_RING_STORE_RELEASE(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define KVL_RING_ASSERT(x) static_assert(x, #x)
extern "C" {
#else
#include <stdatomic.h>
#define KVL_RING_ATOMIC(type) _Atomic(type)
#define KVL_RING_LOAD_RELAXED(p) atomic_load_explicit((p), memory_order_relaxed)
#define KVL_RING_LOAD_ACQUIRE(p) atomic_load_explicit((p), memory_order_acquire)
#define KVL_RING_STORE_RELAXED(p, v) atomic_store_explicit((p), (v), memory_order_relaxed)
#define KVL_RING_STORE_RELEASE(p, v) atomic_store_explicit((p), (v), memory_order_release)
#define KVL_RING_ASSERT(x) _Static_assert(x, #x)
#endif

#if defined(__GNUC__)
#define KVL_RING_LIKELY(x) __builtin_expect(!!(x), 1)
#define KVL_RING_COLD __attribute__((noinline, cold, unused))
#else
#define KVL_RING_LIKELY(x) (x)
#define KVL_RING_COLD
#endif

#define KVL_RING_MAGIC 0x526c766bu /* 'kvlR' */
#define KVL_RING_VERSION 1u
#define KVL_RING_HEADER_BYTES 256u
#define KVL_RING_CAPACITY_MIN 4096u        /* a power of two, up to 2^31 */
#define KVL_RING_RECORD_BYTES_MAX 4096u    /* header, payload and fill */
#define KVL_RING_PAYLOAD_BYTES_MAX 4088u
#define KVL_RING_TAG_PAD 0xFFFFFFFFu       /* fills the end of the ring; no other record may carry it */

typedef KVL_RING_ATOMIC(uint64_t) kvl_ring_word_t;

/* The first 256 bytes. Head and tail have cache lines of their own. */
typedef struct kvl_ring_header {
	uint32_t magic;
	uint32_t version;
	uint32_t capacity; /* read once, by init */
	uint32_t zero0;
	uint64_t zero1[6];
	kvl_ring_word_t head;    /* bytes ever published; producer */
	kvl_ring_word_t refused; /* records that found no room; producer */
	uint64_t zero2[6];
	kvl_ring_word_t tail; /* bytes ever given back; consumer */
	uint64_t zero3[15];
} kvl_ring_header_t;
KVL_RING_ASSERT(sizeof(kvl_ring_header_t) == KVL_RING_HEADER_BYTES);
KVL_RING_ASSERT(offsetof(kvl_ring_header_t, head) == 64);
KVL_RING_ASSERT(offsetof(kvl_ring_header_t, refused) == 72);
KVL_RING_ASSERT(offsetof(kvl_ring_header_t, tail) == 128);

/* One end each: private to it, best on cache lines of its own. Positions count bytes and never wrap. */
typedef struct kvl_ring_producer {
	uint8_t *records;
	uint64_t mask;
	uint64_t pos;   /* of the next record */
	uint64_t limit; /* up to here the memory is free and does not wrap, by the tail last seen */
	uint64_t published;
	kvl_ring_header_t *ring;
} kvl_ring_producer_t;

typedef struct kvl_ring_consumer {
	uint8_t *records;
	uint64_t mask;
	uint64_t pos;   /* of the next record */
	uint64_t limit; /* up to here records are published and do not wrap, by the head last seen */
	uint64_t head;  /* last seen */
	uint64_t released;
	kvl_ring_header_t *ring;
	int corrupt;
} kvl_ring_consumer_t;

/* ---- both ends ---- */

/** Bytes of memory that a ring of this capacity takes. */
static inline size_t kvl_ring_bytes(uint32_t capacity) { return KVL_RING_HEADER_BYTES + (size_t)capacity; }

static inline int kvl_ring_fits(const void *mem, size_t len, uint32_t capacity)
{
	return mem != NULL && (uintptr_t)mem % 8 == 0 && capacity >= KVL_RING_CAPACITY_MIN &&
	       (capacity & (capacity - 1)) == 0 && len >= kvl_ring_bytes(capacity);
}

/** Make an empty ring in mem (8-byte aligned, kvl_ring_bytes(capacity) long); nobody may be attached.
 * @return 1; 0: the capacity or the memory does not fit, nothing was changed. */
static inline int kvl_ring_format(void *mem, size_t len, uint32_t capacity)
{
	kvl_ring_header_t *ring = (kvl_ring_header_t *)mem;
	if (!kvl_ring_fits(mem, len, capacity))
		return 0;
	memset(mem, 0, KVL_RING_HEADER_BYTES);
	ring->capacity = capacity;
	ring->version = KVL_RING_VERSION;
	ring->magic = KVL_RING_MAGIC;
	return 1;
}

/* The capacity, checked; 0 if this is no ring. */
static inline uint32_t kvl_ring_attach(const void *mem, size_t len)
{
	const kvl_ring_header_t *ring = (const kvl_ring_header_t *)mem;
	uint32_t capacity;
	if (mem == NULL || (uintptr_t)mem % 8 != 0 || len < KVL_RING_HEADER_BYTES)
		return 0;
	capacity = *(const volatile uint32_t *)&ring->capacity; /* once: what is checked is what is used */
	if (ring->magic != KVL_RING_MAGIC || ring->version != KVL_RING_VERSION || !kvl_ring_fits(mem, len, capacity))
		return 0;
	return capacity;
}

static inline uint64_t kvl_ring_record_bytes(uint64_t payload) { return (payload + 15) & ~(uint64_t)7; }

/* The first position after pos at which the ring starts again. */
static inline uint64_t kvl_ring_lap_end(uint64_t pos, uint64_t mask) { return (pos | mask) + 1; }

static inline uint64_t kvl_ring_min(uint64_t a, uint64_t b) { return a < b ? a : b; }

static inline kvl_ring_word_t *kvl_ring_at(uint8_t *records, uint64_t off)
{
	return (kvl_ring_word_t *)(void *)(records + off);
}

/* ---- producer ---- */

/** Attach and go on behind the last published record. @return 1; 0: no ring here. */
static inline int kvl_ring_producer_init(kvl_ring_producer_t *p, void *mem, size_t len)
{
	kvl_ring_header_t *ring = (kvl_ring_header_t *)mem;
	uint32_t capacity = kvl_ring_attach(mem, len);
	uint64_t head = capacity != 0 ? KVL_RING_LOAD_RELAXED(&ring->head) : 1;
	if (head % 8 != 0)
		return 0;
	p->records = (uint8_t *)mem + KVL_RING_HEADER_BYTES;
	p->mask = (uint64_t)capacity - 1;
	p->pos = p->limit = p->published = head;
	p->ring = ring;
	return 1;
}

/** Show the consumer everything reserved since the last publish, at once. */
static inline void kvl_ring_publish(kvl_ring_producer_t *p)
{
	p->published = p->pos;
	/* P1: release; pairs with C1 in kvl_ring_look. Records below head are written before head is seen. */
	KVL_RING_STORE_RELEASE(&p->ring->head, p->pos);
}

/** Forget everything reserved since the last publish. */
static inline void kvl_ring_discard(kvl_ring_producer_t *p)
{
	p->pos = p->published;
	p->limit = p->pos; /* it may have been in the next lap */
}

static inline void *kvl_ring_refuse(kvl_ring_producer_t *p)
{
	KVL_RING_STORE_RELAXED(&p->ring->refused, KVL_RING_LOAD_RELAXED(&p->ring->refused) + 1); /* one writer */
	return NULL;
}

static inline void *kvl_ring_put(kvl_ring_producer_t *p, uint32_t tag, uint32_t n)
{
	uint8_t *record = p->records + (p->pos & p->mask);
	KVL_RING_STORE_RELAXED((kvl_ring_word_t *)(void *)record, (uint64_t)tag << 32 | n);
	p->pos += kvl_ring_record_bytes(n);
	return record + 8;
}

static inline void kvl_ring_pad(kvl_ring_producer_t *p, uint64_t size)
{
	KVL_RING_STORE_RELAXED(kvl_ring_at(p->records, p->pos & p->mask), (uint64_t)KVL_RING_TAG_PAD << 32 | (size - 8));
	p->pos += size;
}

/* Looks at the tail again and starts the ring's next lap. */
KVL_RING_COLD static void *kvl_ring_reserve_slow(kvl_ring_producer_t *p, uint32_t tag, uint32_t n)
{
	uint64_t size = kvl_ring_record_bytes(n), capacity = p->mask + 1, tail, used, free, pad;
	if (n > KVL_RING_PAYLOAD_BYTES_MAX || tag == KVL_RING_TAG_PAD)
		return kvl_ring_refuse(p);
	/* P2: acquire; pairs with C2 in kvl_ring_release. What the consumer has given back it no longer reads. */
	tail = KVL_RING_LOAD_ACQUIRE(&p->ring->tail);
	used = p->pos - tail;
	if (used > capacity) /* a tail ahead of the head, or too far behind: nothing that a consumer could have written */
		return kvl_ring_refuse(p);
	free = capacity - used;
	pad = kvl_ring_lap_end(p->pos, p->mask) - p->pos;
	p->limit = p->pos + kvl_ring_min(free, pad);
	if (size <= p->limit - p->pos)
		return kvl_ring_put(p, tag, n);
	if (size <= pad) /* fits before the end, once there is room */
		return kvl_ring_refuse(p);
	if (pad + size <= free) {
		kvl_ring_pad(p, pad);
		p->limit = p->pos + free - pad;
		return kvl_ring_put(p, tag, n);
	}
	if (pad + size > capacity && pad <= free && p->pos == p->published) {
		/* Even an empty ring cannot hold both. The padding goes alone, so that a later try finds offset 0. */
		kvl_ring_pad(p, pad);
		p->limit = p->pos;
		kvl_ring_publish(p);
	}
	return kvl_ring_refuse(p);
}

/**
 * Room for a new record's n bytes of payload, 8-byte aligned; the consumer sees the record after publish.
 * @return NULL, and counted: no room, n above KVL_RING_PAYLOAD_BYTES_MAX, or tag is KVL_RING_TAG_PAD.
 */
static inline void *kvl_ring_reserve(kvl_ring_producer_t *p, uint32_t tag, uint32_t n)
{
	if (KVL_RING_LIKELY(n <= KVL_RING_PAYLOAD_BYTES_MAX && kvl_ring_record_bytes(n) <= p->limit - p->pos &&
			    tag != KVL_RING_TAG_PAD))
		return kvl_ring_put(p, tag, n);
	return kvl_ring_reserve_slow(p, tag, n);
}

/** Where the next record will be reserved, padding aside: a consumer whose position has reached it has been handed
 * every record reserved so far. */
static inline uint64_t kvl_ring_producer_position(const kvl_ring_producer_t *p) { return p->pos; }

/** How many reserves returned NULL since format. */
static inline uint64_t kvl_ring_refused(const kvl_ring_producer_t *p) { return KVL_RING_LOAD_RELAXED(&p->ring->refused); }

/* ---- consumer ---- */

/** Attach and go on at the first record not given back. @return 1; 0: no ring here. */
static inline int kvl_ring_consumer_init(kvl_ring_consumer_t *c, void *mem, size_t len)
{
	kvl_ring_header_t *ring = (kvl_ring_header_t *)mem;
	uint32_t capacity = kvl_ring_attach(mem, len);
	uint64_t tail = capacity != 0 ? KVL_RING_LOAD_RELAXED(&ring->tail) : 1;
	if (tail % 8 != 0)
		return 0;
	c->records = (uint8_t *)mem + KVL_RING_HEADER_BYTES;
	c->mask = (uint64_t)capacity - 1;
	c->pos = c->limit = c->head = c->released = tail;
	c->ring = ring;
	c->corrupt = 0;
	return 1;
}

/* Takes a new head if there is one and it can be true. */
static inline int kvl_ring_look(kvl_ring_consumer_t *c)
{
	/* C1: acquire; pairs with P1 in kvl_ring_publish. */
	uint64_t head = KVL_RING_LOAD_ACQUIRE(&c->ring->head);
	uint64_t held = c->pos - c->released; /* handed out and not given back: the producer cannot have written there */
	if (head == c->head)
		return 0;
	if (head % 8 != 0 || head - c->pos > c->mask + 1 - held) {
		c->corrupt = 1;
		return 0;
	}
	c->head = head;
	return 1;
}

/* Looks at the head again, skips padding, and decides about what did not look like a record. */
KVL_RING_COLD static const void *kvl_ring_next_slow(kvl_ring_consumer_t *c, uint32_t *tag_out, uint32_t *len_out)
{
	int i;
	for (i = 0; i < 2; i++) { /* padding, then a record: padding is never at the start of the ring */
		uint64_t to_end, room, off, header, n, size;
		if (c->corrupt || (c->pos == c->head && !kvl_ring_look(c)))
			return NULL;
		to_end = kvl_ring_lap_end(c->pos, c->mask) - c->pos;
		room = kvl_ring_min(c->head - c->pos, to_end); /* distances: a hostile index may be at the end of numbers */
		c->limit = c->pos + room;
		off = c->pos & c->mask;
		header = KVL_RING_LOAD_RELAXED(kvl_ring_at(c->records, off));
		n = (uint32_t)header;
		size = kvl_ring_record_bytes(n);
		if (n > KVL_RING_PAYLOAD_BYTES_MAX || size > room)
			break;
		if (header >> 32 != KVL_RING_TAG_PAD) {
			c->pos += size;
			*tag_out = (uint32_t)(header >> 32);
			*len_out = (uint32_t)n;
			return c->records + off + 8;
		}
		if (off == 0 || size != to_end)
			break;
		c->pos += to_end;
		c->limit = c->pos;
	}
	c->corrupt = 1;
	c->limit = c->pos;
	return NULL;
}

/**
 * The next published record's payload, in order, 8-byte aligned and valid until release.
 * @return NULL: none now, or for ever once kvl_ring_corrupt; the outputs are unchanged.
 */
static inline const void *kvl_ring_next(kvl_ring_consumer_t *c, uint32_t *tag_out, uint32_t *len_out)
{
	if (KVL_RING_LIKELY(c->pos != c->limit)) {
		uint64_t off = c->pos & c->mask;
		uint64_t header = KVL_RING_LOAD_RELAXED(kvl_ring_at(c->records, off)); /* once: checked is used */
		uint64_t n = (uint32_t)header, size = kvl_ring_record_bytes(n);
		if (KVL_RING_LIKELY(n <= KVL_RING_PAYLOAD_BYTES_MAX && size <= c->limit - c->pos &&
				    header >> 32 != KVL_RING_TAG_PAD)) {
			c->pos += size;
			*tag_out = (uint32_t)(header >> 32);
			*len_out = (uint32_t)n;
			return c->records + off + 8;
		}
	}
	return kvl_ring_next_slow(c, tag_out, len_out);
}

/** Give back everything that next has handed out. */
static inline void kvl_ring_release(kvl_ring_consumer_t *c)
{
	c->released = c->pos;
	/* C2: release; pairs with P2 in kvl_ring_reserve_slow. Records below tail are read before tail is seen. */
	KVL_RING_STORE_RELEASE(&c->ring->tail, c->pos);
}

/** Where next goes on: everything before it has been handed out. */
static inline uint64_t kvl_ring_consumer_position(const kvl_ring_consumer_t *c) { return c->pos; }

/** 1 if next would hand out nothing now. Padding with nothing behind it is not empty until a next has skipped it. */
static inline int kvl_ring_empty(const kvl_ring_consumer_t *c)
{
	/* C1: acquire; see kvl_ring_look. */
	return c->corrupt || (c->pos == c->head && c->pos == KVL_RING_LOAD_ACQUIRE(&c->ring->head));
}

/** 1 once the ring's words or a record contradicted the layout. */
static inline int kvl_ring_corrupt(const kvl_ring_consumer_t *c) { return c->corrupt; }

#ifdef __cplusplus
}
#endif
#endif
