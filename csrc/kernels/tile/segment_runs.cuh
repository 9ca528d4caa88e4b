// What kernels of functions of segments along a dim have in common (segment_runs.h).
#pragma once
#include "kernels/common/collective.cuh"
#include "segment_runs.h"

namespace torchreduce::gpu {

// A segment of a row.
struct SegmentRow { int64_t segment, row, begin, length; };

// Positions of rows in memory: of row r, the one at `i` along the dim is at offset + i * step + r * row_step.
struct RowRun {
  int64_t offset, step, row_step;

  __device__ __forceinline__ int64_t at(int64_t i, int row) const { return offset + i * step + row * row_step; }
};

// The parts of a block's shared memory: the elements of each input, whose the slots are, and of each slot and of each
// segment of a row so many bytes (segment_runs::shared_bytes).
struct SharedParts {
  char* items[2];
  uint32_t* places;
  char *slots, *segments;

  __device__ __forceinline__ SharedParts(char* memory, const SegmentRuns& runs, int element, int inputs, int slot) {
    using namespace segment_runs;
    const int all = runs.slots * runs.rows;
    const int bytes = aligned_up(staged_items(runs.room * runs.rows, element) * element);
    items[0] = memory;
    items[1] = memory + (inputs - 1) * bytes;
    places = reinterpret_cast<uint32_t*>(memory + inputs * bytes);
    slots = reinterpret_cast<char*>(places) + aligned_up(all * 4);
    segments = slots + aligned_up(all * slot);
  }
};

// Places that a block has for what belongs to segments (SegmentBlock::place_of).
__device__ __forceinline__ int places(const SegmentRuns& runs) { return (runs.each + runs.slots / 32 + 1) * runs.rows; }

// ---- segments that are left to the next kernels ----------------------------------------------------------------------

__device__ __forceinline__ SegmentRow segment_of(const SegmentOffsets& of, int64_t segment, int64_t row) {
  const int64_t begin = offset_within(global(of.data), of.dtype, segment, of.length);
  const int64_t end = offset_within(global(of.data), of.dtype, segment + 1, of.length);
  return {segment, row, begin, end > begin ? end - begin : 0};
}
// Lists those of a warp's lanes that are `left`, walked or not.
__device__ __forceinline__ void list_segments(const SegmentRuns& runs, const SegmentList& list, bool left, bool walked,
                                              int64_t segment) {
  const uint32_t mine = ballot(left);
  if (!mine) return;
  uint64_t first = 0;
  if (lane_id() == 0)
    first = atomicAdd(reinterpret_cast<unsigned long long*>(global(list.counts + walked)), uint64_t(bits_set(mine)));
  const int64_t at = int64_t(shuffle(first, 0)) + bits_set(mine & ((uint32_t(1) << lane_id()) - 1));
  if (left && at < runs.listed) global(list.segments)[walked ? runs.listed - 1 - at : at] = segment;
}
// Calls with(a segment of a row) for all those of which number `first`, and each `step`th from there, is the caller's.
// is_left(length): whether a segment is one of them.
template <class IsLeft, class With>
__device__ __forceinline__ void each_listed(const SegmentOffsets& of, int64_t rows, const SegmentRuns& runs,
                                            const SegmentList& list, bool walked, int64_t first, int64_t step,
                                            IsLeft is_left, With with) {
  const uint64_t* const counts = global(list.counts);
  const bool all_listed = int64_t(counts[0] + counts[1]) <= runs.listed;
  const int64_t count = all_listed ? int64_t(counts[walked]) : of.count;
#pragma unroll 1
  for (int64_t i = first; i < count * rows; i += step) {
    const int64_t number = rows == 1 ? i : i / rows;
    const int64_t* const listed = global(list.segments) + (walked ? runs.listed - 1 - number : number);
    const SegmentRow row = segment_of(of, all_listed ? *listed : number, i - number * rows);
    if (is_left(row.length)) with(row);
  }
}

// ---- the segments of a block -----------------------------------------------------------------------------------------

// Neighbouring ones of which a block holds all elements at once. Their first element and slot are number 0.
struct SegmentBatch {
  int first, end, slots;  // segments, of those of the block; slots of each row
  int64_t from;           // along the dim
  int length;
};

// SlotsOf()(n): the slots of a segment of n elements.
template <class SlotsOf> struct SegmentBlock {
  static constexpr int kThreads = segment_runs::kThreads, kWarps = segment_runs::kWarps;
  struct Lists {
    int64_t begin[kThreads + 1];
    int start[kThreads + 1];  // its first slot
    int totals[kWarps], most[kWarps];
    bool falls[kWarps];
  };
  // A slot of a row: of which segment, and what number it has there. Where the segment begins, of what is held.
  struct Slot {
    int segment, number, row, begin, length;
    bool there;
  };

  const SegmentOffsets& of;
  const SegmentRuns& runs;
  Lists& lists;
  uint32_t* places;  // [slot]: the segment, and the slot's number there in the upper half
  int64_t first = 0, row = 0;
  int count = 0, rows = 0, rows_log2 = 0;
  int most = 0;  // slots of a segment that is held
  bool falls = false;

  __device__ __forceinline__ SegmentBlock(const SegmentOffsets& of, const Layout& l, const SegmentRuns& runs,
                                          Lists& lists, uint32_t* places)
      : of(of), runs(runs), lists(lists), places(places) {
    const int64_t chunk = runs.row_blocks == 1 ? blockIdx.x : blockIdx.x / runs.row_blocks;
    first = chunk * runs.each;
    if (first >= of.count) return;
    count = int(runs.each < of.count - first ? runs.each : of.count - first);
    const int64_t number = blockIdx.x - chunk * runs.row_blocks;
    if (runs.line_blocks == 1 && runs.rows == 1) {
      row = number;
      rows = 1;
    } else {  // those of one innermost dim
      const int64_t line = number / runs.line_blocks, beside = l.size[l.kept - 1];
      const int64_t within = (number - line * runs.line_blocks) * runs.rows;
      row = line * beside + within;
      rows = int(runs.rows < beside - within ? runs.rows : beside - within);
    }
    while (1 << rows_log2 < runs.rows) ++rows_log2;
  }

  __device__ __forceinline__ static bool holds(const SegmentRuns& runs, int64_t n) {
    return n <= runs.room && SlotsOf()(int(n)) <= runs.slots;
  }
  __device__ __forceinline__ bool holds(int64_t n) const { return holds(runs, n); }
  __device__ __forceinline__ int64_t length(int s) const {
    return lists.begin[s + 1] > lists.begin[s] ? lists.begin[s + 1] - lists.begin[s] : 0;
  }

  // Looks at the segments, and lists those that are not held. By the block.
  __device__ __forceinline__ void list(const SegmentList& left) {
    const int t = int(threadIdx.x), warp = t / kLanes, lane = lane_id();
    const void* const offsets = global(of.data);
    for (int i = t; i <= count; i += kThreads) lists.begin[i] = offset_within(offsets, of.dtype, first + i, of.length);
    __syncthreads();
    int slots = 0;
    bool fall = false;
    if (t < count) {
      const int64_t n = length(t);
      slots = holds(n) ? SlotsOf()(int(n)) : 0;
      fall = lists.begin[t + 1] < lists.begin[t];
    }
    list_segments(runs, left, t < count && row == 0 && !holds(length(t)), true, first + t);
    int upto = slots;
#pragma unroll
    for (int d = 1; d < kLanes; d *= 2) {
      const int before = shuffle_up(upto, d, kLanes);
      if (lane >= d) upto += before;
    }
    const int greatest = warp_most(slots);
    fall = ballot(fall) != 0;
    if (lane == kLanes - 1) {
      lists.totals[warp] = upto;
      lists.most[warp] = greatest;
      lists.falls[warp] = fall;
    }
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) upto += lists.totals[w];
      most = most > lists.most[w] ? most : lists.most[w];
      falls |= lists.falls[w];
    }
    if (t < count) lists.start[t + 1] = upto;
    if (t == 0) lists.start[0] = 0;
    __syncthreads();
  }

  // Calls with(batch) for all segments that are held, as many at a time as there is room for; one, where any begin
  // before those that they follow.
  template <class With> __device__ __forceinline__ void each_batch(With with) {
#pragma unroll 1
    for (int s = 0; s < count;) {
      const int64_t from = lists.begin[s];
      int end = s;
      if (!falls) {
#pragma unroll
        for (int step = kLanes; step > 0; step /= kLanes) {
          const int next = end + (lane_id() + 1) * step, at = next <= count ? next : count;
          end += step * bits_set(ballot(next <= count && lists.begin[at] - from <= runs.room &&
                                        lists.start[at] - lists.start[s] <= runs.slots));
        }
      } else if (holds(length(s))) {
        ++end;
      }
      if (end == s) {  // one that is not held
        ++s;
        continue;
      }
      const int64_t last = lists.begin[end] > from ? lists.begin[end] : from;
      const SegmentBatch batch{s, end, lists.start[end] - lists.start[s], from, int(last - from)};
      place(batch);
      with(batch);
      __syncthreads();
      s = end;
    }
  }

  // Slot number u of a batch, of all rows: those of a slot come one after the other.
  __device__ __forceinline__ Slot slot(const SegmentBatch& batch, int u) const {
    const uint32_t place = places[u >> rows_log2];
    const int row = u & ((1 << rows_log2) - 1), s = int(place & 0xffff);
    const int begin = int(lists.begin[s] - batch.from);
    return {s,         int(place >> 16), row, begin + row * runs.room, int(lists.begin[s + 1] - batch.from) - begin,
            row < rows};
  }
  // What belongs to a segment, or to one of its leaves or tiles, of which each but the last has `slots` slots, is at
  // this place of a list (places_of_room). Those that are not the first ones of their segments begin in slots that are
  // `slots` apart at least.
  __device__ __forceinline__ int place_of(const SegmentBatch& batch, int s, int part, int slots, int row) const {
    const int start = lists.start[s] - lists.start[batch.first];
    const int place = part == 0 ? s : runs.each + (start + part * slots) / slots;
    return (place << rows_log2) + row;
  }

 private:
  // Writes down whose the slots are. Neighbouring threads share a segment.
  __device__ __forceinline__ void place(const SegmentBatch& batch) const {
    int each = kThreads;
    while (kThreads / each < batch.end - batch.first) each /= 2;
    const int t = int(threadIdx.x);
#pragma unroll 1
    for (int s = batch.first + t / each; s < batch.end; s += kThreads / each) {
      const int start = lists.start[s] - lists.start[batch.first], slots = lists.start[s + 1] - lists.start[s];
#pragma unroll 1
      for (int k = t % each; k < slots; k += each) places[start + k] = uint32_t(s) | uint32_t(k) << 16;
    }
  }
};

// The segments of a warp: those from `first` to `last`.
struct SegmentsOfWarp {
  int64_t row, first, last;

  __device__ __forceinline__ SegmentsOfWarp(const SegmentOffsets& of, const Layout& l, const SegmentRuns& runs) {
    const int each = (runs.each + segment_runs::kWarps - 1) / segment_runs::kWarps;
    const int64_t chunk = l.rows == 1 ? blockIdx.x : blockIdx.x / l.rows, end = (chunk + 1) * runs.each;
    row = blockIdx.x - chunk * l.rows;
    first = chunk * runs.each + int(threadIdx.x) / kLanes * each;
    last = first + each < end ? first + each : end;
    last = last < of.count ? last : of.count;
  }
};

// Writes 0 to the elements of no segment: zero(row, index along the dim), by all threads of all blocks.
template <class Zero>
__device__ __forceinline__ void clear_others(const SegmentOffsets& of, int64_t rows, Zero zero) {
  const void* const offsets = global(of.data);
  const int64_t head = offset_within(offsets, of.dtype, 0, of.length);
  const int64_t end = offset_within(offsets, of.dtype, of.count, of.length), tail = end > head ? end : head;
  const int64_t others = (head + of.length - tail) * rows, threads = int64_t(gridDim.x) * blockDim.x;
#pragma unroll 1
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < others; i += threads) {
    const int64_t at = i / rows;
    zero(i - at * rows, at < head ? at : at - head + tail);
  }
}

// ---- elements between memory and shared memory -----------------------------------------------------------------------

// Elements of a block, as F: number i of row r is item r * room + i.
template <class F> struct StagedRuns {
  static constexpr int kThreads = segment_runs::kThreads, kAtOnce = 4;
  F* items;
  int room, rows, rows_log2;

  __device__ __forceinline__ F& operator[](int i) const {
    return items[i + int(unsigned(i) >> segment_runs::skipped_log2(sizeof(F)))];
  }

  // Copies elements [first, end) of each row, number 0 of which is at index `from` along the dim.
  template <class E>
  __device__ __forceinline__ void load(const void* data, const RowRun& run, int64_t from, int first, int end) const {
    const E* const x = global(static_cast<const E*>(data));
    each_item<E>(
        x + run.at(from + first, 0), run, first, end,
        [&](const E* granules, int g, int count, int item) {
          Granule loaded[kAtOnce];
#pragma unroll
          for (int k = 0; k < kAtOnce; ++k) {
            loaded[k] = Granule{};
            load_if(g + k * kThreads < count, reinterpret_cast<const Granule*>(granules) + g + k * kThreads, loaded[k]);
          }
#pragma unroll
          for (int k = 0; k < kAtOnce; ++k) {
            if (g + k * kThreads >= count) continue;
            E some[kPerGranule<E>];
            memcpy(some, &loaded[k], sizeof some);
            each_staged<kPerGranule<E>>(first, item + k * kThreads * kPerGranule<E>,
                                        [&](int i, F& staged) { staged = convert<F>(some[i]); });
          }
        },
        [&](const int (&number)[kAtOnce], const bool (&there)[kAtOnce]) {
          E some[kAtOnce] = {};
#pragma unroll
          for (int k = 0; k < kAtOnce; ++k)
            if (there[k]) some[k] = x[run.at(from + first + (number[k] >> rows_log2), number[k] & (mask()))];
#pragma unroll
          for (int k = 0; k < kAtOnce; ++k)
            if (there[k]) (*this)[staged(first, number[k])] = convert<F>(some[k]);
        });
  }
  // Copies them back, each rounded once.
  template <class E>
  __device__ __forceinline__ void store(void* data, const RowRun& run, int64_t from, int end) const {
    E* const y = global(static_cast<E*>(data));
    each_item<E>(
        y + run.at(from, 0), run, 0, end,
        [&](const E* granules, int g, int count, int item) {
#pragma unroll 1
          for (int k = 0; k < kAtOnce && g + k * kThreads < count; ++k) {
            E some[kPerGranule<E>];
            each_staged<kPerGranule<E>>(0, item + k * kThreads * kPerGranule<E>,
                                        [&](int i, F& staged) { some[i] = round_to<E>(staged); });
            Granule granule;
            memcpy(&granule, some, sizeof granule);
            store_granule(const_cast<Granule*>(reinterpret_cast<const Granule*>(granules)) + g + k * kThreads, granule);
          }
        },
        [&](const int (&number)[kAtOnce], const bool (&there)[kAtOnce]) {
#pragma unroll
          for (int k = 0; k < kAtOnce; ++k)
            if (there[k])
              y[run.at(from + (number[k] >> rows_log2), number[k] & mask())] =
                  round_to<E>((*this)[staged(0, number[k])]);
        });
  }

 private:
  __device__ __forceinline__ int mask() const { return (1 << rows_log2) - 1; }
  // The item that is the `number`th of those of all rows, which come one after the other at each index.
  __device__ __forceinline__ int staged(int first, int number) const {
    return (number & mask()) * room + first + (number >> rows_log2);
  }
  // Calls with(i, the item) for kCount of them, from the `number`th on.
  template <int kCount, class With> __device__ __forceinline__ void each_staged(int first, int number,
                                                                                With with) const {
    if (rows_log2 == 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) with(i, (*this)[first + number + i]);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) with(i, (*this)[staged(first, number + i)]);
    }
  }
  // Calls granules(the first, number of this thread's, how many there are, number of its first element), for some of
  // a thread's kThreads apart, where elements are a run of memory, and elements(numbers, whether they are there) for
  // the others.
  template <class E, class Granules, class Elements>
  __device__ __forceinline__ void each_item(const E* begin, const RowRun& run, int first, int end, Granules granules,
                                            Elements elements) const {
    constexpr int kPer = kPerGranule<E>;
    const int t = int(threadIdx.x), count = (end > first ? end - first : 0) << rows_log2;
    const bool is_run = rows_log2 == 0 ? run.step == 1 : run.row_step == 1 && run.step == rows && rows == mask() + 1;
    int head = count, whole = 0;
    if (is_run) {
      const int ahead = int(reinterpret_cast<uintptr_t>(begin) % kGranule / sizeof(E));
      head = ahead ? kPer - ahead : 0;
      head = head < count ? head : count;
      whole = (count - head) / kPer;
#pragma unroll 1
      for (int g = t; g < whole; g += kAtOnce * kThreads) granules(begin + head, g, whole, head + g * kPer);
    }
    // What is left: the first ones, and those behind the granules.
    const int left = count - whole * kPer;
#pragma unroll 1
    for (int i = t; i < left; i += kAtOnce * kThreads) {
      int number[kAtOnce];
      bool there[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int at = i + k * kThreads;
        number[k] = at < head ? at : at + whole * kPer;
        there[k] = at < left && (number[k] & mask()) < rows;
      }
      elements(number, there);
    }
  }
};

// Calls with(E()) for the type of elements: any, or any floating one.
template <bool kFloats, class With> __device__ __forceinline__ void with_element(Dtype dtype, With with) {
  if constexpr (kFloats) {
    switch (dtype) {
      case Dtype::F16: return with(F16());
      case Dtype::BF16: return with(BF16());
      case Dtype::F64: return with(double());
      default: return with(float());
    }
  } else {
#define TR_CASE(T) \
  case DtypeOf<T>::value: return with(T());
    switch (dtype) { TR_FOR_EACH_TYPE(TR_CASE) }
#undef TR_CASE
  }
}
// The same for that of results.
template <class F, class With> __device__ __forceinline__ void with_result(Dtype dtype, With with) {
  if constexpr (std::is_same<F, int64_t>::value) {
    switch (dtype) {
      case Dtype::U8: return with(uint8_t());
      case Dtype::I8: return with(int8_t());
      case Dtype::I16: return with(int16_t());
      case Dtype::I32: return with(int32_t());
      default: return with(int64_t());
    }
  } else {
    with_element<true>(dtype, with);
  }
}

// ---- eight elements a lane, `stride` apart -----------------------------------------------------------------------------

// Elements [from, count) of any floating type, converted; the rest stays. The type is looked at once, so that the loads
// are in flight together.
template <class F>
__device__ __forceinline__ void load_floats(Dtype dtype, const void* data, int64_t offset, int64_t stride, int from,
                                            int count, F (&x)[kGroup]) {
  with_element<true>(dtype, [&](auto element) {
    using E = decltype(element);
    const E* const first = global(static_cast<const E*>(data)) + offset;
    E loaded[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (i >= from && i < count) loaded[i] = first[i * stride];
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (i >= from && i < count) x[i] = convert<F>(loaded[i]);
  });
}
// Rounds the first `count` to the output's type, and stores them.
template <class F>
__device__ __forceinline__ void store_elements(Dtype dtype, void* data, int64_t offset, int64_t stride, int count,
                                               const F (&v)[kGroup]) {
  with_result<F>(dtype, [&](auto element) {
    using E = decltype(element);
    E* const first = global(static_cast<E*>(data)) + offset;
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (i < count) first[i * stride] = round_to<E>(v[i]);
  });
}
// How many of them there are: of positions first, first + step ..., those below n, at most eight.
__device__ __forceinline__ int count_below(int64_t n, int64_t first, int step) {
  const int64_t count = n > first ? (n - first + step - 1) / step : 0;
  return int(count < kGroup ? count : kGroup);
}

}  // namespace torchreduce::gpu
