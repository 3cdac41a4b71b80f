"""Which metadata keys look like credentials (case 51)."""

from __future__ import annotations

import re
from collections.abc import Collection

__all__ = ["decide_credential"]

#: Where a new word begins: at a change of case (``apiKey``, ``DBPassword``) and at digits.
_BOUNDARY = re.compile(
    r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[a-z])"
)
_SEPARATOR = re.compile(r"[^a-z0-9]+")
#: Plurals that count things instead of being several credentials.
_COUNTS = frozenset({"tokens", "signatures", "cookies"})


def decide_credential(key: str, names: Collection[str]) -> bool:
    """Decides whether a key names a credential.

    The key is split into words at separators and at changes of case; it is a credential when
    any listed name stands in it as a run of whole words (``openaiApiKey`` and ``x-api-key``
    match ``api_key``, ``tokens_used`` and ``author`` match nothing). A plural counts as its
    singular, except where it usually counts things.
    """
    words = _SEPARATOR.sub("_", _BOUNDARY.sub("_", key).lower()).strip("_")
    singular = "_".join(_singular(word) for word in words.split("_"))
    return any(f"_{name}_" in f"_{form}_" for name in names for form in (words, singular))


def _singular(word: str) -> str:
    if word in _COUNTS or not word.endswith("s") or word.endswith("ss"):
        return word
    return word[:-1]
