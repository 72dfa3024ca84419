"""A job without a measurement: ``job.py OUT [WORD ...]`` does what each word says, in turn.

``start:FILE`` writes its pid, ``until:FILE`` waits for a file, ``result`` writes a result, ``half`` half of one, ``exit:N`` ends,
``other-card`` and ``cpu-result`` say so in the result, ``child:FILE`` leaves a process behind and writes its pid, ``print`` prints.
"""

import hashlib
import json
import os
import subprocess
import sys
import time


def document(arch: str, card: str) -> dict:
    device_id = "uuid-" + hashlib.sha256(b"amk:" + card.encode()).hexdigest()[:12] if card else ""
    stamp = {"arch": arch, "device": "a card", "device_id": device_id, "commit": "abc", "pid": os.getpid()}
    empty = {"parity": [], "latency": [], "skipped": [], "notes": []}
    return {"schema": 2, "created": "2026-01-01T00:00:00+00:00", "fingerprint": stamp, "options": {}, **empty}


def write(path: str, text: str) -> None:
    with open(path + ".new", "w") as file:
        file.write(text)
    os.replace(path + ".new", path)


out, arch, words = sys.argv[1], sys.argv[2], sys.argv[3:]
card = os.environ.get("CUDA_VISIBLE_DEVICES", "")
for word in words:
    what, _, value = word.partition(":")
    if what == "start":
        write(value, str(os.getpid()))
    elif what == "until":
        while not os.path.exists(value):
            time.sleep(0.02)
    elif what == "result":
        write(out, json.dumps(document(arch, card)))
    elif what == "other-card":
        write(out, json.dumps(document(arch, "GPU-another")))
    elif what == "cpu-result":
        write(out, json.dumps(document("cpu", "")))
    elif what == "half":
        write(out, json.dumps(document(arch, card))[:80])
    elif what == "child":
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        write(value, str(child.pid))
    elif what == "print":
        print("card", card, flush=True)
    elif what == "exit":
        sys.exit(int(value))
