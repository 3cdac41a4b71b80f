"""The rule book: every judgement, each a pure function over plain facts.

No I/O, no clock and no randomness may be reached from here. ``grep -rn "def decide_" src``
prints the rules; ``docs/rules.md`` explains them.
"""
