"""The scripts here are programs: house/test_tasks.py runs each in a process of its own."""

collect_ignore_glob = ["*.py"]
