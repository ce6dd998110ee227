/* The reader of parameters and what it stands on, as the C library has it. */
#define _GNU_SOURCE 1 /* NOLINT */
#include "../../src/abi.c"
#include "../../src/json.c"
#include "../../src/params.c"
