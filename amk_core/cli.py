"""The ``amk`` command: finds its subcommands, parses, runs one, and turns known errors into one clear paragraph.

Subcommands are modules named in the entry-point group ``amk.commands``; another distribution adds its own the same way.  A
source tree reads the group from its own ``pyproject.toml``, so that it needs no installation.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import sys
import textwrap
import traceback
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from amk_core import resources

GROUP = "amk.commands"
OK, NEGATIVE, BAD_INPUT, DEFECT, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 70, 130, 141
EPILOG = """\
exit codes:
  0    done, and the answer is yes
  1    done, and the answer is no (a schedule is rejected, a check fails)
  2    bad input or environment: one paragraph on stderr says what was seen, what is required, what to do
  70   a defect of amk itself: the traceback is shown, please report it
  130  stopped by Ctrl-C
  141  the reader of the output went away (a pipe into head, for example)
"""


class Command(Protocol):
    """What a module of the entry-point group ``amk.commands`` provides."""

    NAME: str
    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


def version() -> str:
    """The version of this source tree or installation."""
    root = resources.source_root()
    if root:
        return str(_pyproject()["project"]["version"])  # type: ignore[index]
    return importlib.metadata.version("amk")


def _pyproject() -> Mapping[str, object]:
    import tomllib

    root = resources.source_root()
    return tomllib.loads((root / "pyproject.toml").read_text("utf-8")) if root else {}


def command_modules() -> dict[str, str]:
    """Module name of every subcommand: other distributions' entry points, then this one's, which win."""
    found = {e.name: e.value for e in importlib.metadata.entry_points(group=GROUP)}
    if resources.source_root():
        found.update(_pyproject()["project"]["entry-points"][GROUP])  # type: ignore[index]
    return dict(sorted(found.items()))


def _parser(names: Mapping[str, str]) -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error")
    parser = argparse.ArgumentParser(
        prog="amk",
        description="Compile a Llama-family model into one validated schedule, run it, and ask what this machine can do.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common],
    )
    parser.add_argument("--version", action="version", version=f"amk {version()}")
    sub = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in names.items():
        try:
            command = cast(Command, importlib.import_module(module))
            p = sub.add_parser(
                command.NAME,
                help=command.HELP,
                description=command.HELP,
                parents=[common],
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
            command.add_arguments(p)
            p.set_defaults(run=command.run)
        except Exception as e:  # a broken plug-in must not take the other commands down
            reason = f"(does not load: {type(e).__name__}: {e})".replace("%", "%%")
            # no option prefix: whatever follows the name is taken, so that the answer is the reason and not a usage line
            p = sub.add_parser(name, help=reason, prefix_chars="\0", add_help=False)
            p.add_argument("rest", nargs="*")
            p.set_defaults(run=_broken(name, module, e))
    return parser


class CommandUnavailable(Exception):
    """A subcommand's module cannot be imported."""


def _broken(name: str, module: str, cause: Exception) -> object:
    def run(args: argparse.Namespace) -> int:
        raise CommandUnavailable(
            f"the command {name!r} does not load: importing {module} gives {type(cause).__name__}: {cause}. "
            "Reinstall the distribution that provides it, or remove it."
        ) from cause

    return run


def build_parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser for these arguments: only the named subcommand is loaded, all of them where none is named."""
    modules = command_modules()
    named = next((a for a in argv if not a.startswith("-")), None)
    return _parser({named: modules[named]} if named in modules else modules)


_OURS = ("amk_core", "amk_bench")
_NATIVE = "amk_core._native"


def is_known(e: BaseException) -> bool:
    """True for errors that speak to the user: this project's own, and those of his input and his machine."""
    if isinstance(e, ImportError):  # other people's packages may be absent, ours may not, but for what has to be compiled
        return e.name == _NATIVE or (e.name or "").split(".")[0] not in _OURS
    return type(e).__module__.split(".")[0] in _OURS or isinstance(e, ValueError | OSError | MemoryError)


def explain(e: BaseException) -> str:
    """One paragraph for a known error, wrapped for a terminal."""
    text = str(e) or type(e).__name__
    if isinstance(e, FileNotFoundError) and e.filename and type(e).__module__ == "builtins":
        text = f"{os.fsdecode(e.filename)}: no such file or directory. Check the path."
    elif isinstance(e, OSError) and e.filename and e.strerror:
        text = f"{os.fsdecode(e.filename)}: {e.strerror}."
    elif isinstance(e, MemoryError):
        text = f"out of memory. {text if str(e) else 'Close other programs, or use a smaller --context or model.'}"
    elif isinstance(e, ImportError) and e.name == _NATIVE:
        text = f"the native module is not there or does not load ({text}). Build it with: {resources.native_build()}"
    elif isinstance(e, ImportError):
        text = f"{text}. Install what is missing (pip install amk[...]), or see what this machine has with: amk doctor"
    return "\n".join(
        textwrap.fill(line, 110, break_long_words=False, break_on_hyphens=False) if len(line) > 110 else line
        for line in f"amk: {text}".splitlines()
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``amk`` with these arguments (default: the process's) and return the exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    args = build_parser(argv).parse_args(argv)
    debug = getattr(args, "debug", False)
    try:
        code = int(args.run(args))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # What is still buffered has no reader; without this the interpreter would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        if debug:
            traceback.print_exc()
        print("\namk: stopped.", file=sys.stderr)
        return INTERRUPTED
    except Exception as e:
        if debug or not is_known(e):
            traceback.print_exc()
        if not is_known(e):
            print(f"amk: a defect of amk: {type(e).__name__}: {e}. Please report it with the lines above.", file=sys.stderr)
            return DEFECT
        print(explain(e), file=sys.stderr)
        return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
