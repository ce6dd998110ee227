/* A strict reader of JSON (RFC 8259) for parameters and configuration: no allocation, no recursion, every byte looked
 * at once or twice. The same rules as dataplane/wire: no bad UTF-8, no half surrogates, no leading zeros. */
#ifndef KVL_JSON_H
#define KVL_JSON_H

#include <stddef.h>
#include <stdint.h>

#define KVL_JSON_DEPTH 32u /* nesting of a value that is passed over, with what it stands in */

typedef struct kvl_json {
	const char *at, *end;
	const char *bad; /* the first error, which stops everything; NULL: none */
} kvl_json_t;

kvl_json_t kvl_json_over(const char *text, size_t len);
void kvl_json_fail(kvl_json_t *j, const char *why);
/* The next byte that is not white space, 0 at the end. */
int kvl_json_peek(kvl_json_t *j);
void kvl_json_want(kvl_json_t *j, char c);
/* Steps through an object or array: 0 at the closing byte or an error. */
int kvl_json_more(kvl_json_t *j, int first, char closing);
/* Takes null, true or false. */
int kvl_json_word(kvl_json_t *j, const char *word);
int kvl_json_bool(kvl_json_t *j);
uint64_t kvl_json_uint(kvl_json_t *j, uint64_t max); /* 5.0 and 5e0 are no integers here */
/* Any number of seconds, as whole nanoseconds: 1 for what is not above 0, INT64_MAX for what is more. Cut, never rounded up. */
uint64_t kvl_json_seconds(kvl_json_t *j);
/* Length of a string's text; its first cap bytes in out. A longer one than cap is no error here. */
size_t kvl_json_string(kvl_json_t *j, char *out, size_t cap);
/* Passes over a value that stands in `depth` others. */
void kvl_json_skip(kvl_json_t *j, unsigned depth);
/* Whether the bytes are UTF-8, and so can stand in a JSON string. */
int kvl_utf8_valid(const void *data, size_t len);

#endif
