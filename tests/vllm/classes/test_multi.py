"""kvlease inside vLLM's MultiConnector, which hands each call on to all that it holds."""

import unittest
from unittest import mock

import stage
from stage import PREFILL, answer, prompt
from vllm.config import KVTransferConfig

plain = stage.configuration


def wrapped(*args, **settings):
    """The same, one level down."""
    config = plain(*args, **settings)
    outer = config.kv_transfer_config
    keys = ("kv_connector", "kv_connector_module_path", "kv_role", "kv_buffer_device", "kv_load_failure_policy", "kv_connector_extra_config")
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="MultiConnector", kv_role=outer.kv_role, kv_load_failure_policy=outer.kv_load_failure_policy, engine_id=outer.engine_id,
        kv_connector_extra_config={"connectors": [{k: getattr(outer, k) for k in keys}]},
    )
    return config


class Inside(stage.Engine):
    def __init__(self, *args, **settings):
        with mock.patch.object(stage, "configuration", wrapped):
            super().__init__(*args, **settings)

    @property
    def side(self):
        return self.connector.sub_connectors[0].connector_scheduler


class Multi(unittest.TestCase):
    def test_requests_are_handed_over_and_nothing_is_left_of_them(self):
        p, d = Inside("p"), Inside("d", policy="recompute")
        self.addCleanup(p.close)
        self.addCleanup(d.close)
        for n in (33, 100, 200):
            p.add(f"p{n}", prompt(n, n), kv=dict(PREFILL))
            kv = p.run(f"p{n}").kv
            self.assertEqual(p.left()["held"], 1)
            d.add(f"d{n}", prompt(n, n), 4, kv)
            self.assertEqual(d.run(f"d{n}", p).tokens, answer(prompt(n, n), 4))
            d.rest(p)
            p.rest(d)
        worker = d.ranks[0].connector.sub_connectors[0].connector_worker
        self.assertEqual(worker._ctx.stats()["read_data_posts"], 3)


if __name__ == "__main__":
    unittest.main()
