"""Quantised weights in a folder: what is written is what is read, and what does not belong together is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoints import IDS, make_llama

import amk_core
from amk_core.cli import main
from amk_core.importer import open_model
from amk_core.quant import QuantError
from amk_core.quant.config import QuantConfig
from amk_core.quant.saved import DATA, DESCRIPTION, open_saved, save
from amk_core.quant.source import QuantWeights


def made(text: str = "int4-g32-zero,head=int8", **sizes: int) -> QuantWeights:
    imported = open_model(make_llama(tie_word_embeddings=False, **sizes))
    return QuantWeights(imported.graph, QuantConfig.parse(text), imported.weights.get)


@pytest.mark.parametrize("text", ["int4-g32-zero,head=int8", "int8,head=stored", "int4-g64-min-bf16"])
def test_what_is_saved_is_read_back_bit_for_bit(text: str, tmp_path: Path) -> None:
    w = made(text)
    save(w, tmp_path / "q")
    again = open_saved(tmp_path / "q", w.graph, lambda name: pytest.fail(f"{name} is asked of the checkpoint"))
    assert again.config == w.config
    names = [n for n in w.graph.weight_shapes() if w.format_of(n) is not None]
    assert all(again.matrix(n).same(w.matrix(n)) for n in names)


def test_a_damaged_folder_and_another_model_are_refused(tmp_path: Path) -> None:
    w = made()
    save(w, tmp_path)
    with pytest.raises(QuantError, match="which differ from"):
        open_saved(tmp_path, made(intermediate_size=46).graph, w.dense)
    about = json.loads((tmp_path / DESCRIPTION).read_text())
    about["matrices"]["L0.q"]["format"] = "int4-g32"
    (tmp_path / DESCRIPTION).write_text(json.dumps(about))
    with pytest.raises(QuantError, match=r"bytes of L0\.q"):
        open_saved(tmp_path, w.graph, w.dense)
    (tmp_path / DATA).write_bytes((tmp_path / DATA).read_bytes()[:1000])
    with pytest.raises(QuantError, match="Quantise the model again"):
        open_saved(tmp_path, w.graph, w.dense)
    (tmp_path / DESCRIPTION).write_text("{}")
    with pytest.raises(QuantError, match="cannot be read"):
        open_saved(tmp_path, w.graph, w.dense)


def test_the_command_writes_what_load_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = tmp_path / "model", tmp_path / "q"
    make_llama(tie_word_embeddings=False).save_pretrained(model)
    assert main(["quantise", str(model), "--weights", "int8", "--out", str(out)]) == 0
    assert "int8,head=int8" in capsys.readouterr().out
    want = amk_core.load(str(model), context=32, weights="int8").logits(IDS)
    assert np.array_equal(amk_core.load(str(model), context=32, weights=str(out)).logits(IDS), want)
    assert main(["quantise", str(model), "--weights", "int8", "--out", str(out)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["quantise", str(model), "--weights", "int8", "--text", str(model / "config.json"), "--out", str(out) + "2"]) == 2
    assert "no tokenizer" in capsys.readouterr().err
