"""QuantConfig: which weights of a model are quantised, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from amk_core.quant.format import QuantError, QuantFormat

Embed = Literal["stored", "head"]

STORED = "stored"  # the text that stands for "as the checkpoint holds it"


@dataclass(frozen=True, slots=True)
class QuantConfig:
    """The choice for one model.

    Attributes:
        layers: format of all matrices of the layers (q, k, v, o, gate, up, down).
        head: format of the LM head; None: the dtype of the mode, as without quantisation.
        embed: values of the embedding rows, which are looked up and never multiplied, so that they cost no time. ``stored``:
            those of the checkpoint. ``head``: where the head is tied, what the quantised head stands for, so that both stay one.

    Norms are never quantised.
    """

    layers: QuantFormat
    head: QuantFormat | None = None
    embed: Embed = "stored"

    def __post_init__(self) -> None:
        if self.embed not in ("stored", "head"):
            raise QuantError(f"embed is {self.embed!r}; required is stored or head")
        if self.embed == "head" and self.head is None:
            raise QuantError("embed=head needs a quantised head; give head=FORMAT, or leave embed out")

    def __str__(self) -> str:
        head = STORED if self.head is None else str(self.head)
        return f"{self.layers},head={head}" + ("" if self.embed == "stored" else f",embed={self.embed}")

    @staticmethod
    def parse(text: str) -> QuantConfig:
        """``FORMAT[,head=FORMAT|stored][,embed=stored|head]``; without ``head`` it is int8 with one scale a row.

        Raises:
            QuantError: an unknown format or option.
        """
        first, *rest = text.split(",")
        layers = QuantFormat.parse(first)
        options: dict[str, str] = {}
        for part in rest:
            key, sep, value = part.partition("=")
            if not sep or key not in ("head", "embed") or key in options:
                raise QuantError(
                    f"{part!r} in {text!r}; required is head=FORMAT, head=stored, embed=stored or embed=head, each once"
                )
            options[key] = value
        head_text = options.get("head", QuantFormat(8, 0, "sym", layers.scale).name)
        head = None if head_text == STORED else QuantFormat.parse(head_text)
        embed = options.get("embed", "stored")
        if embed not in ("stored", "head"):
            raise QuantError(f"embed is {embed!r}; required is stored or head")
        return QuantConfig(layers, head, "head" if embed == "head" else "stored")
