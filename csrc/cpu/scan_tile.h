// Scans of one tile of a row, and of eight rows no longer than a tile: eight groups, or eight rows, are the lanes of a
// vector, so that a group's own prefixes are plain operations on vectors.
#pragma once
#include "cpu/scan_lanes.h"

namespace torchreduce {
inline namespace TR_ISA {

// Writes past the caches: without reading the line first, and without evicting what is in use. p is 32-byte aligned.
template <class V> TR_HD void store_stream(void* p, V v) {
  char* const to = static_cast<char*>(p);
#if defined(__AVX__)
  __m256i parts[sizeof(V) / 32];
  __builtin_memcpy(parts, &v, sizeof v);
  for (size_t i = 0; i < sizeof(V) / 32; ++i) _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + i, parts[i]);
#else
  __m128i parts[sizeof(V) / 16];
  __builtin_memcpy(parts, &v, sizeof v);
  for (size_t i = 0; i < sizeof(V) / 16; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, parts[i]);
#endif
}
TR_HD void fence_streams() { _mm_sfence(); }

// The results of eight groups, as ScanLanes says, with canonical NaNs.
template <class Scan, class Lanes = ScanLanes<Scan>>
TR_HD void finish_groups(bool prefixes, const typename Lanes::WideState& carry, const typename Lanes::State& within,
                         typename Lanes::Items (&p)[kGroup]) {
  Lanes::results(prefixes, carry, within, p);
  if constexpr (is_float_type<typename Scan::Item>)
    if (__builtin_expect(any_set(p[kGroup - 1] != p[kGroup - 1]), 0))  // a NaN stays to the end of its group
      for (int j = 0; j < kGroup; ++j)
        for (int lane = 0; lane < 8; ++lane) p[j][lane] = canonical(p[j][lane]);
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

// Sklansky's inclusive scan of 32 totals, in place.
template <class Scan, class Lanes = ScanLanes<Scan>> TR_HD void sklansky(typename Lanes::State (&v)[kFan / 8]) {
  const auto absent = eight(Scan::absent());
  for (auto& eight_totals : v) {
    eight_totals = Lanes::combine(choose<8, 0, 8, 2, 8, 4, 8, 6>(eight_totals, absent), eight_totals);
    eight_totals = Lanes::combine(choose<8, 8, 1, 1, 8, 8, 5, 5>(eight_totals, absent), eight_totals);
    eight_totals = Lanes::combine(choose<8, 8, 8, 8, 3, 3, 3, 3>(eight_totals, absent), eight_totals);
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

// Scans a tile that starts at x, whose positions from `count` on, up to the next multiple of 64, are absent; writes as
// many results, or none with kTotal. `carry` and `within` lie before the tile. x and out may be the same. With
// `stream`, out is 32-byte aligned and bypasses the caches (fence_streams() afterwards). Returns the tile's total.
template <class Scan, bool kTotal, class E = typename Scan::Item>
typename Scan::Acc scan_tile(const E* x, int64_t count, typename Scan::Wide carry, typename Scan::Acc within, E* out,
                             bool stream) {
  using Lanes = ScanLanes<Scan>;
  using State = typename Lanes::State;
  constexpr int kBlocks = kFan / 8;
  const State absent = eight(Scan::absent());
  typename Lanes::Items p[kBlocks][kGroup];
  State totals[kBlocks];
  bool prefixes[kBlocks];
  const int blocks = int((count + 63) / 64);
  for (int b = 0; b < kBlocks; ++b) {
    if (b >= blocks) {
      totals[b] = absent;
      continue;
    }
    const E* const block = x + 64 * b;
    for (int i = 0; i < 64; i += 64 / int(sizeof(E))) prefetch_ahead(block + i);
    load_groups(block, kGroup, p[b]);
    prefixes[b] = Lanes::group(p[b], totals[b]);
  }
  sklansky<Scan>(totals);
  if constexpr (!kTotal) {
    const State before_tile = eight(within);
    const auto wide = eight(carry);
    for (int b = 0; b < blocks; ++b) {
      const State before = choose<15, 0, 1, 2, 3, 4, 5, 6>(totals[b], b ? totals[b - 1] : absent);
      finish_groups<Scan>(prefixes[b], wide, Lanes::combine(before_tile, before), p[b]);
      store_groups(out + 64 * b, kGroup, p[b], stream);
    }
  }
  return lane<typename Scan::Acc>(totals[kBlocks - 1], 7);
}

// Scans eight rows of `count` <= kTile elements, row r at x + r * x_step, which can be read up to the next multiple of
// 8; writes as many results to out + r * out_step. With `stream`, as scan_tile does, to rows that are 32-byte aligned.
template <class Scan, class E = typename Scan::Item>
void scan_eight_rows(const E* x, int64_t x_step, int64_t count, E* out, int64_t out_step, bool stream) {
  using Lanes = ScanLanes<Scan>;
  using State = typename Lanes::State;
  const auto combine = [](const State& l, const State& r) { return Lanes::combine(l, r); };
  TreeStack<State, kFanLog2 + 1> groups;
  const State absent = eight(Scan::absent());
  const auto carry = eight(Scan::wide_absent());
  for (int64_t i = 0; i < count; i += kGroup) {
    typename Lanes::Items p[kGroup];
    if (i * sizeof(E) % 64 == 0)
      for (int r = 0; r < 8; ++r) prefetch_ahead(x + r * x_step + i);
    load_groups(x + i, x_step, p);
    State total;
    const bool prefixes = Lanes::group(p, total);
    finish_groups<Scan>(prefixes, carry, groups.total(absent, combine), p);
    groups.push(total, combine);
    if (count - i >= kGroup) {
      store_groups(out + i, out_step, p, stream);
      continue;
    }
    E last[8 * kGroup];
    store_groups(last, kGroup, p, false);
    for (int r = 0; r < 8; ++r)
      __builtin_memcpy(out + r * out_step + i, last + r * kGroup, size_t(count - i) * sizeof(E));
  }
}

}  // namespace TR_ISA
}  // namespace torchreduce
