"""What the importer raises.  Every message is one paragraph: what was seen, what is required, what to do next."""

from __future__ import annotations


class ImporterError(ValueError):
    """Base of everything that stops a model from being imported."""


class ModelRefused(ImporterError):
    """The model has a trait that this version does not compute.  ``trait`` is its name, as in config.json where it stands there."""

    def __init__(self, trait: str, seen: object, required: str, hint: str = "") -> None:
        self.trait, self.seen, self.required, self.hint = trait, seen, required, hint
        text = f"model refused: {trait} is {_short(seen)}; required is {required}."
        super().__init__(f"{text} {hint}" if hint else text)


class CheckpointError(ImporterError):
    """The files are not a complete, consistent checkpoint: missing, truncated, of the wrong shape, or with keys left over."""


class FetchError(ImporterError):
    """A model could not be brought into the cache: no network, a full disk, a wrong hash, an unknown name."""


def _short(seen: object, limit: int = 120) -> str:
    text = repr(seen)
    return text if len(text) <= limit else text[: limit - 3] + "..."
