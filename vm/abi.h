// What both VMs and the binary tables agree on: op codes, the place of every parameter, mode bits, and the fault record.
// The order of each list is the order of `params` in amk_core/schedule/ops.py; a test compares the two.
#pragma once
#if defined(__CUDACC_RTC__)  // NVRTC has no C headers of its own
typedef signed int int32_t;
typedef unsigned int uint32_t;
typedef unsigned short uint16_t;
typedef unsigned char uint8_t;
typedef signed long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif

namespace amk {

enum OpCode : int32_t {
  kOpaque = 0, kEmbed = 1, kQkv = 2, kAttn = 3, kAttnCombine = 4, kOProj = 5, kOProjCombine = 6,
  kGateUp = 7, kDownProj = 8, kLmHead = 9, kSample = 10,
  kOPart = 11, kDownPart = 12, kOSum = 13, kDownSum = 14, kRankQkv = 15, kRankAttn = 16,
  kOpCount = 17
};

// Buffer parameters always come first, so that the same index finds the pointer of a compiled task.
namespace embed { enum { token, table, out, m, chunk, feed, col0, col1, vocab, scale, count }; }
namespace qkv {
enum { h, norm_w, w, cos, sin, q, k, v, m, chunk, batch, ctx, row0, row1, hidden, n_heads, n_kv, head_dim, pos_var, partial,
       layer, packed, eps, count };
}
namespace attn {
enum { q, k, v, part, out, m, chunk, batch, ctx, seq, kv_head, n_heads, n_kv, group, head_dim, splits, blocks, block, pos_var, layer,
       split, partial, packed, scale, count };
}
namespace attn_combine {
enum { part, out, m, chunk, batch, ctx, seq, kv_head, n_heads, n_kv, group, head_dim, splits, blocks, block, pos_var, layer,
       count };
}
namespace o_proj { enum { x, w, h, out, m, row0, row1, k, layer, packed, count }; }
namespace o_proj_combine {
enum { part, w, h, m, row0, row1, k, chunk, batch, ctx, n_heads, n_kv, group, head_dim, splits, blocks, block, pos_var, layer,
       count };
}
namespace gate_up { enum { h, norm_w, w, act, m, row0, row1, hidden, layer, packed, eps, count }; }
namespace down_proj { enum { x, w, h, out, m, row0, row1, k, layer, packed, count }; }
namespace lm_head { enum { h, norm_w, w, logits, amax, m, row0, row1, tile, ring, hidden, layer, eps, count }; }
namespace sample {
enum { logits, amax, control, stop_ids, token, out, stop, done, m, tiles, vocab, n_stop_ids, pos_var, count };
}

namespace o_part { enum { attn, w, out, m, row0, row1, k0, k1, head_dim, pieces, part, layer, count }; }
namespace down_part { enum { x, w, out, m, row0, row1, k0, k1, part, layer, count }; }
namespace o_sum { enum { parts, h, out, m, col0, col1, n, layer, count }; }
namespace down_sum { enum { parts, h, out, m, col0, col1, n, layer, count }; }

namespace rank_qkv {
enum { h, norm_w, w, cos, sin, q, k, v, m, ctx, row0, row1, hidden, n_heads, n_kv, head_dim, pos_var, layer, eps, count };
}
namespace rank_attn {
enum { q, k, v, attn, m, ctx, kv_head, head, heads, n_heads, n_kv, head_dim, pieces, piece, pos_var, layer, scale, count };
}

// Words of one row of the sampler's control buffer.
namespace control { enum { temperature, top_k, top_p, seed_lo, seed_hi, count = 8 }; }

constexpr int kLanes = 32;                 // lanes of a dot product; K is padded to a multiple of it
constexpr int kSlice = 1024;               // elements of one K slice
constexpr int kMaxParts = 16;               // partial sums that one element of the residual stream may have
constexpr int kMaxCandidates = 1024;       // candidates the sampler keeps at most
constexpr int kCounterStride = 16;         // 32-bit words from one counter to the next: a cache line each
constexpr uint32_t kSampleStream = 0x53414d50u;  // third counter word of the sampler's random stream
constexpr int32_t kNoToken = -1;           // what the output ring holds for a sequence that is not active

enum FaultKind : int32_t { kNoFault = 0, kSpinTimeout = 1, kTokenRange = 2, kWeightTimeout = 3, kMailTimeout = 4 };

struct Fault {
  int32_t kind, task, op, queue, position, counter, step, row;
  int64_t has, needs;  // spin timeout: counter value and threshold; token range: the id and the vocabulary size; else 0
};

}  // namespace amk
