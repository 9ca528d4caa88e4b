// The CPU kernels' entry points. Torch-free: the caller passes its thread pool in.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace torchreduce {

// Of reduce_plan.h, scan_plan.h, rowwise_plan.h, segment_call.h, line_scatter.h, scan_segments.h and
// rowwise_segments.h: the kernels of one kind do not depend on the plans of another.
struct PlannedReduction;
struct PlannedScan;
struct PlannedRowwise;
struct ChannelCall;
struct SegmentReduction;
struct SegmentIndex;
struct LineScatter;
struct ScanSegments;
struct RowwiseSegments;

}  // namespace torchreduce

namespace torchreduce::cpu {

// Runs body(context, begin, end) over disjoint ranges that cover [0, tasks), perhaps at once. Bodies do not throw.
using ParallelFor = void (*)(int64_t tasks, void (*body)(void* context, int64_t begin, int64_t end), void* context);

// Fill the output of `call`. The bits do not depend on the number of threads nor on the instruction set.
void reduce(const PlannedReduction& call, ParallelFor parallel_for);
void scan(const PlannedScan& call, ParallelFor parallel_for);
void rowwise_rows(const PlannedRowwise& call, ParallelFor parallel_for);
void channels(const ChannelCall& call, int64_t threads, ParallelFor parallel_for);
void reduce_segments(const SegmentReduction& call, int64_t threads, ParallelFor parallel_for);
// But for the elements of no segment, which stay as they are.
void scan_segments(const ScanSegments& call, int64_t threads, ParallelFor parallel_for);
void rowwise_segments(const RowwiseSegments& call, int64_t threads, ParallelFor parallel_for);
// Returns the first place whose number is out of range, and then fills nothing; else -1.
int64_t index_segments(const SegmentIndex& call, int64_t threads, ParallelFor parallel_for);
int64_t scatter_lines(const LineScatter& call, int64_t threads, ParallelFor parallel_for);  // as index_segments

// "avx512", "avx2" or "baseline": the widest this machine runs, or what was set. set_ returns false for one it lacks.
std::string instruction_set();
bool set_instruction_set(const std::string& name);
std::vector<std::string> instruction_sets();  // those this machine runs, widest first

}  // namespace torchreduce::cpu
