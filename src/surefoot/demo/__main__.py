"""``python -m surefoot.demo``: a payment agent is SIGKILLed in the middle, resumed, and checked."""

from __future__ import annotations

import argparse
import sys

from surefoot.demo.drive import RECEIVERS, compare
from surefoot.demo.show import console_for, json_of, judge_all, render_all

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Runs the demo.

    Returns:
        0 when everything was as claimed, 1 when it was not, 2 when nothing was shown.
    """
    parser = argparse.ArgumentParser(
        prog="surefoot demo",
        description=(
            "Runs a payment agent against a real HTTP service, kills it with SIGKILL after the "
            "charge has landed and before anything recorded it, resumes it in a new process, "
            "and counts the charges: LangGraph's SqliteSaver beside SurefootSaver."
        ),
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(argv)
    console = console_for(None)
    if options.json:
        runs = dict(zip(RECEIVERS, compare(lambda _: None), strict=True))
        print(json_of(runs))
        return judge_all(runs).exit_code
    with console.status("starting …") as status:
        done = compare(lambda what: status.update(f"{what} …"))
    return render_all(dict(zip(RECEIVERS, done, strict=True)), console).exit_code


if __name__ == "__main__":
    sys.exit(main())
