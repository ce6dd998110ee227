/* Notifications. NIXL gives all that has arrived into a map at once. What does not fit into the inbox stays in its map;
 * the maps are emptied in the order in which they were filled, so a peer's messages keep their order. */
#include "agent.h"

#include <string.h>

static void count(agent_t *a, map_t *m)
{
	const nixl_api_t *api = a->api;
	m->waiting = 0;
	m->agent = m->notif = 0;
	m->agents = 0;
	if (api->notif_map_size(m->map, &m->agents) != NIXL_OK)
		return;
	for (size_t i = 0; i < m->agents; i++) {
		const char *name;
		size_t n;
		if (api->notif_map_get_agent_at(m->map, i, &name) == NIXL_OK &&
		    api->notif_map_get_notifs_size(m->map, name, &n) == NIXL_OK)
			m->waiting += n;
		else
			a->counters.notifs_broken++; /* a name with a zero byte in it cannot be looked up */
	}
}

/* Asks NIXL for what has arrived since the last poll. */
static void fetch(agent_t *a)
{
	if (a->map_n == MAPS) {
		/* Every map still holds something. The newest is filled further: its first entries have not been touched unless it
		 * is the one that is being emptied, which MAPS > 1 excludes. */
		map_t *m = &a->maps[(a->map_first + MAPS - 1) % MAPS];
		a->counters.maps_merged++;
		if (a->api->get_notifs(a->agent, m->map, NULL) < 0)
			a->counters.polls_failed++;
		count(a, m);
		return;
	}
	map_t *m = &a->maps[(a->map_first + a->map_n) % MAPS];
	if (a->api->get_notifs(a->agent, m->map, NULL) < 0) /* best effort: other backends may have delivered */
		a->counters.polls_failed++;
	size_t agents = 0;
	a->api->notif_map_size(m->map, &agents);
	if (agents == 0)
		return;
	count(a, m);
	a->map_n++;
}

typedef struct {
	uint8_t *buf;
	size_t cap, whole, used;
	uint32_t *lens;
	uint32_t max, n;
	uint64_t *too_long_out;
} inbox_t;

/* Moves one notification. 0: no room now. */
static int put(inbox_t *in, const char *name, size_t name_len, const void *body, size_t len)
{
	if (name_len + len > in->whole) {
		++*in->too_long_out;
		return 1;
	}
	if (in->n == in->max || name_len + len > in->cap - in->used)
		return 0;
	memcpy(in->buf + in->used, name, name_len);
	if (len > 0)
		memcpy(in->buf + in->used + name_len, body, len);
	in->lens[2 * in->n] = (uint32_t)name_len;
	in->lens[2 * in->n + 1] = (uint32_t)len;
	in->n++;
	in->used += name_len + len;
	return 1;
}

/* Moves a map's rest into the inbox. 0: the inbox is full. */
static int empty(agent_t *a, map_t *m, inbox_t *in)
{
	const nixl_api_t *api = a->api;
	for (; m->agent < m->agents; m->agent++, m->notif = 0) {
		const char *name;
		size_t n = 0;
		if (api->notif_map_get_agent_at(m->map, m->agent, &name) != NIXL_OK ||
		    api->notif_map_get_notifs_size(m->map, name, &n) != NIXL_OK)
			continue;
		size_t name_len = strlen(name);
		for (; m->notif < n; m->notif++, m->waiting--) {
			const void *body = NULL;
			size_t len = 0;
			if (api->notif_map_get_notif(m->map, name, m->notif, &body, &len) != NIXL_OK)
				a->counters.notifs_broken++;
			else if (!put(in, name, name_len, body, len))
				return 0;
		}
	}
	api->notif_map_clear(m->map);
	m->waiting = 0;
	return 1;
}

int32_t kvlx_poll(int32_t handle, void *buf, size_t cap, size_t whole, uint32_t *lens, uint32_t max, uint64_t *backlog_out,
                  uint64_t *too_long_out)
{
	*backlog_out = 0;
	*too_long_out = 0;
	agent_t *a = kvlx_agent(handle);
	if (a == NULL)
		return KVLX_CLOSED;
	inbox_t in = {.buf = buf, .cap = cap, .whole = whole, .lens = lens, .max = max, .too_long_out = too_long_out};
	fetch(a);
	while (a->map_n > 0 && empty(a, &a->maps[a->map_first], &in)) { /* at most MAPS times */
		a->map_first = (a->map_first + 1) % MAPS;
		a->map_n--;
	}
	for (uint32_t i = 0; i < a->map_n; i++)
		*backlog_out += a->maps[(a->map_first + i) % MAPS].waiting;
	return (int32_t)in.n;
}
