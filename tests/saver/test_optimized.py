"""Under ``python -O`` asserts are gone; nothing that protects may hang on one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import sqlite3, sys
from langgraph.graph import StateGraph, START
from surefoot import Keyring, SurefootSaver
from surefoot.errors import RollbackDetected, SurefootError, TamperDetected

if __debug__:
    raise SystemExit("asserts are on")
folder = sys.argv[1]
config = {"configurable": {"thread_id": "t"}}
keys = Keyring.generate()

def saver():
    return SurefootSaver(
        f"sqlite:///{folder}/a.db", highwater=f"sqlite:///{folder}/b.db", keys=keys
    )

def graph(opened):
    built = StateGraph(dict)
    built.add_node("node", lambda state: {"done": "x" * 2000})
    built.add_edge(START, "node")
    return built.compile(checkpointer=opened)

with saver() as opened:
    opened.setup()
    graph(opened).invoke({"n": 1}, config)
database = sqlite3.connect(f"{folder}/a.db", isolation_level=None)
refused = 0
for table, column in (
    ("surefoot_frame", "head"),
    ("surefoot_frame", "body"),
    ("surefoot_value", "body"),
):
    for rowid, raw in database.execute(f"SELECT rowid, {column} FROM {table}").fetchall():
        changed = bytearray(raw)
        changed[len(changed) // 2] ^= 1
        write = f"UPDATE {table} SET {column} = ? WHERE rowid = ?"
        database.execute(write, (bytes(changed), rowid))
        with saver() as opened:
            try:
                list(opened.list(config))
            except (TamperDetected, RollbackDetected):
                refused += 1
            else:
                raise SystemExit(f"{table}.{column} of row {rowid} was served")
        database.execute(write, (raw, rowid))
newest = database.execute("SELECT max(last_seq) FROM surefoot_frame").fetchone()
database.execute("DELETE FROM surefoot_frame WHERE last_seq = ?", newest)
with saver() as opened:
    try:
        graph(opened).invoke(None, config)
    except RollbackDetected:
        print("refused", refused)
"""


def test_case_46_protections_do_not_hang_on_asserts(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-O", "-c", PROGRAM, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    word, _, count = done.stdout.strip().partition(" ")
    assert word == "refused"
    assert int(count) >= 5
