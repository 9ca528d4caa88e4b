#include "array.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace torchreduce;

Array::Array(Dtype dtype, const std::vector<int64_t>& sizes, Memory memory)
    : dtype_(dtype), sizes_(sizes), strides_(sizes.size()), far_(memory == Memory::Far) {
  const size_t dims = sizes.size();
  int64_t stride = memory == Memory::Gaps ? 2 : 1;
  for (size_t i = 0; i < dims; ++i) {
    size_t d = memory == Memory::Transposed ? i : dims - 1 - i;
    if (memory == Memory::Channels && dims > 1 && d > 0) d = i == 0 ? 1 : d + 1;
    strides_[d] = stride;
    stride *= sizes[d] * (memory == Memory::Gaps ? 2 : 1);
    if (memory == Memory::Pitched && i == 0) ++stride;
  }
  if (far_) strides_[0] += int64_t(1) << 30;
  int64_t end = 1;  // of the last element
  for (size_t d = 0; d < dims; ++d) end = sizes[d] && end ? end + (sizes[d] - 1) * strides_[d] : 0;
  const int64_t skipped = memory == Memory::Misaligned ? 1 : 0;
  bytes_ = (skipped + end) * size_of(dtype);
  if (far_) {  // pages are there once they are written to
    void* pages =
        mmap(nullptr, size_t(bytes_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) {
      perror("no address space for an array");
      exit(1);
    }
    memory_ = {static_cast<char*>(pages), [bytes = bytes_](char* p) { munmap(p, size_t(bytes)); }};
  } else {
    memory_ = {new char[size_t(bytes_)], [](char* p) { delete[] p; }};
    memset(memory_.get(), kGap, size_t(bytes_));
  }
  data_ = memory_.get() + skipped * size_of(dtype);
}

std::vector<int64_t> Array::offsets() const {
  std::vector<int64_t> all{0};
  for (size_t d = 0; d < sizes_.size(); ++d) {
    std::vector<int64_t> next;
    for (int64_t offset : all)
      for (int64_t i = 0; i < sizes_[d]; ++i) next.push_back(offset + i * strides_[d] * size_of(dtype_));
    all = std::move(next);
  }
  return all;
}

void Array::write(const std::vector<char>& elements) {
  const size_t size = size_t(size_of(dtype_));
  size_t i = 0;
  for (int64_t offset : offsets()) memcpy(data_ + offset, &elements[size * i++], size);
}

std::vector<char> Array::read() const {
  std::vector<char> elements;
  for (int64_t offset : offsets()) elements.insert(elements.end(), data_ + offset, data_ + offset + size_of(dtype_));
  return elements;
}

bool Array::gaps_are_untouched() const {
  if (far_) return true;
  std::vector<char> rest(memory_.get(), memory_.get() + bytes_);
  for (int64_t offset : offsets()) memset(&rest[size_t(data_ - memory_.get() + offset)], kGap, size_t(size_of(dtype_)));
  return std::all_of(rest.begin(), rest.end(), [](char c) { return c == kGap; });
}

TensorFacts Array::facts() const { return {data_, dtype_, int(sizes_.size()), sizes_.data(), strides_.data()}; }

std::vector<char> make_elements(Dtype dtype, int64_t count, uint64_t seed, Values values) {
  const bool hostile = values == Values::Hostile;
  const size_t size = size_t(size_of(dtype));
  std::vector<char> all(size_t(count) * size);
  for (int64_t i = 0; i < count; ++i) {
    uint64_t h = seed + uint64_t(i + 1) * 0x9E3779B97F4A7C15u;  // splitmix64
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9u;
    h = (h ^ (h >> 27)) * 0x94D049BB133111EBu;
    h ^= h >> 31;
    uint64_t bits = h;
    if (dtype == Dtype::Bool) bits = h & 1;
    else if (!is_float(dtype)) bits = hostile ? h & 3 : h;
    else {
      const int width = int(size) * 8, fraction = dtype == Dtype::F16    ? 10
                                                  : dtype == Dtype::BF16 ? 7
                                                  : width == 32          ? 23
                                                                         : 52;
      const uint64_t top = (uint64_t(1) << (width - 1 - fraction)) - 1, u = h >> 40 & 127;
      uint64_t exponent = top / 2 - 8 + (h >> 52 & 15), rest = h & ((uint64_t(1) << fraction) - 1);
      if (hostile && u < 40) rest = 0, exponent = top / 2;                   // 1 and -1
      else if (hostile && u < 48) rest = 0, exponent = 0;                    // zeros
      else if (hostile && u < 56) exponent = 0;                              // subnormals
      else if (hostile && u == 56 && i % 512 < 2) exponent = top;            // NaN
      else if (hostile && u == 57) exponent = top - 1;                       // as large as can be
      else if (hostile && u == 58 && i % 512 < 2) exponent = top, rest = 0;  // infinities
      uint64_t sign = h >> 63;
      if (values == Values::Factors) {
        exponent = top / 2 - 1, rest |= uint64_t(7) << (fraction - 3), sign = u < 10;
        if (u == 0) exponent = 0, rest = 0;
        if (u == 10) exponent = top / 2, rest = 0;
      }
      if (values == Values::Decaying) exponent = top / 2 - 1;
      uint64_t magnitude = exponent << fraction | rest;
      if (values == Values::NearOne) {  // as far below as above, where steps are half as large
        const uint64_t steps = h & ((uint64_t(2) << std::max(fraction - 10, 0)) - 1);
        magnitude = (top / 2 << fraction) + (h >> 52 & 1 ? steps : -2 * steps);
      }
      bits = sign << (width - 1) | magnitude;
    }
    const uint64_t top_bit = dtype == Dtype::Bool ? 1 : uint64_t(1) << (8 * size - 1);
    if (values == Values::Negative) bits |= top_bit;
    if (values == Values::Positive) bits &= ~top_bit;
    if (values == Values::NegativeZeros) bits = is_float(dtype) ? top_bit : dtype == Dtype::Bool ? 1 : ~uint64_t(0);
    memcpy(&all[size_t(i) * size], &bits, size);
  }
  return all;
}
