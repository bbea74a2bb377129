// Attention of f32 and f64, forward and backward, by blocks of keys and of queries: the scores of
// one block of both are made, used and forgotten, and the keys after a causal tile's last query
// are skipped. What a block needs stays in a near cache, however long the sequences are. A block is
// of one stretch of queries and of one of keys.
//
// The bits of a head's results depend on the form and on that head's operands only.
#pragma once

#include <algorithm>

#include "piper/devices/kernel_use.h"

namespace piper::cpu {

// Says at which number tokens begin, where they are in so many equal stretches; none: at 0.
struct AttentionNumbers {
  const int64_t* first = nullptr;
  int64_t stretches = 1;
  // Returns, for the first of `tokens` of a block, how many follow it up to the end of its stretch,
  // itself among them, and its number.
  int64_t left(int64_t token, int64_t tokens) const {
    const int64_t all = tokens / stretches;
    return all > 0 ? all - token % all : 0;
  }
  int64_t number(int64_t token, int64_t tokens) const {
    const int64_t all = tokens / stretches;
    if (!first || all == 0) return token;
    return std::clamp<int64_t>(first[token / all], 0, DeviceAttention::kFurthest) + token % all;
  }
};

// Holds an attention of whose queries and keys the numbers are known.
struct AttentionForm : DeviceAttention {
  AttentionNumbers query, key;

  // Returns how far after key j query i may be to see it, of blocks that begin with these: i +
  // that ≥ j.
  int64_t offset_of(int64_t i0, int64_t k0) const {
    return query.number(i0, queries) - i0 - (key.number(k0, keys) - k0) + offset;
  }
  // Returns the end of the keys that a query sees.
  int64_t seen_by(int64_t i) const {
    if (!causal) return keys;
    const int64_t stretch = keys / key.stretches;
    for (int64_t k0 = keys - stretch; stretch > 0 && k0 >= 0; k0 -= stretch)
      if (const int64_t seen = i + offset_of(i, k0) + 1 - k0; seen > 0)
        return k0 + std::min(seen, stretch);
    return 0;
  }
};

template <class T>
struct AttentionInputs {
  const T *q, *k, *v;
  const std::byte* mask;  // or null
};
template <class T>
struct AttentionAdjoints {
  const T *y, *lse, *dy;
  T *dq, *dk, *dv, *dmask;  // dmask: null, or what is added to, zero before
};

template <class T>
struct AttentionFns {
  // Of the heads [begin, end), counted over the batch; lse may be null.
  void (*forward)(const AttentionForm& form, const AttentionInputs<T>& in, T* y, T* lse, T* scratch,
                  int64_t begin, int64_t end);
  // Of the heads of keys [begin, end), counted over the batch, and of all that read them.
  void (*backward)(const AttentionForm& form, const AttentionInputs<T>& in,
                   const AttentionAdjoints<T>& adjoints, T* scratch, int64_t begin, int64_t end);
};

template <class T>
AttentionFns<T> attention_fns();

// Holds a block's extents, multiples of 32; and the rows of a panel of scores: one more than
// queries, or the panels of one query would fall into one set of the nearest cache.
struct AttentionSizes {
  int64_t query_block = 0, score_rows = 0, key_block = 0;
};
AttentionSizes attention_sizes(const DeviceAttention& form);
// Returns elements.
int64_t attention_scratch(const DeviceAttention& form, bool backward);

}  // namespace piper::cpu
