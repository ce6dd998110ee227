/* Transfer parameters, read: vLLM's kv_transfer_params with the kvlease key (docs/protocol.md). The same rules as
 * dataplane/wire, held together by the vectors in dataplane/wire/testdata: a key that we read may stand once, null is
 * as good as absent, other keys are passed over, a kvlease key of another version is not looked into. */
#include <stdio.h>

#include "internal.h"
#include "json.h"

#define PARAMS_MAX (4u << 20) /* bytes of the whole text */
#define STRING_MAX 4096u      /* bytes of a string that is no id */
#define SLOTS_MAX (1u << 24)
#define LEASE_VERSION 1u

enum { P_PREFILL, P_DECODE, P_BLOCKS, P_ENGINE, P_REQUEST, P_HOST, P_PORT, P_TP, P_DCP, P_PP, P_TOKENS, P_EXPIRY,
       P_GENERATION, P_MODE, P_LEASE, P_N };
static const char *const names[P_N] = {
	"do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_engine_id", "remote_request_id",
	"remote_host", "remote_port", "tp_size", "dcp_size", "pp_size", "remote_num_tokens", "remote_blocks_expiry_time",
	"remote_registration_generation", "transfer_mode", "kvlease"};
static const uint8_t required[] = {P_BLOCKS, P_ENGINE, P_REQUEST, P_HOST, P_PORT};

enum { L_V, L_EPOCH, L_SLOT, L_G, L_KEY, L_N };
static const char *const lease_names[L_N] = {"v", "epoch", "slot", "g", "key"};

/* One walk over the text. The first counts and judges, the second, over the same bytes, fills the caller's buffer. */
typedef struct walk {
	kvl_json_t j;
	kvl_remote_t *out;
	const char *sub;     /* the key within kvlease that an error is about */
	uint64_t ids, chars; /* counted so far */
	uint32_t groups;
	kvl_blocks_t *groups_buf; /* NULL in the first walk */
	uint32_t *ids_buf;
	char *chars_buf;
} walk_t;

/* A key and its colon: its place in list, or n. */
static unsigned read_key(kvl_json_t *j, const char *const *list, unsigned n)
{
	char key[40];
	size_t len = kvl_json_string(j, key, sizeof key);
	unsigned i = 0;
	kvl_json_want(j, ':');
	if (len >= sizeof key)
		return n;
	key[len] = 0;
	while (i < n && (key[0] != list[i][0] || strlen(list[i]) != len || memcmp(list[i], key, len) != 0))
		i++;
	return i;
}

/* A string that must not be empty, into the buffer. */
static void read_text(walk_t *p, kvl_bytes_t *out, size_t max)
{
	char *to = p->chars_buf != NULL ? p->chars_buf + p->chars : NULL;
	size_t len = kvl_json_string(&p->j, to, to != NULL ? max : 0);
	if (p->j.bad == NULL && len == 0)
		kvl_json_fail(&p->j, "must not be empty");
	if (len > max)
		kvl_json_fail(&p->j, "is too long");
	if (p->j.bad != NULL)
		return;
	*out = (kvl_bytes_t){to, len};
	p->chars += len;
}

static uint32_t read_size(kvl_json_t *j, uint64_t max)
{
	uint64_t v = kvl_json_uint(j, max);
	if (j->bad == NULL && v == 0)
		kvl_json_fail(j, "must not be 0");
	return (uint32_t)v;
}

static uint64_t read_hex(kvl_json_t *j)
{
	char text[16];
	uint64_t v = 0;
	size_t len = kvl_json_string(j, text, sizeof text);
	for (size_t i = 0; i < sizeof text && j->bad == NULL; i++) {
		char c = i < len ? text[i] : 0;
		if (len != sizeof text || !((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
			kvl_json_fail(j, "must be 16 lower-case hexadecimal digits");
		else
			v = v << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
	}
	return v;
}

static void read_groups(walk_t *p)
{
	kvl_json_want(&p->j, '[');
	for (int first = 1; kvl_json_more(&p->j, first, ']'); first = 0) {
		uint64_t from = p->ids;
		kvl_json_want(&p->j, '[');
		for (int inner = 1; kvl_json_more(&p->j, inner, ']'); inner = 0) {
			uint32_t id = (uint32_t)kvl_json_uint(&p->j, UINT32_MAX);
			if (p->ids_buf != NULL && p->j.bad == NULL)
				p->ids_buf[p->ids] = id;
			p->ids++;
		}
		if (p->groups == KVL_GROUPS_MAX)
			kvl_json_fail(&p->j, "has too many groups");
		if (p->j.bad != NULL)
			return;
		if (p->groups_buf != NULL)
			p->groups_buf[p->groups] = (kvl_blocks_t){p->ids_buf + from, (uint32_t)(p->ids - from), 0};
		p->groups++;
	}
}

/* The version is looked for first, since of another version nothing else is known. */
static uint64_t find_version(kvl_json_t *j)
{
	kvl_json_want(j, '{');
	for (int first = 1; kvl_json_more(j, first, '}'); first = 0) {
		if (read_key(j, lease_names, 1) == L_V)
			return kvl_json_uint(j, UINT32_MAX);
		kvl_json_skip(j, 2);
	}
	kvl_json_fail(j, "is missing");
	return 0;
}

static void read_lease(walk_t *p)
{
	kvl_json_t *j = &p->j, ahead;
	unsigned seen = 0;
	uint64_t version;
	if (kvl_json_peek(j) != '{') {
		kvl_json_want(j, '{');
		return;
	}
	ahead = *j;
	version = find_version(&ahead);
	p->sub = lease_names[L_V];
	if (ahead.bad != NULL) {
		kvl_json_fail(j, ahead.bad);
		return;
	}
	p->sub = NULL;
	if (version != LEASE_VERSION) {
		kvl_json_skip(j, 1);
		return;
	}
	kvl_json_want(j, '{');
	for (int first = 1; kvl_json_more(j, first, '}'); first = 0) {
		unsigned key = read_key(j, lease_names, L_N);
		if (j->bad != NULL)
			return;
		if (key == L_N) {
			kvl_json_skip(j, 2);
			continue;
		}
		p->sub = lease_names[key];
		if (seen >> key & 1)
			kvl_json_fail(j, "is there twice");
		seen |= 1u << key;
		switch (key) {
		case L_V:
			kvl_json_uint(j, LEASE_VERSION);
			break;
		case L_EPOCH:
			p->out->epoch = read_hex(j);
			if (j->bad == NULL && p->out->epoch == 0)
				kvl_json_fail(j, "must not be 0");
			break;
		case L_SLOT:
			p->out->slot = (uint32_t)kvl_json_uint(j, SLOTS_MAX - 1);
			break;
		case L_G:
			p->out->generation = (uint32_t)kvl_json_uint(j, UINT32_MAX - 1); /* a handle holds g + 1 */
			break;
		case L_KEY:
			p->out->key = read_hex(j);
			break;
		}
		if (j->bad != NULL)
			return;
		p->sub = NULL;
	}
	for (unsigned key = 0; key < L_N && j->bad == NULL; key++)
		if ((seen >> key & 1) == 0) {
			p->sub = lease_names[key];
			kvl_json_fail(j, "is missing");
		}
	p->out->native = 1;
}

static void read_value(walk_t *p, unsigned key)
{
	kvl_json_t *j = &p->j;
	kvl_bytes_t mode;
	switch (key) {
	case P_PREFILL:
	case P_DECODE:
		kvl_json_bool(j);
		break;
	case P_BLOCKS:
		read_groups(p);
		break;
	case P_ENGINE:
		read_text(p, &p->out->engine_id, STRING_MAX);
		break;
	case P_REQUEST:
		read_text(p, &p->out->id, KVL_ID_MAX);
		break;
	case P_HOST:
		read_text(p, &p->out->host, STRING_MAX);
		break;
	case P_PORT:
		p->out->port = read_size(j, UINT16_MAX);
		break;
	case P_TP:
		p->out->tp_size = read_size(j, UINT16_MAX);
		break;
	case P_PP:
		p->out->pp_size = read_size(j, UINT16_MAX);
		break;
	case P_DCP:
		read_size(j, UINT16_MAX);
		break;
	case P_TOKENS:
		p->out->tokens = (uint32_t)kvl_json_uint(j, UINT32_MAX);
		break;
	case P_EXPIRY:
		p->out->expires_ns = kvl_json_seconds(j);
		break;
	case P_GENERATION:
		kvl_json_uint(j, UINT64_MAX);
		break;
	case P_MODE:
		mode.len = kvl_json_string(j, NULL, 0);
		if (mode.len > STRING_MAX)
			kvl_json_fail(j, "is too long");
		break;
	case P_LEASE:
		read_lease(p);
		break;
	}
}

static int32_t fail_key(const char *name, const char *sub, const char *why)
{
	if (name == NULL)
		return kvl_fail(KVL_ERR_INVALID, "parameters: %s", why);
	return kvl_fail(KVL_ERR_INVALID, "%s%s%s: %s", name, sub != NULL ? "." : "", sub != NULL ? sub : "", why);
}

static int32_t run_pass(walk_t *p)
{
	unsigned seen = 0, given = 0;
	const char *name = NULL;
	kvl_json_want(&p->j, '{');
	for (int first = 1; kvl_json_more(&p->j, first, '}'); first = 0) {
		unsigned key = read_key(&p->j, names, P_N);
		if (p->j.bad != NULL)
			break;
		if (key == P_N) {
			kvl_json_skip(&p->j, 1);
			continue;
		}
		name = names[key];
		if (seen >> key & 1)
			kvl_json_fail(&p->j, "is there twice");
		seen |= 1u << key;
		if (kvl_json_word(&p->j, "null")) {
			name = NULL;
			continue;
		}
		given |= 1u << key;
		read_value(p, key);
		if (p->j.bad != NULL)
			break;
		name = NULL;
	}
	if (p->j.bad == NULL && kvl_json_peek(&p->j) != 0)
		kvl_json_fail(&p->j, "something follows the object");
	if (p->j.bad != NULL)
		return fail_key(name, p->sub, p->j.bad);
	for (size_t i = 0; i < sizeof required; i++)
		if ((given >> required[i] & 1) == 0)
			return fail_key(names[required[i]], NULL, "is missing");
	return KVL_OK;
}

KVL_API int32_t kvl_params_read(const char *json, size_t len, kvl_remote_t *remote_out, void *buf, size_t cap,
				size_t *need_out)
{
	const kvl_remote_t blank = {.size = sizeof blank, .tp_size = 1, .pp_size = 1};
	kvl_remote_t out = blank;
	walk_t p = {.out = &out};
	size_t pad, need;
	int32_t st;
	if (json == NULL)
		return kvl_fail(KVL_ERR_INVALID, "json: is NULL");
	if (len > PARAMS_MAX)
		return kvl_fail(KVL_ERR_INVALID, "parameters: %zu bytes, at most %u", len, PARAMS_MAX);
	if (remote_out == NULL || (uintptr_t)remote_out % _Alignof(kvl_remote_t) != 0)
		return kvl_fail(KVL_ERR_INVALID, "remote_out: is NULL or not aligned");
	if (remote_out->size < KVL_REMOTE_FIRST)
		return kvl_fail(KVL_ERR_INVALID, "remote_out.size: %u, at least %zu", remote_out->size, KVL_REMOTE_FIRST);
	if (need_out == NULL)
		return kvl_fail(KVL_ERR_INVALID, "need_out: is NULL");
	if (buf == NULL && cap != 0)
		return kvl_fail(KVL_ERR_INVALID, "buf: is NULL");
	p.j = kvl_json_over(json, len);
	if ((st = run_pass(&p)) != KVL_OK)
		return st;
	pad = -(uintptr_t)buf % _Alignof(kvl_blocks_t);
	need = p.groups * sizeof(kvl_blocks_t) + p.ids * sizeof(uint32_t) + p.chars;
	*need_out = need + _Alignof(kvl_blocks_t) - 1; /* whatever the buffer's alignment */
	if (cap < pad || cap - pad < need)
		return kvl_fail(KVL_ERR_SPACE, "buf: %zu bytes, at least %zu", cap, *need_out);
	p = (walk_t){.j = kvl_json_over(json, len), .out = &out, .groups = p.groups, .ids = p.ids};
	p.groups_buf = (kvl_blocks_t *)(void *)((char *)buf + pad);
	p.ids_buf = (uint32_t *)(void *)(p.groups_buf + p.groups);
	p.chars_buf = (char *)(p.ids_buf + p.ids);
	out = blank;
	out.groups = p.groups_buf;
	out.groups_n = p.groups;
	p.groups = 0;
	p.ids = 0;
	if ((st = run_pass(&p)) != KVL_OK)
		return st;
	out.size = remote_out->size;
	memcpy(remote_out, &out, out.size < sizeof out ? out.size : sizeof out);
	return KVL_OK;
}
