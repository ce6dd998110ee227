//go:build ignore

/* The in-kernel half of `kvlease trace`: one program for all trace sites. It times the ways between sites and keeps a
 * histogram for each stage and pair of engines; the other half (package probe) reads the maps. What finds no room, or is forgotten, is
 * counted.
 */
#include "kernel.h"
#include "maps.h"
#include "values.h"

/* Clocks of two CPUs may differ by some ns. */
ALWAYS_INLINE u64 since(u64 then, u64 now) { return now > then ? now - then : 0; }

/* A full barrier, which an addition whose result nobody uses is not on every processor. */
ALWAYS_INLINE void advance(u64 *n, u64 from) { __sync_val_compare_and_swap(n, from, from + 1); }

ALWAYS_INLINE void hook_submit(const struct hit *hit)
{
	struct producer key = {.context = hit->context, .producer = hit->b};
	struct hooks *p = map_lookup(&lru_producers, &key);
	if (!p) {
		u32 first = 0;
		void *nothing = map_lookup(&zero, &first);
		if (!nothing)
			return;
		if (!map_update(&lru_producers, &key, nothing, UPDATE_NOEXIST))
			count(COUNTER_ADDED_PRODUCERS);
		p = map_lookup(&lru_producers, &key);
		if (!p)
			return;
	}
	u64 n = p->pushed;
	if (n != p->popped && (s64)(hit->c - p->entries[(n - 1) % HOOKS].position) < 0) /* its process died, and another one has its number */
		p->popped = n;
	if (n - p->popped >= HOOKS) {
		count(COUNTER_HOOKS_SKIPPED);
		return;
	}
	p->entries[n % HOOKS].position = hit->c;
	p->entries[n % HOOKS].at = hit->now;
	advance(&p->pushed, n); /* one thread pushes, one pops */
}

ALWAYS_INLINE void hook_drained(const struct hit *hit)
{
	struct step *step = map_lookup(&lru_steps, &hit->context);
	if (step)
		step->drained = hit->now;
	struct producer key = {.context = hit->context, .producer = hit->b};
	struct hooks *p = map_lookup(&lru_producers, &key);
	if (!p)
		return;
	struct histogram *h = 0;
	struct hit own = *hit; /* an outlier is told by the place of its own record, not by that of the last */
	u64 pushed = __sync_val_compare_and_swap(&p->pushed, 0, 0); /* entries below it are seen */
	for (int i = 0; i < HOOKS; i++) {
		u64 n = p->popped;
		if (n == pushed || (s64)(hit->c - p->entries[n % HOOKS].position) < 0)
			break;
		if (!h)
			h = histogram_of(hit->context, 0, STAGE_DRAINED);
		u64 took = since(p->entries[n % HOOKS].at, hit->now);
		if (h)
			add(h, took);
		own.what = p->entries[n % HOOKS].position;
		tell(&own, hit->context, 0, STAGE_DRAINED, took);
		advance(&p->popped, n);
	}
}

ALWAYS_INLINE void step_begin(const struct hit *hit)
{
	u64 *context = map_lookup(&lru_threads, &hit->thread);
	if (context) {
		*context = hit->context;
	} else if (!map_update(&lru_threads, &hit->thread, &hit->context, UPDATE_ANY)) {
		count(COUNTER_ADDED_THREADS);
	}
	struct step *step = map_lookup(&lru_steps, &hit->context);
	if (step) {
		step->begin = step->drained = hit->now;
		return;
	}
	struct step fresh = {.begin = hit->now, .drained = hit->now};
	if (!map_update(&lru_steps, &hit->context, &fresh, UPDATE_ANY))
		count(COUNTER_ADDED_STEPS);
}

ALWAYS_INLINE void step_end(const struct hit *hit)
{
	struct step *step = map_lookup(&lru_steps, &hit->context);
	if (!step || !step->begin) {
		count(COUNTER_STEP_NO_BEGIN);
		return;
	}
	value(hit, hit->context, 0, STAGE_STEP, since(step->begin, hit->now));
	step->begin = 0;
}

/* The context whose step this thread runs goes by this hash. */
ALWAYS_INLINE u64 known_as(const struct hit *hit, u64 hash)
{
	u64 *context = map_lookup(&lru_threads, &hit->thread);
	if (!context)
		return 0;
	struct self key = {.context = *context, .hash = hash};
	if (!map_lookup(&lru_selves, &key) && !map_update(&lru_selves, &key, &hit->now, UPDATE_ANY))
		count(COUNTER_ADDED_SELVES);
	return key.context;
}

ALWAYS_INLINE void batch_posted(const struct hit *hit)
{
	u64 context = known_as(hit, hit->a);
	struct step *step = map_lookup(&lru_steps, &context);
	if (step && step->begin)
		value(hit, hit->a, hit->b, STAGE_POSTED, since(step->drained, hit->now));
	else
		count(COUNTER_POST_NO_STEP);

	struct message key = {.from = hit->a, .to = hit->b, .ranks = hit->c, .number = hit->d >> 32};
	struct post fresh = {.at = hit->now, .requests = (u32)hit->d};
	struct post *old = map_lookup(&lru_posts, &key);
	if (old) {
		count(COUNTER_POST_UNSEEN);
		*old = fresh;
	} else if (!map_update(&lru_posts, &key, &fresh, UPDATE_ANY)) {
		count(COUNTER_ADDED_POSTS);
	}
}

ALWAYS_INLINE void notification_seen(const struct hit *hit)
{
	known_as(hit, hit->b);
	struct message message = {.from = hit->a, .to = hit->b, .ranks = hit->c, .number = hit->d >> 32};
	struct application key = {.thread = hit->thread, .from = hit->a, .to = hit->b, .number = hit->d >> 32};
	struct seen fresh = {.at = hit->now};
	struct post *post = map_lookup(&lru_posts, &message);
	if (!post) {
		count(COUNTER_SEEN_NO_POST);
	} else {
		u32 posted = (u32)post->requests, seen = (u32)hit->d;
		if (posted && seen && posted != seen) {
			count(COUNTER_SEEN_DIFFERS);
		} else {
			fresh.posted = post->at;
			value(hit, hit->a, hit->b, STAGE_SEEN, since(post->at, hit->now));
		}
		if (!map_delete(&lru_posts, &message))
			count(COUNTER_TAKEN_POSTS);
	}
	struct seen *old = map_lookup(&lru_seen, &key);
	if (old)
		*old = fresh;
	else if (!map_update(&lru_seen, &key, &fresh, UPDATE_ANY))
		count(COUNTER_ADDED_SEEN);
}

ALWAYS_INLINE void batch_extended(const struct hit *hit)
{
	struct application key = {.thread = hit->thread, .from = hit->a, .to = hit->b, .number = hit->c >> 32};
	struct seen *seen = map_lookup(&lru_seen, &key);
	if (!seen) {
		count(COUNTER_EXTENDED_NO_SEEN);
	} else {
		value(hit, hit->a, hit->b, STAGE_EXTENDED, since(seen->at, hit->now));
		if (seen->posted)
			value(hit, hit->a, hit->b, STAGE_RENEWED, since(seen->posted, hit->now));
		if (!map_delete(&lru_seen, &key))
			count(COUNTER_TAKEN_SEEN);
	}
	s64 slack = (s64)hit->d;
	if (hit->d == ~0ULL >> 1) /* no lease was moved */
		return;
	struct histogram *h = histogram_of(hit->a, hit->b, STAGE_SLACK);
	if (h)
		add(h, slack > 0 ? (u64)slack : 0);
}

ALWAYS_INLINE void read_posted(const struct hit *hit)
{
	struct track key = {.context = hit->context, .track = hit->b};
	struct transfer fresh = {.posted = hit->now, .owner = hit->c};
	struct transfer *old = map_lookup(&lru_reads, &key);
	if (old)
		*old = fresh;
	else if (!map_update(&lru_reads, &key, &fresh, UPDATE_ANY))
		count(COUNTER_ADDED_READS);
}

ALWAYS_INLINE void data_arrived(const struct hit *hit)
{
	struct track key = {.context = hit->context, .track = hit->b};
	struct transfer *t = map_lookup(&lru_reads, &key);
	if (!t) {
		count(COUNTER_READ_NO_POST);
		return;
	}
	t->arrived = hit->now;
	value(hit, hit->context, t->owner, STAGE_ARRIVED, since(t->posted, hit->now));
}

ALWAYS_INLINE void fence_checked(const struct hit *hit)
{
	struct track key = {.context = hit->context, .track = hit->b};
	struct transfer *t = map_lookup(&lru_reads, &key);
	if (!t) {
		count(COUNTER_READ_NO_POST);
		return;
	}
	if (!t->arrived) /* of one rank, while data of another is on its way */
		return;
	t->fenced = hit->now;
	value(hit, hit->context, t->owner, STAGE_FENCED, since(t->arrived, hit->now));
}

ALWAYS_INLINE void read_reported(const struct hit *hit)
{
	struct track key = {.context = hit->context, .track = hit->b};
	struct transfer *t = map_lookup(&lru_reads, &key);
	if (!t) {
		if (hit->d) /* 0: nothing was posted */
			count(COUNTER_READ_NO_POST);
		return;
	}
	if (t->fenced)
		value(hit, hit->context, t->owner, STAGE_REPORTED, since(t->fenced, hit->now));
	value(hit, hit->context, t->owner, hit->c ? STAGE_READ_FAIL : STAGE_READ, since(t->posted, hit->now));
	if (!map_delete(&lru_reads, &key))
		count(COUNTER_TAKEN_READS);
}

SEC("uprobe.multi")
int fired(struct pt_regs *regs)
{
	u64 cookie = attach_cookie(regs);
	u32 site = (u32)cookie;
	struct hit hit = {
		.a = ARG_A(regs), .b = ARG_B(regs), .c = ARG_C(regs), .d = ARG_D(regs),
		.now = ktime_ns(), .thread = pid_tgid(), .process = cookie >> 32,
	};
	if (!hit.process) {
		struct pidns_info here;
		if (pidns_ino && !ns_pid_tgid(pidns_dev, pidns_ino, &here, sizeof(here)))
			hit.process = here.tgid;
		else
			hit.process = hit.thread >> 32;
	}
	hit.context = (u64)hit.process << 32 | (u32)hit.a;
	if (site == SITE_BATCH_POSTED || site == SITE_NOTIFICATION_SEEN || site == SITE_STALL_GAP)
		hit.what = hit.d;
	else
		hit.what = site >= SITE_READ_POSTED ? hit.b : hit.c;
	count(COUNTER_HITS);
	switch (site) {
	case SITE_HOOK_SUBMIT:
		hook_submit(&hit);
		break;
	case SITE_HOOK_DRAINED:
		hook_drained(&hit);
		break;
	case SITE_STEP_BEGIN:
		step_begin(&hit);
		break;
	case SITE_STEP_END:
		step_end(&hit);
		break;
	case SITE_BATCH_POSTED:
		batch_posted(&hit);
		break;
	case SITE_NOTIFICATION_SEEN:
		notification_seen(&hit);
		break;
	case SITE_BATCH_EXTENDED:
		batch_extended(&hit);
		break;
	case SITE_READ_POSTED:
		read_posted(&hit);
		break;
	case SITE_DATA_ARRIVED:
		data_arrived(&hit);
		break;
	case SITE_FENCE_CHECKED:
		fence_checked(&hit);
		break;
	case SITE_READ_REPORTED:
		read_reported(&hit);
		break;
	case SITE_STALL_GAP:
		value(&hit, hit.context, 0, STAGE_STALL, hit.b);
		break;
	}
	return 0;
}

/* Not a licence that helpers ask for: none of those used is GPL-only. */
const char licence[] SEC("license") = "Apache-2.0";
