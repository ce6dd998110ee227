/* What the scripts of all fakes have in common: calls are counted, the n-th of one fails, commands come from the environment first.
 * A fake's script.c includes it once. Everything here is under the fake's lock.
 *
 *   fail CALL N STATUS   the N-th call of CALL from now answers STATUS and does nothing
 *   count CALL           returns how often CALL was entered
 *
 * A CALL that the fake does not have is a slip, in whatever command of these and of gate and slow, and it is said which there are.
 */
#ifndef KVL_FAKELIB_SCRIPT_H
#define KVL_FAKELIB_SCRIPT_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SCRIPT_CALLS = 96, SCRIPT_FAILS = 64, SCRIPT_NAME = 256 };

typedef struct {
	char name[SCRIPT_NAME];
	int count, slow_ms;
	bool closed; /* its gate */
} script_call_t;

static script_call_t script_calls[SCRIPT_CALLS];
static struct {
	char name[SCRIPT_NAME];
	int left, status;
} script_fails[SCRIPT_FAILS];

static script_call_t *script_call(const char *name)
{
	for (int i = 0; i < SCRIPT_CALLS; i++) {
		script_call_t *call = &script_calls[i];
		if (call->name[0] == 0)
			snprintf(call->name, sizeof call->name, "%s", name);
		if (strcmp(call->name, name) == 0)
			return call;
	}
	abort();
}

static int script_fail(const char *name, int n, int status)
{
	for (int i = 0; i < SCRIPT_FAILS; i++) {
		if (script_fails[i].left > 0)
			continue;
		snprintf(script_fails[i].name, sizeof script_fails[i].name, "%s", name);
		script_fails[i].left = n;
		script_fails[i].status = status;
		return 0;
	}
	return -1;
}

/* The calls of the fake, by number, and NULL behind the last: each fake has its own. */
static const char *script_known(int i);

/* True for a name that no call has: it would be scripted, and never come. */
static bool script_slip(const char *name)
{
	for (int i = 0; script_known(i) != NULL; i++) {
		if (strcmp(script_known(i), name) == 0)
			return false;
	}
	fprintf(stderr, "this fake has no call \"%s\"; it has:", name);
	for (int i = 0; script_known(i) != NULL; i++)
		fprintf(stderr, " %s", script_known(i));
	fputc('\n', stderr);
	return true;
}

/* Counts a call and gives the status that the script has for it, or 0. */
static int script_enter(const char *name)
{
	int status = 0;
	if (script_call(name)->count++ == 0 && script_slip(name))
		abort(); /* the fake's own list lacks it */
	for (int i = 0; i < SCRIPT_FAILS; i++) {
		if (script_fails[i].left > 0 && strcmp(script_fails[i].name, name) == 0 && --script_fails[i].left == 0)
			status = script_fails[i].status;
	}
	return status;
}

/* True for a command that is over: one of those above, or one that names no call. *answer is what it returns. */
static bool script_common(const char *word, const char *a, const char *b, const char *c, int *answer)
{
	static const char *const words[] = {"fail", "count", "gate", "slow"};
	for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
		if (strcmp(word, words[i]) == 0 && script_slip(a)) {
			*answer = -1;
			return true;
		}
	}
	if (strcmp(word, "fail") == 0)
		*answer = script_fail(a, atoi(b), atoi(c));
	else if (strcmp(word, "count") == 0)
		*answer = script_call(a)->count;
	else
		return false;
	return true;
}

static void script_forget(void)
{
	memset(script_calls, 0, sizeof script_calls);
	memset(script_fails, 0, sizeof script_fails);
}

/* True the first time. */
static bool script_begin(void)
{
	static bool begun;
	bool first = !begun;
	begun = true;
	return first;
}

/* Gives the commands of an environment variable, split by ';'. One with a slip ends the process: without it the rest would pass as if the fault had been
 * there. By _exit, since what runs at an exit may call the fake, whose lock is held. */
static void script_read(const char *variable, int (*command)(const char *line))
{
	const char *script = getenv(variable);
	char line[512];
	while (script != NULL && *script != 0) {
		size_t n = strcspn(script, ";");
		snprintf(line, sizeof line, "%.*s", (int)n, script);
		if (command(line) < 0) {
			fprintf(stderr, "%s: \"%s\" is not understood\n", variable, line);
			_exit(2);
		}
		script += n + (script[n] == ';');
	}
}

#endif
