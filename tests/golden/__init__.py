"""Golden records: what users see of known answers, kept as JSON files in ``records/``.

Each scenario asks one or more questions and records messages, rounds, streams, posted LangSmith
runs, requests and cache keys. ``test_golden.py`` compares them with the files and prints what
changed as a diff. If a change is intended, ``python -m tests.golden NAME`` records scenarios whose
names begin with NAME again; without a name it records all of them. Check the diff before you
commit it. Times, ids and ports are replaced by fixed words.
"""
