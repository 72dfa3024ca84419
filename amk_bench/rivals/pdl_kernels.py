"""Triton kernels of a decode step for programmatic dependent launch: each fetches its weights before it waits for the one before.

Five kernels a layer: normalise, project to Q, K and V, rotate, store; attend with split keys, the last split of a head adds up;
project and add; normalise, gate and up, SiLU; project and add.  The residual stream is float32, matrices and cache have the model's
type, sums are float32.  With one sequence a program holds whole rows of a matrix, so that all its loads are under way before the
wait; with more, the products run on tensor cores, a slice of the rows at a time.

Imported where triton is; on a processor ``TRITON_INTERPRET=1`` runs the same kernels.
"""

# mypy: ignore-errors
# The language of these functions is Triton's: its compile-time values are written in capitals, and its types are not Python's.
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _enter(PDL: tl.constexpr):
    """The kernel after this one may begin to fetch its weights."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def _wait(PDL: tl.constexpr):
    """Everything before this kernel is done and visible."""
    if PDL:
        gdc_wait()


@triton.jit
def _project(
    w, rows, ok, x, norm, eps,
    K: tl.constexpr, KP: tl.constexpr, NORM: tl.constexpr, B: tl.constexpr, PB: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Rows ``rows`` [BN] of matrix w [., K] times x [B, K], normalised where NORM: float32 [BN, PB]; waits in between."""
    if B == 1:
        k = tl.arange(0, KP)
        inside = k < K
        tile = tl.load(w + rows[:, None].to(tl.int64) * K + k[None, :], mask=ok[:, None] & inside[None, :], other=0.0)
        if NORM:
            gain = tl.load(norm + k, mask=inside, other=0.0).to(tl.float32)
        _wait(PDL)
        v = tl.load(x + k, mask=inside, other=0.0).to(tl.float32)
        if NORM:
            v = v * tl.rsqrt(tl.sum(v * v, 0) / K + eps) * gain
        y = tl.sum(tile.to(tl.float32) * v[None, :], 1)[:, None]
    else:
        k = tl.arange(0, BK)
        b = tl.arange(0, PB)
        at = w + rows[:, None].to(tl.int64) * K
        tile = tl.load(at + k[None, :], mask=ok[:, None] & (k < K)[None, :], other=0.0)
        _wait(PDL)
        y = tl.zeros((BN, PB), tl.float32)
        squares = tl.zeros((PB,), tl.float32)
        for k0 in range(0, K, BK):
            kk = k0 + k
            v = tl.load(x + b[None, :] * K + kk[:, None], mask=(kk < K)[:, None] & (b < B)[None, :], other=0.0).to(tl.float32)
            if NORM:
                squares += tl.sum(v * v, 0)
                v = v * tl.load(norm + kk, mask=kk < K, other=0.0).to(tl.float32)[:, None]
            y = tl.dot(tile, v.to(tile.dtype), y)
            ahead = kk + BK
            tile = tl.load(at + ahead[None, :], mask=ok[:, None] & (ahead < K)[None, :], other=0.0)
        if NORM:
            y = y * tl.rsqrt(squares / K + eps)[None, :]
    return y


@triton.jit
def _halves(y, HALF: tl.constexpr, PB: tl.constexpr):
    """[2 HALF, PB] -> its first and its second half of rows."""
    return tl.split(tl.permute(tl.reshape(y, (2, HALF, PB)), (1, 2, 0)))


@triton.jit
def embed_kernel(token, table, x, H: tl.constexpr, HP: tl.constexpr, PDL: tl.constexpr):
    """x [B, H] = rows of the table."""
    _enter(PDL)
    _wait(PDL)
    b = tl.program_id(0)
    k = tl.arange(0, HP)
    row = tl.load(token + b).to(tl.int64)
    tl.store(x + b * H + k, tl.load(table + row * H + k, mask=k < H, other=0.0).to(tl.float32), mask=k < H)


@triton.jit
def qkv_kernel(
    w, x, norm, eps, cos, sin, position, q, kv, cache_rows,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, B: tl.constexpr,
    PB: tl.constexpr, HALF: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A program makes HALF rotated pairs of one head: queries to q [B, HEADS, D], keys and values to their row of the cache."""
    _enter(PDL)
    parts: tl.constexpr = D // 2 // HALF
    head = tl.program_id(0) // parts
    r = tl.arange(0, 2 * HALF)
    pair = (tl.program_id(0) % parts) * HALF + r % HALF
    rows = head * D + pair + (r // HALF) * (D // 2)
    y = _project(w, rows, rows >= 0, x, norm, eps, K, KP, True, B, PB, 2 * HALF, BK, PDL)
    low, high = _halves(y, HALF, PB)
    j = (tl.program_id(0) % parts) * HALF + tl.arange(0, HALF)
    b = tl.arange(0, PB)
    here = b < B
    at = tl.load(position + b, mask=here, other=0).to(tl.int64)
    turned = head < HEADS + KV_HEADS
    angle = at[None, :] * (D // 2) + j[:, None]
    c = tl.where(turned, tl.load(cos + angle, mask=here[None, :], other=1.0), 1.0)
    s = tl.where(turned, tl.load(sin + angle, mask=here[None, :], other=0.0), 0.0)
    out_low, out_high = low * c - high * s, high * c + low * s
    if head < HEADS:
        place = q + (b[None, :] * HEADS + head) * D + j[:, None]
    else:
        row = b.to(tl.int64) * cache_rows + at
        place = kv + (row[None, :] * (2 * KV_HEADS) + (head - HEADS)) * D + j[:, None]
    keep = here[None, :] & (j >= 0)[:, None]
    tl.store(place, out_low.to(place.dtype.element_ty), mask=keep)
    tl.store(place + D // 2, out_high.to(place.dtype.element_ty), mask=keep)


@triton.jit
def attend_kernel(
    q, kv, position, out, sums, tops, mass, tickets, scale, cache_rows,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, GP: tl.constexpr, SPLITS: tl.constexpr,
    BT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A program attends to its share of one sequence's and KV head's rows; the last of them adds the shares up."""
    _enter(PDL)
    _wait(PDL)
    item, split = tl.program_id(0), tl.program_id(1)
    b, h = item // KV_HEADS, item % KV_HEADS
    filled = tl.load(position + b).to(tl.int32) + 1
    share = tl.cdiv(tl.cdiv(filled, SPLITS), BT) * BT
    start = split * share
    end = tl.minimum(start + share, filled)
    g, d, t = tl.arange(0, GP), tl.arange(0, D), tl.arange(0, BT)
    wanted = g < GROUP
    at = (b * HEADS + h * GROUP + g)[:, None] * D + d[None, :]
    query = tl.load(q + at, mask=wanted[:, None], other=0.0)
    top = tl.full((GP,), float("-inf"), tl.float32)
    total = tl.zeros((GP,), tl.float32)
    acc = tl.zeros((GP, D), tl.float32)
    base = kv + b.to(tl.int64) * cache_rows * (2 * KV_HEADS * D) + h * D
    for t0 in range(start, end, BT):
        inside = t0 + t < end
        place = base + (t0 + t).to(tl.int64)[:, None] * (2 * KV_HEADS * D) + d[None, :]
        keys = tl.load(place, mask=inside[:, None], other=0.0)
        scores = tl.dot(query, tl.trans(keys)) * scale
        scores = tl.where(inside[None, :], scores, float("-inf"))
        new = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - new[:, None])
        fade = tl.exp(top - new)
        values = tl.load(place + KV_HEADS * D, mask=inside[:, None], other=0.0)
        acc = tl.dot(weights.to(values.dtype), values, acc * fade[:, None])
        total = total * fade + tl.sum(weights, 1)
        top = new
    if SPLITS == 1:
        tl.store(out + at, (acc / total[:, None]).to(out.dtype.element_ty), mask=wanted[:, None])
    else:
        own = (item * SPLITS + split) * GP + g
        tl.store(sums + own[:, None] * D + d[None, :], acc)
        tl.store(tops + own, top)
        tl.store(mass + own, total)
        tl.debug_barrier()
        if tl.atomic_add(tickets + item, 1, sem="acq_rel") == SPLITS - 1:
            tl.debug_barrier()
            top = tl.full((GP,), float("-inf"), tl.float32)
            total = tl.zeros((GP,), tl.float32)
            acc = tl.zeros((GP, D), tl.float32)
            for s in range(SPLITS):
                other = (item * SPLITS + s) * GP + g
                seen = tl.load(tops + other, cache_modifier=".cg")
                new = tl.maximum(top, seen)
                fade, gain = tl.exp(top - new), tl.exp(seen - new)
                part = tl.load(sums + other[:, None] * D + d[None, :], cache_modifier=".cg")
                acc = acc * fade[:, None] + part * gain[:, None]
                total = total * fade + tl.load(mass + other, cache_modifier=".cg") * gain
                top = new
            tl.store(out + at, (acc / total[:, None]).to(out.dtype.element_ty), mask=wanted[:, None])
            tl.store(tickets + item, 0)


@triton.jit
def add_kernel(
    w, a, x,
    N: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, B: tl.constexpr, PB: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """x [B, N] += a [B, K] w^T."""
    _enter(PDL)
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    ok = rows < N
    y = _project(w, rows, ok, a, a, 0.0, K, KP, False, B, PB, BN, BK, PDL)
    b = tl.arange(0, PB)
    place = x + b[None, :] * N + rows[:, None]
    keep = ok[:, None] & (b < B)[None, :]
    tl.store(place, tl.load(place, mask=keep, other=0.0) + y, mask=keep)


@triton.jit
def gate_up_kernel(
    w, x, norm, eps, act,
    F: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, B: tl.constexpr, PB: tl.constexpr, HALF: tl.constexpr, BK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """act [B, F] = silu(gate) up; w has the rows of gate before those of up."""
    _enter(PDL)
    r = tl.arange(0, 2 * HALF)
    column = tl.program_id(0) * HALF + r % HALF
    y = _project(w, column + (r // HALF) * F, column < F, x, norm, eps, K, KP, True, B, PB, 2 * HALF, BK, PDL)
    gate, up = _halves(y, HALF, PB)
    j, b = tl.program_id(0) * HALF + tl.arange(0, HALF), tl.arange(0, PB)
    made = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(act + b[None, :] * F + j[:, None], made.to(act.dtype.element_ty), mask=(j < F)[:, None] & (b < B)[None, :])


@triton.jit
def head_kernel(
    w, x, norm, eps, logits, best, where,
    N: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, B: tl.constexpr, PB: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """logits [B, N], and of each program's rows the largest with its lowest index: best, where [B, programs]."""
    _enter(PDL)
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    ok = rows < N
    y = _project(w, rows, ok, x, norm, eps, K, KP, True, B, PB, BN, BK, PDL)
    b = tl.arange(0, PB)
    here = b < B
    tl.store(logits + b[None, :] * N + rows[:, None], y, mask=ok[:, None] & here[None, :])
    y = tl.where(ok[:, None], y, float("-inf"))
    largest = tl.max(y, 0)
    lowest = tl.min(tl.where(y == largest[None, :], rows[:, None], N), 0)
    own = b * tl.num_programs(0) + tl.program_id(0)
    tl.store(best + own, largest, mask=here)
    tl.store(where + own, lowest, mask=here)


@triton.jit
def pick_kernel(
    best, where, token, out, position, steps,
    N: tl.constexpr, PARTS: tl.constexpr, PP: tl.constexpr, B: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The token of each sequence; it is kept, and fed to the next step, which is one position on."""
    _enter(PDL)
    _wait(PDL)
    b = tl.program_id(0)
    i = tl.arange(0, PP)
    v = tl.load(best + b * PARTS + i, mask=i < PARTS, other=float("-inf"))
    index = tl.load(where + b * PARTS + i, mask=i < PARTS, other=N)
    chosen = tl.min(tl.where(v == tl.max(v, 0), index, N), 0).to(tl.int64)
    step = tl.load(steps + b)
    tl.store(token + b, chosen)
    tl.store(out + step * B + b, chosen)
    tl.store(position + b, tl.load(position + b) + 1)
    tl.store(steps + b, step + 1)
