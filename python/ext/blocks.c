/* Block ids. An argument is a sequence of groups; a group is a sequence of ints, a buffer of ints (array, numpy), or a tuple
 * (ids, first) of such a sequence and the position of its first block within the request.
 */
#include "ext.h"

#include <string.h>

static int grow(kvp_groups_t *g, size_t more)
{
	size_t cap = g->cap;
	uint32_t *ids;
	if (KVP_LIKELY(g->used + more <= g->cap))
		return 0;
	while (cap < g->used + more)
		cap *= 2;
	ids = PyMem_Malloc(cap * sizeof *ids);
	if (ids == NULL) {
		PyErr_NoMemory();
		return -1;
	}
	memcpy(ids, g->ids, g->used * sizeof *ids);
	if (g->ids != g->near_ids)
		PyMem_Free(g->ids);
	g->ids = ids;
	g->cap = cap;
	return 0;
}

static inline int put(kvp_groups_t *g, PyObject *o, const char *name, Py_ssize_t group, Py_ssize_t i)
{
	uint32_t *to = &g->ids[g->used++];
	if (KVP_LIKELY(PyLong_CheckExact(o))) {
		long v = PyLong_AsLong(o);
		if (KVP_LIKELY(v >= 0 && v <= (long)UINT32_MAX)) {
			*to = (uint32_t)v;
			return 0;
		}
		PyErr_Clear();
	}
	return kvp_id_slow(o, name, group, i, to);
}

/* Items are looked for one by one and by number: an __index__ may have made the list shorter. */
static int put_list(kvp_groups_t *g, PyObject *list, const char *name, Py_ssize_t group)
{
	Py_ssize_t n = PyList_Size(list);
	if (grow(g, (size_t)n) != 0)
		return -1;
	for (Py_ssize_t i = 0; i < n; i++) {
		PyObject *item = PyList_GetItem(list, i);
		if (item == NULL || put(g, item, name, group, i) != 0)
			return -1;
	}
	return 0;
}

static int put_tuple(kvp_groups_t *g, PyObject *tuple, const char *name, Py_ssize_t group)
{
	Py_ssize_t n = PyTuple_Size(tuple);
	if (grow(g, (size_t)n) != 0)
		return -1;
	for (Py_ssize_t i = 0; i < n; i++)
		if (put(g, PyTuple_GetItem(tuple, i), name, group, i) != 0)
			return -1;
	return 0;
}

static int put_wide(kvp_groups_t *g, int64_t v, int is_signed, const char *name, Py_ssize_t group, Py_ssize_t i)
{
	if ((is_signed && v < 0) || (uint64_t)v > UINT32_MAX) {
		if (is_signed)
			PyErr_Format(PyExc_OverflowError, "%s[%zd][%zd]: %lld is not within 0 and %lu", name, group, i, (long long)v,
				     (unsigned long)UINT32_MAX);
		else
			PyErr_Format(PyExc_OverflowError, "%s[%zd][%zd]: %llu is not within 0 and %lu", name, group, i,
				     (unsigned long long)v, (unsigned long)UINT32_MAX);
		return -1;
	}
	g->ids[g->used++] = (uint32_t)v;
	return 0;
}

static int put_numbers(kvp_groups_t *g, const char *data, Py_ssize_t n, Py_ssize_t size, int is_signed, const char *name,
		       Py_ssize_t group)
{
	if (grow(g, (size_t)n) != 0)
		return -1;
	if (size == 4 && !is_signed) {
		memcpy(g->ids + g->used, data, (size_t)n * 4);
		g->used += (size_t)n;
		return 0;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		int64_t v;
		if (size == 8) {
			memcpy(&v, data + i * 8, 8);
		} else {
			int32_t narrow;
			memcpy(&narrow, data + i * 4, 4);
			v = narrow;
		}
		if (put_wide(g, v, is_signed, name, group, i) != 0)
			return -1;
	}
	return 0;
}

/* The limited API of 3.10 has no Py_buffer: a memoryview tells the format and gives its bytes, one copy. */
static int put_view(kvp_groups_t *g, PyObject *view, const char *name, Py_ssize_t group)
{
	PyObject *format = PyObject_GetAttrString(view, "format"), *size = PyObject_GetAttrString(view, "itemsize");
	PyObject *dims = PyObject_GetAttrString(view, "ndim"), *bytes = NULL;
	const char *code = format != NULL ? PyUnicode_AsUTF8AndSize(format, NULL) : NULL;
	long itemsize = size != NULL ? PyLong_AsLong(size) : 0, ndim = dims != NULL ? PyLong_AsLong(dims) : 0;
	int rc = -1;
	if (code == NULL || PyErr_Occurred())
		goto out;
	if (code[0] == '@' || code[0] == '=' || (code[0] == '<' && PY_LITTLE_ENDIAN))
		code++;
	if (ndim != 1 || (itemsize != 4 && itemsize != 8) || strchr("iIlLqQ", code[0]) == NULL || code[0] == 0 || code[1] != 0) {
		PyErr_Format(PyExc_TypeError, "%s[%zd]: a buffer of %ld dimensions and format %R, not of 32-bit or 64-bit ints", name, group,
			     ndim, format);
		goto out;
	}
	if ((bytes = PyObject_CallMethod(view, "tobytes", NULL)) == NULL || !PyBytes_Check(bytes))
		goto out;
	rc = put_numbers(g, PyBytes_AsString(bytes), PyBytes_Size(bytes) / itemsize, itemsize, code[0] >= 'a', name, group);
out:
	Py_XDECREF(format);
	Py_XDECREF(size);
	Py_XDECREF(dims);
	Py_XDECREF(bytes);
	return rc;
}

static int put_other(kvp_groups_t *g, PyObject *o, const char *name, Py_ssize_t group)
{
	PyObject *items;
	int rc;
	if (!PyUnicode_Check(o) && !PyBytes_Check(o)) {
		if ((items = PyMemoryView_FromObject(o)) != NULL) {
			rc = put_view(g, items, name, group);
			Py_DECREF(items);
			return rc;
		}
		if (!PyErr_ExceptionMatches(PyExc_TypeError))
			return -1;
		PyErr_Clear();
		if (PySequence_Check(o)) {
			if ((items = PySequence_Tuple(o)) == NULL)
				return -1;
			rc = put_tuple(g, items, name, group);
			Py_DECREF(items);
			return rc;
		}
	}
	PyErr_Format(PyExc_TypeError, "%s[%zd]: %R is no sequence of block ids", name, group, o);
	return -1;
}

static int put_ids(kvp_groups_t *g, PyObject *o, const char *name, Py_ssize_t group)
{
	if (KVP_LIKELY(PyList_CheckExact(o)) || PyList_Check(o))
		return put_list(g, o, name, group);
	if (PyTuple_Check(o))
		return put_tuple(g, o, name, group);
	return put_other(g, o, name, group);
}

static int put_group(kvp_groups_t *g, PyObject *o, const char *name, Py_ssize_t group)
{
	kvl_blocks_t *to = &g->groups[group];
	size_t from = g->used;
	PyObject *ids = o;
	to->first = 0;
	if (!PyList_CheckExact(o) && PyTuple_Check(o) && PyTuple_Size(o) == 2 && PySequence_Check(PyTuple_GetItem(o, 0))) {
		char what[96];
		PyOS_snprintf(what, sizeof what, "%s[%zd]: first", name, group);
		ids = PyTuple_GetItem(o, 0);
		if (kvp_u32(PyTuple_GetItem(o, 1), what, &to->first) != 0)
			return -1;
	}
	if (put_ids(g, ids, name, group) != 0)
		return -1;
	if (g->used - from > UINT32_MAX) {
		PyErr_Format(PyExc_OverflowError, "%s[%zd]: more than 2^32 blocks", name, group);
		return -1;
	}
	to->n = (uint32_t)(g->used - from);
	return 0;
}

static int put_groups(kvp_groups_t *g, PyObject *o, const char *name, Py_ssize_t n)
{
	int is_list = PyList_CheckExact(o) || PyList_Check(o);
	if (n > KVP_GROUPS_NEAR) {
		if (n > 4096) { /* the library takes no more; a length that somebody made up must not cost memory */
			PyErr_Format(PyExc_ValueError, "%s: %zd groups, at most 4096", name, n);
			return -1;
		}
		if ((g->groups = PyMem_Malloc((size_t)n * sizeof *g->groups)) == NULL) {
			g->groups = g->near_groups;
			PyErr_NoMemory();
			return -1;
		}
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		PyObject *group = is_list ? PyList_GetItem(o, i) : PyTuple_GetItem(o, i);
		int rc;
		if (group == NULL)
			return -1;
		Py_INCREF(group); /* an __index__ may take it out of the list */
		rc = put_group(g, group, name, i);
		Py_DECREF(group);
		if (rc != 0)
			return -1;
		g->n++;
	}
	return 0;
}

int kvp_groups(PyObject *o, const char *name, kvp_groups_t *out)
{
	PyObject *items = NULL;
	uint32_t *ids;
	int rc;
	out->groups = out->near_groups;
	out->ids = out->near_ids;
	out->n = 0;
	out->used = 0;
	out->cap = KVP_IDS_NEAR;
	if (!PyList_CheckExact(o) && !PyList_Check(o) && !PyTuple_Check(o)) {
		if (PyUnicode_Check(o) || PyBytes_Check(o) || !PySequence_Check(o)) {
			PyErr_Format(PyExc_TypeError, "%s: %R is no sequence of groups of block ids", name, o);
			return -1;
		}
		if ((items = PySequence_Tuple(o)) == NULL)
			return -1;
		o = items;
	}
	rc = put_groups(out, o, name, PyTuple_Check(o) ? PyTuple_Size(o) : PyList_Size(o));
	Py_XDECREF(items);
	if (rc != 0) {
		kvp_groups_free(out);
		return -1;
	}
	ids = out->ids; /* they move no more */
	for (uint32_t i = 0; i < out->n; i++) {
		out->groups[i].ids = ids;
		ids += out->groups[i].n;
	}
	return 0;
}

void kvp_groups_free(kvp_groups_t *g)
{
	if (g->ids != g->near_ids)
		PyMem_Free(g->ids);
	if (g->groups != g->near_groups)
		PyMem_Free(g->groups);
}
