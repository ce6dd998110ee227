/* Methods of a context that are about memory, engines and ranks. All are off the hot path. */
#include "ext.h"

#include <string.h>

static PyObject *done(PyObject *self, int32_t st)
{
	if (st != KVL_OK)
		return kvp_raise(kvp_module_of(self), st);
	Py_RETURN_NONE;
}

/* ---- memory ---- */

static int get_uint(PyObject *o, const char *attribute, Py_ssize_t i, uint64_t max, uint64_t *out)
{
	PyObject *v = PyObject_GetAttrString(o, attribute);
	char name[64];
	int rc;
	if (v == NULL)
		return -1;
	PyOS_snprintf(name, sizeof name, "regions[%zd].%s", i, attribute);
	rc = kvp_uint(v, name, max, out);
	Py_DECREF(v);
	return rc;
}

static int get_u32(PyObject *o, const char *attribute, Py_ssize_t i, uint32_t *out)
{
	uint64_t v;
	if (get_uint(o, attribute, i, UINT32_MAX, &v) != 0)
		return -1;
	*out = (uint32_t)v;
	return 0;
}

static int get_group(PyObject *o, Py_ssize_t i, int32_t *out)
{
	PyObject *v = PyObject_GetAttrString(o, "group");
	long group = v != NULL ? PyLong_AsLong(v) : -1;
	Py_XDECREF(v);
	if (v == NULL || (group == -1 && PyErr_Occurred()))
		return -1;
	if (group < INT32_MIN || group > INT32_MAX) {
		PyErr_Format(PyExc_OverflowError, "regions[%zd].group: %ld does not fit 32 bits", i, group);
		return -1;
	}
	*out = (int32_t)group;
	return 0;
}

static int get_mem(PyObject *o, Py_ssize_t i, uint32_t *out)
{
	PyObject *v = PyObject_GetAttrString(o, "mem");
	int rc = 0;
	if (v == NULL)
		return -1;
	if (PyUnicode_Check(v) && PyUnicode_CompareWithASCIIString(v, "dram") == 0)
		*out = KVL_MEM_DRAM;
	else if (PyUnicode_Check(v) && PyUnicode_CompareWithASCIIString(v, "vram") == 0)
		*out = KVL_MEM_VRAM;
	else {
		PyErr_Format(PyExc_ValueError, "regions[%zd].mem: %R is neither 'dram' nor 'vram'", i, v);
		rc = -1;
	}
	Py_DECREF(v);
	return rc;
}

/* Keeps the name's object in keep: the region points into it. */
static int get_region(PyObject *o, Py_ssize_t i, kvl_region_t *out, PyObject *keep)
{
	PyObject *name = PyObject_GetAttrString(o, "name"), *replicated = NULL;
	int all = 0, rc = -1;
	if (name == NULL || kvp_bytes(name, "name", &out->name) != 0 || PyList_Append(keep, name) != 0)
		goto out;
	if (get_uint(o, "addr", i, UINT64_MAX, &out->addr) != 0 || get_uint(o, "bytes", i, UINT64_MAX, &out->bytes) != 0 ||
	    get_uint(o, "block_len", i, UINT64_MAX, &out->block_len) != 0 ||
	    get_uint(o, "block_stride", i, UINT64_MAX, &out->block_stride) != 0 || get_u32(o, "blocks", i, &out->blocks) != 0 ||
	    get_u32(o, "device", i, &out->device) != 0 || get_u32(o, "parts", i, &out->parts) != 0 ||
	    get_group(o, i, &out->group) != 0 || get_mem(o, i, &out->mem) != 0)
		goto out;
	if ((replicated = PyObject_GetAttrString(o, "replicated")) == NULL || kvp_truth(replicated, "replicated", &all) != 0)
		goto out;
	out->flags = all ? KVL_REGION_REPLICATED : 0;
	rc = 0;
out:
	Py_XDECREF(name);
	Py_XDECREF(replicated);
	return rc;
}

PyObject *kvp_context_register(PyObject *self, PyObject *regions)
{
	kvp_context_t *context = (kvp_context_t *)self;
	PyObject *items = PySequence_Tuple(regions), *keep = PyList_New(0), *result = NULL;
	Py_ssize_t n = items != NULL ? PyTuple_Size(items) : 0;
	kvl_region_t *r = NULL;
	kvl_ctx_t *c;
	int32_t st;
	if (items == NULL || keep == NULL)
		goto out;
	if (n > 4096) {
		kvp_raise_text(kvp_module_of(self), KVL_ERR_INVALID, "regions: more than 4096");
		goto out;
	}
	if ((r = PyMem_Calloc((size_t)n + 1, sizeof *r)) == NULL) {
		PyErr_NoMemory();
		goto out;
	}
	for (Py_ssize_t i = 0; i < n; i++)
		if (get_region(PyTuple_GetItem(items, i), i, &r[i], keep) != 0)
			goto out;
	if ((c = context->open) == NULL) {
		kvp_raise_closed(self, context);
		goto out;
	}
	context->registering++;
	KVP_WITHOUT_GIL(context, st = kvl_register(c, r, sizeof *r, (uint32_t)n));
	context->registering--;
	result = done(self, st);
out:
	PyMem_Free(r);
	Py_XDECREF(items);
	Py_XDECREF(keep);
	return result;
}

PyObject *kvp_context_unregister(PyObject *self, PyObject *none)
{
	int32_t st;
	(void)none;
	KVP_OPEN(self, c);
	KVP_WITHOUT_GIL((kvp_context_t *)self, st = kvl_unregister(c));
	return done(self, st);
}

/* ---- engines ---- */

PyObject *kvp_context_engine_add(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
	static const kvp_signature_t s = {"engine_add", 2, 6, {"engine_id", "ranks", "host", "port", "pp_size", "user"}};
	kvl_engine_desc_t desc = {.size = sizeof desc, .pp_size = 1};
	kvl_engine_t engine;
	PyObject *a[6];
	int32_t st;
	if (kvp_bind(&s, args, n, names, a) != 0 || kvp_bytes(a[0], "engine_id", &desc.engine_id) != 0 ||
	    kvp_u32(a[1], "ranks", &desc.ranks) != 0 || (a[2] != NULL && kvp_bytes(a[2], "host", &desc.host) != 0) ||
	    kvp_u32(a[3], "port", &desc.port) != 0 || kvp_u32(a[4], "pp_size", &desc.pp_size) != 0 ||
	    kvp_u64(a[5], "user", &desc.user) != 0)
		return NULL;
	KVP_OPEN(self, c);
	KVP_WITHOUT_GIL((kvp_context_t *)self, st = kvl_engine_add(c, &desc, &engine));
	if (st != KVL_OK)
		return kvp_raise(kvp_module_of(self), st);
	return PyLong_FromUnsignedLongLong(engine);
}

PyObject *kvp_context_engine_remove(PyObject *self, PyObject *o)
{
	uint64_t engine = 0;
	int32_t st;
	if (kvp_u64(o, "engine", &engine) != 0)
		return NULL;
	KVP_OPEN(self, c);
	KVP_WITHOUT_GIL((kvp_context_t *)self, st = kvl_engine_remove(c, engine));
	return done(self, st);
}

/* Bytes that are read without the GIL belong to an object that nobody can change. */
static PyObject *with_bytes(PyObject *self, PyObject *o, const char *name,
			    int32_t (*call)(kvl_ctx_t *, uint64_t, uint32_t, kvl_bytes_t), uint64_t engine, uint32_t rank)
{
	PyObject *bytes = kvp_bytes_object(o, name), *result = NULL;
	kvl_bytes_t b;
	int32_t st;
	if (bytes == NULL)
		return NULL;
	if (kvp_bytes(bytes, name, &b) == 0) {
		kvl_ctx_t *c = ((kvp_context_t *)self)->open;
		if (c == NULL) {
			kvp_raise_closed(self, (kvp_context_t *)self);
		} else {
			KVP_WITHOUT_GIL((kvp_context_t *)self, st = call(c, engine, rank, b));
			result = done(self, st);
		}
	}
	Py_DECREF(bytes);
	return result;
}

static int32_t handshake_set(kvl_ctx_t *c, uint64_t none, uint32_t rank, kvl_bytes_t map)
{
	(void)none;
	return kvl_handshake_set(c, rank, map);
}

static int32_t delta_put(kvl_ctx_t *c, uint64_t none, uint32_t rank, kvl_bytes_t message)
{
	(void)none;
	return kvl_delta_put(c, rank, message);
}

PyObject *kvp_context_engine_handshake(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
	static const kvp_signature_t s = {"engine_handshake", 3, 3, {"engine", "rank", "map"}};
	uint64_t engine = 0;
	uint32_t rank = 0;
	PyObject *a[3];
	if (kvp_bind(&s, args, n, names, a) != 0 || kvp_u64(a[0], "engine", &engine) != 0 || kvp_u32(a[1], "rank", &rank) != 0)
		return NULL;
	return with_bytes(self, a[2], "map", kvl_engine_handshake, engine, rank);
}

PyObject *kvp_context_handshake_set(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
	static const kvp_signature_t s = {"handshake_set", 2, 2, {"rank", "map"}};
	uint32_t rank = 0;
	PyObject *a[2];
	if (kvp_bind(&s, args, n, names, a) != 0 || kvp_u32(a[0], "rank", &rank) != 0)
		return NULL;
	return with_bytes(self, a[1], "map", handshake_set, 0, rank);
}

PyObject *kvp_context_handshake_get(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
	static const kvp_signature_t s = {"handshake_get", 0, 1, {"rank"}};
	size_t cap = 65536, len = 0;
	uint32_t rank = 0;
	PyObject *a[1], *result;
	char *buf = NULL, *grown;
	int32_t st;
	if (kvp_bind(&s, args, n, names, a) != 0 || kvp_u32(a[0], "rank", &rank) != 0)
		return NULL;
	do { /* it may grow between two looks */
		kvl_ctx_t *c = ((kvp_context_t *)self)->open;
		if ((grown = PyMem_Realloc(buf, cap)) == NULL) {
			PyMem_Free(buf);
			return PyErr_NoMemory();
		}
		buf = grown;
		if (c == NULL) {
			PyMem_Free(buf);
			return kvp_raise_closed(self, (kvp_context_t *)self);
		}
		KVP_WITHOUT_GIL((kvp_context_t *)self, st = kvl_handshake_get(c, rank, buf, cap, &len));
	} while (st == KVL_ERR_SPACE && len > cap && (cap = len));
	result = st == KVL_OK ? PyBytes_FromStringAndSize(buf, (Py_ssize_t)len) : kvp_raise(kvp_module_of(self), st);
	PyMem_Free(buf);
	return result;
}

/* ---- the carrier delta ---- */

PyObject *kvp_context_delta_take(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
	static const kvp_signature_t s = {"delta_take", 1, 1, {"rank"}};
	kvp_context_t *self = (kvp_context_t *)o;
	size_t len = 0;
	uint32_t rank = 0;
	PyObject *a[1];
	int32_t st;
	if (kvp_bind(&s, args, n, names, a) != 0 || kvp_u32(a[0], "rank", &rank) != 0)
		return NULL;
	KVP_OPEN(o, c);
	if (self->scratch == NULL && (self->scratch = PyMem_Malloc(KVL_DELTA_MAX)) == NULL)
		return PyErr_NoMemory();
	if ((st = kvl_delta_take(c, rank, self->scratch, KVL_DELTA_MAX, &len)) != KVL_OK)
		return kvp_raise(kvp_module_of(o), st);
	return PyBytes_FromStringAndSize(self->scratch, (Py_ssize_t)len);
}

PyObject *kvp_context_delta_put(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
	static const kvp_signature_t s = {"delta_put", 2, 2, {"rank", "data"}};
	uint32_t rank = 0;
	PyObject *a[2];
	if (kvp_bind(&s, args, n, names, a) != 0 || kvp_u32(a[0], "rank", &rank) != 0)
		return NULL;
	return with_bytes(self, a[1], "data", delta_put, 0, rank);
}

PyObject *kvp_context_delta_lost(PyObject *self, PyObject *o)
{
	uint32_t rank = 0;
	int32_t st;
	if (kvp_u32(o, "rank", &rank) != 0)
		return NULL;
	KVP_OPEN(self, c);
	KVP_WITHOUT_GIL((kvp_context_t *)self, st = kvl_delta_lost(c, rank));
	return done(self, st);
}
