/* The fencing argument: one slot, its uses one behind the other, and two readers whose NICs read late and in pieces.
 *
 * The engine writes a use's data and grants it. The core ends it at any time: it raises the row's word, waits for the barrier, and
 * publishes the end; these are three steps, and the word lies in the CPU's store buffer between the first and the second. The
 * engine then writes other data, which the device may see before the word. A reader has the data read in two halves, and when both
 * are DONE the fence word in two digits, and accepts if the word is base + g.
 *
 * Safety:  accepted data is the granted data.
 *          A read that is not accepted was overtaken by an end that its own completion had no part in.
 */
#ifndef USES
#define USES 3
#endif
#ifndef BASE
#define BASE 1
#endif
#ifndef DIGIT
#define DIGIT 4 /* a word is read as two digits; stands for 256 */
#endif
#define READERS 2

#ifdef SLOW_TEAR /* so many ends between the digits of one read that the low one comes round */
#undef BASE
#undef DIGIT
#define BASE 0
#define DIGIT 2
#endif

#ifdef G_FROM_1
#define WANTED(g) (BASE + (g) + 1)
#else
#define WANTED(g) (BASE + (g))
#endif

#define DATA 1
#define FENCE 2
#define NOTHING 255 /* no digit: the complement of what is wanted */

byte half[2];        /* whose data the block holds: use + 1 */
byte word = BASE;    /* what a device sees */
byte stored;         /* in the CPU's store buffer */
bool buffered;
byte use;
bool held, published;
byte completed;      /* readers of this use that have said so, by bit */
bool byCompletion;   /* how the last use ended */
byte endedBy[USES];  /* 1: by completion, 2: otherwise */

byte posted[READERS], got[READERS];
byte a[READERS], b[READERS], lo[READERS], hi[READERS];

inline raise(g) { atomic { stored = BASE + g + 1; buffered = true } }

#ifdef NO_BARRIER
inline barrier() { skip }
#else
inline barrier() { !buffered }
#endif

inline publish() { atomic { held = false; published = true } }

/* What leaves the store buffer is seen by devices from then on. */
active proctype Buffer()
{
end:
	do
	:: atomic { buffered -> word = stored; buffered = false }
	od
}

active proctype Core()
{
	byte g;
end:
	do
	:: held ->
		g = use;
		if
		:: completed == 3 -> endedBy[g] = 1
		:: endedBy[g] = 2
		fi;
#ifdef FENCE_AFTER_PUBLISH
		publish(); raise(g); barrier()
#else
		raise(g); barrier(); publish()
#endif
	od
}

active proctype Engine()
{
	byte g;
	do
	:: g < USES ->
		half[0] = g + 1;
		half[1] = g + 1;
		atomic { use = g; completed = 0; published = false; held = true };
		published -> g++
	:: else -> break
	od;
	half[0] = NOTHING; /* data that no lease is about */
	half[1] = NOTHING
}

proctype Nic(byte r)
{
end:
	do
	:: atomic { (posted[r] & DATA) && !(got[r] & 1) -> a[r] = half[0]; got[r] = got[r] | 1 }
	:: atomic { (posted[r] & DATA) && !(got[r] & 2) -> b[r] = half[1]; got[r] = got[r] | 2 }
	:: atomic { (posted[r] & FENCE) && !(got[r] & 4) -> lo[r] = word % DIGIT; got[r] = got[r] | 4 }
	:: atomic { (posted[r] & FENCE) && !(got[r] & 8) -> hi[r] = word / DIGIT; got[r] = got[r] | 8 }
	:: atomic { (posted[r] & FENCE) && !(got[r] & 12) -> got[r] = got[r] | 12 } /* DONE, and it brought nothing */
	od
}

proctype Reader(byte r)
{
	byte g, from;
	bool whole; /* the fence read brought both digits */
end:
	do
	:: atomic { held && use >= from -> g = use; from = use + 1; got[r] = 0 };
#ifdef NO_PRESET
		atomic { lo[r] = word % DIGIT; hi[r] = word / DIGIT }; /* the row was read before, into the same memory */
#else
		atomic { lo[r] = NOTHING; hi[r] = NOTHING };
#endif
#ifdef FENCE_READ_EARLY
		posted[r] = DATA | FENCE;
		got[r] == 15;
#else
		posted[r] = DATA;
		(got[r] & 3) == 3;
#ifdef COMPLETION_EARLY
		atomic { if :: use == g && held -> completed = completed | (1 << r) :: else fi };
#endif
		posted[r] = FENCE;
		(got[r] & 12) == 12;
#endif
		atomic {
			posted[r] = 0;
			whole = lo[r] != NOTHING && hi[r] != NOTHING;
			if
#ifdef NO_FENCE
			:: true ->
#else
			:: whole && hi[r] * DIGIT + lo[r] == WANTED(g) ->
#endif
				assert(a[r] == g + 1 && b[r] == g + 1);
				if
				:: use == g && held -> completed = completed | (1 << r)
				:: else
				fi
			:: else ->
				assert(!whole || endedBy[g] != 1)
			fi;
			a[r] = 0; b[r] = 0; lo[r] = 0; hi[r] = 0; got[r] = 0; whole = 0
		}
	od
}

init {
	atomic { run Reader(0); run Reader(1); run Nic(0); run Nic(1) }
}
