// Every kernel family on the emulator, over ops, element types, odd sizes, memory layouts and forced plans: the bits
// must be those of the CPU kernels and of the plain loops.
//
//     simt [--wave 32|64] [--seed N] [--every N] [--few] [group | kernels ...]
//
// The groups are those of kGroups, by their names or by the kernels that they call; without any, all of them. --every N
// runs about each Nth case; --few, for a program whose kernels are compiled for few types (gpu.h), those that it has.
// Ends with status 1 at the first difference, with the emulator's or a sanitizer's status where they find something.
//
//     simt [--wave 32|64] --solve FILE
//
// Writes the results of the problems in FILE to standard output: see solve().
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "channels.h"
#include "emulator.h"
#include "kernels/scan/extremes.h"
#include "numerics/order.h"
#include "problem.h"
#include "rowwise.h"
#include "segment_rows.h"
#include "segments.h"

using namespace torchreduce;

namespace {

// A plan for a GPU of that many multiprocessors, and for arrays that lie in memory in one of the first ways.
struct Policy {
  PlanOverride forced;
  int multiprocessors = 132;
  int memories = kNearMemories;
  bool bulk_copies = false;
  int a_memories = memories;  // of linear_scan's a
};
using Policies = std::vector<Policy>;

uint32_t seed = 1;
long every = 1;
bool few = false;
long seen = 0, done = 0;  // cases

std::string list(const std::vector<int64_t>& values) {
  std::string text;
  for (int64_t v : values) text += (text.empty() ? "" : ", ") + std::to_string(v);
  return "(" + text + ")";
}
std::string describe(const Problem& p) {
  return p.op + " " + list(p.sizes) + " along " + std::to_string(p.along) + ", dtypes " + std::to_string(int(p.in)) +
         " to " + std::to_string(int(p.out)) + (p.exclusive ? ", exclusive" : "") + (p.reverse ? ", reverse" : "") +
         (p.initial ? ", initial" : "") + (p.shifted ? ", shifted" : "") +
         (p.spread ? ", spread " + std::to_string(p.spread) : "");
}

void expect_equal(const std::vector<char>& actual, const std::vector<char>& expected, const std::string& what) {
  if (actual == expected) return;
  size_t i = 0;
  while (i < actual.size() && i < expected.size() && actual[i] == expected[i]) ++i;
  printf("FAILED: %s: the bits differ from byte %zu of %zu on (expected %zu)\n", what.c_str(), i, actual.size(),
         expected.size());
  fflush(stdout);
  exit(1);
}

// The problem under each policy that can serve it. Element values, memory layouts and the order of blocks vary;
// `far`: both arrays have Memory::Far.
void check(const Problem& p, const Policies& policies, bool far = false) {
  for (const Policy& policy : policies) {
    const long turn = seen++;
    const uint64_t draw = uint64_t(turn) * 0x9E3779B97F4A7C15u >> 20;
    if (draw % uint64_t(every) || (few && !p.few())) continue;
    Values kind = Values(turn % kValues);
    // Products of the others are 0 after a few tiles, and hide what precedes them.
    if (p.op == "cumprod" && is_float(p.in) && kind != Values::Plain && kind != Values::Hostile)
      kind = kind == Values::Negative ? Values::Decaying : Values::NearOne;
    auto elements = make_elements(p.in, p.elements(), seed + uint64_t(turn), kind);
    if (p.linear() && kind != Values::Hostile) {
      const auto factors = make_elements(p.in, p.elements(), seed + uint64_t(turn), Values::Factors);
      const size_t bytes = elements.size() - size_t((p.numel() + p.initials()) * size_of(p.in));
      std::copy(factors.begin(), factors.begin() + long(bytes), elements.begin());
    }
    const auto expected = solve_by_reference(p, elements);
    expect_equal(solve_by_cpu(p, elements), expected, describe(p) + " on the CPU");
    const auto in = far ? Memory::Far : Memory((draw >> 10) % uint64_t(policy.memories));
    const auto out = far ? Memory::Far : Memory((draw >> 15) % uint64_t(policy.memories));
    const auto a = far ? Memory::Far : Memory((draw >> 30) % uint64_t(policy.a_memories));
    const bool in_place = p.op == "cumsum" && !p.exclusive && p.in == p.out && (draw >> 20) % 4 == 0;
    simt::options.seed = seed + uint32_t(turn);
    simt::options.reverse = (draw >> 25) % 2;
    simt::options.bulk_copies = policy.bulk_copies;
    simt::options.title = describe(p) + ", memory " + std::to_string(int(in)) +
                          (p.linear() ? " and " + std::to_string(int(a)) : "") + " to " + std::to_string(int(out)) +
                          (in_place ? ", in place" : "");
    force_plan(policy.forced);
    std::string plan = "?";
    try {
      const auto actual = solve_by_emulation(p, elements, in, a, out, in_place, policy.multiprocessors, plan);
      expect_equal(actual, expected, simt::options.title + ", case " + std::to_string(turn) + ", plan " + plan);
      ++done;
    } catch (const std::invalid_argument& error) {  // this plan cannot serve this problem
      if (!policy.forced.family) {
        printf("FAILED: %s: %s\n", simt::options.title.c_str(), error.what());
        exit(1);
      }
    }
    force_plan({});
  }
}

// ---- reductions -----------------------------------------------------------------------------------------------------

struct Reduced {
  const char* op;
  Dtype in, out;
};
// One of each class: own accumulator, converted elements, values, positions; and each width of element.
constexpr Reduced kReduced[] = {
    {"sum", Dtype::F32, Dtype::F32},    {"sum", Dtype::BF16, Dtype::BF16},  {"sum", Dtype::F64, Dtype::F64},
    {"sum", Dtype::I64, Dtype::I64},    {"sum", Dtype::U8, Dtype::I64},     {"sum", Dtype::BF16, Dtype::F64},
    {"sum", Dtype::I64, Dtype::F32},    {"sum", Dtype::F32, Dtype::Bool},   {"mean", Dtype::F64, Dtype::F64},
    {"mean", Dtype::BF16, Dtype::BF16}, {"amax", Dtype::F32, Dtype::F32},   {"amin", Dtype::BF16, Dtype::BF16},
    {"amin", Dtype::F64, Dtype::F64},   {"amax", Dtype::I64, Dtype::I64},   {"amax", Dtype::U8, Dtype::U8},
    {"max", Dtype::F32, Dtype::F32},    {"min", Dtype::BF16, Dtype::BF16},  {"argmax", Dtype::F64, Dtype::F64},
    {"argmin", Dtype::I64, Dtype::I64}, {"min", Dtype::F16, Dtype::F16},    {"max", Dtype::Bool, Dtype::Bool},
    {"nansum", Dtype::F32, Dtype::F32}, {"norm2", Dtype::F32, Dtype::F32},  {"norm_greatest", Dtype::BF16, Dtype::BF16},
    {"prod", Dtype::F32, Dtype::F32},   {"prod", Dtype::BF16, Dtype::BF16}, {"count_nonzero", Dtype::F32, Dtype::I64},
    {"any", Dtype::I16, Dtype::Bool},   {"sum", Dtype::I8, Dtype::I64},     {"sum", Dtype::Bool, Dtype::I64},
    {"amin", Dtype::Bool, Dtype::Bool}, {"min", Dtype::U8, Dtype::U8},      {"max", Dtype::I16, Dtype::I16},
    {"min", Dtype::F64, Dtype::F64},    {"amin", Dtype::F16, Dtype::F16},   {"count_nonzero", Dtype::BF16, Dtype::I64},
};
void check_reductions(const std::vector<std::vector<int64_t>>& shapes, uint64_t along, const Policies& policies) {
  for (const Reduced& r : kReduced)
    for (const auto& sizes : shapes) check({r.op, r.in, r.out, sizes, along}, policies);
}

constexpr const char *kRows = "rows", *kFewRows = "few_rows", *kPackedRows = "packed_rows", *kColumns = "columns",
                     *kStrided = "strided";
constexpr int kInPitch = 3;  // rows lie one after another in memory, aligned or not, or one element further apart
const Policies kReducePolicies = {
    // family, lanes, warps, leaves, vector loads, rows
    {{}, 1},
    {{}, 132},
    {{kStrided, 32, 1, 1, -1}},
    {{kStrided, 32, 8, 1, -1}},
    {{kStrided, 32, 2, 4, 0}},
    {{kColumns, -1, -1, -1, -1}},
    {{kColumns, 1, -1, 1, -1}},
    {{kColumns, 16, -1, 2, -1}},
    {{kColumns, 256, -1, -1, -1}},
};

void strided() {
  for (const char* op : {"sum", "mean", "count_nonzero"}) {  // empty, by the last dims of several or those before them
    const Dtype out = op[0] == 'c' ? Dtype::I64 : Dtype::F32;
    for (const auto& sizes : {std::vector<int64_t>{2, 3, 0, 4, 5}, {0, 3, 2, 4, 5}, {2, 3, 5, 4, 0}})
      check({op, Dtype::F32, out, sizes, 21}, kReducePolicies);
    check({op, Dtype::F32, out, {3, 2, 0, 4}, 5}, kReducePolicies);
  }
  check_reductions({{3, 2, 5, 4, 7}, {30, 2, 20, 3, 11}}, 21, kReducePolicies);  // three dims, with others between them
  // Runs of neighbours with kept dims between them, from any element on.
  const Policies runs = {{{kStrided}, 132, kManyMemories}, {{kStrided, 32, 2, 2}, 1, kManyMemories}};
  check_reductions({{70, 3, 49}, {130, 2, 17}, {300, 1, 8}, {9, 2, 301}, {3, 5, 2049}, {260, 4, 1}}, 5, runs);
  check_reductions({{3, 257}, {2, 2047}, {1, 2048}, {3, 2049}, {2, 4099}, {1, 6151}, {2, 20000}}, 2, kReducePolicies);
}
void short_strided() {
  const Policies policies = {{{kStrided, -1, -1, -1, -1}}, {{kStrided, 16, -1, -1, -1}}, {{kStrided, 32, -1, -1, -1}}};
  check_reductions({{1, 1}, {300, 2}, {70, 7}, {40, 8}, {17, 9}, {5, 31}, {33, 64}, {9, 100}, {3, 255}, {4, 256}}, 2,
                   policies);
}
// Rows of neighbours, as the planner chooses, and by each way that can serve them: several rows a warp, a row a warp, a
// row or a run of it a block.
void rows() {
  const Policies policies = {{{}, 132, kInPitch},
                             {{kRows, -1, -1, -1, -1}, 1, kInPitch},
                             {{kRows, 32, -1, -1, -1, 8}, 132, kInPitch},
                             {{kRows, -1, -1, -1, -1, 4}, 132, kInPitch},
                             {{kRows, -1, -1, -1, -1, 2}, 132, kInPitch},
                             {{kRows, -1, -1, -1, -1, 1}, 132, kInPitch},
                             {{kRows, -1, 2, 4, -1, 0}, 132, kInPitch},
                             {{kRows, -1, 8, 8, -1, 0}, 132, kInPitch},
                             {{kRows, -1, -1, 1, -1, 0}, 132, kInPitch}};
  check_reductions({{70, 7},
                    {40, 16},
                    {33, 64},
                    {9, 100},
                    {7, 255},
                    {5, 257},
                    {9, 500},
                    {3, 1000},
                    {2, 2047},
                    {1, 2048},
                    {3, 2049},
                    {2, 4099},
                    {1, 6151},
                    {2, 20000}},
                   2, policies);
  check_reductions({{3, 5, 40}, {2, 7, 300}}, 4, policies);  // of several kept dims where they are apart
  // Two kept dims, and results in other places than rows.
  check_reductions({{6, 5, 64}, {7, 40, 16}, {3, 5, 1024}, {4, 3, 257}}, 4,
                   {{{}, 132, kManyMemories}, {{kRows}, 1, kManyMemories}, {{}, 2, kManyMemories}});
}
// Few rows of whole granules: by one block, and by blocks that leave partial results.
void few_rows() {
  const Policies policies = {{{kFewRows, -1, -1, -1, -1}, 132, kInPitch},
                             {{kFewRows, -1, 1, -1, -1}, 132, kInPitch},
                             {{kFewRows, -1, 4, -1, -1}, 132, kInPitch},
                             {{kFewRows, -1, 16, -1, -1}, 132, kInPitch}};
  check_reductions({{9, 16}, {3, 1008}, {1, 2048}, {3, 4112}, {2, 20000}}, 2, policies);
  check_reductions({{1, 140000}}, 2, {{{kFewRows, -1, 1, -1, -1}, 132, kInPitch}});
}
void short_rows() {
  const Policies policies = {{{kPackedRows, -1, -1, -1, -1}, 132, kInPitch},
                             {{kPackedRows, -1, -1, -1, -1}, 1, kInPitch},
                             {{kPackedRows, 1, -1, -1, -1}, 2, kInPitch},
                             {{kPackedRows, 4, -1, -1, -1}, 2, kInPitch}};
  check_reductions({{300, 2},
                    {1000, 3},
                    {700, 5},
                    {5000, 7},
                    {40, 8},
                    {17, 9},
                    {1100, 16},
                    {5, 31},
                    {33, 64},
                    {90, 100},
                    {3, 255},
                    {40, 301},
                    {9, 1000}},
                   2, policies);
  check_reductions({{30, 70, 3}, {6, 50, 33}, {9, 7, 64}}, 4,
                   {{{kPackedRows}, 132, kManyMemories}, {{kPackedRows, 4}, 1, kManyMemories}});
}
void columns() {
  check_reductions({{1, 70}, {5, 3}, {33, 33}, {300, 2}, {2051, 33}, {6151, 1}}, 1, kReducePolicies);
  check_reductions({{9, 20, 11}, {2, 3, 515}}, 5, kReducePolicies);
  check_reductions({{9, 20, 11}, {2, 300, 3}}, 2, kReducePolicies);
  for (const char* op : {"sum", "mean"})
    for (uint64_t along : {1, 2})
      check({op, Dtype::F32, Dtype::F32, along == 1 ? std::vector<int64_t>{0, 3} : std::vector<int64_t>{3, 0}, along},
            {{{}, 132}});
}
// Lanes across columns, in each family of them that can serve a case.
void column_families() {
  for (const char* family : {"wide_columns", "narrow_columns", "short_columns", "column_slices"}) {
    const Policies policies = {{{family}, 1}, {{family}, 132}, {{family}, 1, kNearMemories, true}};
    check_reductions({{2, 131}, {3, 300}, {7, 67}, {9, 33}, {40, 130}, {257, 5}, {300, 70}, {777, 13}, {2050, 35}}, 1,
                     policies);
    check_reductions({{9, 2, 70}, {20, 10, 13}, {70, 4, 3}, {5, 100, 9}, {9, 300, 37}, {3, 256, 6}, {10, 700, 5}}, 2,
                     policies);
    check_reductions({{3, 5, 4, 20}}, 2, policies);
    // Of several dims that follow each other in another order.
    const Policies turned = {{{family}, 132, kManyMemories}};
    check_reductions({{9, 3, 50}, {300, 5, 70}, {5, 2, 9, 41}}, 1, turned);
    check_reductions({{3, 40, 7, 4}, {4, 3, 90, 11}}, 4, turned);
  }
  // Rows that lie in runs: of two dims, with others between them.
  for (const char* family : {"wide_columns", "narrow_columns"}) {
    const Policies policies = {{{family}, 1}, {{family}, 132}, {{family}, 1, kNearMemories, true}};
    check_reductions({{2, 3, 4, 8}, {5, 2, 70, 16}, {3, 2, 300, 24}, {9, 2, 256, 8}, {40, 2, 8, 9}, {2, 2, 777, 40}}, 5,
                     policies);
    check_reductions({{2, 3, 2, 8, 20}, {2, 7, 4, 100, 8}}, 10, policies);
  }
  // Runs that do not start alike.
  check_reductions({{7, 2, 31, 5}, {300, 2, 3, 33}, {3, 2, 777, 41}, {2, 3, 5, 131}}, 5,
                   {{{"wide_columns"}, 1}, {{"wide_columns"}, 132, kManyMemories}, {{}, 132, kNearMemories, true}});
  // Units that meet in groups; of each kind of values.
  constexpr Reduced kTypes[] = {{"sum", Dtype::F64, Dtype::F64},   {"sum", Dtype::F32, Dtype::F32},
                                {"sum", Dtype::BF16, Dtype::F32},  {"sum", Dtype::I64, Dtype::I64},
                                {"amin", Dtype::F16, Dtype::F16},  {"max", Dtype::BF16, Dtype::BF16},
                                {"argmin", Dtype::F64, Dtype::F64}};
  for (const Reduced& r : kTypes)
    for (const char* family : {"wide_columns", "narrow_columns"}) {
      check({r.op, r.in, r.out, {70000, 2}, 1}, Policies(2, {{family}, 132}));
      check({r.op, r.in, r.out, {8292, 2}, 1}, Policies(kValues, {{family}, 132}));  // one in the last group
      check({r.op, r.in, r.out, {2, 9000, 9}, 2}, Policies(kValues, {{family}, 132}));
    }
}
void split() {  // more partials than a warp takes at once, and some lanes without; of each kind of values
  check_reductions({{2, 2048 * 35 + 5}}, 2, Policies(kValues, {{kRows, -1, 1, 1, -1, 0}, 132, kInPitch}));
  check_reductions({{3, 2048 * 11 + 5}}, 2, {{{kRows, -1, 4, 4, -1, 0}, 132, kInPitch}});
  check_reductions({{2, 2048 * 35 + 5}}, 2, Policies(kValues, {{kStrided, 32, 1, 1, -1}}));
  check_reductions({{2048 * 35 + 5, 2}}, 1, {{{kColumns, -1, -1, 1, -1}}});
}

// What is neighbours in memory is not along the row: short stretches of neighbours along it and long ones, several
// slices, rows and parts, in types and ops of each kind.
void transposed_rows() {
  constexpr const char* kFamily = "transposed_rows";
  constexpr Reduced kTypes[] = {{"sum", Dtype::F32, Dtype::F32},     {"sum", Dtype::BF16, Dtype::BF16},
                                {"mean", Dtype::F16, Dtype::F16},    {"norm2", Dtype::F32, Dtype::F32},
                                {"nansum", Dtype::BF16, Dtype::F32}, {"argmin", Dtype::F32, Dtype::F32},
                                {"max", Dtype::BF16, Dtype::BF16}};
  // Long stretches need blocks with more shared memory than all devices have.
  const Policies policies = {{{kFamily}, 1, kManyMemories, true},
                             {{kFamily}, 132, kManyMemories, true},
                             {{kFamily, -1, -1, 1}, 132, kManyMemories, true},
                             {{kFamily, -1, -1, 2, 0}, 1, kManyMemories, true},
                             {{kFamily}, 132, kManyMemories}};
  struct Shape {
    std::vector<int64_t> sizes;
    uint64_t along;
  };
  const Shape shapes[] = {{{40, 49}, 3},         {{64, 300}, 3},        {{17, 1030}, 3},    {{130, 64}, 3},
                          {{5, 24, 7, 9}, 14},   {{5, 24, 7, 9}, 15},   {{30, 32, 32}, 6},  {{3, 64, 70}, 7},
                          {{2, 9, 16, 50}, 15},  {{16, 3, 100}, 5},     {{70, 2050}, 3},    {{17, 6500}, 3},
                          {{2, 33, 53, 41}, 15}, {{2, 33, 53, 41}, 14}, {{3, 40, 2500}, 7}, {{3, 16, 4096}, 6},
                          {{18, 2, 30, 80}, 13}, {{2, 9001}, 3},        {{3, 2, 4100}, 5},  {{4, 20000}, 3},
                          {{2, 5, 53, 97}, 14},  {{9, 7, 3000}, 6},     {{11, 3, 2050}, 7}};
  for (const Reduced& r : kTypes)
    for (const Shape& shape : shapes) check({r.op, r.in, r.out, shape.sizes, shape.along}, policies);
}

// Norms of rows that have nothing else in common; more of them than a launch takes.
void listed_rows() {
  for (const char* op : {"norm2", "norm1", "nansum"})
    for (Dtype d : {Dtype::F32, Dtype::BF16, Dtype::F16})
      for (int multiprocessors : {1, 132}) {
        const long turn = seen++;
        if (few && d == Dtype::F16) continue;
        std::vector<Problem> problems;
        std::vector<std::vector<char>> elements, expected;
        for (int i = 0; i < 150; ++i) {
          const int64_t n = i % 37 == 5 ? 2048 * 35 + 5 : i % 11 == 3 ? 2048 + i : 1 + i * i % 700;
          problems.push_back({op, d, d, {n}, 1});
          elements.push_back(make_elements(d, n, seed + uint64_t(turn * 1000 + i), Values((turn + i) % kValues)));
          expected.push_back(solve_by_cpu(problems.back(), elements.back()));
        }
        simt::options.seed = seed + uint32_t(turn);
        simt::options.reverse = turn % 2;
        const auto memory = turn % 3 == 1 ? Memory::Misaligned : Memory::Contiguous;
        simt::options.title = std::string(op) + " of listed rows of dtype " + std::to_string(int(d));
        const auto actual = solve_list_by_emulation(problems, elements, memory, multiprocessors);
        for (size_t i = 0; i < problems.size(); ++i)
          expect_equal(actual[i], expected[i], simt::options.title + ", row " + std::to_string(i));
        ++done;
      }
}

// Two results of one look: of rows and columns by each family that has them, and by their halves where none does.
void two_results() {
  constexpr Reduced kTwo[] = {
      {"aminmax", Dtype::F32, Dtype::F32},          {"aminmax", Dtype::BF16, Dtype::BF16},
      {"aminmax", Dtype::F16, Dtype::F16},          {"aminmax", Dtype::U8, Dtype::U8},
      {"nansum_and_count", Dtype::F32, Dtype::F32}, {"nansum_and_count", Dtype::BF16, Dtype::F32},
      {"nansum_and_count", Dtype::F16, Dtype::F32}, {"nansum_and_count", Dtype::F32, Dtype::F64}};
  auto check_two = [&](const std::vector<std::vector<int64_t>>& shapes, uint64_t along, const Policies& policies) {
    for (const Reduced& r : kTwo)
      for (const auto& sizes : shapes) check({r.op, r.in, r.out, sizes, along}, policies);
  };
  check_two({{70, 7}, {40, 16}, {33, 64}, {9, 100}, {7, 255}, {5, 257}, {9, 500}, {3, 1000}, {3, 2049}, {2, 20000}}, 2,
            {{{}, 132, kInPitch},
             {{}, 1, kInPitch},
             {{kRows, -1, -1, -1, -1}, 132, kInPitch},
             {{kRows, -1, -1, -1, -1, 1}, 132, kInPitch},
             {{kRows, -1, 2, 4, -1, 0}, 132, kInPitch},
             {{kRows, -1, -1, 1, -1, 0}, 132, kInPitch},
             {{kPackedRows, -1, -1, -1, -1}, 1, kInPitch},
             {{kPackedRows, 4, -1, -1, -1}, 2, kInPitch}});
  for (const char* family : {"wide_columns", "narrow_columns", "columns"}) {
    const Policies policies = {{{family}, 1}, {{family}, 132}, {{family}, 1, kNearMemories, true}};
    check_two({{2, 131}, {7, 67}, {40, 130}, {257, 5}, {300, 70}, {777, 13}, {2050, 35}, {8292, 2}}, 1, policies);
    check_two({{9, 2, 70}, {5, 100, 9}, {9, 300, 37}, {10, 700, 5}}, 2, policies);
  }
  check_two({{9, 20, 11}, {2, 300, 3}}, 5, {{{}, 132}});
}

// ---- scans ----------------------------------------------------------------------------------------------------------

struct Scanned {
  const char* op;
  Dtype in, out;
};
constexpr Scanned kScanned[] = {
    {"cumsum", Dtype::F32, Dtype::F32},       {"cumsum", Dtype::BF16, Dtype::BF16},
    {"cumsum", Dtype::F64, Dtype::F64},       {"cumsum", Dtype::I64, Dtype::I64},
    {"cumsum", Dtype::BF16, Dtype::F64},      {"cumsum", Dtype::I64, Dtype::F32},
    {"cumsum", Dtype::BF16, Dtype::F32},      {"cumsum", Dtype::U8, Dtype::I64},
    {"cumsum", Dtype::F16, Dtype::F16},       {"cumprod", Dtype::F32, Dtype::F32},
    {"cumprod", Dtype::BF16, Dtype::F64},     {"cumprod", Dtype::I8, Dtype::I64},
    {"cumprod", Dtype::F16, Dtype::F16},      {"logcumsumexp", Dtype::F32, Dtype::F32},
    {"logcumsumexp", Dtype::F16, Dtype::F16}, {"cummax", Dtype::BF16, Dtype::BF16},
    {"cummin", Dtype::F64, Dtype::F64},       {"cummax", Dtype::Bool, Dtype::Bool},
    {"decayed_sum", Dtype::F32, Dtype::F32},  {"decayed_sum", Dtype::F64, Dtype::F64},
};
void check_scans(const std::vector<std::vector<int64_t>>& shapes, uint64_t along, const Policies& policies) {
  for (const Scanned& s : kScanned) {
    int turn = 0;
    const std::string_view op = s.op;
    const bool inclusive = op == "cummax" || op == "cummin" || op == "decayed_sum";
    for (const auto& sizes : shapes) {
      check({s.op, s.in, s.out, sizes, along}, policies);
      check({s.op, s.in, s.out, sizes, along, turn % 3 != 0 && !inclusive, turn % 3 != 1}, policies);
      ++turn;
    }
  }
}

constexpr const char *kShortRows = "short_rows", *kRowPairs = "row_pairs", *kExtremeRows = "extreme_rows",
                     *kChain = "chain", *kExtremeChain = "extreme_chain", *kRing = "ring", *kRingPairs = "ring_pairs",
                     *kRingColumns = "ring_columns", *kColumnTeams = "column_teams", *kColumnWalk = "column_walk",
                     *kShortColumns = "short_columns", *kExtremeColumns = "extreme_columns",
                     *kColumnStrips = "column_strips", *kRaggedColumns = "ragged_columns",
                     *kColumnTiles = "column_tiles";

void scan_rows() {  // walked by a warp each, or a few lanes a row
  const Policies policies = {{{}, 1}, {{kRows}}, {{kRows, 32, -1, -1, 0}}, {{kShortColumns}}, {{kColumnTiles}}};
  check_scans({{1, 1}, {300, 7}, {40, 8}, {17, 9}, {33, 64}, {3, 255}, {9, 256}, {2, 257}, {3, 2000}, {2, 8193}}, 2,
              policies);
}
void unaligned_rows() {  // of at most a tile, or a block tile
  const Policies policies = {{{kShortRows, -1, -1, -1, 0}, 132, kInPitch}};
  check_scans({{1, 1}, {700, 7}, {5000, 2}, {40, 8}, {600, 9}, {33, 64}, {70, 255}, {9, 257}, {3, 1999}, {2, 8000}}, 2,
              policies);
  constexpr Scanned kTypes[] = {{"cumsum", Dtype::F32, Dtype::F32},
                                {"cumsum", Dtype::BF16, Dtype::BF16},
                                {"cumsum", Dtype::F16, Dtype::F16},
                                {"cumsum", Dtype::I16, Dtype::I64},
                                {"cumsum", Dtype::Bool, Dtype::I64}};
  for (const Scanned& s : kTypes)
    for (int form = 0; form < 4; ++form)  // exclusive, reverse
      for (const auto& sizes : std::vector<std::vector<int64_t>>{
               {700, 3}, {300, 12}, {90, 100}, {33, 250}, {9, 300}, {11, 1001}, {5, 1002}, {4, 2051}, {4, 4096}})
        check({s.op, s.in, s.out, sizes, 2, form % 2 != 0, form / 2 != 0}, policies);
}
// Of which type they are is uniform data, and so is whether 16-bit floats have results of float32: every family,
// aligned or not.
void uniform_types() {
  const Policies rows = {{{kRows}, 132, kInPitch}, {{kChain}, 132, kInPitch}, {{kShortRows}, 132, kInPitch}},
                 columns = {{{kColumnWalk}}, {{kShortColumns}}, {{kColumnTiles}}};
  constexpr Scanned kTypes[] = {{"cumsum", Dtype::U8, Dtype::I64},   {"cumsum", Dtype::I8, Dtype::I64},
                                {"cumsum", Dtype::I16, Dtype::I64},  {"cumsum", Dtype::I32, Dtype::I64},
                                {"cumsum", Dtype::Bool, Dtype::I64}, {"cumsum", Dtype::BF16, Dtype::F32},
                                {"cumsum", Dtype::F16, Dtype::F32},  {"cumsum", Dtype::BF16, Dtype::BF16}};
  for (const Scanned& s : kTypes)
    for (int form = 0; form < 4; ++form) {  // exclusive, reverse
      for (const auto& sizes : std::vector<std::vector<int64_t>>{{70, 9}, {40, 64}, {9, 384}, {5, 1001}, {3, 2048}})
        check({s.op, s.in, s.out, sizes, 2, form % 2 != 0, form / 2 != 0}, rows);
      for (const auto& sizes : std::vector<std::vector<int64_t>>{{41, 40}, {300, 7}})
        check({s.op, s.in, s.out, sizes, 1, form % 2 != 0, form / 2 != 0}, columns);
    }
}
void packed_rows() {  // shorter than a group
  const Policies policies = {{{kPackedRows, -1, -1, -1, -1}, 132, kInPitch}};
  const std::vector<std::vector<int64_t>> shapes = {{1, 1},    {3001, 1}, {2, 2},    {2048, 2}, {300, 3}, {5003, 3},
                                                    {4100, 4}, {700, 5},  {2047, 6}, {1, 7},    {2333, 7}};
  check_scans(shapes, 2, policies);
  for (Dtype d : {Dtype::F32, Dtype::BF16, Dtype::F64})
    for (int form = 0; form < 4; ++form)  // exclusive, reverse
      for (const auto& sizes : shapes) check({"cumsum", d, d, sizes, 2, form % 2 != 0, form / 2 != 0}, policies);
}
// A block a row of two block tiles, where they are few.
void two_block_tiles() {
  constexpr Scanned kTypes[] = {{"cumsum", Dtype::F32, Dtype::F32},
                                {"cumsum", Dtype::BF16, Dtype::BF16},
                                {"cumsum", Dtype::I32, Dtype::I64},
                                {"logcumsumexp", Dtype::F16, Dtype::F16}};
  for (const Scanned& s : kTypes)
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{1, 8193}, {3, 8208}, {2, 12345}, {5, 16384}})
      for (int form = 0; form < 4; ++form)
        check({s.op, s.in, s.out, sizes, 2, form % 2 != 0, form / 2 != 0}, {{{}, 132, 1}, {{kRows}, 132, 1}});
  // Those that are little longer than one, by as many warps as they need; of 16 bits wherever they begin.
  const Policies little = {{{kShortRows}, 1, 1, true}, {{kShortRows}, 1, kInPitch, true}};
  for (const Scanned& s : kTypes)
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{3, 8193}, {4, 9001}, {3, 10240}, {3, 11263}})
      for (int form = 0; form < 4; ++form) check({s.op, s.in, s.out, sizes, 2, form % 2 != 0, form / 2 != 0}, little);
}
void wide_rows() {  // of at most a tile, or a block tile
  const Policies policies = {{{kShortRows, -1, -1, -1, -1}, 132, 1}};
  check_scans({{1, 7}, {1, 250}, {1, 2001}, {1, 8191}, {300, 16}, {40, 64}, {9, 256}, {3, 272}, {9, 1040}, {3, 2064}},
              2, policies);
  check_scans({{2, 8192}, {5, 4112}}, 2, {{{kShortRows, -1, 8, -1, -1}, 132, 1}});
}
void scan_columns() {
  const Policies policies = {{{}, 1},
                             {{}, 1, kNearMemories, true},
                             {{kColumnTiles}},
                             {{kShortColumns}},
                             {{kShortColumns}, 1, kNearMemories, true},
                             {{kRows, -1, -1, -1, -1}}};
  check_scans({{1, 1}, {8, 300}, {9, 33}, {256, 3}, {300, 7}, {512, 18}, {257, 1}, {2000, 33}, {8200, 2}}, 1, policies);
  check_scans({{5, 300, 3}}, 2, policies);
}
void short_columns() {
  const Policies policies = {{{kShortColumns, -1, -1, -1, -1}, 1, 1},
                             {{kShortColumns, -1, -1, -1, -1}, 2, 1, true},
                             {{kShortColumns, -1, -1, -1, 0}, 2, 1}};
  check_scans({{1, 16}, {8, 320}, {250, 48}, {256, 64}, {7, 1000}, {33, 132}, {100, 8}, {500, 64}, {300, 1000}}, 1,
              policies);
  check_scans({{5, 200, 32}, {3, 17, 100}}, 2, policies);
}
// Blocks that share strips, few and many: whoever is late, what a block waits for does not wait for the block.
void late_blocks() {
  for (int multiprocessors : {2, 3, 4, 6, 9})
    for (Dtype d : {Dtype::F32, Dtype::BF16})
      for (const auto& sizes : std::vector<std::vector<int64_t>>{
               {40000, 18}, {100000, 1}, {60000, 3}, {12000, 33}, {12000, 65}, {8000, 131}, {1000, 1849}})
        check({"cumsum", d, d, sizes, 1},
              {{{}, multiprocessors, kInPitch, true}, {{kRaggedColumns}, multiprocessors, kInPitch, true}});
}
// Columns whose rows start anywhere: strips of them, and what is left of a strip, in tiles and what is left of one.
void ragged_columns() {
  const Policies one = {{{kRaggedColumns, -1, -1, -1, -1}, 1, kInPitch, true}},
                 some = {{{kRaggedColumns, -1, -1, -1, -1}, 5, kInPitch, true}};
  for (Dtype d : {Dtype::F32, Dtype::BF16, Dtype::F16})
    for (const Policies& p : {one, some})
      for (const auto& sizes : std::vector<std::vector<int64_t>>{{257, 33},
                                                                 {300, 165},
                                                                 {512, 64},
                                                                 {513, 127},
                                                                 {700, 129},
                                                                 {1025, 137},
                                                                 {2000, 31},
                                                                 {600, 255},
                                                                 {530, 337}})
        for (int form = 0; form < 4; ++form)  // exclusive, reverse
          check({"cumsum", d, d, sizes, 1, form % 2 != 0, form / 2 != 0}, p);
  for (const Policies& p : {one, some})
    for (Dtype d : {Dtype::F32, Dtype::BF16}) {
      check({"cumsum", d, d, {3, 400, 135}, 2}, p);
      check({"cumsum", d, d, {2, 2, 300, 167}, 4, true, true}, p);
      check({"cumsum", d, d, {9000, 2, 141}, 1, false, true}, p);
      check({"cumsum", d, d, {8192 + 300, 169}, 1}, p);
      check({"cumsum", d, d, {2 * 8192 + 130, 65}, 1, true}, p);
    }
  // Strips of whole sectors.
  for (const Policies& p : {one, some}) {
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{257, 1849}, {390, 1801}, {520, 1843}})
      for (int form = 0; form < 4; ++form)
        check({"cumsum", Dtype::F32, Dtype::F32, sizes, 1, form % 2 != 0, form / 2 != 0}, p);
    check({"cumsum", Dtype::F32, Dtype::F32, {2, 2, 300, 1793}, 4, true, true}, p);
  }
  check({"cumsum", Dtype::F32, Dtype::F32, {8192 + 130, 1793}, 1, true}, some);
  check({"cumsum", Dtype::F16, Dtype::F16, {kSuperblock + 8192 + 77, 33}, 1}, some);
}
void chain() {
  const Policies policies = {{{kChain, -1, -1, -1, -1}}, {{kChain, -1, -1, -1, 0}}, {{kExtremeChain}}};
  check_scans({{2, 300}, {1, 8191}, {3, 8192}, {2, 8193}, {1, 3 * 8192 + 5}}, 2, policies);
  check_scans({{1, 2 * kSuperblock + 3 * 8192 + 5}}, 2, {{{kChain, -1, -1, -1, -1}}});
  for (Dtype d : {Dtype::F32, Dtype::F64})  // three inputs
    for (int reverse = 0; reverse < 2; ++reverse)
      for (const auto& sizes : std::vector<std::vector<int64_t>>{{2, 300}, {2, 8192}, {1, 2 * 8192 + 1111}})
        check({"decayed_sum", d, d, sizes, 2, false, reverse != 0},
              {{{kChain}, 132, kNearMemories, true}, {{kChain}, 132, 1, true}, {{kChain}, 132, kInPitch}});
  // Elements of 8 bytes come by way of shared memory only where blocks may have more of it than everywhere.
  const Policies staged = {{{kChain, -1, -1, -1, -1}, 132, kNearMemories, true},
                           {{kChain, -1, -1, -1, -1}, 132, 1, true},
                           {{kChain, -1, -1, -1, 0}, 132, kInPitch, true},
                           {{kExtremeChain}, 132, kNearMemories, true}};
  constexpr Scanned kTypes[] = {{"cumsum", Dtype::F64, Dtype::F64},   {"cumsum", Dtype::I64, Dtype::I64},
                                {"cumsum", Dtype::U8, Dtype::I64},    {"cumprod", Dtype::BF16, Dtype::F64},
                                {"cumprod", Dtype::F32, Dtype::F32},  {"logcumsumexp", Dtype::BF16, Dtype::BF16},
                                {"cummax", Dtype::BF16, Dtype::BF16}, {"cummin", Dtype::F32, Dtype::F32},
                                {"cummax", Dtype::F64, Dtype::F64},   {"cummax", Dtype::I8, Dtype::I8}};
  for (const Scanned& s : kTypes)
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{2, 8192}, {1, 2 * 8192 + 1112}})
      for (int form = 0; form < 3; ++form)  // forwards, reverse, exclusive
        check({s.op, s.in, s.out, sizes, 2,
               form == 2 && std::string_view(s.op) != "cummax" && std::string_view(s.op) != "cummin", form == 1},
              staged);
}
// Stages and windows are used up several times over.
void ring() {
  constexpr Scanned kTypes[] = {{"cumsum", Dtype::F32, Dtype::F32},      {"cumsum", Dtype::BF16, Dtype::BF16},
                                {"cumsum", Dtype::F16, Dtype::F16},      {"cumprod", Dtype::F32, Dtype::F32},
                                {"cumprod", Dtype::BF16, Dtype::BF16},   {"logcumsumexp", Dtype::F32, Dtype::F32},
                                {"logcumsumexp", Dtype::F16, Dtype::F16}};
  const Policies policies = {{{kRing, -1, -1, -1, -1}, 3, kInPitch, true}};
  for (const Scanned& s : kTypes)
    for (int form = 0; form < 4; ++form) {  // exclusive, reverse
      check({s.op, s.in, s.out, {9, 300}, 2, form % 2 != 0, form / 2 != 0}, policies);
      check({s.op, s.in, s.out, {5, 8193}, 2, form % 2 != 0, form / 2 != 0}, policies);  // of a last tile no result
      check({s.op, s.in, s.out, {3, 3 * 8192 + 5}, 2, form % 2 != 0, form / 2 != 0}, policies);
      check({s.op, s.in, s.out, {2, 4 * 8192}, 2, form % 2 != 0, form / 2 != 0}, policies);
    }
  const Policies few = {{{kRing, -1, -1, -1, -1}, 2, kInPitch, true}};
  check({"cumsum", Dtype::F32, Dtype::F32, {1, 70 * 8192 + 9}, 2}, few);
  for (int form = 0; form < 4; ++form)  // stages of several rows are loaded again early
    check({"cumsum", Dtype::F32, Dtype::F32, {12, 2 * 8192 + 5}, 2, form % 2 != 0, form / 2 != 0}, few);
  check({"cumsum", Dtype::BF16, Dtype::BF16, {1, 200 * 8192 + 9}, 2, false, true}, few);
  check({"cumprod", Dtype::F32, Dtype::F32, {1, 70 * 8192 + 9}, 2}, few);  // carries by superblocks
  check({"logcumsumexp", Dtype::BF16, Dtype::BF16, {2, 66 * 8192 + 9}, 2, true}, few);
  // As many block tiles a row as blocks: two warps form the carries.
  check({"cumsum", Dtype::F32, Dtype::F32, {3, 33 * 8192 + 9}, 2}, {{{kRing, -1, -1, -1, -1}, 34, kInPitch, true}});
  // The superblock before may have no total yet; of each three in a row, one's elements at least show it.
  check({"cumprod", Dtype::F32, Dtype::F32, {1, 34 * 8192 + 9}, 2}, Policies(3, few[0]));
}
// The same of two inputs: a before or behind its position, and with b's rows or broadcast over them.
void ring_pairs() {
  for (Dtype d : {Dtype::F32, Dtype::BF16, Dtype::F16}) {
    for (int form = 0; form < 6; ++form) {
      Problem p{"linear_scan", d, d, {}, 2};
      p.reverse = form % 2;
      p.initial = form / 2 == 1;
      p.shifted = form / 2 == 2;
      for (const auto& sizes : std::vector<std::vector<int64_t>>{{1, 1},
                                                                 {1, 7},
                                                                 {1, 301},
                                                                 {9, 304},
                                                                 {1, 3 * 8192 + 5},
                                                                 {1, 2 * 8192 + 1},
                                                                 {3, 3 * 8192 + 8},
                                                                 {2, 5 * 8192}})
        for (uint64_t spread : {0, 1}) {
          p.sizes = sizes;
          p.spread = spread;
          check(p, {{{kRingPairs, -1, -1, -1, -1}, 3, 1, true}});
          check(p, {{{}, 2, kInPitch, true}});  // wherever they lie in memory, as the planner chooses
        }
    }
    Problem p{"linear_scan", d, d, {1, 70 * 8192 + 9}, 2, false, d == Dtype::F16};  // carries by superblocks
    for (int form = 0; form < 2; ++form, p.initial = true) check(p, {{{kRingPairs, -1, -1, -1, -1}, 2, 1, true}});
    p.initial = false;
    p.shifted = true;
    for (int multiprocessors : {2, 3, 5}) {
      p.sizes = {4, 8 * 8192 + 8};
      check(p, {{{kRingPairs, -1, -1, -1, -1}, multiprocessors, 1, true}});
    }
  }
}
// The same of two to seven columns that are one run of memory: parts of block tiles, whole and not, of few and many
// block tiles a row of each of several batches.
void ring_columns() {
  auto run = [](Dtype d, const std::vector<int64_t>& sizes, uint64_t along, int form, int multiprocessors) {
    check({"cumsum", d, d, sizes, along, form % 2 != 0, form / 2 != 0},
          {{{kRingColumns, -1, -1, -1, -1}, multiprocessors, 1, true}});
  };
  for (Dtype d : {Dtype::F32, Dtype::BF16, Dtype::F16})
    for (int64_t columns : {2, 3, 4, 5, 6, 7})
      for (int form = 0; form < 4; ++form) {  // exclusive, reverse
        if (columns > 4 && (form + columns) % 2) continue;
        for (int64_t n : {1, 300, 1025, 2048, 8193, 3 * 8192 + 5, 4 * 8192}) run(d, {n, columns}, 1, form, 3);
        run(d, {3, 2 * 8192 + 2056, columns}, 2, form, 4);
        run(d, {9, 4104, columns}, 2, form, 5);
        run(d, {5, 4099, columns}, 2, form, 4);  // each starts elsewhere in a granule
        // Wherever they lie in memory, as the planner chooses.
        check({"cumsum", d, d, {8192 + 2057, columns}, 1, form % 2 != 0, form / 2 != 0},
              Policies(3, {{}, 3, kInPitch, true}));
      }
  for (int64_t columns : {2, 3, 4, 5, 7})
    for (Dtype d : {Dtype::F32, Dtype::BF16}) {
      run(d, {70 * 8192 + 9, columns}, 1, 0, 2);
      run(d, {40 * 8192 + 2048, columns}, 1, 2, 7);
    }
  run(Dtype::BF16, {200 * 8192 + 9, 2}, 1, 0, 2);
  for (int multiprocessors : {2, 3, 5})
    run(Dtype::F32, {30, 2049, 4}, 2, 1, multiprocessors);  // nothing of a last part is written
}

// Strips of columns by warps with roles: rows of 16 to 128 bytes that are one run of memory, several strips, one that
// lacks a column or two; whole jobs and not, several block tiles, batches.
void column_strips() {
  auto run = [](Dtype d, const std::vector<int64_t>& sizes, uint64_t along, int form, int multiprocessors) {
    check({"cumsum", d, d, sizes, along, form % 2 != 0, form / 2 != 0},
          {{{kColumnStrips, -1, -1, -1, -1}, multiprocessors, 1, true}});
  };
  for (Dtype d : {Dtype::F32, Dtype::BF16, Dtype::F16})
    for (int form = 0; form < 4; ++form) {  // exclusive, reverse
      const int64_t line = 128 / size_of(d);
      for (int64_t columns : {line / 8, line / 4, line / 2, line, 3 * line})
        for (int64_t n : {257, 512, 2049}) run(d, {n, columns}, 1, form, 3);
      run(d, {3 * 8192 + 300, line / 4}, 1, form, 4);
      run(d, {8192 + 512, line}, 1, form, 2);
      run(d, {300, 34 * line - 16 / size_of(d)}, 1, form, 5);
      run(d, {3, 520, line / 2}, 2, form, 4);
      run(d, {8192 + 256, 2 * line}, 1, form, 5);
      // Wherever they lie in memory.
      check({"cumsum", d, d, {2049, line / 4}, 1, form % 2 != 0, form / 2 != 0},
            Policies(3, {{kColumnStrips, -1, -1, -1, -1}, 3, kInPitch, true}));
    }
  for (Dtype d : {Dtype::F32, Dtype::BF16}) {
    run(d, {70 * 8192 + 9, 16 / size_of(d)}, 1, 0, 3);
    run(d, {34 * 8192, 16 / size_of(d)}, 1, 2, 5);
  }
}

// ---- both -----------------------------------------------------------------------------------------------------------

// Offsets beyond 2^31, in every family: of reductions, then of scans.
void far() {
  const Policies policies = {{{}}, {{kStrided, -1, -1, -1, -1}}, {{kColumns, -1, -1, -1, -1}}};
  for (uint64_t along : {1, 2}) {
    check({"sum", Dtype::U8, Dtype::I64, {3, 40}, along}, policies, true);
    check({"max", Dtype::I8, Dtype::I8, {3, 2500}, along}, policies, true);
    check({"sum", Dtype::BF16, Dtype::BF16, {3, 300}, along}, policies, true);
  }
}
void far_scans() {
  const Policies policies = {{{}}, {{kRows}}, {{kShortColumns}}, {{kColumnTiles}}, {{kChain}}};
  for (uint64_t along : {1, 2}) {
    check({"cumsum", Dtype::U8, Dtype::U8, {3, 40}, along}, policies, true);
    check({"cumsum", Dtype::BF16, Dtype::BF16, {3, 300}, along, false, true}, policies, true);
  }
}

// A fourth superblock: the totals of three are folded from the left. Who looks back meets them in any state, so often.
void superblocks() {
  const int64_t n = 3 * kSuperblock + 2 * 8192 + 5;
  const Policies chains(5, {{kChain, -1, -1, -1, -1}});
  check({"cumsum", Dtype::F64, Dtype::F64, {1, n}, 2}, {{{kRows, -1, -1, -1, -1}}, {{kColumnTiles, -1, -1, -1, -1}}});
  check({"cumsum", Dtype::F64, Dtype::F64, {1, n}, 2}, chains);
  // Of accumulators of 4 bytes the first four have no look-back.
  check({"cumsum", Dtype::F32, Dtype::F32, {1, 4 * kSuperblock + 2 * 8192 + 5}, 2},
        Policies(2, {{kChain, -1, -1, -1, -1}}));
  check({"cumsum", Dtype::F64, Dtype::F64, {n, 1}, 1}, {{{kColumnTiles, -1, -1, -1, -1}, 2, 1}});
  check({"cumsum", Dtype::F64, Dtype::F64, {n, 2}, 1}, {{{kColumnTiles, -1, -1, -1, -1}, 2, 1}});
}

// Rows of at most a block tile, of two inputs, that lanes hold as a whole: a few lanes a row, several
// rows a lane, or some warps a row with one tile each or several.
void row_pairs() {
  Policies policies = {{{kRowPairs, -1, -1, -1, -1}, 132, 1, false, kInPitch}, {{kRowPairs, 32, -1, -1, 0}, 132, 2}};
  for (int warps = 1; warps <= 8; warps *= 2) policies.push_back({{kRowPairs, -1, warps, -1, -1}, 132, kInPitch});
  const std::vector<std::vector<int64_t>> shapes = {{1, 1},    {700, 8},  {500, 13}, {400, 16}, {300, 24}, {300, 64},
                                                    {70, 200}, {9, 256},  {5, 272},  {5, 1024}, {90, 100}, {40, 250},
                                                    {3, 1999}, {3, 4096}, {2, 8191}, {2, 8192}};
  int turn = 0;
  for (const auto& sizes : shapes)
    for (Dtype d : {Dtype::F32, Dtype::BF16, Dtype::F64})
      for (int form = 0; form < 3; ++form, ++turn) {
        Problem p{"linear_scan", d, d, sizes, 2};
        p.reverse = turn % 2;
        p.initial = form == 1;
        p.shifted = form == 2;
        p.spread = turn % 4 == 3 ? turn / 4 % 4 : 0;
        check(p, policies);
      }
  for (Dtype d : {Dtype::F32, Dtype::F16}) check({"linear_scan", d, d, {5, 13, 40}, 4, false, false, true}, policies);
}

// Rows with indices: several a warp, one of several steps, or tiles of a chain; wherever pairs lie, and around the
// lengths at which a row takes one chunk or lane more.
void extremes() {
  const Policies rows = {{{kExtremeRows, -1, -1, -1, -1}, 132, kInPitch},
                         {{kExtremeRows, 32, -1, -1, -1}, 132, kInPitch},
                         {{kExtremeRows, -1, -1, -1, -1}}},
                 chains = {{{kExtremeChain, -1, -1, -1, -1}, 132, kInPitch}, {{kExtremeChain, -1, -1, -1, -1}, 132, 1}};
  constexpr Scanned kTypes[] = {{"cummax", Dtype::F32, Dtype::F32},   {"cummin", Dtype::F32, Dtype::F32},
                                {"cummax", Dtype::BF16, Dtype::BF16}, {"cummin", Dtype::F16, Dtype::F16},
                                {"cummax", Dtype::F64, Dtype::F64},   {"cummin", Dtype::I64, Dtype::I64},
                                {"cummax", Dtype::U8, Dtype::U8},     {"cummin", Dtype::Bool, Dtype::Bool}};
  int turn = 0;
  for (const Scanned& s : kTypes) {
    for (const auto& sizes : std::vector<std::vector<int64_t>>{
             {1, 1},   {700, 2}, {300, 3}, {90, 7},  {40, 16},  {33, 17},  {70, 31},  {70, 32},  {40, 33},
             {70, 63}, {33, 64}, {40, 65}, {9, 100}, {17, 127}, {17, 128}, {9, 129},  {9, 255},  {9, 256},
             {9, 257}, {9, 511}, {9, 513}, {9, 767}, {9, 1001}, {3, 1023}, {3, 1024}, {2, 2500}, {9, 767}})
      for (int reverse = 0; reverse < 2; ++reverse, ++turn)
        for (const Policy& p : rows) check({s.op, s.in, s.out, sizes, 2, false, reverse != 0}, {p});
    const int64_t tile = scans::extreme_tile(is_float(s.in) ? size_of(s.in) : 8);
    for (const auto& sizes : std::vector<std::vector<int64_t>>{
             {3, 1}, {2, 300}, {3, tile - 15}, {3, tile - 1}, {2, tile}, {2, tile + 1}, {3, 3 * tile + 77}})
      for (int reverse = 0; reverse < 2; ++reverse) check({s.op, s.in, s.out, sizes, 2, false, reverse != 0}, chains);
  }
  const Policies turns = {{{kExtremeRows, -1, -1, -1, -1}, 1, kInPitch}};  // several rows a warp, again and again
  for (Dtype d : {Dtype::F32, Dtype::BF16, Dtype::F64, Dtype::U8})
    for (const auto& sizes :
         std::vector<std::vector<int64_t>>{{1600, 64}, {3003, 30}, {3001, 16}, {901, 128}, {801, 41}})
      for (int reverse = 0; reverse < 2; ++reverse) check({"cummax", d, d, sizes, 2, false, reverse != 0}, turns);
  for (int reverse = 0; reverse < 2; ++reverse) {
    check({"cummax", Dtype::F64, Dtype::F64, {1, 70 * scans::extreme_tile(8) + 5}, 2, false, reverse != 0},
          Policies(3, chains[0]));  // three superblocks
    for (Dtype d : {Dtype::F32, Dtype::BF16}) {
      check({"cummin", d, d, {5, 3, 600}, 4, false, reverse != 0}, rows);
      check({"cummin", d, d, {5, 40, 3}, 2, false, reverse != 0}, rows);
      check({"cummax", d, d, {3, 300}, 2, false, reverse != 0}, {{{kExtremeRows, -1, -1, -1, -1}}, {{kExtremeChain}}},
            true);
    }
  }
}

// Tiles of columns, one or two a lane: rows of a warp that lie side by side or not, strips that lack columns,
// tiles that end anywhere, and columns of several block tiles and superblocks of them, started in any order.
void check_tiles(const char* family, const std::vector<Scanned>& types, bool exclusive) {
  const Policies policies = {{{family}, 132, kNearMemories}, {{family, -1, -1, -1, 0}, 132, 1}};
  for (const Scanned& s : types)
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{257, 64},
                                                               {300, 1},
                                                               {8193, 1},
                                                               {1000, 2},
                                                               {700, 3},
                                                               {1030, 7},
                                                               {2049, 16},
                                                               {600, 31},
                                                               {513, 32},
                                                               {300, 33},
                                                               {900, 100},
                                                               {260, 130},
                                                               {8200, 32},
                                                               {8300, 34},
                                                               {3 * 8192 + 5, 5},
                                                               {40, 9, 8}})
      for (int reverse = 0; reverse < 2; ++reverse)
        check({s.op, s.in, s.out, sizes, 1, exclusive && sizes[0] % 4 < 2, reverse != 0}, policies);
  for (const Scanned& s : types)
    for (int reverse = 0; reverse < 2; ++reverse) {
      check({s.op, s.in, s.out, {3, 300, 64}, 2, exclusive, reverse != 0}, policies);
      check({s.op, s.in, s.out, {2, 3, 520, 6}, 4, false, reverse != 0}, policies);
      check({s.op, s.in, s.out, {1100, 2, 20}, 1, false, reverse != 0}, policies);
      check({s.op, s.in, s.out, {3, 300, 4}, 2, false, reverse != 0}, {policies[0]}, true);  // far apart
    }
  for (const Scanned& s : {types.front(), types.back()})  // more than a superblock of tiles
    check({s.op, s.in, s.out, {(kFan * kFan + 70) * 256 + 5, s.in == Dtype::F32 ? 5 : 6}, 1}, Policies(2, policies[0]));
}
void extreme_columns() {
  check_tiles(kExtremeColumns,
              {{"cummax", Dtype::F32, Dtype::F32},
               {"cummin", Dtype::F32, Dtype::F32},
               {"cummax", Dtype::BF16, Dtype::BF16},
               {"cummin", Dtype::F16, Dtype::F16}},
              false);
}
void column_tiles() {
  check_tiles(kColumnTiles,
              {{"cumprod", Dtype::F32, Dtype::F32},
               {"logcumsumexp", Dtype::F32, Dtype::F32},
               {"logcumsumexp", Dtype::F16, Dtype::F16},
               {"cumprod", Dtype::BF16, Dtype::BF16},
               {"cumsum", Dtype::F32, Dtype::F32}},
              true);
  check_tiles(kColumnTiles,
              {{"linear_scan", Dtype::F32, Dtype::F32},
               {"linear_scan", Dtype::F16, Dtype::F16},
               {"linear_scan", Dtype::BF16, Dtype::BF16}},
              false);
  // a with b's shape or broadcast, before or behind its position, after nothing or after an initial value.
  for (Dtype d : {Dtype::F32, Dtype::BF16})
    for (int form = 0; form < 24; ++form) {
      Problem p{"linear_scan", d, d, {form % 5 ? 700 + form : 8500, form % 7 ? 20 : 7}, 1};
      p.reverse = form % 2;
      p.initial = form / 2 % 3 == 1;
      p.shifted = form / 2 % 3 == 2;
      p.spread = uint64_t(form / 6);
      check(p, {{{kColumnTiles}, 132, kNearMemories}, {{kColumnTiles, -1, -1, -1, 0}, 132, 1}});
    }
}

// Two inputs: a with b's shape or broadcast, before or behind its position, after nothing or after an initial value.
void linear_scan() {
  const Policies rows = {{{}, 1},
                         {{kRowPairs}},
                         {{kRows}},
                         {{kRows, 32, -1, -1, 0}},
                         {{kShortColumns}},
                         {{kColumnTiles}},
                         {{kShortColumns}, 1, kNearMemories, true}};
  const Policies chains = {{{kChain, -1, -1, -1, -1}}, {{kChain, -1, -1, -1, 0}}, {{kRowPairs}}, {{kRows}}};
  for (Dtype d : {Dtype::F32, Dtype::BF16, Dtype::F16, Dtype::F64}) {
    int turn = 0;
    auto all_forms = [&](const std::vector<int64_t>& sizes, uint64_t along, const Policies& policies) {
      const uint64_t spreads[] = {0, along, 3 - along, 3};
      for (int form = 0; form < 6; ++form, ++turn) {
        Problem p{"linear_scan", d, d, sizes, along};
        p.reverse = form % 2;
        p.initial = form / 2 == 1;
        p.shifted = form / 2 == 2;
        p.spread = spreads[turn / 2 % 4];
        check(p, policies);
      }
    };
    for (const auto& sizes : std::vector<std::vector<int64_t>>{
             {1, 1}, {300, 7}, {40, 8}, {17, 9}, {33, 64}, {3, 255}, {9, 256}, {2, 257}, {3, 2000}, {2, 8193}}) {
      all_forms(sizes, 2, rows);
      all_forms({sizes[1], sizes[0]}, 1, rows);
    }
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{2, 300}, {3, 8192}, {2, 8193}, {1, 3 * 8192 + 5}})
      all_forms(sizes, 2, chains);
    // By way of shared memory also where elements are large.
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{2, 300}, {2, 8192}, {1, 2 * 8192 + 1112}})
      all_forms(sizes, 2,
                {{{kChain, -1, -1, -1, -1}, 132, 1, true}, {{kChain, -1, -1, -1, -1}, 132, kNearMemories, true}});
  }
  Problem p{"linear_scan", Dtype::F32, Dtype::F32, {1, 2 * kSuperblock + 3 * 8192 + 5}, 2};
  for (int form = 0; form < 2; ++form, p.initial = true) {
    check(p, Policies(3, {{kChain, -1, -1, -1, -1}}));
    check({"linear_scan", p.in, p.out, {p.sizes[1], 1}, 1, false, false, p.initial}, {{{kColumnTiles}}});
  }
}

// A lane, or of 16-bit elements one for two columns, walks each column alone. Of 64 columns and more the planner takes
// this where there is one multiprocessor.
void column_walk() {
  const Policies single = {{{kColumnWalk}}, {{kColumnWalk}, 132, 1}, {{kColumnWalk, -1, -1, -1, 0}}};
  check_scans({{1, 1}, {8, 300}, {9, 34}, {20, 130}, {64, 6}, {256, 4}, {257, 6}, {300, 7}, {512, 18}}, 1, single);
  check_scans({{70, 20, 3}, {5, 10, 6}}, 2, single);
  const Policies policies = {
      {{kColumnWalk, -1, -1, -1, -1}, 132, kNearMemories}, {{kColumnWalk, -1, -1, -1, -1}, 132, 1}, {{}, 1, 1}};
  auto all_forms = [&](Dtype d, const std::vector<int64_t>& sizes, uint64_t along, const Policies& policies) {
    const uint64_t dims = (uint64_t(1) << sizes.size()) - 1, spreads[] = {0, along, dims - along, dims, 1};
    for (int form = 0; form < 6; ++form) {
      Problem p{"linear_scan", d, d, sizes, along};
      p.reverse = form % 2;
      p.initial = form / 2 == 1;
      p.shifted = form / 2 == 2;
      for (uint64_t spread : spreads) {
        p.spread = spread;
        check(p, policies);
      }
    }
  };
  const std::vector<std::vector<int64_t>> shapes = {{1, 1},   {1, 6},    {7, 130}, {8, 64},    {33, 2},   {256, 64},
                                                    {264, 6}, {515, 80}, {24, 5},  {2000, 66}, {8193, 3}, {8200, 4}};
  int turn = 0;
  for (const auto& sizes : shapes)
    for (Dtype d : {Dtype::F32, Dtype::BF16, Dtype::F16, Dtype::F64}) {
      if (sizes[0] < 2000) all_forms(d, sizes, 1, policies);
      else
        for (int form = 0; form < 6; ++form, ++turn) {
          Problem p{"linear_scan", d, d, sizes, 1};
          p.reverse = form % 2;
          p.initial = form / 2 == 1;
          p.shifted = form / 2 == 2;
          p.spread = turn % 3;
          check(p, policies);
        }
      for (int reverse = 0; reverse < 2; ++reverse, ++turn) {
        check({turn % 4 < 2 ? "cummax" : "cummin", d, d, sizes, 1, false, reverse != 0}, policies);
        if (size_of(d) > 2) check({"decayed_sum", d, d, sizes, 1, false, reverse != 0}, policies);
      }
    }
  for (Dtype d : {Dtype::F32, Dtype::BF16, Dtype::F64}) {
    all_forms(d, {3, 300, 24}, 2, policies);
    all_forms(d, {3, 2, 40, 6}, 4, policies);
    for (uint64_t along : {1, 2, 4}) check({"cummax", d, d, {5, 300, 64}, along, false, along == 2}, policies);
    check({"cummin", d, d, {3, 300, 4}, 2, false, true}, {{{kColumnWalk, -1, -1, -1, -1}}}, true);  // far apart
    check({"linear_scan", d, d, {3, 300, 4}, 1}, {{{kColumnWalk, -1, -1, -1, -1}}}, true);
  }
  check({"decayed_sum", Dtype::F64, Dtype::F64, {5, 300, 64}, 2}, policies);
  for (int64_t columns : {1, 2}) {
    const Dtype d = columns == 1 ? Dtype::F32 : Dtype::BF16;
    for (const char* op : {"linear_scan", "cummax"})
      check({op, d, d, {2 * kSuperblock + 3 * 8192 + 5, columns}, 1}, {{{kColumnWalk, -1, -1, -1, -1}, 132, 1}});
  }
}

// The same where a team of lanes shares each column: half tiles that are whole, partial or missing, the second of a
// tile or its last one; strips that lack columns; several tiles, block tiles and superblocks.
void column_teams() {
  const Policies policies = {{{kColumnTeams, -1, -1, -1, -1}, 132, kNearMemories, true},
                             {{kColumnTeams, -1, -1, -1, -1}, 132, 1, true},
                             {{}, 1, 1, true}};
  int turn = 0;
  auto run = [&](Dtype d, const std::vector<int64_t>& sizes, uint64_t along, bool all) {
    const uint64_t dims = (uint64_t(1) << sizes.size()) - 1, spreads[] = {0, along, dims - along, dims, 1};
    for (int form = 0; form < 6; ++form)
      for (int i = 0; i < (all ? 5 : 1); ++i, ++turn) {
        Problem p{"linear_scan", d, d, sizes, along};
        p.reverse = form % 2;
        p.initial = form / 2 == 1;
        p.shifted = form / 2 == 2;
        p.spread = spreads[all ? i : turn % 5];
        check(p, policies);
      }
  };
  for (Dtype d : {Dtype::F32, Dtype::BF16, Dtype::F16}) {
    for (const auto& sizes :
         std::vector<std::vector<int64_t>>{{257, 64}, {300, 2}, {384, 130}, {385, 6}, {515, 66}, {1000, 70}})
      run(d, sizes, 1, true);
    for (const auto& sizes :
         std::vector<std::vector<int64_t>>{{2049, 64}, {8192, 6}, {8193, 4}, {3 * 8192 + 133, 6}, {257, 1}, {600, 65}})
      run(d, sizes, 1, false);
    run(d, {5, 300, 24}, 2, true);
    run(d, {3, 2, 400, 6}, 4, false);
    run(d, {300, 9, 8}, 1, false);
    check({"linear_scan", d, d, {300, 3, 4}, 1}, {{{kColumnTeams, -1, -1, -1, -1}, 132, 1, true}}, true);  // far apart
    check({"linear_scan", d, d, {2 * kSuperblock + 3 * 8192 + 5, 2}, 1}, {policies[1]});
  }
}

// Row-wise ops.
void rowwise() { done = check_rowwise(seed, every, few); }

// Norms over channels.
void channels() { done = check_channels(seed, every, few); }

// Rows that are added up by their numbers.
void segments() { done = check_segments(seed, every, few); }

// Segments that are rows of their own.
void scan_segments() { done = check_scan_segments(seed, every, few); }
void rowwise_segments() { done = check_rowwise_segments(seed, every, few); }

struct Group {
  const char* name;
  const char* kernels;  // of which .cu file; with those of rowwise.cu also those of weights.cu
  void (*run)();
};
constexpr Group kGroups[] = {
    {"rows", "reduce", rows},
    {"few_rows", "reduce", few_rows},
    {"short_rows", "reduce", short_rows},
    {"strided", "reduce", strided},
    {"short_strided", "reduce", short_strided},
    {"columns", "reduce", columns},
    {"split", "reduce", split},
    {"transposed_rows", "reduce", transposed_rows},
    {"listed_rows", "listed_rows", listed_rows},
    {"two_results", "reduce", two_results},
    {"channels", "channels", channels},
    {"segments", "segments", segments},
    {"column_families", "reduce", column_families},
    {"scan_rows", "scan", scan_rows},
    {"unaligned_rows", "scan", unaligned_rows},
    {"packed_rows", "scan", packed_rows},
    {"uniform_types", "scan", uniform_types},
    {"wide_rows", "scan", wide_rows},
    {"two_block_tiles", "scan", two_block_tiles},
    {"scan_columns", "scan", scan_columns},
    {"short_columns", "scan", short_columns},
    {"late_blocks", "scan", late_blocks},
    {"ragged_columns", "scan", ragged_columns},
    {"chain", "scan", chain},
    {"ring", "scan", ring},
    {"ring_pairs", "scan", ring_pairs},
    {"ring_columns", "scan", ring_columns},
    {"column_strips", "scan", column_strips},
    {"row_pairs", "scan", row_pairs},
    {"extremes", "scan", extremes},
    {"extreme_columns", "scan", extreme_columns},
    {"column_tiles", "scan", column_tiles},
    {"linear_scan", "scan", linear_scan},
    {"column_walk", "scan", column_walk},
    {"column_teams", "scan", column_teams},
    {"far", "reduce", far},
    {"far_scans", "scan", far_scans},
    {"superblocks", "scan", superblocks},
    {"rowwise", "rowwise", rowwise},
    {"scan_segments", "scan_segments", scan_segments},
    {"rowwise_segments", "rowwise_segments", rowwise_segments},
};

// ---- problems from a file -------------------------------------------------------------------------------------------

// Each line: op, dtype, dtype of values, bits of the dims, exclusive, reverse, family, number of dims, their sizes, and
// the name of the file with the elements, row-major; of linear_scan those of a, then those of b. The results,
// row-major, follow each other on standard output.
void solve(const char* path) {
  std::ifstream problems(path);
  for (std::string line; std::getline(problems, line);) {
    std::istringstream fields(line);
    Problem p;
    int in, out;
    std::string family;
    size_t dims;
    fields >> p.op >> in >> out >> p.along >> p.exclusive >> p.reverse >> family >> dims;
    p.in = Dtype(in);
    p.out = Dtype(out);
    p.sizes.resize(dims);
    for (int64_t& size : p.sizes) fields >> size;
    std::string name;
    fields >> name;
    std::ifstream file(name, std::ios::binary);
    const std::vector<char> elements((std::istreambuf_iterator<char>(file)), {});
    if (!fields || int64_t(elements.size()) != p.elements() * size_of(p.in)) {
      fprintf(stderr, "cannot read: %s\n", line.c_str());
      exit(1);
    }
    simt::options.title = line;
    const bool ring = family.rfind("ring", 0) == 0;
    simt::options.bulk_copies = ring;
    force_plan({family == "-" ? nullptr : family.c_str(), -1, -1, -1, -1});
    std::string plan;
    const auto result = solve_by_emulation(p, elements, Memory::Contiguous, Memory::Contiguous, Memory::Contiguous,
                                           false, ring ? 2 : 132, plan);
    std::cout.write(result.data(), std::streamsize(result.size()));
  }
}

}  // namespace

int main(int count, char** arguments) {
  std::vector<std::string> wanted;
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    if (name.rfind("--", 0) != 0) wanted.push_back(name);
    else if (name == "--few") few = true;
    else if (i + 1 == count) return fprintf(stderr, "%s needs a value\n", name.c_str()), 2;
    else if (name == "--wave") simt::options.wave = atoi(arguments[++i]);
    else if (name == "--seed") seed = uint32_t(atoi(arguments[++i]));
    else if (name == "--every") every = atol(arguments[++i]);
    else if (name == "--solve") return solve(arguments[++i]), 0;
    else return fprintf(stderr, "unknown option %s\n", name.c_str()), 2;
  }
  for (const Group& group : kGroups) {
    seen = done = 0;
    bool run = wanted.empty();
    for (const std::string& name : wanted) run = run || name == group.name || name == group.kernels;
    if (!run) continue;
    const clock_t start = clock();
    group.run();
    if (done == 0 && every > 1) {  // a group of so few cases that none was drawn runs whole
      const long some = every;
      every = 1;
      group.run();
      every = some;
    }
    if (done == 0) return printf("FAILED: %s: no case has run\n", group.name), 1;
    printf("%s, waves of %d lanes: %ld cases passed, in %.1f s of a CPU\n", group.name, simt::options.wave, done,
           double(clock() - start) / CLOCKS_PER_SEC);
    fflush(stdout);
  }
  return 0;
}
