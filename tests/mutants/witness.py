"""A pytest plugin that tells another process what was imported, and which tests failed how.

Loaded with ``-p tests.mutants.witness``; it writes to the file that ``MUTANT_TESTIMONY`` names.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

__all__ = ["TESTIMONY"]

TESTIMONY = "MUTANT_TESTIMONY"
_outcomes: dict[str, str] = {}
_reasons: dict[str, str] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Notes the worst outcome of each test, and the error of the first failure."""
    report = yield
    if report.failed:
        _outcomes[item.nodeid] = "failed"
        if call.excinfo is not None:
            first = str(call.excinfo.value).strip().split("\n")[0][:200]
            _reasons.setdefault(item.nodeid, f"{call.excinfo.typename}: {first}")
    elif report.skipped:
        _outcomes.setdefault(item.nodeid, "skipped")
    elif report.when == "call":
        _outcomes.setdefault(item.nodeid, "passed")
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes down what was seen: the modules as this process has imported them."""
    modules = {
        name: module.__file__
        for name, module in list(sys.modules.items())
        if name.split(".")[0] == "surefoot" and getattr(module, "__file__", None)
    }
    digests = {
        name: hashlib.sha256(Path(file).read_bytes()).hexdigest() for name, file in modules.items()
    }
    seen = {"files": modules, "digests": digests, "outcomes": _outcomes, "reasons": _reasons}
    Path(os.environ[TESTIMONY]).write_text(json.dumps(seen), encoding="utf-8")
