/* The reader's blocks: local blocks that reads share one after the other, reads that go wrong, and a NIC that writes late.
 *
 * A transfer writes its block in two halves whenever it likes; then it is DONE. Before that an error may be told while parts still
 * land, for less than ERROR_LANDS ticks, or it may never end. The reader gives up a read at its time-out; the
 * outcome is told at once, but the block stays aside until DONE, or, after an error of the transfer, for WAIT ticks. What the library
 * below says about a request that is released (released, not found) ends nothing.
 *
 * Safety:   no transfer writes into a block that has been given out again.
 *           Each read has one outcome, and its block comes back once.
 * Liveness: every read has an outcome, and its block comes back unless its transfer never ends.
 */
#ifndef READS
#define READS 2
#endif
#ifndef BLOCKS
#define BLOCKS 1
#endif
#define ERROR_LANDS 2
#ifdef SHORT_WAIT
#define WAIT 1
#else
#define WAIT 3
#endif
#define NONE 9

#define NEW 0
#define READING 1
#define ASIDE 2
#define BACK 3

#define FLYING 1
#define ENDED 2     /* DONE */
#define FAILED 3    /* an error was told; parts may land */
#define HUNG 4      /* nothing will ever be told */

byte owner[BLOCKS] = NONE;   /* the read that a block is given out to */
byte state[READS];           /* of a read */
byte block[READS];
byte nic[READS];
byte landed[READS];          /* halves, by bit */
byte age[READS];             /* ticks since its error was told */
bool outcome[READS];
bool released[READS];        /* the library below was told to forget it */

/* A late transfer lands: it must still be its block's owner. */
inline land(r, part) { assert(owner[block[r]] == r); landed[r] = landed[r] | part }

#define lands(r) (nic[r] == FLYING || nic[r] == HUNG || nic[r] == FAILED && age[r] < ERROR_LANDS)

proctype Nic(byte r)
{
end:
	do
	:: atomic { lands(r) && !(landed[r] & 1) -> land(r, 1) }
	:: atomic { lands(r) && !(landed[r] & 2) -> land(r, 2) }
	:: atomic { (nic[r] == FLYING || nic[r] == FAILED) && landed[r] == 3 -> nic[r] = ENDED }
	:: atomic { nic[r] == FLYING -> nic[r] = FAILED; age[r] = 0 }
	:: atomic { nic[r] == FLYING -> nic[r] = HUNG }
	od
}

#define young(r) (nic[r] == FAILED && age[r] < WAIT)

inline grow(r) { if :: young(r) -> age[r]++ :: else fi }

active proctype Clock()
{
end:
	do
	:: atomic { young(0) || young(1) || young(READS - 1) ->
		grow(0); grow(1);
#if READS > 2
		grow(2)
#endif
	   }
	od
}

inline tell(r) { assert(!outcome[r]); outcome[r] = true }

inline giveBack(r) { assert(state[r] != BACK && owner[block[r]] == r); state[r] = BACK; owner[block[r]] = NONE }

/* The reader's step, for one read. */
proctype Read(byte r)
{
end:
	if
	:: atomic { owner[0] == NONE -> owner[0] = r; block[r] = 0; state[r] = READING; nic[r] = FLYING }
#if BLOCKS > 1
	:: atomic { owner[1] == NONE -> owner[1] = r; block[r] = 1; state[r] = READING; nic[r] = FLYING }
#endif
	fi;
	if
	:: atomic { nic[r] == ENDED -> tell(r); giveBack(r) }
	:: atomic { nic[r] == FAILED -> tell(r);
#ifdef ERROR_IS_END
		giveBack(r)
#else
		state[r] = ASIDE
#endif
	   }
#ifndef NO_TIMEOUT
	:: atomic { true -> tell(r); /* its time-out, or its peer is gone */
#ifdef QUARANTINE_AT_TIMEOUT
		giveBack(r)
#else
		state[r] = ASIDE;
		if :: released[r] = true :: skip fi
#endif
	   }
#endif
	fi;
	if
	:: state[r] == ASIDE ->
end_aside:	if
		:: atomic { nic[r] == ENDED -> giveBack(r) }
		:: atomic { nic[r] == FAILED && age[r] >= WAIT -> giveBack(r) }
#ifdef RELEASE_IS_END
		:: atomic { released[r] -> giveBack(r) }
#endif
		fi
	:: state[r] == BACK -> skip
	fi
}

init {
	atomic {
		run Nic(0); run Nic(1); run Read(0); run Read(1);
#if READS > 2
		run Nic(2); run Read(2)
#endif
	}
}

#ifdef LIVENESS
ltl toldAndBack {
	([] (state[0] == READING -> <> outcome[0])) &&
	([] (state[0] == ASIDE -> <> (state[0] == BACK || nic[0] == HUNG)))
}
#endif
