"""Which metadata keys look like credentials (case 51)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.config import DEFAULT_CREDENTIAL_NAMES
from surefoot.rules.credentials import decide_credential


@pytest.mark.parametrize("name", DEFAULT_CREDENTIAL_NAMES)
def test_every_listed_name_in_every_spelling(name: str) -> None:
    words = name.split("_")
    spellings = {
        name,
        name.upper(),
        name.replace("_", "-"),
        name.replace("_", "."),
        name.replace("_", " "),
        name.replace("_", ":"),
        "".join(w.title() for w in words),
        words[0] + "".join(w.title() for w in words[1:]),
        f"my_{name}",
        f"{name}_2",
        f"my-{name}-2",
        f"x_{name.upper()}",
        f"openai{''.join(w.title() for w in words)}",
        f"_{name}_",
    }
    missed = {s for s in spellings if not decide_credential(s, DEFAULT_CREDENTIAL_NAMES)}
    assert missed == set()


@pytest.mark.parametrize(
    "key",
    [
        "openaiApiKey",
        "x-api-key",
        "OPENAI_API_KEY",
        "APIKey",
        "DBPassword",
        "AWSSecretKey",
        "HTTPAuthToken",
        "OAuthToken",
        "X-Auth-Token",
        "user.password.old",
        "ssh_private_key",
        "db passwd",
    ],
)
def test_credentials(key: str) -> None:
    assert decide_credential(key, DEFAULT_CREDENTIAL_NAMES)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "_",
        "thread_id",
        "checkpoint_ns",
        "tokens_used",
        "max_tokens",
        "author",
        "authority",
        "authentic",
        "tokenizer",
        "secretary",
        "bypass",
        "compass",
        "passenger",
        "cookiecutter",
        "user_id",
        "langgraph_step",
        "key",
        "api",
        "monkey",
        "пароль",
    ],
)
def test_what_only_sounds_like_one(key: str) -> None:
    assert not decide_credential(key, DEFAULT_CREDENTIAL_NAMES)


def test_the_list_is_the_callers() -> None:
    assert decide_credential("tenant_pin", ["pin"])
    assert not decide_credential("password", ["pin"])
    assert not decide_credential("password", [])


@given(st.text(max_size=20))
def test_any_key_gets_an_answer(key: str) -> None:
    assert decide_credential(key, DEFAULT_CREDENTIAL_NAMES) in (True, False)
    assert decide_credential(f"{key}_password", DEFAULT_CREDENTIAL_NAMES)
