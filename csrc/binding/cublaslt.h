// cuBLASLt by prototypes of its own: the library that torch has loaded is used, and nothing is linked. The numbers are
// those of cublasLt.h from 11.4 to 13.
#pragma once
#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace torchreduce::cublaslt {

enum Type : int { kF32 = 0, kF16 = 2, kBF16 = 14 };  // cudaDataType_t
enum Compute : int { kFloat32 = 68 };                // cublasComputeType_t
enum DescAttribute : int { kTransA = 3, kTransB = 4, kEpilogue = 7, kBiasPointer = 8 };
enum LayoutAttribute : int { kBatchCount = 5, kBatchStride = 6 };
enum PreferenceAttribute : int { kMaxWorkspace = 1, kReductionMask = 3, kAlignmentA = 5, kAlignmentD = 8 };
enum ConfigAttribute : int { kId, kTile, kSplit, kReduction, kSwizzle, kCustom, kStages, kInner, kCluster, kConfigs };
constexpr uint32_t kEpilogueBias = 4;

using Opaque = void*;
struct Algorithm { uint64_t data[8]; };
struct Heuristic {
  Algorithm algorithm;
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
};
static_assert(sizeof(Heuristic) == 96);

// The functions that are used. Looked up in the process first, where a preloaded library may stand before torch's.
struct Library {
  size_t (*version)();
  int (*create)(Opaque*);
  int (*desc_create)(Opaque*, int compute, int scale);
  int (*desc_set)(Opaque, int attribute, const void*, size_t);
  int (*desc_destroy)(Opaque);
  int (*layout_create)(Opaque*, int type, uint64_t rows, uint64_t columns, int64_t pitch);
  int (*layout_set)(Opaque, int attribute, const void*, size_t);
  int (*layout_destroy)(Opaque);
  int (*preference_create)(Opaque*);
  int (*preference_set)(Opaque, int attribute, const void*, size_t);
  int (*heuristic)(Opaque handle, Opaque desc, Opaque a, Opaque b, Opaque c, Opaque d, Opaque preference, int asked,
                   Heuristic*, int* found);
  int (*check)(Opaque handle, Opaque desc, Opaque a, Opaque b, Opaque c, Opaque d, const Algorithm*, Heuristic*);
  int (*config)(const Algorithm*, int attribute, void*, size_t, size_t* written);
  int (*matmul)(Opaque handle, Opaque desc, const void* alpha, const void* a, Opaque la, const void* b, Opaque lb,
                const void* beta, const void* c, Opaque lc, void* d, Opaque ld, const Algorithm*, void* workspace,
                size_t bytes, void* stream);

  static const Library& get() {
    static const Library library;
    return library;
  }

 private:
  Library() {
    void* torchs = nullptr;
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"})
      if (!torchs) torchs = dlopen(name, RTLD_NOLOAD | RTLD_LAZY);
    find(torchs, "cublasLtGetVersion", version);
    find(torchs, "cublasLtCreate", create);
    find(torchs, "cublasLtMatmulDescCreate", desc_create);
    find(torchs, "cublasLtMatmulDescSetAttribute", desc_set);
    find(torchs, "cublasLtMatmulDescDestroy", desc_destroy);
    find(torchs, "cublasLtMatrixLayoutCreate", layout_create);
    find(torchs, "cublasLtMatrixLayoutSetAttribute", layout_set);
    find(torchs, "cublasLtMatrixLayoutDestroy", layout_destroy);
    find(torchs, "cublasLtMatmulPreferenceCreate", preference_create);
    find(torchs, "cublasLtMatmulPreferenceSetAttribute", preference_set);
    find(torchs, "cublasLtMatmulAlgoGetHeuristic", heuristic);
    find(torchs, "cublasLtMatmulAlgoCheck", check);
    find(torchs, "cublasLtMatmulAlgoConfigGetAttribute", config);
    find(torchs, "cublasLtMatmul", matmul);
  }
  template <class F> static void find(void* library, const char* name, F& function) {
    void* found = dlsym(RTLD_DEFAULT, name);
    if (!found && library) found = dlsym(library, name);
    if (!found)
      throw std::runtime_error(std::string("products=True needs cuBLASLt 12 or 13, as torch for CUDA loads "
                                           "it; it has no ") +
                               name);
    function = reinterpret_cast<F>(found);
  }
};

inline void check_status(const char* what, int status) {
  if (status)
    throw std::runtime_error(std::string("cuBLASLt: ") + what + " failed with status " + std::to_string(status));
}

// A description of a product or of a matrix, destroyed with its owner.
class Owned {
 public:
  Owned() = default;
  Owned(Opaque handle, int (*destroy)(Opaque)) : handle(handle), destroy(destroy) {}
  Owned(Owned&& other) noexcept : handle(other.handle), destroy(other.destroy) { other.handle = nullptr; }
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle, other.handle), std::swap(destroy, other.destroy);
    return *this;
  }
  ~Owned() {
    if (handle) destroy(handle);
  }
  operator Opaque() const { return handle; }

 private:
  Opaque handle = nullptr;
  int (*destroy)(Opaque) = nullptr;
};

// What tells one kernel from another.
using Config = std::array<int32_t, kConfigs>;

inline Config config_of(const Algorithm& algorithm) {
  Config config{};
  for (int i = 0; i < kConfigs; ++i) {
    size_t written = 0;
    uint16_t half = 0;
    const bool is_half = i == kInner || i == kCluster;
    const int status = is_half ? Library::get().config(&algorithm, i, &half, sizeof half, &written)
                               : Library::get().config(&algorithm, i, &config[size_t(i)], sizeof(int32_t), &written);
    if (is_half) config[size_t(i)] = half;
    if (status) config[size_t(i)] = -1;
  }
  return config;
}

}  // namespace torchreduce::cublaslt
