/* JSON of plain values, as it is written a hundred times a second: dict, list, tuple, str, int, float, bool, None. */
#include "ext.h"

#include <math.h>
#include <string.h>

#define TEXT_MAX (1u << 18) /* longer ones are rare, and left to whoever looks at their weight */
#define DEPTH_MAX 32

static int room(kvp_text_t *t, size_t more)
{
	size_t cap = t->cap;
	char *data;
	if (KVP_LIKELY(t->len + more <= t->cap))
		return 1;
	if (t->len + more > TEXT_MAX)
		return 0;
	while (cap < t->len + more)
		cap *= 2;
	if ((data = PyMem_Malloc(cap)) == NULL) {
		PyErr_NoMemory();
		return -1;
	}
	memcpy(data, t->data, t->len);
	kvp_text_free(t);
	t->data = data;
	t->cap = cap;
	return 1;
}

static int put(kvp_text_t *t, const char *s, size_t n)
{
	int rc = room(t, n);
	if (rc == 1) {
		memcpy(t->data + t->len, s, n);
		t->len += n;
	}
	return rc;
}

static int put_string(kvp_text_t *t, PyObject *o)
{
	static const char hex[] = "0123456789abcdef";
	Py_ssize_t n;
	const char *s = PyUnicode_AsUTF8AndSize(o, &n);
	char *to;
	int rc;
	if (s == NULL) { /* half a surrogate, or no memory: json finds the words */
		PyErr_Clear();
		return 0;
	}
	if ((size_t)n > TEXT_MAX || (rc = room(t, 6 * (size_t)n + 2)) == 0)
		return 0;
	if (rc < 0)
		return -1;
	to = t->data + t->len;
	*to++ = '"';
	for (Py_ssize_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)s[i];
		if (KVP_LIKELY(c >= 0x20 && c != '"' && c != '\\')) {
			*to++ = (char)c;
			continue;
		}
		*to++ = '\\';
		if (c >= 0x20) {
			*to++ = (char)c;
			continue;
		}
		memcpy(to, "u00", 3);
		to[3] = hex[c >> 4];
		to[4] = hex[c & 15];
		to += 5;
	}
	*to++ = '"';
	t->len = (size_t)(to - t->data);
	return 1;
}

static int put_int(kvp_text_t *t, PyObject *o)
{
	char digits[24], *at = digits + sizeof digits;
	int overflow;
	long long v = PyLong_AsLongLongAndOverflow(o, &overflow);
	unsigned long long u = v < 0 ? 0 - (unsigned long long)v : (unsigned long long)v;
	if (overflow != 0)
		return 0;
	do
		*--at = (char)('0' + u % 10);
	while ((u /= 10) != 0);
	if (v < 0)
		*--at = '-';
	return put(t, at, (size_t)(digits + sizeof digits - at));
}

static int put_float(kvp_text_t *t, PyObject *o)
{
	double v = PyFloat_AsDouble(o);
	char *text;
	int rc;
	if (!isfinite(v))
		return 0;
	if ((text = PyOS_double_to_string(v, 'r', 0, Py_DTSF_ADD_DOT_0, NULL)) == NULL)
		return -1;
	rc = put(t, text, strlen(text));
	PyMem_Free(text);
	return rc;
}

static int put_value(kvp_text_t *t, PyObject *o, int depth);

static int put_items(kvp_text_t *t, PyObject *o, int depth)
{
	int is_list = PyList_CheckExact(o), rc = put(t, "[", 1);
	Py_ssize_t n = is_list ? PyList_Size(o) : PyTuple_Size(o);
	for (Py_ssize_t i = 0; rc == 1 && i < n; i++) {
		if (i != 0)
			rc = put(t, ",", 1);
		if (rc == 1)
			rc = put_value(t, is_list ? PyList_GetItem(o, i) : PyTuple_GetItem(o, i), depth);
	}
	return rc == 1 ? put(t, "]", 1) : rc;
}

static int put_dict(kvp_text_t *t, PyObject *o, int depth)
{
	PyObject *key, *value;
	Py_ssize_t at = 0;
	int rc = put(t, "{", 1), first = 1;
	while (rc == 1 && PyDict_Next(o, &at, &key, &value)) {
		if (!PyUnicode_CheckExact(key))
			return 0;
		if (!first)
			rc = put(t, ",", 1);
		first = 0;
		if (rc == 1 && (rc = put_string(t, key)) == 1 && (rc = put(t, ":", 1)) == 1)
			rc = put_value(t, value, depth);
	}
	return rc == 1 ? put(t, "}", 1) : rc;
}

static int put_value(kvp_text_t *t, PyObject *o, int depth)
{
	if (PyUnicode_CheckExact(o))
		return put_string(t, o);
	if (PyLong_CheckExact(o))
		return put_int(t, o);
	if (o == Py_None)
		return put(t, "null", 4);
	if (o == Py_True)
		return put(t, "true", 4);
	if (o == Py_False)
		return put(t, "false", 5);
	if (PyFloat_CheckExact(o))
		return put_float(t, o);
	if (depth == DEPTH_MAX)
		return 0;
	if (PyDict_CheckExact(o))
		return put_dict(t, o, depth + 1);
	if (PyList_CheckExact(o) || PyTuple_CheckExact(o))
		return put_items(t, o, depth + 1);
	return 0;
}

int kvp_json(PyObject *o, kvp_text_t *out)
{
	int rc;
	out->data = out->near;
	out->len = 0;
	out->cap = sizeof out->near;
	if ((rc = put_value(out, o, 0)) != 1)
		kvp_text_free(out);
	return rc;
}

void kvp_text_free(kvp_text_t *t)
{
	if (t->data != t->near)
		PyMem_Free(t->data);
}
