"""GPTQ: round column by column, and let the columns that are still free make up for the error on the calibration inputs.

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", 2022; columns are taken in
the order of the input's energy while groups keep their places (static groups), so the layout needs no index of columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from amk_core.quant.format import QuantError, QuantFormat
from amk_core.quant.matrix import QuantMatrix, spread
from amk_core.quant.rounding import check_finite, codes, grouped, scales

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

BLOCK = 128  # columns whose corrections are applied together
SHRINKS = tuple(1 - 0.03 * i for i in range(16))  # parts of a group's range that are tried for its scale


@dataclass(frozen=True, slots=True)
class GptqConfig:
    """How one matrix is rounded.

    Attributes:
        damp: added to the diagonal of the Hessian, as a part of its mean.
        search: choose each group's range by the weighted error, else its full range.
    """

    damp: float = 0.01
    search: bool = True


class Solver:
    """What the calibration inputs of one or several matrices give: the order of columns, and how errors are made up for.

    Args:
        hessian: [K, K], the sum over calibration inputs x of x x^T.

    Raises:
        QuantError: a Hessian that is not square or not finite.
    """

    def __init__(self, hessian: F64, config: GptqConfig | None = None, name: str = "the weight") -> None:
        import torch  # its threads serve the forward pass too; those of another library would fight with them

        self.config = config or GptqConfig()
        if hessian.ndim != 2 or hessian.shape[0] != hessian.shape[1] or not np.isfinite(hessian).all():
            raise QuantError(f"{name}: the Hessian is {list(hessian.shape)} or not finite; required are finite values [K, K]")
        h = np.array(hessian, np.float64)
        self.energy = np.diag(h).copy()
        h[np.diag_indices(len(h))] += max(self.config.damp * float(self.energy.mean()), 1e-12)
        self.order = np.argsort(-self.energy, kind="stable")
        permuted = torch.from_numpy(np.ascontiguousarray(h[np.ix_(self.order, self.order)]))
        # h = m m^T with m upper, so that m^-1 is the upper factor of h^-1: its rows say how the later columns make up for an error
        m = torch.linalg.cholesky(permuted.flip(0, 1)).flip(0, 1)
        inverse = torch.linalg.solve_triangular(m, torch.eye(len(h), dtype=torch.float64), upper=True)
        self.factor: F32 = inverse.float().contiguous().numpy()

    def quantise(self, w: npt.NDArray[np.float32], fmt: QuantFormat, name: str = "the weight") -> QuantMatrix:
        """Round a matrix [rows, K] so that its products with the calibration inputs stay near.

        Raises:
            QuantError: as :func:`amk_core.quant.rounding.quantise`; another K than the inputs have.
        """
        x, factor, order = check_finite(w, name).copy(), self.factor, self.order
        k = x.shape[1]
        if k != len(factor):
            raise QuantError(f"{name} has K = {k}, the Hessian is {[len(factor)] * 2}; required are inputs of this matrix")
        scale, offset = search(x, self.energy, fmt, name) if self.config.search else _plain(x, fmt, name)
        steps, starts = spread(scale, fmt, k), None if offset is None else spread(offset, fmt, k)
        # columns become rows, so that each is contiguous
        t = np.ascontiguousarray(x[:, order].T)
        steps = np.ascontiguousarray(steps[:, order].T)
        starts = None if starts is None else np.ascontiguousarray(starts[:, order].T)
        out = np.empty(t.shape, np.int8 if fmt.bits == 8 else np.uint8)
        for b in range(0, k, BLOCK):
            e = min(b + BLOCK, k)
            errors = np.empty((e - b, x.shape[0]), np.float32)
            for j in range(b, e):
                out[j], value = _round(t[j], steps[j], None if starts is None else starts[j], fmt)
                errors[j - b] = (t[j] - value) / factor[j, j]
                t[j + 1 : e] -= factor[j, j + 1 : e, None] * errors[j - b]
            t[e:] -= _product(factor[b:e, e:].T, errors)
        restored = np.empty(x.shape, out.dtype)
        restored[:, order] = out.T
        return QuantMatrix(fmt, restored, scale, offset)


def quantise(
    w: npt.NDArray[np.float32], hessian: F64, fmt: QuantFormat, name: str = "the weight", config: GptqConfig | None = None
) -> QuantMatrix:
    """One matrix with inputs of its own; see :class:`Solver`."""
    return Solver(hessian, config, name).quantise(w, fmt, name)


def _product(a: F32, b: F32) -> F32:
    import torch

    out: F32 = (torch.from_numpy(np.ascontiguousarray(a)) @ torch.from_numpy(b)).numpy()
    return out


def _round(x: F32, step: F32, start: F32 | None, fmt: QuantFormat) -> tuple[npt.NDArray[np.float32], F32]:
    """(codes, their values) of one column; all [rows]."""
    safe = np.where(step > 0, step, np.float32(1))
    least, most = (-127, 127) if fmt.bits == 8 else fmt.code_range
    if fmt.kind == "min":
        assert start is not None
        code = np.clip(np.rint((x - start) / safe), least, most)
        return code, code * step + start
    zero = np.float32(fmt.midpoint) if start is None else start
    code = np.clip(np.rint(x / safe) + zero, least, most)
    return code, (code - zero) * step


def _plain(x: F32, fmt: QuantFormat, name: str) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.float16] | None]:
    g = grouped(x, fmt)
    return scales(g.min(axis=2), g.max(axis=2), fmt, name)


def search(x: F32, energy: F64, fmt: QuantFormat, name: str) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.float16] | None]:
    """Scales and offsets whose squared rounding error, weighted by the energy of each input, is the least of all SHRINKS of the
    group's range; ties go to the wider range."""
    g = grouped(x, fmt)
    low, high = g.min(axis=2), g.max(axis=2)
    k = x.shape[1]
    groups = fmt.groups(k)
    width = fmt.group or k
    weight = np.zeros(groups * width, np.float64)
    weight[:k] = energy
    best = np.full(low.shape, np.inf)
    kept: tuple[npt.NDArray[np.float16], npt.NDArray[np.float16] | None] | None = None
    for shrink in SHRINKS:
        s, o = scales((low * shrink).astype(np.float32), (high * shrink).astype(np.float32), fmt, name)
        trial = QuantMatrix(fmt, codes(x, fmt, s, o), s, o)
        error = np.zeros((x.shape[0], groups * width))
        error[:, :k] = (trial.dequantise() - x).astype(np.float64) ** 2
        loss = (error.reshape(x.shape[0], groups, width) * weight.reshape(groups, width)).sum(axis=2)
        better = loss < best
        best = np.where(better, loss, best)
        if kept is None:
            kept = s, o
        else:
            kept[0][better] = s[better]
            if o is not None and kept[1] is not None:
                kept[1][better] = o[better]
    assert kept is not None
    return kept
