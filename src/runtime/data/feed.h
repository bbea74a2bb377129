// One feed per input: where its samples come from. Private to the data room.
#pragma once

#include "files.h"
#include "piper/base/data.h"
#include "piper/runtime/data.h"

namespace piper {

// An Extent counts the samples of a feed. Feeds of one job must agree, or their rows would not
// belong together.
struct Extent {
  int64_t rows = 0;  // before they repeat
  bool shuffled = false;
  bool mixed = false;  // of several sources
  bool operator==(const Extent&) const = default;
};

// Says what a read takes: `count` samples from `sample` on, in the endless order; they are samples
// [first, first + count) of `step`, which errors name.
struct SampleCut {
  int64_t sample = 0, count = 0;
  int64_t step = 0, first = 0;
};

class Feed {
 public:
  virtual ~Feed() = default;
  virtual Status read(const SampleCut& range, std::byte* to) const = 0;
  virtual std::optional<Extent> extent() const = 0;  // nothing: the same value in every batch
};

// Returns the permutation of [0, n) that epoch `epoch` uses, without a table: a Feistel network on
// the next power of four, walked until it lands inside.
int64_t permuted(uint64_t seed, int64_t epoch, int64_t index, int64_t n);

// Says which row is which sample of the endless order: an epoch's rows, then those of the next one,
// in another permutation.
class RowOrder {
 public:
  RowOrder(int64_t rows, bool shuffle, uint64_t seed)
      : rows_(rows), shuffle_(shuffle), seed_(seed) {}
  Extent extent() const { return {rows_, shuffle_}; }
  int64_t row(int64_t sample) const {
    const int64_t index = sample % rows_;
    return shuffle_ ? permuted(seed_, sample / rows_, index, rows_) : index;
  }

 private:
  int64_t rows_;
  bool shuffle_;
  uint64_t seed_;
};

// Says how a file has the elements of an array.
struct StoredElement {
  DType dtype = DType::kF32;  // which has their values
  int width = 4;              // bytes of each
  bool is_signed = true;
};
// Copies `count` elements of `from` as those of `need`. Returns the first index whose integer is
// not legal for `need`, or -1. convertible says which pairs there are.
bool convertible(DType from, DType to);
int64_t convert(const std::byte* from, const StoredElement& element, std::byte* to,
                const InputNeed& need, int64_t count);

// Returns how many samples there have to be.
inline int64_t least_samples(const DataOptions& options, int64_t batch) {
  return options.fills ? 1 : batch;
}

class TokenSet;
struct TokenSpec;
// Opens the feeds of the token inputs among `inputs`, in that order, and what they read.
struct TokenFeeds {
  std::shared_ptr<const TokenSet> set;
  std::vector<std::unique_ptr<Feed>> feeds;
};
Result<TokenFeeds> open_tokens(const TokenSpec& spec, std::span<const InputNeed> needs,
                               const std::vector<int>& inputs, int64_t batch,
                               const DataOptions& options);
Result<std::unique_ptr<Feed>> open_rows(const DataFile& file, const InputNeed& need, int64_t batch,
                                        const DataOptions& options);
// Opens the feeds of batches; null where the file has no batch of that input.
Result<std::vector<std::unique_ptr<Feed>>> open_batches(const DataFile& file,
                                                        std::span<const InputNeed> needs,
                                                        int64_t batch);

// "[0, 255]" or "[0, 255] or -100"; the legal integers of an input.
// Returns the first of `count` integers, as they were converted, that is outside the range of its
// element; -1: none. `first`: which element of a sample the first of them is.
int64_t find_outside(const std::byte* values, const InputNeed& need, int64_t first, int64_t count);
// Returns what is legal for an element of a sample.
InputNeed need_of_element(const InputNeed& need, int64_t element);
std::string print_range(const InputNeed& need);

}  // namespace piper
