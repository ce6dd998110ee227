/* How a context ends: by a close, at the end of a with block, or dropped. */
#include "ext.h"

#include <time.h>

static uint64_t monotonic_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* In slices, so that a signal's handler runs while a read is waited for, or another thread's registration, which kvl_close cuts off; one
 * that has not begun yet is refused with KVL_ERR_CLOSED. */
static int close_in_slices(kvp_context_t *self, uint64_t timeout_ns, int32_t *st)
{
	uint64_t now = monotonic_ns(), end = now + timeout_ns;
	for (;;) {
		uint64_t slice = end - now < KVP_SLICE_NS ? end - now : KVP_SLICE_NS;
		KVP_WITHOUT_GIL(self, *st = kvl_close(self->closing, slice));
		now = monotonic_ns();
		if (*st != KVL_ERR_BUSY || now >= end)
			return 0;
		if (PyErr_CheckSignals() != 0)
			return -1;
	}
}

static PyObject *close_context(PyObject *o, uint64_t timeout_ns)
{
	kvp_context_t *self = (kvp_context_t *)o;
	int32_t st = KVL_OK;
	int interrupted;
	if (self->closing != NULL)
		return kvp_raise_text(kvp_module_of(o), KVL_ERR_BUSY, "another thread closes the context");
	if (self->open == NULL)
		Py_RETURN_NONE;
	if (self->inside != self->registering)
		return kvp_raise_text(kvp_module_of(o), KVL_ERR_BUSY, "another thread is inside a call");
	/* Whoever comes while the lock of Python is away finds no context. */
	self->closing = self->open;
	self->open = NULL;
	interrupted = close_in_slices(self, timeout_ns, &st);
	if (st != KVL_OK)
		self->open = self->closing;
	self->closing = NULL;
	if (self->open == NULL)
		Py_CLEAR(self->ready); /* nobody asks any more */
	if (interrupted)
		return NULL;
	if (st == KVL_ERR_BUSY && self->registering != 0)
		return kvp_raise_text(kvp_module_of(o), st, "another thread is still inside register, which is cut off: close again");
	if (st != KVL_OK)
		return kvp_raise(kvp_module_of(o), st);
	Py_RETURN_NONE;
}

PyObject *kvp_context_close(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
	static const kvp_signature_t s = {"close", 0, 1, {"timeout"}};
	uint64_t timeout_ns = 5000000000u;
	PyObject *a[1];
	if (kvp_bind(&s, args, n, names, a) != 0 || kvp_seconds(a[0], "timeout", &timeout_ns) != 0)
		return NULL;
	return close_context(self, timeout_ns);
}

PyObject *kvp_context_enter(PyObject *self, PyObject *none)
{
	(void)none;
	if (((kvp_context_t *)self)->open == NULL)
		return kvp_raise_closed(self, (kvp_context_t *)self);
	return Py_NewRef(self);
}

PyObject *kvp_context_exit(PyObject *self, PyObject *args)
{
	(void)args;
	return close_context(self, 5000000000u);
}

/* Dropped without a close: what can be closed at once is. Otherwise it stays open to the end of the process, since a
 * transfer may still write memory. Nobody has a reference any more, and none may be made. */
void kvp_context_drop(kvl_ctx_t *c)
{
	PyObject *type, *value, *traceback;
	PyErr_Fetch(&type, &value, &traceback);
	if (PyErr_WarnEx(PyExc_ResourceWarning, "kvlease: a context was not closed", 1) != 0)
		PyErr_WriteUnraisable(NULL);
	Py_BEGIN_ALLOW_THREADS (void)kvl_close(c, 0);
	Py_END_ALLOW_THREADS PyErr_Restore(type, value, traceback);
}
