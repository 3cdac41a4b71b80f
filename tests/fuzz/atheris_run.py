"""Runs the targets under atheris (libFuzzer), which mutates towards code not reached yet.

    make fuzz ARGS="-max_total_time=600"

The first byte of an input picks the target. Corpora are kept in ``.fuzz/corpus`` and grow from run
to run; an input that leads to a finding is written to ``.fuzz``, and
``make fuzz ARGS=.fuzz/crash-…`` runs it again.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".fuzz"
DEFAULTS = {"-max_total_time": "120", "-rss_limit_mb": "1024", "-timeout": "20", "-max_len": "4096"}
_MISSING = (
    "make fuzz: atheris cannot be imported (there are wheels for some Pythons on Linux only; "
    "pip install atheris says more). `make test ARGS=tests/fuzz` runs the same targets with "
    "hypothesis."
)


def _arguments(given: list[str]) -> list[str]:
    """libFuzzer's arguments: ours where the caller did not say otherwise, and where to keep."""
    named = {word.partition("=")[0] for word in given if word.startswith("-")}
    flags = [f"{name}={value}" for name, value in DEFAULTS.items() if name not in named]
    if "-runs" in named and "-max_total_time" not in named:
        flags.remove(f"-max_total_time={DEFAULTS['-max_total_time']}")
    corpus = [] if any(not word.startswith("-") for word in given) else [str(FOLDER / "corpus")]
    return [sys.argv[0], f"-artifact_prefix={FOLDER}/", *flags, *given, *corpus]


def _plant(names: list[str], seeds: dict[str, list[bytes]]) -> None:
    """Writes the seeds into the corpus."""
    corpus = FOLDER / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for index, name in enumerate(names):
        for seed in seeds[name]:
            data = bytes((index,)) + seed
            (corpus / hashlib.sha256(data).hexdigest()[:40]).write_bytes(data)


def main() -> int:
    """Plants the seeds and hands over to libFuzzer, which ends the process itself."""
    try:
        atheris = importlib.import_module("atheris")
    except ImportError:
        print(_MISSING, file=sys.stderr)
        return 2
    sys.path.insert(0, str(ROOT))
    with atheris.instrument_imports(include=["surefoot"]):
        targets = importlib.import_module("tests.fuzz.targets")
    names = sorted(targets.TARGETS)
    _plant(names, targets.seeds())
    runs: Counter[str] = Counter()
    accepted: Counter[str] = Counter()

    def report() -> None:
        print("\ntarget             executions   accepted")
        for name in names:
            print(f"{name:16} {runs[name]:12} {accepted[name]:10}")
        print(f"{'all':16} {sum(runs.values()):12} {sum(accepted.values()):10}", flush=True)

    def one(data: bytes) -> None:
        if not data:
            return
        name = names[data[0] % len(names)]
        runs[name] += 1
        accepted[name] += bool(targets.TARGETS[name](data[1:]))

    atexit.register(report)
    atheris.Setup(_arguments(sys.argv[1:]), one)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
