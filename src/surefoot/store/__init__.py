"""Content store drivers (A): `surefoot.store.sqlite` and `surefoot.store.postgres`.

SQL lives in ``sql/<dialect>/``: named statements in ``queries.sql``, numbered steps in
``migrations/``, and ``schema.sql`` that shows what the steps add up to.
"""
