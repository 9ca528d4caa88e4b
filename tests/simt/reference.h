// The canonical order (docs/numerics.md) as plain loops over one row: the second judge beside the CPU kernels. It
// shares with the kernels what an op does (ops.h) and how elements convert (dtype.h), and nothing of how they are
// combined.
#pragma once
#include <algorithm>
#include <vector>

#include "call.h"
#include "order.h"

namespace reference {

using namespace torchreduce;

// The contiguous pairwise tree: neighbours, then pairs of neighbours; a last one without a partner passes unchanged.
template <class V, class Combine> V tree(std::vector<V> values, Combine combine) {
  while (values.size() > 1) {
    std::vector<V> next;
    for (size_t i = 0; i < values.size(); i += 2)
      next.push_back(i + 1 < values.size() ? combine(values[i], values[i + 1]) : values[i]);
    values = std::move(next);
  }
  return values[0];
}

// Sklansky's inclusive scan of at most 32 values.
template <class V, class Combine> std::vector<V> sklansky(std::vector<V> values, Combine combine) {
  for (size_t d = 1; d < values.size(); d *= 2) {
    const std::vector<V> before = values;
    for (size_t l = 0; l < values.size(); ++l)
      if (l & d) values[l] = combine(before[(l & ~(2 * d - 1)) + d - 1], before[l]);
  }
  return values;
}

// The value of a row of n > 0 elements, load(i) as accumulators.
template <class Op, class Load> typename Op::Acc reduce(const Op& op, int64_t n, Load load) {
  using Acc = typename Op::Acc;
  auto combine = [&](Acc l, Acc r) { return op.combine(l, r); };
  std::vector<Acc> leaves;
  for (int64_t first = 0; first < n; first += 2048) {
    std::vector<Acc> residues;
    for (int64_t i = first; i < n && i < first + 2048; ++i) {
      if (i - first < 256) residues.push_back(load(i));
      else residues[size_t(i - first) % 256] = combine(residues[size_t(i - first) % 256], load(i));
    }
    leaves.push_back(tree(residues, combine));
  }
  return tree(leaves, combine);
}

// The inclusive scan of a row, in the accumulator type, before rounding.
template <class S> std::vector<typename S::Acc> scan(std::vector<typename S::Acc> x) {
  using Acc = typename S::Acc;
  using Wide = typename S::Wide;
  auto narrow = [](Acc l, Acc r) { return S::combine(l, r); };
  auto wide = [](Wide l, Wide r) { return S::combine(l, r); };
  const size_t n = x.size(), tile = 256, block = 8192, super = 32 * block;

  std::vector<Acc> groups, tiles;     // inclusive prefixes within a tile, and of tiles within a block tile
  std::vector<Wide> blocks, carries;  // the same of block tiles within a superblock; the carry into each superblock
  auto append = [](auto& all, const auto& more) { all.insert(all.end(), more.begin(), more.end()); };
  for (size_t i = 0; i < n; ++i)
    if (i % 8) x[i] = S::combine(x[i - 1], x[i]);
  for (size_t first = 0; first < n; first += tile) {
    std::vector<Acc> totals;
    for (size_t g = first; g < n && g < first + tile; g += 8) totals.push_back(x[std::min(g + 7, n - 1)]);
    append(groups, sklansky(totals, narrow));
  }
  for (size_t first = 0; first < n; first += block) {
    std::vector<Acc> totals;
    for (size_t t = first; t < n && t < first + block; t += tile)
      totals.push_back(groups[std::min(t / 8 + 31, groups.size() - 1)]);
    append(tiles, sklansky(totals, narrow));
  }
  carries.push_back(S::wide_absent());
  for (size_t first = 0; first < n; first += super) {
    std::vector<Wide> totals;
    for (size_t b = first; b < n && b < first + super; b += block)
      totals.push_back(S::widen(tiles[std::min(b / tile + 31, tiles.size() - 1)]));
    append(blocks, sklansky(totals, wide));
    carries.push_back(S::combine(carries.back(), blocks.back()));
  }
  for (size_t first = 0; first < n; first += 8) {
    const size_t g = first / 8, t = first / tile, b = first / block;
    const Wide in_super = b % 32 ? blocks[b - 1] : S::wide_absent();
    const Acc in_block = t % 32 ? tiles[t - 1] : S::absent(), in_tile = g % 32 ? groups[g - 1] : S::absent();
    const auto prefix = S::prefix(S::combine(carries[first / super], in_super), S::combine(in_block, in_tile));
    for (size_t i = first; i < n && i < first + 8; ++i) x[i] = S::apply(prefix, x[i]);
  }
  return x;
}

}  // namespace reference
