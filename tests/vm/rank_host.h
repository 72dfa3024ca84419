// The kernels for ranks on the host: a CTA is 256 fibers that take turns at barriers and exchanges between lanes.  This file stands in
// for every header that speaks to the card (mbarriers, st.async, the ring, polls, tensor cores, loads past L1); the bodies of
// kernels/rank_parts.cuh, rank_gemv.cuh and rank_attn.cuh are compiled as they are.
#pragma once
#include "host_fibers.h"
#include "host_mma.h"

#include "device.h"
#include "rank_maps.h"

namespace amk {

constexpr int kHidden = AMK_HIDDEN, kHeads = AMK_HEADS, kKvHeads = AMK_KV_HEADS, kHeadDim = AMK_HEAD_DIM, kGroup = kHeads / kKvHeads;
constexpr int kQSize = kHeads * kHeadDim, kKvSize = kKvHeads * kHeadDim, kWarps = AMK_WARPS, kWorkBytes = AMK_WORK_BYTES, kPartHead = 2, kVocab = AMK_VOCAB;
constexpr int kSlotUnits = AMK_SLOT_UNITS, kUnitBytes = 512, kCluster = AMK_RANK_CLUSTER;
#define kMinusInfinity __int_as_float(int(0xff800000u))
constexpr int up(int n, int to) { return (n + to - 1) / to * to; }

struct Run {  // of one task
  const DeviceTask* task;
  int step, own;
  const int32_t* variables;
  uint8_t** mails;  // of the CTAs of the cluster
  const uint8_t* const* slots;  // of the ring, in the order in which the task comes to them
  int32_t* sent;  // bytes, by CTA
};
static Run run;
alignas(128) static uint8_t work[AMK_WORK_BYTES];

struct Context {
  int turn, warp, lane, thread;
  static Context here() { return {0, current / 32, current % 32, current}; }
  int step() const { return run.step; }
  int p(int i) const { return run.task->par[i]; }
  float real(int i) const { return __int_as_float(p(i)); }
  template <class T = float>
  T* at(int i) const {
    return reinterpret_cast<T*>(run.task->at[i]);
  }
  uint8_t* work() const { return amk::work; }
  bool active(int pos, int) const { return run.step < run.variables[pos + 1]; }
  int position(int pos, int) const { return run.variables[pos] + run.step; }
};
inline float* box(const Context, int param) { return reinterpret_cast<float*>(run.mails[run.own] + run.task->at[param]); }
inline void await_mail(const Context) { sync_tasks(); }  // the caller runs a task when it may run
inline void note_arrival(const Context) {}
inline uint32_t tag_of(const Context) { return uint32_t(run.step) + 1; }
inline bool poll_is_over(int, uint32_t, uint32_t) { std::abort(); }
struct Route {
  int own;
  explicit Route(const Context) : own(run.own) {}
  bool goes_to(int cta) const { return cta == own || (run.task->par[kSendWord] >> cta & 1); }
  void send(float* to, int cta, float v) const {
    if (!goes_to(cta)) return;
    const int64_t at = reinterpret_cast<uint8_t*>(to) - run.mails[own];
    if (at < 0 || at + 4 > AMK_RANK_MAIL_BYTES) std::abort();
    std::memcpy(run.mails[cta] + at, &v, 4);
    if (cta != own) run.sent[cta] += 4;
  }
  void send(float* to, int cta, float a, float b) const {
    if (reinterpret_cast<uintptr_t>(to) % 8) std::abort();
    send(to, cta, a), send(to + 1, cta, b);
  }
  void send(float* to, int cta, float4 v) const {
    if (reinterpret_cast<uintptr_t>(to) % 16) std::abort();
    send(to, cta, v.x, v.y), send(to + 2, cta, v.z, v.w);
  }
};
struct RingCursor {
  int slot = 0;
  const uint8_t* wait() const { return run.slots[slot]; }
  void release(int, int) { ++slot; }
  void keep(int) const {}
};
struct Place {
  int slot;
  explicit Place(const RingCursor& at) : slot(at.slot) {}
  void next() { ++slot; }
};
inline const uint8_t* slot_of(const Place& at) { return run.slots[at.slot]; }

using Stored = uint16_t;
inline uint32_t pack_bf16(float low, float high) { return uint32_t(bf16_of(high)) << 16 | bf16_of(low); }
inline void store_kv(uint16_t* p, float a, float b) { p[0] = bf16_of(a), p[1] = bf16_of(b); }
inline float load_table(const float* p) { return *p; }
inline float4 load_table_x4(const float* p) { return *reinterpret_cast<const float4*>(p); }
inline int32_t load_shared_i32(const int32_t* p) { return *p; }
inline uint4 load_cached(const uint16_t* p) { return *reinterpret_cast<const uint4*>(p); }
inline ulonglong2 load_part(const ulonglong2* p) { return *p; }
inline void store_part(ulonglong2* p, float a, float b, float c, uint32_t tag) {
  *p = {uint64_t(bits_of(b)) << 32 | bits_of(a), uint64_t(tag) << 32 | bits_of(c)};
}
inline float exp_fast(float x) { return std::exp(x); }
inline float reciprocal_fast(float x) { return 1.0f / x; }
inline float rsqrt_fast(float x) { return 1.0f / std::sqrt(x); }

}  // namespace amk
