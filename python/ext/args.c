/* Arguments: keywords, numbers of an exact width, bytes. */
#include "ext.h"

#include <string.h>

static int place_of(const kvp_signature_t *s, PyObject *name)
{
	for (int i = 0; i < s->max; i++)
		if (PyUnicode_CompareWithASCIIString(name, s->names[i]) == 0)
			return i;
	return -1;
}

int kvp_bind_slow(const kvp_signature_t *s, PyObject *const *args, Py_ssize_t n, PyObject *names, PyObject **out)
{
	Py_ssize_t named = names != NULL ? PyTuple_Size(names) : 0;
	for (int i = 0; i < s->max; i++)
		out[i] = i < n ? args[i] : NULL;
	if (n > s->max) {
		PyErr_Format(PyExc_TypeError, "%s: %zd arguments, at most %d", s->function, n, s->max);
		return -1;
	}
	for (Py_ssize_t k = 0; k < named; k++) {
		PyObject *name = PyTuple_GetItem(names, k);
		int i = place_of(s, name);
		if (i < 0) {
			PyErr_Format(PyExc_TypeError, "%s: there is no argument %R", s->function, name);
			return -1;
		}
		if (out[i] != NULL) {
			PyErr_Format(PyExc_TypeError, "%s: %s is given twice", s->function, s->names[i]);
			return -1;
		}
		out[i] = args[n + k];
	}
	for (int i = 0; i < s->required; i++)
		if (out[i] == NULL) {
			PyErr_Format(PyExc_TypeError, "%s: %s is missing", s->function, s->names[i]);
			return -1;
		}
	return 0;
}

static PyObject *type_name(PyObject *o) { return PyObject_GetAttrString((PyObject *)Py_TYPE(o), "__name__"); }

static KVP_COLD int wrong_type(PyObject *o, const char *name, const char *wanted)
{
	PyObject *type = type_name(o);
	if (type != NULL)
		PyErr_Format(PyExc_TypeError, "%s: %s, not %U", name, wanted, type);
	Py_XDECREF(type);
	return -1;
}

static KVP_COLD int too_wide(PyObject *o, const char *name, uint64_t max)
{
	PyErr_Format(PyExc_OverflowError, "%s: %R is not within 0 and %llu", name, o, (unsigned long long)max);
	return -1;
}

/* Numbers of other types, and those that do not fit. */
int kvp_uint_slow(PyObject *o, const char *name, uint64_t max, uint64_t *out)
{
	PyObject *number;
	unsigned long long v;
	PyErr_Clear();
	if (!PyIndex_Check(o))
		return wrong_type(o, name, "an int");
	if ((number = PyNumber_Index(o)) == NULL)
		return -1;
	v = PyLong_AsUnsignedLongLong(number);
	if ((v == (unsigned long long)-1 && PyErr_Occurred()) || v > max) {
		if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_OverflowError)) {
			Py_DECREF(number);
			return -1;
		}
		PyErr_Clear();
		too_wide(number, name, max);
		Py_DECREF(number);
		return -1;
	}
	Py_DECREF(number);
	*out = v;
	return 0;
}

int kvp_id_slow(PyObject *o, const char *what, Py_ssize_t group, Py_ssize_t i, uint32_t *out)
{
	char name[96];
	int rc;
	PyOS_snprintf(name, sizeof name, "%s[%zd][%zd]", what, group, i);
	Py_INCREF(o); /* its own __index__ may take it out of the list */
	rc = kvp_u32(o, name, out);
	Py_DECREF(o);
	return rc;
}

int kvp_truth(PyObject *o, const char *name, int *out)
{
	int v;
	(void)name;
	if (o == NULL)
		return 0;
	if ((v = PyObject_IsTrue(o)) < 0)
		return -1;
	*out = v;
	return 0;
}

int kvp_seconds(PyObject *o, const char *name, uint64_t *out)
{
	double s;
	if (o == NULL)
		return 0;
	if (!PyFloat_Check(o) && !PyLong_Check(o) && !PyObject_HasAttrString(o, "__float__"))
		return wrong_type(o, name, "seconds");
	s = PyFloat_AsDouble(o);
	if (s == -1.0 && PyErr_Occurred())
		return -1;
	if (!(s >= 0)) {
		PyErr_Format(PyExc_ValueError, "%s: %R are no seconds from now on", name, o);
		return -1;
	}
	if (s >= 9223372036.0) {
		PyErr_Format(PyExc_OverflowError, "%s: %R seconds, at most 9223372035", name, o);
		return -1;
	}
	*out = (uint64_t)(s * 1e9);
	return 0;
}

/* An object that has no cuda_event, or one of 0: torch makes an event with its first record, and 0 would mean that nothing is waited for. */
static KVP_COLD int no_event(PyObject *o, PyObject *handle)
{
	if (handle != NULL) {
		PyErr_Format(PyExc_ValueError, "ready_event: %R was never recorded", o);
		return -1;
	}
	if (!PyErr_ExceptionMatches(PyExc_AttributeError))
		return -1;
	PyErr_Clear();
	return wrong_type(o, "ready_event", "an int, or an object with cuda_event");
}

int kvp_ready_event(PyObject *o, uint64_t *out, PyObject **keep)
{
	PyObject *handle;
	int rc;
	*keep = NULL;
	if (o == NULL || o == Py_None)
		return 0;
	if (PyBool_Check(o)) /* an int to Python; to a driver True is the handle 1, a pointer that it follows */
		return wrong_type(o, "ready_event", "an int, or an object with cuda_event");
	if (PyIndex_Check(o))
		return kvp_u64(o, "ready_event", out);
	handle = PyObject_GetAttrString(o, "cuda_event");
	rc = handle != NULL ? kvp_u64(handle, "ready_event.cuda_event", out) : no_event(o, NULL);
	if (rc == 0 && *out == 0)
		rc = no_event(o, handle);
	Py_XDECREF(handle);
	*keep = rc == 0 ? o : NULL;
	return rc;
}

int kvp_bytes_slow(PyObject *o, const char *name, kvl_bytes_t *out)
{
	Py_ssize_t n;
	if (PyBytes_Check(o)) {
		out->data = PyBytes_AsString(o);
		out->len = (size_t)PyBytes_Size(o);
		return 0;
	}
	if (!PyUnicode_Check(o))
		return wrong_type(o, name, "str or bytes");
	if ((out->data = PyUnicode_AsUTF8AndSize(o, &n)) == NULL)
		return -1;
	out->len = (size_t)n;
	return 0;
}

PyObject *kvp_bytes_object(PyObject *o, const char *name)
{
	if (PyBytes_Check(o))
		return Py_NewRef(o);
	if (PyByteArray_Check(o) || PyMemoryView_Check(o))
		return PyBytes_FromObject(o);
	wrong_type(o, name, "bytes");
	return NULL;
}
