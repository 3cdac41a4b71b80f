"""`--encrypted` plays the same tests with savers that encrypt unless they say otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from surefoot import SurefootSaver


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option; it reaches the savers of this process, not those of child processes."""
    parser.addoption(
        "--encrypted",
        action="store_true",
        help="open every saver of this process with encryption=True unless it says otherwise",
    )


@pytest.fixture(scope="session", autouse=True)
def encrypted_by_default(request: pytest.FixtureRequest) -> Iterator[None]:
    """Changes the default of the saver's argument for the whole run."""
    given = SurefootSaver.__init__.__kwdefaults__
    before = given["encryption"]
    given["encryption"] = bool(request.config.getoption("--encrypted"))
    yield
    given["encryption"] = before
