"""Runs the targets under atheris (libFuzzer), which mutates towards code not reached yet.

    make fuzz ARGS="-max_total_time=600"

The first byte of an input picks the target. Corpora are kept in ``.fuzz/corpus`` and grow from run
to run; an input that leads to a finding is written to ``.fuzz``, and
``make fuzz ARGS=.fuzz/crash-…`` runs it again.
"""

from __future__ import annotations

import hashlib
import importlib
import mmap
import os
import sys
from pathlib import Path
from typing import Any

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


def _fuzz(atheris: Any, names: list[str], counts: memoryview) -> None:
    """Fuzzes until libFuzzer ends this process."""
    targets = importlib.import_module("tests.fuzz.targets").TARGETS

    def one(data: bytes) -> None:
        if not data:
            return
        index = data[0] % len(names)
        counts[2 * index] += 1
        counts[2 * index + 1] += targets[names[index]](data[1:])

    atheris.Setup(_arguments(sys.argv[1:]), one)
    atheris.Fuzz()


def _waited(child: int) -> int:
    """Exit code of the child; an interrupt from the keyboard reaches it as well."""
    while True:
        try:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        except KeyboardInterrupt:
            continue


def main() -> int:
    """Plants the seeds, fuzzes in a child process, and reports what it did."""
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
    # libFuzzer ends its process without running anything of ours, so the counts are shared.
    counts = memoryview(mmap.mmap(-1, 16 * len(names))).cast("Q")
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _fuzz(atheris, names, counts)
        os._exit(0)
    code = _waited(child)
    print("\ntarget             executions   accepted")
    for index, name in enumerate(names):
        print(f"{name:16} {counts[2 * index]:12} {counts[2 * index + 1]:10}")
    print(f"{'all':16} {sum(counts[::2].tolist()):12} {sum(counts[1::2].tolist()):10}")
    print(
        "no finding" if code == 0 else f"a finding, or an interrupt (exit code {code}): see above"
    )
    return code


if __name__ == "__main__":
    sys.exit(main())
