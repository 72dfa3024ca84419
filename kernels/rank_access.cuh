// Accesses of global memory that the kernels for ranks add: parts of 16 bytes, and keys and values that other CTAs wrote.
#pragma once
#include "common.cuh"

namespace amk {

// Scalar accesses of 128 bits are single-copy atomic (PTX 8.3): a tag proves that the three floats before it are of its step.
__device__ __forceinline__ ulonglong2 load_part(const ulonglong2* p) {
  ulonglong2 v;
  asm volatile("{ .reg .b128 q; ld.relaxed.gpu.global.b128 q, [%2]; mov.b128 {%0, %1}, q; }" : "=l"(v.x), "=l"(v.y) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void store_part(ulonglong2* p, float a, float b, float c, uint32_t tag) {
  const uint64_t x = uint64_t(__float_as_uint(b)) << 32 | __float_as_uint(a), y = uint64_t(tag) << 32 | __float_as_uint(c);
  asm volatile("{ .reg .b128 q; mov.b128 q, {%1, %2}; st.relaxed.gpu.global.b128 [%0], q; }" ::"l"(p), "l"(x), "l"(y) : "memory");
}

__device__ __forceinline__ uint4 load_cached(const uint16_t* p) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}

}  // namespace amk
