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

/* What of a lease stands in its parameters beside what the caller knows. */
typedef struct lease {
	uint32_t slot, g;
	kvl_era_t era;
	uint64_t end_ns; /* 0: not fixed */
} lease_t;

static void put_lease(text_t *t, const lease_t *l)
{
	put_text(t, "{\"v\":1,\"epoch\":\"");
	put_hex(t, l->era.epoch);
	put_text(t, "\",\"slot\":");
	put_uint(t, l->slot);
	put_text(t, ",\"g\":");
	put_uint(t, l->g);
	put_text(t, ",\"key\":\"");
	put_hex(t, kvl_slot_key(&l->era, l->slot, l->g));
	put_text(t, "\"}");
}

/* Seconds with all nanoseconds, as a decimal: what Python's perf_counter counts. */
static void put_seconds(text_t *t, uint64_t ns)
{
	char fraction[9];
	uint64_t rest = ns % 1000000000u;
	for (size_t i = sizeof fraction; i-- > 0; rest /= 10)
		fraction[i] = (char)('0' + rest % 10);
	put_uint(t, ns / 1000000000u);
	put(t, ".", 1);
	put(t, fraction, sizeof fraction);
}

static int32_t finish(const text_t *t, size_t *len_out)
{
	*len_out = t->len;
	if (t->buf == NULL || t->len >= t->cap)
		return kvl_fail(KVL_ERR_SPACE, "buf: %zu bytes, at least %zu", t->cap, t->len + 1);
	t->buf[t->len] = 0;
	return KVL_OK;
}

static int granted(const kvl_ctx_t *ctx, const lease_t *l)
{
	uint64_t state = KVL_LOAD(&ctx->slots[l->slot].state, ACQUIRE);
	return state >> 32 == l->g && (state & KVL_S_MASK) == KVL_S_GRANTED;
}

/* Looks the lease up. The state is asked again behind the rest: whatever was read is then this use's. */
static int32_t look_up(const kvl_ctx_t *ctx, kvl_lease_t lease, int fixed, lease_t *lease_out)
{
	lease_t l = {.slot = KVL_HANDLE_SLOT(lease), .g = KVL_HANDLE_USE(lease)};
	int stood = granted(ctx, &l);
	if (!kvl_era_read(ctx, &l.era))
		return kvl_fail_era();
	if (fixed)
		l.end_ns = KVL_LOAD(&ctx->fixed_ends[l.slot], RELAXED);
	uint32_t unready = KVL_LOAD(&ctx->slots[l.slot].flags, RELAXED) & KVL_SF_UNREADY;
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (!stood || !granted(ctx, &l))
		return kvl_fail(KVL_ERR_STALE, "the lease has ended, or is not granted yet");
	if (KVL_UNLIKELY(unready)) /* a reader that has them may read at once */
		return kvl_fail(KVL_ERR_BUSY, "grant.ready_event has not fired: the blocks are still being written, call again after a step");
	*lease_out = l;
	return KVL_OK;
}

static int32_t check(const kvl_ctx_t *ctx, kvl_lease_t lease, const char *buf, size_t cap, const size_t *len_out)
{
	if (ctx->sizes.role == KVL_ROLE_RANK)
		return kvl_fail(KVL_ERR_INVALID, "ctx: a rank context: requests go through the host context");
	if (kvl_lease_slot(ctx, lease) == KVL_NONE)
		return kvl_fail(KVL_ERR_INVALID, "lease: not a lease of this context");
	if (buf == NULL && cap != 0)
		return kvl_fail(KVL_ERR_INVALID, "buf: is NULL");
	if (len_out == NULL)
		return kvl_fail(KVL_ERR_INVALID, "len_out: is NULL");
	if (KVL_LOAD(&ctx->control->poisoned, ACQUIRE))
		return kvl_fail_gate(ctx);
	return KVL_OK;
}

KVL_API int32_t kvl_params_key(kvl_ctx_t *ctx, kvl_lease_t lease, char *buf, size_t cap, size_t *len_out)
{
	text_t t = {buf, cap, 0};
	lease_t l;
	int32_t st;
	KVL_ENTER(ctx);
	if ((st = check(ctx, lease, buf, cap, len_out)) != KVL_OK || (st = look_up(ctx, lease, 0, &l)) != KVL_OK)
		return st;
	put_lease(&t, &l);
	return finish(&t, len_out);
}

KVL_API int32_t kvl_params(kvl_ctx_t *ctx, kvl_lease_t lease, const kvl_grant_t *grant, char *buf, size_t cap,
			   size_t *len_out)
{
	text_t t = {buf, cap, 0};
	uint32_t blocks;
	lease_t l;
	int32_t st;
	KVL_ENTER(ctx);
	if (grant == NULL || (uintptr_t)grant % _Alignof(kvl_grant_t) != 0 || grant->size < sizeof *grant)
		return kvl_fail(KVL_ERR_INVALID, "grant: is NULL, not aligned, or its size is too small");
	if (!kvl_bytes_ok(grant->id, 1, KVL_ID_MAX) || !kvl_utf8_valid(grant->id.data, grant->id.len))
		return kvl_fail(KVL_ERR_INVALID, "grant.id: 1 to %u bytes of UTF-8, since it stands in JSON", KVL_ID_MAX);
	if ((st = kvl_check_groups("grant.groups", grant->groups, grant->groups_n, &blocks)) != KVL_OK ||
	    (st = check(ctx, lease, buf, cap, len_out)) != KVL_OK ||
	    (st = look_up(ctx, lease, (grant->flags & KVL_GRANT_FIXED) != 0, &l)) != KVL_OK)
		return st;
	/* As vLLM says it: blocks with a fixed life are those of a decode engine, for the second turn. */
	put_text(&t, l.end_ns != 0 ? "{\"do_remote_prefill\":false,\"do_remote_decode\":true" : "{\"do_remote_prefill\":true,\"do_remote_decode\":false");
	put_text(&t, ",\"remote_block_ids\":");
	put_groups(&t, grant->groups, grant->groups_n);
	put_text(&t, ",\"remote_request_id\":");
	put_string(&t, grant->id);
	put_text(&t, ",\"remote_num_tokens\":");
	put_uint(&t, grant->tokens);
	put_text(&t, ",\"remote_blocks_expiry_time\":");
	if (l.end_ns != 0)
		put_seconds(&t, l.end_ns);
	else
		put_text(&t, "null");
	put_text(&t, ",\"transfer_mode\":\"pull\"");
	if (ctx->params_info_len != 0)
		put(&t, ",", 1);
	put(&t, ctx->params_info, ctx->params_info_len);
	put_text(&t, ",\"kvlease\":");
	put_lease(&t, &l);
	put(&t, "}", 1);
	return finish(&t, len_out);
}
