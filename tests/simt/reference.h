// The canonical order (docs/numerics.md) as plain loops over one row: the second judge beside the CPU kernels. It
// shares with the kernels what an op does (ops/reductions.h) and how elements convert (dtype.h), and nothing of how
// they are combined.
#pragma once
#include <algorithm>
#include <vector>

#include "numerics/order.h"
#include "plan/call.h"

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

// The value of a row of n > 0 elements, element(i).
template <class Op, class Element> typename Op::Acc reduce(const Op& op, int64_t n, Element element) {
  using Acc = typename Op::Acc;
  auto combine = [&](Acc l, Acc r) { return op.combine(l, r); };
  std::vector<Acc> leaves;
  for (int64_t first = 0; first < n; first += 2048) {
    std::vector<Acc> residues;
    for (int64_t i = first; i < n && i < first + 2048; ++i) {
      if (i - first < 256) residues.push_back(op.load(element(i), i));
      else residues[size_t(i - first) % 256] = step(op, residues[size_t(i - first) % 256], element(i), i);
    }
    leaves.push_back(tree(residues, combine));
  }
  return tree(leaves, combine);
}

// The inclusive scan of a row of n > 0 elements, load(i) as items, that `initial` precedes: its results before
// rounding.
template <class S, class Load>
std::vector<typename S::Result> scan(const S& op, int64_t n, Load load, typename S::Wide initial = S::wide_absent()) {
  using Acc = typename S::Acc;
  using Wide = typename S::Wide;
  struct Group { typename S::Item items[kGroup]; };
  auto narrow = [](Acc l, Acc r) { return S::combine(l, r); };
  auto wide = [](Wide l, Wide r) { return S::combine(l, r); };
  auto append = [](auto& all, const auto& more) { all.insert(all.end(), more.begin(), more.end()); };

  std::vector<Group> elements;
  std::vector<Acc> totals;  // of groups
  for (int64_t first = 0; first < n; first += 8) {
    Group g;
    for (int64_t i = 0; i < 8; ++i) g.items[i] = first + i < n ? load(first + i) : S::absent_item();
    totals.push_back(S::group(g.items));
    elements.push_back(g);
  }
  // Inclusive prefixes of each run of 32.
  auto level = [&](const auto& values, auto combine) {
    using Values = std::decay_t<decltype(values)>;
    Values prefixes;
    for (size_t i = 0; i < values.size(); i += 32) {
      const auto first = values.begin() + long(i);
      append(prefixes, sklansky(Values(first, first + long(std::min<size_t>(32, values.size() - i))), combine));
    }
    return prefixes;
  };
  // The total of each run of 32: its last prefix.
  auto runs = [](const auto& prefixes) {
    std::decay_t<decltype(prefixes)> last;
    for (size_t i = 0; i < prefixes.size(); i += 32) last.push_back(prefixes[std::min(i + 31, prefixes.size() - 1)]);
    return last;
  };
  const std::vector<Acc> groups = level(totals, narrow), tiles = level(runs(groups), narrow);
  std::vector<Wide> block_totals;
  for (Acc total : runs(tiles)) block_totals.push_back(S::widen(total));
  const std::vector<Wide> blocks = level(block_totals, wide);
  std::vector<Wide> carries{initial};  // into each superblock
  for (Wide total : runs(blocks)) carries.push_back(S::combine(carries.back(), total));

  std::vector<typename S::Result> results;
  for (size_t g = 0; g < elements.size(); ++g) {
    const size_t t = g / 32, b = t / 32;
    const Wide in_super = b % 32 ? blocks[b - 1] : S::wide_absent();
    const Acc in_block = t % 32 ? tiles[t - 1] : S::absent(), in_tile = g % 32 ? groups[g - 1] : S::absent();
    typename S::Result out[kGroup];
    op.results(S::prefix(S::combine(carries[b / 32], in_super), S::combine(in_block, in_tile)), elements[g].items, out);
    results.insert(results.end(), out, out + std::min(n - int64_t(8 * g), int64_t(8)));
  }
  return results;
}

}  // namespace reference
