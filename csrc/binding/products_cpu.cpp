// Matrix products on a CPU, made of torch's own of 32 rows by up to 256 columns.
//
// torch's product of float32 has one order for all rows of a call of one size that one thread computes, if its sizes
// are multiples of 16. That was measured, and is looked at again before a size is first used. So every product is cut
// into such calls, with zeros around what is left over. 16 bits are read as float32, and the result is rounded once.
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
#include <torch/csrc/stable/ops.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>

#include "matrix.h"

namespace torchreduce {
namespace {

constexpr int64_t kRows = 32, kColumns = 256, kGranule = 16;

// Keeps MKL to this thread, where torch is linked to it.
class OneThread {
 public:
  OneThread() : before(set ? set(1) : 0) {}
  ~OneThread() {
    if (set) set(before);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  static bool is_known() { return set; }

 private:
  static inline int (*const set)(int) = reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT,
                                                                             "MKL_Set_Num_Threads_Local"));
  int before;
};

Tensor matrix(const void* data, int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
  const int64_t sizes[] = {rows, columns}, strides[] = {row_stride, column_stride};
  AtenTensorHandle handle;
  check(aoti_torch_create_tensor_from_blob(const_cast<void*>(data), 2, sizes, strides, 0, int32_t(Dtype::F32), 0, 0,
                                           &handle));
  return Tensor(handle);
}
Tensor allocate_floats(int64_t rows, int64_t columns) { return allocate({rows, columns}, Dtype::F32, Operand{}); }
float* floats(const Tensor& t) { return static_cast<float*>(t.data_ptr()); }
bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 64 == 0; }

// (K, N) of one matrix in float32, both multiples of 16: in place, or a copy along K.
struct Right {
  std::optional<Tensor> copy;
  const float* data;
  int64_t row_stride, column_stride;

  Tensor columns(int64_t k, int64_t from, int64_t count) const {
    return matrix(data + from * column_stride, k, count, row_stride, column_stride);
  }
};

// What a call of one size was seen to do.
struct Proof {
  bool is_one_order = false;  // of all rows
  bool is_for_rows = false;   // whether the right matrix is contiguous along N or along K
};

Proof proof_of(int64_t k, int64_t n) {
  static std::mutex mutex;
  static std::map<std::pair<int64_t, int64_t>, Proof> known;
  const std::lock_guard lock(mutex);
  if (const auto found = known.find({k, n}); found != known.end()) return found->second;
  // 32 equal rows by columns that cancel in pairs: what is left is rounding, of the order of additions alone.
  const Tensor x = allocate_floats(kRows, k), w = allocate_floats(n, k), across = allocate_floats(k, n);
  const Tensor y = allocate_floats(kRows, n), z = allocate_floats(kRows, n);
  auto value = [](int64_t i) { return float(uint32_t(i) * 2654435761u >> 8) * 0x1p-20f + 1.0f; };
  for (int64_t at = 0; at < k; ++at)
    for (int64_t i = 0; i < kRows; ++i) floats(x)[i * k + at] = value(at / 2);
  for (int64_t j = 0; j < n; ++j)
    for (int64_t at = 0; at < k; ++at)
      floats(w)[j * k + at] = floats(across)[at * n + j] = (at % 2 ? -1.0f : 1.0f) * value(j * k + at / 2 + 7);
  check(aoti_torch_cpu_mm_out(y.get(), x.get(), matrix(floats(w), k, n, 1, k).get()));
  check(aoti_torch_cpu_mm_out(z.get(), x.get(), across.get()));
  bool is_one = true;
  const size_t bytes = size_t(n) * sizeof(float);
  for (int64_t i = 1; i < kRows; ++i) is_one = is_one && !std::memcmp(floats(y), floats(y) + i * n, bytes);
  return known[{k, n}] = {is_one, is_one && !std::memcmp(floats(y), floats(z), bytes * kRows)};
}

struct CpuProduct {
  const MatrixProduct& p;
  const Matrix left, right, out;
  const int64_t k, n;

  explicit CpuProduct(const MatrixProduct& product)
      : p(product),
        left(p.left),
        right(p.right),
        out(p.out),
        k(rounded_up(left.columns, kGranule)),
        n(rounded_up(right.columns, kGranule)) {}

  int64_t width(int64_t from) const { return std::min(kColumns, n - from); }

  Right right_of(int64_t b, bool takes_rows) const {
    char* data = static_cast<char*>(right.data) + b * right.batch_stride * size_of(p.right.dtype);
    const bool fits = p.right.dtype == Dtype::F32 && k == right.rows && n == right.columns && is_aligned(data);
    const bool along_k = right.row_stride == 1 && right.column_stride == k;
    const bool along_n = takes_rows && right.column_stride == 1 && right.row_stride == n;
    if (fits && (along_k || along_n))
      return {{}, reinterpret_cast<const float*>(data), right.row_stride, right.column_stride};
    Tensor copy = allocate_floats(n, k);
    if (k != right.rows || n != right.columns) torch::stable::zero_(copy);
    const std::array<int64_t, 3> sizes{1, right.rows, right.columns};
    Tensor to = view_of(copy.data_ptr(), sizes, {0, 1, k}, Dtype::F32, p.right);
    torch::stable::copy_(to, view_of(data, sizes, {0, right.row_stride, right.column_stride}, p.right.dtype, p.right));
    return {copy, floats(copy), 1, k};
  }

  // Up to 32 rows in float32: in place, or in `room`.
  template <class T> Tensor rows_of(int64_t b, int64_t from, int64_t count, const Tensor& room) const {
    const T* data = static_cast<const T*>(left.data) + b * left.batch_stride + from * left.row_stride;
    if constexpr (std::is_same<T, float>::value)
      if (count == kRows && k == left.columns && left.column_stride == 1 && left.row_stride == k && is_aligned(data))
        return matrix(data, kRows, k, k, 1);
    float* to = floats(room);
    for (int64_t i = 0; i < count; ++i, to += k) {
      for (int64_t at = 0; at < left.columns; ++at)
        to[at] = convert<float>(data[i * left.row_stride + at * left.column_stride]);
      std::fill(to + left.columns, to + k, 0.0f);
    }
    std::fill(to, floats(room) + kRows * k, 0.0f);
    return room;
  }

  // Rounds a call's sums, and what is added to them, to out.
  template <class T> void write(const float* sums, int64_t b, int64_t row, int64_t rows, int64_t column,
                                int64_t of) const {
    const int64_t columns = std::min(of, out.columns - column);
    T* to = static_cast<T*>(out.data) + b * out.batch_stride + row * out.row_stride + column * out.column_stride;
    const float alpha = float(p.alpha), beta = float(p.beta);
    const T* added = p.added && beta != 0 ? static_cast<const T*>(p.added->data) : nullptr;
    const auto [batch, down, along] = added ? broadcast_strides(*p.added) : std::array<int64_t, 3>{};
    if (added) added += b * batch + row * down + column * along;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) {
        float sum = sums[i * of + j];
        if (alpha != 1.0f) sum *= alpha;
        if (added) sum += beta * convert<float>(added[i * down + j * along]);
        to[i * out.row_stride + j * out.column_stride] = round_to<T>(sum);
      }
  }

  // `f` with the element type of a dtype.
  template <class F> static void typed(Dtype dtype, const F& f) {
    if (dtype == Dtype::F32) f(float());
    else if (dtype == Dtype::F16) f(F16());
    else f(BF16());
  }

  // The calls of numbers [begin, end): matrix by matrix, 32 rows by 32 rows, 256 columns by 256.
  void calls(int64_t begin, int64_t end, const std::vector<Right>& rights) const {
    const OneThread alone;
    const int64_t across = (n + kColumns - 1) / kColumns, down = (left.rows + kRows - 1) / kRows;
    const Tensor room = allocate_floats(kRows, k), sums = allocate_floats(kRows, std::min(n, kColumns));
    int64_t held = -1;
    Tensor x;
    for (int64_t call = begin; call < end; ++call) {
      const int64_t block = call / across, b = block / down, row = block % down * kRows,
                    column = call % across * kColumns;
      const int64_t count = std::min(kRows, left.rows - row), of = width(column);
      if (block != held) typed(p.left.dtype, [&](auto t) { x = rows_of<decltype(t)>(b, row, count, room); });
      held = block;
      const Tensor y = matrix(floats(sums), kRows, of, of, 1);
      check(aoti_torch_cpu_mm_out(y.get(), x.get(),
                                  rights[rights.size() == 1 ? 0 : size_t(b)].columns(k, column, of).get()));
      typed(p.out.dtype, [&](auto t) { write<decltype(t)>(floats(sums), b, row, count, column, of); });
    }
  }
};

// In one thread, whatever torch would take.
template <class F> void in_one_thread(const F& f) {
  if (OneThread::is_known()) {
    const OneThread alone;
    return f();
  }
  torch::stable::parallel_for(0, 2, 1, [&](int64_t begin, int64_t) {  // in a parallel region a call has one thread
    if (begin == 0) f();
  });
}

}  // namespace

void multiply_on_cpu(const MatrixProduct& p) {
  const CpuProduct product(p);
  const int64_t k = product.k, n = product.n, last = n % kColumns;
  Proof wide{true, true}, rest{true, true};
  in_one_thread([&] {
    if (n >= kColumns) wide = proof_of(k, kColumns);
    if (last) rest = proof_of(k, last);
  });
  if (!wide.is_one_order || !rest.is_one_order)
    raise<std::runtime_error>(p.name, ": products=True: torch's product of 32 rows of ", k,
                              " elements has not one order for all rows on this CPU; use products=False");
  std::vector<Right> rights;
  for (int64_t b = 0; b < (product.right.batch_stride ? product.out.batch : 1); ++b)
    rights.push_back(product.right_of(b, wide.is_for_rows && rest.is_for_rows));
  const int64_t calls = product.out.batch * ((product.left.rows + kRows - 1) / kRows) * ((n + kColumns - 1) / kColumns);
  constexpr int64_t kFewMultiplications = 1 << 22;  // where threads would take longer to start
  if (calls == 1 || calls * k * std::min(n, kColumns) * kRows <= kFewMultiplications)
    return in_one_thread([&] { product.calls(0, calls, rights); });
  torch::stable::parallel_for(0, calls, 1, [&](int64_t begin, int64_t end) { product.calls(begin, end, rights); });
}

}  // namespace torchreduce
