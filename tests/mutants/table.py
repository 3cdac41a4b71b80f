"""All mutants, by the group of rules that they break."""

from __future__ import annotations

from tests.mutants.effects import EFFECTS
from tests.mutants.resume import RESUME
from tests.mutants.steps import STEPS

__all__ = ["MUTANTS"]

MUTANTS = (*STEPS, *RESUME, *EFFECTS)
