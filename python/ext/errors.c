/* Statuses as exceptions. */
#include "ext.h"

PyObject *kvp_raise_text(kvp_module_t *m, int32_t status, const char *text)
{
	const char *name = kvl_status_name(status);
	PyObject *type = status < 0 && status > -KVP_STATUSES ? m->errors[-status] : NULL;
	if (type != NULL)
		PyErr_SetString(type, text[0] != 0 ? text : name);
	else
		PyErr_Format(m->error, "status %d: %s", (int)status, text[0] != 0 ? text : name);
	return NULL;
}

PyObject *kvp_raise(kvp_module_t *m, int32_t status) { return kvp_raise_text(m, status, kvl_last_error()); }
