/* Streams, events and the work of the devices: copies and kernels. Work is done at once, or a time after it was given if the script says so, or,
 * while the script holds it, when it is let go: always in order of its launch, over all streams, and by the call that looks. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A stream or an event. */
typedef struct handle {
	struct handle *next;
	uint64_t after; /* of an event: the last work that it stands for */
} handle_t;

typedef struct work {
	struct work *next;
	uint64_t to, from, bytes; /* addresses; from 0: the bytes become value */
	int value;
	int64_t due_ns; /* CLOCK_MONOTONIC */
} work_t;

static handle_t *streams, *events;
static bool holding;
static char holder[512]; /* a file that holds, too */
static int waits;
static int64_t takes_ns;             /* how long work takes */
static work_t *first, **last = &first;
static uint64_t given, done;         /* how much work there was, and how much of it is done */

static int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Memory that is gone by then is left alone: a driver would stop the context. */
static void perform(const work_t *w)
{
	uint8_t *to = shadow_of(w->to, w->bytes);
	const uint8_t *from = w->from != 0 ? shadow_of(w->from, w->bytes) : NULL;
	if (to != NULL && from != NULL)
		memmove(to, from, w->bytes);
	else if (to != NULL && w->from == 0)
		memset(to, w->value, w->bytes);
}

/* Does what is due. all: whatever is there. */
static void settle(bool all)
{
	int64_t now = takes_ns > 0 ? now_ns() : INT64_MAX;
	bool held = holding || (holder[0] != 0 && access(holder, F_OK) == 0);
	while (first != NULL && (all || (!held && first->due_ns <= now))) {
		work_t *w = first;
		perform(w);
		first = w->next;
		if (first == NULL)
			last = &first;
		free(w);
		done++;
	}
}

/* Puts work behind what there is; of 0 bytes it marks a place only. */
static int give(uint64_t to, uint64_t from, uint64_t bytes, int value)
{
	if (bytes > 0 && (shadow_of(to, bytes) == NULL || (from != 0 && shadow_of(from, bytes) == NULL)))
		return INVALID_VALUE;
	work_t *w = calloc(1, sizeof *w);
	if (w == NULL)
		return OUT_OF_MEMORY;
	*w = (work_t){.to = to, .from = from, .bytes = bytes, .value = value, .due_ns = takes_ns > 0 ? now_ns() + takes_ns : 0};
	*last = w;
	last = &w->next;
	given++;
	settle(false);
	return SUCCESS;
}

int launch(uint64_t addr, uint64_t bytes, int value)
{
	return give(addr, 0, bytes, value) == SUCCESS ? 0 : -1;
}

void hold_work(bool on)
{
	holding = on;
	if (!on)
		settle(true);
}

void hold_by(const char *file)
{
	snprintf(holder, sizeof holder, "%s", file);
}

void work_takes(int ms)
{
	takes_ns = (int64_t)ms * 1000000;
}

int waits_held(void)
{
	return waits;
}

static void forget_all(handle_t **list)
{
	while (*list != NULL) {
		handle_t *h = *list;
		*list = h->next;
		free(h);
	}
}

void reset_work(void)
{
	holding = false;
	holder[0] = 0;
	waits = 0;
	takes_ns = 0;
	settle(true); /* so that nothing is written later */
	forget_all(&streams);
	forget_all(&events);
}

/* The driver takes any handle for one; the fake tells whether it is. The place of its link, NULL if it is none. */
static handle_t **link_of(handle_t **list, const handle_t *h)
{
	for (; *list != NULL; list = &(*list)->next) {
		if (*list == h)
			return list;
	}
	return NULL;
}

static bool is_stream(const handle_t *s)
{
	return s == NULL /* the default one */ || link_of(&streams, s) != NULL;
}

static bool is_event(const handle_t *e)
{
	return link_of(&events, e) != NULL;
}

static int create(const char *call, handle_t **list, bool flags_ok, handle_t **out)
{
	context_t *ctx;
	int st = enter_context(call, &ctx);
	if (st != SUCCESS)
		return st;
	if (!flags_ok)
		return INVALID_VALUE;
	handle_t *h = calloc(1, sizeof *h);
	if (h == NULL)
		return OUT_OF_MEMORY;
	pthread_mutex_lock(&lock);
	h->next = *list;
	*list = h;
	pthread_mutex_unlock(&lock);
	*out = h;
	return SUCCESS;
}

static int destroy(const char *call, handle_t **list, handle_t *h)
{
	context_t *ctx;
	int st = enter_context(call, &ctx);
	if (st != SUCCESS)
		return st;
	pthread_mutex_lock(&lock);
	handle_t **at = link_of(list, h);
	if (at != NULL) {
		*at = h->next;
		free(h);
	}
	pthread_mutex_unlock(&lock);
	return at != NULL ? SUCCESS : INVALID_HANDLE;
}

API int cuStreamCreate(handle_t **out, unsigned flags);
API int cuStreamCreate(handle_t **out, unsigned flags)
{
	return create("cuStreamCreate", &streams, flags <= 1, out);
}

API int cuStreamDestroy_v2(handle_t *s);
API int cuStreamDestroy_v2(handle_t *s)
{
	return destroy("cuStreamDestroy", &streams, s);
}

API int cuEventCreate(handle_t **out, unsigned flags);
API int cuEventCreate(handle_t **out, unsigned flags)
{
	return create("cuEventCreate", &events, (flags & ~7u) == 0, out);
}

API int cuEventDestroy_v2(handle_t *e);
API int cuEventDestroy_v2(handle_t *e)
{
	return destroy("cuEventDestroy", &events, e);
}

API int cuStreamWaitEvent(handle_t *s, handle_t *e, unsigned flags);
API int cuStreamWaitEvent(handle_t *s, handle_t *e, unsigned flags)
{
	context_t *ctx;
	int st = enter_context("cuStreamWaitEvent", &ctx);
	if (st != SUCCESS)
		return st;
	pthread_mutex_lock(&lock);
	settle(false);
	if (!is_stream(s) || !is_event(e))
		st = INVALID_HANDLE;
	else if (flags != 0)
		st = INVALID_VALUE;
	else
		waits += e->after > done;
	pthread_mutex_unlock(&lock);
	return st;
}

API int cuEventRecord(handle_t *e, handle_t *s);
API int cuEventRecord(handle_t *e, handle_t *s)
{
	context_t *ctx;
	int st = enter_context("cuEventRecord", &ctx);
	if (st != SUCCESS)
		return st;
	pthread_mutex_lock(&lock);
	if (!is_event(e) || !is_stream(s))
		st = INVALID_HANDLE;
	else
		st = give(0, 0, 0, 0);
	if (st == SUCCESS)
		e->after = given;
	pthread_mutex_unlock(&lock);
	return st;
}

API int cuEventQuery(handle_t *e);
API int cuEventQuery(handle_t *e)
{
	context_t *ctx;
	int st = enter_context("cuEventQuery", &ctx);
	if (st != SUCCESS)
		return st;
	pthread_mutex_lock(&lock);
	settle(false);
	st = !is_event(e) ? INVALID_HANDLE : e->after > done ? NOT_READY : SUCCESS;
	pthread_mutex_unlock(&lock);
	return st;
}

API int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, handle_t *s);
API int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, handle_t *s)
{
	context_t *ctx;
	int st = enter_context("cuMemcpyDtoDAsync", &ctx);
	if (st != SUCCESS)
		return st;
	pthread_mutex_lock(&lock);
	st = !is_stream(s) ? INVALID_HANDLE : from == 0 ? INVALID_VALUE : give(to, from, bytes, 0);
	pthread_mutex_unlock(&lock);
	return st;
}
