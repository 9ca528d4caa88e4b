// NVIDIA's CUB, to stand beside the top of the ladder. Only where nvcc compiles.
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_scan.cuh>

#include "ladder.cuh"

namespace torchreduce::ladder {

// CUB's functions take operators with a call operator.
template <class Op> struct Combine {
  using T = typename Op::T;
  __device__ T operator()(T a, T b) const { return Op::combine(a, b); }
};

template <class Op, class T = typename Op::T>
cudaError_t run_cub(bool scans, const T* in, T* out, void* work, size_t bytes, int64_t n, bool exclusive,
                    cudaStream_t stream) {
  const Combine<Op> combine;
  size_t needed = 0;
  for (void* workspace : {static_cast<void*>(nullptr), work}) {  // the first call only says how much it needs
    if (needed > bytes) return cudaErrorInvalidValue;
    const cudaError_t error =
        !scans ? cub::DeviceReduce::Reduce(workspace, needed, in, out, n, combine, Op::identity + T(0), stream)
        : exclusive
            ? cub::DeviceScan::ExclusiveScan(workspace, needed, in, out, combine, Op::identity + T(0), n, stream)
            : cub::DeviceScan::InclusiveScan(workspace, needed, in, out, combine, n, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaGetLastError();
}

}  // namespace torchreduce::ladder

// As the rungs' entries (ladder.cuh); workspace of `bytes` bytes.
extern "C" const char* ladder_cub(int scans, int op, int type, const void* in, void* out, void* work, int64_t bytes,
                                  int64_t n, int exclusive, void* stream) {
  using namespace torchreduce::ladder;
  const auto run = [&]<class T>(T) {
    const auto function = op == 0 ? run_cub<Sum<T>> : run_cub<Max<T>>;
    return function(scans != 0, static_cast<const T*>(in), static_cast<T*>(out), work, size_t(bytes), n, exclusive != 0,
                    static_cast<cudaStream_t>(stream));
  };
  const cudaError_t error = type == 0 ? run(float()) : run(int32_t());
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
