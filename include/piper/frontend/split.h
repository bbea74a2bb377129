// The directive `split`: microbatches, chunks of tokens, shares of samples, and parts of regions.
#pragma once

#include <optional>
#include <vector>

#include "piper/base/base.h"

namespace piper {

// Cuts the batch into microbatches, the tokens of each sample into chunks, or the samples of each
// microbatch into shares, both of which are tasks of their own, or a region of ops into parts that
// run one after the other:
// - split: {dim: batch, into: $microbatches, as: mb}
// - split: {dim: tokens, into: 4, as: seq}
// - split: {dim: samples, into: 2, sizes: [3, 1], as: share}
// - split: {scope: "h/{layer}/mlp/**", dim: 1, into: 4, as: part}
struct Split {
  std::optional<Glob> scope;   // of ops; nothing: the batch is split
  std::optional<Glob> tensor;  // parameters that are cut; nothing: what the region reads first
  std::optional<int64_t> dim;  // of these, from the end if negative; none: a dim with a name
  bool of_tokens = false, of_samples = false;
  std::vector<int64_t> sizes;  // of chunks or shares; empty: equal, or as `by` says
  enum class By : uint8_t { kTokens, kCost };
  std::optional<By> by;  // what is equal in all of these
  int64_t into = 1;
  std::string as = "mb";
  // Mesh axes, in each of whose blocks of the dim a part has its share.
  std::vector<std::string> within;
  SourceSpan at, scope_at, tensor_at, dim_at, within_at, sizes_at;
  bool of_chunks() const { return of_tokens || of_samples; }
  bool of_batch() const { return !scope && !of_chunks(); }
  bool of_region() const { return scope.has_value(); }
};

}  // namespace piper
