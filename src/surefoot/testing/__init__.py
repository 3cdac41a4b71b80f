"""For tests: of graphs that must survive a crash, and of drivers, also those of other authors."""

from __future__ import annotations

from surefoot.testing.equivalence import Equivalence, NotEquivalent, assert_resume_equivalent
from surefoot.testing.highwater_suite import (
    CheckResult,
    ConformanceFailure,
    ConformanceReport,
    HighWaterConformance,
    run_highwater_conformance,
)
from surefoot.testing.receivers import CountingReceiver, CountsEffects

__all__ = [
    "CheckResult",
    "ConformanceFailure",
    "ConformanceReport",
    "CountingReceiver",
    "CountsEffects",
    "Equivalence",
    "HighWaterConformance",
    "NotEquivalent",
    "assert_resume_equivalent",
    "run_highwater_conformance",
]
