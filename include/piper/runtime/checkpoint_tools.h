// What piper-checkpoint does with checkpoints and safetensors files: says what they hold, proves
// them whole, compares them, and exchanges parameters with other programs.
#pragma once

#include "piper/runtime/checkpoint.h"

namespace piper {

// Returns the checkpoints at `path`, oldest first: itself, or those of the folder. Error (kPlan):
// there is none.
Result<std::vector<std::string>> find_checkpoints(const std::string& path);
// Opens a safetensors file, a checkpoint, or the newest one of a folder.
Result<CheckpointReader> open_newest(const std::string& path);

// ---- inspect ------------------------------------------------------------------------------------

// Returns what checkpoint.json says; with `tensors` also each state, and which elements each file
// has of it. `folder` is a checkpoint.
Result<std::string> describe_checkpoint(const std::string& folder, bool tensors, bool json);

// ---- verify -------------------------------------------------------------------------------------

// Returns what is wrong: files that do not match their digests, states or elements that no file
// has, parts that overlap and differ. Empty: the checkpoint is whole. Error (kPlan): it cannot be
// read at all.
Result<std::vector<std::string>> find_damage(const std::string& folder);

// ---- diff ---------------------------------------------------------------------------------------

struct TensorDiff {
  std::string name;
  std::string text;  // "only in A", "f32[2] and f32[3]"; else elements differ:
  int64_t differing = 0, elements = 0;
  double largest = 0;   // absolute difference; infinite where one is no number
  double relative = 0;  // the largest of |a - b| / max(|a|, |b|)
};
struct CheckpointDiff {
  std::vector<SettingChange> settings;
  std::vector<TensorDiff> tensors;  // that differ, by name
  int64_t equal = 0;                // tensors of the same type and bits
  bool same() const { return settings.empty() && tensors.empty(); }
};
Result<CheckpointDiff> diff_checkpoints(const CheckpointReader& a, const CheckpointReader& b);
std::string print_checkpoint_diff(const CheckpointDiff& diff, bool json);

// ---- export and import --------------------------------------------------------------------------

struct ExportOptions {
  bool huggingface = false;    // a folder of shards and their index, else one file
  std::string strip_prefix;    // of all names
  std::optional<DType> dtype;  // of floats; else each keeps its own
  int64_t shard_bytes = 0;     // at most, but for a tensor that is larger
  bool replace = false;        // a file that is there, and those of an export in a folder
  bool averages = false;       // of the parameters, in their place, where there are some
};
// Writes parameters and buffers of the model to a folder that is not there or empty, or to a file,
// reads them back, and returns what was written, as lines for the user. Tied parameters: a file
// has all their names, a folder the first. Error: elements lack or are damaged (kRefused), names
// collide.
Result<std::string> export_checkpoint(const CheckpointReader& reader, const ExportOptions& options,
                                      const std::string& to);
struct CheckpointImport {
  bool is_dcp = false;       // torch.distributed.checkpoint's folder, else one of Hugging Face
  std::string strip_prefix;  // only tensors whose names begin with it are taken, without it
  std::string add_prefix;    // before each name
  bool replace = false;      // a file that is there
};
// Writes the tensors of a folder (model.safetensors or shards and their index; .metadata and what
// it names) to one file for piper-run --init, and returns what was written and what was left out.
Result<std::string> import_parameters(const std::string& folder, const CheckpointImport& options,
                                      const std::string& file);
// Parses "5GB", "500MB", "2GiB" or a number of bytes.
Result<int64_t> parse_bytes(const std::string& text);

}  // namespace piper
