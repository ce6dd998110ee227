/* Notifications of the fake: sent, kept by the agent that they are for, taken as maps. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

int nixl_capi_create_opt_args(opt_args_t **out);
int nixl_capi_create_opt_args(opt_args_t **out)
{
	SCRIPTED("create_opt_args");
	*out = calloc(1, sizeof **out);
	return OK;
}

int nixl_capi_destroy_opt_args(opt_args_t *o);
int nixl_capi_destroy_opt_args(opt_args_t *o)
{
	free(o->at);
	free(o);
	return OK;
}

int nixl_capi_opt_args_set_notif_msg(opt_args_t *o, const void *p, size_t n);
int nixl_capi_opt_args_set_notif_msg(opt_args_t *o, const void *p, size_t n)
{
	SCRIPTED("opt_args_set_notif_msg");
	free(o->at);
	o->at = malloc(n + 1);
	o->len = n;
	memcpy(o->at, p, n);
	return OK;
}

int nixl_capi_opt_args_set_has_notif(opt_args_t *o, bool has);
int nixl_capi_opt_args_set_has_notif(opt_args_t *o, bool has)
{
	SCRIPTED("opt_args_set_has_notif");
	o->has = has;
	return OK;
}

int nixl_capi_gen_notif(agent_t *a, const char *name, const void *p, size_t n, opt_args_t *args);
int nixl_capi_gen_notif(agent_t *a, const char *name, const void *p, size_t n, opt_args_t *args)
{
	(void)args;
	SCRIPTED("gen_notif");
	pthread_mutex_lock(&lock);
	int st = find_remote(a, name) == NULL ? NOT_FOUND : BACKEND;
	agent_t *to = reach(a, name);
	if (to != NULL) {
		push(to, a->name, strlen(a->name), p, n);
		st = OK;
	}
	pthread_mutex_unlock(&lock);
	return st;
}

/* A map keeps its agents in the order of their first message. */
typedef struct group {
	struct group *next;
	char name[NAME];
	size_t name_len, n;
	message_t *first, **last;
} group_t;

typedef struct {
	group_t *first, **last;
	size_t n;
} map_t;

int nixl_capi_create_notif_map(map_t **out);
int nixl_capi_create_notif_map(map_t **out)
{
	SCRIPTED("create_notif_map");
	*out = calloc(1, sizeof **out);
	(*out)->last = &(*out)->first;
	return OK;
}

int nixl_capi_notif_map_clear(map_t *m);
int nixl_capi_notif_map_clear(map_t *m)
{
	while (m->first != NULL) {
		group_t *g = m->first;
		m->first = g->next;
		while (g->first != NULL) {
			message_t *x = g->first;
			g->first = x->next;
			free(x);
		}
		free(g);
	}
	m->last = &m->first;
	m->n = 0;
	return OK;
}

int nixl_capi_destroy_notif_map(map_t *m);
int nixl_capi_destroy_notif_map(map_t *m)
{
	nixl_capi_notif_map_clear(m);
	free(m);
	return OK;
}

static group_t *group_of(map_t *m, const char *name, size_t name_len)
{
	for (group_t *g = m->first; g != NULL; g = g->next) {
		if (g->name_len == name_len && memcmp(g->name, name, name_len) == 0)
			return g;
	}
	return NULL;
}

int nixl_capi_get_notifs(agent_t *a, map_t *m, opt_args_t *args);
int nixl_capi_get_notifs(agent_t *a, map_t *m, opt_args_t *args)
{
	(void)args;
	SCRIPTED("get_notifs");
	pthread_mutex_lock(&lock);
	while (a->first != NULL) {
		message_t *x = a->first;
		a->first = x->next;
		x->next = NULL;
		group_t *g = group_of(m, x->name, x->name_len);
		if (g == NULL) {
			g = calloc(1, sizeof *g);
			memcpy(g->name, x->name, x->name_len);
			g->name_len = x->name_len;
			g->last = &g->first;
			*m->last = g;
			m->last = &g->next;
			m->n++;
		}
		*g->last = x;
		g->last = &x->next;
		g->n++;
	}
	a->last = &a->first;
	pthread_mutex_unlock(&lock);
	return OK;
}

int nixl_capi_notif_map_size(map_t *m, size_t *n);
int nixl_capi_notif_map_size(map_t *m, size_t *n)
{
	*n = m->n;
	return OK;
}

int nixl_capi_notif_map_get_agent_at(map_t *m, size_t i, const char **name);
int nixl_capi_notif_map_get_agent_at(map_t *m, size_t i, const char **name)
{
	group_t *g = m->first;
	while (g != NULL && i-- > 0)
		g = g->next;
	if (g == NULL)
		return INVALID;
	*name = g->name;
	return OK;
}

int nixl_capi_notif_map_get_notifs_size(map_t *m, const char *name, size_t *n);
int nixl_capi_notif_map_get_notifs_size(map_t *m, const char *name, size_t *n)
{
	group_t *g = group_of(m, name, strlen(name));
	if (g == NULL)
		return INVALID;
	*n = g->n;
	return OK;
}

int nixl_capi_notif_map_get_notif(map_t *m, const char *name, size_t i, const void **p, size_t *n);
int nixl_capi_notif_map_get_notif(map_t *m, const char *name, size_t i, const void **p, size_t *n)
{
	SCRIPTED("notif_map_get_notif");
	group_t *g = group_of(m, name, strlen(name));
	if (g == NULL)
		return INVALID;
	message_t *x = g->first;
	while (x != NULL && i-- > 0)
		x = x->next;
	if (x == NULL)
		return INVALID;
	*p = x->body;
	*n = x->len;
	return OK;
}
