"""For tests: suites that every driver must pass, also those of other authors."""

from __future__ import annotations

from surefoot.testing.highwater_suite import (
    CheckResult,
    ConformanceFailure,
    ConformanceReport,
    HighWaterConformance,
    run_highwater_conformance,
)

__all__ = [
    "CheckResult",
    "ConformanceFailure",
    "ConformanceReport",
    "HighWaterConformance",
    "run_highwater_conformance",
]
