/* Transfer parameters: made for a lease, and read into a Remote. */
#include "ext.h"

#include <string.h>

/* ---- made ---- */

PyObject *kvp_context_params(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
	static const kvp_signature_t s = {"params", 3, 6, {"lease", "id", "groups", "tokens", "ttl", "fixed"}};
	char near[4096], *buf = near;
	size_t cap = sizeof near, len = 0;
	PyObject *a[6], *result = NULL;
	kvl_lease_t lease = 0;
	kvp_grant_t g;
	kvl_ctx_t *c;
	int32_t st;
	if (kvp_bind(&s, args, n, names, a) != 0 || kvp_u64(a[0], "lease", &lease) != 0)
		return NULL;
	if (kvp_grant_args((PyObject *[]){a[1], a[2], a[3], a[4], NULL, NULL, a[5], NULL}, &g) != 0)
		return NULL;
	if ((c = ((kvp_context_t *)self)->open) == NULL) {
		kvp_grant_free(&g);
		return kvp_raise_closed(self, (kvp_context_t *)self);
	}
	st = kvl_params(c, lease, &g.grant, buf, cap, &len);
	if (st == KVL_ERR_SPACE) {
		cap = len + 1;
		if ((buf = PyMem_Malloc(cap)) == NULL) {
			kvp_grant_free(&g);
			return PyErr_NoMemory();
		}
		st = kvl_params(c, lease, &g.grant, buf, cap, &len);
	}
	result = st == KVL_OK ? PyUnicode_DecodeUTF8(buf, (Py_ssize_t)len, NULL) : kvp_raise(kvp_module_of(self), st);
	if (buf != near)
		PyMem_Free(buf);
	kvp_grant_free(&g);
	if (result != NULL)
		kvp_context_fired((kvp_context_t *)self, lease);
	return result;
}

PyObject *kvp_context_params_key(PyObject *self, PyObject *o)
{
	kvl_ctx_t *c;
	kvl_lease_t lease = 0;
	char buf[512];
	size_t len = 0;
	int32_t st;
	if (kvp_u64(o, "lease", &lease) != 0)
		return NULL;
	if ((c = ((kvp_context_t *)self)->open) == NULL)
		return kvp_raise_closed(self, (kvp_context_t *)self);
	if ((st = kvl_params_key(c, lease, buf, sizeof buf, &len)) != KVL_OK)
		return kvp_raise(kvp_module_of(self), st);
	kvp_context_fired((kvp_context_t *)self, lease);
	return PyUnicode_DecodeUTF8(buf, (Py_ssize_t)len, NULL);
}

/* ---- read ---- */

/* What one request's parameters may hold. json would make a text of anything, for as long as that takes, before its length is seen. */
#define VALUES_MAX (1 << 18)
#define CHARS_MAX (4 << 20)
#define DEPTH_MAX 32

typedef struct {
	Py_ssize_t values, chars;
} weight_t;

/* Adds what is in a value; 0 unless it is too much. Runs no Python code. */
static int weigh(PyObject *o, int depth, weight_t *w)
{
	PyObject *key, *value;
	Py_ssize_t at = 0;
	if (PyUnicode_Check(o))
		return (w->chars += PyUnicode_GetLength(o)) > CHARS_MAX;
	if (PyDict_Check(o)) {
		if (depth == DEPTH_MAX || (w->values += PyDict_Size(o)) > VALUES_MAX)
			return -1;
		while (PyDict_Next(o, &at, &key, &value))
			if (weigh(key, DEPTH_MAX, w) != 0 || weigh(value, depth + 1, w) != 0)
				return -1;
		return 0;
	}
	if (!PyList_Check(o) && !PyTuple_Check(o))
		return 0;
	if (depth == DEPTH_MAX || (w->values += PyList_Check(o) ? PyList_Size(o) : PyTuple_Size(o)) > VALUES_MAX)
		return -1;
	for (Py_ssize_t i = 0, n = PyList_Check(o) ? PyList_Size(o) : PyTuple_Size(o); i < n; i++)
		if (weigh(PyList_Check(o) ? PyList_GetItem(o, i) : PyTuple_GetItem(o, i), depth + 1, w) != 0)
			return -1;
	return 0;
}

static int light(kvp_module_t *m, PyObject *params)
{
	weight_t w = {0, 0};
	PyObject *key, *value, *why;
	Py_ssize_t at = 0;
	while (PyDict_Next(params, &at, &key, &value)) {
		if (weigh(key, DEPTH_MAX, &w) == 0 && weigh(value, 0, &w) == 0)
			continue;
		if (!PyUnicode_Check(key) || PyUnicode_GetLength(key) > 64)
			why = PyUnicode_FromString("parameters: a key holds more than any request needs");
		else
			why = PyUnicode_FromFormat("parameters: key %U holds more than any request needs", key);
		if (why != NULL)
			PyErr_SetObject(m->errors[-KVL_ERR_INVALID], why);
		Py_XDECREF(why);
		return -1;
	}
	return 0;
}

/* What json refuses is no parameters either. */
static PyObject *dumped(kvp_module_t *m, PyObject *params)
{
	PyObject *text, *type, *value, *traceback, *why;
	if (light(m, params) != 0)
		return NULL;
	text = PyObject_CallFunctionObjArgs(m->dumps, params, NULL);
	if (text != NULL || !(PyErr_ExceptionMatches(PyExc_TypeError) || PyErr_ExceptionMatches(PyExc_ValueError) ||
			      PyErr_ExceptionMatches(PyExc_RecursionError)))
		return text;
	PyErr_Fetch(&type, &value, &traceback);
	if ((why = PyUnicode_FromFormat("parameters: %S", value != NULL ? value : type)) != NULL)
		PyErr_SetObject(m->errors[-KVL_ERR_INVALID], why);
	Py_XDECREF(why);
	Py_XDECREF(type);
	Py_XDECREF(value);
	Py_XDECREF(traceback);
	return NULL;
}

static PyObject *read_text(kvp_module_t *m, kvl_bytes_t json)
{
	kvp_remote_t *self = (kvp_remote_t *)PyType_GenericAlloc(m->remote, 0);
	size_t cap = 2 * json.len + 64, need = 0; /* ids take two bytes of text at least, and four here */
	int32_t st;
	if (self == NULL)
		return NULL;
	if (cap > 1u << 16)
		cap = 1u << 16;
	self->remote.size = sizeof self->remote;
	if ((self->buffer = PyMem_Malloc(cap)) == NULL) {
		Py_DECREF(self);
		return PyErr_NoMemory();
	}
	st = kvl_params_read(json.data, json.len, &self->remote, self->buffer, cap, &need);
	if (st == KVL_ERR_SPACE) {
		PyMem_Free(self->buffer);
		if ((self->buffer = PyMem_Malloc(need)) == NULL) {
			Py_DECREF(self);
			return PyErr_NoMemory();
		}
		st = kvl_params_read(json.data, json.len, &self->remote, self->buffer, need, &need);
	}
	if (st != KVL_OK) {
		kvp_raise(m, st);
		Py_DECREF(self);
		return NULL;
	}
	return (PyObject *)self;
}

PyObject *kvp_params_read(PyObject *module, PyObject *params)
{
	kvp_module_t *m = PyModule_GetState(module);
	PyObject *text, *result = NULL;
	kvl_bytes_t json;
	kvp_text_t plain;
	int rc = PyDict_CheckExact(params) ? kvp_json(params, &plain) : 0;
	if (rc == 1) {
		result = read_text(m, (kvl_bytes_t){plain.data, plain.len});
		kvp_text_free(&plain);
	}
	if (rc != 0)
		return result;
	if ((text = PyDict_Check(params) ? dumped(m, params) : Py_NewRef(params)) == NULL)
		return NULL;
	if (kvp_bytes(text, "parameters", &json) == 0)
		result = read_text(m, json);
	Py_DECREF(text);
	return result;
}

/* ---- Remote ---- */

static PyObject *text_of(kvl_bytes_t b) { return PyUnicode_DecodeUTF8(b.data != NULL ? b.data : "", (Py_ssize_t)b.len, NULL); }

#define GET(name, expression)                                                                                          \
	static PyObject *get_##name(PyObject *self, void *none)                                                        \
	{                                                                                                              \
		const kvl_remote_t *r = &((kvp_remote_t *)self)->remote;                                               \
		(void)none;                                                                                            \
		return expression;                                                                                     \
	}
GET(id, text_of(r->id))
GET(engine_id, text_of(r->engine_id))
GET(host, text_of(r->host))
GET(port, PyLong_FromUnsignedLong(r->port))
GET(tp_size, PyLong_FromUnsignedLong(r->tp_size))
GET(pp_size, PyLong_FromUnsignedLong(r->pp_size))
GET(tokens, PyLong_FromUnsignedLong(r->tokens))
GET(native, PyBool_FromLong((long)r->native))
GET(epoch, PyLong_FromUnsignedLongLong(r->epoch))
GET(slot, PyLong_FromUnsignedLong(r->slot))
GET(generation, PyLong_FromUnsignedLong(r->generation))
GET(key, PyLong_FromUnsignedLongLong(r->key))
GET(expires_ns, PyLong_FromUnsignedLongLong(r->expires_ns))

static PyObject *group_list(const kvl_blocks_t *group)
{
	PyObject *ids = PyList_New(group->n), *id;
	for (uint32_t i = 0; ids != NULL && i < group->n; i++)
		if ((id = PyLong_FromUnsignedLong(group->ids[i])) == NULL || PyList_SetItem(ids, i, id) != 0)
			Py_CLEAR(ids);
	return ids;
}

static PyObject *get_groups(PyObject *self, void *none)
{
	const kvl_remote_t *r = &((kvp_remote_t *)self)->remote;
	PyObject *groups = PyList_New(r->groups_n), *group;
	(void)none;
	for (uint32_t i = 0; groups != NULL && i < r->groups_n; i++)
		if ((group = group_list(&r->groups[i])) == NULL || PyList_SetItem(groups, i, group) != 0)
			Py_CLEAR(groups);
	return groups;
}

static PyObject *remote_repr(PyObject *self)
{
	PyObject *id = get_id(self, NULL), *engine = get_engine_id(self, NULL), *text = NULL;
	if (id != NULL && engine != NULL)
		text = PyUnicode_FromFormat("<kvlease.Remote %R at engine %R>", id, engine);
	Py_XDECREF(id);
	Py_XDECREF(engine);
	return text;
}

static void remote_dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);
	freefunc release = PyType_GetSlot(type, Py_tp_free);
	PyMem_Free(((kvp_remote_t *)self)->buffer);
	release(self);
	Py_DECREF(type);
}

static PyGetSetDef getset[] = {
	{"id", get_id, NULL, "remote_request_id", NULL},
	{"engine_id", get_engine_id, NULL, "remote_engine_id", NULL},
	{"host", get_host, NULL, "remote_host", NULL},
	{"port", get_port, NULL, "remote_port", NULL},
	{"tp_size", get_tp_size, NULL, "remote transfer ranks of a stage, at least 1", NULL},
	{"pp_size", get_pp_size, NULL, "remote pipeline stages, at least 1", NULL},
	{"tokens", get_tokens, NULL, "remote_num_tokens", NULL},
	{"groups", get_groups, NULL, "remote_block_ids, made anew with each look", NULL},
	{"native", get_native, NULL, "whether the kvlease key is there", NULL},
	{"epoch", get_epoch, NULL, "boot epoch of the owner", NULL},
	{"slot", get_slot, NULL, "the lease's slot", NULL},
	{"generation", get_generation, NULL, "which use of the slot", NULL},
	{"key", get_key, NULL, "the key of that use", NULL},
	{"expires_ns", get_expires_ns, NULL, "end of a fixed life in CLOCK_MONOTONIC of the owner's host; 0: heartbeats renew it", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_doc, "What a reader knows of a lease. Made by params_read."},
	{Py_tp_dealloc, remote_dealloc},
	{Py_tp_repr, remote_repr},
	{Py_tp_getset, getset},
	{0, NULL},
};

PyType_Spec kvp_remote_spec = {"kvlease.Remote", sizeof(kvp_remote_t), 0,
			       Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
