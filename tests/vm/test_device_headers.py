"""The shared headers compile as device code, for every architecture, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

SOURCE = r"""
#include "protocol.h"
#include "numerics.h"
using namespace amk;
extern "C" __global__ void all(uint32_t* counters, uint32_t* flags, float* x, Fault* fault, uint32_t* words, uint64_t* tagged) {
  int64_t has;
  const Spin spin{flags, flags + 1, 1000000};
  const int64_t needs = threshold(3, -1, 4, 2);
  if (wait_at_least(counters, needs, 3, spin, &has) == kTimedOut) fault->kind = kSpinTimeout, fault->has = has;
  const float y = silu_f32(x[0]) + sqrt_f32(x[1]) + round_bf16(x[2]) + log_f32(x[3]);
  uint32_t out[4];
  philox_4x32(words, words + 4, out);
  x[4] = y + gumbel_f32(out[0]);
  store_release(flags + 1, 5);
  signal(counters + kCounterStride, 1);
  uint32_t value = 0, tag;
  if (wait_tagged(tagged, 4, 3, spin, &value, &tag) == kOvertaken) fault->has = tag;
  store_tagged(tagged + 1, value, 5);
}
"""
FLAGS = ["-std=c++17", "-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true"]


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_120"])
def test_headers_compile_with_nvrtc(arch: str) -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-bindings and nvidia-cuda-nvrtc")
    root = Path(__file__).parents[2] / "vm"
    error, program = nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"all.cu", 0, [], [])
    assert int(error) == 0
    options = [f"--gpu-architecture={arch}".encode(), f"-I{root}".encode(), *(f.encode() for f in FLAGS)]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytes(size + 1)  # written into: b" " * 1, for an empty log, is the object that all of Python shares
    nvrtc.nvrtcGetProgramLog(program, log)
    assert int(error) == 0, log.decode()
    _, size = nvrtc.nvrtcGetCUBINSize(program)
    assert size > 0
