"""The order of steps: acquire, load, save, publish, effects, maintenance.

Each flow reads like docs/rules.md; judgements are taken in ``surefoot.rules`` and I/O goes
through ``surefoot.ports``.
"""
