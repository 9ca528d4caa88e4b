"""Seeded bugs in the kernels: each is applied alone to a copy of csrc, and the emulation has to find it.

    mutants.py [--some | --quick] [NAME ...]

Prints what found each. Fails if one survives, or if its pattern no longer fits the sources: then it has to be rewritten
for what stands there now. --some: those that are marked so. --quick: QUICK of these, other ones for other sources, in
kernels of a few types, and of those in the environment's KERNELS alone, as in the Makefile here. Needs the objects of
the right kernels (make -C tests/simt build, or quick).
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SOURCES = FOLDER.parents[1] / "csrc"
BUILD = FOLDER.parents[1] / "build" / "simt"
SECONDS = 900  # for one run: what waits for ever is found much sooner, by the emulator
QUICK = 4


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str  # in csrc
    old: str  # stands there once; white space of any kind and amount matches
    new: str
    object: str  # what is compiled anew, of those in the build folder of the sanitizer or in the one above
    groups: tuple[str, ...]  # of simt.cpp
    sanitizer: str = "tsan"  # asan compiles much longer: for what only it finds
    every: int = 3  # runs about one case of so many
    some: bool = False

    def kernels(self) -> str:
        """Those of the Makefile here that it is in, or a plan."""
        name = self.object.split(".")[0]
        return "rowwise" if name == "weights" else name

    def text(self) -> str:
        """The file with the bug. ValueError if the pattern does not fit once."""
        pattern = r"\s+".join(map(re.escape, self.old.split()))
        text, count = re.subn(pattern, lambda _: self.new, (SOURCES / self.file).read_text())
        if count != 1:
            raise ValueError(f"the pattern fits {count} times in csrc/{self.file}: {self.old}")
        return text


MUTANTS = (
    # ---- the ops of reductions
    Mutant(
        "a square is rounded before it is added", "ops/reductions.h",
        "acc[i] = fma_of(convert<Acc>(get(i)), convert<Acc>(get(i)), acc[i]);",
        "acc[i] = convert<Acc>(get(i)) * convert<Acc>(get(i)) + acc[i];",
        "reduce.SumOf", ("rows", "column_families"), some=True,
    ),
    Mutant(
        "what a zero has been multiplied by as an ordinary product", "ops/reductions.h",
        "& ((m & 0x7f800000u) == 0x3f800000u);", ";",
        "reduce.Product", ("rows", "column_families"),
    ),
    Mutant(
        "subnormal factors as normal ones", "ops/reductions.h",
        "((x << 1) - (1u << 24) < 253u << 24)", "((x << 1) < 254u << 24)",
        "reduce.Product", ("rows", "column_families"), some=True,
    ),
    Mutant(
        "negative integers do not count", "ops/reductions.h",
        "return (above | (w & (options.high ? ~0u : 0u))) & kHighest;", "return above & kHighest;",
        "reduce.Count", ("rows",), every=1,
    ),
    Mutant(
        "the highest bits of uint8 are not counted", "ops/reductions.h",
        "acc += options.high ? options.count << 7 : 0;", "",
        "reduce.Sum", ("rows",), every=1,
    ),
    Mutant(
        "uint8 compared as int8", "kernels/reduce/any_element.cuh",
        " ^ (dtype == Dtype::U8 ? kLowest : 0)", "",
        "reduce.Extreme", ("strided", "columns"),
    ),
    # ---- two results
    Mutant(
        "granules that are not there are looked at for extremes", "kernels/reduce/rows.cuh",
        "if (kHasAbsent<Op> || there(j)) part.take(op, g[j], position_of(number + j * kLanes));",
        "part.take(op, g[j], position_of(number + j * kLanes));",
        "reduce.Extremes", ("two_results",), some=True,
    ),
    Mutant(
        "rows that are not there are looked at for extremes", "kernels/reduce/wide_columns.cuh",
        "if (kHasAbsent<Op> || there(j)) step_all<V>(op, x[j].w, row(j), v);",
        "step_all<V>(op, x[j].w, row(j), v);",
        "reduce.Extremes", ("two_results",),
    ),
    Mutant(
        "what stands for elements of other rows is one of them", "kernels/reduce/packed_rows.cuh",
        "fill_of<Op>(g, own, absent)", "fill_of<Op>(g, 0, absent)",
        "reduce.Extremes", ("two_results",),
    ),
    Mutant(
        "numbers count as NaN", "ops/reductions.h",
        "return {v == v ? v : Sum(0), v == v ? 0 : 1};", "return {v == v ? v : Sum(0), v < v ? 0 : 1};",
        "reduce.CountedSum", ("two_results",),
    ),
    # ---- reductions, columns
    Mutant(
        "columns moved down by one too few", "kernels/reduce/wide_columns.cuh",
        "if (K > 1 && alike && !whole) shift_columns(u, moved(first_row, j));",
        "if (K > 1 && alike && !whole && moved(first_row, j) > 1) shift_columns(u, moved(first_row, j));",
        "reduce.Sum", ("column_families",), sanitizer="asan", some=True,
    ),
    Mutant(
        "all runs of rows start alike", "kernels/reduce/wide_columns.cuh",
        "alike = !kRuns || q.jump % V == 0;", "alike = true;",
        "reduce.Sum", ("column_families",),
    ),
    Mutant(
        "rows of a second run follow those of the first", "kernels/reduce/column_call.h",
        "(q.jump ? q.by_run.quotient(int(row)) * q.jump : 0)", "0",
        "reduce.Sum", ("column_families",), some=True,
    ),
    Mutant(
        "elements of a second run from a row too early", "kernels/reduce/narrow_columns.cuh",
        "quotient(first_row * inner + first", "quotient(first",
        "reduce.Sum", ("column_families",),
    ),
    Mutant(
        "the offset past the end of a third dim is of the position before", "kernels/reduce/strided.cuh",
        "offset_ = far_offset(layout_, position); } }", "offset_ = far_offset(layout_, position - 1); } }",
        "reduce.Sum", ("strided",), every=1, some=True,
    ),
    Mutant(
        "a walk begins in an empty dim", "kernels/reduce/strided.cuh",
        "if (layout.reduced < 2 || layout.length == 0) return;", "if (layout.reduced < 2) return;",
        "reduce.Sum", ("strided",), every=1,
    ),
    Mutant(
        "a run's elements are read before all lanes have copied", "kernels/reduce/strided.cuh",
        "wait_copies<0>(); warp_barrier();", "wait_copies<0>();",
        "reduce.Sum", ("strided",), some=True,
    ),
    Mutant(
        "elements are copied over others that are still read", "kernels/reduce/strided.cuh",
        "warp_barrier();  // what was copied before has been read", "",
        "reduce.Sum", ("strided",),
    ),
    Mutant(
        "after a run comes what lies there, not the next one", "kernels/reduce/strided.cuh",
        "*(next - (window - run)) = *next;", "(void)next;",
        "reduce.Sum", ("strided",),
    ),
    Mutant(
        "runs are as far from whole granules as their length", "kernels/reduce/strided.h",
        "more = (pitch - window) % columns", "more = (run - window) % columns",
        "reduce_plan", ("strided",), every=1,
    ),
    Mutant(
        "what lies around the tensor is copied with its ends", "kernels/reduce/strided.cuh",
        "(p >= in && p + V <= stop)", "p >= in",
        "reduce.Sum", ("strided",), sanitizer="asan", every=1,
    ),
    Mutant(
        "results of permuted rows lie one after the other", "kernels/reduce/granule.cuh",
        "if (!call.out_even) {", "if (false) {",
        "reduce.Sum", ("short_rows", "rows"), every=1,
    ),
    Mutant(
        "a subtree of several batches counted as one", "kernels/reduce/column_lanes.cuh",
        "count += 1 << level;", "count += 1;",
        "reduce.Sum", ("column_families",),
    ),
    Mutant(
        "elements past the last row are added", "kernels/reduce/narrow_columns.cuh",
        "return ends && first", "return false && first",
        "reduce.Sum", ("column_families",),
    ),
    Mutant(
        "no barrier before the trees over the values", "kernels/reduce/narrow_columns.cuh",
        "std::integral_constant<int, 1>()); __syncthreads();", "std::integral_constant<int, 1>());",
        "reduce.Sum", ("column_families",), some=True,
    ),
    Mutant(
        "groups of units combine before all have come", "kernels/reduce/split_columns.cuh",
        "if (!last_block(tickets + groups, groups, last)) return;", "last_block(tickets + groups, groups, last);",
        "reduce.Sum", ("column_families",),
    ),
    Mutant(
        "among equals the last", "ops/reductions.h",
        "else return right.key > left.key ? right : left;", "else return right.key >= left.key ? right : left;",
        "reduce.ArgExtreme", ("column_families",),
    ),
    # ---- reductions, transposed rows
    Mutant(
        "a column's last leaf goes on in the same column", "kernels/reduce/transposed_rows.cuh",
        "(offset + (beyond ? 1 : 0))", "offset",
        "reduce.Sum", ("transposed_rows",), every=1, some=True,
    ),
    Mutant(
        "rows of the next column follow those of a column", "kernels/reduce/transposed_rows.cuh",
        "top + start + kRun * shape.runs > stretch", "false",
        "reduce.Sum", ("transposed_rows",), every=1,
    ),
    Mutant(
        "no barrier after threads have left residues", "kernels/reduce/transposed_rows.cuh",
        "block.rows(window + 1)); __syncthreads();", "block.rows(window + 1));",
        "reduce.Sum", ("transposed_rows",), every=1,
    ),
    Mutant(
        "columns of the next slice are a tile's", "kernels/reduce/transposed_rows.cuh",
        "(1u << (high < kPer ? high : kPer))", "(1u << kPer)",
        "reduce.Sum", ("transposed_rows",), every=1,
    ),
    # ---- reductions
    Mutant(
        "no barrier before the warps of a row combine", "kernels/reduce/strided.cuh",
        "value[warp] = acc; __syncthreads();", "value[warp] = acc;",
        "reduce.Sum", ("strided",), some=True,
    ),
    Mutant(
        "no barrier between two leaves of a column", "kernels/reduce/columns.cuh",
        "acc = value[threadIdx.x]; __syncthreads();", "acc = value[threadIdx.x];",
        "reduce.Sum", ("columns",),
    ),
    Mutant(
        "threads exit before the barrier", "kernels/reduce/strided.cuh",
        "if (shape.warps > 1) {", "if (!active) return; if (shape.warps > 1) {",
        "reduce.Sum", ("strided",),
    ),
    Mutant(
        "wrong shuffle distance", "kernels/common/collective.cuh",
        "shuffle(value, lane ^ d)", "shuffle(value, lane ^ (2 * d))",
        "reduce.Sum", ("short_strided", "strided"),
    ),
    Mutant(
        "lanes counted as in a wave of 64", "kernels/common/gpu.cuh",
        "return int(threadIdx.x) % kLanes;", "return int(threadIdx.x) % 64;",
        "reduce.Sum", ("strided",),
    ),
    Mutant(
        "the tree over row-threads starts at its far end", "kernels/reduce/columns.cuh",
        "value[threadIdx.x] = op.combine(value[threadIdx.x], value[threadIdx.x + d * columns]);",
        "value[threadIdx.x] = op.combine(value[threadIdx.x], value[threadIdx.x + lanes / 2 / d * columns]);",
        "reduce.Sum", ("columns",),
    ),
    Mutant(
        "the tail counts the next leaf's first element", "kernels/reduce/strided.cuh",
        "const int count = int(end - position + kLanes - 1)", "const int count = int(end - position + kLanes)",
        "reduce.Sum", ("strided",),
    ),
    Mutant(
        "ties go to the highest index", "ops/reductions.h",
        "combine(Acc left, Acc right) { return left.key > right.key || (left.key == right.key && left.index < right",
        "combine(Acc left, Acc right) { return left.key > right.key || (left.key == right.key && left.index > right",
        "reduce.ArgExtreme", ("short_strided", "strided"), some=True,
    ),
    Mutant(
        "32-bit offset of a row", "kernels/reduce/strided.cuh",
        "const int64_t base = active ? row_start(layout, row).in : 0;",
        "const int base = active ? row_start(layout, row).in : 0;",
        "reduce.Sum", ("far",),
    ),
    Mutant(
        "partial results are counted before they are there", "kernels/reduce/finish.cuh",
        "__syncthreads(); if (threadIdx.x == 0) shared = is_last(ticket, parts);",
        "if (threadIdx.x == 0) shared = is_last(ticket, parts);",
        "reduce.Sum", ("columns", "split"),
    ),
    Mutant(
        "tickets that no launch after this one finds zeroed", "kernels/reduce/finish.cuh",
        "if (last) *ticket = 0;", "if (last && parts == 1) *ticket = 0;",
        "reduce.Sum", ("split",), every=1,
    ),
    Mutant(
        "the last block combines one partial result too few", "kernels/reduce/finish.cuh",
        "end = first + each < count ? first + each : count;", "end = first + each < count ? first + each : count - 1;",
        "reduce.Sum", ("split",),
    ),
    Mutant(
        "no barrier before the tree over the values of a block's warps", "kernels/reduce/few_rows.cuh",
        "slot[warp].value = value; __syncthreads();", "slot[warp].value = value;",
        "reduce.Sum", ("few_rows",), some=True,
    ),
    Mutant(
        "of equal elements of a unit the last one is found", "kernels/reduce/few_rows.cuh",
        "return {key, ~warp_most(value.key == key ? ~value.at : INT32_MIN)};",
        "return {key, warp_most(value.key == key ? value.at : INT32_MIN)};",
        "reduce.ArgExtreme", ("few_rows",), every=1,
    ),
    Mutant(
        "residues are moved by one place too few", "kernels/reduce/rows.cuh",
        "if (before & 1) move_down<1>();",
        "if (before & 8) move_down<1>();",
        "reduce.Sum", ("rows",), some=True,
    ),
    Mutant(
        "a granule around the end of a row counts whole", "kernels/reduce/rows.cuh",
        "mask<E>(last, whole == 0 ? before : 0, rest, absent); #pragma unroll",
        "mask<E>(last, whole == 0 ? before : 0, kPer, absent); #pragma unroll",
        "reduce.Sum", ("rows",),
    ),
    Mutant(
        "granules that reach out of the tensor are read", "kernels/reduce/granule.cuh",
        "return static_cast<const void*>(g) >= call.in && static_cast<const void*>(g + 1) <= call.end;",
        "return static_cast<const void*>(g) >= call.in || static_cast<const void*>(g + 1) <= call.end;",
        "reduce.Sum", ("rows", "short_rows"), "asan",
    ),
    Mutant(
        "later granules win ties", "kernels/reduce/granule.cuh",
        "(b.key == a.key && b.at < a.at)", "(b.key == a.key && b.at > a.at)",
        "reduce.ArgExtreme", ("rows",),
    ),
    Mutant(
        "rows of shared memory that have not arrived", "kernels/reduce/packed_rows.cuh",
        "wait_copies<0>(); __syncthreads();", "wait_copies<0>();",
        "reduce.Sum", ("short_rows",),
    ),
    # ---- scans
    Mutant(
        "wrong source lane in Sklansky's scan", "kernels/common/collective.cuh",
        "const int last = (lane & ~(2 * d - 1)) + d - 1;", "const int last = lane - d;",
        "scan.CumSum", ("scan_rows",),
    ),
    Mutant(
        "a shuffle that only active lanes reach", "kernels/scan/rows.cuh",
        "sklansky<S>(total, lane, width)", "active ? sklansky<S>(total, lane, width) : total",
        "scan.CumSum", ("scan_rows",),
    ),
    Mutant(
        "plus zero before the first group", "kernels/scan/rows.cuh",
        "if (lane == 0) before = S::absent();", "if (lane == 0) before = Acc(0);",
        "scan.CumSum", ("scan_rows",),
    ),
    Mutant(
        "exclusive scans do not shift", "kernels/scan/rows.cuh",
        "const int64_t shift = call.exclusive ? 1 : 0;", "const int64_t shift = 0;",
        "scan.CumSum", ("scan_rows",),
    ),
    Mutant(
        "ties of a scan go to the earliest index", "ops/scans.h",
        "right.place > left.place", "right.place < left.place",
        "scan.CumExtreme", ("scan_rows",),
    ),
    Mutant(
        "products that underflow on their way taken as plain ones", "ops/scans.h",
        "if (product.is_normal()) return normal_power(product.value);", "return normal_power(product.value);",
        "scan.CumProd", ("scan_rows",),
    ),
    Mutant(
        "results of products that underflow on their way taken as plain ones", "ops/scans.h",
        "if (product.is_normal()) { const double first", "{ const double first",
        "scan.CumProd", ("scan_rows",),
    ),
    Mutant(
        "a warp takes products that underflow on their way as plain ones", "ops/scans.h",
        "total = product.value; return product.is_normal();", "total = product.value; return true;",
        "scan.CumProd", ("ring",),
    ),
    Mutant(
        "mantissas of 2 and more without their exponent", "numerics/powers.h",
        "e + int(carry)};", "e};",
        "scan.CumProd", ("scan_rows",),
    ),
    Mutant(
        "the smaller sum of exponentials is not rescaled", "ops/scans.h",
        "return {greatest(left.m, right.m), fma_of(small, factor, big)};",
        "return {greatest(left.m, right.m), small + big};",
        "scan.LogCumSumExp", ("scan_rows",),
    ),
    Mutant(
        "the last group reads past the end", "kernels/scan/rows.cuh",
        "n - first, x)", "n - first + 1, x)",
        "scan.CumSum", ("scan_rows",), "asan",
    ),
    Mutant(
        "superblocks of 64 block tiles", "numerics/order.h",
        "if (blocks.count == uint32_t(kFan)) {", "if (blocks.count == uint32_t(2 * kFan)) {",
        "scan.CumSum", ("superblocks",), every=1,
    ),
    Mutant(
        "block tiles of a superblock folded one by one", "kernels/tile/carry.cuh",
        "value = sklansky<S>(value);",
        "for (int i = 1; i < kLanes; ++i) { const Wide left = shuffle(value, i - 1); "
        "if (lane == i) value = S::combine(left, value); }",
        "scan.CumSum", ("superblocks",), every=1,
    ),
    Mutant(
        "a superblock just before is left out", "kernels/tile/carry.cuh",
        "k < kNear ? k < s :", "k < kNear ? k + 1 < s :",
        "scan.CumSum", ("superblocks",), every=1,
    ),
    Mutant(
        "tiles by block instead of ticket", "kernels/scan/tiles.cuh",
        "const bool waits = shape.workspace > 0;", "const bool waits = false;",
        "scan.CumSum", ("chain",),
    ),
    Mutant(
        "no barrier after the ticket", "kernels/scan/tiles.cuh",
        "workspace, ticket); } __syncthreads();", "workspace, ticket); }",
        "scan.CumSum", ("chain",),
    ),
    Mutant(
        "no barrier before a tile's totals are read", "kernels/scan/tiles.cuh",
        "tile.sum(); __syncthreads();", "tile.sum();",
        "scan.CumSum", ("chain",),
    ),
    Mutant(
        "lanes read what others are to copy", "kernels/scan/chain.cuh",
        "if (staged) wait_copies<0>(); __syncthreads();", "if (staged) wait_copies<0>();",
        "scan.LogCumSumExp", ("chain",), "asan",
    ),
    Mutant(
        "a block tile is read while it is on its way", "kernels/scan/chain.cuh",
        "if (staged) wait_copies<0>(); __syncthreads();", "__syncthreads();",
        "scan.LogCumSumExp", ("chain",), "asan",
    ),
    Mutant(
        "a carry that is never published", "kernels/tile/carry.cuh",
        "if (last && lane == 0) space.superblock(row, s).inclusive.publish(S::combine(carry, total));", "",
        "scan.CumSum", ("chain",),
    ),
    Mutant(
        "published by a plain store", "kernels/tile/carry.cuh",
        "store_relaxed(&word[i], uint64_t(1) << 32 | part[i]);", "word[i] = uint64_t(1) << 32 | part[i];",
        "scan.CumSum", ("chain",), some=True,
    ),
    Mutant(
        "look-back skips the totals on its way", "kernels/tile/carry.cuh",
        "for (int i = from - 1; i >= 0; --i)", "for (int i = from - 1; i > 0; --i)",
        "scan.CumSum", ("superblocks",), every=1,
    ),
    Mutant(
        "look-back does not wait for the totals on its way", "kernels/tile/carry.cuh",
        "if ((totals & nearer) != nearer) continue;", "",
        "scan.CumSum", ("superblocks",), every=1,
    ),
    Mutant(
        "flags of the call before are still there", "kernels/scan/scan.cu",
        "if (bytes > 0) if (const char* error", "if (bytes < 0) if (const char* error",
        "scan.CumSum", ("chain",),
    ),
    Mutant(
        "a workspace without room for the carries", "kernels/scan/row_call.h",
        "(tiles * 2 * bytes.acc + ceil_div(tiles, kFan) * 4 * bytes.wide)",
        "tiles * 2 * bytes.acc",
        "scan_plan", ("chain",), "asan",
    ),
    Mutant(
        "a chain of one block tile without a ticket", "kernels/scan/chain.h",
        "s.workspace = look_back_workspace(call, s.tiles);",
        "if (s.tiles > 1) s.workspace = look_back_workspace(call, s.tiles);",
        "scan_plan", ("chain",), "asan",
    ),
    Mutant(
        "a cluster's totals are taken before they are there", "kernels/scan/chain.cuh",
        "barrier_wait(&shared.arrived, 0);", "",
        "scan.CumSum", ("chain",), every=1,
    ),
    Mutant(
        "a block tile's total goes to the one after it alone", "kernels/scan/chain.cuh",
        "if (lane > tile && lane < int(space.tiles)) put", "if (lane == tile + 1 && lane < int(space.tiles)) put",
        "scan.CumSum", ("chain",), every=1,
    ),
    # ---- scans of rows that lanes hold as a whole
    Mutant(
        "results are stored before they are there", "kernels/scan/short_rows.cuh",
        "warp_barrier(); if (all > 0) stages[warp].store(out, all * n);",
        "if (all > 0) stages[warp].store(out, all * n);",
        "scan.CumSum", ("unaligned_rows",),
    ),
    Mutant(
        "the last element of a run is not written", "kernels/tile/run_stage.cuh",
        "item < end && tail >= head", "item < end - 1 && tail >= head",
        "scan.CumSum", ("unaligned_rows",),
    ),
    Mutant(
        "whole granules where others write", "kernels/tile/run_stage.cuh",
        "if ((v > 0 || first >= begin) && first + v + kPer <= end)", "if (first + v + kPer <= end)",
        "scan.CumSum", ("unaligned_rows",),
    ),
    Mutant(
        "rows of a warp in reverse", "kernels/tile/run_stage.cuh",
        "if (i < count) items[slot(item - i)] = x[i];", "if (i < count) items[slot(item + i)] = x[i];",
        "scan.CumSum", ("unaligned_rows",),
    ),
    Mutant(
        "signed bytes as unsigned ones", "kernels/scan/rows.cuh",
        "case Dtype::I8: return with(TypedLoad<int8_t>());", "case Dtype::I8: return with(TypedLoad<uint8_t>());",
        "scan.CumSum", ("uniform_types",),
    ),
    Mutant(
        "results of float32 as 16-bit floats", "kernels/scan/rows.cuh",
        "if (call.out.dtype == Dtype::F32) TypedStore<float>::one(call, offset, v);", "if (false) ;",
        "scan.CumSum", ("uniform_types",),
    ),
    Mutant(
        "results of float32 take the place of 16-bit elements", "kernels/scan/chain.cuh",
        "staged && fits && !wide", "staged && !wide",
        "scan.CumSum", ("uniform_types",),
    ),
    Mutant(
        "results of packed rows are stored before they are there", "kernels/scan/short_rows.cuh",
        "warp_barrier(); E* const out = global(static_cast<E*>(call.out.values)) + lowest;",
        "E* const out = global(static_cast<E*>(call.out.values)) + lowest;",
        "scan.CumSum", ("packed_rows",),
    ),
    Mutant(
        "granules around the last row of a tensor", "kernels/scan/short_rows.cuh",
        "row > 0 && row + 1 < layout.rows;", "row > 0;",
        "scan.CumSum", ("unaligned_rows",), "asan", every=1,
    ),
    Mutant(
        "no barrier before the warps of a row know their totals", "kernels/scan/short_rows.cuh",
        "if (warps > 1) __syncthreads(); else warp_barrier();", "warp_barrier();",
        "scan.CumSum", ("wide_rows",),
    ),
    Mutant(
        "exclusive rows start anew in every warp", "kernels/scan/short_rows.cuh",
        "part ? ends[warp - 1] : start_of<S>()", "start_of<S>()",
        "scan.CumSum", ("wide_rows",),
    ),
    Mutant(
        "no barrier before the warps of a row of two inputs know their totals", "kernels/scan/row_pairs.cuh",
        "if (at.warps > 1) __syncthreads(); else warp_barrier();", "warp_barrier();",
        "scan.LinearScan", ("row_pairs",),
    ),
    Mutant(
        "no barrier before a warp's lanes take the groups that they scan", "kernels/scan/row_pairs.cuh",
        "w[k] + i * 4, sizeof(Granule)); warp_barrier();", "w[k] + i * 4, sizeof(Granule));",
        "scan.LinearScan", ("row_pairs",),
    ),
    Mutant(
        "groups of the second input take the place of the first one's too early", "kernels/scan/row_pairs.cuh",
        "at(kToScan, k, i), sizeof(Granule)); warp_barrier();", "at(kToScan, k, i), sizeof(Granule));",
        "scan.LinearScan", ("row_pairs",),
    ),
    Mutant(
        "what is infinite is joined without choices", "ops/scans.h",
        "return is_finite(run.b) & (has_reset | (run.a != 0));", "return has_reset | (run.a != 0);",
        "scan.LinearScan", ("row_pairs",), every=1,
    ),
    Mutant(
        "a reset without choices takes part of what it drops", "ops/scans.h",
        "drops ? right.b : next", "next",
        "scan.LinearScan", ("row_pairs",), every=1,
    ),
    Mutant(
        "the first group of a row takes part of what precedes it", "ops/scans.h",
        "out[i] = reset ? x[i].b : h;", "out[i] = h;",
        "scan.LinearScan", ("row_pairs",), every=1,
    ),
    # ---- scans of columns
    Mutant(
        "no barrier before the totals of columns are read", "kernels/scan/short_columns.cuh",
        "block.sum(it, count); __syncthreads();", "block.sum(it, count);",
        "scan.CumSum", ("scan_columns",), some=True,
    ),
    Mutant(
        "no barrier before what precedes a group of columns is read", "kernels/scan/short_columns.cuh",
        "block.scan(); __syncthreads();", "block.scan();",
        "scan.CumSum", ("scan_columns",),
    ),
    Mutant(
        "a group of a column counts itself in what precedes it", "kernels/scan/short_columns.cuh",
        "exclusive.item[v] = group ? lower : S::absent();", "exclusive.item[v] = group ? upto.item[v] : S::absent();",
        "scan.CumSum", ("scan_columns",),
    ),
    Mutant(
        "a job that is still read makes place", "kernels/scan/short_columns.cuh",
        "kJobs = kAhead + 2;", "kJobs = kAhead + 1;",
        "scan.CumSum", ("short_columns",),
    ),
    Mutant(
        "carries that are still read make place", "kernels/scan/ragged_columns.h",
        "kColumnCarries = 2;", "kColumnCarries = 1;",
        "scan.CumSum", ("ragged_columns",), every=1,
    ),
    Mutant(
        "copies are not waited for", "kernels/scan/short_columns.cuh",
        "wait_copies<Block::kAhead - 1>();", "wait_copies<Block::kAhead>();",
        "scan.CumSum", ("scan_columns",),
    ),
    Mutant(
        "elements that are not copied come a job too early", "kernels/scan/short_columns.cuh",
        "P* const before = stage_of(it + kStages - 1)", "P* const before = stage_of(it)",
        "scan.CumSum", ("scan_columns",),
    ),
    Mutant(
        "a block goes on with the strip of another", "kernels/scan/short_columns.cuh",
        "turn = blockIdx.x + int64_t(it) * gridDim.x;", "turn = blockIdx.x + int64_t(it);",
        "scan.CumSum", ("short_columns",),
    ),
    Mutant(
        "the total of a block tile of columns is never published", "kernels/tile/carry.cuh",
        "if (active && lane_id() % kCarryLanes == 0) space.block(batch, block, row)->publish(total);", "",
        "scan.CumSum", ("ragged_columns",), every=1,
    ),
    Mutant(
        "a block tile of columns does not count itself", "kernels/tile/carry.cuh",
        "const int count = int(block - superblock) + 1;", "const int count = int(block - superblock);",
        "scan.CumSum", ("ragged_columns",),
    ),
    Mutant(
        "a superblock of columns forgets those before it", "kernels/tile/carry.cuh",
        "space.carry(batch, block, row)->publish(S::combine(before, upto));",
        "space.carry(batch, block, row)->publish(upto);",
        "scan.CumSum", ("ragged_columns",), every=1,
    ),
    Mutant(
        "more shared memory than every GPU has", "kernels/scan/short_columns.h",
        "if (device.large_blocks || s.shared + s.declared <= shared_of(device)) break;",
        "break;",
        "scan_plan", ("scan_columns",),
    ),
    Mutant(
        "rows that start anywhere are read before other lanes have copied them", "kernels/scan/ragged_columns.cuh",
        "wait_copies<kAhead - 1>(); warp_barrier();", "wait_copies<kAhead - 1>();",
        "scan.CumSum", ("ragged_columns",),
    ),
    Mutant(
        "a granule is copied whole at the tensor's end", "kernels/scan/ragged_columns.cuh",
        "if (whole || j.inside || (address_of(from) >=", "if (whole || true || (address_of(from) >=",
        "scan.CumSum", ("ragged_columns",), "asan",
    ),
    Mutant(
        "what a row has before its first whole sector is not stored", "kernels/scan/ragged_columns.cuh",
        "const int head = first ? total : 0;", "const int head = 0;",
        "scan.CumSum", ("ragged_columns",),
    ),
    Mutant(
        "a strip finds no carries for the next one's columns", "kernels/scan/ragged_columns.cuh",
        "const bool active = c < j.wide;", "const bool active = c < j.width;",
        "scan.CumSum", ("ragged_columns",),
    ),
    Mutant(
        "the second half of a tile does not have the first one before it", "kernels/scan/ragged_columns.cuh",
        "upto[k] = S::combine(before, upto[k]);", "",
        "scan.CumSum", ("ragged_columns",),
    ),
    # ---- the ring
    Mutant(
        "wrong parity", "kernels/tile/stages.cuh",
        "barrier_wait(&of[it % N], it / N & 1);", "barrier_wait(&of[it % N], it & 1);",
        "scan.CumSum", ("ring",), some=True,
    ),
    Mutant(
        "a stage is filled again too early", "kernels/scan/ring.cuh",
        "empty.wait_before(it);", "",
        "scan.CumSum", ("ring",),
    ),
    Mutant(
        "a stage is loaded again before its elements are read", "kernels/scan/ring.cuh",
        "wait_read(it); load();", "load();",
        "scan.CumSum", ("ring",),
    ),
    Mutant(
        "one warp too few says that elements are read", "kernels/scan/ring.cuh",
        "kOwnTotals ? kResultWarps + 1 : 0;", "kOwnTotals ? kResultWarps : 0;",
        "scan.CumSum", ("ring",),
    ),
    Mutant(
        "the loads of a tile are not waited for", "kernels/scan/ring.cuh",
        "loaded.wait(turn); uint32_t w", "uint32_t w",
        "scan.CumSum", ("ring",),
    ),
    Mutant(
        "results without waiting for the carry", "kernels/scan/ring.cuh",
        "ready.wait(turn); const Wide c", "const Wide c",
        "scan.CumSum", ("ring",),
    ),
    Mutant(
        "a staging buffer is used again while it is stored", "kernels/tile/bulk_run.cuh",
        "if (lane == 0 && to > from) bulk_stores_read();", "",
        "scan.CumSum", ("ring",),
    ),
    Mutant(
        "no fence before bulk stores", "kernels/scan/ring.cuh",
        "bulk_fence(); barrier_arrive(done[o]);", "barrier_arrive(done[o]);",
        "scan.CumSum", ("ring",),
    ),
    Mutant(
        "one arrival too few for a stage that is free", "kernels/scan/ring.cuh",
        "barrier_init(empty[s], (kResultWarps + 3) * kLanes);",
        "barrier_init(empty[s], (kResultWarps + 2) * kLanes);",
        "scan.CumSum", ("ring",),
    ),
    Mutant(
        "granules at the ends of a tile are not written", "kernels/tile/bulk_run.cuh",
        "at < (lane < kPer ? head_end : end)", "at < (lane < kPer ? begin : end)",
        "scan.CumSum", ("ring",),
    ),
    Mutant(
        "granules where warps meet are not written", "kernels/scan/ring.cuh",
        "if (out) {", "if (out < 0) {",
        "scan.CumSum", ("ring",),
    ),
    Mutant(
        "no word is handed on from tile to tile", "kernels/tile/bulk_run.cuh",
        "v[i] = lane ? left : before[i];", "v[i] = left;",
        "scan.CumSum", ("ring",),
    ),
    Mutant(
        "totals published before all tiles are summed", "kernels/scan/ring.cuh",
        "summed.wait(it);", "",
        "scan.CumProd", ("ring",),
    ),
    Mutant(
        "a load that has no results is not waited for", "kernels/scan/ring.cuh",
        "loaded.wait(it); // nobody else", "; // nobody else",
        "scan.CumProd", ("ring",), every=1,
    ),
    Mutant(
        "a superblock folded before its total is there", "kernels/scan/ring.cuh",
        "const int count = missing ? __ffs(missing) - 1 : kLanes; TR_ROLLED",
        "const int count = int(superblock - folded < kLanes ? superblock - folded : kLanes); TR_ROLLED",
        "scan.CumProd", ("ring",), every=1,
    ),
    Mutant(
        "the total of a reverse tile from its other end", "kernels/scan/ring.cuh",
        "if ((lane ^ mirror) == kLanes - 1) space.total", "if (lane == kLanes - 1) space.total",
        "scan.CumSum", ("ring",),
    ),
    Mutant(
        "bulk loads go beyond the end of the array", "kernels/tile/bulk_run.cuh",
        "above > memory_end ? granule_of(end) : above;", "above;",
        "scan.CumSum", ("ring",), "asan",
    ),
    Mutant(
        "the last elements of the array are not loaded", "kernels/tile/bulk_run.cuh",
        "if (to < end) {", "if (to < from) {",
        "scan.CumSum", ("ring",),
    ),
    Mutant(
        "a result warp without results does not wait for the store", "kernels/scan/ring.cuh",
        "barrier_wait(stored[o], stored_parity); barrier_arrive(done[o]); continue;",
        "barrier_arrive(done[o]); continue;",
        "scan.CumSum", ("ring",),
    ),
    Mutant(
        "a window of totals is left out", "kernels/scan/ring.cuh",
        "if (k < needed / kLanes) sum", "if (k + 1 < needed / kLanes) sum",
        "scan.CumSum", ("ring",), every=1,
    ),
    Mutant(
        "results of a prefix that overflows as of any other", "ops/scans.h",
        "if (!is_rare(b)) {", "if (true) {",
        "scan.CumSum", ("ring",),
    ),
    Mutant(
        "a carry of totals that are not there yet", "kernels/scan/ring.cuh",
        "all = !ballot(!all);", "all = true;",
        "scan.CumSum", ("ring",), every=1,
    ),
    # ---- whole sectors
    Mutant(
        "neighbouring lanes exchange the granules that they keep", "kernels/tile/words.cuh",
        "shuffle(upper ? low : high, lane_id() ^ 1)", "shuffle(upper ? high : low, lane_id() ^ 1)",
        "scan.CumSum", ("wide_rows",), some=True,
    ),
    Mutant(
        "half a pair of groups is stored as a whole one", "kernels/scan/row_access.cuh",
        "(first | kGroup) + kGroup <= n", "first + kGroup <= n",
        "scan.CumSum", ("wide_rows",),
    ),
    Mutant(
        "staged results of two inputs are stored before all are there", "kernels/scan/row_pairs.cuh",
        "warp_barrier(); if (all > 0) stage.store(run, all);", "if (all > 0) stage.store(run, all);",
        "scan.LinearScan", ("row_pairs",),
    ),
    Mutant(
        "granules around groups of a tensor's last rows", "kernels/scan/row_pairs.cuh",
        "at.first_row + (kTiled ? 1 : K * at.apart) < layout.rows", "true",
        "scan.LinearScan", ("row_pairs",),
    ),
    # ---- the ring of two inputs
    Mutant(
        "the place of a is loaded again before its elements are taken", "kernels/scan/ring_pairs.cuh",
        "stages + free_place(it) * kStageBytes", "stages + s * kStageBytes",
        "scan.LinearScan", ("ring_pairs",), some=True,
    ),
    Mutant(
        "a stage of two inputs is loaded again before its elements are taken", "kernels/scan/ring_pairs.cuh",
        "all_read.wait_before(it);", "",
        "scan.LinearScan", ("ring_pairs",),
    ),
    Mutant(
        "a row of the ring forgets what precedes it", "kernels/scan/ring.cuh",
        "sum = initial(row);", "sum = S::wide_absent();",
        "scan.LinearScan", ("ring_pairs",),
    ),
    Mutant(
        "runs are joined without choices whatever comes out", "kernels/common/collective.cuh",
        "fast &= S::is_settled(left[k], true);", "",
        "scan.LinearScan", ("ring_pairs",), every=1,
    ),
    # ---- the ring of few columns
    Mutant(
        "results of few columns do not wait for their totals and carries", "kernels/scan/ring_columns.cuh",
        "barrier_wait(ready[place], kSpares ? turn / kStages & 1 : parity);", "",
        "scan.CumSum", ("ring_columns",), some=True,
    ),
    Mutant(
        "results of few columns without a fence before their bulk store", "kernels/scan/ring_columns.cuh",
        "bulk_fence(); barrier_arrive(done[s]);", "barrier_arrive(done[s]);",
        "scan.CumSum", ("ring_columns",),
    ),
    Mutant(
        "a part forgets those before it in its block tile", "kernels/scan/ring_columns.cuh",
        "before = number >> level == i + 1 ? first : before;", "",
        "scan.CumSum", ("ring_columns",),
    ),
    Mutant(
        "totals of the window before are taken for this one's", "kernels/scan/ring_columns.cuh",
        "part[k][p] = {};", "part[k][p] = part[k][p];",
        "scan.CumSum", ("ring_columns",),
    ),
    Mutant(
        "a part of which nothing is written does not wait for its totals", "kernels/scan/ring_columns.cuh",
        "barrier_wait(ready[s], parity); continue;", "continue;",
        "scan.CumSum", ("ring_columns",), every=1,
    ),
    Mutant(
        "results of few columns do not wait until the granule after their tile is kept",
        "kernels/scan/ring_columns.cuh",
        "in > 0 ? kept[s] : loaded[s]", "loaded[s]",
        "scan.CumSum", ("ring_columns",), every=1,
    ),
    Mutant(
        "the last lane of few columns takes words of the first one", "kernels/tile/bulk_run.cuh",
        "if (after && lane == kLanes - 1) v[N + i] = after[i];", "",
        "scan.CumSum", ("ring_columns",), every=1,
    ),
    Mutant(
        "tiles of few columns hand nothing on", "kernels/scan/ring_columns.cuh",
        "if (to) *to = x[k];", "",
        "scan.CumSum", ("ring_columns",),
    ),
    Mutant(
        "tiles of few columns hand on what they were handed", "kernels/scan/ring_columns.cuh",
        "if (from) x[k] = *from; } warp_barrier();", "if (from) x[k] = *from; }",
        "scan.CumSum", ("ring_columns",),
    ),
    Mutant(
        "few columns hand results on without a fence before their bulk store", "kernels/scan/ring_columns.cuh",
        "bulk_fence(); warp_barrier();", "warp_barrier();",
        "scan.CumSum", ("ring_columns",),
    ),
    # ---- the ring of strips
    Mutant(
        "results of strips do not wait for what precedes them", "kernels/scan/column_strips.cuh",
        "ready.wait(it); const Before& of", "const Before& of",
        "scan.CumSum", ("column_strips",),
    ),
    Mutant(
        "a block tile's node without those that it joins", "kernels/scan/column_strips.cuh",
        "if (i < levels) node = S::combine(left.value(i), node);", "(void)left;",
        "scan.CumSum", ("column_strips",),
    ),
    Mutant(
        "a stage of strips is loaded while its results are stored", "kernels/scan/column_strips.cuh",
        "barrier_arrive(released[s]); bulk_stores_read();", "barrier_arrive(released[s]);",
        "scan.CumSum", ("column_strips",),
    ),
    Mutant(
        "results of strips without a fence before their bulk store", "kernels/scan/column_strips.cuh",
        "bulk_fence(); barrier_arrive(released[s]); barrier_arrive(done[s]);",
        "barrier_arrive(released[s]); barrier_arrive(done[s]);",
        "scan.CumSum", ("column_strips",),
    ),
    Mutant(
        "a tile of strips is stored from before its matrix", "kernels/scan/column_strips.cuh",
        "row >= 0) {", "true) {",
        "scan.CumSum", ("column_strips",),
    ),
    Mutant(
        "columns of any alignment in granules", "kernels/scan/column_call.h",
        "return fits(call.in.data) && fits(call.out.values); } // The workspace of tiles",
        "return fits(call.out.values); } // The workspace of tiles",
        "scan_plan", ("column_strips",), "asan", every=1,
    ),
    # ---- lanes that walk columns
    Mutant(
        "the copies of a walk are not waited for", "kernels/scan/column_walk.cuh",
        "wait_copies<kAhead - 1>(); Words w[kGroup][N];", "Words w[kGroup][N];",
        "scan.LinearScan", ("column_walk",),
    ),
    Mutant(
        "a walked group counts itself in what precedes it", "kernels/scan/column_walk.cuh",
        "op.results(S::prefix(within.item[v]), items[v], out[v]);",
        "op.results(S::prefix(S::combine(within.item[v], total.item[v])), items[v], out[v]);",
        "scan.CumSum", ("column_walk",),
    ),
    Mutant(
        "a walk forgets the tiles before", "kernels/scan/column_walk.cuh",
        "tiles = carry.within();", "",
        "scan.LinearScan", ("column_walk",),
    ),
    Mutant(
        "two columns a lane where they are not one word", "kernels/scan/column_call.h",
        "strides[d] != 1 : strides[d] % vector != 0",
        "strides[d] != 1 : false",
        "scan_plan", ("column_walk",), "asan",
    ),
    Mutant(
        "a team forgets the first half of a tile", "kernels/scan/column_teams.cuh",
        "if (now) put(joins.of(notes.half[now][chain]));", "",
        "scan.LinearScan", ("column_teams",),
    ),
    Mutant(
        "the copies of a team are not waited for", "kernels/scan/column_teams.cuh",
        "wait_copies<kGroups - 1>();", "",
        "scan.LinearScan", ("column_teams",),
    ),
    # ---- scans with indices along rows
    Mutant(
        "the earlier of two equals is the latest record", "kernels/scan/extremes.cuh",
        "first_is = key[k][0] >= before", "first_is = key[k][0] > before",
        "scan.CumExtreme", ("extremes",), some=True,
    ),
    Mutant(
        "pairs are loaded together wherever they lie", "kernels/scan/extremes.cuh",
        "if (steps(in_step) && even(of_in))", "if (steps(in_step))",
        "scan.CumExtreme", ("extremes",), "asan",
    ),
    Mutant(
        "a chunk's records begin anew", "kernels/scan/extremes.cuh",
        "if (C > 1 && !records) {", "if (false) {",
        "scan.CumExtreme", ("extremes",),
    ),
    Mutant(
        "what equals the carry is no record", "kernels/scan/extremes.cuh",
        "if (!ballot(most >= carry.key))", "if (!ballot(most > carry.key))",
        "scan.CumExtreme", ("extremes",),
    ),
    Mutant(
        "a part with what equals the carry has no record", "kernels/scan/extremes.cuh",
        "totals[warp].key < carry.key", "totals[warp].key <= carry.key",
        "scan.CumExtreme", ("extremes",),
    ),
    Mutant(
        "a warp that goes on to further rows stores them where the first ones lie", "kernels/scan/extremes.cuh",
        "own.indices += turn * out;", "",
        "scan.CumExtreme", ("extremes",),
    ),
    # ---- scans with indices along columns
    Mutant(
        "the earlier of two equals is the latest record of a column", "kernels/scan/extreme_columns.cuh",
        "return next.key >= key ? next : *this;", "return next.key > key ? next : *this;",
        "scan.CumExtreme", ("extreme_columns",), some=True,
    ),
    Mutant(
        "a row of a warp at a time takes no part in what precedes the next", "kernels/scan/extreme_columns.cuh",
        "for (int v = 0; v < V; ++v) found[v] = shuffle(found[v], (down - 1) * lanes + x);", "{}",
        "scan.CumExtreme", ("extreme_columns",),
    ),
    Mutant(
        "what equals the carry is no record of a column", "kernels/scan/extreme_columns.cuh",
        "most[v] >= upto.key", "most[v] > upto.key",
        "scan.CumExtreme", ("extreme_columns",),
    ),
    Mutant(
        "a warp's latest row by its lanes' order", "kernels/scan/extreme_columns.cuh",
        "total = greater(total, other);", "total = other;",
        "scan.CumExtreme", ("extreme_columns",),
    ),
    Mutant(
        "a group of tiles without the record of its last", "kernels/scan/extreme_columns.cuh",
        "row), greater(in_group, own));", "row), in_group);",
        "scan.CumExtreme", ("extreme_columns",),
    ),
    Mutant(
        "a group of tiles before all have looked", "kernels/scan/extreme_columns.cuh",
        "tiles.greatest(); __syncthreads();", "tiles.greatest();",
        "scan.CumExtreme", ("extreme_columns",),
    ),
    Mutant(
        "the records before a group of groups are those of the last such group", "kernels/scan/extreme_columns.cuh",
        "row), greater(upto, own));", "row), own);",
        "scan.CumExtreme", ("extreme_columns",),
    ),
    Mutant(
        "a lane's neighbours are of another row", "kernels/scan/extreme_columns.cuh",
        "y < down && x * V < shared.job.width", "x * V < shared.job.width",
        "scan.CumExtreme", ("extreme_columns",),
    ),
    # ---- tiles of columns
    Mutant(
        "the parts before the middle of a tile by another half's", "kernels/scan/column_tiles.cuh",
        "totals[(part & ~(2 * d - 1)) + d - 1][chain]", "totals[d - 1][chain]",
        "scan.CumProd", ("column_tiles",), some=True,
    ),
    Mutant(
        "totals of groups that are joined as they are, whatever their exponent", "kernels/scan/column_tiles.cuh",
        "return S::fast_end(S::of_near(last));", "return S::of_near(last);",
        "scan.CumProd", ("column_tiles",), every=1,
    ),
    Mutant(
        "a block tile of columns without its last tile", "kernels/scan/column_tiles.cuh",
        "slots.value[3] = own;", ";",
        "scan.CumProd", ("column_tiles",),
    ),
    Mutant(
        "a superblock of columns without those before it", "kernels/scan/column_tiles.cuh",
        "S::combine(before, of_turns(shared.far, kFan, to_settle))", "of_turns(shared.far, kFan, to_settle)",
        "scan.CumProd", ("column_tiles",),
    ),
    Mutant(
        "an exclusive scan of a tile stores its last result in its next", "kernels/scan/column_tiles.cuh",
        "const int stored = at.left - shift - g * kGroup;", "const int stored = at.left - g * kGroup;",
        "scan.CumProd", ("column_tiles",),
    ),
    # ---- what gpu.cuh says of AMD's, and gpu_packed.h of NVIDIA's instructions
    Mutant(
        "a warp's barrier releases nothing", "kernels/common/gpu.cuh",
        '__builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront"); __builtin_amdgcn_wave_barrier();',
        "__builtin_amdgcn_wave_barrier();",
        "scan.LinearScan", ("row_pairs",),
    ),
    Mutant(
        "a warp's barrier acquires nothing", "kernels/common/gpu.cuh",
        '__builtin_amdgcn_wave_barrier(); __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");',
        "__builtin_amdgcn_wave_barrier();",
        "scan.LinearScan", ("row_pairs",),
    ),
    Mutant(
        "pairs of results are rounded without a look for NaNs", "kernels/common/collective.cuh",
        "if (kNoNan || !has_nan<S>(v)) {", "{",
        "scan.CumProd", ("wide_rows",), every=1,
    ),
    Mutant(
        "NaNs are settled in the low half alone", "kernels/common/collective.cuh",
        "const uint32_t high = (w[i] >> 16 & 0x7fffu) > kInfinite ? kNan : w[i] >> 16;",
        "const uint32_t high = w[i] >> 16;",
        "scan.CumProd", ("ring",),
    ),
    Mutant(
        "both keys of a pair are its first one's", "kernels/scan/extremes.cuh",
        "key[i + 1] = int32_t(both) >> 16;", "key[i + 1] = int16_t(both);",
        "scan.CumExtreme", ("extremes",),
    ),
    # ---- linear recurrences
    Mutant(
        "a chain forgets the value before the row", "kernels/tile/carry.cuh",
        "Wide carry = initial;", "Wide carry = S::wide_absent();",
        "scan.LinearScan", ("linear_scan",),
    ),
    Mutant(
        "columns forget the value before the row", "kernels/scan/column_tiles.cuh",
        "earlier.collect(row_carry<S, Load>(call, one ? job.row + column : 0));", "earlier.collect(S::wide_absent());",
        "scan.LinearScan", ("linear_scan",),
    ),
    Mutant(
        "an a that is not there is read", "kernels/common/collective.cuh",
        "return position > 0 || !call.shifted;", "return true;",
        "scan.LinearScan", ("linear_scan",), "asan",
    ),
    Mutant(
        "multipliers that go down in memory are not turned", "kernels/scan/rows.cuh",
        "if (stride.a < 0) reverse_words<E>(ordered.a);", "",
        "scan.LinearScan", ("linear_scan",),
    ),
    Mutant(
        "the last block of a listed row takes the partial results of another", "kernels/reduce/listed_rows.cuh",
        "acc = block_fold(op, partials + begin, runs, value);", "acc = block_fold(op, partials, runs, value);",
        "listed_rows", ("listed_rows",), every=1,
    ),
    Mutant(
        "elements before the first segment stay as they are", "kernels/tile/segment_runs.cuh",
        "at < head ? at : at - head + tail", "at - head + tail",
        "scan_segments", ("scan_segments",), every=1,
    ),
    Mutant(
        "rows of a block share their elements", "kernels/tile/segment_runs.cuh",
        "begin + row * runs.room, int(", "begin, int(",
        "scan_segments", ("scan_segments",), every=1,
    ),
    Mutant(
        "a block's elements are loaded before the last ones are stored", "kernels/tile/segment_runs.cuh",
        "with(batch); __syncthreads();", "with(batch);",
        "scan_segments", ("scan_segments",), every=1,
    ),
    Mutant(
        "elements behind the granules are left out", "kernels/tile/segment_runs.cuh",
        "const int left = count - whole * kPer;", "const int left = head;",
        "scan_segments", ("scan_segments",), every=1, some=True,
    ),
    Mutant(
        "a block has slots for more segments than it holds", "kernels/tile/segment_runs.cuh",
        "&& lists.start[at] - lists.start[s] <= runs.slots", "",
        "rowwise_segments", ("rowwise_segments",), "asan", every=1,
    ),
    Mutant(
        "groups are joined before all have their totals", "kernels/scan/scan_segments.cu",
        "totals[u] = group(block.slot(batch, u), items); } __syncthreads();",
        "totals[u] = group(block.slot(batch, u), items); }",
        "scan_segments", ("scan_segments",), every=1,
    ),
    Mutant(
        "the last eight groups of a tile are joined to half of it twice", "kernels/scan/scan_segments.cu",
        "last = v[kGroup - 1]; if (first == kGroup) half = last;", "if (first == kGroup) half = v[kGroup - 1];",
        "scan_segments", ("scan_segments",), every=1, some=True,
    ),
    Mutant(
        "an exclusive scan overwrites a group that is still to be read", "kernels/scan/scan_segments.cu",
        "if (!call.exclusive) continue; __syncthreads();", "if (!call.exclusive) continue;",
        "scan_segments", ("scan_segments",), every=1,
    ),
    Mutant(
        "a warp's totals of tiles are read before they are there", "kernels/scan/scan_segments.cu",
        "if (lane_id() == 0) shared.totals[warp] = total; __syncthreads();",
        "if (lane_id() == 0) shared.totals[warp] = total;",
        "scan_segments", ("scan_segments",), every=1,
    ),
    Mutant(
        "a reverse scan begins at the first element of its segment", "kernels/scan/scan_segments.cu",
        "call.reverse ? at.begin + at.length - 1 : at.begin", "at.begin",
        "scan_segments", ("scan_segments",), "asan", every=1,
    ),
    Mutant(
        "all segments have the first one's initial", "kernels/scan/scan_segments.cu",
        "+ at.segment * call.initial_step", "",
        "scan_segments", ("scan_segments",), every=1, some=True,
    ),
    Mutant(
        "lanes take their groups before all elements are there", "kernels/scan/scan_segments.cu",
        "staged(lane_id() + k * kLanes) = x[k]; warp_barrier();", "staged(lane_id() + k * kLanes) = x[k];",
        "scan_segments", ("scan_segments",), every=1,
    ),
    Mutant(
        "a warp lists its long segments in one place, to be scanned", "kernels/tile/segment_runs.cuh",
        "bits_set(mine & ((uint32_t(1) << lane_id()) - 1));", "0;",
        "scan_segments", ("scan_segments",), every=1,
    ),
    Mutant(
        "groups of a window have what precedes another segment's", "kernels/scan/segment_windows.cuh",
        "sklansky_of_any<S>(upto, group.number, width);", "sklansky_of_any<S>(upto, lane_id(), width);",
        "scan_segments", ("scan_segments",), every=1,
    ),
    Mutant(
        "a team of lanes adds the other teams' elements", "kernels/rowwise/walked_segments.cuh",
        "for (int d = kGroup; d < kTeam; d *= 2) sum", "for (int d = kGroup; d < kLanes; d *= 2) sum",
        "rowwise_segments", ("rowwise_segments",), every=1,
    ),
    Mutant(
        "the warps of a block have leaves that are no subtrees", "kernels/rowwise/walked_segments.cuh",
        "while (each * kWarps < leaves) each *= 2;", "each = (leaves + kWarps - 1) / kWarps;",
        "rowwise_segments", ("rowwise_segments",), every=1,
    ),
    Mutant(
        "a slot has residues that another has, too", "kernels/rowwise/held_segments.cuh",
        "slot.number % kResidues * kWidth", "slot.number % kResidues",
        "rowwise_segments", ("rowwise_segments",), every=1,
    ),
    Mutant(
        "leaves of several are numbered from the second one's slots on", "kernels/tile/segment_runs.cuh",
        "runs.each + (start + part * slots) / slots", "runs.each + start / slots",
        "rowwise_segments", ("rowwise_segments",), every=1,
    ),
    Mutant(
        "terms are added before all leaves have their greatest", "kernels/rowwise/held_segments.cuh",
        "find(batch); __syncthreads();", "find(batch);",
        "rowwise_segments", ("rowwise_segments",), every=1,
    ),
    Mutant(
        "an item of several leaves has the first one's state", "kernels/rowwise/walked_segments.cuh",
        "once ? state : total", "state",
        "rowwise_segments", ("rowwise_segments",), every=1, some=True,
    ),
    Mutant(
        "the leaves of a segment share a slot", "kernels/reduce/listed_segments.cuh",
        "several ? slot + k : -1", "several ? slot : -1",
        "segments", ("segments",), every=1,
    ),
    Mutant(
        "a leaf of several is the result", "kernels/reduce/listed_segments.cuh",
        "if (leaf.slot < 0)", "if (leaf.slot < 0 || leaf.first == 0)",
        "segments", ("segments",), every=1,
    ),
    Mutant(
        "a segment that is left out is a segment", "kernels/reduce/segment_index.h",
        "number < 0 || number >= count || number == skipped", "number < 0 || number >= count",
        "segments", ("segments",), every=1,
    ),
    Mutant(
        "sums that are added to self replace it", "kernels/reduce/segment_columns.cuh",
        "call.finish.onto == Onto::Self ? to[c] : E{}", "E{}",
        "segments", ("segments",), every=1,
    ),
    Mutant(
        "segments without rows replace what is there", "kernels/reduce/segment_columns.cuh",
        "if (call.finish.onto != Onto::New) return;", "",
        "segments", ("segments",), every=1,
    ),
    Mutant(
        "a packed segment that is left to a warp is left out", "kernels/reduce/packed_segments.cuh",
        "left[atomicAdd(&left_count, 1)] = uint16_t(of);", "left[0] = uint16_t(of);",
        "segments", ("segments",), every=1,
    ),
    Mutant(
        "packed rows begin with their granule", "kernels/reduce/packed_segments.cuh",
        "rows ? ahead + int(", "rows ? int(",
        "segments", ("segments",), every=1,
    ),
    Mutant(
        "shared memory is filled again before all have read it", "kernels/reduce/packed_segments.cuh",
        "    __syncthreads();\n    const int lefts", "    const int lefts",
        "segments", ("segments",), "tsan", every=1,
    ),
    Mutant(
        "a warp lists its long segments in one place", "kernels/reduce/listed_segments.cuh",
        "return int64_t(shuffle(first, kLanes - 1)) + upto - mine;", "return int64_t(shuffle(first, kLanes - 1));",
        "segments", ("segments",), every=1,
    ),
    Mutant(
        "a run ends with the places that were looked at", "kernels/reduce/segment_index.cuh",
        "if (keys[middle] == number) from = middle;", "if (false) from = middle;",
        "segments", ("segments",), every=1,
    ),
    Mutant(
        "the first half of a team's lanes does not meet the other", "kernels/reduce/segment_rows.cuh",
        "for (int d = team; d < kLanes; d *= 2)", "for (int d = team; 2 * d < kLanes; d *= 2)",
        "segments", ("segments",), every=1,
    ),
    Mutant(
        "warps of a block have the same leaf", "kernels/reduce/segment_rows.cuh",
        "value(first + int64_t(warp) * kLeaf)", "value(first)",
        "segments", ("segments",), every=1,
    ),
    # ---- row-wise ops
    # ---- norms over channels
    Mutant(
        "a granule in two lines is in the first", "kernels/channels/map.cuh",
        "const Map second = map_of(line + 1);", "const Map second = map_of(line);",
        "channels", ("channels",), some=True,
    ),
    Mutant(
        "a line within a granule goes on", "kernels/channels/map.cuh",
        "if (rest == 0) { now = map_of(++line); rest = length; } --rest; return now(x, g);",
        "if (rest == 0) { now = map_of(++line); rest = length + 1; } --rest; return now(x, g);",
        "channels", ("channels",), every=1,
    ),
    Mutant(
        "all samples have the statistics of a channel's first", "kernels/channels/sums.cuh",
        "rows[k] = call.template kept_statistics<F>(number + passed * call.groups);", "rows[k] = same;",
        "channels", ("channels",), some=True,
    ),
    Mutant(
        "sums of groups that share a read have no weights", "kernels/channels/sums.cuh",
        "add_term(acc[1][0][j], acc[1][1][j], own * weight, normal);",
        "add_term(acc[1][0][j], acc[1][1][j], own, normal);",
        "channels", ("channels",), every=1,
    ),
    Mutant(
        "blocks of one kind of sums go on where both began", "kernels/channels/sums.cuh",
        "number = block < 2 * turns ? block / 2 : block - turns;", "number = block / 2;",
        "channels", ("channels",), every=1,
    ),
    Mutant(
        "columns of a tile are stored before all rows are there", "kernels/channels/transpose.cuh",
        "__syncthreads();", "",
        "channels", ("channels",), every=1,
    ),
    Mutant(
        "groups of residues meet before they are there", "kernels/channels/sums.cuh",
        "__syncthreads(); if (group % (2 * d) == 0) {", "if (group % (2 * d) == 0) {",
        "channels", ("channels",), every=1,
    ),
    Mutant(
        "a column's sums are of all channels that lanes have", "kernels/channels/sums.cuh",
        "const bool there = channel < call.channels && residue < kResidues;",
        "const bool there = channel < call.channels;",
        "channels", ("channels",), every=1,
    ),
    Mutant(
        "runs of neighbours follow one another", "kernels/rowwise/runs.cuh",
        "(int64_t(passed) * shape.pitch + (place - passed * shape.run))", "place",
        "rowwise.MOMENTS", ("rowwise",), some=True,
    ),
    Mutant(
        "a leaf of runs is looked at again as it is", "kernels/rowwise/runs.cuh",
        "for (F& v : x) v = v * scale;", "for (F& v : x) v = v;",
        "rowwise.MOMENTS", ("rowwise",), every=1,
    ),
    Mutant(
        "half words stay where they are in a mapped input that starts elsewhere", "kernels/rowwise/map_rows.cuh",
        "(bytes & 2) * 8", "0",
        "rowwise.EXPONENTIALS", ("rowwise",),
    ),
    Mutant(
        "what rows come with is read before it is there", "kernels/rowwise/map_rows.cuh",
        "__syncthreads();", "",
        "rowwise.EXPONENTIALS", ("rowwise",),
    ),
    Mutant(
        "an element at the label is as any other", "kernels/rowwise/map_rows.cuh",
        "if (i == marked) map(i);", "",
        "rowwise.EXPONENTIALS", ("rowwise",),
    ),
    Mutant(
        "a row goes on in the next one", "kernels/rowwise/map_rows.cuh",
        "if (ends || tile.shape.across) row = row_here();", "if (tile.shape.across) row = row_here();",
        "rowwise.EXPONENTIALS", ("rowwise",),
    ),
    Mutant(
        "residues of a leaf that starts within a granule stay where they are", "kernels/rowwise/held_granules.cuh",
        "move_down<1>(acc, (p.before & 1) != 0, p);", "",
        "rowwise.SOFTMAX", ("rowwise",),
    ),
    Mutant(
        "what comes after a row is looked at", "kernels/rowwise/held_granules.cuh",
        "mask<E>(g[c], 0, end - last * kGroup, absent);", "",
        "rowwise.SOFTMAX", ("rowwise",),
    ),
    Mutant(
        "all lanes have a granule of an aligned row's last chunk", "kernels/rowwise/held_granules.cuh",
        "return c < kWhole || number(p, c) * kGroup < p.count;", "return true;",
        "rowwise.SQUARES", ("rowwise",), every=1,
    ),
    Mutant(
        "what half a warp's chunks are of are the same residues", "kernels/rowwise/held_granules.cuh",
        "return c % kRuns * kGroup + i;", "return (kRuns < kChunks ? 0 : c) * kGroup + i;",
        "rowwise.SQUARES", ("rowwise",), every=1,
    ),
    Mutant(
        "a leaf's last elements are added first", "kernels/rowwise/held_leaf.cuh",
        "const int late = kLate && p.lane == 0 ? p.before : 0;", "const int late = 0;",
        "rowwise.SOFTMAX", ("rowwise",), every=1,
    ),
    Mutant(
        "lanes beyond a row's leaves have no part in its tree", "kernels/rowwise/states.cuh",
        "const int lane = lane_id() & (lanes - 1);", "const int lane = lane_id();",
        "rowwise.SOFTMAX", ("rowwise",),
    ),
    Mutant(
        "sums of columns are overwritten before all have seen them", "kernels/rowwise/columns.cuh",
        "const F total = scratch[c]; __syncthreads(); return total;", "return scratch[c];",
        "rowwise.MOMENTS", ("rowwise",),
    ),
    Mutant(
        "greatest elements of columns make place for sums before all have seen them",
        "kernels/rowwise/own_columns.cuh",
        "if (shape.groups > 1) __syncthreads();", "",
        "rowwise.SOFTMAX", ("rowwise",),
    ),
    Mutant(
        "of two groups of a column one is left out", "kernels/rowwise/own_columns.cuh",
        "if (count > kMost / 2) {", "if (count > kMost / 2 && kMost > 2) {",
        "rowwise.SOFTMAX", ("rowwise",),
    ),
    Mutant(
        "sums of wide columns stay where they are in a row off a granule", "kernels/rowwise/wide_columns.cuh",
        "shift_columns(acc, s); Columns moved", "Columns moved",
        "rowwise.SOFTMAX", ("rowwise",), every=1,
    ),
    Mutant(
        "a leaf of a split row is the row", "kernels/rowwise/held_rows.cuh",
        "total = met.template total<Op>(shape.leaves);", "total = state;",
        "rowwise.SQUARES", ("rowwise",), every=1,
    ),
    Mutant(
        "exponentials are taken for normal numbers", "ops/rowwise.h",
        "return near(l) && least >= l - kNormal;", "return near(l);",
        "rowwise.SOFTMAX", ("rowwise",),
    ),
    Mutant(
        "half words stay where they are in a row that starts elsewhere than its input",
        "kernels/rowwise/held_granules.cuh",
        "(from & 1) * 16", "0",
        "rowwise.SOFTMAX", ("rowwise",), every=1,
    ),
    Mutant(
        "granules of rows whose output starts elsewhere in its own, of ops with weights", "kernels/rowwise/rows_call.h",
        "if (!f.weights) a.alike = alike;", "a.alike = alike;",
        "rowwise_plan", ("rowwise",),
    ),
    Mutant(
        "split rows by granules that they do not end with", "kernels/rowwise/held_rows.h",
        "one.layout.length = 2 * kLeaf + call.layout.length % kLeaf;", "one.layout.length = 2 * kLeaf;",
        "rowwise_plan", ("rowwise",), every=1,
    ),
    Mutant(
        "what comes after a packed row is looked at", "kernels/rowwise/packed_rows.cuh",
        "if (!kFull && rest<kFull>(c, j) < kGroup) keep_first<E>(g, rest<kFull>(c, j));", "",
        "rowwise.SOFTMAX", ("rowwise",),
    ),
    Mutant(
        "packed rows that start at odd half words as if they did not", "kernels/rowwise/packed_rows.cuh",
        "kShifts ? funnel_right(low, next, bits) : low", "low",
        "rowwise.SOFTMAX", ("rowwise",),
    ),
    Mutant(
        "packed results leave before all are there", "kernels/rowwise/packed_rows.cuh",
        "__syncthreads(); unstage_run(shared, out, rows * n);", "unstage_run(shared, out, rows * n);",
        "rowwise.SOFTMAX", ("rowwise",),
    ),
    Mutant(
        "a leaf whose squares leave the range is not looked at again", "ops/rowwise.h",
        "return up ? F(two_to(kUp)) : down", "return down",
        "rowwise.MOMENTS", ("rowwise",), every=1,
    ),
    Mutant(
        "the second of two tensors is not added", "kernels/rowwise/held_granules.cuh",
        "g[c] = rounded<false>(v);", "g[c] = g[c];",
        "rowwise.SQUARES", ("rowwise",), every=1,
    ),
    Mutant(
        "the warps of a leaf out of order", "kernels/rowwise/spread_rows.cuh",
        "(warps.sum[0][s] + warps.sum[1][s]) + (warps.sum[2][s] + warps.sum[3][s])",
        "(warps.sum[0][s] + warps.sum[2][s]) + (warps.sum[1][s] + warps.sum[3][s])",
        "rowwise.SQUARES", ("rowwise",), every=1,
    ),
    Mutant(
        "a residue of weights twice", "kernels/rowwise/weights.cuh",
        "residue(3, last);", "residue(2, last);",
        "weights", ("rowwise",), every=1,
    ),
    Mutant(
        "a cluster's sums come while others are read", "kernels/rowwise/norm_gradients.cuh",
        "barrier_wait(&made[old.turn], old.round);", "",
        "weights", ("rowwise",), every=1,
    ),
    Mutant(
        "the end of a warp's elements goes where their start does", "kernels/rowwise/anywhere_row.cuh",
        "lane * kSize < start ? kLanes * kGranule : 0", "0",
        "weights", ("rowwise",), every=1,
    ),
    Mutant(
        "sums take what comes after a short row", "kernels/rowwise/norm_gradients.cuh",
        "kAnywhere && !there(c)", "false",
        "weights", ("rowwise",), every=1,
    ),
    Mutant(
        "residues of short rows as those of one lane", "kernels/rowwise/norm_gradients.cuh",
        "sums[at + d * shape.lanes]", "sums[at + d]",
        "weights", ("rowwise",), every=1,
    ),
    Mutant(
        "the last of few rows counts for those that are not there", "kernels/rowwise/few_norm_rows.cuh",
        "start + j < rows ? to_weight : F(-0.0)", "to_weight",
        "weights", ("rowwise",), every=1,
    ),
    Mutant(
        "the warps of few rows in another order", "kernels/rowwise/few_norm_rows.cuh",
        "own = warps[lane_id() & (count - 1)];",
        "own = warps[(lane_id() % 4 % 3 ? lane_id() ^ 3 : lane_id()) & (count - 1)];",
        "weights", ("rowwise",), every=1,
    ),
    Mutant(
        "runs of few rows in another order", "kernels/rowwise/few_norm_rows.cuh",
        "shared.columns[first + g]", "shared.columns[first + (g % 4 % 3 ? g ^ 3 : g)]",
        "weights", ("rowwise",), every=1,
    ),
)  # fmt: skip


def drawn(mutants: list[Mutant], count: int) -> list[Mutant]:
    """Some of them, that depend on the sources alone, each of other kernels than the ones before as far as may be."""
    total = hashlib.sha256()
    for path in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        total.update(path.read_bytes())
    order = sorted(mutants, key=lambda m: hashlib.sha256(total.digest() + m.name.encode()).digest())
    firsts = {m.object: m for m in reversed(order)}.values()
    return sorted(order, key=lambda m: m not in firsts)[:count]


def link_objects(mutant: Mutant, program: str, build: Path) -> None:
    """The right kernels' objects in a folder of its own, but the one to compile."""
    for path in [*BUILD.glob("*.o"), *(BUILD / program).glob("*.o")]:
        target = build / path.relative_to(BUILD)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.stem != mutant.object:
            os.link(path, target)


def finding(output: str) -> str:
    """The line of a report that says most, after what reported it."""
    for pattern, check in (
        (r"FAILED: (.*): the bits differ", "wrong bits: "),
        (r"FAILED: (.*)", ""),
        (r"SUMMARY: (.*)", ""),
        (r"runtime error: (.*)", "UndefinedBehaviorSanitizer: "),
        (r"simt: ((?!in |block ).*)", "emulator: "),
    ):
        if match := re.search(pattern, output):
            return check + re.sub(r"\(?/\S*/|torchreduce::(gpu::|generic::)?", "", match[1])[:100]
    return output.strip()[-100:]


def judge(mutant: Mutant, quick: bool) -> tuple[bool, str]:
    """Whether the mutant was caught, and by what."""
    kind = "quick" if quick else mutant.sanitizer
    work = BUILD / "mutants" / re.sub(r"\W", "_", mutant.name)
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(SOURCES, work / "csrc")
    build = work / "build"
    try:
        (work / "csrc" / mutant.file).write_text(mutant.text())
        link_objects(mutant, kind, build)
        program = build / f"simt.{kind}"
        make = ["make", "-s", "-C", FOLDER, f"SOURCES={work / 'csrc'}", f"BUILD={build}", program]
        built = subprocess.run(make, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if built.returncode:
            return False, f"does not build: {built.stdout[-2000:]}"
        for wave in ("64", "32"):
            options = dict(os.environ, TSAN_OPTIONS="halt_on_error=1")
            few = ["--few"] if quick else []
            command = [program, "--wave", wave, "--every", str(mutant.every), *few, *mutant.groups]
            run = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS, env=options
            )
            if run.returncode:
                return True, f"{kind}, {wave} lanes: {finding(run.stdout)}"
        return False, "SURVIVED"
    except subprocess.TimeoutExpired:
        return False, f"does not end in {SECONDS} s"
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main(arguments: list[str]) -> None:
    quick, names = "--quick" in arguments, [name for name in arguments if not name.startswith("--")]
    some = [m for m in MUTANTS if m.some]
    if names:
        chosen = [m for m in MUTANTS if m.name in names]
    elif quick:
        present = os.environ.get("KERNELS", "").split()
        chosen = drawn([m for m in some if m.sanitizer == "tsan" and (not present or m.kernels() in present)], QUICK)
    else:
        chosen = some if "--some" in arguments else list(MUTANTS)
    for mutant in MUTANTS:  # of all, whatever is chosen
        try:
            mutant.text()
        except ValueError as error:
            sys.exit(f"FAILED  {mutant.name}\n        {error}")
    start = time.monotonic()
    caught = 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for mutant, (ok, what) in zip(chosen, pool.map(lambda m: judge(m, quick), chosen), strict=True):
            caught += ok
            print(f"{'caught' if ok else 'FAILED'}  {mutant.name}\n        {what}", flush=True)
    print(f"mutants: {caught} of {len(chosen)} caught, in {time.monotonic() - start:.0f} s")
    sys.exit(caught != len(chosen) or not (chosen or quick))


if __name__ == "__main__":
    main(sys.argv[1:])
