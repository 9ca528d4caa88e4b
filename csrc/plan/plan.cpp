#include "call.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <stdexcept>

#include "numerics/order.h"
#include "plan_tools.h"

namespace torchreduce {

using namespace plans;

Layout fold(std::vector<Dim> kept, const std::vector<Dim>& reduced, MoreStrides* more) {
  // A dim along which all inputs are broadcast goes where results have it.
  auto step = [](const Dim& d) { return d.in + d.more[0] ? d.in + d.more[0] : d.out; };
  std::stable_sort(kept.begin(), kept.end(), [&](const Dim& a, const Dim& b) { return step(a) > step(b); });
  Layout layout;
  MoreStrides none;
  MoreStrides& others = more ? *more : none;
  int last = 0;  // dims so far
  auto append = [&](const Dim& d, int first) {
    if (d.size == 1) return;
    if (last > first) {  // merge with the dim before, when stepping over its end continues at this one's start
      int64_t &size = layout.size[last - 1], &in = layout.in[last - 1], &out = layout.out[last - 1];
      int64_t &second = others[0][last - 1], &third = others[1][last - 1];
      if (in == d.size * d.in && out == d.size * d.out && second == d.size * d.more[0] && third == d.size * d.more[1]) {
        size *= d.size;
        in = d.in;
        out = d.out;
        second = d.more[0];
        third = d.more[1];
        return;
      }
    }
    layout.size[last] = d.size;
    layout.in[last] = d.in;
    layout.out[last] = d.out;
    others[0][last] = d.more[0];
    others[1][last] = d.more[1];
    ++last;
  };
  for (const Dim& d : kept) {
    layout.rows *= d.size;
    append(d, 0);
  }
  layout.kept = last;
  for (const Dim& d : reduced) {
    layout.length *= d.size;
    append(d, layout.kept);
  }
  layout.reduced = last - layout.kept;
  return layout;
}

namespace {

std::mutex forced_mutex;
PlanOverride forced_fields;

}  // namespace

ReductionFacts facts(Reduction op, Dtype d) {
#define TR_CASE(name)                                                              \
  case Reduction::name:                                                            \
    return {name<float>::result(d), name<float>::kIndexed, name<float>::kHasEmpty, \
            name<float>::kConverts, name<float>::reads(d), kTwoResults<name<float>>};
  switch (op) { TR_FOR_EACH_REDUCTION(TR_CASE) }
#undef TR_CASE
  throw std::invalid_argument("unknown reduction");
}
ScanFacts facts(Scan op) {
#define TR_CASE(name)                                                                     \
  case Scan::name:                                                                        \
    return {name<float>::kIndexed,        name<float>::kConverts, name<float>::kIntegers, \
            name<float>::kIntegerKernels, kHasStart<name<float>>, name<float>::kInputs};
  switch (op) { TR_FOR_EACH_SCAN(TR_CASE) }
#undef TR_CASE
  throw std::invalid_argument("unknown scan");
}

void force_plan(const PlanOverride& forced) {
  const std::lock_guard<std::mutex> lock(forced_mutex);
  forced_fields = forced;
}
PlanOverride forced_plan() {
  const std::lock_guard<std::mutex> lock(forced_mutex);
  return forced_fields;
}

Layout fold(const TensorFacts& x, uint64_t along, const int64_t* out_strides) {
  std::vector<Dim> kept, reduced;
  for (int d = 0; d < x.dims; ++d)
    (along >> d & 1u ? reduced : kept).push_back({x.sizes[d], x.strides[d], out_strides[d]});
  return fold(std::move(kept), reduced);
}

}  // namespace torchreduce
