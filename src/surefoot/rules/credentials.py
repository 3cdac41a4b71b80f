"""Which metadata keys look like credentials (case 51)."""

from __future__ import annotations

import re
from collections.abc import Collection

__all__ = ["decide_credential"]

_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SEPARATOR = re.compile(r"[^a-z0-9]+")


def decide_credential(key: str, names: Collection[str]) -> bool:
    """Decides whether a key names a credential.

    The key is split into words at separators and at changes of case; it is a credential when
    any listed name stands in it as a run of whole words (``openaiApiKey`` and ``x-api-key``
    match ``api_key``, ``tokens_used`` and ``author`` match nothing).
    """
    words = "_" + _SEPARATOR.sub("_", _BOUNDARY.sub("_", key).lower()).strip("_") + "_"
    return any(f"_{name}_" in words for name in names)
