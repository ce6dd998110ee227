/* Transfer parameters, written. */
#include "internal.h"
#include "json.h"

/* Writes what fits and counts the rest. */
typedef struct text {
	char *buf;
	size_t cap, len;
} text_t;

static void put(text_t *t, const char *s, size_t n)
{
	if (t->len < t->cap)
		memcpy(t->buf + t->len, s, n < t->cap - t->len ? n : t->cap - t->len);
	t->len += n;
}

static void put_text(text_t *t, const char *s) { put(t, s, strlen(s)); }

static void put_uint(text_t *t, uint64_t v)
{
	char digits[20];
	size_t n = 0;
	do
		digits[sizeof digits - ++n] = (char)('0' + v % 10);
	while ((v /= 10) != 0);
	put(t, digits + sizeof digits - n, n);
}

static void put_hex(text_t *t, uint64_t v)
{
	for (int shift = 60; shift >= 0; shift -= 4)
		put(t, &"0123456789abcdef"[v >> shift & 15], 1);
}

static void put_string(text_t *t, kvl_bytes_t s)
{
	const unsigned char *c = s.data;
	put(t, "\"", 1);
	for (size_t i = 0; i < s.len; i++) {
		if (c[i] == '"' || c[i] == '\\') {
			put(t, "\\", 1);
			put(t, (const char *)&c[i], 1);
		} else if (c[i] < 0x20) {
			put_text(t, "\\u00");
			put(t, &"0123456789abcdef"[c[i] >> 4], 1);
			put(t, &"0123456789abcdef"[c[i] & 15], 1);
		} else {
			put(t, (const char *)&c[i], 1);
		}
	}
	put(t, "\"", 1);
}

static void put_groups(text_t *t, const kvl_blocks_t *groups, uint32_t n)
{
	put(t, "[", 1);
	for (uint32_t g = 0; g < n; g++) {
		put_text(t, g == 0 ? "[" : ",[");
		for (uint32_t i = 0; i < groups[g].n; i++) {
			if (i != 0)
				put(t, ",", 1);
			put_uint(t, groups[g].ids[i]);
		}
		put(t, "]", 1);
	}
	put(t, "]", 1);
}

/* The epoch comes from the board, where the core has written what readers will compare it with. */
static void put_lease(text_t *t, const kvl_ctx_t *ctx, uint32_t slot, uint32_t g)
{
	const kvl_board_header_t *head = (const kvl_board_header_t *)(const void *)ctx->board;
	put_text(t, "{\"v\":1,\"epoch\":\"");
	put_hex(t, KVL_LOAD(&head->epoch, ACQUIRE));
	put_text(t, "\",\"slot\":");
	put_uint(t, slot);
	put_text(t, ",\"g\":");
	put_uint(t, g);
	put_text(t, ",\"key\":\"");
	put_hex(t, kvl_slot_key(ctx, slot, g));
	put_text(t, "\"}");
}

static int32_t finish(const text_t *t, size_t *len_out)
{
	*len_out = t->len;
	if (t->buf == NULL || t->len >= t->cap)
		return kvl_fail(KVL_ERR_SPACE, "buf: %zu bytes, at least %zu", t->cap, t->len + 1);
	t->buf[t->len] = 0;
	return KVL_OK;
}

static int32_t check(const kvl_ctx_t *ctx, kvl_lease_t lease, const char *buf, size_t cap, const size_t *len_out)
{
	uint32_t slot = kvl_lease_slot(ctx, lease);
	uint64_t state;
	if (slot == KVL_NONE)
		return kvl_fail(KVL_ERR_INVALID, "lease: not a lease of this context");
	if (buf == NULL && cap != 0)
		return kvl_fail(KVL_ERR_INVALID, "buf: is NULL");
	if (len_out == NULL)
		return kvl_fail(KVL_ERR_INVALID, "len_out: is NULL");
	if (KVL_LOAD(&ctx->control->poisoned, ACQUIRE))
		return kvl_fail_gate(ctx);
	state = KVL_LOAD(&ctx->slots[slot].state, ACQUIRE);
	if (state >> 32 != KVL_HANDLE_USE(lease) || (state & KVL_S_MASK) != KVL_S_GRANTED)
		return kvl_fail(KVL_ERR_STALE, "the lease has ended, or is not granted yet");
	return KVL_OK;
}

KVL_API int32_t kvl_params_key(kvl_ctx_t *ctx, kvl_lease_t lease, char *buf, size_t cap, size_t *len_out)
{
	text_t t = {buf, cap, 0};
	int32_t st;
	KVL_ENTER(ctx);
	if ((st = check(ctx, lease, buf, cap, len_out)) != KVL_OK)
		return st;
	put_lease(&t, ctx, KVL_HANDLE_SLOT(lease), KVL_HANDLE_USE(lease));
	return finish(&t, len_out);
}

KVL_API int32_t kvl_params(kvl_ctx_t *ctx, kvl_lease_t lease, const kvl_grant_t *grant, char *buf, size_t cap,
			   size_t *len_out)
{
	text_t t = {buf, cap, 0};
	uint32_t blocks;
	int32_t st;
	KVL_ENTER(ctx);
	if (grant == NULL || (uintptr_t)grant % _Alignof(kvl_grant_t) != 0 || grant->size < sizeof *grant)
		return kvl_fail(KVL_ERR_INVALID, "grant: is NULL, not aligned, or its size is too small");
	if (!kvl_bytes_ok(grant->id, 1, KVL_ID_MAX) || !kvl_utf8_valid(grant->id.data, grant->id.len))
		return kvl_fail(KVL_ERR_INVALID, "grant.id: 1 to %u bytes of UTF-8, since it stands in JSON", KVL_ID_MAX);
	if ((st = kvl_check_groups("grant.groups", grant->groups, grant->groups_n, &blocks)) != KVL_OK ||
	    (st = check(ctx, lease, buf, cap, len_out)) != KVL_OK)
		return st;
	put_text(&t, "{\"do_remote_prefill\":true,\"do_remote_decode\":false,\"remote_block_ids\":");
	put_groups(&t, grant->groups, grant->groups_n);
	put_text(&t, ",\"remote_request_id\":");
	put_string(&t, grant->id);
	put_text(&t, ",\"remote_num_tokens\":");
	put_uint(&t, grant->tokens);
	put_text(&t, ",\"remote_blocks_expiry_time\":null,\"transfer_mode\":\"pull\"");
	if (ctx->params_info_len != 0)
		put(&t, ",", 1);
	put(&t, ctx->params_info, ctx->params_info_len);
	put_text(&t, ",\"kvlease\":");
	put_lease(&t, ctx, KVL_HANDLE_SLOT(lease), KVL_HANDLE_USE(lease));
	put(&t, "}", 1);
	return finish(&t, len_out);
}
