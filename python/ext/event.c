/* Events: named tuples. */
#include "ext.h"

static PyStructSequence_Field fields[] = {
	{"kind", "EV_*"},
	{"flags", "EVF_*"},
	{"status", "by kind: FREED_*, READ_*"},
	{"rank", "whose report; of one event for all ranks: the first rank whose report decided the status"},
	{"handle", "lease, track, engine or rank by kind"},
	{"user", "as given with the grant, track or engine"},
	{"value0", "by kind"},
	{"value1", "by kind"},
	{"time_ns", "CLOCK_BOOTTIME of the step that made it"},
	{"reasons", "EV_FREED: FREED_* of each rank, 4 bits each, rank 0 lowest"},
	{NULL, NULL},
};

static PyStructSequence_Desc event = {
	"kvlease.Event", "What a step has found out: see the kinds EV_* in kvlease.h.", fields, 10};

PyTypeObject *kvp_event_type(void) { return PyStructSequence_NewType(&event); }

PyObject *kvp_event_new(kvp_module_t *m, const kvl_event_t *ev)
{
	PyObject *o = PyStructSequence_New(m->event), *v[10];
	int failed = 0;
	if (o == NULL)
		return NULL;
	v[0] = PyLong_FromLong(ev->kind);
	v[1] = PyLong_FromUnsignedLong(ev->flags);
	v[2] = PyLong_FromLong(ev->status);
	v[3] = PyLong_FromUnsignedLong(ev->rank);
	v[4] = PyLong_FromUnsignedLongLong(ev->handle);
	v[5] = PyLong_FromUnsignedLongLong(ev->user);
	v[6] = PyLong_FromUnsignedLongLong(ev->value0);
	v[7] = PyLong_FromUnsignedLongLong(ev->value1);
	v[8] = PyLong_FromUnsignedLongLong(ev->time_ns);
	v[9] = PyLong_FromUnsignedLongLong(ev->reasons);
	for (Py_ssize_t i = 0; i < 10; i++) {
		failed |= v[i] == NULL;
		PyStructSequence_SetItem(o, i, v[i]); /* takes the reference; NULL is an empty place */
	}
	if (failed) {
		Py_DECREF(o);
		return NULL;
	}
	return o;
}
