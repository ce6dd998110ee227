/* Streams, events and kernels. Work is done at once, or, while the script holds it, when it is let go, in order of its launch. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

enum { LAUNCHES = 64 };

typedef struct stream {
	struct stream *next;
	int device;
} stream_t;

typedef struct event {
	struct event *next;
	bool pending;
} event_t;

static stream_t *streams;
static event_t *events;
static bool holding;
static int waits;
static struct {
	uint64_t addr, bytes;
	int value;
} held[LAUNCHES];
static int held_n;

static bool fill(uint64_t addr, uint64_t bytes, int value)
{
	uint8_t *at = shadow_of(addr, bytes);
	if (at != NULL)
		memset(at, value, bytes);
	return at != NULL;
}

int launch(uint64_t addr, uint64_t bytes, int value)
{
	if (!holding)
		return fill(addr, bytes, value) ? 0 : -1;
	if (held_n == LAUNCHES)
		return -1;
	held[held_n].addr = addr;
	held[held_n].bytes = bytes;
	held[held_n++].value = value;
	return 0;
}

void hold_work(bool on)
{
	holding = on;
	if (on)
		return;
	for (int i = 0; i < held_n; i++)
		fill(held[i].addr, held[i].bytes, held[i].value);
	held_n = 0;
	for (event_t *e = events; e != NULL; e = e->next)
		e->pending = false;
}

int waits_held(void)
{
	return waits;
}

void reset_work(void)
{
	holding = false;
	held_n = waits = 0;
	while (streams != NULL) {
		stream_t *s = streams;
		streams = s->next;
		free(s);
	}
	while (events != NULL) {
		event_t *e = events;
		events = e->next;
		free(e);
	}
}

/* The driver takes any handle for one; the fake tells whether it is. */
static bool is_stream(const stream_t *s)
{
	for (const stream_t *at = streams; at != NULL; at = at->next) {
		if (at == s)
			return true;
	}
	return s == NULL; /* the default stream */
}

static bool is_event(const event_t *e)
{
	for (const event_t *at = events; at != NULL; at = at->next) {
		if (at == e)
			return true;
	}
	return false;
}

API int cuStreamCreate(stream_t **out, unsigned flags);
API int cuStreamCreate(stream_t **out, unsigned flags)
{
	context_t *ctx;
	int st = enter_context("cuStreamCreate", &ctx);
	if (st != SUCCESS)
		return st;
	stream_t *s = calloc(1, sizeof *s);
	if (s == NULL)
		return OUT_OF_MEMORY;
	if (flags > 1) {
		free(s);
		return INVALID_VALUE;
	}
	pthread_mutex_lock(&lock);
	s->device = ctx->device;
	s->next = streams;
	streams = s;
	pthread_mutex_unlock(&lock);
	*out = s;
	return SUCCESS;
}

API int cuStreamDestroy_v2(stream_t *s);
API int cuStreamDestroy_v2(stream_t *s)
{
	context_t *ctx;
	int st = enter_context("cuStreamDestroy", &ctx);
	if (st != SUCCESS)
		return st;
	pthread_mutex_lock(&lock);
	st = INVALID_HANDLE;
	for (stream_t **at = &streams; *at != NULL; at = &(*at)->next) {
		if (*at != s)
			continue;
		*at = s->next;
		free(s);
		st = SUCCESS;
		break;
	}
	pthread_mutex_unlock(&lock);
	return st;
}

API int cuStreamWaitEvent(stream_t *s, event_t *e, unsigned flags);
API int cuStreamWaitEvent(stream_t *s, event_t *e, unsigned flags)
{
	context_t *ctx;
	int st = enter_context("cuStreamWaitEvent", &ctx);
	if (st != SUCCESS)
		return st;
	pthread_mutex_lock(&lock);
	if (!is_stream(s) || !is_event(e))
		st = INVALID_HANDLE;
	else if (flags != 0)
		st = INVALID_VALUE;
	else
		waits += e->pending;
	pthread_mutex_unlock(&lock);
	return st;
}

API int cuEventCreate(event_t **out, unsigned flags);
API int cuEventCreate(event_t **out, unsigned flags)
{
	context_t *ctx;
	int st = enter_context("cuEventCreate", &ctx);
	if (st != SUCCESS)
		return st;
	event_t *e = calloc(1, sizeof *e);
	if (e == NULL)
		return OUT_OF_MEMORY;
	if (flags & ~7u) {
		free(e);
		return INVALID_VALUE;
	}
	pthread_mutex_lock(&lock);
	e->next = events;
	events = e;
	pthread_mutex_unlock(&lock);
	*out = e;
	return SUCCESS;
}

API int cuEventDestroy_v2(event_t *e);
API int cuEventDestroy_v2(event_t *e)
{
	context_t *ctx;
	int st = enter_context("cuEventDestroy", &ctx);
	if (st != SUCCESS)
		return st;
	pthread_mutex_lock(&lock);
	st = INVALID_HANDLE;
	for (event_t **at = &events; *at != NULL; at = &(*at)->next) {
		if (*at != e)
			continue;
		*at = e->next;
		free(e);
		st = SUCCESS;
		break;
	}
	pthread_mutex_unlock(&lock);
	return st;
}

API int cuEventRecord(event_t *e, stream_t *s);
API int cuEventRecord(event_t *e, stream_t *s)
{
	context_t *ctx;
	int st = enter_context("cuEventRecord", &ctx);
	if (st != SUCCESS)
		return st;
	pthread_mutex_lock(&lock);
	if (is_event(e) && is_stream(s))
		e->pending = holding;
	else
		st = INVALID_HANDLE;
	pthread_mutex_unlock(&lock);
	return st;
}

API int cuEventQuery(event_t *e);
API int cuEventQuery(event_t *e)
{
	context_t *ctx;
	int st = enter_context("cuEventQuery", &ctx);
	if (st != SUCCESS)
		return st;
	pthread_mutex_lock(&lock);
	st = !is_event(e) ? INVALID_HANDLE : e->pending ? NOT_READY : SUCCESS;
	pthread_mutex_unlock(&lock);
	return st;
}
