#include "textflag.h"

// func publishBarrier()
TEXT ·publishBarrier(SB), NOSPLIT, $0-0
	DMB $2 // OSHST
	RET
