// The plan set on disk: the only contract between the compiler and piper-run. formats/plan.md and
// formats/plan.proto give the bytes. A field that is added to a structure of a plan is added to its
// list in src/plan/bundle/fields.h, by which all of it is written, read and checked.
//
//   plans/manifest.json            set id, version, mesh, digests of all files, what was predicted
//   plans/rankN.plan               header of rank N: coordinates, role digest, set id
//   plans/roles/<digest>.pb        a role program: shared by all ranks that run the same
//   plans/params/init.safetensors  initial values of state and large constants, by name
//   plans/single/, plans/uncut/    the oracle's plan sets: one device; same cut, or no cut
#pragma once

#include <map>

#include "piper/plan/role.h"

namespace piper {

inline constexpr int kPlanFormatVersion = 17;

struct RankHeader {
  int32_t rank = 0;
  std::vector<int64_t> coordinates;
  std::string role;  // digest of the role program file
  std::string set_id;
};

struct Manifest {
  int format_version = kPlanFormatVersion;
  // Digest over everything else in the set: equal for all ranks of one compilation.
  std::string set_id;
  std::string compiler;         // version of piperc
  std::string model, strategy;  // as named on the command line, and their digests
  std::string model_digest, strategy_digest;
  std::string strategy_text;  // what 'piperc --dump strategy' prints: checkpoints keep it
  uint64_t seed = 0;          // of the data's order and of random ops
  Mesh mesh;
  // Role digests by the coordinates on `role_axes`, row-major: what all ranks run, whatever their
  // other coordinates.
  std::vector<std::string> role_axes;
  std::vector<std::string> role_of_rank;
  std::map<std::string, std::string> files;   // path in the set -> digest
  std::map<std::string, double> predictions;  // "peak_bytes", "flops_per_step", …
};

struct PlanSet {
  Manifest manifest;
  std::vector<RoleProgram> roles;
  std::vector<int32_t> role_of_rank;                             // index into roles
  std::vector<std::pair<std::string, TensorType>> tensor_types;  // of params/init.safetensors
  // Initial values; filled by the compiler, and by load_params.
  std::vector<std::pair<std::string, Bytes>> tensors;
  std::string directory;  // where it was read from
  int64_t world() const { return static_cast<int64_t>(role_of_rank.size()); }
};

// Says what a rank holds of a tensor: its blocks; of the elements of these, one after the other,
// those from `first` on.
struct Held {
  // Names block `index`, of `size` elements, of each of the `outer` equal stretches of a dim.
  struct Block {
    int32_t dim = 0;
    int64_t outer = 1, size = 1, index = 0;
    bool operator==(const Block&) const = default;
  };
  // A Run is a number of elements that are contiguous in the whole and in what is held; whole -1:
  // past the end of a dim, where zeros are held.
  struct Run {
    int64_t whole = 0, held = 0, count = 0;
  };
  TensorType whole;
  std::vector<Block> blocks;  // each of what those before it left
  int64_t first = 0, count = 0;
  bool is_whole() const { return blocks.empty() && count == num_elements(whole.shape); }
  Run run_at(int64_t held) const;  // the run that begins at this element of what is held
  template <class Visit>
  void for_each_run(Visit visit) const {  // ascending in what is held
    for (int64_t at = 0; at < count;) {
      const Run run = run_at(at);
      if (run.whole >= 0) visit(run);
      at += run.count;
    }
  }
  bool operator==(const Held&) const = default;
};
Held held_of(const RoleProgram& role, const Tensor& tensor,
             const std::vector<int64_t>& coordinates);
// Returns the names under which a checkpoint may hold the values of a state, best first. They are
// the same under every strategy: a parameter's own and its aliases; other states' names. A version
// of a parameter ends with ".previous", ".previous2" and so on, with its age in updates; then the
// names of newer ones follow, as it begins so. A copy in 16 bits has its parameter's names.
std::vector<std::string> names_of_state(const RoleProgram& role, const Tensor& tensor);
// Returns the age that such a name states; 0: it is not that of an older version.
int64_t age_of_state(std::string_view name);
// Returns whether a checkpoint holds the state: all but copies in 16 bits, which follow from their
// parameters.
bool is_stored(const Tensor& tensor);
// "f32[4,6] block 1 of 2 of dim 0, elements [0, 6)": equal where the same elements are held.
std::string to_string(const Held& held);
// Returns what the host needs at most to stage what instructions read from it, and reports.
int64_t staging_of(const RoleProgram& role);
inline constexpr int64_t kStagedReportBytes = 64;
// Returns whether states or values are cut along dims: then sums within an op are formed in parts,
// and the bits are not those of one device.
bool cuts_dims(const RoleProgram& role);

struct WriteOptions {
  // Replace a directory that holds another plan set (never one that holds anything else).
  bool force = false;
};
// Writes the sets to `directory` all or nothing: built beside it, then renamed. `single` and
// `uncut` may be null.
Status write_plan_set(const PlanSet& set, const PlanSet* single, const PlanSet* uncut,
                      const std::string& directory, const WriteOptions& options);
// Reads and checks a set: versions, digests, ids in range, sizes, programs in SSA form. Nothing is
// believed.
Result<PlanSet> read_plan_set(const std::string& directory);
// Holds the manifest of a set, and which role each rank runs, from its manifest only: rank files
// add nothing to it. For readers that take one role at a time.
struct PlanOutline {
  std::string directory;
  Manifest manifest;
  std::vector<std::string> roles;     // digests, each once
  std::vector<int32_t> role_of_rank;  // index into roles
};
Result<PlanOutline> read_plan_outline(const std::string& directory);
Result<RoleProgram> read_role(const PlanOutline& outline, size_t role);
// Reads the header of one rank and the set it belongs to (the directory that holds the file).
struct RankPlan {
  RankHeader header;
  PlanSet set;  // with only this rank's role program read; others are empty
};
Result<RankPlan> read_rank_plan(const std::string& file);
// Maps params/init.safetensors and fills set.tensors: each is deferred, and leaves memory with the
// last copy of its made().
Status load_params(PlanSet& set);

// Checks structure only: ids and sizes in range, buffers inside the arena, programs in SSA form
// with true flags, as many args as each kind needs, waits on earlier instructions. What it accepts
// can be walked without further checks. Every plan that is read passes it.
Status check_role(const RoleProgram& role);

// Returns the canonical text form of a role program; parse_plan(print_plan(p)) prints the same.
std::string print_plan(const RoleProgram& role);
Result<RoleProgram> parse_plan(std::string_view text);

// Returns the name of the role program's file in a set: equal for equal programs.
std::string role_digest(const RoleProgram& role);
// Returns the content id of a program: equal for programs that print the same except for the label.
std::string program_digest(const Program& program);

}  // namespace piper
