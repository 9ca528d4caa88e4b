// A plan is the first family of a table that serves a call: what the tables of reductions and scans share.
#pragma once
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "plan.h"
#include "plan_tools.h"

namespace torchreduce {

// A kernel family: what it is in words, and the shape in which it serves a call, if it does. Unforced, it does so where
// it is preferred to those after it; forced, wherever its kernels can. std::invalid_argument for forced fields that
// cannot be.
template <class Call, class ShapeVariant> struct Family {
  using Shape = ShapeVariant;
  const char* name;
  const char* summary;
  std::optional<Shape> (*serves)(const Call&, const DeviceFacts&, const PlanOverride& forced);
  bool general = false;  // serves every call, and is compiled for every device (DeviceFacts::wide_reductions)
};

namespace plans {

// A family's own `serves`, for a table.
template <class Call, class Shape, auto kServes>
std::optional<Shape> shape_of(const Call& call, const DeviceFacts& device, const PlanOverride& forced) {
  if (auto shape = kServes(call, device, forced)) return Shape(*shape);
  return {};
}

// `kind`: what the table is of, in words. `compiled(family)`: whether the device has its kernels.
template <class Table, class Call, class Compiled>
auto first_that_serves(const Table& families, const Call& call, const DeviceFacts& device, const PlanOverride& forced,
                       const char* kind, Compiled compiled)
    -> std::pair<const char*, typename Table::value_type::Shape> {
  bool known = false;
  std::string names;
  for (const auto& family : families) {
    names += (names.empty() ? "" : ", ") + std::string(family.name);
    if (forced.family && std::string(forced.family) != family.name) continue;
    known = true;
    if (!compiled(family)) continue;
    if (auto shape = family.serves(call, device, forced)) return {family.name, std::move(*shape)};
  }
  if (known) throw std::invalid_argument(std::string("force_plan: ") + forced.family + " cannot serve this call");
  throw std::invalid_argument(std::string("force_plan: ") + kind + " have the families " + names);
}

// The CPU has two ways, which have names of families: whether lanes go across rows.
inline bool cpu_across(const PlanOverride& forced, bool chosen, const char* kind) {
  if (!forced.family) return chosen;
  const std::string name = forced.family;
  if (name != "rows" && name != "columns")
    throw std::invalid_argument(std::string("force_plan: ") + kind + " on the CPU have the families rows and columns");
  return name == "columns";
}

}  // namespace plans
}  // namespace torchreduce
