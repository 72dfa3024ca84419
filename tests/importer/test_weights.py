"""Checkpoints: the imported weights give HuggingFace's logits in an independent forward pass, and damaged ones are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy_llama
import pytest
from checkpoints import IDS, edit_json, hf_logits, make_llama

from amk_core.importer import CheckpointError, ModelRefused, open_model
from amk_core.importer.rope import rope_tables

pytest.importorskip("transformers")

# float32 rotary tables on both sides and float64 elsewhere: only the order of sums differs
TOLERANCE = 1e-12


def our_logits(model: Any, ids: list[int] = IDS) -> np.ndarray:
    imported = open_model(model)
    return numpy_llama.logits(imported.graph, imported.weights.get, ids, rope_tables(imported.graph.rope, len(ids)))


def assert_same_logits(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert np.abs(ours - theirs).max() <= TOLERANCE * np.abs(theirs).max()


FAMILIES: dict[str, dict[str, Any]] = {
    "odd sizes": {},
    "tied": {"tie_word_embeddings": True},
    "group 1": {"num_key_value_heads": 6},
    "16 heads on 2": {"num_attention_heads": 16, "num_key_value_heads": 2, "hidden_size": 48},
    "5 heads on 1": {"num_attention_heads": 5, "num_key_value_heads": 1, "hidden_size": 40, "head_dim": 8},
    "llama3": {
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 2.7}},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.7}},
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
    "mistral": {"kind": "Mistral", "sliding_window": None},
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_huggingface(family: str, tmp_path: Path) -> None:
    model = make_llama(**FAMILIES[family])
    model.save_pretrained(tmp_path / "m")
    assert_same_logits(our_logits(tmp_path / "m"), hf_logits(model))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("sharded", [False, True])
def test_every_storage_gives_the_stored_bits(dtype: str, sharded: bool, tmp_path: Path) -> None:
    import torch

    model = make_llama().to(getattr(torch, dtype))
    model.save_pretrained(tmp_path / "m", **({"max_shard_size": "5KB"} if sharded else {}))
    assert (len(list((tmp_path / "m").glob("*.safetensors"))) > 1) == sharded
    imported = open_model(tmp_path / "m")
    expected = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}[dtype]
    assert imported.graph.stored_dtype == {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[dtype]
    state = model.state_dict()
    pairs = {"embed": "model.embed_tokens.weight", "L1.k": "model.layers.1.self_attn.k_proj.weight", "head": "lm_head.weight"}
    for name, key in pairs.items():
        x = imported.weights.get(name)
        assert x.dtype == expected
        assert np.array_equal(x.astype(np.float32), state[key].float().numpy())
    assert_same_logits(our_logits(tmp_path / "m"), hf_logits(model))


def test_a_live_model_equals_its_checkpoint(tmp_path: Path) -> None:
    import torch

    model = make_llama(tie_word_embeddings=True).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "m")
    live, saved = open_model(model), open_model(tmp_path / "m")
    assert live.weights.names() == saved.weights.names() == tuple(saved.graph.weight_shapes())
    for name in (*saved.weights.names(), "head"):
        assert live.weights.get(name).dtype == ml_dtypes.bfloat16
        assert live.weights.get(name).tobytes() == saved.weights.get(name).tobytes()
        assert live.weights.shape(name) == saved.weights.shape(name) == saved.weights.get(name).shape
    assert live.graph == saved.graph or live.graph.name != saved.graph.name
    assert live.path is None


def test_mixed_dtypes_are_kept_and_the_matrices_decide(tmp_path: Path) -> None:
    import torch

    model = make_llama().to(torch.bfloat16)
    for name, p in model.named_parameters():
        if "norm" in name or "layers.0.mlp.up_proj" in name:
            p.data = p.data.float()
    model.save_pretrained(tmp_path / "m")
    imported = open_model(tmp_path / "m")
    assert [imported.weights.dtype(n) for n in ("L0.attn_norm", "L0.up", "L1.up")] == ["f32", "f32", "bf16"]
    assert imported.graph.stored_dtype == "bf16"


def test_mapped_weights_are_read_only_and_the_model_never_holds_torch(tmp_path: Path) -> None:
    import subprocess
    import sys

    make_llama().save_pretrained(tmp_path / "m")
    with pytest.raises(ValueError, match="read-only"):
        open_model(tmp_path / "m").weights.get("embed")[0, 0] = 1
    code = (
        "import sys; from amk_core.importer import open_model; open_model(sys.argv[1]).weights.get('L0.q'); "
        "print('torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code, str(tmp_path / "m")], capture_output=True, text=True, check=True)
    assert out.stdout == "False\n"


def test_unknown_names_are_a_key_error(tmp_path: Path) -> None:
    make_llama().save_pretrained(tmp_path / "m")
    with pytest.raises(KeyError, match=r"L9\.q"):
        open_model(tmp_path / "m").weights.get("L9.q")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One untied float32 checkpoint in one file."""
    folder = tmp_path_factory.mktemp("whole") / "m"
    make_llama().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards") / "m"
    make_llama().save_pretrained(folder, max_shard_size="20KB")
    return folder


def _copy(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target / "copy"))


def _rewrite(folder: Path, edit: Any, name: str = "model.safetensors") -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / name)
    edit(tensors)
    save_file(tensors, folder / name, metadata={"format": "pt"})


def _set(key: str, value: Any) -> Any:
    """An edit that sets a tensor, made from the tensors by ``value``; None removes it."""

    def edit(tensors: dict[str, Any]) -> None:
        x = value(tensors)
        if x is None:
            del tensors[key]
        else:
            tensors[key] = x

    return edit


LAYER = "model.layers.0."
UP = LAYER + "mlp.up_proj.weight"


def _vector(tensors: dict[str, Any]) -> Any:
    return tensors["model.norm.weight"] + 1


def _cast(key: str, dtype: str) -> Any:
    return _set(key, lambda t: t[key].to(getattr(_torch(), dtype)))


DAMAGE: dict[str, tuple[type[Exception], str, Any]] = {
    "missing key": (CheckpointError, r"lacks model\.layers\.0\.mlp\.up_proj\.weight", _set(UP, lambda t: None)),
    "no head": (CheckpointError, r"no lm_head\.weight", _set("lm_head.weight", lambda t: None)),
    "unexpected key": (ModelRefused, r"tensor model\.layers\.0\.extra\.weight", _set(LAYER + "extra.weight", _vector)),
    "layer too many": (ModelRefused, "model of 2 layers", _set("model.layers.2.mlp.up_proj.weight", _vector)),
    "bias": (ModelRefused, "a bias", _set(LAYER + "self_attn.q_proj.bias", _vector)),
    "q/k norm": (ModelRefused, "q/k norm", _set(LAYER + "self_attn.q_norm.weight", _vector)),
    "adapter": (ModelRefused, "an adapter", _set(LAYER + "self_attn.q_proj.lora_A.weight", _vector)),
    "wrong shape": (CheckpointError, r"shape \[36\].*requires \[60, 36\]", _set(LAYER + "self_attn.q_proj.weight", _vector)),
    "transposed": (CheckpointError, r"shape \[36, 45\]", _set(UP, lambda t: t[UP].T.contiguous())),
    "float8": (ModelRefused, "F8_E4M3", _cast(UP, "float8_e4m3fn")),
    "float64": (ModelRefused, "F64", _cast("model.norm.weight", "float64")),
    "integers": (ModelRefused, "I8", _cast("lm_head.weight", "int8")),
}  # fmt: skip


def _torch() -> Any:
    import torch

    return torch


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_state_dicts_are_refused(damage: str, whole: Path, tmp_path: Path) -> None:
    error, text, edit = DAMAGE[damage]
    folder = _copy(whole, tmp_path)
    _rewrite(folder, edit)
    with pytest.raises(error, match=text):
        open_model(folder)


def test_overflow_of_float16_is_found_when_the_tensor_is_read(whole: Path, tmp_path: Path) -> None:
    folder = _copy(whole, tmp_path)
    _rewrite(folder, _set(UP, lambda t: (t[UP] * 1e6).half()))
    weights = open_model(folder).weights
    assert np.isfinite(weights.get("L1.up")).all()
    with pytest.raises(CheckpointError, match=r"layers\.0\.mlp\.up_proj.*NaN or an infinity.*float16 overflows"):
        weights.get("L0.up")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_one_bad_value_is_found_in_every_dtype_and_the_largest_finite_one_is_none(
    dtype: str, value: float, whole: Path, tmp_path: Path
) -> None:
    folder = _copy(whole, tmp_path)
    kind = getattr(_torch(), dtype)

    def edit(tensors: dict[str, Any]) -> None:
        tensors[UP] = tensors[UP].to(kind).fill_(_torch().finfo(kind).max)
        tensors["lm_head.weight"] = tensors["lm_head.weight"].to(kind)
        tensors["lm_head.weight"][100, 35] = value

    _rewrite(folder, edit)
    weights = open_model(folder).weights
    assert float(weights.get("L0.up").max()) == _torch().finfo(kind).max
    with pytest.raises(CheckpointError, match=r"lm_head\.weight in model\.safetensors holds a NaN or an infinity"):
        weights.get("head")


def test_an_old_buffer_of_frequencies_is_ignored(whole: Path, tmp_path: Path) -> None:
    folder = _copy(whole, tmp_path)
    _rewrite(folder, _set("model.layers.0.self_attn.rotary_emb.inv_freq", lambda t: t["model.norm.weight"][:5] + 1))
    assert_same_logits(our_logits(folder), our_logits(whole))


def test_a_tied_model_may_ship_its_head_again_but_not_another_one(tmp_path: Path) -> None:
    model = make_llama(tie_word_embeddings=True)
    model.save_pretrained(tmp_path / "m")
    _rewrite(tmp_path / "m", _set("lm_head.weight", lambda t: t["model.embed_tokens.weight"].clone()))
    assert_same_logits(our_logits(tmp_path / "m"), hf_logits(model))
    assert "head" not in open_model(tmp_path / "m").weights.names()
    _rewrite(tmp_path / "m", _set("lm_head.weight", lambda t: t["lm_head.weight"] + 1))
    with pytest.raises(ModelRefused, match=r"tie_word_embeddings.*differs from the embedding"):
        open_model(tmp_path / "m")


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_truncated_files_are_found_on_opening(keep: int, whole: Path, tmp_path: Path) -> None:
    file = _copy(whole, tmp_path) / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:keep])
    with pytest.raises(CheckpointError, match=r"not a whole safetensors file.*Fetch or copy it again"):
        open_model(file.parent)


@pytest.mark.parametrize("header", [b"[]", b"{", b'{"x": 1}', b'{"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}'])
def test_broken_headers_are_found_on_opening(header: bytes, whole: Path, tmp_path: Path) -> None:
    file = _copy(whole, tmp_path) / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        open_model(file.parent)


def test_an_unaligned_file_is_read_as_well(whole: Path, tmp_path: Path) -> None:
    folder = _copy(whole, tmp_path)
    data = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    (folder / "model.safetensors").write_bytes(
        (length + 1).to_bytes(8, "little") + data[8 : 8 + length] + b" " + data[8 + length :]
    )
    x = open_model(folder).weights.get("L0.q")
    assert x.flags.aligned
    assert x.tobytes() == open_model(whole).weights.get("L0.q").tobytes()


def test_shards_give_the_same_model(whole: Path, shards: Path) -> None:
    assert len(list(shards.glob("model-*.safetensors"))) > 2
    assert_same_logits(our_logits(shards), our_logits(whole))


def _last_shard(folder: Path) -> Path:
    return max(folder.glob("model-*.safetensors"))


def test_a_missing_shard_is_named(shards: Path, tmp_path: Path) -> None:
    folder = _copy(shards, tmp_path)
    _last_shard(folder).unlink()
    with pytest.raises(CheckpointError, match=rf"lacks {_last_shard(shards).name}"):
        open_model(folder)


def test_a_shard_missing_from_the_index_is_named(shards: Path, tmp_path: Path) -> None:
    folder = _copy(shards, tmp_path)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    last = _last_shard(folder).name
    edit_json(
        folder / "model.safetensors.index.json",
        weight_map={k: v for k, v in index["weight_map"].items() if v != last},
    )
    with pytest.raises(CheckpointError, match=f"holds {last}, which model.safetensors.index.json does not name"):
        open_model(folder)


def test_an_unindexed_duplicate_tensor_is_found(shards: Path, tmp_path: Path) -> None:
    folder = _copy(shards, tmp_path)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    other = next(f for f in sorted(set(index.values())) if f != index["model.norm.weight"])
    _rewrite(folder, _set("model.norm.weight", lambda t: _torch().ones(36)), other)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight"):
        open_model(folder)


def test_an_index_that_names_a_tensor_no_shard_holds(shards: Path, tmp_path: Path) -> None:
    folder = _copy(shards, tmp_path)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())["weight_map"]
    edit_json(path, weight_map={**index, "model.ghost.weight": _last_shard(folder).name})
    with pytest.raises(CheckpointError, match=r"does not hold model\.ghost\.weight"):
        open_model(folder)


@pytest.mark.parametrize(
    "text", ["{", "{}", '{"weight_map": {}}', '{"weight_map": {"a": "../x.safetensors"}}', '{"weight_map": [1]}']
)
def test_a_broken_index_is_refused(text: str, shards: Path, tmp_path: Path) -> None:
    folder = _copy(shards, tmp_path)
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match="index"):
        open_model(folder)


def test_shards_without_an_index_and_pickles_are_refused(shards: Path, whole: Path, tmp_path: Path) -> None:
    folder = _copy(shards, tmp_path)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors\.index\.json"):
        open_model(folder)
    pickled = _copy(whole, tmp_path / "p")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="pickle"):
        open_model(pickled)


def test_config_files_that_are_no_config(whole: Path, tmp_path: Path) -> None:
    folder = _copy(whole, tmp_path)
    for text, message in (("{", "not valid JSON"), ("[1]", "JSON object")):
        (folder / "config.json").write_text(text)
        with pytest.raises(CheckpointError, match=message):
            open_model(folder)


def test_biased_llama_is_refused_live_and_on_disk(tmp_path: Path) -> None:
    for trait in ("attention_bias", "mlp_bias"):
        model = make_llama(**{trait: True})
        model.save_pretrained(tmp_path / trait)
        for source in (model, tmp_path / trait):
            with pytest.raises(ModelRefused, match=trait):
                open_model(source)
        edit_json(tmp_path / trait / "config.json", **{trait: False})  # a config that hides its biases
        with pytest.raises(ModelRefused, match="a bias"):
            open_model(tmp_path / trait)


def test_custom_code_is_refused_and_not_executed(whole: Path, tmp_path: Path) -> None:
    folder = _copy(whole, tmp_path)
    witness = tmp_path / "executed"
    (folder / "modeling_own.py").write_text(f"open({str(witness)!r}, 'w')\n")
    edit_json(folder / "config.json", auto_map={"AutoModelForCausalLM": "modeling_own.Own"})
    with pytest.raises(ModelRefused, match=r"auto_map.*never executed"):
        open_model(folder)
    assert not witness.exists()


def test_live_models_of_other_classes_are_refused() -> None:
    from transformers import LlamaForCausalLM

    class Patched(LlamaForCausalLM):  # type: ignore[misc]
        pass

    model = make_llama()
    model.__class__ = Patched
    with pytest.raises(ModelRefused, match="class of the live model"):
        open_model(model)
    with pytest.raises(ModelRefused, match="class of the live model"):
        open_model(model.model)


def test_live_models_without_values_are_refused() -> None:
    import torch

    with torch.device("meta"):
        model = make_llama()
    with pytest.raises(CheckpointError, match="meta device"):
        open_model(model)
