// Bags of embeddings, and other sums by segments, as aten has them.
#pragma once
#include "rowwise.h"
#include "scatters.h"

namespace torchreduce::aten {

inline ScalarType wide(const Tensor& t) {
  return t.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}
// (n, columns) along dim 0 by segments, in its own dtype. `order`: may be undefined.
inline Tensor reduced_segments(const Op& op, const Tensor& x, const Tensor& offsets, const Tensor& order,
                               Tensor* indices = nullptr) {
  at::DimVector sizes(x.sizes().begin(), x.sizes().end());
  sizes[0] = offsets.numel() - 1;
  const Tensor from = is_one_matrix(read(x), 0) ? x : x.contiguous(), bounds = offsets.contiguous();
  const Tensor values = allocate(sizes, Dtype(x.scalar_type()), x);
  if (indices) *indices = allocate(sizes, Dtype::I64, x);
  reduce_segments_into(op.name, op, read(from), 0, read(bounds),
                       order.defined() ? order.const_data_ptr<int64_t>() : nullptr, types_of(op, read(from), {}),
                       values.mutable_data_ptr(), indices ? indices->mutable_data_ptr() : nullptr);
  return values;
}
// Whether all numbers are within [least, most]; those of a GPU are not looked at.
inline bool is_within(const Tensor& numbers, int64_t least, int64_t most, bool rising = false) {
  if (!numbers.is_cpu()) return true;
  const Tensor flat = numbers.contiguous();
  const Operand x = read(flat);
  for (int64_t i = 0, before = least; i < x.numel(); ++i) {
    const int64_t number = index_at(x.data, x.dtype, i);
    if (number < before || number > most) return false;
    if (rising) before = number;
  }
  return true;
}

enum Mode : int64_t { kBagSum = 0, kBagMean = 1, kBagMax = 2 };

// Its results are torch's four: the reductions, the bag of each index, the number of indices of each bag that are no
// padding, and, of maxima, the row of each. What divides gradients by how often an index occurs is torch's.
struct EmbeddingBag {
  static Why plan(const Tensor& weight, const Tensor& indices, const Tensor& offsets, int64_t mode,
                  const MaybeTensor& by, bool include_last) {
    const std::array<const Tensor*, 2> others{&indices, &offsets};
    for (const Tensor* t : others)
      if (t->device() != weight.device() || t->layout() != at::kStrided) return Why::Kind;
    if (!is_float(weight.scalar_type()) || !is_index(indices) || !is_index(offsets)) return Why::Dtype;
    if (weight.dim() != 2 || indices.dim() != 1 || offsets.dim() != 1) return Why::Dims;
    if (mode < kBagSum || mode > kBagMax) return Why::Option;
    if (given(by)) {
      if (mode != kBagSum) return Why::Option;
      if (by->scalar_type() != weight.scalar_type() || by->device() != weight.device()) return Why::Dtype;
      if (by->sizes() != indices.sizes()) return Why::Dims;
    }
    if (weight.numel() == 0 || indices.numel() == 0 || offsets.numel() == 0) return Why::Empty;
    if (!is_within(indices, 0, weight.size(0) - 1) || !is_within(offsets, 0, indices.numel(), true)) return Why::Dims;
    if (weight.is_cpu() && index_at(read(offsets).data, read(offsets).dtype, 0) != 0) return Why::Dims;
    const bool ends = offsets.is_cpu() && include_last;
    if (ends && !is_within(offsets.slice(0, -1), indices.numel(), indices.numel())) return Why::Dims;
    return Why::Served;
  }
  // The bounds and the order of those alone that are kept: the others come behind all.
  static std::pair<Tensor, Tensor> without(const Tensor& bounds, const Tensor& kept) {
    const int64_t n = kept.numel();
    const Tensor before = at::cat({at::zeros({1}, bounds.options()), kept.cumsum(0)});
    const Tensor behind = kept.logical_not().cumsum(0).add(before.select(0, n)).sub(1);
    const Tensor place = at::where(kept, before.slice(0, 0, n), behind);
    const Tensor order = at::empty_like(place).scatter_(0, place, at::arange(n, place.options()));
    return {before.index_select(0, bounds.clamp(0, n)), order};
  }
  template <class R>
  static R call(Why& why, const Tensor& weight, const Tensor& indices, const Tensor& offsets, bool, int64_t mode, bool,
                const MaybeTensor& by, bool include_last, int64_t padding) {
    why = plan(weight, indices, offsets, mode, by, include_last);
    if (why != Why::Served) return {};
    const int64_t n = indices.numel(), columns = weight.size(1);
    const Tensor numbers = indices.to(ScalarType::Long);
    Tensor bounds = offsets.to(ScalarType::Long), order, at, greatest = at::empty({0}, offsets.options());
    if (!include_last) bounds = at::cat({bounds, at::full({1}, n, bounds.options())});
    const Tensor bag = at::searchsorted(bounds.slice(0, 1), at::arange(n, bounds.options()), false, true);
    if (padding >= 0) std::tie(bounds, order) = without(bounds, numbers.ne(padding));
    const Tensor counts = bounds.diff();
    Tensor rows = weight.index_select(0, numbers);
    if (given(by) || mode == kBagMean) rows = rows.to(wide(weight));
    if (given(by)) rows = rows.mul(by->to(wide(weight)).unsqueeze(1));
    const Op& op = mode == kBagSum ? k_sum : mode == kBagMean ? k_mean : k_max;
    Tensor out = reduced_segments(op, rows, bounds, order, mode == kBagMax ? &at : nullptr);
    if (mode != kBagSum) out.masked_fill_(counts.eq(0).unsqueeze(1), 0);
    if (mode == kBagMax) {
      Tensor place = at.add(bounds.slice(0, 0, -1).unsqueeze(1)).clamp_(0, n - 1);
      if (order.defined()) place = order.index_select(0, place.view({-1})).view({-1, columns});
      greatest = numbers.index_select(0, place.view({-1})).view({-1, columns});
      if (!weight.is_cpu()) greatest.masked_fill_(at.lt(0), -1);
      greatest = greatest.to(indices.scalar_type());
    }
    return {out.to(weight.scalar_type()), bag.to(indices.scalar_type()), counts.to(offsets.scalar_type()), greatest};
  }
};

struct EmbeddingBagBackward {
  template <class R>
  static R call(Why& why, const Tensor& g, const Tensor& indices, const Tensor& bag, const Tensor& counts,
                const Tensor& greatest, const c10::SymInt& size, bool by_frequency, int64_t mode, const MaybeTensor& by,
                int64_t padding) {
    const int64_t count = size.expect_int(), n = indices.numel();
    why = plan(g, indices, bag, counts, greatest, mode, by);
    if (by_frequency) why = Why::Option;
    if (why == Why::Served && (n == 0 || count == 0 || g.numel() == 0)) why = Why::Empty;
    if (why != Why::Served) return Tensor();
    if (mode == kBagMax) return of_greatest(why, g, counts, greatest, count);
    if (bag.numel() != n) why = Why::Dims;  // torch makes it anew
    if (why != Why::Served) return Tensor();
    Tensor share = g;
    if (mode == kBagMean) share = g.to(wide(g)).div(counts.clamp_min(1).to(wide(g)).unsqueeze(1));
    Tensor rows = share.index_select(0, bag);
    if (given(by)) rows = rows.to(wide(g)).mul(by->to(wide(g)).unsqueeze(1));
    const Tensor out = at::empty({count, g.size(1)}, rows.options());
    const Tensor places = indices.contiguous();
    const Tensor keys = at::empty({n}, places.options().dtype(ScalarType(segment_key_dtype(count))));
    segment_keys_into("embedding_bag", read(places), count, padding, written(keys));
    const auto [numbers, order] = at::sort(keys, true, 0, false);
    segment_sums_into("embedding_bag", read(rows), read(numbers), read(order), written(out));
    return out.to(g.scalar_type());
  }
  static Why plan(const Tensor& g, const Tensor& indices, const Tensor& bag, const Tensor& counts,
                  const Tensor& greatest, int64_t mode, const MaybeTensor& by) {
    if (!is_float(g.scalar_type()) || !is_index(indices)) return Why::Dtype;
    if (given(by) && by->scalar_type() != g.scalar_type()) return Why::Dtype;
    if (g.dim() != 2 || indices.dim() != 1 || (given(by) && by->numel() != indices.numel())) return Why::Dims;
    for (const Tensor* t : {&indices, &bag, &counts})
      if (t->device() != g.device()) return Why::Kind;
    if (mode != kBagSum && (counts.numel() != g.size(0) || !is_index(counts))) return Why::Dims;
    if (mode == kBagMax) return greatest.sizes() == g.sizes() && is_index(greatest) ? Why::Served : Why::Dims;
    return is_index(bag) && is_within(bag, 0, g.size(0) - 1) ? Why::Served : Why::Dims;
  }
  // Each column by the rows that were its greatest, bag after bag.
  static Tensor of_greatest(Why& why, const Tensor& g, const Tensor& counts, const Tensor& greatest, int64_t count) {
    Scattering scatter;
    scatter.by_elements = true;
    scatter.source = g;
    scatter.index = greatest;
    if (g.is_cpu()) {  // bags that hold something: an index that is no row is an error there
      const Tensor some = counts.gt(0).nonzero().view({-1});
      scatter.source = g.index_select(0, some);
      scatter.index = greatest.index_select(0, some);
    }
    scatter.include_self = false;
    const Tensor out = at::zeros({count, g.size(1)}, g.options());
    why = scatter.run(out);
    return out;
  }
};

// Of each index the sum over columns of the gradient of its bag times its row.
struct EmbeddingBagWeightsBackward {
  template <class R>
  static R call(Why& why, const Tensor& g, const Tensor& weight, const Tensor& indices, const Tensor& offsets,
                const Tensor& bag, int64_t mode, int64_t padding) {
    why = EmbeddingBag::plan(weight, indices, offsets, mode, {}, false);
    if (why == Why::Served && mode != kBagSum) why = Why::Option;
    if (why == Why::Served && (g.scalar_type() != weight.scalar_type() || !is_index(bag))) why = Why::Dtype;
    if (why == Why::Served && (g.dim() != 2 || g.device() != weight.device())) why = Why::Dims;
    if (why == Why::Served && (bag.numel() != indices.numel() || !is_within(bag, 0, g.size(0) - 1))) why = Why::Dims;
    if (why != Why::Served) return Tensor();
    const Tensor products = g.to(wide(g)).index_select(0, bag).mul_(weight.to(wide(g)).index_select(0, indices));
    Arguments along;
    along.take(int64_t(1));
    const Tensor sums = Reduce<k_sum>::call<Tensor>(why, products, along);
    const Tensor out = sums.to(weight.scalar_type());
    return padding >= 0 ? out.masked_fill(indices.eq(padding), 0) : out;
  }
};

// Sums of weights. Counts without them are torch's: exact in any order.
struct BinCount {
  template <class R>
  static R call(Why& why, const Tensor& input, const MaybeTensor& weights, const c10::SymInt& minlength) {
    if (!given(weights)) why = Why::Option;
    else if (!c10::isIntegralType(input.scalar_type(), false) || !supported(input.scalar_type())) why = Why::Dtype;
    else if (!supported(weights->scalar_type())) why = Why::Dtype;
    else if (input.dim() != 1 || weights->sizes() != input.sizes() || minlength.expect_int() < 0) why = Why::Dims;
    else if (weights->device() != input.device() || weights->layout() != at::kStrided) why = Why::Kind;
    else if (input.numel() == 0) why = Why::Empty;
    if (why != Why::Served) return Tensor();
    const auto [least, greatest] = at::aminmax(input);
    if (least.item<int64_t>() < 0) {
      why = Why::Dims;
      return Tensor();
    }
    Scattering scatter;
    scatter.by_elements = false;
    scatter.index = is_index(input) ? input : input.to(ScalarType::Int);
    const bool narrow = weights->scalar_type() == ScalarType::Float;
    scatter.source = narrow ? *weights : weights->to(ScalarType::Double);
    scatter.include_self = false;
    const int64_t size = std::max(minlength.expect_int(), greatest.item<int64_t>() + 1);
    const Tensor out = at::zeros({size}, scatter.source.options());
    why = scatter.run(out);
    return out;
  }
};

// By offsets or lengths of one dim, along the first one, without a value to begin with. Its gradient adds nothing up.
struct SegmentReduce {
  template <class R>
  static R call(Why& why, const Tensor& x, std::string_view reduce, const MaybeTensor& lengths,
                const MaybeTensor& indices, const MaybeTensor& offsets, int64_t axis, bool unsafe,
                const std::optional<at::Scalar>& initial) {
    const Op* const op = reduce == "max"   ? &k_amax
                         : reduce == "min" ? &k_amin
                                           : reduction_of(Names::ScatterReduce, reduce);
    const bool by_offsets = given(offsets);
    if (by_offsets == given(lengths) || given(indices) || initial || axis != 0 || !op || reduce[0] == 'a')
      why = Why::Option;
    if (why != Why::Served) return Tensor();
    const Tensor& bounds = by_offsets ? *offsets : *lengths;
    if (!is_float(x.scalar_type()) || !is_index(bounds)) why = Why::Dtype;
    else if (bounds.device() != x.device() || bounds.layout() != at::kStrided) why = Why::Kind;
    else if (bounds.dim() != 1 || bounds.numel() == 0 || x.dim() == 0 || x.dim() > kMaxDims) why = Why::Dims;
    else if (x.numel() == 0) why = Why::Empty;
    if (why != Why::Served) return Tensor();
    Tensor ends = bounds;
    if (!by_offsets) {
      if (!is_within(bounds, 0, x.size(0))) why = Why::Dims;
      const Tensor sums = bounds.cumsum(0);
      if (!unsafe && !is_within(sums.slice(0, -1), x.size(0), x.size(0))) why = Why::Dims;
      ends = at::cat({at::zeros({1}, sums.options()), sums});
    }
    if (why != Why::Served) return Tensor();
    return reduced_segments(*op, x, ends, Tensor());
  }
};

}  // namespace torchreduce::aten
