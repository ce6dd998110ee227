#include "json.h"

#include <string.h>

kvl_json_t kvl_json_over(const char *text, size_t len) { return (kvl_json_t){text, text + len, NULL}; }

void kvl_json_fail(kvl_json_t *j, const char *why)
{
	if (j->bad == NULL)
		j->bad = why;
	j->at = j->end;
}

static void fail_type(kvl_json_t *j, const char *why) { kvl_json_fail(j, kvl_json_peek(j) == 0 ? "the text ends too early" : why); }

int kvl_json_peek(kvl_json_t *j)
{
	for (; j->at < j->end; j->at++)
		if (*j->at != ' ' && *j->at != '\t' && *j->at != '\n' && *j->at != '\r')
			return *j->at != 0 ? (unsigned char)*j->at : 1; /* a zero byte is no end */
	return 0;
}

void kvl_json_want(kvl_json_t *j, char c)
{
	static const char *const missing[][2] = {
		{"{", "must be an object"}, {"[", "must be an array"}, {":", "not JSON: a colon is missing"}};
	const char *why = "not JSON: a comma is missing";
	if (kvl_json_peek(j) == c) {
		j->at++;
		return;
	}
	for (size_t i = 0; i < sizeof missing / sizeof *missing; i++)
		if (missing[i][0][0] == c)
			why = missing[i][1];
	fail_type(j, why);
}

int kvl_json_more(kvl_json_t *j, int first, char closing)
{
	if (j->bad != NULL)
		return 0;
	if (kvl_json_peek(j) == closing) {
		j->at++;
		return 0;
	}
	if (!first) {
		kvl_json_want(j, ',');
		if (kvl_json_peek(j) == closing)
			kvl_json_fail(j, "not JSON: a comma before the end");
	}
	return j->bad == NULL;
}

int kvl_json_word(kvl_json_t *j, const char *word)
{
	size_t n = strlen(word);
	kvl_json_peek(j);
	if (j->bad != NULL || (size_t)(j->end - j->at) < n || memcmp(j->at, word, n) != 0)
		return 0;
	j->at += n;
	return 1;
}

int kvl_json_bool(kvl_json_t *j)
{
	if (kvl_json_word(j, "true"))
		return 1;
	if (!kvl_json_word(j, "false"))
		fail_type(j, "must be true or false");
	return 0;
}

static size_t digits(kvl_json_t *j)
{
	const char *from = j->at;
	while (j->at < j->end && *j->at >= '0' && *j->at <= '9')
		j->at++;
	return (size_t)(j->at - from);
}

/* Passes over a number. 1: it has neither sign, fraction nor exponent. */
static int number(kvl_json_t *j)
{
	int plain = 1;
	size_t n;
	const char *from;
	kvl_json_peek(j);
	from = j->at;
	if (j->at < j->end && *j->at == '-') {
		plain = 0;
		j->at++;
	}
	n = digits(j);
	if (n == 0) {
		j->at = from;
		fail_type(j, "must be a number");
		return 0;
	}
	if (n > 1 && j->at[-(ptrdiff_t)n] == '0') {
		kvl_json_fail(j, "not JSON: a number with a leading zero");
		return 0;
	}
	if (j->at < j->end && *j->at == '.') {
		plain = 0;
		j->at++;
		if (digits(j) == 0)
			kvl_json_fail(j, "not JSON: a fraction without digits");
	}
	if (j->at < j->end && (*j->at == 'e' || *j->at == 'E')) {
		plain = 0;
		j->at++;
		if (j->at < j->end && (*j->at == '+' || *j->at == '-'))
			j->at++;
		if (digits(j) == 0)
			kvl_json_fail(j, "not JSON: an exponent without digits");
	}
	return plain;
}

/* In decimal all the way: a double could come out a nanosecond late. */
uint64_t kvl_json_seconds(kvl_json_t *j)
{
	const char *from, *to;
	uint64_t v = 0, nano;
	int64_t shift = 9, exponent = 0; /* v x 10^shift nanoseconds */
	int fraction = 0, negative = 0;
	kvl_json_peek(j);
	from = j->at;
	number(j);
	to = j->at;
	if (j->bad != NULL)
		return 0;
	if (*from == '-')
		from++, negative = 1;
	for (; from < to && *from != 'e' && *from != 'E'; from++) {
		if (*from == '.') {
			fraction = 1;
			continue;
		}
		if (v < UINT64_MAX / 10 - 1) {
			v = v * 10 + (uint64_t)(*from - '0');
			shift -= fraction;
		} else {
			shift += !fraction; /* beyond nanoseconds, or beyond any time */
		}
	}
	if (from < to) {
		int down = *++from == '-';
		for (from += *from == '-' || *from == '+'; from < to && exponent < INT32_MAX / 10; from++)
			exponent = exponent * 10 + (*from - '0');
		shift += down ? -exponent : exponent;
	}
	for (nano = v; shift > 0 && nano != 0; shift--) {
		if (nano > INT64_MAX / 10)
			return negative ? 1 : INT64_MAX;
		nano *= 10;
	}
	for (; shift < 0 && nano != 0; shift++)
		nano /= 10;
	if (nano > INT64_MAX)
		nano = INT64_MAX;
	return negative || nano == 0 ? 1 : nano;
}

uint64_t kvl_json_uint(kvl_json_t *j, uint64_t max)
{
	const char *from, *to;
	uint64_t v = 0;
	int plain;
	kvl_json_peek(j);
	from = j->at;
	plain = number(j);
	to = j->at;
	if (j->bad != NULL)
		return 0;
	if (!plain) {
		kvl_json_fail(j, "must be a whole number without sign");
		return 0;
	}
	for (; from < to; from++) {
		uint64_t d = (uint64_t)(*from - '0');
		if (v > (UINT64_MAX - d) / 10) {
			kvl_json_fail(j, "is too large");
			return 0;
		}
		v = v * 10 + d;
	}
	if (v > max) {
		kvl_json_fail(j, "is too large");
		return 0;
	}
	return v;
}

/* ---- strings ---- */

/* Bytes of the UTF-8 sequence at s, 0 if it is none (overlong, surrogate, past U+10FFFF, cut off). */
static size_t utf8_at(const unsigned char *s, size_t left)
{
	static const struct {
		unsigned char from, to, low, high; /* lead bytes, and what may follow first */
		size_t n;
	} rows[] = {{0x00, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
		    {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
		    {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		if (*s < rows[i].from || *s > rows[i].to)
			continue;
		if (rows[i].n > left)
			return 0;
		for (size_t k = 1; k < rows[i].n; k++)
			if (s[k] < (k == 1 ? rows[i].low : 0x80) || s[k] > (k == 1 ? rows[i].high : 0xbf))
				return 0;
		return rows[i].n;
	}
	return 0;
}

int kvl_utf8_valid(const void *data, size_t len)
{
	const unsigned char *s = data;
	for (size_t i = 0; i < len;) {
		size_t n = utf8_at(s + i, len - i);
		if (n == 0)
			return 0;
		i += n;
	}
	return 1;
}

static uint32_t hex4(kvl_json_t *j)
{
	uint32_t v = 0;
	if (j->end - j->at < 4) {
		kvl_json_fail(j, "the text ends too early");
		return 0;
	}
	for (int i = 0; i < 4; i++) {
		char c = *j->at++;
		uint32_t d = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
			     : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a') + 10
			     : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A') + 10
						    : 16;
		if (d == 16) {
			kvl_json_fail(j, "not JSON: a bad \\u escape");
			return 0;
		}
		v = v << 4 | d;
	}
	return v;
}

static size_t utf8_put(uint32_t r, char out[4])
{
	if (r < 0x80) {
		out[0] = (char)r;
		return 1;
	}
	if (r < 0x800) {
		out[0] = (char)(0xc0 | r >> 6);
		out[1] = (char)(0x80 | (r & 0x3f));
		return 2;
	}
	if (r < 0x10000) {
		out[0] = (char)(0xe0 | r >> 12);
		out[1] = (char)(0x80 | (r >> 6 & 0x3f));
		out[2] = (char)(0x80 | (r & 0x3f));
		return 3;
	}
	out[0] = (char)(0xf0 | r >> 18);
	out[1] = (char)(0x80 | (r >> 12 & 0x3f));
	out[2] = (char)(0x80 | (r >> 6 & 0x3f));
	out[3] = (char)(0x80 | (r & 0x3f));
	return 4;
}

/* Undoes the escape behind a backslash. Half of a surrogate pair has no text and is an error. */
static size_t escape(kvl_json_t *j, char out[4])
{
	static const char plain[] = "\"\\/bfnrt", text[] = "\"\\/\b\f\n\r\t";
	const char *found;
	uint32_t r, low;
	char c;
	if (j->at == j->end) {
		kvl_json_fail(j, "the text ends too early");
		return 0;
	}
	c = *j->at++;
	if (c != 'u') {
		found = c != 0 ? strchr(plain, c) : NULL;
		if (found == NULL) {
			kvl_json_fail(j, "not JSON: an unknown escape");
			return 0;
		}
		out[0] = text[found - plain];
		return 1;
	}
	r = hex4(j);
	if (r >= 0xd800 && r < 0xe000) {
		if (r >= 0xdc00 || j->end - j->at < 2 || j->at[0] != '\\' || j->at[1] != 'u') {
			kvl_json_fail(j, "not UTF-8: half of a surrogate pair");
			return 0;
		}
		j->at += 2;
		low = hex4(j);
		if (j->bad == NULL && (low < 0xdc00 || low > 0xdfff))
			kvl_json_fail(j, "not UTF-8: half of a surrogate pair");
		r = 0x10000 + ((r - 0xd800) << 10) + (low - 0xdc00);
	}
	return j->bad == NULL ? utf8_put(r, out) : 0;
}

/* ASCII that stands for itself: nearly all there is. */
static int plain(unsigned char c) { return c >= 0x20 && c < 0x80 && c != '"' && c != '\\'; }

size_t kvl_json_string(kvl_json_t *j, char *out, size_t cap)
{
	size_t len = 0;
	if (kvl_json_peek(j) != '"') {
		fail_type(j, "must be a string");
		return 0;
	}
	j->at++;
	while (j->at < j->end) {
		unsigned char c = (unsigned char)*j->at;
		char undone[4];
		const char *from = undone;
		size_t n;
		if (c == '"') {
			j->at++;
			return len;
		}
		if (c < 0x20) {
			kvl_json_fail(j, "not JSON: a control character in a string");
			return 0;
		}
		if (plain(c)) {
			from = j->at;
			while (++j->at < j->end && plain((unsigned char)*j->at))
				;
			n = (size_t)(j->at - from);
			if (len < cap)
				memcpy(out + len, from, n < cap - len ? n : cap - len);
			len += n;
			continue;
		}
		if (c == '\\') {
			j->at++;
			n = escape(j, undone);
		} else {
			from = j->at;
			n = utf8_at((const unsigned char *)from, (size_t)(j->end - from));
			if (n == 0)
				kvl_json_fail(j, "not UTF-8");
			else
				j->at += n;
		}
		if (j->bad != NULL)
			return 0;
		for (size_t i = 0; i < n; i++, len++)
			if (len < cap)
				out[len] = from[i];
	}
	kvl_json_fail(j, "the text ends too early");
	return 0;
}

/* ---- values that nobody asked for ---- */

void kvl_json_skip(kvl_json_t *j, unsigned depth)
{
	char closing[KVL_JSON_DEPTH]; /* of what is open here */
	unsigned open = 0;
	int first = 0; /* whether what is open has had no value yet */
	do {
		int c = kvl_json_peek(j);
		if (c == '{' || c == '[') {
			if (depth + open >= KVL_JSON_DEPTH) {
				kvl_json_fail(j, "is nested too deeply");
				return;
			}
			j->at++;
			closing[open++] = c == '{' ? '}' : ']';
			first = 1;
		} else if (c == '"') {
			kvl_json_string(j, NULL, 0);
			first = 0;
		} else if (c == 't' || c == 'f' || c == 'n') {
			if (!kvl_json_word(j, "true") && !kvl_json_word(j, "false") && !kvl_json_word(j, "null"))
				kvl_json_fail(j, "not JSON: an unknown word");
			first = 0;
		} else {
			number(j);
			first = 0;
		}
		while (open > 0 && j->bad == NULL && !kvl_json_more(j, first, closing[open - 1])) {
			open--;
			first = 0;
		}
		if (open > 0 && j->bad == NULL && closing[open - 1] == '}') {
			kvl_json_string(j, NULL, 0);
			kvl_json_want(j, ':');
		}
	} while (open > 0 && j->bad == NULL);
}
