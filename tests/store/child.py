"""A process beside the test: ``child.py PLACE COMMAND``; prints ready, waits for a line."""

import json
import os
import sys

from surefoot.ports import Append, ContentStore, FrameRow, HeadRow
from surefoot.store.postgres import PostgresContentStore
from surefoot.store.sqlite import SqliteContentStore


def opened(place: str) -> ContentStore:
    dialect, target, schema = json.loads(place)
    if dialect == "sqlite":
        return SqliteContentStore(target)
    return PostgresContentStore(target, schema=schema)


def append_all(store: ContentStore, thread: str, count: int) -> int:
    """Appends to a thread of its own; gives how many were stored."""
    expected, stored = None, 0
    for seq in range(1, count + 1):
        head = HeadRow(seq, 1, seq.to_bytes(32, "big"))
        frame = FrameRow(seq, 1, b"h", b"b" * 200)
        stored += store.append(Append("tenant", thread, 1, expected, head, frame)) is not None
        expected = head
    return stored


def in_fork(store: ContentStore) -> str:
    """Uses an opened store in a forked child, then again here."""
    append_all(store, "before", 2)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if append_all(store, "forked", 3) == 3 else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return f"{os.waitstatus_to_exitcode(status)} {append_all(store, 'after', 2)}"


def main() -> None:
    place, command, *rest = sys.argv[1:]
    store = opened(place)
    print("ready", flush=True)
    sys.stdin.readline()
    if command == "setup":
        store.setup()
        print("done")
    elif command == "append":
        print(append_all(store, rest[0], int(rest[1])))
    elif command == "fork":
        print(in_fork(store))
    store.close()


main()
