/* One slot over the two ranks of an engine: a host gives it use after use, each rank has its own word, memory and stream.
 *
 * A stream to a rank may lose records; that is noticed, and then nothing more comes through until a full state: the grant again
 * if the rank has not been heard to have ended it, and the cancel if it was said. What a rank says of an end may be lost, too,
 * with the same consequence. A rank that hears of a use that it has ended says so once more. The host may skip uses
 * (an expectation that was cancelled), of which a rank need not hear. It counts a rank out only when its process has gone, or
 * when it has stood without its host for a lease duration and closed its rows.
 * Readers read from one rank, or from both, and ask the fences of those.
 *
 * Safety:   accepted data is the granted data.
 *           No rank holds a use when its slot or its blocks are given out again, unless its row is closed.
 *           An end is counted once for each rank and use.
 * Liveness: every granted use is freed.
 */
#ifndef USES
#define USES 2
#endif
#ifndef LOSSES
#define LOSSES 2
#endif
#define BASE 1
#define RANKS 2
#define CLOSED 99
#define NONE 98

#define GRANT 1
#define CANCEL 2
#define FULL 3

byte data[RANKS];     /* whose data a rank's part of the block holds: use + 1 */
byte word[RANKS] = BASE;
byte at[RANKS];       /* the use that a rank is in */
bool holds[RANKS];    /* it holds a lease */
bool over[RANKS];     /* it has ended use `at` */
bool alone[RANKS];    /* it has lost its host for good */
bool gap[RANKS];      /* the host knows that something was lost */

chan down0 = [2] of { byte, byte };
chan down1 = [2] of { byte, byte };
chan up0 = [2] of { byte };
chan up1 = [2] of { byte };

byte use;             /* the slot's present use, at the host */
bool held;
byte ended;           /* ranks heard to have ended it, by bit */
bool cancelled;
byte losses;
bool cutOff;          /* one rank may be cut off, once */

/* To a rank: what is lost, or finds no room, makes a gap. */
inline say(r, kind) {
	if
	:: gap[r] || alone[r] -> skip
	:: else ->
		if
		:: r == 0 && nfull(down0) -> down0!kind, use
		:: r == 1 && nfull(down1) -> down1!kind, use
		:: r == 0 && full(down0) -> gap[r] = true
		:: r == 1 && full(down1) -> gap[r] = true
		:: losses < LOSSES -> losses++; gap[r] = true
		fi
	fi
}

inline out(r) { ended = ended | (1 << r) }

#ifdef SLOT_EARLY
#define freed (ended != 0)
#else
#define freed (ended == 3)
#endif

/* A rank that is cut off for good counts as out once its rows are closed. */
#ifdef LOST_AS_GONE
#define closedBy(r) true
#else
#define closedBy(r) (word[r] == CLOSED)
#endif

active proctype Host()
{
	byte g;
end:
	do
	/* a use begins; uses may have been skipped */
	:: atomic { !held && use < USES ->
#ifndef SLOT_EARLY
		assert(!(holds[0] && at[0] != use && !alone[0]));
		assert(!(holds[1] && at[1] != use && !alone[1]));
#endif
		data[0] = use + 1; data[1] = use + 1;
		ended = 0; cancelled = false; held = true;
		if :: alone[0] && closedBy(0) -> out(0) :: else fi;
		if :: alone[1] && closedBy(1) -> out(1) :: else fi
	   };
	   atomic { say(0, GRANT) }; atomic { say(1, GRANT) }
	:: atomic { !held && use + 1 < USES -> use++ } /* expected and cancelled */
	:: atomic { held && !cancelled && !freed -> cancelled = true; say(0, CANCEL); say(1, CANCEL) }
	/* what ranks say */
	:: atomic { up0?g -> if :: held && g == use -> out(0) :: else fi; g = 0 }
	:: atomic { up1?g -> if :: held && g == use -> out(1) :: else fi; g = 0 }
	/* full states, when what the rank has said is taken */
	:: atomic { gap[0] && !alone[0] && empty(down0) && empty(up0) ->
		gap[0] = false;
#ifndef NO_FULL_STATE
		if
		:: held && !(ended & 1) -> down0!GRANT, use; if :: cancelled -> down0!CANCEL, use :: else fi
		:: else
		fi
#endif
	   }
	:: atomic { gap[1] && !alone[1] && empty(down1) && empty(up1) ->
		gap[1] = false;
#ifndef NO_FULL_STATE
		if
		:: held && !(ended & 2) -> down1!GRANT, use; if :: cancelled -> down1!CANCEL, use :: else fi
		:: else
		fi
#endif
	   }
	:: atomic { held && alone[0] && !(ended & 1) && closedBy(0) -> out(0) }
	:: atomic { held && alone[1] && !(ended & 2) && closedBy(1) -> out(1) }
	/* freed: the engine is told, and writes other data */
	:: atomic { held && freed ->
#ifndef SLOT_EARLY
		assert(!(holds[0] && word[0] == BASE + use));
		assert(!(holds[1] && word[1] == BASE + use));
#endif
		held = false; data[0] = NONE; use++
	   };
	   data[1] = NONE
	od
}

/* One rank is cut off at most. */
active proctype Cut()
{
end:
	if
	:: atomic { !cutOff -> cutOff = true; alone[1] = true }
	:: skip
	fi
}

inline raise(r, v) { if :: word[r] < v -> word[r] = v :: else fi }

inline endUse(r) {
#ifdef COUNTED
	word[r]++;
#else
	raise(r, BASE + at[r] + 1);
#endif
	holds[r] = false; over[r] = true
}

inline tell(r, up, g) {
	if
	:: alone[r] -> skip
	:: else ->
		if
		:: nfull(up) -> up!g
		:: full(up) -> gap[r] = true
		:: losses < LOSSES -> losses++; gap[r] = true
		fi
	fi
}

inline granted(r, up, g) {
	if
	:: word[r] == CLOSED -> skip
	:: word[r] != CLOSED && g == at[r] && over[r] ->
#ifdef GRANT_REOPENS
		word[r] = BASE + g; holds[r] = true; over[r] = false
#elif defined(END_TOLD_ONCE)
		skip
#else
		tell(r, up, g)
#endif
	:: word[r] != CLOSED && g == at[r] && holds[r] -> skip
	:: word[r] != CLOSED && (g > at[r] || g == at[r] && !over[r] && !holds[r]) ->
		at[r] = g; over[r] = false; holds[r] = true;
#ifndef COUNTED
		raise(r, BASE + g)
#endif
	:: else -> skip
	fi
}

inline canceled(r, up, g) {
	if
	:: g == at[r] && holds[r] -> endUse(r); tell(r, up, g)
	:: else -> skip
	fi
}

proctype Rank(byte r; chan down, up)
{
	byte kind, g;
end:
	do
	:: atomic { down?kind, g ->
		if
		:: kind == GRANT -> granted(r, up, g)
		:: kind == CANCEL -> canceled(r, up, g)
		fi;
		kind = 0; g = 0 }
	:: atomic { holds[r] && word[r] != CLOSED -> endUse(r); tell(r, up, at[r]) } /* its deadline, or its readers */
	:: atomic { alone[r] && word[r] != CLOSED -> word[r] = CLOSED }  /* a lease duration without its host */
	od
}

/* Reads part after part, then fence after fence. */
active proctype Reader()
{
	byte g, from;
	bool one, two;
	byte a = NONE, b = NONE;
	bool good;
end:
	do
	:: atomic { held && use >= from -> g = use; from = use + 1;
		if :: one = true :: two = true :: one = true; two = true fi };
		if :: one -> a = data[0] :: else fi;
		if :: two -> b = data[1] :: else fi;
		good = true;
		if :: one && word[0] != BASE + g -> good = false :: else fi;
		atomic {
			if :: two && word[1] != BASE + g -> good = false :: else fi;
			if
			:: good -> assert(!one || a == g + 1); assert(!two || b == g + 1)
			:: else
			fi;
			a = NONE; b = NONE; one = false; two = false; good = false
		}
	od
}

init { atomic { run Rank(0, down0, up0); run Rank(1, down1, up1) } }

#ifdef LIVENESS
ltl freedAtLast { [] (held -> <> !held) }
#endif
