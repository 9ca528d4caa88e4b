// Matrix products whose rows have the same bits in every batch, by cuBLASLt (docs/products.md).
#pragma once
#include <optional>
#include <vector>

#include "operand.h"

namespace torchreduce {

// out = alpha * left @ right + beta * added, in float32 but for what is read and written. left: (M, K) or (B, M, K);
// right: (K, N) or (B, K, N); out: (M, N) or (B, M, N), whose elements are all different ones; none of them is empty.
// `added`: of out's dtype, one row (N) or of a shape that broadcasts to out's; not read where beta is 0, and it may be
// out. One row is added before the sum is rounded to out's dtype, by the library; so is what has another shape, whose
// bits may be other ones.
struct MatrixProduct {
  const char* name;  // for errors
  Operand left, right, out;
  std::optional<Operand> added;
  double beta = 1, alpha = 1;
};

// left and right have one of them, and out either that or float32.
bool has_products(Dtype dtype, bool with_float32);
// Whether GPU `device` is one that they are served on. Others have no order of their own.
bool has_products(int device);

// Enqueues the product. Throws std::runtime_error where no algorithm of the library's is proved to keep the order.
void multiply_into(const MatrixProduct& product);

// The algorithms that were tried on a device so far, by the dtypes' numbers, whether left and right are contiguous
// along their rows, what is added (0: nothing, 1: one row, 2: what the output holds), and whether they are batches; and
// whether each keeps the order.
struct TriedAlgorithm {
  int dtype, out_dtype;
  bool left_along_rows, right_along_rows;
  int added;
  bool batched, keeps_order;
};
std::vector<TriedAlgorithm> tried_algorithms(int device);

}  // namespace torchreduce
