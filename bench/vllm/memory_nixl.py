"""NIXL's Python agent for vLLM's own worker, in this process's memory: reads are done when they are posted, messages are there at once.

It costs a call less than any real agent could, which is in favour of the peer.
"""

import itertools
from types import SimpleNamespace

AGENTS = {}
TELEMETRY = SimpleNamespace(xferDuration=1, postDuration=1, totalBytes=1, descCount=1)


class Agent:
    def __init__(self, name, config):
        self.name, self.inbox = name, {}
        self.handles, self.targets, self.numbers = {}, {}, itertools.count(1)
        AGENTS[name] = self

    def get_agent_metadata(self):
        return self.name.encode()

    def add_remote_agent(self, metadata):
        return metadata.decode()

    def check_remote_metadata(self, agent):
        return True

    def get_reg_descs(self, ranges, mem_type=None):
        return ranges

    get_xfer_descs = get_reg_descs

    def register_memory(self, descs, backends=None):
        pass

    deregister_memory = release_dlist_handle = remove_remote_agent = register_memory

    def prep_xfer_dlist(self, agent, descs, **how):
        n = next(self.numbers)
        self.targets[n] = agent
        return n

    def make_prepped_xfer(self, op, local, local_ids, remote, remote_ids, notif_msg=b""):
        n = next(self.numbers)
        self.handles[n] = self.targets[remote], notif_msg
        return n

    def transfer(self, handle):
        self.send_notif(*self.handles.pop(handle))
        return "DONE"

    def check_xfer_state(self, handle):
        return "DONE"

    def get_xfer_telemetry(self, handle):
        return TELEMETRY

    def release_xfer_handle(self, handle):
        pass

    def send_notif(self, agent, notif_msg=b""):
        AGENTS[agent].inbox.setdefault(self.name, []).append(notif_msg)

    def get_new_notifs(self):
        out, self.inbox = self.inbox, {}
        return out
