// Scans of one tile of a row, and of eight rows no longer than a tile: eight groups, or eight rows, are the lanes of a
// vector, so that a group's own prefixes are plain additions of vectors.
#pragma once
#include "cpu/lanes.h"

namespace torchreduce {
inline namespace TR_ISA {

template <class Acc> using ScanLane = std::conditional_t<std::is_same<Acc, int64_t>::value, uint64_t, Acc>;
// Eight lanes, whatever the width of the registers: as many as a group has elements.
template <class L> using Eight = typename VectorType<L, 8>::type;
template <class L> TR_HD Eight<L> splat8(L x) { return x - Eight<L>{}; }

template <class M> TR_HD bool any_set(M mask) {
  constexpr int kWords = int(sizeof(M)) / 8;
  uint64_t words[kWords], any = 0;
  __builtin_memcpy(words, &mask, sizeof mask);
  for (int i = 0; i < kWords; ++i) any |= words[i];
  return any != 0;
}

// Writes past the caches: without reading the line first, and without evicting what is in use. p is 32-byte aligned.
TR_HD void store_stream(float* p, Eight<float> v) {
#if defined(__AVX__)
  _mm256_stream_ps(p, v);
#else
  _mm_stream_ps(p, load<__m128>(&v));
  _mm_stream_ps(p + 4, load<__m128>(reinterpret_cast<const float*>(&v) + 4));
#endif
}
TR_HD void fence_streams() { _mm_sfence(); }

// p[j] is element j's prefix within its group, for eight groups; the results of the scan take its place. `carry` and
// `within` are what lies before each group's block tile, and before it in its block tile.
template <class Scan>
TR_HD void finish_groups(Eight<ScanLane<typename Scan::Wide>> carry, Eight<ScanLane<typename Scan::Acc>> within,
                         Eight<ScanLane<typename Scan::Acc>> (&p)[kGroup]) {
  using V = Eight<ScanLane<typename Scan::Acc>>;
  if constexpr (std::is_same<typename Scan::Acc, float>::value) {
    using Wide = Eight<double>;
    const Wide sum = carry + __builtin_convertvector(within, Wide);
    const V hi = __builtin_convertvector(sum, V);
    if (__builtin_expect(any_set(((Eight<int32_t>)hi & 0x7f800000) == 0x7f800000), 0)) {  // infinite or NaN
      for (int lane = 0; lane < 8; ++lane) {
        typename Scan::Item items[kGroup];
        typename Scan::Result out[kGroup];
        for (int j = 0; j < kGroup; ++j) items[j] = p[j][lane];
        Scan{}.results(Scan::prefix(carry[lane], within[lane]), items, out);
        for (int j = 0; j < kGroup; ++j) p[j][lane] = out[j];
      }
    } else {
      const V lo = -__builtin_convertvector(__builtin_convertvector(hi, Wide) - sum, V);  // -0.0 where hi is sum
      for (int j = 0; j < kGroup; ++j) p[j] = hi + (lo + p[j]);
    }
  } else {
    const V base = Scan::combine(carry, within);
    for (int j = 0; j < kGroup; ++j) p[j] = Scan::combine(base, p[j]);
  }
  if constexpr (is_float_type<typename Scan::Acc>)
    if (__builtin_expect(any_set(p[kGroup - 1] != p[kGroup - 1]), 0))  // a NaN stays to the end of its group
      for (int j = 0; j < kGroup; ++j)
        for (int lane = 0; lane < 8; ++lane) p[j][lane] = canonical(p[j][lane]);
}

// Transposes 8 x 8 floats.
TR_HD void transpose(Eight<float> (&r)[8]) {
  using V = Eight<float>;
  using I = Eight<int32_t>;
  V t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = __builtin_shuffle(r[i], r[i + 1], I{0, 8, 1, 9, 4, 12, 5, 13});
    t[i + 1] = __builtin_shuffle(r[i], r[i + 1], I{2, 10, 3, 11, 6, 14, 7, 15});
  }
  V u[8];
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      u[i + 2 * j] = __builtin_shuffle(t[i + j], t[i + j + 2], I{0, 1, 8, 9, 4, 5, 12, 13});
      u[i + 2 * j + 1] = __builtin_shuffle(t[i + j], t[i + j + 2], I{2, 3, 10, 11, 6, 7, 14, 15});
    }
  for (int i = 0; i < 4; ++i) {
    r[i] = __builtin_shuffle(u[i], u[i + 4], I{0, 1, 2, 3, 8, 9, 10, 11});
    r[i + 4] = __builtin_shuffle(u[i], u[i + 4], I{4, 5, 6, 7, 12, 13, 14, 15});
  }
}

// Sklansky's inclusive scan of 32 totals, in place.
template <class Scan> TR_HD void sklansky(ScanLane<typename Scan::Acc> (&totals)[kFan]) {
  using L = ScanLane<typename Scan::Acc>;
  if constexpr (std::is_same<L, float>::value) {
    using V = Eight<float>;
    using I = Eight<int32_t>;
    const V absent = splat8<L>(Scan::absent());
    V v[4];
    for (int i = 0; i < 4; ++i) {
      v[i] = load<V>(totals + 8 * i);
      v[i] = Scan::combine(__builtin_shuffle(v[i], absent, I{8, 0, 8, 2, 8, 4, 8, 6}), v[i]);
      v[i] = Scan::combine(__builtin_shuffle(v[i], absent, I{8, 8, 1, 1, 8, 8, 5, 5}), v[i]);
      v[i] = Scan::combine(__builtin_shuffle(v[i], absent, I{8, 8, 8, 8, 3, 3, 3, 3}), v[i]);
    }
    v[1] = Scan::combine(splat8<L>(v[0][7]), v[1]);
    v[3] = Scan::combine(splat8<L>(v[2][7]), v[3]);
    v[2] = Scan::combine(splat8<L>(v[1][7]), v[2]);
    v[3] = Scan::combine(splat8<L>(v[1][7]), v[3]);
    for (int i = 0; i < 4; ++i) store(totals + 8 * i, v[i]);
  } else {
    for (int d = 1; d < kFan; d *= 2)
      for (int base = 0; base < kFan; base += 2 * d)
        for (int lane = d; lane < 2 * d; ++lane)
          totals[base + lane] = Scan::combine(totals[base + d - 1], totals[base + lane]);
  }
}

// Scans a tile that starts at x, whose positions from `count` on, up to the next multiple of 64, are absent; writes as
// many results, or none with kTotal. `carry` and `within` lie before the tile. x and out may be the same. With
// `stream`, out is 32-byte aligned and bypasses the caches (fence_streams() afterwards). Returns the tile's total.
template <class Scan, bool kTotal>
typename Scan::Acc scan_tile(const typename Scan::Acc* x, int64_t count, typename Scan::Wide carry,
                             typename Scan::Acc within, typename Scan::Acc* out, bool stream) {
  using Acc = typename Scan::Acc;
  using L = ScanLane<Acc>;
  using V = Eight<L>;
  constexpr int kBlocks = kFan / 8;
  V p[kBlocks][8];
  alignas(64) L totals[kFan + 8];
  L(&sums)[kFan] = *reinterpret_cast<L(*)[kFan]>(totals + 8);
  totals[7] = L(Scan::absent());
  const int blocks = int((count + 63) / 64);
  for (int b = 0; b < kBlocks; ++b) {
    if (b >= blocks) {
      store(totals + 8 + 8 * b, splat8<L>(Scan::absent()));
      continue;
    }
    const Acc* const block = x + 64 * b;
    for (int i = 0; i < 64; i += 64 / int(sizeof(Acc))) prefetch_ahead(block + i);
    if constexpr (std::is_same<L, float>::value) {
      for (int g = 0; g < 8; ++g) p[b][g] = load<V>(block + 8 * g);
      transpose(p[b]);
    } else {
      for (int g = 0; g < 8; ++g)
        for (int j = 0; j < kGroup; ++j) p[b][j][g] = L(block[8 * g + j]);
    }
    for (int j = 1; j < kGroup; ++j) p[b][j] = Scan::combine(p[b][j - 1], p[b][j]);
    store(totals + 8 + 8 * b, p[b][kGroup - 1]);
  }
  sklansky<Scan>(sums);
  if constexpr (!kTotal) {
    const V before = splat8<L>(within);
    const auto wide = splat8<ScanLane<typename Scan::Wide>>(carry);
    for (int b = 0; b < blocks; ++b) {
      finish_groups<Scan>(wide, Scan::combine(before, load<V>(totals + 7 + 8 * b)), p[b]);
      Acc* const block = out + 64 * b;
      if constexpr (std::is_same<L, float>::value) {
        transpose(p[b]);
        if (stream)
          for (int g = 0; g < 8; ++g) store_stream(block + 8 * g, p[b][g]);
        else
          for (int g = 0; g < 8; ++g) store(block + 8 * g, p[b][g]);
      } else {
        for (int g = 0; g < 8; ++g)
          for (int j = 0; j < kGroup; ++j) block[8 * g + j] = Acc(p[b][j][g]);
      }
    }
  }
  return Acc(sums[kFan - 1]);
}

// Scans eight rows of `count` <= kTile elements, row r at x + r * x_step, which can be read up to the next multiple of
// 8; writes as many results to out + r * out_step.
template <class Scan>
void scan_eight_rows(const typename Scan::Acc* x, int64_t x_step, int64_t count, typename Scan::Acc* out,
                     int64_t out_step) {
  using Acc = typename Scan::Acc;
  using L = ScanLane<Acc>;
  using V = Eight<L>;
  const auto combine = [](V l, V r) { return Scan::combine(l, r); };
  TreeStack<V, kFanLog2 + 1> groups;
  const V absent = splat8<L>(Scan::absent());
  const auto carry = splat8<ScanLane<typename Scan::Wide>>(Scan::wide_absent());
  for (int64_t i = 0; i < count; i += kGroup) {
    V p[kGroup];
    if (i * sizeof(Acc) % 64 == 0)
      for (int r = 0; r < 8; ++r) prefetch_ahead(x + r * x_step + i);
    if constexpr (std::is_same<L, float>::value) {
      for (int r = 0; r < 8; ++r) p[r] = load<V>(x + r * x_step + i);
      transpose(p);
    } else {
      for (int r = 0; r < 8; ++r)
        for (int j = 0; j < kGroup; ++j) p[j][r] = L(x[r * x_step + i + j]);
    }
    for (int j = 1; j < kGroup; ++j) p[j] = Scan::combine(p[j - 1], p[j]);
    const V before = groups.total(absent, combine);
    groups.push(p[kGroup - 1], combine);
    finish_groups<Scan>(carry, before, p);
    if constexpr (std::is_same<L, float>::value) {
      transpose(p);
      for (int r = 0; r < 8; ++r) store(out + r * out_step + i, p[r]);
    } else {
      for (int r = 0; r < 8; ++r)
        for (int j = 0; j < kGroup; ++j) out[r * out_step + i + j] = typename Scan::Acc(p[j][r]);
    }
  }
}

}  // namespace TR_ISA
}  // namespace torchreduce
