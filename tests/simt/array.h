// Tensors of the tests: memory, strides, and elements that are the same on every machine.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "plan/call.h"

constexpr char kGap = 0x7f;  // what every byte between the elements holds: large numbers of any type

// How an array lies in memory. The memory ends with the last element, so that a read beyond it is found.
enum class Memory {
  Contiguous,
  Misaligned,  // starts one element later
  Pitched,     // the last dim's rows lie one element further apart
  Gaps,        // every other element of every dim
  Transposed,  // the first dim is the fastest
  Channels,    // the second dim is, if there is one
  Far          // the first dim steps by 2^30 bytes or more; what lies between is not looked at
};
constexpr int kNearMemories = 5;  // those before Channels
constexpr int kManyMemories = 6;  // those before Far

class Array {
 public:
  Array(torchreduce::Dtype dtype, const std::vector<int64_t>& sizes, Memory memory);
  void write(const std::vector<char>& elements);  // row-major
  std::vector<char> read() const;
  bool gaps_are_untouched() const;  // after construction, whatever was written to elements
  torchreduce::TensorFacts facts() const;
  char* data() const { return data_; }
  const std::vector<int64_t>& strides() const { return strides_; }

 private:
  std::vector<int64_t> offsets() const;  // of the elements, row-major, in bytes
  torchreduce::Dtype dtype_;
  std::vector<int64_t> sizes_, strides_;
  bool far_;
  int64_t bytes_;
  std::unique_ptr<char, std::function<void(char*)>> memory_;
  char* data_;
};

// What elements are, of which each may hide what another shows.
enum class Values {
  Plain,          // floats of 16 exponents and both signs, integers of all bits
  Hostile,        // floats also NaN, infinite, zeros, subnormals, and equal to one another; integers from 0 to 3
  Negative,       // plain ones with the top bit set, and those
  Positive,       //   without: all maxima, all minima lie on one side of zero
  NegativeZeros,  // every float is -0.0, the identity of addition; all bits of every integer are set
  Factors,        // floats a little nearer to 0 than 1, some of them negative, 0 or 1: their products stay in range
  NearOne,        // floats next to 1 and -1, on either side: products of very many are far from 0 and infinity
  Decaying        // floats from 1/2 to 1 and their negatives: products of many pass through all magnitudes, to 0
};
constexpr int kValues = 5;  // those before Factors

// Elements that a hash makes, the same on every machine.
std::vector<char> make_elements(torchreduce::Dtype dtype, int64_t count, uint64_t seed, Values values);
