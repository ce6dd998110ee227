/* The type Context: open and the loop's calls. */
#include "ext.h"

#include <time.h>

#define POLL_AT_ONCE 256u

PyObject *kvp_raise_closed(PyObject *self, const kvp_context_t *c)
{
	return kvp_raise_text(kvp_module_of(self), KVL_ERR_CLOSED,
			      c->closing != NULL ? "the context is being closed" : "the context is closed");
}

/* ---- open ---- */

/* A dict as JSON; a str or bytes as it is. A new reference. */
static PyObject *config_text(kvp_module_t *m, PyObject *config)
{
	if (PyDict_Check(config))
		return PyObject_CallFunctionObjArgs(m->dumps, config, NULL);
	return Py_NewRef(config);
}

static PyObject *context_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"config", NULL};
	kvp_module_t *m = PyType_GetModuleState(type);
	PyObject *config, *text;
	kvp_context_t *self;
	kvl_bytes_t bytes;
	char err[512] = "";
	int32_t st;
	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Context", names, &config))
		return NULL;
	if ((text = config_text(m, config)) == NULL)
		return NULL;
	self = NULL;
	if (kvp_bytes(text, "config", &bytes) == 0)
		self = (kvp_context_t *)PyType_GenericNew(type, NULL, NULL);
	if (self != NULL) {
		Py_BEGIN_ALLOW_THREADS st = kvl_open(bytes.data, bytes.len, &self->open, err, sizeof err);
		Py_END_ALLOW_THREADS if (st != KVL_OK)
		{
			kvp_raise_text(m, st, err);
			Py_DECREF(self);
			self = NULL;
		}
	}
	Py_DECREF(text);
	return (PyObject *)self;
}

static void context_dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);
	freefunc release = PyType_GetSlot(type, Py_tp_free);
	if (((kvp_context_t *)self)->open != NULL)
		kvp_context_drop(((kvp_context_t *)self)->open);
	PyMem_Free(((kvp_context_t *)self)->scratch);
	Py_XDECREF(((kvp_context_t *)self)->ready);
	release(self);
	Py_DECREF(type);
}

/* ---- loop ---- */

static PyObject *context_step(PyObject *self, PyObject *none)
{
	int32_t st;
	(void)none;
	KVP_OPEN(self, c);
	if (kvl_step_long(c) == 1)
		KVP_WITHOUT_GIL((kvp_context_t *)self, st = kvl_step(c));
	else
		st = kvl_step(c); /* shorter than giving the lock up and taking it again */
	if (st != KVL_OK)
		return kvp_raise(kvp_module_of(self), st);
	Py_RETURN_NONE;
}

static PyObject *context_beat(PyObject *self, PyObject *none)
{
	int32_t st;
	(void)none;
	KVP_OPEN(self, c);
	if ((st = kvl_pass(c)) != KVL_OK)
		return kvp_raise(kvp_module_of(self), st);
	Py_RETURN_NONE;
}

static PyObject *context_pause(PyObject *self, PyObject *seconds)
{
	uint64_t ns;
	int32_t st;
	if (kvp_seconds(seconds, "seconds", &ns) != 0)
		return NULL;
	KVP_OPEN(self, c);
	if ((st = kvl_pause(c, ns)) != KVL_OK)
		return kvp_raise(kvp_module_of(self), st);
	Py_RETURN_NONE;
}

void kvp_context_fired(kvp_context_t *c, kvl_lease_t lease)
{
	PyObject *type, *value, *traceback, *key;
	if (KVP_LIKELY(c->ready == NULL) || PyDict_Size(c->ready) == 0)
		return;
	PyErr_Fetch(&type, &value, &traceback);
	if ((key = PyLong_FromUnsignedLongLong(lease)) == NULL || PyDict_DelItem(c->ready, key) != 0)
		PyErr_Clear(); /* it has none, or there is no memory for asking: kept longer is safe */
	Py_XDECREF(key);
	PyErr_Restore(type, value, traceback);
}

/* What is allocated here may set off a collection, and with it Python code: the context is looked up anew for each part. */
static PyObject *context_poll(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
	static const kvp_signature_t s = {"poll", 0, 1, {"max"}};
	kvp_module_t *m;
	kvl_event_t events[POLL_AT_ONCE];
	uint32_t max = POLL_AT_ONCE;
	PyObject *a[1], *list;
	if (kvp_bind(&s, args, n, names, a) != 0 || kvp_u32(a[0], "max", &max) != 0)
		return NULL;
	if ((list = PyList_New(0)) == NULL)
		return NULL;
	m = kvp_module_of(self);
	while (max != 0) {
		uint32_t want = max < POLL_AT_ONCE ? max : POLL_AT_ONCE;
		kvl_ctx_t *c = ((kvp_context_t *)self)->open;
		int32_t got = c != NULL ? kvl_poll(c, events, sizeof events[0], want) : KVL_ERR_CLOSED;
		if (got < 0) {
			if (PyList_Size(list) != 0)
				break; /* told with the next call */
			Py_DECREF(list);
			return c != NULL ? kvp_raise(m, got) : kvp_raise_closed(self, (kvp_context_t *)self);
		}
		for (int32_t i = 0; i < got; i++) {
			PyObject *ev = kvp_event_new(m, &events[i]);
			int failed = ev == NULL || PyList_Append(list, ev) != 0;
			Py_XDECREF(ev);
			if (failed) {
				Py_DECREF(list);
				return NULL;
			}
			if (events[i].kind == KVL_EV_FREED)
				kvp_context_fired((kvp_context_t *)self, events[i].handle);
		}
		if ((uint32_t)got < want)
			break;
		max -= want;
	}
	return list;
}

static PyObject *context_wait_fd(PyObject *self, PyObject *none)
{
	int fd;
	int32_t st;
	(void)none;
	KVP_OPEN(self, c);
	if ((st = kvl_wait_fd(c, &fd)) != KVL_OK)
		return kvp_raise(kvp_module_of(self), st);
	return PyLong_FromLong(fd);
}

/* Between two slices another thread may step: the drain goes on behind it. */
static int32_t drain_slice(kvl_ctx_t *c, uint64_t left_ns, int begun)
{
	static const struct timespec ms = {0, 1000000};
	int32_t st;
	while ((st = kvl_drain(c, left_ns)) == KVL_ERR_BUSY && begun && left_ns > 1000000u) {
		nanosleep(&ms, NULL);
		left_ns -= 1000000u;
	}
	return st == KVL_ERR_BUSY && begun ? KVL_ERR_TIMEOUT : st;
}

static PyObject *context_drain(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
	static const kvp_signature_t s = {"drain", 1, 1, {"timeout"}};
	kvp_context_t *self = (kvp_context_t *)o;
	uint64_t left;
	PyObject *a[1];
	int32_t st;
	if (kvp_bind(&s, args, n, names, a) != 0 || kvp_seconds(a[0], "timeout", &left) != 0)
		return NULL;
	for (int begun = 0;; begun = 1) {
		uint64_t slice = left < KVP_SLICE_NS ? left : KVP_SLICE_NS;
		KVP_OPEN(o, c);
		KVP_WITHOUT_GIL(self, st = drain_slice(c, slice, begun));
		left -= slice;
		if (st == KVL_OK)
			Py_RETURN_NONE;
		if (st != KVL_ERR_TIMEOUT || left == 0)
			return kvp_raise(kvp_module_of(o), st);
		if (PyErr_CheckSignals() != 0)
			return NULL;
	}
}

/* ---- failure and watching ---- */

static PyObject *context_fence_all(PyObject *self, PyObject *none)
{
	int32_t st;
	(void)none;
	KVP_OPEN(self, c);
	if ((st = kvl_fence_all(c)) != KVL_OK)
		return kvp_raise_text(kvp_module_of(self), st, "");
	Py_RETURN_NONE;
}

static PyObject *context_closed(PyObject *self, void *none)
{
	(void)none;
	return PyBool_FromLong(((kvp_context_t *)self)->open == NULL);
}

static PyObject *context_repr(PyObject *self)
{
	return PyUnicode_FromFormat("<kvlease.Context %s at %p>", ((kvp_context_t *)self)->open != NULL ? "open" : "closed", self);
}

/* ---- type ---- */

#define FAST(name, f, doc) {name, (PyCFunction)(void (*)(void))(f), METH_FASTCALL | METH_KEYWORDS, doc}

static PyMethodDef methods[] = {
	FAST("close", kvp_context_close, "close($self, timeout=5.0)\n--\n\nkvl_close. Releases the GIL. Cuts off a register of another thread. A second close does nothing."),
	{"__enter__", kvp_context_enter, METH_NOARGS, "__enter__($self)\n--\n\n"},
	{"__exit__", kvp_context_exit, METH_VARARGS, "__exit__($self, *exc)\n--\n\nclose()"},
	{"step", context_step, METH_NOARGS, "step($self)\n--\n\nkvl_step. Releases the GIL if kvl_step_long says so."},
	{"beat", context_beat, METH_NOARGS, "beat($self)\n--\n\nkvl_pass: the forward loop is alive."},
	{"pause", context_pause, METH_O, "pause($self, seconds, /)\n--\n\nkvl_pause: no pass for at most so long, on purpose."},
	FAST("poll", context_poll, "poll($self, max=256)\n--\n\nkvl_poll: up to max events."),
	{"wait_fd", context_wait_fd, METH_NOARGS, "wait_fd($self)\n--\n\nkvl_wait_fd: a descriptor of the context, to be waited on only."},
	FAST("drain", context_drain, "drain($self, timeout)\n--\n\nkvl_drain. Releases the GIL."),
	{"fence_all", context_fence_all, METH_NOARGS, "fence_all($self)\n--\n\nkvl_fence_all: close every row for ever."},
	{"stats", kvp_context_stats, METH_NOARGS, "stats($self)\n--\n\nkvl_stats as a dict."},
	{"log", kvp_context_log, METH_NOARGS, "log($self)\n--\n\nkvl_log_take: what went wrong since the call before, one dict a line."},
	{"metrics_text", kvp_context_metrics_text, METH_NOARGS, "metrics_text($self)\n--\n\nkvl_metrics_text: all metrics in Prometheus' text format. Releases the GIL."},
	FAST("metrics_listen", kvp_context_metrics_listen,
	     "metrics_listen($self, addr='127.0.0.1:0')\n--\n\nkvl_metrics_listen: serves them at http://HOST:PORT/metrics until the close; the port."),
	{"config", kvp_context_config, METH_NOARGS, "config($self)\n--\n\nThe configuration in force as a dict."},
	{"producer", kvp_context_producer, METH_NOARGS, "producer($self)\n--\n\nkvl_producer_open."},
	{"register", kvp_context_register, METH_O, "register($self, regions, /)\n--\n\nkvl_register. Releases the GIL."},
	{"unregister", kvp_context_unregister, METH_NOARGS, "unregister($self)\n--\n\nkvl_unregister. Releases the GIL."},
	FAST("engine_add", kvp_context_engine_add,
	     "engine_add($self, engine_id, ranks, host='', port=0, pp_size=1, user=0)\n--\n\nkvl_engine_add: the engine's handle."),
	{"engine_remove", kvp_context_engine_remove, METH_O, "engine_remove($self, engine, /)\n--\n\nkvl_engine_remove."},
	FAST("engine_handshake", kvp_context_engine_handshake,
	     "engine_handshake($self, engine, rank, map)\n--\n\nkvl_engine_handshake: the map of a rank that came out of band."),
	FAST("handshake_get", kvp_context_handshake_get, "handshake_get($self, rank=0)\n--\n\nkvl_handshake_get: our own map of a rank."),
	FAST("handshake_set", kvp_context_handshake_set,
	     "handshake_set($self, rank, map)\n--\n\nkvl_handshake_set: the engine's own map of a rank."),
	FAST("delta_take", kvp_context_delta_take,
	     "delta_take($self, rank)\n--\n\nkvl_delta_take: the next message, b'' if there is nothing to say."),
	FAST("delta_put", kvp_context_delta_put, "delta_put($self, rank, data)\n--\n\nkvl_delta_put: a message of the other end."),
	{"delta_lost", kvp_context_delta_lost, METH_O, "delta_lost($self, rank, /)\n--\n\nkvl_delta_lost: the other end is gone for good."},
	FAST("params", kvp_context_params,
	     "params($self, lease, id, groups, tokens=0, ttl=0.0, fixed=False)\n--\n\nkvl_params: a granted lease's parameters as JSON."),
	{"params_key", kvp_context_params_key, METH_O, "params_key($self, lease, /)\n--\n\nkvl_params_key: the value of the kvlease key alone."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
	{"closed", context_closed, NULL, "whether the context is closed, or being closed", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_doc, "Context(config)\n--\n\nkvl_open: config is a dict, or JSON as str or bytes. Releases the GIL."},
	{Py_tp_new, context_new},
	{Py_tp_dealloc, context_dealloc},
	{Py_tp_repr, context_repr},
	{Py_tp_methods, methods},
	{Py_tp_getset, getset},
	{0, NULL},
};

PyType_Spec kvp_context_spec = {"kvlease.Context", sizeof(kvp_context_t), 0, Py_TPFLAGS_DEFAULT, slots};
