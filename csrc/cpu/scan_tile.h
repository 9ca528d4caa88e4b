// Scans of one tile of a row, and of eight rows no longer than a tile: eight groups, or eight rows, are the lanes of a
// vector, so that a group's own prefixes are plain operations on vectors.
#pragma once
#include "cpu/scan_lanes.h"

namespace torchreduce {
inline namespace TR_ISA {

// Writes past the caches, on x86: without reading the line first, and without evicting what is in use. p is 32-byte
// aligned.
template <class V> TR_HD void store_stream(void* p, V v) {
  char* const to = static_cast<char*>(p);
#if defined(__AVX__)
  __m256i parts[sizeof(V) / 32];
  __builtin_memcpy(parts, &v, sizeof v);
  for (size_t i = 0; i < sizeof(V) / 32; ++i) _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + i, parts[i]);
#elif defined(__SSE2__)
  __m128i parts[sizeof(V) / 16];
  __builtin_memcpy(parts, &v, sizeof v);
  for (size_t i = 0; i < sizeof(V) / 16; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, parts[i]);
#else
  store(to, v);
#endif
}
TR_HD void fence_streams() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// The results of eight groups, as ScanLanes says, with canonical NaNs.
template <class Scan, class Lanes = ScanLanes<Scan>>
TR_HD void finish_groups(bool prefixes, const typename Lanes::WideState& carry, const typename Lanes::State& within,
                         GroupsOf<Scan>& p) {
  Lanes::results(prefixes, carry, within, p);
  auto& out = p[0];
  if constexpr (is_float_type<typename Scan::Result>) {
    auto nans = out[kGroup - 1] != out[kGroup - 1];
    if constexpr (!kNanStays<Scan>)  // to the end of its group
      for (int j = 0; j < kGroup - 1; ++j) nans |= out[j] != out[j];
    if (__builtin_expect(any_set(nans), 0))
      for (int j = 0; j < kGroup; ++j)
        for (int lane = 0; lane < 8; ++lane) out[j][lane] = canonical(out[j][lane]);
  }
}

// Transposes 8 x 8 lanes.
template <class V> TR_HD void transpose(V (&r)[8]) {  // of 8 bytes
  V t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = choose<0, 8, 2, 10, 4, 12, 6, 14>(r[i], r[i + 1]);
    t[i + 1] = choose<1, 9, 3, 11, 5, 13, 7, 15>(r[i], r[i + 1]);
  }
  V u[8];
  for (int i = 0; i < 8; i += 4)
    for (int j = i; j < i + 2; ++j) {
      u[j] = choose<0, 1, 8, 9, 4, 5, 12, 13>(t[j], t[j + 2]);
      u[j + 2] = choose<2, 3, 10, 11, 6, 7, 14, 15>(t[j], t[j + 2]);
    }
  for (int i = 0; i < 4; ++i) {
    r[i] = choose<0, 1, 2, 3, 8, 9, 10, 11>(u[i], u[i + 4]);
    r[i + 4] = choose<4, 5, 6, 7, 12, 13, 14, 15>(u[i], u[i + 4]);
  }
}
TR_HD void transpose(Eight<float> (&r)[8]) {
  using V = Eight<float>;
  V t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = choose<0, 8, 1, 9, 4, 12, 5, 13>(r[i], r[i + 1]);
    t[i + 1] = choose<2, 10, 3, 11, 6, 14, 7, 15>(r[i], r[i + 1]);
  }
  V u[8];
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      u[i + 2 * j] = choose<0, 1, 8, 9, 4, 5, 12, 13>(t[i + j], t[i + j + 2]);
      u[i + 2 * j + 1] = choose<2, 3, 10, 11, 6, 7, 14, 15>(t[i + j], t[i + j + 2]);
    }
  for (int i = 0; i < 4; ++i) {
    r[i] = choose<0, 1, 2, 3, 8, 9, 10, 11>(u[i], u[i + 4]);
    r[i + 4] = choose<4, 5, 6, 7, 12, 13, 14, 15>(u[i], u[i + 4]);
  }
}

// Sklansky's inclusive scan of 32 totals, in place. With more than one input what is absent is an identity but for the
// sign of a zero that roundings lost, so that it is not combined.
template <class Scan, class Lanes = ScanLanes<Scan>>  // not inline: one copy, for totals and for results
__attribute__((noinline)) void sklansky(typename Lanes::State (&v)[kFan / 8]) {
  using State = typename Lanes::State;
  const auto absent = eight(Scan::absent());
  const auto join = [](const State& left, const State& right, auto chosen) {
    const State both = Lanes::combine(left, right);
    if constexpr (Scan::kInputs == 1) return both;
    else return chosen(right, both);
  };
  for (auto& eight_totals : v) {
    eight_totals = join(choose<8, 0, 8, 2, 8, 4, 8, 6>(eight_totals, absent), eight_totals,
                        [](const State& a, const State& b) { return choose<0, 9, 2, 11, 4, 13, 6, 15>(a, b); });
    eight_totals = join(choose<8, 8, 1, 1, 8, 8, 5, 5>(eight_totals, absent), eight_totals,
                        [](const State& a, const State& b) { return choose<0, 1, 10, 11, 4, 5, 14, 15>(a, b); });
    eight_totals = join(choose<8, 8, 8, 8, 3, 3, 3, 3>(eight_totals, absent), eight_totals,
                        [](const State& a, const State& b) { return choose<0, 1, 2, 3, 12, 13, 14, 15>(a, b); });
  }
  const auto last = [](const auto& totals) { return choose<7, 7, 7, 7, 7, 7, 7, 7>(totals, totals); };
  v[1] = Lanes::combine(last(v[0]), v[1]);
  v[3] = Lanes::combine(last(v[2]), v[3]);
  v[2] = Lanes::combine(last(v[1]), v[2]);
  v[3] = Lanes::combine(last(v[1]), v[3]);
}

// Eight groups that start at x, `step` apart, as lanes; and from lanes to memory.
template <class E> TR_HD void load_groups(const E* x, int64_t step, Eight<LaneType<E>> (&p)[kGroup]) {
  for (int g = 0; g < 8; ++g) p[g] = load<Eight<LaneType<E>>>(x + g * step);
  transpose(p);
}
// With `stream`, to 32-byte aligned memory past the caches.
template <class E> TR_HD void store_groups(E* out, int64_t step, Eight<LaneType<E>> (&p)[kGroup], bool stream) {
  transpose(p);
  if (stream)
    for (int g = 0; g < 8; ++g) store_stream(out + g * step, p[g]);
  else
    for (int g = 0; g < 8; ++g) store(out + g * step, p[g]);
}

// Elements of each input, and from a row to the next one; whether a row begins with them whose first a counts as 0.
template <class Scan> struct Runs {
  const typename Scan::Result* at[Scan::kInputs];
  int64_t step[Scan::kInputs];
  bool resets = false;
};
// Eight groups from element `first` of each run on: neighbours, or those of eight rows.
template <class Scan, bool kRows> TR_HD void load_groups(const Runs<Scan>& x, int64_t first, GroupsOf<Scan>& p) {
  for (int k = 0; k < Scan::kInputs; ++k) load_groups(x.at[k] + first, kRows ? x.step[k] : int64_t(kGroup), p[k]);
}

// Whether results are the same in any order, so that one element after the other takes the least time: integers.
template <class Scan> constexpr bool kSerial =
    Scan::kInputs == 1 && std::is_same<typename Scan::Result, int64_t>::value && requires { &ScanLanes<Scan>::next; };

// Scans a tile of x, whose positions from `count` on, up to the next multiple of 64, are absent; writes as many
// results, or none with kTotal. `carry` and `within` lie before the tile. An input and out may be the same. With
// `stream`, out is 32-byte aligned and bypasses the caches (fence_streams() afterwards). Returns the tile's total.
// kSerial: no position needs to be absent, and `stream` means nothing.
template <class Scan, bool kTotal, class E = typename Scan::Result>
typename Scan::Acc scan_tile(const Runs<Scan>& x, int64_t count, typename Scan::Wide carry, typename Scan::Acc within,
                             E* out, bool stream) {
  using Lanes = ScanLanes<Scan>;
  if constexpr (kSerial<Scan>) {
    E total = Scan::absent(), result = Lanes::next(carry, within);
    for (int64_t i = 0; i < count; ++i) {
      total = Lanes::next(total, x.at[0][i]);
      if constexpr (!kTotal) out[i] = result = Lanes::next(result, x.at[0][i]);
    }
    return total;
  }
  using State = typename Lanes::State;
  constexpr int kBlocks = kFan / 8;
  const State absent = eight(Scan::absent());
  GroupsOf<Scan> p[kBlocks];
  State totals[kBlocks];
  bool prefixes[kBlocks];
  const int blocks = int((count + 63) / 64);
  for (int b = 0; b < kBlocks; ++b) {
    if (b >= blocks) {
      totals[b] = absent;
      continue;
    }
    for (const E* input : x.at)
      for (int i = 0; i < 64; i += 64 / int(sizeof(E))) prefetch_ahead(input + 64 * b + i);
    load_groups<Scan, false>(x, 64 * b, p[b]);
    if constexpr (Scan::kInputs == 2)
      if (b == 0 && x.resets) p[b][1][0][0] = 0;
    prefixes[b] = Lanes::group(p[b], totals[b]);
  }
  sklansky<Scan>(totals);
  if constexpr (!kTotal) {
    const State before_tile = eight(within);
    const auto wide = eight(carry);
    for (int b = 0; b < blocks; ++b) {
      const State before = choose<15, 0, 1, 2, 3, 4, 5, 6>(totals[b], b ? totals[b - 1] : absent);
      finish_groups<Scan>(prefixes[b], wide, Lanes::combine(before_tile, before), p[b]);
      store_groups(out + 64 * b, kGroup, p[b][0], stream);
    }
  }
  return lane<typename Scan::Acc>(totals[kBlocks - 1], 7);
}

// A scan of eight rows, as ScanCarry asks for it.
template <class Scan> struct EightRows {
  using Lanes = ScanLanes<Scan>;
  using Acc = typename Lanes::State;
  using Wide = typename Lanes::WideState;

  TR_HD static Acc absent() { return eight(Scan::absent()); }
  TR_HD static Wide wide_absent() { return eight(Scan::wide_absent()); }
  TR_HD static Wide widen(const Acc& a) { return Lanes::widen(a); }
  template <class V> TR_HD static V combine(const V& left, const V& right) { return Lanes::combine(left, right); }
};

// Scans a tile of `count` positions of eight rows, which can be read up to the next multiple of 8; writes as many
// results to out + r * out_step. `carry` is what lies before them, and then after them if they are a whole tile of
// longer rows (kLongRows). With `stream`, as scan_tile does, to rows that are 32-byte aligned.
template <class Scan, class E = typename Scan::Result>
void scan_eight_rows(const Runs<Scan>& x, int64_t count, ScanCarry<EightRows<Scan>>& carry, E* out, int64_t out_step,
                     bool stream) {
  using Lanes = ScanLanes<Scan>;
  using State = typename Lanes::State;
  const auto combine = [](const State& l, const State& r) { return Lanes::combine(l, r); };
  TreeStack<State, kFanLog2 + 1> groups;
  const State absent = eight(Scan::absent()), before_tile = carry.within();
  for (int64_t i = 0; i < count; i += kGroup) {
    GroupsOf<Scan> p;
    if (i * sizeof(E) % 64 == 0)
      for (int k = 0; k < Scan::kInputs; ++k)
        for (int r = 0; r < 8; ++r) prefetch_ahead(x.at[k] + r * x.step[k] + i);
    load_groups<Scan, true>(x, i, p);
    if constexpr (Scan::kInputs == 2)
      if (i == 0 && x.resets) p[1][0] = typename Lanes::Items{};
    State total, within = groups.total(absent, combine);
    if (carry.tiles.count) within = combine(before_tile, within);
    else if (Scan::kInputs > 1) within = combine(absent, within);  // there is less to do: the compiler knows `absent`
    const bool prefixes = Lanes::group(p, total);
    finish_groups<Scan>(prefixes, carry.carry(), within, p);
    groups.push(total, combine);
    if (count - i >= kGroup) {
      store_groups(out + i, out_step, p[0], stream);
      continue;
    }
    E last[8 * kGroup];
    store_groups(last, kGroup, p[0], false);
    for (int r = 0; r < 8; ++r)
      __builtin_memcpy(out + r * out_step + i, last + r * kGroup, size_t(count - i) * sizeof(E));
  }
  if constexpr (Lanes::kLongRows)
    if (count == kTile) carry.push(groups.total(absent, combine));
}

}  // namespace TR_ISA
}  // namespace torchreduce
