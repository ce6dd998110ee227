/* What the files of the fake NIXL share. The fake links nothing but libc; agents of one process talk to each other. */
#ifndef KVLEASE_FAKE_H
#define KVLEASE_FAKE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { OK = 0, IN_PROGRESS = 1, INVALID = -1, BACKEND = -2, NOT_FOUND = -6 };
enum { NAME = 256 };

typedef struct {
	uint64_t addr, len, device;
	int mem;
} range_t;

typedef struct {
	range_t *at;
	size_t n, cap;
} ranges_t;

typedef struct message {
	struct message *next;
	char name[NAME];
	size_t name_len, len;
	uint8_t body[];
} message_t;

typedef struct remote {
	struct remote *next;
	char name[NAME];
	bool burnt; /* NIXL has the connection and not the agent: nothing but a load finds it, and that fails */
	uint64_t epoch, load; /* load: which of all loads it came with */
	bool cut;
	ranges_t ranges;
	void *blob;
	size_t blob_len;
} remote_t;

typedef struct {
	char engine[1024], devices[1024]; /* engine_config, device_list */
} params_t;

typedef struct agent {
	struct agent *next;
	char name[NAME], burns[NAME]; /* burns: the name, or alias, whose next load fails late */
	uint64_t epoch;
	bool dead, stopped, hold, choked, backend, telemetry;
	int32_t sync; /* as nixl_agent_config_t has it */
	params_t params; /* of its backend */
	ranges_t ranges;
	remote_t *remotes;
	message_t *first, **last;
} agent_t;

typedef struct xfer {
	struct xfer *next; /* released in flight: may land late */
	agent_t *agent;
	char peer[NAME];
	uint64_t epoch, load;
	ranges_t local, remote;
	bool posted, has_notif;
	int status;
	void *notif;
	size_t notif_len;
} xfer_t;

typedef struct {
	bool has;
	void *at;
	size_t len;
} opt_args_t;

extern pthread_mutex_t lock;
extern agent_t *agents;
extern xfer_t *released;

/* Counts a call and gives the status that the script has for it, or OK. */
int enter(const char *call);
/* Waits while the script has closed this call's gate. */
void gate(const char *call);
bool is_stub(void);

agent_t *find_agent(const char *name);
/* What an agent has loaded under a name, and the living agent behind it; or NULL. */
remote_t *find_remote(agent_t *a, const char *name);
agent_t *reach(agent_t *a, const char *name);
/* Forgets what an agent has loaded under a name; false: nothing. */
bool forget_remote(agent_t *a, const char *name);
void push(agent_t *to, const void *name, size_t name_len, const void *body, size_t len);
void add_range(ranges_t *r, uint64_t addr, uint64_t len, uint64_t device, int mem);
bool covered(const ranges_t *r, const range_t *x);
/* Copies what a read brings; false: the CUDA driver refused. */
bool land(xfer_t *x);

#define SCRIPTED(call) \
	do { \
		int st_ = enter(call); \
		if (st_ != OK) \
			return st_; \
	} while (0)

#endif
