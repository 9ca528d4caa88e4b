// The functions that a GPU has instructions of its own for and other code does in several steps, by name, each of four
// words to a word: so that tests run on a GPU what is an instruction there, and compare it with what runs elsewhere.
#pragma once
#include <string>
#include <vector>

#include "explog.h"
#include "kernels/common/gpu_packed.h"

namespace torchreduce {

// X(name, the word that it makes of the words w). Those of float32 take the bits of floats.
#define TR_FOR_EACH_INTRINSIC(X)                                                                              \
  X(f16_to_float, bit_cast<uint32_t>(to_float(F16{uint16_t(w[0])})))                                          \
  X(float_to_f16, to_f16(bit_cast<float>(w[0])).bits)                                                         \
  X(float_to_bf16, to_bf16(bit_cast<float>(w[0])).bits)                                                       \
  X(pack_f16, pack_f16(bit_cast<float>(w[0]), bit_cast<float>(w[1])))                                         \
  X(pack_bf16, pack_bf16(bit_cast<float>(w[0]), bit_cast<float>(w[1])))                                       \
  X(least_halves, least_halves(w[0], w[1], w[2], w[3]))                                                       \
  X(packed_key, uint32_t(packed_key(w[0], w[1] != 0)))                                                        \
  X(packed_keys_f16, packed_keys<false>(w[0], w[1] != 0))                                                     \
  X(packed_keys_bf16, packed_keys<true>(w[0], w[1] != 0))                                                     \
  X(apart_key, uint32_t(packed_key(w[0], w[1] != 0, false)))                                                  \
  X(apart_keys_f16, packed_keys<false>(w[0], w[1] != 0, false))                                               \
  X(apart_keys_bf16, packed_keys<true>(w[0], w[1] != 0, false))                                               \
  X(float_maximum, bit_cast<uint32_t>(float_maximum(bit_cast<float>(w[0]), bit_cast<float>(w[1]))))           \
  X(packed_maxima_f16, packed_maxima<false>(w[0], w[1]))                                                      \
  X(packed_maxima_bf16, packed_maxima<true>(w[0], w[1]))                                                      \
  X(rowwise, bit_cast<uint32_t>(fma_of(bit_cast<float>(w[0]), bit_cast<float>(w[1]), bit_cast<float>(w[2])))) \
  X(greater_number, bit_cast<uint32_t>(greater_number(bit_cast<float>(w[0]), bit_cast<float>(w[1]))))         \
  X(greatest, bit_cast<uint32_t>(greatest(bit_cast<float>(w[0]), bit_cast<float>(w[1]))))
// The same of functions that gpu.cuh has for kernels alone, and what they are to give. warp_most takes a word of each
// of 32 neighbours, from a multiple of 32 on.
#define TR_FOR_EACH_KERNEL_INTRINSIC(X)                                                                         \
  X(multiply_add, uint32_t(multiply_add(int32_t(w[0]), int32_t(w[1]), int64_t(uint64_t(w[3]) << 32 | w[2]))))   \
  X(multiply_add_high,                                                                                          \
    uint32_t(uint64_t(multiply_add(int32_t(w[0]), int32_t(w[1]), int64_t(uint64_t(w[3]) << 32 | w[2]))) >> 32)) \
  X(funnel_right, funnel_right(w[0], w[1], int(w[2] & 31u)))                                                    \
  X(warp_most, uint32_t(warp_most(int32_t(w[0]))))

#define TR_NAME(name, word) name,
enum class Intrinsic : int { TR_FOR_EACH_INTRINSIC(TR_NAME) TR_FOR_EACH_KERNEL_INTRINSIC(TR_NAME) };
#undef TR_NAME

std::vector<std::string> intrinsics();
// Intrinsic `name` of each of `count` times four words, a multiple of 32: on the CPU, or on the current GPU, of arrays
// there. Throws std::invalid_argument for a name it does not know, std::runtime_error if the GPU cannot.
void run_intrinsic(const std::string& name, const uint32_t* in, uint32_t* out, int64_t count, bool gpu);

}  // namespace torchreduce
