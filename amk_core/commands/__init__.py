"""Subcommands of ``amk``, one module each: ``NAME``, ``HELP``, ``add_arguments(parser)``, ``run(args) -> int``.

Modules import only the standard library at their top, and the rest inside ``run``: ``amk --help`` loads them all.
"""
