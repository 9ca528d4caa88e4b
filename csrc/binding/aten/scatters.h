// Scatters, as aten has them: what elements that meet at a place make of it, in a fixed order.
#pragma once
#include <ATen/ExpandUtils.h>

#include "../scatters.h"
#include "scans.h"

namespace torchreduce::aten {

inline bool is_index(const Tensor& t) {
  return t.scalar_type() == ScalarType::Long || t.scalar_type() == ScalarType::Int;
}

// One call: elements of source go to those of self, by index. Where it is covered its result is torch's but for the
// order of additions; torch sees to all that is wrong with it.
struct Scattering {
  const Op* op = &k_sum;
  bool include_self = true;
  double alpha = 1;
  bool by_elements;
  int dim = 0;
  Tensor part, index, source;  // part: of self; source has its shape but along dim, and index one dim or source's shape

  // What every scatter asks of its tensors.
  static Why plan(const Tensor& self, const Tensor& index, const Tensor& source) {
    if (is_named(self) || index.device() != self.device() || source.device() != self.device()) return Why::Kind;
    if (index.layout() != at::kStrided || source.layout() != at::kStrided) return Why::Kind;
    if (!is_float(self.scalar_type()) || source.scalar_type() != self.scalar_type()) return Why::Dtype;
    if (!is_index(index)) return Why::Dtype;
    if (self.dim() > kMaxDims || source.dim() > kMaxDims) return Why::Dims;
    return self.numel() ? Why::Served : Why::Empty;
  }
  static Tensor at_least_1d(const Tensor& t) { return t.dim() ? t : t.view({1}); }

  Why plan_rows(const Tensor& self, int64_t along, const Tensor& of, const Tensor& from) {
    if (const Why why = plan(self, of, from); why != Why::Served) return why;
    const std::optional<int> d = scanned(self, along);
    if (!d || of.dim() > 1 || from.dim() != self.dim()) return Why::Dims;
    dim = *d;
    part = at_least_1d(self);
    index = at_least_1d(of);
    source = at_least_1d(from);
    by_elements = false;
    for (int64_t k = 0; k < part.dim(); ++k)
      if (source.size(k) != (k == dim ? index.size(0) : part.size(k))) return Why::Dims;
    return Why::Served;
  }
  // index may be smaller than source, and than self but along dim. Where it is the same for all elements of a row, it
  // is one a row.
  Why plan_elements(const Tensor& self, int64_t along, const Tensor& of, const Tensor& from) {
    if (const Why why = plan(self, of, from); why != Why::Served) return why;
    const std::optional<int> d = scanned(self, along);
    if (!d) return Why::Dims;
    if (of.numel() == 0) return Why::Empty;
    dim = *d;
    part = at_least_1d(self);
    index = at_least_1d(of);
    source = at_least_1d(from);
    if (index.dim() != part.dim() || source.dim() != part.dim()) return Why::Dims;
    by_elements = false;
    for (int64_t k = 0; k < part.dim(); ++k) {
      const int64_t size = index.size(k);
      if (size > source.size(k) || (k != dim && size > part.size(k))) return Why::Dims;
      if (size < source.size(k)) source = source.narrow(k, 0, size);
      if (k == dim) continue;
      if (size < part.size(k)) part = part.narrow(k, 0, size);
      by_elements = by_elements || (index.stride(k) != 0 && size > 1);
    }
    if (!by_elements)
      for (int64_t k = part.dim(); k-- > 0;)
        if (k != dim) index = index.select(k, 0);
    return Why::Served;
  }

  // Into `target`, which is contiguous and of part's shape. A number that is out of range is torch's to refuse.
  Why run(const Tensor& target) const {
    const Tensor numbers = index.contiguous();
    const bool as_it_is = by_elements ? source.is_contiguous() : is_one_matrix(read(source), dim);
    const Tensor from = as_it_is ? source : source.contiguous();
    const int64_t outside =
        scatter_into("scatter", *op, written(target), read(from), read(numbers), dim, include_self, alpha);
    return outside >= 0 ? Why::Dims : Why::Served;
  }
  static Tensor copied(const Tensor& t) { return t.clone(at::MemoryFormat::Contiguous); }
  Tensor result(Why& why, const Tensor& self) const {
    if (part.numel() == self.numel()) {
      const Tensor out = copied(self);
      why = run(out.view(part.sizes()));
      return out;
    }
    const Tensor some = copied(part);
    why = run(some);
    if (why != Why::Served) return some;
    const Tensor out = copied(self);
    Tensor there = out;
    for (int64_t k = 0; k < part.dim(); ++k) there = there.narrow(k, 0, part.size(k));
    there.copy_(some);
    return out;
  }
  // self is apart from the others.
  Why in_place(Tensor& self) const {
    if (part.numel() == self.numel() && self.is_contiguous()) return run(self.view(part.sizes()));
    const Tensor some = copied(part);
    const Why why = run(some);
    if (why == Why::Served) part.copy_(some);
    return why;
  }
};

// Whether what is written has its elements apart from each other and from those that are read.
inline Why apart(const Tensor& out, std::initializer_list<const Tensor*> from) {
  for (const Tensor* t : from)
    if (t->is_alias_of(out) && overlap(read(*t), read(out))) return Why::Out;
  return at::has_internal_overlap(out) == at::MemOverlap::Yes ? Why::Out : Why::Served;
}

// How an op names its reductions.
enum class Names { Scatter, ScatterReduce, IndexReduce };
inline const Op* reduction_of(Names names, std::string_view reduce) {
  if (names == Names::Scatter) return reduce == "add" ? &k_sum : reduce == "multiply" ? &k_prod : nullptr;
  for (const Op* op : {&k_mean, &k_prod, &k_amax, &k_amin})
    if (reduce == op->name) return op;
  return names == Names::ScatterReduce && reduce == "sum" ? &k_sum : nullptr;
}

// (self, dim, index, source), and what else an overload has, in whatever order: functional, in place, and out=.
template <bool by_elements, Names names = Names::Scatter> struct Scatter {
  struct Given {
    Scattering scatter;
    Why why = Why::Served;
    Tensor* out = nullptr;

    void take(const at::Scalar& alpha) {
      if (alpha.isComplex() || alpha.isBoolean()) why = Why::Option;
      else scatter.alpha = alpha.toDouble();
    }
    void take(std::string_view reduce) {
      scatter.op = reduction_of(names, reduce);
      if (!scatter.op) why = Why::Option;
    }
    void take(bool include_self) { scatter.include_self = include_self; }
    void take(Tensor& to) { out = &to; }
  };
  template <class R, class X, class... A>
  static R call(Why& why, X& self, int64_t dim, const Tensor& index, const Tensor& source, A&&... a) {
    Given given;
    (given.take(a), ...);
    Scattering& scatter = given.scatter;
    why = given.why;
    if (why == Why::Served)
      why = by_elements ? scatter.plan_elements(self, dim, index, source) : scatter.plan_rows(self, dim, index, source);
    if constexpr (!std::is_reference_v<R>) {
      return why == Why::Served ? scatter.result(why, self) : Tensor();
    } else if constexpr (std::is_const_v<X>) {
      Tensor& out = *given.out;
      if (why == Why::Served) why = apart(out, {&index, &source});
      if (why == Why::Served) why = fit(out, self.sizes(), Dtype(self.scalar_type()), self, true);
      if (why != Why::Served) return out;
      const Tensor result = scatter.result(why, self);
      if (why == Why::Served) out.copy_(result);
      return out;
    } else {
      if (why == Why::Served) why = apart(self, {&index, &source});
      if (why == Why::Served) why = scatter.in_place(self);
      return self;
    }
  }
};

// values that are added at indices, in row-major order of self[indices]. Masks, and values that overwrite, are torch's.
struct IndexPut {
  using Indices = c10::List<std::optional<Tensor>>;

  template <class R>
  static R call(Why& why, Tensor& self, const Indices& indices, const Tensor& values, bool accumulate, bool) {
    Scattering scatter;
    const int64_t dims = self.dim(), given = int64_t(indices.size());
    if (!accumulate) why = Why::Option;
    else if (given > dims || dims > kMaxDims) why = Why::Dims;
    at::SmallVector<Tensor, 4> numbers;
    at::DimVector order, kept, rest;
    for (int64_t d = 0; d < dims && why == Why::Served; ++d) {
      const std::optional<Tensor> index = d < given ? indices.get(size_t(d)) : std::nullopt;
      if (!index || !index->defined()) {
        kept.push_back(d);
        continue;
      }
      why = Scattering::plan(self, *index, values);
      numbers.push_back(*index);
      order.push_back(d);
    }
    if (why == Why::Served && numbers.empty()) why = Why::Dims;
    if (why == Why::Served) why = apart(self, {&values});
    if (why != Why::Served) return self;
    // As torch lays out the indexed result: the indexed dims stand where the first one was, if they were neighbours.
    const bool together = order.back() - order.front() == int64_t(order.size()) - 1;
    const size_t front = together ? size_t(order.front()) : 0;
    const Tensor places = numbered(self, order, numbers);
    if (!places.defined()) {
      why = Why::Dims;
      return self;
    }
    at::DimVector shape, to_front;
    for (int64_t d : kept) rest.push_back(self.size(d));
    shape.append(rest.begin(), rest.begin() + long(front));
    shape.append(places.sizes().begin(), places.sizes().end());
    shape.append(rest.begin() + long(front), rest.end());
    if (!at::is_expandable_to(values.sizes(), shape)) {
      why = Why::Dims;
      return self;
    }
    for (int64_t k = 0; k < places.dim(); ++k) to_front.push_back(int64_t(front) + k);
    for (int64_t k = 0; k < int64_t(shape.size()); ++k)
      if (k < int64_t(front) || k >= int64_t(front) + places.dim()) to_front.push_back(k);
    if (places.numel() == 0) return self;
    at::DimVector rows{-1}, numbered_rows{1};
    rows.append(rest.begin(), rest.end());
    for (int64_t d : order) numbered_rows[0] *= self.size(d);
    numbered_rows.append(rest.begin(), rest.end());
    scatter.by_elements = false;
    scatter.index = places.reshape({-1});
    scatter.source = values.expand(shape).permute(to_front).reshape(rows);
    const bool leading = order.back() == int64_t(order.size()) - 1;
    if (leading && self.is_contiguous()) {
      why = scatter.run(self.view(numbered_rows));
      return self;
    }
    order.append(kept.begin(), kept.end());
    const Tensor moved = self.permute(order), some = Scattering::copied(moved);
    why = scatter.run(some.view(numbered_rows));
    if (why == Why::Served) moved.copy_(some);
    return self;
  }
  // Of each place the number that its indices make, in row-major order of these dims of self; -1 if one is out of
  // range. Nothing if they do not broadcast.
  static Tensor numbered(const Tensor& self, at::IntArrayRef along, const at::SmallVector<Tensor, 4>& indices) {
    Tensor number, outside;
    at::DimVector shape;
    for (const Tensor& index : indices) {
      for (int64_t k = 1; k <= std::min<int64_t>(index.dim(), int64_t(shape.size())); ++k) {
        const int64_t a = index.size(-k), b = shape[shape.size() - size_t(k)];
        if (a != b && a != 1 && b != 1) return {};
      }
      shape = at::DimVector(at::infer_size_dimvector(shape, index.sizes()));
    }
    for (size_t i = 0; i < indices.size(); ++i) {
      const int64_t size = self.size(along[i]);
      const Tensor wrapped = at::where(indices[i].lt(0), indices[i].add(size), indices[i]).to(ScalarType::Long);
      if (indices.size() == 1) return wrapped;
      const Tensor beyond = wrapped.lt(0).logical_or_(wrapped.ge(size));
      outside = outside.defined() ? outside.logical_or(beyond) : beyond;
      number = number.defined() ? number.mul(size).add(wrapped) : wrapped;
    }
    return number.masked_fill(outside, -1);
  }
};

// source's elements that are added at places of self in row-major order, in theirs.
struct Put {
  template <class R>
  static R call(Why& why, Tensor& self, const Tensor& index, const Tensor& source, bool accumulate) {
    Scattering scatter;
    why = accumulate ? Scattering::plan(self, index, source) : Why::Option;
    if (why == Why::Served && index.scalar_type() != ScalarType::Long) why = Why::Dtype;
    if (why == Why::Served && index.numel() != source.numel()) why = Why::Dims;
    if (why == Why::Served) why = apart(self, {&index, &source});
    if (why != Why::Served || index.numel() == 0) return self;
    scatter.by_elements = false;
    scatter.index = at::where(index.lt(0), index.add(self.numel()), index).reshape({-1});
    scatter.source = source.reshape({-1});
    scatter.part = self;
    if (self.is_contiguous()) {
      why = scatter.run(self.view({-1}));
      return self;
    }
    const Tensor some = Scattering::copied(self);
    why = scatter.run(some.view({-1}));
    if (why == Why::Served) self.copy_(some);
    return self;
  }
};

}  // namespace torchreduce::aten
