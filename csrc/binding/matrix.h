// What products on a GPU and on a CPU share: matrices, and tensors at their places.
#pragma once
#include "products.h"
#include "tensor.h"

namespace torchreduce {

// Of left, right and out: (batch, rows, columns), with any strides.
struct Matrix {
  void* data;
  int64_t batch, rows, columns;
  int64_t batch_stride, row_stride, column_stride;

  explicit Matrix(const Operand& t)
      : data(const_cast<void*>(t.data)),
        batch(t.dims == 3 ? t.sizes[0] : 1),
        rows(t.sizes[t.dims - 2]),
        columns(t.sizes[t.dims - 1]),
        batch_stride(t.dims == 3 && batch > 1 ? t.strides[0] : 0),
        row_stride(t.strides[t.dims - 2]),
        column_stride(t.strides[t.dims - 1]) {}
};

inline int64_t rounded_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// A tensor of (batch, rows, columns) at `data`, which it does not own.
inline Tensor view_of(void* data, std::array<int64_t, 3> sizes, std::array<int64_t, 3> strides, Dtype dtype,
                      const Operand& like) {
  AtenTensorHandle handle;
  check(aoti_torch_create_tensor_from_blob(data, 3, sizes.data(), strides.data(), 0, int32_t(dtype), like.device_type,
                                           like.device_index, &handle));
  return Tensor(handle);
}

// The strides of what is added, broadcast to out's shape.
inline std::array<int64_t, 3> broadcast_strides(const Operand& a) {
  std::array<int64_t, 3> strides{};
  for (int d = 0; d < a.dims; ++d)
    if (a.sizes[d] != 1) strides[size_t(3 - a.dims + d)] = a.strides[d];
  return strides;
}
inline Tensor broadcast_to(const Operand& a, const Matrix& out) {
  return view_of(const_cast<void*>(a.data), {out.batch, out.rows, out.columns}, broadcast_strides(a), a.dtype, a);
}

void multiply_on_gpu(const MatrixProduct& product);  // products_gpu.cpp
void multiply_on_cpu(const MatrixProduct& product);  // products_cpu.cpp

}  // namespace torchreduce
