/* kvlease for Python: what the parts of the extension share.
 *
 * Limited API of CPython 3.10 (abi3), so one binary serves every later version. Python code may run whenever an argument is
 * converted (__index__, __len__), and it may close the context: so a call converts all its arguments first, then takes the C
 * object, and runs no Python code between that and the call into the library.
 */
#ifndef KVP_EXT_H
#define KVP_EXT_H

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#include "kvlease.h"

#define KVP_LIKELY(x) __builtin_expect(!!(x), 1)
#define KVP_COLD __attribute__((noinline, cold))
#define KVP_ARGS_MAX 8

/* ---- module.c ---- */
enum { KVP_STATUSES = 15 }; /* KVL_OK and the errors: entry -status */

typedef struct kvp_module {
	PyObject *error;                 /* for a status that this package does not know */
	PyObject *errors[KVP_STATUSES];  /* by -status */
	PyTypeObject *context, *producer, *remote, *event;
	PyObject *dumps, *loads;         /* of json */
} kvp_module_t;

/* The module that an object's type belongs to. */
static inline kvp_module_t *kvp_module_of(PyObject *self) { return PyType_GetModuleState(Py_TYPE(self)); }

/* ---- errors.c ---- */
/* The exception of a status, with the thread's text of the failed call. Return NULL. */
PyObject *kvp_raise(kvp_module_t *m, int32_t status) KVP_COLD;
PyObject *kvp_raise_text(kvp_module_t *m, int32_t status, const char *text) KVP_COLD;

/* ---- args.c ---- */
typedef struct kvp_signature {
	const char *function;
	int required, max;
	const char *names[KVP_ARGS_MAX];
} kvp_signature_t;

/* Puts borrowed arguments in their places, NULL where none was given. 0, or -1 with an exception. */
int kvp_bind_slow(const kvp_signature_t *s, PyObject *const *args, Py_ssize_t n, PyObject *names, PyObject **out) KVP_COLD;

static inline int kvp_bind(const kvp_signature_t *s, PyObject *const *args, Py_ssize_t n, PyObject *names, PyObject **out)
{
	if (KVP_LIKELY(names == NULL && n >= s->required && n <= s->max)) {
		for (int i = 0; i < s->max; i++)
			out[i] = i < n ? args[i] : NULL;
		return 0;
	}
	return kvp_bind_slow(s, args, n, names, out);
}

/* Numbers of an exact width, truths, and seconds as nanoseconds (finite, not negative, below 2^63 ns). A NULL object leaves the
 * default that is in *out. 0, or -1 with an exception that names the argument. */
int kvp_uint_slow(PyObject *o, const char *name, uint64_t max, uint64_t *out) KVP_COLD;
int kvp_truth(PyObject *o, const char *name, int *out);
int kvp_seconds(PyObject *o, const char *name, uint64_t *out);

static inline int kvp_uint(PyObject *o, const char *name, uint64_t max, uint64_t *out)
{
	_Static_assert(sizeof(unsigned long) == 8, "the short way through an int");
	if (o == NULL)
		return 0;
	if (KVP_LIKELY(PyLong_CheckExact(o))) {
		unsigned long v = PyLong_AsUnsignedLong(o);
		if (KVP_LIKELY(v <= max && (v != (unsigned long)-1 || !PyErr_Occurred()))) {
			*out = v;
			return 0;
		}
	}
	return kvp_uint_slow(o, name, max, out);
}

static inline int kvp_u64(PyObject *o, const char *name, uint64_t *out) { return kvp_uint(o, name, UINT64_MAX, out); }

static inline int kvp_u32(PyObject *o, const char *name, uint32_t *out)
{
	uint64_t v = 0;
	if (o == NULL)
		return 0;
	if (kvp_uint(o, name, UINT32_MAX, &v) != 0)
		return -1;
	*out = (uint32_t)v;
	return 0;
}

/* A CUDA event: its handle as an int, or an object that has it in cuda_event, as torch.cuda.Event, then also in *keep (borrowed). None and a
 * NULL object leave what is in *out. 0, or -1 with an exception. */
int kvp_ready_event(PyObject *o, uint64_t *out, PyObject **keep);

/* An item of a group of block ids. */
int kvp_id_slow(PyObject *o, const char *what, Py_ssize_t group, Py_ssize_t i, uint32_t *out) KVP_COLD;

/* The bytes of a str (UTF-8) or bytes object, valid as long as the object. */
int kvp_bytes_slow(PyObject *o, const char *name, kvl_bytes_t *out) KVP_COLD;

static inline int kvp_bytes(PyObject *o, const char *name, kvl_bytes_t *out)
{
	Py_ssize_t n;
	if (!KVP_LIKELY(PyUnicode_CheckExact(o)))
		return kvp_bytes_slow(o, name, out);
	if ((out->data = PyUnicode_AsUTF8AndSize(o, &n)) == NULL)
		return -1;
	out->len = (size_t)n;
	return 0;
}
/* A new reference to bytes of bytes, bytearray or memoryview. */
PyObject *kvp_bytes_object(PyObject *o, const char *name);

/* ---- blocks.c ---- */
enum { KVP_GROUPS_NEAR = 8, KVP_IDS_NEAR = 1024 };

/* Block ids of one argument. Those of common requests lie here, on the caller's stack; more go to the heap. */
typedef struct kvp_groups {
	kvl_blocks_t *groups;
	uint32_t *ids;
	uint32_t n;
	size_t used, cap;
	kvl_blocks_t near_groups[KVP_GROUPS_NEAR];
	uint32_t near_ids[KVP_IDS_NEAR];
} kvp_groups_t;

/* 0, or -1 with an exception and nothing to free. */
int kvp_groups(PyObject *o, const char *name, kvp_groups_t *out);
void kvp_groups_free(kvp_groups_t *g);

/* ---- json.c ---- */
enum { KVP_TEXT_NEAR = 2048 };

/* A text that is written. Common ones lie here, on the caller's stack; longer ones on the heap. */
typedef struct kvp_text {
	char *data;
	size_t len, cap;
	char near[KVP_TEXT_NEAR];
} kvp_text_t;

/* The JSON of a dict, list, tuple, str, int, float, bool or None, as json.dumps would have it, but for spaces and for other letters than
 * ASCII, which stay. Runs no Python code. 1: written, to be freed. 0: something in it is of another type, or is a number that JSON or
 * 64 bits do not have, or half a surrogate, or lies more than 32 deep, or it takes more than 256 KiB. -1: an exception. */
int kvp_json(PyObject *o, kvp_text_t *out);
void kvp_text_free(kvp_text_t *t);

/* ---- event.c ---- */
PyTypeObject *kvp_event_type(void);
PyObject *kvp_event_new(kvp_module_t *m, const kvl_event_t *ev);

/* ---- context.c ---- */
typedef struct kvp_context {
	PyObject_HEAD
	kvl_ctx_t *open; /* NULL: closed, or being closed */
	kvl_ctx_t *closing; /* while kvl_close runs */
	uint32_t inside; /* calls that run without the GIL */
	uint32_t registering; /* those of them in kvl_register: a close cuts them off */
	void *scratch;   /* KVL_DELTA_MAX bytes for delta_take, once asked for */
	PyObject *ready; /* dict: objects of ready events by their lease, as long as the library may ask for them; NULL: never any */
} kvp_context_t;

/* Lets go of the object behind a lease's ready event, if there is one. May run Python code. */
void kvp_context_fired(kvp_context_t *c, kvl_lease_t lease);

extern PyType_Spec kvp_context_spec;
PyObject *kvp_raise_closed(PyObject *self, const kvp_context_t *c) KVP_COLD;

/* The C object, or the exception that there is none any more. */
#define KVP_OPEN(o, c)                                                                                                 \
	kvl_ctx_t *c = ((kvp_context_t *)(o))->open;                                                                   \
	if (c == NULL)                                                                                                 \
	return kvp_raise_closed(o, (kvp_context_t *)(o))

/* For calls during which other threads may run: the context cannot be closed meanwhile (but beside a kvl_register, see close_in_slices). */
#define KVP_WITHOUT_GIL(self, call)                                                                                    \
	do {                                                                                                           \
		(self)->inside++;                                                                                      \
		Py_BEGIN_ALLOW_THREADS call;                                                                           \
		Py_END_ALLOW_THREADS(self)->inside--;                                                                  \
	} while (0)

/* ---- close.c ---- */
#define KVP_SLICE_NS 100000000u /* close and drain look for signals this often */

PyObject *kvp_context_close(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names);
PyObject *kvp_context_enter(PyObject *self, PyObject *none);
PyObject *kvp_context_exit(PyObject *self, PyObject *args);
/* What nobody has closed and nobody refers to any more. */
void kvp_context_drop(kvl_ctx_t *c);

/* ---- texts.c ---- */
PyObject *kvp_context_stats(PyObject *self, PyObject *none);
PyObject *kvp_context_config(PyObject *self, PyObject *none);
PyObject *kvp_context_log(PyObject *self, PyObject *none);
PyObject *kvp_context_metrics_text(PyObject *self, PyObject *none);
PyObject *kvp_context_metrics_listen(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names);

/* ---- peers.c: methods of a context that are about memory, engines and ranks ---- */
PyObject *kvp_context_register(PyObject *self, PyObject *regions);
PyObject *kvp_context_unregister(PyObject *self, PyObject *none);
PyObject *kvp_context_engine_add(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names);
PyObject *kvp_context_engine_remove(PyObject *self, PyObject *engine);
PyObject *kvp_context_engine_handshake(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names);
PyObject *kvp_context_handshake_get(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names);
PyObject *kvp_context_handshake_set(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names);
PyObject *kvp_context_delta_take(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names);
PyObject *kvp_context_delta_put(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names);
PyObject *kvp_context_delta_lost(PyObject *self, PyObject *rank);

/* ---- params.c: parameters made and read, and the type Remote ---- */
typedef struct kvp_remote {
	PyObject_HEAD
	kvl_remote_t remote;
	void *buffer; /* what remote points into */
} kvp_remote_t;

extern PyType_Spec kvp_remote_spec;
PyObject *kvp_params_read(PyObject *module, PyObject *params);
PyObject *kvp_context_params(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names);
PyObject *kvp_context_params_key(PyObject *self, PyObject *lease);

/* ---- producer.c ---- */
extern PyType_Spec kvp_producer_spec;
PyObject *kvp_context_producer(PyObject *self, PyObject *none);

/* What a grant and its parameters are made of. Holds groups until kvp_grant_free. */
typedef struct kvp_grant {
	kvl_grant_t grant;
	kvp_groups_t groups;
	PyObject *event; /* borrowed: the object that a ready event was taken of; NULL: none, or a number */
} kvp_grant_t;
/* args: id, groups, tokens, ttl, expected, user, fixed, ready_event. */
int kvp_grant_args(PyObject *const *args, kvp_grant_t *out);
void kvp_grant_free(kvp_grant_t *g);

#endif
