// Batches: what a training run takes from token files, .npy and safetensors files, which are mapped
// and checked.
#pragma once

#include "piper/base/base.h"

namespace piper {

// Says what the plan needs of an input: the type of the whole batch, and which integers are legal
// (DataInput in bundle.h).
struct InputNeed {
  std::string name;
  TensorType type;
  int batch_dim = 0;
  int64_t low = 0, high = -1;
  int64_t ignore = INT64_MIN;
  std::vector<int64_t> ranges = {};  // of rows of arrays; tokens are in [low, high]
};
// Sources (formats/data.md): "FILES[:u16|…][:separator=TOKEN][:pack]" of tokens, a file, a folder
// or a pattern, cut into windows of T+1 tokens (inputs named like ids take [0,T), labels [1,T+1))
// or packed into sequences of whole documents; "mix.yaml" of several such sources, mixed by
// weights; "NAME=file.npy" rows; "file.safetensors" with batch/K/INPUT in order of K. Several
// sources together cover all inputs; those of tokens are one list of files.
struct DataOptions {
  std::vector<std::string> sources;
  uint64_t seed = 0;
  bool shuffle = true;  // token windows and .npy rows, a fixed-seed permutation per epoch
  // Step `first_step` begins at sample `first_sample` of the endless order of samples, which no
  // batch size changes: a job that goes on with another one goes on with the next sample.
  int64_t first_step = 0, first_sample = 0;
  // Takes each sample of each source of a mixture once, by the weights as long as sources last.
  // Else the samples of a mixture repeat where those of one of its sources do.
  bool each_once = false;
  // Fills up the last batch, where samples are too few, with others whose labels are ignored. This
  // needs an input of labels that can be ignored.
  bool fills = false;
};
// Says how many samples of a source come before they repeat, and whether each epoch permutes them.
struct SourceEpoch {
  std::string name;
  int64_t samples = 0;
  bool shuffled = false;
  bool operator==(const SourceEpoch&) const = default;
};
// Makes batches without state: batch(step) is a function of the options and step, so any rank and
// any resume sees the same. No step before first_step is read.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  // Copies samples [first, first + count) of input `input` (position in needs) of step `step` to
  // `to`, in the plan's dtype. Does not allocate. Values are checked against low, high and ignore:
  // the error names the source, sample and value; kStorage: a file has been cut or cannot be read.
  virtual Status read(int64_t step, int input, int64_t first, int64_t count,
                      std::byte* to) const = 0;
  // Returns the first step with a sample that an earlier one, or the job before first_step, has
  // had: a batch may begin in one epoch and end in the next. Samples that fill up a batch do not
  // count. INT64_MAX if there is none.
  virtual int64_t steps() const = 0;
  // Returns how many samples there are before they repeat.
  virtual int64_t samples() const { return INT64_MAX; }
  // Returns how many samples the steps before `step` have taken of each source, by its name.
  virtual std::vector<std::pair<std::string, int64_t>> consumed(int64_t) const { return {}; }
  // Returns the epochs of the same sources, in the same order.
  virtual std::vector<SourceEpoch> epochs() const { return {}; }
  virtual int64_t tokens_per_step() const = 0;  // elements of the first integer input, or samples
  // Returns a line for each source of tokens: its files and their forms, its tokens, its windows.
  virtual std::string describe() const { return {}; }
  // Returns the digest of the sources' forms and contents: whole files up to 64 MiB, of larger ones
  // the size and 1,024 blocks of 64 KiB, evenly spread; of many token files, fewer of each. Equal
  // where all ranks read the same, under whatever paths.
  virtual std::string digest() const { return {}; }
  // Returns the digest of each file by its path.
  virtual std::vector<std::pair<std::string, std::string>> contents() const { return {}; }
  // Lets step `first_step` begin with sample `first_sample` (DataOptions). Before any read. Error:
  // no batch begins there.
  virtual Status begin_at(int64_t /*first_step*/, int64_t /*first_sample*/) { return ok_status(); }
  virtual int64_t num_files() const { return 0; }
  // Looks at files [first, first + count), and fails (kStorage) for one which somebody has cut, or
  // written to since it was opened, even where its times were set back. Files that were replaced by
  // others are as they were. One thread at a time calls it, also while others read.
  virtual Status check(int64_t /*first*/, int64_t /*count*/) const { return ok_status(); }
  Status check() const { return check(0, num_files()); }
};
Result<std::unique_ptr<BatchSource>> open_data(const DataOptions& options,
                                               std::span<const InputNeed> needs, int64_t batch);

}  // namespace piper
