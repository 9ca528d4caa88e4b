// Sums by indices, and scatters, of tensors without torch: what both layers that meet torch share. binding/segments.cpp
// runs them.
#pragma once
#include "operand.h"
#include "plan/segment_call.h"

namespace torchreduce {

// The sums of the rows of x by an index, of int32 or int64, in the rows of `out`, of x's dtype, all contiguous: by a
// GPU whose build has a sort. Returns false if nothing was done. Rows of the number `skipped` are left out.
bool indexed_sums_into(const char* op, const Operand& x, const Operand& index, int64_t skipped, const Operand& out);
// What indices are sorted by elsewhere, and the sums of rows by them (kernels/reduce/segment_index.h). `keys`, of
// dtype segment_key_dtype(count), gets the keys of indices; sorted, with the place of each as int64 in `order`, they
// say which rows of x each row of `out`, of `count` rows and x's dtype, is the sum of.
Dtype segment_key_dtype(int64_t count);
void segment_keys_into(const char* op, const Operand& indices, int64_t count, int64_t skipped, const Operand& keys,
                       const Elements& elements = {});
void segment_sums_into(const char* op, const Operand& x, const Operand& keys, const Operand& order, const Operand& out);

// Whether x along dim can be read as it is: the dims before it, and those after it, lie in memory as one would.
bool is_one_matrix(const Operand& x, int dim);

// What self, contiguous and apart from the others, becomes with the elements of x that meet at its places, in place.
// op: sum, mean, prod, amax or amin. index, contiguous, of int32 or int64, is of one dim and has the number along dim
// of each row of x, which is_one_matrix(); or, of x's shape, that of each element of x, which is contiguous. On a CPU
// returns the first place of index whose number is out of range, and writes nothing then; else -1. A GPU leaves such
// elements out.
int64_t scatter_into(const char* name, const Op& op, const Operand& self, const Operand& x, const Operand& index,
                     int dim, bool include_self, double alpha);

// The reduction of each segment of x along dim, in values, in indices or both; a null one is not written. Both are
// contiguous. x is_one_matrix(); offsets: of one dim, int32 or int64, contiguous. order: an int64 for each element
// along dim, contiguous, or null. On a CPU wrong offsets raise.
void reduce_segments_into(const char* name, const Op& op, const Operand& x, int dim, const Operand& offsets,
                          const int64_t* order, const Types& types, void* values, void* indices);

}  // namespace torchreduce
