"""A rival that computes next = (3 token + position) mod V, and misbehaves on request: ``fake_worker.py JSON``."""

import json
import os
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from amk_bench.rivals.wire import serve

V = 97


class Worker:
    def __init__(self, how: dict) -> None:
        self.how, self.calls, self.prefix = how, 0, []
        print("a banner that libraries print", flush=True)
        if "helper" in how:
            import subprocess

            helper = subprocess.Popen(["sleep", "1000"])
            Path(how["helper"]).write_text(str(helper.pid))
        if how.get("start") == "dies":
            print("out of memory on the card", file=sys.stderr, flush=True)
            os._exit(9)
        if how.get("start") == "raises":
            raise RuntimeError("no such model")
        if how.get("start") == "hangs":
            time.sleep(1000)

    def describe(self) -> dict:
        return {"fake": "1.0", "clock": "fake clock"}

    def prepare(self, prefix: list, batch: int, room: int) -> None:
        self.prefix = prefix

    def decode(self, first: list, tokens: int) -> dict:
        self.calls += 1
        if self.calls == self.how.get("at", -1):
            what = self.how["call"]
            if what == "dies":
                os._exit(3)
            if what == "hangs":
                time.sleep(1000)
            if what == "raises":
                raise ValueError("sequence too long")
            if what == "babbles":
                os.write(int(os.environ.get("OUT", "1")), b"x")
        print("step", flush=True)
        chains = []
        for token in first:
            chain = []
            for i in range(tokens):
                token = (3 * token + len(self.prefix) + i) % V
                chain.append(token)
            chains.append(chain)
        if self.how.get("wrong"):
            chains[0][-1] = (chains[0][-1] + 1) % V
        us = self.how.get("us", 100.0)
        return {"chains": chains, "device_s": us * 1e-6 * tokens, "host_s": us * 1e-6 * tokens}

    def busy(self, first: list, tokens: int) -> float:
        return 40e-6

    def trace(self, forced: list, path: str) -> None:
        import numpy as np

        np.save(path, np.ones((len(forced), len(forced[0]), V), np.float32))

    def logits(self, ids: list, keep: int) -> list:
        return [[0.0] * V] * (keep or len(ids))


if __name__ == "__main__":
    how = json.loads(sys.argv[1])
    if how.get("start") == "garbage":
        print("not json")
        sys.exit(0)
    sys.exit(serve(lambda: Worker(how)))
