"""The tokenizer inside a GGUF file, as ordinary HuggingFace tokenizer files.

Byte-level BPE with a known pre-tokenizer is rebuilt exactly: transformers' own GGUF reader knows one pre-tokenizer for all
models, and differs between versions in prepending BOS.  Other vocabularies go through transformers' reader.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amk_core.importer.errors import CheckpointError

CONTROL = 3  # token type of control tokens in GGUF
BYTE_LEVEL_PRE = ("smollm", "gpt-2")  # pre-tokenizers rebuilt here: with and without a split of every digit


def write(source: Path, meta: Mapping[str, Any], out: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template of GGUF file ``source`` into ``out``."""
    if "tokenizer.ggml.tokens" not in meta:
        raise CheckpointError(f"{source} holds no tokenizer (tokenizer.ggml.tokens). Convert the model to GGUF again, with one.")
    if meta.get("tokenizer.ggml.model") == "gpt2" and meta.get("tokenizer.ggml.pre") in BYTE_LEVEL_PRE:
        _write_byte_level(meta, out)
    else:
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name).save_pretrained(out)


def _write_byte_level(meta: Mapping[str, Any], out: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ", 1)) for m in meta.get("tokenizer.ggml.merges", [])]
    try:
        tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    except Exception as e:  # the tokenizers package raises no narrower type
        raise CheckpointError(f"the tokenizer in the GGUF file is inconsistent ({e}). Convert the model to GGUF again.") from e
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if meta["tokenizer.ggml.pre"] == "smollm" else []
    tok.pre_tokenizer = pre_tokenizers.Sequence([*digits, byte_level])
    tok.decoder = decoders.ByteLevel()
    types = meta.get("tokenizer.ggml.token_type", [])
    special = [t for t, kind in zip(tokens, types, strict=False) if kind == CONTROL]
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    names = {
        role: tokens[int(meta[f"tokenizer.ggml.{key}_token_id"])]
        for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if f"tokenizer.ggml.{key}_token_id" in meta
    }
    if meta.get("tokenizer.ggml.add_bos_token") and "bos" in names:
        bos = names["bos"]
        tok.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, int(meta["tokenizer.ggml.bos_token_id"]))]
        )
    tok.save(str(out / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
        "model_max_length": int(meta["llama.context_length"]), **{f"{role}_token": text for role, text in names.items()},
    }  # fmt: skip
    if template := meta.get("tokenizer.chat_template"):
        config["chat_template"] = template  # transformers 4 and 5 both read it here
        (out / "chat_template.jinja").write_text(template)
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
