// Checkpoints: all that a job needs to go on, bit for bit, on whatever ranks. What a rank holds of
// a state is told by the state's name and Held (piper/plan/bundle.h), so nothing depends on how
// many ranks wrote. formats/checkpoint.md has the files.
//
//   DIR/step-000000100/checkpoint.json          written last; digests of all others
//   DIR/step-000000100/rank00003.safetensors    the boxes that rank 3 wrote
#pragma once

#include <functional>
#include <map>

#include "piper/base/data.h"
#include "piper/plan/bundle.h"

namespace piper {

inline constexpr int kCheckpointFormatVersion = 3;

// ---- Where checkpoints live ---------------------------------------------------------------------

// Five verbs on files and folders. An error's code is kStorage where the system refused.
class Storage {
 public:
  virtual ~Storage() = default;
  // Writes a new file, and its folder if there is none; it is on the disk when this returns.
  virtual Status write(const std::string& path, std::span<const std::string_view> parts) = 0;
  virtual Result<Bytes> read(const std::string& path) = 0;
  virtual Result<std::vector<std::string>> list(const std::string& folder) = 0;  // names, sorted
  // A folder that is whole gets the name by which it is found, at once; what had it is gone.
  virtual Status publish(const std::string& built, const std::string& folder) = 0;
  // Removes a folder that this program wrote; a reader never finds a part of it.
  virtual Status remove(const std::string& folder) = 0;
};
Storage& file_storage();

// ---- What a checkpoint says of itself -----------------------------------------------------------

struct CheckpointFile {
  std::string name, digest;
  int64_t bytes = 0;
};

// Says what a state is. Only parameters and buffers are the model's own.
enum class StateKind : uint8_t { kParameter, kBuffer, kOptimizer, kPrevious };
inline constexpr size_t kStateKinds = 4;
const char* name_of(StateKind kind);

struct CheckpointState {
  std::string name;
  TensorType type;  // of the whole
  StateKind kind = StateKind::kParameter;
  std::vector<std::string> aliases;  // further names of a parameter (ties)
  bool operator==(const CheckpointState&) const = default;
};
// Returns what checkpoints of these plans hold, in the plans' order. Needs all roles of the set.
std::vector<CheckpointState> states_of(const PlanSet& set);
// Returns what the model's module has beside the states, which no step changes; its values, where
// the set has read them.
std::vector<NamedTensor> untouched_of(const PlanSet& set);

struct Checkpoint {
  int64_t step = 0;     // so many steps are done
  int64_t samples = 0;  // consumed by them, of the job's order of samples
  int64_t skipped = 0;  // of the steps, by this run and those that it went on from
  std::vector<std::pair<std::string, int64_t>> sources;  // the same by source of data
  std::vector<std::pair<std::string, int64_t>> epochs;   // samples of an epoch, by source
  std::optional<double> loss;                            // of the last step
  std::optional<double> evaluation_loss;                 // if the job evaluated after that step
  uint64_t data_seed = 0;
  bool shuffle = true;
  std::string data_digest;
  std::vector<std::pair<std::string, std::string>> data_files;  // paths and digests
  std::string compiler, set_id, model_digest, strategy_text;    // of the plans
  std::vector<CheckpointState> states;
  int64_t ranks = 0;  // that wrote it
  std::vector<CheckpointFile> files;
};
std::string print_checkpoint(const Checkpoint& checkpoint);  // checkpoint.json, with its own digest
Result<Checkpoint> parse_checkpoint(std::string_view text, const std::string& path);

// Lists the settings that change what is learned and differ between two strategies, as dumped:
// those of `train`, the loss, precision and versions of weights. "optimizer.adamw.lr", the two
// values. Missing values are "".
struct SettingChange {
  std::string setting, before, now;
};
std::vector<SettingChange> changed_settings(const std::string& before, const std::string& now);
std::string print_change(const SettingChange& change);  // "clip_norm: none before, 1.0 now"
// Lists all that a strategy, as dumped, says of training, each with its path.
std::vector<std::string> setting_names(const std::string& strategy);
// Whether a name that a user accepts covers a setting: the whole of it, its end or one of its
// parts.
bool covers_setting(std::string_view accepted, std::string_view setting);

// ---- Folders of checkpoints ---------------------------------------------------------------------

std::string checkpoint_name(int64_t step);  // "step-000000100"
// Returns the folder of checkpoints that is meant: one that --out of a job named has it inside. One
// that holds checkpoints itself is meant as long as there are none inside.
std::string checkpoints_in(const std::string& folder);
// Returns the steps of which the folder holds checkpoints, newest first; an unreadable folder is an
// error, one that is not there holds none.
Result<std::vector<int64_t>> list_checkpoints(Storage& storage, const std::string& folder);

// Says which checkpoints stay: the newest always does.
struct Keep {
  int64_t last = 0;   // this many of the newest; 0: all
  int64_t every = 0;  // those whose step this divides
  int64_t best = 0;   // this many of the lowest loss: of an evaluation, in jobs that evaluate
};
// Parses "last=3,every=5000,best=2".
Result<Keep> parse_keep(std::string_view text);
// Returns which of these checkpoints (steps and losses) are to be removed.
std::vector<int64_t> surplus_checkpoints(
    const Keep& keep, std::span<const std::pair<int64_t, std::optional<double>>> all);

// Says when a job writes checkpoints and what is the same in all of them.
struct CheckpointOptions {
  std::string folder;
  int64_t every = 0;   // steps; 0: at the job's end only
  double minutes = 0;  // since the one before; 0: never for that reason
  Keep keep;
  bool by_evaluation = false;  // Keep::best means Checkpoint::evaluation_loss
  // So often a job may be started in this folder without a new checkpoint there, before it is
  // refused; 0: any number of times.
  int64_t most_restarts = 0;
  bool goes_on = false;  // an error costs the checkpoint, not the job
  Checkpoint about;      // all but step, samples, sources, loss and files
  // Returns the samples that steps before `step` have consumed, and the same by source.
  std::function<void(int64_t step, Checkpoint& about)> count_samples;
  // Told on rank 0 what was written, and of errors that do not end the job.
  std::function<void(const std::string& line)> note;
  std::function<void(const Error&)> on_loss;
  Storage* storage = &file_storage();
};

// ---- Reading ------------------------------------------------------------------------------------

// Knows where the elements of one stored tensor are. Listing that takes as long as the files have
// runs of them, so it is done once for all reads. Holds no bytes: the reader has to outlive it.
class StoredTensor {
 public:
  // Copies the elements that `held` names to where they are held, in its type; floats are rounded
  // to nearest where that is narrower. Elements past the end of a dim are left as they are. Error
  // (kInput): shapes differ, elements are missing, or types that do not convert.
  Status read(const Held& held, std::byte* to) const;

 private:
  friend class CheckpointReader;
  // Elements that some file has, contiguous in the whole.
  struct Run {
    int64_t whole = 0, count = 0;
    const std::byte* data = nullptr;
  };
  int64_t fill(int64_t first, int64_t end, DType to, std::byte* at, int64_t& too_large) const;

  std::string name_;  // for errors
  TensorType type_;
  std::vector<Run> runs_;  // ascending, no two with the same element
};

// Serves the tensors of one checkpoint in any layout.
class CheckpointReader {
 public:
  // Reads checkpoint.json and the headers of all files, which stay open: a checkpoint that is
  // removed afterwards can still be read. No digests are compared. An error names the file (kInput:
  // another version wrote it).
  static Result<CheckpointReader> open(Storage& storage, const std::string& folder);
  // Reads the tensors of a safetensors file, such as --save and Hugging Face write, each whole.
  static Result<CheckpointReader> open_tensors(const std::string& file);
  struct Piece {  // what one file holds of a tensor: its elements one after the other, no padding
    Held held;
    Bytes data;
  };
  using Pieces = std::map<std::string, std::vector<Piece>>;
  // Serves what is in memory, as if it had been read. `name` stands for the folder in messages.
  static CheckpointReader of_memory(std::string name, Checkpoint about,
                                    std::map<std::string, TensorType> types, Pieces pieces);
  const Checkpoint& about() const { return about_; }
  const std::string& folder() const { return folder_; }
  // Compares size and digest of file `index` with what the checkpoint says.
  Status verify(size_t index) const;
  // By name: type of the whole tensor.
  const std::map<std::string, TensorType>& types() const { return types_; }
  // Finds a tensor, of which several parts are read. Error (kInput): it is not there.
  Result<StoredTensor> find(const std::string& name) const;
  // Finds a tensor and reads it once.
  Status read(const std::string& name, const Held& held, std::byte* to) const;

  const std::vector<Piece>& pieces(const std::string& name) const { return pieces_.at(name); }

 private:
  std::string folder_;
  Checkpoint about_;
  std::map<std::string, TensorType> types_;
  Pieces pieces_;
  std::vector<Bytes> files_;  // as Checkpoint::files
};

// ---- Writing ------------------------------------------------------------------------------------

// Names a piece that a rank writes, and where its elements are: without padding.
struct OwnPiece {
  std::string name;
  Held held;
  const std::byte* data = nullptr;
  int64_t elements = 0;
};
int64_t stored_elements(const Held& held);
// Copies what is held to `to`, which may be `from`, without the elements past the end of a dim.
void pack_held(const Held& held, const std::byte* from, std::byte* to);
// Writes a rank's file below `folder`, reads it back and returns its digest.
Result<CheckpointFile> write_rank_file(Storage& storage, const std::string& folder, int64_t rank,
                                       std::span<const OwnPiece> pieces);
std::string rank_file_name(int64_t rank);

// Returns by state of a rank (position in RoleProgram::buffers) whether that rank writes it: of all
// ranks that hold the same, one does, so that all write about as much. Needs all roles of the set.
std::vector<bool> states_to_write(const PlanSet& set, int64_t rank);

}  // namespace piper
