/* The module: functions that need no context, constants, types. */
#include "ext.h"

/* ---- functions ---- */

static PyObject *version(PyObject *module, PyObject *none)
{
	(void)module, (void)none;
	return PyUnicode_FromString(kvl_version());
}

static PyObject *abi_version(PyObject *module, PyObject *none)
{
	(void)module, (void)none;
	return PyLong_FromUnsignedLong(kvl_abi_version());
}

static PyObject *status_name(PyObject *module, PyObject *o)
{
	long status = PyLong_AsLong(o);
	(void)module;
	if (status == -1 && PyErr_Occurred())
		return NULL;
	return PyUnicode_FromString(kvl_status_name(status < INT32_MIN || status > INT32_MAX ? INT32_MIN : (int32_t)status));
}

static PyMethodDef functions[] = {
	{"version", version, METH_NOARGS, "version()\n--\n\nThe version of libkvlease.so."},
	{"abi_version", abi_version, METH_NOARGS, "abi_version()\n--\n\nKVL_ABI_VERSION of libkvlease.so."},
	{"status_name", status_name, METH_O, "status_name(status, /)\n--\n\nkvl_status_name: the name of a status."},
	{"params_read", kvp_params_read, METH_O,
	 "params_read(params, /)\n--\n\nkvl_params_read: JSON as str or bytes, or the object as a dict."},
	{NULL, NULL, 0, NULL},
};

/* ---- constants ---- */

static const struct constant {
	const char *name;
	long value;
} constants[] = {
#define C(name) {#name, KVL_##name}
	C(FREED_COMPLETED), C(FREED_RELEASED), C(FREED_REVOKED), C(FREED_EXPIRED), C(FREED_POISONED), C(FREED_DUPLICATE),
	C(FREED_CLOSED), C(FREED_LOST),
	C(READ_OK), C(READ_STALE), C(READ_UNPROVEN), C(READ_FAILED), C(READ_TIMEOUT), C(READ_CANCELLED), C(READ_LOST),
	C(EV_FREED), C(EV_READ_DONE), C(EV_READ_FAILED), C(EV_BLOCKS_BACK), C(EV_LEASE_GONE), C(EV_AT_RISK), C(EV_ENGINE_UP),
	C(EV_ENGINE_DOWN), C(EV_POISONED), C(EV_EXPECT_LAPSED), C(EV_RANK_UP), C(EV_RANK_DOWN), C(EV_ENGINE_DRAINS),
	C(EV_HOST_DOWN), C(EVF_BLOCKS_HELD), C(ID_MAX), C(DELTA_MAX),
#undef C
};

/* ---- making it ---- */

static int add_constants(PyObject *module)
{
	for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++)
		if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) != 0)
			return -1;
	return 0;
}

static PyObject *imported(const char *module, const char *name)
{
	PyObject *m = PyImport_ImportModule(module), *o = m != NULL ? PyObject_GetAttrString(m, name) : NULL;
	Py_XDECREF(m);
	return o;
}

/* errors.BY_STATUS: a tuple of the classes, entry -status. */
static int find_errors(kvp_module_t *m)
{
	PyObject *all = imported("kvlease.errors", "BY_STATUS");
	if (all == NULL || !PyTuple_Check(all) || PyTuple_Size(all) != KVP_STATUSES) {
		if (all != NULL)
			PyErr_SetString(PyExc_ImportError, "kvlease.errors is not of this build");
		Py_XDECREF(all);
		return -1;
	}
	for (Py_ssize_t i = 0; i < KVP_STATUSES; i++)
		m->errors[i] = Py_NewRef(PyTuple_GetItem(all, i));
	m->error = Py_NewRef(m->errors[0]);
	Py_DECREF(all);
	return 0;
}

static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec)
{
	PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
	if (type != NULL && PyModule_AddType(module, type) != 0)
		Py_CLEAR(type);
	return type;
}

static int exec(PyObject *module)
{
	kvp_module_t *m = PyModule_GetState(module);
	if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
		PyErr_SetString(PyExc_ImportError, "kvlease works in the main interpreter only, not in subinterpreters");
		return -1;
	}
	if (kvl_abi_version() != KVL_ABI_VERSION) {
		PyErr_Format(PyExc_ImportError, "libkvlease.so has ABI %u, this package needs %u", kvl_abi_version(), KVL_ABI_VERSION);
		return -1;
	}
	if (find_errors(m) != 0 || add_constants(module) != 0)
		return -1;
	if ((m->dumps = imported("json", "dumps")) == NULL || (m->loads = imported("json", "loads")) == NULL)
		return -1;
	if ((m->event = kvp_event_type()) == NULL || PyModule_AddType(module, m->event) != 0)
		return -1;
	if ((m->context = add_type(module, &kvp_context_spec)) == NULL || (m->producer = add_type(module, &kvp_producer_spec)) == NULL ||
	    (m->remote = add_type(module, &kvp_remote_spec)) == NULL)
		return -1;
	return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, exec}, {0, NULL}};

static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, "kvlease._kvlease", "libkvlease.so for Python: see kvlease.",
				 sizeof(kvp_module_t), functions, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kvlease(void) { return PyModuleDef_Init(&def); }
