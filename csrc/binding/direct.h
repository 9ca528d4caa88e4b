// The bare kernels as functions, for a caller past torch's dispatcher: csrc/binding/python_direct.cpp. Tensors are
// handles of torch's stable ABI.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace torchreduce {

// What a parameter is in the op's schema: Tensor, Tensor?, int[]?, int[], int, bool, float, ScalarType?, ScalarType.
enum class Parameter { Tensor, MaybeTensor, MaybeInts, Ints, Int, Bool, Float, MaybeDtype, Dtype };

struct Argument {
  bool given = false;  // not None
  union {
    void* tensor;    // a handle, which the kernel takes over
    int64_t number;  // also a bool, or torch's number of a dtype
    double real;
  };
  std::vector<int64_t> ints;
};

// Takes the arguments over. False where the kernel raised, for whatever reason: the dispatcher's way tells it. Else
// `to` has handles to own.
using Kernel = bool (*)(Argument* arguments, void** to);

struct DirectOp {
  std::string name;
  std::vector<Parameter> parameters;
  int results;  // tensors all
  Kernel call;
};
constexpr int kMostParameters = 11, kMostResults = 4;

// Filled when the library is loaded.
std::vector<DirectOp>& direct_ops();

void drop_tensor(void* handle);

// What torch would do with a tensor: call the kernel; record its gradient, too; or something else.
enum class Kind : int { Other, Plain, Recorded };
// Calls a kernel and records its gradient. False as Kernel, and where there is no gradient; `to` may have handles then.
using Record = bool (*)(Kernel kernel, Argument* arguments, void** to);

}  // namespace torchreduce
