// Matrix products through the cuBLASLt of torch's process, in one order of additions.
//
// The library has many kernels for a product, and by default chooses among them by the number of rows, so that a row's
// bits change with its batch. Those that do not split K share one order, whatever their tile: an accumulator in float32
// for each element, which takes K in ascending order. Only these are used. Each is proved before: it multiplies
// matrices whose exact product is 0, so that the result is the error of its order and nothing else, and has to give
// the bits of the reference, for many rows and for one alone.
//
// What the kernels do not take as it is, is copied to where they do: pointers, pitches and contiguous dims that are no
// multiples of 16 bytes are padded, K with zeros. So the order is one for every layout.
#include <torch/csrc/stable/ops.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "matrix.h"
#include "run.h"

#ifdef TORCHREDUCE_GPU
#include "cublaslt.h"
#include "kernels/common/stream.h"
#endif

namespace torchreduce {

#ifdef TORCHREDUCE_GPU

namespace {

namespace lt = cublaslt;

// A matrix as the library takes it: contiguous along its rows or along its columns, in multiples of 16 bytes.
struct Placed {
  void* data = nullptr;
  bool along_columns = true;  // neighbours in memory are those of one row
  int64_t pitch = 0, batch_stride = 0;
  std::optional<Tensor> copy;
};

// Whether a matrix has neighbours of a row, or of a column, beside one another.
bool has_contiguous_rows(const Matrix& m) { return m.column_stride == 1 || m.columns == 1; }
bool has_contiguous_columns(const Matrix& m) { return m.row_stride == 1 || m.rows == 1; }

// As it is, if that fits; `pitch` is that between rows or columns.
std::optional<Placed> in_place(const Matrix& m, bool along_columns, int64_t granule) {
  const int64_t inner = along_columns ? m.columns : m.rows, outer = along_columns ? m.rows : m.columns;
  const int64_t stride = along_columns ? m.row_stride : m.column_stride;
  const int64_t pitch = outer == 1 ? rounded_up(inner, granule) : stride;
  const bool contiguous = along_columns ? has_contiguous_rows(m) : has_contiguous_columns(m);
  const bool aligned = reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && inner % granule == 0 && pitch % granule == 0 &&
                       m.batch_stride % granule == 0;
  if (!contiguous || !aligned || pitch < inner || inner == 0) return {};
  return Placed{m.data, along_columns, pitch, m.batch_stride, {}};
}

// A copy in `rows` and `columns`, which are at least the matrix's own; what is more is 0.
Placed padded(const Matrix& m, bool along_columns, int64_t rows, int64_t columns, int64_t granule, Dtype dtype,
              const Operand& like, bool filled = true) {
  const int64_t inner = rounded_up(along_columns ? columns : rows, granule), outer = along_columns ? rows : columns;
  const int64_t batch = m.batch_stride == 0 ? 1 : m.batch;
  Tensor copy = allocate({batch, outer, inner}, dtype, like);
  Placed placed{copy.data_ptr(), along_columns, inner, batch == 1 ? 0 : outer * inner, copy};
  if (!filled) return placed;
  if (rows != m.rows || columns != m.columns) torch::stable::zero_(copy);
  const std::array<int64_t, 3> sizes{batch, m.rows, m.columns};
  const int64_t row = along_columns ? inner : 1, column = along_columns ? 1 : inner;
  Tensor to = view_of(placed.data, sizes, {outer * inner, row, column}, dtype, like);
  torch::stable::copy_(to, view_of(m.data, sizes, {m.batch_stride, m.row_stride, m.column_stride}, dtype, like));
  return placed;
}

// ---- algorithms ----------------------------------------------------------------------------------------------------------

// What is added to a product: nothing, one row by the kernel's epilogue, or what the output holds.
enum class Added : int { Nothing, Row, Output };

// A product as the library sees it, in its columns: out^T (n, m) = right^T (n, k) left^T (k, m).
struct Problem {
  int64_t device, dtype, out_dtype, right_transposed, left_transposed, added;
  int64_t m, n, k, right_pitch, left_pitch, out_pitch;
  int64_t batch, right_stride, left_stride, out_stride;

  bool operator==(const Problem&) const = default;
};
struct ProblemHash {
  size_t operator()(const Problem& problem) const {
    uint64_t words[sizeof(Problem) / 8], hash = 0xcbf29ce484222325u;
    std::memcpy(words, &problem, sizeof problem);
    for (uint64_t word : words) hash = (hash ^ word) * 0x100000001b3u, hash ^= hash >> 29;
    return hash;
  }
};

int type_of(int64_t dtype) {
  return Dtype(dtype) == Dtype::F16 ? lt::kF16 : Dtype(dtype) == Dtype::BF16 ? lt::kBF16 : lt::kF32;
}

lt::Owned new_desc(const Problem& problem, const void* row) {
  const lt::Library& library = lt::Library::get();
  lt::Opaque handle;
  lt::check_status("a description", library.desc_create(&handle, lt::kFloat32, lt::kF32));
  lt::Owned desc(handle, library.desc_destroy);
  auto set = [&](int attribute, auto value) {
    lt::check_status("an attribute", library.desc_set(desc, attribute, &value, sizeof value));
  };
  set(lt::kTransA, int32_t(problem.right_transposed));
  set(lt::kTransB, int32_t(problem.left_transposed));
  if (Added(problem.added) == Added::Row) {
    set(lt::kEpilogue, lt::kEpilogueBias);
    set(lt::kBiasPointer, row);
  }
  return desc;
}

lt::Owned new_layout(int64_t dtype, int64_t rows, int64_t columns, int64_t pitch, int64_t batch, int64_t stride) {
  const lt::Library& library = lt::Library::get();
  lt::Opaque handle;
  lt::check_status("a layout",
                   library.layout_create(&handle, type_of(dtype), uint64_t(rows), uint64_t(columns), pitch));
  lt::Owned layout(handle, library.layout_destroy);
  const int32_t count = int32_t(batch);
  if (batch > 1) {
    lt::check_status("a batch", library.layout_set(layout, lt::kBatchCount, &count, sizeof count));
    lt::check_status("a stride", library.layout_set(layout, lt::kBatchStride, &stride, sizeof stride));
  }
  return layout;
}

struct Layouts {
  lt::Owned right, left, out;

  explicit Layouts(const Problem& s)
      : right(s.right_transposed ? new_layout(s.dtype, s.k, s.n, s.right_pitch, s.batch, s.right_stride)
                                 : new_layout(s.dtype, s.n, s.k, s.right_pitch, s.batch, s.right_stride)),
        left(s.left_transposed ? new_layout(s.dtype, s.m, s.k, s.left_pitch, s.batch, s.left_stride)
                               : new_layout(s.dtype, s.k, s.m, s.left_pitch, s.batch, s.left_stride)),
        out(new_layout(s.out_dtype, s.n, s.m, s.out_pitch, s.batch, s.out_stride)) {}
};

// How a problem runs.
struct Plan {
  Layouts layouts;
  lt::Owned desc;  // but for one with a row, whose address is part of it
  lt::Algorithm algorithm;
  size_t workspace;
};

// One handle a device, for good.
lt::Opaque handle_of(int64_t device) {
  static std::mutex mutex;
  static std::map<int64_t, lt::Opaque> handles;
  const std::lock_guard lock(mutex);
  lt::Opaque& handle = handles[device];
  if (!handle) lt::check_status("a handle", lt::Library::get().create(&handle));
  return handle;
}

const GpuShims& shims() {
  static const GpuShims all;
  return all;
}

void enqueue(const Problem& problem, const Plan& plan, lt::Opaque desc, const void* right, const void* left, void* out,
             float alpha, float beta, void* stream) {
  void* workspace = nullptr;
  if (plan.workspace) check(shims().alloc(plan.workspace, &workspace));
  const Layouts& l = plan.layouts;
  const int status =
      lt::Library::get().matmul(handle_of(problem.device), desc, &alpha, right, l.right, left, l.left, &beta, out,
                                l.out, out, l.out, &plan.algorithm, workspace, plan.workspace, stream);
  if (workspace) shims().release(workspace);
  lt::check_status("a product", status);
}

// Some kernels of the order count their tiles in memory; what splits K would need more.
constexpr uint64_t kMostWorkspace = 4096;
constexpr int kAsked = 16;
// What a question takes for the address of a row that is added.
const void* const kSomeRow = reinterpret_cast<const void*>(uintptr_t(256));

// The library's list for a problem, the fastest first by its own estimate, without what splits K.
std::vector<lt::Heuristic> listed(const Problem& problem) {
  const lt::Library& library = lt::Library::get();
  static const lt::Opaque preference = [&] {
    lt::Opaque made;
    lt::check_status("a preference", library.preference_create(&made));
    const uint32_t no_reduction = 0, alignment = 16;
    auto set = [&](int attribute, const auto& value) {
      lt::check_status("a preference's attribute", library.preference_set(made, attribute, &value, sizeof value));
    };
    set(lt::kMaxWorkspace, kMostWorkspace);
    set(lt::kReductionMask, no_reduction);
    for (int k = lt::kAlignmentA; k <= lt::kAlignmentD; ++k) set(k, alignment);
    return made;
  }();
  const Layouts l(problem);
  const lt::Owned desc = new_desc(problem, kSomeRow);
  std::vector<lt::Heuristic> found(kAsked);
  int count = 0;
  if (library.heuristic(handle_of(problem.device), desc, l.right, l.left, l.out, l.out, preference, kAsked,
                        found.data(), &count))
    count = 0;
  found.resize(size_t(count));
  std::erase_if(found, [](const lt::Heuristic& h) {
    const lt::Config config = lt::config_of(h.algorithm);
    return h.status || config[lt::kSplit] > 1 || config[lt::kSplit] < 0 || config[lt::kReduction] > 0;
  });
  return found;
}

// The workspace that an algorithm needs for a problem; nothing if it does not take it.
std::optional<size_t> accepted(const Problem& problem, const lt::Algorithm& algorithm) {
  const Layouts l(problem);
  const lt::Owned desc = new_desc(problem, kSomeRow);
  lt::Heuristic result{};
  const int status =
      lt::Library::get().check(handle_of(problem.device), desc, l.right, l.left, l.out, l.out, &algorithm, &result);
  if (status || result.status || result.workspace > kMostWorkspace) return {};
  return result.workspace;
}

// ---- the proof -----------------------------------------------------------------------------------------------------------

// 256 x 2048 times 2048 x 256, with each product's negative somewhere in its row, so that all sums are 0 but for the
// rounding of their order.
class Proof {
 public:
  static constexpr int64_t kSide = 256, kLength = 2048;

  // Whether an algorithm has the bits of the reference, which are those of every layout. Waits for the GPU. `like`
  // names the device.
  bool holds(const Problem& of, const lt::Algorithm& algorithm, const Operand& like, void* stream) {
    const std::vector<char>& reference = reference_of(of, like, stream);
    return !reference.empty() && run(posed(of), algorithm, like, stream) && result == reference;
  }

 private:
  std::map<std::array<int64_t, 4>, std::vector<char>> references;
  std::map<std::array<int64_t, 3>, Tensor> inputs;
  std::vector<char> result, rows;  // of the last run: of one matrix; of all, or of a row alone

  static Problem posed(const Problem& of) {
    Problem problem = of;
    problem.m = problem.n = problem.out_pitch = kSide;
    problem.k = kLength;
    problem.left_pitch = problem.left_transposed ? kSide : kLength;
    problem.right_pitch = problem.right_transposed ? kLength : kSide;
    problem.batch = of.batch > 1 ? 2 : 1;
    problem.left_stride = problem.right_stride = 0;
    problem.out_stride = kSide * kSide;
    return problem;
  }
  // Of these dtypes and this addition: the bits of the first algorithm in the library's list for one layout, so that
  // they do not depend on what is multiplied first. Empty if there is none.
  const std::vector<char>& reference_of(const Problem& of, const Operand& like, void* stream) {
    const std::array<int64_t, 4> key{of.device, of.dtype, of.out_dtype, of.added};
    if (const auto found = references.find(key); found != references.end()) return found->second;
    std::vector<char> reference;  // kept when it is whole: a proof may run out of memory
    Problem problem = of;
    problem.right_transposed = 1, problem.left_transposed = 0, problem.batch = 1;
    problem = posed(problem);
    for (const lt::Heuristic& h : listed(problem)) {
      if (!run(problem, h.algorithm, like, stream)) continue;
      if (std::all_of(result.begin(), result.end(), [](char byte) { return byte == 0; }))
        continue;  // it shows no order
      reference = result;
      break;
    }
    return references[key] = std::move(reference);
  }
  // Computes all rows, and the last one alone where the layout and the algorithm have that. Whether it did, and gave a
  // row and the matrices of a batch the same bits.
  bool run(const Problem& problem, const lt::Algorithm& algorithm, const Operand& like, void* stream) {
    if (!run(problem, algorithm, 0, like, stream)) return false;
    const size_t bytes = rows.size() / size_t(problem.batch), row = bytes / kSide;
    result.assign(rows.begin(), rows.begin() + long(bytes));
    if (problem.batch > 1 && std::memcmp(rows.data(), rows.data() + bytes, bytes)) return false;
    Problem alone = problem;
    alone.m = 1, alone.out_stride = kSide;
    if (problem.left_transposed || !run(alone, algorithm, kSide - 1, like, stream)) return true;
    return !std::memcmp(result.data() + bytes - row, rows.data(), row);
  }

  // Of 8 bits, exact in 16, and of magnitudes from 1 to 256: a sum of products needs more bits than float32 has.
  static float element(int64_t row, int64_t place) {
    uint32_t word = uint32_t(row * 40503 + place) * 2654435761u;
    word ^= word >> 15, word *= 2246822519u, word ^= word >> 13;
    const float value = float(128u + word % 128u) / float(1u << (word >> 7 & 7u));
    return word & 1024u ? value : -value;
  }
  // (256, 2048), or that transposed, on the GPU. Elements 2p and 2p + 1 of a pair are equal in one matrix and each
  // other's negatives in the other; pairs are spread over K by an odd step.
  const Tensor& matrix(const Problem& problem, bool is_right, const Operand& like) {
    const bool transposed = is_right ? !problem.right_transposed : bool(problem.left_transposed);
    const std::array<int64_t, 3> key{problem.device, problem.dtype, 2 * is_right + transposed};
    if (const auto found = inputs.find(key); found != inputs.end()) return found->second;
    std::vector<float> values(size_t(kSide * kLength));
    for (int64_t row = 0; row < kSide; ++row)
      for (int64_t k = 0; k < kLength; ++k) {
        const int64_t at = k * 1181 % kLength;
        const float value = element(row + is_right * kSide, k / 2) * (is_right && k % 2 ? -1.0f : 1.0f);
        values[size_t(transposed ? at * kSide + row : row * kLength + at)] = value;
      }
    return inputs.emplace(key, on_gpu(values, problem.dtype, like)).first->second;
  }
  static Tensor on_gpu(std::vector<float>& values, int64_t dtype, const Operand& like) {
    const int64_t count = int64_t(values.size());
    const Tensor host = view_of(values.data(), {1, 1, count}, {count, count, 1}, Dtype::F32, Operand{});
    Tensor copy = allocate({1, 1, count}, Dtype(dtype), like);
    torch::stable::copy_(copy, host);
    return copy;
  }
  bool run(const Problem& problem, const lt::Algorithm& algorithm, int64_t from, const Operand& like, void* stream) {
    const std::optional<size_t> workspace = accepted(problem, algorithm);
    if (!workspace) return false;
    std::vector<float> small(size_t(problem.batch * problem.m * kSide));
    for (size_t i = 0; i < small.size(); ++i) small[i] = element(int64_t(i) % kSide, 7) / 1024;
    const Tensor& right = matrix(problem, true, like);
    const Tensor& left = matrix(problem, false, like);
    const Tensor row = on_gpu(small, problem.out_dtype, like), out = on_gpu(small, problem.out_dtype, like);
    const Plan plan{Layouts(problem), new_desc(problem, row.data_ptr()), algorithm, *workspace};
    const char* first = static_cast<const char*>(left.data_ptr()) + from * kLength * size_of(Dtype(problem.dtype));
    enqueue(problem, plan, plan.desc, right.data_ptr(), first, out.data_ptr(), 1.0f,
            Added(problem.added) == Added::Output ? 1.0f : 0.0f, stream);
    const int64_t count = int64_t(small.size());
    rows.resize(size_t(count * size_of(Dtype(problem.out_dtype))));
    Tensor host = view_of(rows.data(), {1, 1, count}, {count, count, 1}, Dtype(problem.out_dtype), Operand{});
    torch::stable::copy_(host, out);
    return true;
  }
};

// ---- the choice ----------------------------------------------------------------------------------------------------------

// Plans by problem, and what was proved. One for the process, for good; its lock is held while a plan is made, not
// while a product is enqueued.
class Planner {
 public:
  static Planner& get() {
    static auto* planner = new Planner;
    return *planner;
  }

  std::shared_ptr<const Plan> plan(const char* name, const Problem& problem, const Operand& like, void* stream) {
    const std::lock_guard lock(mutex);
    if (const auto found = plans.find(problem); found != plans.end()) return found->second;
    const bool capturing = gpu::is_capturing(stream);
    bool unproved = false;
    // The list for 16 rows serves fewer, too: for one row the library would name other families. Later lists are for
    // what the first does not hold.
    for (const int64_t rows :
         {std::max<int64_t>(problem.m, 16), int64_t(16), int64_t(64), int64_t(256), int64_t(1024)}) {
      Problem asked = problem;
      asked.m = rows;
      if (problem.left_transposed) asked.left_pitch = std::max(asked.left_pitch, rows);
      for (const lt::Heuristic& h : listed(asked)) {
        const std::optional<size_t> workspace = accepted(problem, h.algorithm);
        if (!workspace) continue;
        const Proved proved = is_proved(problem, h.algorithm, like, stream, capturing);
        unproved = unproved || proved == Proved::Unknown;
        if (proved != Proved::Yes) continue;
        if (plans.size() >= kMostPlans) plans.clear();
        const bool has_row = Added(problem.added) == Added::Row;
        return plans[problem] = std::make_shared<Plan>(
                   Plan{Layouts(problem), has_row ? lt::Owned() : new_desc(problem, nullptr), h.algorithm, *workspace});
      }
    }
    if (unproved)
      raise<std::runtime_error>(name,
                                ": products=True proves an algorithm when it first runs, which a graph's capture "
                                "cannot wait for; run the product once before the capture");
    raise<std::runtime_error>(name, ": products=True finds no algorithm of cuBLASLt ", lt::Library::get().version(),
                              " on ", gpu::device_name(int(problem.device)),
                              " that keeps one order for a row in every batch; use products=False");
  }

  std::vector<TriedAlgorithm> tried(int device) {
    const std::lock_guard lock(mutex);
    std::vector<TriedAlgorithm> all;
    for (const auto& [key, holds] : proofs)
      if (key[0] == device)
        all.push_back({int(key[1]), int(key[2]), !key[4], !key[3], int(key[5]), key[6] != 0, holds});
    return all;
  }

 private:
  static constexpr size_t kMostPlans = 1 << 14;
  enum class Proved { No, Yes, Unknown };
  using Key = std::array<int64_t, 7 + lt::kConfigs>;

  std::mutex mutex;
  std::unordered_map<Problem, std::shared_ptr<const Plan>, ProblemHash> plans;
  std::map<Key, bool> proofs;
  Proof proof;

  Proved is_proved(const Problem& problem, const lt::Algorithm& algorithm, const Operand& like, void* stream,
                   bool capturing) {
    Key key{problem.device,          problem.dtype, problem.out_dtype, problem.right_transposed,
            problem.left_transposed, problem.added, problem.batch > 1};
    const lt::Config config = lt::config_of(algorithm);
    std::copy(config.begin(), config.end(), key.begin() + 7);
    const auto known = proofs.find(key);
    if (known == proofs.end() && capturing) return Proved::Unknown;
    const bool holds = known != proofs.end() ? known->second : proof.holds(problem, algorithm, like, stream);
    proofs[key] = holds;
    return holds ? Proved::Yes : Proved::No;
  }
};

// Writes beta * added to `out`'s place where the kernel is to add it, and says which addition is left to the kernel.
Added place_added(const MatrixProduct& p, const Matrix& out, std::array<int64_t, 3> strides, void* data) {
  if (!p.added || float(p.beta) == 0) return Added::Nothing;
  const Operand& a = *p.added;
  if (a.dims == 1 && p.out.dims == 2 && a.sizes[0] == out.columns && p.beta == 1 && p.alpha == 1) return Added::Row;
  const Tensor from = broadcast_to(a, out);
  const auto places = from.strides();
  if (data == a.data && std::equal(places.begin(), places.end(), strides.begin())) return Added::Output;  // in place
  Tensor target = view_of(data, {out.batch, out.rows, out.columns}, strides, p.out.dtype, p.out);
  torch::stable::copy_(target, from);
  return Added::Output;
}

}  // namespace

bool has_products(int device) { return gpu::capability(device) >= 90; }

void multiply_on_gpu(const MatrixProduct& p) {
  const Matrix left(p.left), right(p.right), out(p.out);
  const Dtype dtype = p.left.dtype;
  const int64_t granule = 16 / size_of(dtype), out_granule = 16 / size_of(p.out.dtype);
  const DeviceGuard guard(p.left.device_index);
  void* stream;
  check(shims().stream(p.left.device_index, &stream));

  // Contiguous dims are padded to 16 bytes, and with them the same dims of the other matrices.
  const bool left_along_k = has_contiguous_rows(left) || left.rows == 1 || !has_contiguous_columns(left);
  const bool right_along_n = has_contiguous_rows(right) || !has_contiguous_columns(right);
  const int64_t m = left_along_k ? left.rows : rounded_up(left.rows, granule);
  const int64_t n = rounded_up(right.columns, granule);
  const int64_t k = left_along_k || !right_along_n ? rounded_up(left.columns, granule) : left.columns;
  auto place = [&](const Matrix& matrix, bool along_columns, int64_t rows, int64_t columns, const Operand& like) {
    const bool whole = rows == matrix.rows && columns == matrix.columns;
    std::optional<Placed> placed = whole ? in_place(matrix, along_columns, granule) : std::nullopt;
    return placed ? *placed : padded(matrix, along_columns, rows, columns, granule, dtype, like);
  };
  const Placed l = place(left, left_along_k, m, k, p.left), r = place(right, right_along_n, k, n, p.right);
  const bool writes = m == out.rows && n == out.columns;
  std::optional<Placed> o = writes ? in_place(out, true, out_granule) : std::nullopt;
  const bool direct = bool(o);
  if (!o) {
    Matrix shape = out;
    shape.batch_stride = out.batch > 1;
    o = padded(shape, true, m, n, out_granule, p.out.dtype, p.out, false);
  }
  const std::array<int64_t, 3> strides{o->batch_stride, o->pitch, 1};
  const Added added = place_added(p, out, strides, o->data);

  std::optional<Placed> row;
  if (added == Added::Row) {
    Operand one = *p.added;
    const int64_t sizes[] = {1, out.columns}, row_strides[] = {0, one.strides[one.dims - 1]};
    one.dims = 2, one.sizes = sizes, one.strides = row_strides;
    const Matrix of(one);
    row = n == out.columns ? in_place(of, true, out_granule) : std::nullopt;
    if (!row) row = padded(of, true, 1, n, out_granule, p.out.dtype, p.out);
  }

  const Problem problem{p.left.device_index,
                        int64_t(dtype),
                        int64_t(p.out.dtype),
                        !r.along_columns,
                        !l.along_columns,
                        int64_t(added),
                        m,
                        n,
                        k,
                        r.pitch,
                        l.pitch,
                        o->pitch,
                        out.batch,
                        r.batch_stride,
                        l.batch_stride,
                        o->batch_stride};
  const std::shared_ptr<const Plan> plan = Planner::get().plan(p.name, problem, p.left, stream);
  const lt::Owned own = row ? new_desc(problem, row->data) : lt::Owned();
  enqueue(problem, *plan, row ? lt::Opaque(own) : lt::Opaque(plan->desc), r.data, l.data, o->data, float(p.alpha),
          added == Added::Output ? float(p.beta) : 0.0f, stream);
  if (direct) return;
  const std::array<int64_t, 3> sizes{out.batch, out.rows, out.columns};
  Tensor target = view_of(out.data, sizes, {out.batch_stride, out.row_stride, out.column_stride}, p.out.dtype, p.out);
  torch::stable::copy_(target, view_of(o->data, sizes, strides, p.out.dtype, p.out));
}

std::vector<TriedAlgorithm> tried_algorithms(int device) { return Planner::get().tried(device); }

#else

bool has_products(int) { return false; }
void multiply_on_gpu(const MatrixProduct& p) {
  raise<std::runtime_error>(p.name, ": this build of torchreduce has no GPU part");
}
std::vector<TriedAlgorithm> tried_algorithms(int) { return {}; }

#endif

}  // namespace torchreduce
