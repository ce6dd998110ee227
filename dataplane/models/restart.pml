/* An owner rank dies and comes back, and its memory and slots with it: another boot, another base, other keys.
 *
 * A reader still has the parameters of the boot before, and so have messages on their way. Its data read may meet both
 * processes, half and half; so may its fence read. Bases are random numbers far apart, of 62 bits: here 10 and 20.
 * Memory goes before the process does, too: what is registered may be taken away (kvl_unregister), and the agent with it first.
 *
 * Safety:  accepted data is that of the boot and use that were granted.
 *          A message of another boot ends nothing.
 *          No read meets memory that was taken away.
 */
#define BOOTS 2
#define USES 2
#define NONE 99

#ifdef SAME_BASE
#define BASE(b) 10
#else
#define BASE(b) (10 * ((b) + 1))
#endif

#define THING(b, u) (2 * (b) + (u) + 1) /* whose data */

byte boot;
bool up = true;       /* a process is there, and its agent */
bool mapped = true;
byte half[2];
byte word = BASE(0);
byte use;
bool held;
bool message;         /* a completion is on its way */
byte ofBoot, ofUse;
bool finished;        /* the reader of the present boot and use has read it */

inline raise() { word = BASE(boot) + use + 1 }

active proctype Owner()
{
	do
	:: atomic { up && !held && use < USES -> half[0] = THING(boot, use); half[1] = THING(boot, use); held = true; finished = false }
	:: atomic { up && held -> raise(); held = false; use++ }         /* its deadline */
	:: atomic { up && message ->
		message = false;
		if
#ifdef NO_KEY
		:: held && ofUse == use ->
#else
		:: held && ofUse == use && ofBoot == boot ->
#endif
			assert(finished);
			raise(); held = false; use++
		:: else
		fi }
	:: atomic { up && !held -> half[0] = NONE; half[1] = NONE }      /* other data in blocks that are free */
	/* killed, and started again */
	:: atomic { up && boot + 1 < BOOTS -> up = false; held = false; half[0] = NONE; half[1] = NONE; word = NONE }
	:: atomic { !up && mapped && boot + 1 < BOOTS -> boot++; use = 0; word = BASE(boot); up = true }
	/* memory is taken away: rows closed, leases ended, the agent gone, and only then the memory */
#ifdef AGENT_STAYS
	:: atomic { up && !held && mapped && boot + 1 == BOOTS -> word = NONE; use = USES; mapped = false }
#else
	:: atomic { up && !held && mapped && boot + 1 == BOOTS -> word = NONE; use = USES; up = false; mapped = false }
#endif
	:: boot + 1 == BOOTS && use == USES && !held -> break
	od
}

/* One read after the other of what it has parameters of; a read of a process that is gone fails, and is posted again later. */
proctype Reader(byte reads)
{
	byte b, u, n;
	byte x, y, w;
	do
	:: n < reads ->
		n++;
		atomic { if :: held -> b = boot; u = use :: else -> break fi };
		if :: atomic { up -> assert(mapped); x = half[0] } :: atomic { !up -> goto failed } fi;
		if :: atomic { up -> assert(mapped); y = half[1] } :: atomic { !up -> goto failed } fi;
		if :: atomic { up -> w = word } :: atomic { !up -> goto failed } fi;
		atomic {
			if
			:: w == BASE(b) + u ->
				assert(x == THING(b, u) && y == THING(b, u));
				if :: held && boot == b && use == u -> finished = true :: else fi;
				if :: !message -> message = true; ofBoot = b; ofUse = u :: else fi
			:: else
			fi
		}
failed:
		atomic { x = 0; y = 0; w = 0; b = 0; u = 0 }
	:: break
	od
}

init { atomic { run Reader(2); run Reader(1) } }
