"""A file that is edited (class L): after a crash the file itself says whether it was.

    python examples/file_edit.py --die-before   # killed before the new file is in place
    python examples/file_edit.py --die          # killed right after it
    python examples/file_edit.py                # goes on, in either case

The edit is written to a temporary file, forced to the disk and renamed, so that the file is always
the old or the new one. The lookup compares its digest: new means done, old means not done, and
anything else is somebody else's edit, for a person to look at. The files are in `file-example`.
"""

from __future__ import annotations

import hashlib
import operator
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

from surefoot import (
    Absent,
    Committed,
    Conflicting,
    EffectCall,
    Keyring,
    NotSent,
    SurefootSaver,
    effect,
)

FOLDER = Path("file-example")


class State(TypedDict):
    """The edit, and what was done."""

    path: str
    before: str
    text: str
    log: Annotated[list[str], operator.add]


def die_if(switch: str) -> None:
    """The kill switch."""
    if switch in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)


def digest(data: bytes) -> str:
    """What tells one content from another."""
    return hashlib.sha256(data).hexdigest()


def look(call: EffectCall) -> Committed | Absent | Conflicting:
    """Asks the file."""
    found = digest(Path(call.arguments["path"]).read_bytes())
    if found == digest(call.arguments["text"].encode()):
        return Committed({"digest": found}, result=found)
    if found == call.arguments["before"]:
        return Absent()
    return Conflicting({"digest": found}, "somebody else has edited the file")


# A read of the file never lags, and an earlier worker that lost its thread in the middle would have
# renamed within a second: then "absent" counts.
@effect(reconcile=look, lookup="strong", settling=1)
def edit(path: str, before: str, text: str) -> str:
    """Replaces a file that still has the content that was read."""
    file = Path(path)
    if digest(file.read_bytes()) != before:
        raise NotSent("the file has changed since it was read")
    fresh = file.with_suffix(".new")
    with fresh.open("wb") as out:
        out.write(text.encode())
        out.flush()
        os.fsync(out.fileno())
    die_if("--die-before")
    fresh.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    die_if("--die")
    return digest(text.encode())


def change(state: State) -> dict[str, Any]:
    """The node; it may run again, its edit does not."""
    made = edit(state["path"], state["before"], state["text"])
    return {"log": [f"{state['path']} is now {made[:12]}"]}


def main() -> None:
    """Runs the agent, or goes on where an earlier process stopped."""
    FOLDER.mkdir(exist_ok=True)
    keys, settings = FOLDER / "keys.json", FOLDER / "settings.txt"
    if not keys.exists():
        Keyring.generate().to_file(keys)
        settings.write_text("limit = 10\n", encoding="utf-8")
    builder = StateGraph(State)
    builder.add_node("change", change)
    builder.add_edge(START, "change")
    builder.add_edge("change", END)
    config: Any = {"configurable": {"thread_id": "raise-the-limit"}}
    with SurefootSaver.from_conn_string(
        f"sqlite:///{FOLDER / 'agent.db'}",
        highwater=f"sqlite:///{FOLDER / 'highwater.db'}",
        keys=Keyring.from_file(keys),
    ) as saver:
        saver.setup()
        graph = builder.compile(checkpointer=saver)
        state = graph.get_state(config)
        if not state.values and not state.tasks:
            task = {"path": str(settings), "text": "limit = 20\n", "log": []}
            graph.invoke({**task, "before": digest(settings.read_bytes())}, config)
        elif state.tasks:
            graph.invoke(None, config)
        print(*graph.get_state(config).values["log"], sep="\n")
    print(f"the file says: {settings.read_text(encoding='utf-8').strip()}")


if __name__ == "__main__":
    main()
