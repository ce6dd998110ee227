/* What a context says in texts: numbers, configuration, log, metrics. */
#include "ext.h"

/* A text of the library. `waits`: another thread of Python may run meanwhile. */
static PyObject *text_of(PyObject *self, int32_t (*get)(kvl_ctx_t *, char *, size_t, size_t *), int waits)
{
	char near[8192], *buf = near, *grown;
	size_t cap = sizeof near, len = 0;
	PyObject *text;
	int32_t st;
	for (;;) {
		kvl_ctx_t *c = ((kvp_context_t *)self)->open;
		if (c == NULL) {
			if (buf != near)
				PyMem_Free(buf);
			return kvp_raise_closed(self, (kvp_context_t *)self);
		}
		if (waits)
			KVP_WITHOUT_GIL((kvp_context_t *)self, st = get(c, buf, cap, &len));
		else
			st = get(c, buf, cap, &len);
		if (st != KVL_ERR_SPACE || len < cap)
			break;
		/* it may grow between two looks */
		if ((grown = PyMem_Realloc(buf != near ? buf : NULL, len + 256)) == NULL) {
			if (buf != near)
				PyMem_Free(buf);
			return PyErr_NoMemory();
		}
		buf = grown;
		cap = len + 256;
	}
	text = st == KVL_OK ? PyUnicode_DecodeUTF8(buf, (Py_ssize_t)len, "replace") : kvp_raise(kvp_module_of(self), st);
	if (buf != near)
		PyMem_Free(buf);
	return text;
}

/* A JSON object of the library as a dict. */
static PyObject *object_of(PyObject *self, int32_t (*get)(kvl_ctx_t *, char *, size_t, size_t *))
{
	PyObject *text = text_of(self, get, 0), *dict;
	if (text == NULL)
		return NULL;
	dict = PyObject_CallFunctionObjArgs(kvp_module_of(self)->loads, text, NULL);
	Py_DECREF(text);
	return dict;
}

PyObject *kvp_context_stats(PyObject *self, PyObject *none) { return (void)none, object_of(self, kvl_stats); }
PyObject *kvp_context_config(PyObject *self, PyObject *none) { return (void)none, object_of(self, kvl_config_json); }

PyObject *kvp_context_metrics_text(PyObject *self, PyObject *none) { return (void)none, text_of(self, kvl_metrics_text, 1); }

/* Lines of JSON as dicts, until there are none; a context that says more meanwhile than this takes waits for the next call. */
PyObject *kvp_context_log(PyObject *self, PyObject *none)
{
	PyObject *all = PyList_New(0);
	(void)none;
	for (int i = 0; all != NULL && i < 256; i++) {
		PyObject *text = text_of(self, kvl_log_take, 0), *lines = NULL;
		int ok = text != NULL && (lines = PyUnicode_Splitlines(text, 0)) != NULL;
		Py_ssize_t n = ok ? PyList_Size(lines) : 0;
		for (Py_ssize_t k = 0; ok && k < n; k++) {
			PyObject *line = PyObject_CallFunctionObjArgs(kvp_module_of(self)->loads, PyList_GetItem(lines, k), NULL);
			ok = line != NULL && PyList_Append(all, line) == 0;
			Py_XDECREF(line);
		}
		Py_XDECREF(lines);
		Py_XDECREF(text);
		if (!ok)
			Py_CLEAR(all);
		if (n == 0)
			break;
	}
	return all;
}

PyObject *kvp_context_metrics_listen(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
	static const kvp_signature_t s = {"metrics_listen", 0, 1, {"addr"}};
	kvp_context_t *self = (kvp_context_t *)o;
	char addr[256] = "127.0.0.1:0";
	uint32_t port = 0;
	PyObject *a[1];
	int32_t st;
	if (kvp_bind(&s, args, n, names, a) != 0)
		return NULL;
	if (a[0] != NULL) {
		Py_ssize_t len;
		const char *text = PyUnicode_Check(a[0]) ? PyUnicode_AsUTF8AndSize(a[0], &len) : NULL;
		if (text == NULL) {
			if (!PyErr_Occurred())
				PyErr_Format(PyExc_TypeError, "metrics_listen: addr must be str, not %R", Py_TYPE(a[0]));
			return NULL;
		}
		if ((size_t)len >= sizeof addr || strlen(text) != (size_t)len)
			return kvp_raise_text(kvp_module_of(o), KVL_ERR_INVALID, "addr: longer than 255 bytes, or with a zero in it");
		memcpy(addr, text, (size_t)len + 1);
	}
	KVP_OPEN(o, c);
	KVP_WITHOUT_GIL(self, st = kvl_metrics_listen(c, addr, &port));
	if (st != KVL_OK)
		return kvp_raise(kvp_module_of(o), st);
	return PyLong_FromUnsignedLong(port);
}
