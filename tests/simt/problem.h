// One call of an op on data in memory, as three judges compute it: the emulated GPU kernels, the CPU kernels and the
// plain loops of reference.h.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "array.h"

struct Problem {
  // A name of TR_FOR_EACH_REDUCTION_OP (call.h), or of TR_FOR_EACH_SCAN_OP, or decayed_sum, or linear_scan.
  std::string op;
  torchreduce::Dtype in;
  torchreduce::Dtype out;  // of values; an indexed op's indices are int64
  std::vector<int64_t> sizes;
  uint64_t along;  // bit d: dim d is reduced; of a scan: the scanned one
  bool exclusive = false, reverse = false;
  // Of linear_scan.
  bool initial = false, shifted = false;
  uint64_t spread = 0;  // bit d: a has size 1 along dim d

  bool scan() const;
  bool few() const;  // of a type that kernels are compiled for where they are for few (gpu.h), or of any type
  int64_t numel() const;
  // The elements are those of a, then those of b, then those of initial; of all other ops, those of the input alone.
  bool linear() const { return op == "linear_scan"; }
  std::vector<int64_t> a_sizes() const,
      initial_sizes() const;  // as dims of b; initial has size 1 along the scanned one
  int64_t elements() const;
  int64_t initials() const;                   // elements of initial
  std::vector<int64_t> result_sizes() const;  // reduced dims have size 1
};

// The result, row-major: the bytes of the values, where the op has them, and then of the indices.
std::vector<char> solve_by_cpu(const Problem& problem, const std::vector<char>& elements);
std::vector<char> solve_by_reference(const Problem& problem, const std::vector<char>& elements);

// By the emulated kernels, with the plan for a GPU of that many multiprocessors and what force_plan has set. Exits with
// a message when memory between the result's elements was written. `in_place`: a scan's output is its input.
std::vector<char> solve_by_emulation(const Problem& problem, const std::vector<char>& elements, Memory in, Memory a,
                                     Memory out, bool in_place, int multiprocessors, std::string& plan_text);

// Reductions that go by one launch, as many as a list of rows takes; a problem's result is element i of what comes
// back.
std::vector<std::vector<char>> solve_list_by_emulation(const std::vector<Problem>& problems,
                                                       const std::vector<std::vector<char>>& elements, Memory in,
                                                       int multiprocessors);
