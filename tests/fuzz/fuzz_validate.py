"""Coverage-guided fuzzing of schedule text, packed tables and certificates: ``python tests/fuzz/fuzz_validate.py -runs=100000``.

Needs atheris (extra ``fuzz``) and the native extension.  All options of libFuzzer are understood (``-max_total_time=600``,
``-max_len=20000``, a corpus directory); without a directory the corpus is made anew, from every class of the attack suite.  What an
input must do is said in ``amk_bench/adversary/garbage.py``; the first byte of an input chooses the door.  An input that breaks a
promise is written to ``crash-...``, one that takes too long to ``timeout-...``; either is run again by naming the file.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))  # the source tree; an installed amk works as well

with atheris.instrument_imports(include=["amk_core.schedule"]):
    from amk_bench.adversary import garbage

OPTIONS = ("-timeout=120", "-rss_limit_mb=4096", "-max_len=30000")


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """libFuzzer's own changes half of the time; else one that keeps the door, mostly the form too."""
    rng = random.Random(seed)
    if len(data) < 20 or rng.random() < 0.5:
        return atheris.Mutate(data, max_size)
    skip = 1 if data[0] % len(garbage.DOORS) == 0 else 2
    head, body = data[:skip], data[skip:]
    if skip == 1 and rng.random() < 0.8:
        return (head + garbage.change_json(rng, body))[:max_size]
    binary = body[:4] in (b"AMKT", b"AMKC") and len(body) > 16 + 48 * int.from_bytes(body[8:12], "little")
    change = garbage.flip_body if binary and rng.random() < 0.8 else garbage.flip
    return (head + change(rng, body))[:max_size]


def main() -> None:
    given = [a for a in sys.argv[1:] if a.startswith("-")]
    paths = [a for a in sys.argv[1:] if not a.startswith("-")]
    options = [o for o in OPTIONS if not any(g.startswith(o.partition("=")[0] + "=") for g in given)]
    with tempfile.TemporaryDirectory() as corpus:
        if not paths:
            for name, data in garbage.seeds():
                (Path(corpus) / name).write_bytes(data)
            paths = [corpus]
        atheris.Setup([sys.argv[0], *options, *given, *paths], garbage.check, custom_mutator=mutate)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
