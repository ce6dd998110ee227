/* JSON lines for the example engines: reports on stdout, commands on stdin. No part of kvlease.
 *
 * A command is one flat object; a value that is an object itself (transfer parameters) is passed on as it stands.
 * Everything is bounded; what does not fit is an error that names the bound.
 */
#ifndef JSONL_H
#define JSONL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kvlease.h"

enum {
	LINE_BYTES_MAX = 262144, /* one command */
	FIELDS_MAX = 16,         /* keys of one command */
	DEPTH_MAX = 16           /* nesting inside a value that is passed on */
};

/* CLOCK_BOOTTIME: the clock of kvlease's events, the same for all processes of a machine. */
static inline uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_BOOTTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- reports: one JSON object a line on stdout ------------------------------------------------------------------------ */

static inline void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline void say(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
}

/* A string as JSON, quotes included. Four results can be in use at once. */
static inline const char *quoted(const char *s)
{
	static char ring[4][1024];
	static unsigned turn;
	char *out = ring[turn++ % 4];
	size_t n = 0;
	out[n++] = '"';
	for (; *s != 0 && n < sizeof ring[0] - 8; s++) {
		unsigned char c = (unsigned char)*s;
		if (c == '"' || c == '\\') {
			out[n++] = '\\';
			out[n++] = (char)c;
		} else if (c < 0x20) {
			n += (size_t)snprintf(out + n, 8, "\\u%04x", c);
		} else {
			out[n++] = (char)c;
		}
	}
	out[n++] = '"';
	out[n] = 0;
	return out;
}

/* What a refused call answers, and ends with: {"re":7,"ok":false,"status":"KVL_ERR_FULL","error":"..."} */
static inline void say_refused(uint64_t re, int32_t status, const char *what)
{
	const char *why = kvl_last_error();
	char text[400];
	snprintf(text, sizeof text, "%s%s%s", what, why[0] ? ": " : "", why);
	say("{\"re\":%llu,\"ok\":false,\"status\":%s,\"error\":%s,\"t_ns\":%llu}", (unsigned long long)re,
	    quoted(kvl_status_name(status)), quoted(text), (unsigned long long)now_ns());
}

static inline void say_wrong(uint64_t re, const char *format, ...) __attribute__((format(printf, 2, 3)));
static inline void say_wrong(uint64_t re, const char *format, ...)
{
	char text[400];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	say("{\"re\":%llu,\"ok\":false,\"error\":%s,\"t_ns\":%llu}", (unsigned long long)re, quoted(text),
	    (unsigned long long)now_ns());
}

/* For start-up, where there is nobody to report to but the person at the terminal. */
static inline _Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline _Noreturn void die(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

/* ---- commands: one JSON object a line on stdin ------------------------------------------------------------------------ */

/* One key of a command; the value is still JSON. */
struct field {
	const char *key, *value;
	size_t key_len, value_len;
};

static inline const char *json_space(const char *p, const char *end)
{
	while (p < end && (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n'))
		p++;
	return p;
}

/* The end of the string that starts at p, NULL if it has none. */
static inline const char *json_string_end(const char *p, const char *end)
{
	for (p++; p < end; p++) {
		if (*p == '\\')
			p++;
		else if (*p == '"')
			return p + 1;
	}
	return NULL;
}

/* The end of the value that starts at p, NULL if it is not one. Values are only skipped here, who uses one checks it. */
static inline const char *json_value_end(const char *p, const char *end)
{
	int depth = 0;
	while (p < end) {
		switch (*p) {
		case '"':
			p = json_string_end(p, end);
			if (p == NULL)
				return NULL;
			break;
		case '{':
		case '[':
			if (++depth > DEPTH_MAX)
				return NULL;
			p++;
			break;
		case '}':
		case ']':
			if (depth == 0)
				return NULL;
			depth--;
			p++;
			break;
		case ',':
			if (depth == 0)
				return NULL;
			p++;
			continue;
		default:
			p++;
			if (depth == 0 && p < end && *p != ',' && *p != '}' && *p != ']' && *p != ' ' && *p != '\t' && *p != '\r')
				continue;
		}
		if (depth == 0)
			return p;
	}
	return NULL;
}

/* Split an object into its keys. -1: not one flat object, or more than FIELDS_MAX keys. */
static inline int json_fields(const char *line, size_t len, struct field out[FIELDS_MAX])
{
	const char *p = json_space(line, line + len), *end = line + len;
	int n = 0;
	if (p == end || *p++ != '{')
		return -1;
	p = json_space(p, end);
	if (p < end && *p == '}')
		return json_space(p + 1, end) == end ? 0 : -1;
	for (;;) {
		if (n == FIELDS_MAX || p == end || *p != '"')
			return -1;
		const char *after = json_string_end(p, end);
		if (after == NULL)
			return -1;
		out[n].key = p + 1;
		out[n].key_len = (size_t)(after - p) - 2;
		p = json_space(after, end);
		if (p == end || *p++ != ':')
			return -1;
		p = json_space(p, end);
		after = json_value_end(p, end);
		if (after == NULL)
			return -1;
		out[n].value = p;
		out[n].value_len = (size_t)(after - p);
		n++;
		p = json_space(after, end);
		if (p == end)
			return -1;
		if (*p == '}')
			return json_space(p + 1, end) == end ? n : -1;
		if (*p++ != ',')
			return -1;
		p = json_space(p, end);
	}
}

static inline const struct field *json_find(const struct field *fields, int n, const char *key)
{
	for (int i = 0; i < n; i++) {
		if (fields[i].key_len == strlen(key) && memcmp(fields[i].key, key, fields[i].key_len) == 0)
			return &fields[i];
	}
	return NULL;
}

/* A string without escapes other than \" \\ and \/, which is what ids and names need. False: absent, no string, or longer than cap - 1. */
static inline int json_string(const struct field *f, char *out, size_t cap)
{
	size_t n = 0;
	if (f == NULL || f->value_len < 2 || f->value[0] != '"')
		return 0;
	for (const char *p = f->value + 1; p < f->value + f->value_len - 1; p++) {
		if (*p == '\\') {
			p++;
			if (*p != '"' && *p != '\\' && *p != '/')
				return 0;
		}
		if (n + 1 >= cap)
			return 0;
		out[n++] = *p;
	}
	out[n] = 0;
	return 1;
}

static inline int json_number(const struct field *f, uint64_t *out)
{
	uint64_t v = 0;
	if (f == NULL || f->value_len == 0 || f->value_len > 18)
		return 0;
	for (size_t i = 0; i < f->value_len; i++) {
		if (f->value[i] < '0' || f->value[i] > '9')
			return 0;
		v = v * 10 + (uint64_t)(f->value[i] - '0');
	}
	*out = v;
	return 1;
}

/* An array of block ids. -1: absent, not one, or more than max. */
static inline int json_blocks(const struct field *f, uint32_t *out, int max)
{
	int n = 0;
	if (f == NULL || f->value_len < 2 || f->value[0] != '[')
		return -1;
	const char *p = f->value + 1, *end = f->value + f->value_len - 1;
	p = json_space(p, end);
	while (p < end) {
		struct field one = {NULL, p, 0, 0};
		uint64_t v;
		while (p < end && *p >= '0' && *p <= '9')
			p++;
		one.value_len = (size_t)(p - one.value);
		if (n == max || !json_number(&one, &v) || v > UINT32_MAX)
			return -1;
		out[n++] = (uint32_t)v;
		p = json_space(p, end);
		if (p < end && *p++ != ',')
			return -1;
		p = json_space(p, end);
	}
	return n;
}

static inline void hex_encode(const uint8_t *data, size_t len, char *out)
{
	static const char digits[] = "0123456789abcdef";
	for (size_t i = 0; i < len; i++) {
		*out++ = digits[data[i] >> 4];
		*out++ = digits[data[i] & 15];
	}
	*out = 0;
}

static inline int hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Bytes written, -1 if the field is no hex string or longer than cap. */
static inline long hex_decode(const struct field *f, uint8_t *out, size_t cap)
{
	if (f == NULL || f->value_len < 2 || f->value[0] != '"' || f->value_len % 2 != 0 || (f->value_len - 2) / 2 > cap)
		return -1;
	size_t n = (f->value_len - 2) / 2;
	for (size_t i = 0; i < n; i++) {
		int hi = hex_digit(f->value[1 + 2 * i]), lo = hex_digit(f->value[2 + 2 * i]);
		if (hi < 0 || lo < 0)
			return -1;
		out[i] = (uint8_t)(hi << 4 | lo);
	}
	return (long)n;
}

/* Commands that have arrived on stdin. */
struct lines {
	char buf[LINE_BYTES_MAX];
	size_t n, taken;
	int ended; /* end of input: whoever drove this engine is gone */
};

static inline void lines_open(void)
{
	if (fcntl(0, F_SETFL, fcntl(0, F_GETFL) | O_NONBLOCK) < 0)
		die("stdin cannot be made non-blocking: %s", strerror(errno));
}

/* The next whole line, or NULL when there is none now. Valid until the next call. */
static inline const char *lines_next(struct lines *in, size_t *len_out)
{
	if (in->taken > 0) {
		memmove(in->buf, in->buf + in->taken, in->n - in->taken);
		in->n -= in->taken;
		in->taken = 0;
	}
	for (;;) {
		char *nl = memchr(in->buf, '\n', in->n);
		if (nl != NULL) {
			*len_out = (size_t)(nl - in->buf);
			in->taken = *len_out + 1;
			return in->buf;
		}
		if (in->n == sizeof in->buf)
			die("a command is longer than %d bytes", LINE_BYTES_MAX);
		ssize_t got = read(0, in->buf + in->n, sizeof in->buf - in->n);
		if (got < 0 && errno == EINTR)
			continue;
		if (got == 0)
			in->ended = 1;
		if (got <= 0)
			return NULL;
		in->n += (size_t)got;
	}
}

/* The value of a number in a flat JSON object of counters; 0 if it is not there. */
static inline uint64_t counter(const char *json, const char *name)
{
	char key[80];
	snprintf(key, sizeof key, "\"%s\":", name);
	const char *at = strstr(json, key);
	return at == NULL ? 0 : strtoull(at + strlen(key), NULL, 10);
}

#endif
