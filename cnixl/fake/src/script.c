/* The script of the fake: what it is told to do by kvl_fake_control, or at first use by KVL_FAKE_NIXL (commands split by ';').
 *
 *   fail CALL N STATUS   the N-th call of CALL from now answers STATUS and does nothing; CALL is the symbol without nixl_capi_
 *   count CALL           returns how often CALL was entered
 *   gate CALL 1|0        CALL waits (at most 20 s) while its gate is closed
 *   hold AGENT 1|0       reads of AGENT stay in progress
 *   choke AGENT 1|0      posts of AGENT begin and are refused all the same, as where UCX has no memory for the flush behind a get
 *   stop AGENT 1|0       AGENT is a stopped process: reads from it stay in progress
 *   kill AGENT           AGENT died: sends and reads of its peers fail
 *   cut FROM TO          FROM's connection to TO is reset until it is invalidated and loaded again
 *   burn AGENT PEER      AGENT's next load of PEER connects and fails behind that, so that its name is burnt, as in NIXL 1.5
 *   inject AGENT         AGENT gets a notification from an agent with a zero byte in its name
 *   engine AGENT TEXT    returns whether AGENT's backend was made with that engine_config; '-' stands for none
 *   devices AGENT TEXT   and with that device_list, whose ", " is written as ","
 *   land                 reads that were released in flight land now; returns how many
 *   stub 1|0             the library says that it is a stub
 *   quiet                returns whether UCX would have left signals alone when the library was loaded
 *   reset                forgets every command and counter
 */
#include "../../../internal/fakelib/script.h"
#include "fake.h"

#include <time.h>

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool stub, quiet;

/* UCX reads its environment as it is loaded. */
__attribute__((constructor)) static void look_around(void)
{
	const char *signals = getenv("UCX_DEBUG_SIGNO");
	quiet = signals != NULL && strcmp(signals, "0") == 0;
}

static int land_released(bool move)
{
	int n = 0;
	for (; released != NULL; n++) {
		xfer_t *x = released;
		released = x->next;
		if (move)
			land(x);
		free(x->local.at);
		free(x->remote.at);
		free(x);
	}
	return n;
}

/* Whether a list that is split by ", " is this one, split by ",". */
static bool same_list(const char *list, const char *words)
{
	for (; *words != 0 && *list == *words; words++)
		list += *words == ',' && list[1] == ' ' ? 2 : 1;
	return *words == 0 && *list == 0;
}

static const char *script_known(int i)
{
	static const char *const names[] = {
		"check_remote_md", "create_backend", "create_configured_agent", "create_notif_map", "create_opt_args", "create_reg_dlist",
		"create_xfer_dlist", "create_xfer_req", "deregister_mem", "destroy_agent", "gen_notif", "get_local_md", "get_notifs",
		"get_plugin_params", "get_xfer_status", "invalidate_remote_md", "load_remote_md", "notif_map_get_notif",
		"opt_args_set_has_notif", "opt_args_set_notif_msg", "params_add", "post_xfer_req", "reg_dlist_add_desc", "register_mem",
		"release_xfer_req", NULL,
	};
	return names[i];
}

static int command(const char *line)
{
	char word[32] = "", a[NAME] = "", b[NAME] = "", c[32] = "";
	if (sscanf(line, "%31s %255s %255s %31s", word, a, b, c) < 1)
		return 0;
	int answer;
	if (script_common(word, a, b, c, &answer))
		return answer;
	if (strcmp(word, "gate") == 0) {
		script_call(a)->closed = atoi(b) != 0;
		return 0;
	}
	if (strcmp(word, "stub") == 0) {
		stub = atoi(a) != 0;
		return 0;
	}
	if (strcmp(word, "reset") == 0) {
		land_released(false);
		script_forget();
		stub = false;
		return 0;
	}
	if (strcmp(word, "land") == 0)
		return land_released(true);
	if (strcmp(word, "quiet") == 0)
		return quiet;
	agent_t *at = find_agent(a);
	if (at == NULL)
		return -1;
	if (strcmp(word, "sync") == 0)
		return at->sync;
	if (strcmp(word, "engine") == 0)
		return strcmp(at->params.engine, strcmp(b, "-") == 0 ? "" : b) == 0;
	if (strcmp(word, "devices") == 0)
		return same_list(at->params.devices, strcmp(b, "-") == 0 ? "" : b);
	if (strcmp(word, "telemetry") == 0)
		return at->telemetry;
	if (strcmp(word, "hold") == 0) {
		at->hold = atoi(b) != 0;
	} else if (strcmp(word, "choke") == 0) {
		at->choked = atoi(b) != 0;
	} else if (strcmp(word, "stop") == 0) {
		at->stopped = atoi(b) != 0;
	} else if (strcmp(word, "kill") == 0) {
		at->dead = true;
	} else if (strcmp(word, "burn") == 0) {
		strcpy(at->burns, b);
	} else if (strcmp(word, "inject") == 0) {
		push(at, "a\0b", 3, "x", 1);
	} else if (strcmp(word, "cut") == 0) {
		agent_t *to = find_agent(b);
		for (remote_t *r = at->remotes; r != NULL; r = r->next)
			r->cut |= to != NULL && r->epoch == to->epoch;
	} else {
		return -1;
	}
	return 0;
}

static void read_environment(void)
{
	if (script_begin())
		script_read("KVL_FAKE_NIXL", command);
}

int kvl_fake_control(const char *line);
int kvl_fake_control(const char *line)
{
	pthread_mutex_lock(&lock);
	read_environment();
	int r = command(line);
	pthread_mutex_unlock(&lock);
	return r;
}

int enter(const char *call)
{
	pthread_mutex_lock(&lock);
	read_environment();
	int st = script_enter(call);
	pthread_mutex_unlock(&lock);
	return st;
}

void gate(const char *call)
{
	for (int ms = 0; ms < 20000; ms++) {
		pthread_mutex_lock(&lock);
		bool wait = script_call(call)->closed;
		pthread_mutex_unlock(&lock);
		if (!wait)
			return;
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
}

bool is_stub(void)
{
	pthread_mutex_lock(&lock);
	read_environment();
	bool s = stub;
	pthread_mutex_unlock(&lock);
	return s;
}
