"""Loads the AMK plugin for every run from this tree, installed or not."""

pytest_plugins = ["amk_bench.plugin"]
