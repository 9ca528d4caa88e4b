// Short rows, one after another in memory, wherever they start.
//
// Serves: ops without weights, float32 and 16-bit floats, rows of up to 1024 neighbouring elements whose operands are
// one run of memory each (packed_rows.h).
// A block copies a run of rows to shared memory by whole granules. A lane takes some neighbouring residues of a row to
// registers, and neighbouring lanes take those of neighbouring rows, so that a warp's lanes have the same to do at the
// end of a row. What the lanes of a row find, and their sums, meet in shared memory. The results of a row go to where
// the first input was, and leave by whole granules.
// Shared memory: the rows of each input; for each thread what it found, and its sums.
#pragma once
#include "held_granules.cuh"
#include "packed_rows.h"
#include "states.cuh"

namespace torchreduce::gpu {

// Elements side by side, 8 of them, as they are in memory.
template <class E> using Eight = Packed<uint32_t, 2 * int(sizeof(E))>;

template <class E> __device__ __forceinline__ void values_of(const Eight<E>& g, float (&v)[kGroup]) {
  E x[kGroup];
  memcpy(x, &g, sizeof x);
#pragma unroll
  for (int i = 0; i < kGroup; ++i) v[i] = convert<float>(x[i]);
}
// Those from number `have` on become the first one.
template <class E> __device__ __forceinline__ void keep_first(Eight<E>& g, int have) {
  constexpr int kPer = 4 / int(sizeof(E));
  const uint32_t first = kPer == 1 ? g.item[0] : (g.item[0] & 0xffffu) * 0x10001u;
#pragma unroll
  for (int i = 0; i < kGroup / kPer; ++i) {
    const uint32_t half = (g.item[i] & 0xffffu) | (first & 0xffff0000u);
    g.item[i] = i * kPer >= have ? first : kPer == 2 && i * kPer + 1 == have ? half : g.item[i];
  }
}

// ---- between shared and device memory ----------------------------------------------------------------------------------

// Starts the copy of the elements from `first` up to `end`, by all threads, to where they have the same place in their
// granules.
template <class E>
__device__ __forceinline__ void stage_run(const RowwiseKernelCall& call, int input, char* to, const E* first,
                                          const E* end) {
  constexpr int kPer = kPerGranule<E>;
  const Granule* const from = granule_of(first);
  const int count = int(granule_of(end - 1) - from) + 1;
  // Of granules that reach out of the tensor, the first and the last at most, elements.
  const int whole = static_cast<const void*>(from) >= call.in[input] ? 0 : 1;
  const int whole_end = static_cast<const void*>(from + count) <= call.end[input] ? count : count - 1;
#pragma unroll 4
  for (int i = whole + int(threadIdx.x); i < whole_end; i += int(blockDim.x)) copy_async<16>(to + i * 16, from + i);
  if (whole > 0 || whole_end < count) {
    const int g = int(threadIdx.x) / kPer == 0 ? 0 : count - 1, at = g * kPer + int(threadIdx.x) % kPer;
    const E* const item = reinterpret_cast<const E*>(from) + at;
    if (int(threadIdx.x) < (count > 1 ? 2 : 1) * kPer && (g < whole || g >= whole_end) && item >= first && item < end)
      reinterpret_cast<E*>(to)[at] = *item;
  }
}
// Writes them to `first` on, in the same way.
template <class E> __device__ __forceinline__ void unstage_run(const char* from, E* first, int count) {
  constexpr int kPer = kPerGranule<E>;
  const int begin = elements_before(first), end = begin + count;
  E* const to = first - begin;
  const int whole = begin > 0 ? 1 : 0, whole_end = end / kPer;
#pragma unroll 4
  for (int i = whole + int(threadIdx.x); i < whole_end; i += int(blockDim.x))
    store_item(reinterpret_cast<Granule*>(to) + i, reinterpret_cast<const Granule*>(from)[i]);
  const int g = int(threadIdx.x) / kPer == 0 ? 0 : end / kPer, at = g * kPer + int(threadIdx.x) % kPer;
  if (int(threadIdx.x) < (end >= kPer ? 2 : 1) * kPer && (g < whole || g >= whole_end) && at >= begin && at < end)
    store_item(to + at, reinterpret_cast<const E*>(from)[at]);
}

// Up to kCount elements, from `to` on in shared memory: a word is written as soon as the one after it is known.
// kFull: all of kCount.
template <class E, int kCount, bool kFull> struct RunWriter {
  char* to;
  int count;
  Eight<E> before;

  __device__ __forceinline__ bool odd() const { return (reinterpret_cast<uintptr_t>(to) & 2) != 0; }
  // Elements 8 j on. Of 16-bit floats the words of those before it that lie within `to`'s are written.
  __device__ __forceinline__ void put(int j, const Eight<E>& g) {
    if constexpr (sizeof(E) == 4) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        if (kFull || j * kGroup + i < count) reinterpret_cast<uint32_t*>(to)[j * kGroup + i] = g.item[i];
    } else {
      if (j > 0) write(j - 1, g.item[0]);
      else if (odd()) *reinterpret_cast<uint16_t*>(to) = uint16_t(g.item[0]);
      before = g;
      if (j == kCount / kGroup - 1 || (!kFull && (j + 1) * kGroup >= count)) write(j, 0);
    }
  }

 private:
  // Those of elements 8 j on, `next` what comes after them.
  __device__ __forceinline__ void write(int j, uint32_t next) {
    const int first = j * kGroup + odd();  // of the first word
    uint32_t* const words = reinterpret_cast<uint32_t*>(to + (odd() ? 2 : 0)) + j * (kGroup / 2);
    uint32_t w[kGroup / 2];
#pragma unroll
    for (int i = 0; i < kGroup / 2; ++i)
      w[i] = funnel_right(before.item[i], i + 1 < kGroup / 2 ? before.item[(i + 1) % (kGroup / 2)] : next, odd() * 16);
    if ((kFull && j + 1 < kCount / kGroup) || first + kGroup <= count) {
#pragma unroll
      for (int i = 0; i < kGroup / 2; ++i) words[i] = w[i];
    } else {
#pragma unroll
      for (int i = 0; i < kGroup / 2; ++i) {
        if ((kFull && i + 1 < kGroup / 2) || first + 2 * i + 1 < count) words[i] = w[i];
        else if (first + 2 * i < count) *reinterpret_cast<uint16_t*>(words + i) = uint16_t(w[i]);
      }
    }
  }
};

// ---- a lane's part of a row ---------------------------------------------------------------------------------------------

// kFull: the row has all elements that there are places for.
template <class Op, class E, int kSpan, int kChunks> struct PackedPart {
  using F = float;
  static constexpr int kInputs = Op::kInputs, kSums = Op::kSums, kEights = kSpan / kGroup;
  int first, n;  // its first residue; elements of the row
  Eight<E> held[kInputs][kChunks * kEights];
  F terms[Op::kTerm ? kChunks * kSpan : 1];

  __device__ __forceinline__ bool is_full() const { return (kChunks - 1) * kResidues + first + kSpan <= n; }
  // Elements of the row from those of an eight on.
  template <bool kFull> __device__ __forceinline__ int rest(int c, int j) const {
    return kFull ? kGroup : n - (c * kResidues + first + j * kGroup);
  }

  // A row that starts `at` bytes after `from`, a word.
  template <bool kFull> __device__ __forceinline__ void read(int input, const char* from, int at) {
    constexpr int kWords = 2 * int(sizeof(E));
    constexpr bool kShifts = sizeof(E) == 2;
    const int bits = (at & 3) * 8;
    const uint32_t* const words = reinterpret_cast<const uint32_t*>(from + (at & ~3)) + first * int(sizeof(E)) / 4;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      uint32_t next = 0;
#pragma unroll
      for (int j = 0; j < kEights; ++j) {
        if (rest<kFull>(c, j) <= 0) break;
        const uint32_t* const w = words + (c * kResidues + j * kGroup) * int(sizeof(E)) / 4;
        Eight<E>& g = held[input][c * kEights + j];
        if (j == 0) next = w[0];
#pragma unroll
        for (int k = 0; k < kWords; ++k) {
          const uint32_t low = next;
          if (kShifts || k + 1 < kWords || j + 1 < kEights) next = w[k + 1];
          g.item[k] = kShifts ? funnel_right(low, next, bits) : low;
        }
        if (!kFull && rest<kFull>(c, j) < kGroup) keep_first<E>(g, rest<kFull>(c, j));
      }
    }
  }

  template <bool kFull> __device__ __forceinline__ Bounds extremes(int input) const {
    const Eight<E>(&g)[kChunks * kEights] = held[input];
    const auto each = [&](auto take) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
#pragma unroll
        for (int j = 0; j < kEights; ++j) {
          if (rest<kFull>(c, j) <= 0) break;
#pragma unroll
          for (uint32_t w : g[c * kEights + j].item) take(w);
        }
    };
    if constexpr (sizeof(E) == 4) {
      Bounds e{bit_cast<float>(g[0].item[0]), bit_cast<float>(g[0].item[0])};
      each([&](uint32_t w) {
        e.greatest = greatest(e.greatest, bit_cast<float>(w));
        e.least = -greatest(-e.least, -bit_cast<float>(w));
      });
      return e;
    } else {
      constexpr bool kBF16 = std::is_same<E, BF16>::value;
      uint32_t most = g[0].item[0], least = most;
      each([&](uint32_t w) {
        most = packed_maxima<kBF16>(most, w);
        least = packed_minima<kBF16>(least, w);
      });
      return {to_float(E{uint16_t(packed_maxima<kBF16>(most, most >> 16))}),
              to_float(E{uint16_t(packed_minima<kBF16>(least, least >> 16))})};
    }
  }

  // take(sums, number of the element in the lane, x): adds it to the sums of its residue. What the lane's residues come
  // to.
  template <bool kFull, int kCount, class Take> __device__ __forceinline__ void sum(F (&total)[kCount], Take take) {
    F run[kCount][kEights];
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      F acc[kGroup][kCount];
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
#pragma unroll
        for (F& a : acc[i]) a = F(-0.0);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int have = rest<kFull>(c, j), k = c * kEights + j;
        if (have <= 0) break;
        F v[kInputs][kGroup];
#pragma unroll
        for (int input = 0; input < kInputs; ++input) values_of<E>(held[input][k], v[input]);
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
          F x[kInputs], next[kCount];
#pragma unroll
          for (int input = 0; input < kInputs; ++input) x[input] = v[input][i];
#pragma unroll
          for (int s = 0; s < kCount; ++s) next[s] = acc[i][s];
          take(next, k * kGroup + i, x);
#pragma unroll
          for (int s = 0; s < kCount; ++s) acc[i][s] = chosen(kFull || i < have, next[s], acc[i][s]);
        }
      }
#pragma unroll
      for (int s = 0; s < kCount; ++s)
        run[s][j] =
            ((acc[0][s] + acc[1][s]) + (acc[2][s] + acc[3][s])) + ((acc[4][s] + acc[5][s]) + (acc[6][s] + acc[7][s]));
    }
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
#pragma unroll
      for (int d = 1; d < kEights; d *= 2)
#pragma unroll
        for (int j = 0; j + d < kEights; j += 2 * d) run[s][j] = run[s][j] + run[s][j + d];
      total[s] = run[s][0];
    }
  }

  // The second look.
  template <bool kFull, class Seen, class Given>
  __device__ __forceinline__ void look([[maybe_unused]] bool fast, const Seen& seen, const Given& given,
                                       F (&sums)[kSums]) {
    if constexpr (Op::kFast) {
      if (fast)
        return sum<kFull>(sums, [&](F* acc, int k, const F* x) {
          if constexpr (Op::kTerm) acc[0] = acc[0] + (terms[k] = Op::fast_term(x[0], seen));
          else Op::fast_step(acc, x, seen);
        });
    }
    sum<kFull>(sums, [&](F* acc, int k, const F* x) {
      if constexpr (Op::kTerm) acc[0] = acc[0] + (terms[k] = Op::term(x[0], seen));
      else Op::step(acc, x, F(1), seen, given);
    });
  }
  // The elements of the row, to `to` in shared memory, where it starts. kFast: the data is.
  template <bool kFull, bool kFast, class At> __device__ __forceinline__ void write(char* to, const At& at) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int have = kFull ? kSpan : rest<kFull>(c, 0), begin = c * kResidues + first;
      if (have <= 0) break;
      RunWriter<E, kSpan, kFull> out{to + begin * int(sizeof(E)), have < kSpan ? have : kSpan, {}};
#pragma unroll
      for (int j = 0; j < kEights; ++j) {
        if (rest<kFull>(c, j) <= 0) break;
        const int k = c * kEights + j;
        F v[kInputs][kGroup], y[kGroup];
        if constexpr (!Op::kTerm)
#pragma unroll
          for (int input = 0; input < kInputs; ++input) values_of<E>(held[input][k], v[input]);
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
          if constexpr (Op::kTerm) {
            const F term = terms[k * kGroup + i];
            y[i] = kFast ? Op::fast_map(term, at) : Op::map(term, F(1), F(-0.0), begin + j * kGroup + i, at);
          } else {
            F x[kInputs];
#pragma unroll
            for (int input = 0; input < kInputs; ++input) x[input] = v[input][i];
            if constexpr (kFast) y[i] = Op::fast_map(x, at);
            else y[i] = Op::map(x, F(1), F(-0.0), begin + j * kGroup + i, at);
          }
        }
        out.put(j, rounded<kFast>(y));
      }
    }
  }

 private:
  template <bool kNumbers> __device__ __forceinline__ static Eight<E> rounded(const F (&y)[kGroup]) {
    if constexpr (sizeof(E) == 2) {
      return HeldGranules<E, 1, true, true>::template rounded<kNumbers>(y);
    } else {
      Eight<E> g;
#pragma unroll
      for (int i = 0; i < kGroup; ++i) g.item[i] = bit_cast<uint32_t>(kNumbers ? y[i] : canonical(y[i]));
      return g;
    }
  }
};

// The tree over what the lanes of a row have, each in a place of its own; every lane gets it.
template <int kSpan>
__device__ __forceinline__ float over_parts(float own, float* all, const RowwisePackedRowsShape& shape) {
  constexpr int kMost = kResidues / kSpan;
  all[threadIdx.x] = own;
  __syncthreads();
  const int place = int(threadIdx.x) & (shape.rows - 1);
  float v[kMost];
#pragma unroll
  for (int k = 0; k < kMost; ++k) v[k] = k < shape.parts ? all[k << shape.log_rows | place] : -0.0f;
#pragma unroll
  for (int d = 1; d < kMost; d *= 2)
#pragma unroll
    for (int k = 0; k < kMost; k += 2 * d) v[k] = v[k] + v[k + d];
  return v[0];
}

// ---- the kernel --------------------------------------------------------------------------------------------------------

template <class Op, class E, int kWhich> constexpr rowwise_packed_rows::Form kPackedForm =
    rowwise_packed_rows::form(kWhich, int(sizeof(E)), Op::kInputs, Op::kMaps);

template <class Op, class E, int kWhich>
__global__ void TR_BLOCK_BOUND((rowwise_packed_rows::threads(kPackedForm<Op, E, kWhich>, int(sizeof(E)), Op::kInputs,
                                                             Op::kTerm)))
    rowwise_packed_rows_kernel(TR_GRID_CONSTANT RowwiseKernelCall call, TR_GRID_CONSTANT RowwisePackedRowsShape shape) {
  using F = float;
  constexpr int kInputs = Op::kInputs, kSums = Op::kSums;
  constexpr rowwise_packed_rows::Form kForm = kPackedForm<Op, E, kWhich>;
  constexpr int kSpan = kForm.span;
  TR_DYNAMIC_SHARED(shared, 16);
  const int n = int(call.length);
  const int64_t row0 = int64_t(blockIdx.x) * shape.rows;
  const int rows = int(call.rows - row0 < shape.rows ? call.rows - row0 : shape.rows);
  const E* from[kInputs];
#pragma unroll
  for (int k = 0; k < kInputs; ++k) {
    from[k] = static_cast<const E*>(call.in[k]) + row0 * n;
    stage_run(call, k, shared + k * shape.input_span, from[k], from[k] + rows * n);
  }
  end_copies();
  wait_copies<0>();
  __syncthreads();

  // A row that is not there stands for another, and writes nothing.
  const int place = int(threadIdx.x) & (shape.rows - 1), t = int(threadIdx.x) >> shape.log_rows;
  const bool there = place < rows;
  const int r = there ? place : rows - 1;
  PackedPart<Op, E, kSpan, kForm.chunks> part;
  part.first = t * kSpan;
  part.n = n;
  const bool full = part.is_full();
  const auto either = [&](auto with) {
    if (full) with(std::true_type{});
    else with(std::false_type{});
  };
  const int64_t value = call.start(row0 + r).value;
  const auto given = Op::given(call.options, call.memory, value);
  either([&](auto kFull) {
#pragma unroll
    for (int k = 0; k < kInputs; ++k)
      part.template read<kFull>(k, shared + k * shape.input_span, (elements_before(from[k]) + r * n) * int(sizeof(E)));
  });

  Bounds* const all_found = reinterpret_cast<Bounds*>(shared + shape.exchange);
  F* const all_sums = reinterpret_cast<F*>(all_found + blockDim.x);
  F found = first_absent<Op::kFirst, F>();
  bool fast = false;
  if constexpr (Op::kFirst == First::Greatest) {
    Bounds e;
    either([&](auto kFull) { e = part.template extremes<kFull>(0); });
    all_found[threadIdx.x] = e;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kResidues / kSpan; ++k) {
      if (k >= shape.parts) break;
      const Bounds other = all_found[k << shape.log_rows | place];
      e.greatest = greatest(e.greatest, other.greatest);
      e.least = -greatest(-e.least, -other.least);
    }
    found = e.greatest;
    if constexpr (Op::kFast) fast = Op::allows_fast(found, e.least);
  } else if constexpr (Op::kFirst == First::Sum) {
    F sum[1];
    either([&](auto kFull) { part.template sum<kFull>(sum, [](F* acc, int, const F* x) { acc[0] = acc[0] + x[0]; }); });
    found = over_parts<kSpan>(sum[0], reinterpret_cast<F*>(all_found), shape);
  }
  const auto seen = Op::seen(found, n, given);
  F sums[kSums];
  either([&](auto kFull) { part.template look<kFull>(fast, seen, given, sums); });
#pragma unroll
  for (int s = 0; s < kSums; ++s) sums[s] = over_parts<kSpan>(sums[s], all_sums + s * int(blockDim.x), shape);
  if constexpr (!Op::kMaps)
    if (t > 0 || !there) return;
  auto state = Op::skips(given) ? Op::none() : Op::state(found, sums, n);
  if constexpr (Op::kScales) {
    const F scale = Op::rescale(sums, seen);
    if (scale != F(1)) {
      TR_RARE_PATH;
      typename Op::State own = state;
      scaled_leaf<Op>(own, scale, LeafElements<E>{from[0] + r * n, 1, n});
      state = own;
    }
  }
  const auto row = Op::row(state, n, given, call.options, [&](int64_t i) { return convert<F>(from[0][r * n + i]); });
  if (t == 0 && there) Op::write(row, call.memory, value);
  if constexpr (Op::kMaps) {  // all have read what is there
    const auto& at = Op::at(row, state);
    E* const out = static_cast<E*>(call.out) + row0 * n;
    char* const to = shared + (elements_before(out) + r * n) * int(sizeof(E));
    either([&](auto kFull) {
      if (!there) return;
      if constexpr (Op::kFastMap) {
        if (Op::allows_fast_map(part.template extremes<kFull>(kInputs - 1).least, at))
          return part.template write<kFull, true>(to, at);
      }
      part.template write<kFull, false>(to, at);
    });
    __syncthreads();
    unstage_run(shared, out, rows * n);
  }
}

}  // namespace torchreduce::gpu
