/* The type Producer: the hooks. They keep the GIL, so it is the happens-before edge that a producer's threads need. */
#include "ext.h"

typedef struct kvp_producer {
	PyObject_HEAD
	kvl_producer_t *producer;
	kvp_context_t *context; /* a reference */
	PyTypeObject *remote;   /* the type that the hooks take; lives as long as ours */
} kvp_producer_t;

PyObject *kvp_context_producer(PyObject *self, PyObject *none)
{
	kvp_module_t *m = kvp_module_of(self);
	kvl_ctx_t *c = ((kvp_context_t *)self)->open;
	kvp_producer_t *p;
	int32_t st;
	(void)none;
	if (c == NULL)
		return kvp_raise_closed(self, (kvp_context_t *)self);
	if ((p = (kvp_producer_t *)PyType_GenericAlloc(m->producer, 0)) == NULL)
		return NULL;
	p->context = (kvp_context_t *)Py_NewRef(self);
	p->remote = m->remote;
	if ((c = p->context->open) == NULL || (st = kvl_producer_open(c, &p->producer)) != KVL_OK) {
		if (c == NULL)
			kvp_raise_closed(self, p->context);
		else
			kvp_raise(m, st);
		Py_DECREF(p);
		return NULL;
	}
	return (PyObject *)p;
}

static void producer_dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);
	freefunc release = PyType_GetSlot(type, Py_tp_free);
	Py_XDECREF(((kvp_producer_t *)self)->context);
	release(self);
	Py_DECREF(type);
}

/* The C producer, for one call at once; NULL and an exception after a close. */
static inline kvl_producer_t *opened(PyObject *self)
{
	kvp_producer_t *p = (kvp_producer_t *)self;
	if (KVP_LIKELY(p->context->open != NULL))
		return p->producer;
	kvp_raise_closed(self, p->context);
	return NULL;
}

static inline PyObject *done(PyObject *self, int32_t st)
{
	if (KVP_LIKELY(st == KVL_OK))
		Py_RETURN_NONE;
	return kvp_raise(kvp_module_of(self), st);
}

static inline PyObject *handle(PyObject *self, int32_t st, const uint64_t *v)
{
	return KVP_LIKELY(st == KVL_OK) ? PyLong_FromUnsignedLongLong(*v) : kvp_raise(kvp_module_of(self), st);
}

/* ---- owner ---- */

static PyObject *hook_expect(PyObject *self, PyObject *o)
{
	kvl_lease_t lease = 0;
	kvl_producer_t *p;
	kvl_bytes_t id;
	if (kvp_bytes(o, "id", &id) != 0 || (p = opened(self)) == NULL)
		return NULL;
	return handle(self, kvl_expect(p, id, &lease), &lease);
}

int kvp_grant_args(PyObject *const *args, kvp_grant_t *out)
{
	int fixed = 0;
	out->grant = (kvl_grant_t){.size = sizeof out->grant};
	if (kvp_bytes(args[0], "id", &out->grant.id) != 0 || kvp_u32(args[2], "tokens", &out->grant.tokens) != 0 ||
	    kvp_seconds(args[3], "ttl", &out->grant.ttl_ns) != 0 || kvp_u64(args[4], "expected", &out->grant.expected) != 0 ||
	    kvp_u64(args[5], "user", &out->grant.user) != 0 || kvp_truth(args[6], "fixed", &fixed) != 0 ||
	    kvp_ready_event(args[7], &out->grant.ready_event, &out->event) != 0)
		return -1;
	out->grant.flags = fixed ? KVL_GRANT_FIXED : 0;
	if (kvp_groups(args[1], "groups", &out->groups) != 0)
		return -1;
	out->grant.groups = out->groups.groups;
	out->grant.groups_n = out->groups.n;
	return 0;
}

void kvp_grant_free(kvp_grant_t *g) { kvp_groups_free(&g->groups); }

/* A grant behind an event that is an object: whoever drops it would destroy the event while steps ask for it, and its handle may become
 * another's, which has fired. So it is kept, or there is no grant. */
static PyObject *grant_behind(PyObject *self, const kvp_grant_t *g)
{
	kvp_context_t *c = ((kvp_producer_t *)self)->context;
	kvl_lease_t lease = 0;
	PyObject *key;
	kvl_producer_t *p;
	int32_t st;
	if (c->ready == NULL && (c->ready = PyDict_New()) == NULL)
		return NULL;
	if ((p = opened(self)) == NULL)
		return NULL;
	if ((st = kvl_grant(p, &g->grant, &lease)) != KVL_OK)
		return kvp_raise(kvp_module_of(self), st);
	if ((key = PyLong_FromUnsignedLongLong(lease)) == NULL || PyDict_SetItem(c->ready, key, g->event) != 0) {
		(void)kvl_cancel(p, lease);
		Py_CLEAR(key);
	}
	return key;
}

static PyObject *hook_grant(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
	static const kvp_signature_t s = {"grant", 2, 8, {"id", "groups", "tokens", "ttl", "expected", "user", "fixed", "ready_event"}};
	kvl_lease_t lease = 0;
	kvl_producer_t *p;
	PyObject *a[8], *result;
	kvp_grant_t g;
	if (kvp_bind(&s, args, n, names, a) != 0 || kvp_grant_args(a, &g) != 0)
		return NULL;
	if (g.event != NULL) {
		result = grant_behind(self, &g);
	} else {
		p = opened(self);
		result = p != NULL ? handle(self, kvl_grant(p, &g.grant, &lease), &lease) : NULL;
	}
	kvp_grant_free(&g);
	return result;
}

static inline PyObject *say(PyObject *self, PyObject *o, const char *name, int32_t (*call)(kvl_producer_t *, uint64_t))
{
	kvl_producer_t *p;
	uint64_t v = 0;
	if (kvp_u64(o, name, &v) != 0 || (p = opened(self)) == NULL)
		return NULL;
	return done(self, call(p, v));
}

static PyObject *hook_cancel(PyObject *self, PyObject *lease) { return say(self, lease, "lease", kvl_cancel); }
static PyObject *hook_revoke(PyObject *self, PyObject *lease) { return say(self, lease, "lease", kvl_revoke); }

static PyObject *hook_pressure(PyObject *self, PyObject *o)
{
	kvl_producer_t *p;
	uint32_t blocks = 0;
	if (kvp_u32(o, "blocks", &blocks) != 0 || (p = opened(self)) == NULL)
		return NULL;
	return done(self, kvl_pressure(p, blocks));
}

/* ---- reader ---- */

static inline const kvl_remote_t *remote_of(PyObject *self, PyObject *o)
{
	if (KVP_LIKELY(Py_TYPE(o) == ((kvp_producer_t *)self)->remote))
		return &((kvp_remote_t *)o)->remote;
	PyErr_Format(PyExc_TypeError, "remote: %R is not what params_read gives", o);
	return NULL;
}

static PyObject *hook_track(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
	static const kvp_signature_t s = {"track", 3, 4, {"engine", "remote", "local_id", "user"}};
	const kvl_remote_t *remote;
	kvl_track_t out = 0;
	kvl_engine_t engine = 0;
	kvl_producer_t *p;
	kvl_bytes_t id;
	uint64_t user = 0;
	PyObject *a[4];
	if (kvp_bind(&s, args, n, names, a) != 0 || kvp_u64(a[0], "engine", &engine) != 0 ||
	    (remote = remote_of(self, a[1])) == NULL || kvp_bytes(a[2], "local_id", &id) != 0 || kvp_u64(a[3], "user", &user) != 0 ||
	    (p = opened(self)) == NULL)
		return NULL;
	return handle(self, kvl_track(p, engine, remote, id, user, &out), &out);
}

static PyObject *hook_untrack(PyObject *self, PyObject *o) { return say(self, o, "track", kvl_untrack); }

static PyObject *hook_reject(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
	static const kvp_signature_t s = {"reject", 2, 2, {"engine", "remote"}};
	const kvl_remote_t *remote;
	kvl_engine_t engine = 0;
	kvl_producer_t *p;
	PyObject *a[2];
	if (kvp_bind(&s, args, n, names, a) != 0 || kvp_u64(a[0], "engine", &engine) != 0 ||
	    (remote = remote_of(self, a[1])) == NULL || (p = opened(self)) == NULL)
		return NULL;
	return done(self, kvl_reject(p, engine, remote));
}

static PyObject *read_groups(PyObject *self, uint64_t track, const kvp_groups_t *local, const kvp_groups_t *remote)
{
	kvl_read_t r = {.size = sizeof r, .groups_n = local->n, .local = local->groups, .remote = remote->groups};
	kvl_producer_t *p;
	if (local->n != remote->n) {
		PyErr_Format(PyExc_ValueError, "local, remote: %u and %u groups", local->n, remote->n);
		return NULL;
	}
	if ((p = opened(self)) == NULL)
		return NULL;
	return done(self, kvl_read(p, track, &r));
}

static PyObject *hook_read(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
	static const kvp_signature_t s = {"read", 3, 3, {"track", "local", "remote"}};
	kvp_groups_t local, remote;
	PyObject *a[3], *result;
	uint64_t track = 0;
	if (kvp_bind(&s, args, n, names, a) != 0 || kvp_u64(a[0], "track", &track) != 0 || kvp_groups(a[1], "local", &local) != 0)
		return NULL;
	if (kvp_groups(a[2], "remote", &remote) != 0) {
		kvp_groups_free(&local);
		return NULL;
	}
	result = read_groups(self, track, &local, &remote);
	kvp_groups_free(&local);
	kvp_groups_free(&remote);
	return result;
}

/* ---- type ---- */

static PyObject *get_context(PyObject *self, void *none)
{
	(void)none;
	return Py_NewRef((PyObject *)((kvp_producer_t *)self)->context);
}

#define FAST(name, f, doc) {name, (PyCFunction)(void (*)(void))(f), METH_FASTCALL | METH_KEYWORDS, doc}

static PyMethodDef methods[] = {
	{"expect", hook_expect, METH_O, "expect($self, id, /)\n--\n\nkvl_expect: the lease."},
	FAST("grant", hook_grant,
	     "grant($self, id, groups, tokens=0, ttl=0.0, expected=0, user=0, fixed=False, ready_event=None)\n--\n\n"
	     "kvl_grant: the lease. ready_event: a CUDA event behind the last write into the blocks, an int or an object with\n"
	     "cuda_event as torch.cuda.Event; params raises Busy until it has fired."),
	{"cancel", hook_cancel, METH_O, "cancel($self, lease, /)\n--\n\nkvl_cancel."},
	{"revoke", hook_revoke, METH_O, "revoke($self, lease, /)\n--\n\nkvl_revoke."},
	{"pressure", hook_pressure, METH_O, "pressure($self, blocks, /)\n--\n\nkvl_pressure."},
	FAST("track", hook_track, "track($self, engine, remote, local_id, user=0)\n--\n\nkvl_track: the track."),
	{"untrack", hook_untrack, METH_O, "untrack($self, track, /)\n--\n\nkvl_untrack."},
	FAST("reject", hook_reject, "reject($self, engine, remote)\n--\n\nkvl_reject."),
	FAST("read", hook_read, "read($self, track, local, remote)\n--\n\nkvl_read."),
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef getset[] = {
	{"context", get_context, NULL, "the context that it belongs to", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_doc, "A way in for requests. Made by Context.producer; lives as long as its context."},
	{Py_tp_dealloc, producer_dealloc},
	{Py_tp_methods, methods},
	{Py_tp_getset, getset},
	{0, NULL},
};

PyType_Spec kvp_producer_spec = {"kvlease.Producer", sizeof(kvp_producer_t), 0,
				 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
