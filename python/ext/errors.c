/* Statuses as exceptions. */
#include "ext.h"

#include <string.h>

PyObject *kvp_raise_text(kvp_module_t *m, int32_t status, const char *text)
{
	const char *name = kvl_status_name(status);
	PyObject *said;
	if (text[0] == 0)
		text = name;
	if (status >= 0 || status <= -KVP_STATUSES)
		return PyErr_Format(m->error, "status %d: %s", (int)status, text);
	/* A text that was cut may end within a character. */
	if ((said = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace")) != NULL)
		PyErr_SetObject(m->errors[-status], said);
	Py_XDECREF(said);
	return NULL;
}

PyObject *kvp_raise(kvp_module_t *m, int32_t status) { return kvp_raise_text(m, status, kvl_last_error()); }
