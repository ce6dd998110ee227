/* The deadline of a lease: heartbeats and completions of one engine of two ranks, over a network that loses, repeats and
 * reorders, with an owner that stands still for a while, and an engine that crashes.
 *
 * A message is in flight for less than two ticks, then it has arrived or is lost; one that has arrived waits while the owner stands
 * still. A lease whose deadline has passed is looked at twice, settle apart, and everything that had arrived is applied before.
 *
 * Safety:   a lease ends once, and a heartbeat never shortens it.
 *           Completion ends it only when both ranks have read this use.
 *           It does not expire while a heartbeat that was sent in time is on its way.
 * Liveness: every lease is freed.
 */
#ifndef USES
#define USES 2
#endif
#ifndef BEATS
#define BEATS 1 /* heartbeats of one read: its time-out */
#endif
#define DURATION 3
#define EXTEND 2
#define SETTLE 2

#define BEAT 0
#define DONE 1 /* and 2, by rank */
#define KINDS 3

byte fly[KINDS];   /* 1: sent in this tick, 2: in the one before, or it has arrived */
byte about[KINDS]; /* the use */
bool inTime;       /* the heartbeat in flight was sent before the deadline */
bool again;        /* a message has been repeated */

byte use;
bool held;
byte left;         /* ticks to the deadline */
byte due;          /* ticks to the second look, and one; 0: not due */
byte reports;      /* ranks, by bit, or a count */
bool stalled;
byte really;       /* ranks that have read this use */

#define arrived (fly[0] == 2 || fly[1] == 2 || fly[2] == 2)

inline endLease() { held = false; due = 0; left = 0; reports = 0; really = 0; use++ }

inline complete() { assert(held && really == 3); endLease() }

inline expire() { assert(held && !(fly[BEAT] && inTime)); endLease() }

/* Under atomic: a message that has arrived is applied. */
inline apply(kind) {
	if
	:: kind == BEAT ->
#ifdef BEAT_SETS
		assert(left <= EXTEND);
		left = EXTEND; due = 0
#else
		if
		:: left < EXTEND -> left = EXTEND; due = 0
		:: else
		fi
#endif
	:: else ->
#ifdef COUNT_REPORTS
		reports++;
		if
		:: reports == 2 -> complete()
#else
		reports = reports | (1 << (kind - DONE));
		if
		:: reports == 3 -> complete()
#endif
		:: else
		fi
	fi
}

#ifdef NO_KEY
#define fits(m) held
#else
#define fits(m) (held && about[m] == use)
#endif

inline clearMessage(m) {
	fly[m] = 0; about[m] = 0;
	if :: m == BEAT -> inTime = false :: else fi
}

inline take(m) {
	atomic { !stalled && fly[m] ->
		if
		:: fits(m) -> apply(m)
		:: else
		fi;
		if
		:: clearMessage(m)
		:: !again && fly[m] == 1 -> again = true /* it comes once more */
		fi }
}

active proctype Owner()
{
end:
	do
	:: atomic { !held && use < USES -> held = true; left = DURATION }
	:: take(0)
	:: take(1)
	:: take(2)
	:: atomic { fly[0] -> clearMessage(0) } /* lost */
	:: atomic { fly[1] -> clearMessage(1) }
	:: atomic { fly[2] -> clearMessage(2) }
#ifdef ONE_LOOK
	:: atomic { held && !stalled && left == 0 -> expire() }
#else
	:: atomic { held && !stalled && left == 0 && due == 0 -> due = SETTLE + 1 }
	:: atomic { held && !stalled && due == 1 && !arrived -> expire() }
#endif
	od
}

inline older(m) { if :: fly[m] == 1 -> fly[m] = 2 :: else fi }

active proctype Clock()
{
end:
	do
	:: atomic { held && (left > 0 || due > 1) && (stalled || !arrived) ->
		if :: left > 0 -> left-- :: else fi;
		if :: due > 1 -> due-- :: else fi;
		older(0); older(1); older(2) }
	od
}

/* The owner's process stands still, once. */
active proctype Stall()
{
end:
	if
	:: stalled = true
	:: goto through
	fi;
	stalled = false;
through:
	skip
}

inline send(kind) {
	atomic {
		if
		:: !fly[kind] ->
			fly[kind] = 1; about[kind] = g;
			if
			:: kind == BEAT -> inTime = held && use == g && left > 0
			:: else
			fi
		:: true -> skip /* lost at once, or behind another */
		fi
	}
}

inline readBy(rank) { atomic { did = did | (1 << rank); if :: held && use == g -> really = really | (1 << rank) :: else fi } }

active proctype Engine()
{
	byte g, from, beats, did;
end:
	do
	:: atomic { held && use >= from -> g = use; from = use + 1; beats = 0; did = 0 };
		do
#ifdef NO_READ_TIMEOUT
		:: true -> send(BEAT)
#else
		:: beats < BEATS -> beats++; send(BEAT)
#endif
		:: break
		od;
		do
		:: !(did & 1) -> readBy(0); send(DONE)
		:: !(did & 2) -> readBy(1); send(DONE + 1)
		:: did == 3 -> break
		:: goto gone /* killed */
		od
	od;
gone:
	skip
}

#ifdef LIVENESS
ltl freedAtLast { [] (held -> <> !held) }
#endif
