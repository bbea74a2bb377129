// Makes a Dag in two steps, and says how the tasks of a cell are ordered. What stands about a Dag
// in several rooms is here, too.
#pragma once

#include <array>
#include <map>
#include <set>

#include "piper/planner/dag.h"

namespace piper {

// Says by parameter how what microbatches read of it travels in blocks, and its gradient, by the
// `replicate` entry whose round this is.
struct InBlocksOf {
  std::map<std::string, PartsInBlocks> read;
  std::map<std::string, std::map<int32_t, PartsInBlocks>> reduced;
};

struct DagSpec {
  std::vector<DagAxis> mesh;
  std::vector<std::string> region_tags;
  int64_t tokens = -1;  // see Dag
  int64_t microbatches = 1, replicas_in_turn = 1;
  std::vector<SumRound> rounds;                            // over replicas, as sums go through them
  std::map<std::string, std::vector<SumRound>> rounds_of;  // by parameter: as its gradient does
  // See Dag.
  bool split_backward = false, split_recompute = false, split_update = false, split_sums = false;
  std::vector<int32_t> group_of;                   // of another plan: sums are formed as there
  std::map<std::string, int64_t> weight_versions;  // see Version; by parameter: of those with two
  bool steps_overlap = false;  // tasks of the next step run before this one ends
  InBlocksOf in_blocks;        // of a plan that sends nothing: it rounds as one that does
  bool keeps_copies = true;    // of parameters that microbatches cast (Dag::copies)
  std::optional<std::set<std::string>> copies;  // no others than these
  std::map<std::string, TrainedPart> trained;   // by parameter
  Variants variants;
  int64_t twins = 1, twin_stride = 1;                   // see Dag
  std::map<std::string, std::vector<int32_t>> twin_of;  // of another plan, by name: see Sum::twin
  std::set<std::string> each_micro;                     // likewise: see Sum::each_micro
};

// Requires a sharded graph. Trained parameters of f32 that microbatches cast to 16 bits are kept
// so, too (Dag::copies), and no chunk casts them but that of their update. Ensures chunks in a
// topological order, each node of passes F, BI, BW in exactly one of them for each variant
// (chunks of kPrepare hold copies of what they need). Error: regions that need each other in a
// circle, naming the ops.
Result<Dag> make_dag(Graph graph, const DagSpec& spec);

// Says how the states of a parameter are cut: over the axes of the first level, which its
// gradient's first round goes over, and of the further axes of that sum; and each run again over
// those of the next level. Of each: when and how the parameter is put together. If the first one's
// is Gather::kUpdate, microbatches read it whole; else they gather the runs of the first level.
struct StateCut {
  Param param;
  std::vector<Part> levels;
  bool each_micro = false;  // gradients go through the first round in every microbatch
};
// The optimizers then work on the runs of the last level, and so do their sums end.
void cut_states(Dag& dag, const std::vector<StateCut>& cuts);
// Lets a section work on the runs of parameters, by name, that the `step` keeps of them, and its
// other states be runs as those are. Requires updates that are made element by element.
void keep_runs(Dag& section, const Dag& step, const std::map<std::string, Part>& runs);

// Says where the coordinates of an axis lie on two: that of the places of a stage, and what is left
// of it.
struct TwinFold {
  int32_t twins = -1, axis = -1;           // of the mesh; -1: nothing is folded
  std::vector<std::array<int32_t, 2>> at;  // by coordinate
};
// Finds, in a Dag whose chunks have their places, which devices have equal stages, and for each
// gradient at which of them it is added up (Sum::twin); one that other devices add to, too, has no
// round over them. Error: stages that are not on `twins` devices each, or on those of others.
Result<TwinFold> find_twins(Dag& dag);
// Numbers cells on both axes.
void fold_twins(Dag& dag, const TwinFold& fold);

// Keeps of a Dag of chunks what the loss and its weight need: the forward pass, where it is placed,
// with parameters as they are kept. Nothing is updated. Requires one version of the weights.
Dag forward_only(Dag dag);

// Requires that cells and every chunk's cell are set. Ensures items and tasks in a topological
// order.
Result<Dag> expand_tasks(Dag dag);

// Lists the compute tasks of one cell in the order wanted. In an overlap, tasks [first, second) and
// [second, end) have no order between them.
struct Overlap {
  int32_t first = 0, second = 0, end = 0;
};
struct ComputeOrder {
  std::vector<TaskId> tasks;
  std::vector<Overlap> overlaps;  // ascending: positions in `tasks`, or in `body` if there is one
  std::vector<int32_t> apart;     // of these, whose halves' collectives have streams of their own
  std::vector<int32_t> wholes;  // ascending: positions of a BI that its BW follows as one backward
  // Where steps overlap, by position in `tasks`: how many steps ahead of the one under way a steady
  // step runs the task. Descends. Past its end: none.
  std::vector<int32_t> ahead;
  int32_t ahead_of(int32_t i) const {
    return static_cast<size_t>(i) < ahead.size() ? ahead[static_cast<size_t>(i)] : 0;
  }
  // Unless empty: positions in `tasks` in the order in which a steady step runs them, those of
  // later steps between its own.
  std::vector<int32_t> body;
  // Where the strategy names each task, by position in `tasks`: an index of `places`; and the '&'
  // of each overlap. Empty: nowhere.
  std::vector<int32_t> named_at, pair_at;
  std::vector<SourceSpan> places;
};

// Returns the type of all that the ranks of its mesh axes hold of a value, of which each has this
// much.
TensorType uncut(const Dag& dag, const Value& value, TensorType held);
// Returns whether the task puts parameters together that live in parts, each time that they are
// used: its distance counts such messages.
bool gathers_parameters(const Dag& dag, const Task& task);
// Returns the path up to the first number: "model/h/2" of "model/h/2/mlp/fc"; all of it without a
// number.
std::string_view layer_of(std::string_view scope);
// Returns the axes over which contributions to the sum are terms beside those of replicas,
// ascending.
std::vector<int32_t> further_axes(const Dag& dag, const Sum& sum);
// Returns whether the sum is rounded in every microbatch, on the way over replicas.
bool rounds_in_micros(const Dag& dag, const Sum& sum);
// Returns the stream of this name, added if there is none.
int32_t stream_of(Dag& dag, const std::string& name);
// Returns the mesh axes of a collective of the graph, in the order of its ranks.
std::vector<int32_t> mesh_axes_of(const Node& collective);
// Returns for each item the tasks that write it (several for accumulators), ascending.
std::vector<std::vector<TaskId>> writers(const Dag& dag);
// "F stage=1 mb=3"; of several microbatches "… mb=3..5".
std::string print_label(const Dag& dag, const Task& task);
// "%name@microbatch/cell", without the parts that do not apply.
std::string print_item(const Dag& dag, ItemId id);

// Prints the canonical text form, without the graph: chunks name nodes by their first output.
std::string print_dag(const Dag& dag);

}  // namespace piper
