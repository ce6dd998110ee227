/* Who may end a lease: two engines of two ranks each have its parameters. The second may be a stock one (-DSTOCK), which does
 * not check the fence. Messages are lost, repeated and reordered; the deadline may pass at any time.
 *
 * Safety:  completion ends a lease only when all ranks of one engine have read it.
 *          A release ends it only if no other engine has named it, and neither release, revoke nor the death of an engine does when
 *          a stock engine has, or may have.
 *          It ends once, and stays ended.
 */
#define BEAT 0
#define DONE 1 /* and 2, by rank */
#define RELEASE 3
#define KINDS 4
#ifndef STOCK
#define STOCK 0
#endif
#define isStock(e) (STOCK && (e) == 1)

#define COMPLETED 1
#define RELEASED 2
#define REVOKED 3
#define EXPIRED 4
#define READER_DEAD 5

bool fly[8];       /* by engine and kind */
byte copies;       /* messages that came twice */
bool held, once;
byte reports[2];   /* by engine: ranks, by bit */
byte count;
byte named;        /* engines, by bit */
bool unchecked;
bool stockNamed;
bool revokeSaid;
byte really[2];    /* ranks of an engine that have read */
bool dead;         /* engine 0, and its death wire has said so */

inline endLease(reason) {
	assert(held);
	assert(reason != COMPLETED || really[0] == 3 || really[1] == 3);
	assert(!(reason == RELEASED || reason == READER_DEAD) || named == 1 || named == 2);
	assert(!(reason == RELEASED || reason == REVOKED || reason == READER_DEAD) || !stockNamed && named != 0);
	held = false
}

inline name(e) {
	named = named | (1 << (e));
	if
	:: isStock(e) -> stockNamed = true; unchecked = true
	:: else -> if :: !stockNamed -> unchecked = false :: else fi
	fi
}

#ifdef IGNORE_SHARED
#define shared false
#else
#define shared (named == 3)
#endif
#ifdef IGNORE_UNCHECKED
#define safe true
#else
#define safe (!unchecked)
#endif

#ifdef LATE_REVIVES
#define mayApply(kind) (held || kind == BEAT)
#else
#define mayApply(kind) held
#endif

/* Under atomic. */
inline apply(e, kind) {
	if
	:: !held -> held = true /* only if a late heartbeat may */
	:: else -> name(e);
		if
		:: kind == DONE || kind == DONE + 1 ->
#ifdef SUM_ENGINES
			if :: !(reports[e] & (1 << (kind - DONE))) -> count++ :: else fi;
#endif
			reports[e] = reports[e] | (1 << (kind - DONE));
			if
#ifdef SUM_ENGINES
			:: count == 2 -> endLease(COMPLETED)
#else
			:: reports[e] == 3 -> endLease(COMPLETED)
#endif
			:: else
			fi
		:: kind == RELEASE ->
			if
			:: !shared && safe -> endLease(RELEASED)
			:: else
			fi
		:: else
		fi;
		if
		:: held && revokeSaid && safe -> endLease(REVOKED)
		:: else
		fi
	fi;
	assert(!(once && held && !granted))
}

bool granted;

inline take(e, kind) {
	atomic { fly[e * KINDS + kind] ->
		if
		:: mayApply(kind) -> apply(e, kind)
		:: else
		fi;
		if
		:: fly[e * KINDS + kind] = false
		:: !copies -> copies++
		fi;
		if :: !held -> granted = false :: else fi }
}

active proctype Owner()
{
end:
	do
	:: atomic { !once -> once = true; granted = true; held = true; unchecked = true }
	:: take(0, BEAT)
	:: take(0, DONE)
	:: take(0, DONE + 1)
	:: take(0, RELEASE)
	:: take(1, BEAT)
	:: take(1, DONE)
	:: take(1, DONE + 1)
	:: take(1, RELEASE)
	:: atomic { held && !revokeSaid -> revokeSaid = true; if :: safe -> endLease(REVOKED); granted = false :: else fi }
	:: atomic { held -> endLease(EXPIRED); granted = false }
	:: atomic { held && dead && (named & 1) && !shared && safe -> endLease(READER_DEAD); granted = false }
	od
}

inline send(kind) {
	if
	:: fly[e * KINDS + kind] = true
	:: skip /* lost */
	fi
}

inline readBy(rank) { did = did | (1 << rank); if :: held -> really[e] = really[e] | (1 << rank) :: else fi }

proctype Engine(byte e)
{
	byte did;
end:
	once;
	if
	:: atomic { send(BEAT) }
	:: skip
	fi;
	if
	:: atomic { send(RELEASE) }
	:: do
	   :: atomic { !(did & 1) -> readBy(0); send(DONE) }
	   :: atomic { !(did & 2) -> readBy(1); send(DONE + 1) }
	   :: did == 3 -> break
	   :: atomic { e == 0 -> dead = true; break }
	   od
	fi
}

init { atomic { run Engine(0); run Engine(1) } }
