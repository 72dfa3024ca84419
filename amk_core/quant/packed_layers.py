"""The public layouts of GPTQ and AWQ: a linear layer as ``qweight``, ``qzeros`` and ``scales``, read without de-quantising.

GPTQ (AutoGPTQ, GPTQModel) packs along K: word i of column n of ``qweight`` [K * bits / 32, N] holds 32 / bits neighbours of K from
its low bits up; ``qzeros`` [groups, N * bits / 32] holds zero points minus one (``gptq``) or as they are (``gptq_v2``) along N;
``scales`` [groups, N]; ``g_idx`` [K] says which group each value belongs to.

AWQ (AutoAWQ, version ``gemm``) packs along N: ``qweight`` [K, N / 8] and ``qzeros`` [groups, N / 8] hold eight neighbours of N a
word, nibble i being column ``AWQ_ORDER[i]``; ``scales`` [groups, N].

Both mean ``scale * (code - zero)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from amk_core.quant.format import GROUPS, QuantError, QuantFormat
from amk_core.quant.matrix import QuantMatrix

Method = Literal["gptq", "awq"]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
PARTS: Mapping[str, tuple[str, ...]] = {"gptq": ("qweight", "qzeros", "scales", "g_idx"), "awq": ("qweight", "qzeros", "scales")}


@dataclass(frozen=True, slots=True)
class PackedConfig:
    """What ``quantization_config`` of a checkpoint says.

    Attributes:
        group: values that share a scale; -1: a whole row.
        symmetric: all zero points are the middle code.
        zero_minus_one: ``qzeros`` holds zero points minus one.
    """

    method: Method
    bits: int
    group: int
    symmetric: bool
    zero_minus_one: bool

    @staticmethod
    def read(config: Any) -> PackedConfig:
        """From the dictionary in config.json.

        Raises:
            QuantError: a method, width, version or order that is not read; the message names the field.
        """
        c: Mapping[str, Any] = config if isinstance(config, Mapping) else {}
        method = c.get("quant_method")

        def need(field: str, seen: Any, ok: bool, required: str) -> None:
            if not ok:
                raise QuantError(f"quantization_config.{field} is {seen!r}; required is {required}")

        need("quant_method", method, method in ("gptq", "awq"), "gptq or awq")
        bits, group = c.get("bits"), c.get("group_size")
        need("bits", bits, bits in ((4, 8) if method == "gptq" else (4,)), "4 or, of gptq, 8")
        need(
            "group_size", group, type(group) is int and (group == -1 or (group >= 32 and group % 32 == 0)), "-1 or a multiple of 32"
        )
        version = c.get("checkpoint_format") or "gptq"
        if method == "gptq":
            need("desc_act", c.get("desc_act"), not c.get("desc_act"), "false: groups of reordered columns are not neighbours in K")
            need("checkpoint_format", version, version in ("gptq", "gptq_v2"), "gptq or gptq_v2")
            need("dynamic", c.get("dynamic"), not c.get("dynamic"), "absent: all layers in one format")
        else:
            need("version", c.get("version"), str(c.get("version", "gemm")).lower() == "gemm", "gemm")
            need("zero_point", c.get("zero_point"), c.get("zero_point", True) is True, "true")
        assert method in ("gptq", "awq")
        assert isinstance(bits, int)
        assert isinstance(group, int)
        symmetric = bits == 8 or (method == "gptq" and c.get("sym") is True)
        return PackedConfig(method, bits, group, symmetric, method == "gptq" and version == "gptq")

    @property
    def group_here(self) -> int:
        """The largest group of ours that divides the checkpoint's: its scales are repeated, which changes no value."""
        return max(g for g in GROUPS[4] if self.group == -1 or self.group % g == 0)


def nibbles(words: npt.NDArray[Any], bits: int, axis: int) -> npt.NDArray[np.uint8]:
    """int32 words -> their codes from the low bits up, side by side along ``axis``."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    u = np.ascontiguousarray(words).view(np.uint32)
    codes = (u[..., None] >> shifts & np.uint32((1 << bits) - 1)).astype(np.uint8)  # [..., 32 / bits] last
    codes = np.moveaxis(codes, -1, axis + 1)
    shape = list(words.shape)
    shape[axis] *= 32 // bits
    return codes.reshape(shape)


def read(parts: Mapping[str, npt.NDArray[Any]], config: PackedConfig, name: str) -> QuantMatrix:
    """One linear layer [N, K].

    Args:
        parts: the tensors by their suffix (``qweight``, ``qzeros``, ``scales``, and ``g_idx`` of gptq, which may be absent).

    Raises:
        QuantError: a missing part, shapes that do not belong together, reordered groups, an ambiguous or odd zero point.
    """
    for part in ("qweight", "qzeros", "scales"):
        if part not in parts:
            raise QuantError(
                f"{name}.{part} is missing; a {config.method} layer has {', '.join(PARTS[config.method])}. Fetch the model again."
            )
    words, zeros, scales = parts["qweight"], parts["qzeros"], parts["scales"]
    for part, x, dtypes in (
        ("qweight", words, ("int32",)),
        ("qzeros", zeros, ("int32",)),
        ("scales", scales, ("float16", "bfloat16")),
    ):
        if x.ndim != 2 or x.dtype.name not in dtypes:
            raise QuantError(f"{name}.{part} is {x.dtype} {list(x.shape)}; required is a matrix of {' or '.join(dtypes)}")
    per = 32 // config.bits
    gptq = config.method == "gptq"
    codes = nibbles(words, config.bits, 0 if gptq else 1)
    zero = nibbles(zeros, config.bits, 1)
    if not gptq:
        codes, zero = _awq(codes), _awq(zero)
    k, n = codes.shape
    group = k if config.group == -1 else config.group
    groups = -(-k // group)
    if scales.shape != (groups, n) or zero.shape != (groups, -(-n // per) * per) or n % per:
        raise QuantError(
            f"{name} of {n} x {k} in groups of {group} has scales {list(scales.shape)} and zero points {list(zero.shape)}; "
            f"required are {[groups, n]} both, and N a multiple of {per}"
        )
    if "g_idx" in parts and not np.array_equal(parts["g_idx"].reshape(-1), np.arange(k) // group):
        raise QuantError(
            f"{name}.g_idx reorders the groups (desc_act); required are neighbours in K. Use a checkpoint without desc_act."
        )
    if config.zero_minus_one:
        top = (1 << config.bits) - 1
        if (zero == top).any():
            raise QuantError(
                f"{name}.qzeros holds {top}, which some programs read as the zero point {top + 1} and others as 0. "
                f"Convert the checkpoint to checkpoint_format gptq_v2."
            )
        zero = zero + 1
    repeat = -(-k // config.group_here) if config.group == -1 else group // config.group_here
    return _matrix(codes.T, np.repeat(scales, repeat, axis=0).T, np.repeat(zero, repeat, axis=0).T, config, name)


def _awq(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Nibbles in the order of the words -> columns in order."""
    inverse = np.argsort(AWQ_ORDER)
    return codes.reshape(codes.shape[0], -1, 8)[:, :, inverse].reshape(codes.shape)


def _matrix(
    codes: npt.NDArray[Any], scales: npt.NDArray[Any], zero: npt.NDArray[Any], config: PackedConfig, name: str
) -> QuantMatrix:  # fmt: skip
    """[N, K] codes with [N, groups] scales and zero points; a last group that reaches beyond K is dropped."""
    scale_dtype: Any = "f16" if scales.dtype == np.float16 else "bf16"
    group = config.group_here
    groups = -(-codes.shape[1] // group)
    scales, zero = np.ascontiguousarray(scales[:, :groups]), np.ascontiguousarray(zero[:, :groups])
    middle = 1 << (config.bits - 1)
    if config.symmetric and (zero != middle).any():
        row, at = (int(i) for i in np.argwhere(zero != middle)[0])
        raise QuantError(
            f"{name} has the zero point {int(zero[row, at])} at output {row}, group {at}; required of a symmetric "
            f"{config.bits}-bit layer is {middle}"
        )
    if config.bits == 8:
        return QuantMatrix(QuantFormat(8, group, "sym", scale_dtype), np.ascontiguousarray(codes ^ 0x80).view(np.int8), scales)
    codes = np.ascontiguousarray(codes)
    if config.symmetric:
        return QuantMatrix(QuantFormat(4, group, "sym", scale_dtype), codes, scales)
    return QuantMatrix(QuantFormat(4, group, "zero", scale_dtype), codes, scales, zero.astype(scales.dtype))
