"""The scripts here are programs: training/test_projects.py runs them."""

collect_ignore_glob = ["*.py"]
