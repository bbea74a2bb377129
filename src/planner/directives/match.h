// where-conditions against chunks, nodes and tasks.
#pragma once

#include <algorithm>
#include <map>
#include <span>

#include "piper/planner/directives.h"

namespace piper {

// Describes a microbatch as conditions see it: a tag of this name.
struct MicroTag {
  std::string_view name;
  int32_t number = 0;
};
// Returns whether an entry names nothing: it speaks of all that no other entry does.
template <class Entry>
bool is_of_rest(const Entry& one) {
  return !one.match && one.where.empty();
}
// By node: no parameter reaches it and it is no matrix product. It is cheaper to repeat than to
// send, so that it goes where it is read (clone.cc).
std::vector<bool> data_ops(const Graph& graph);
// Returns whether a node casts a parameter or another state: the copy is that one's, wherever it is
// read (parts.cc).
bool casts_state(const Graph& graph, const Node& node);
// Returns whether a node is an op of this name, or stands for several of which one is.
bool stands_for(const Graph& graph, const Node& node, std::string_view op);
// Returns the latest region of the producers of a node's inputs that carry the tag; kNoTag if none
// does (annotate.cc).
int32_t latest_producer(const Graph& graph, const Node& node, int tag);
// Returns the tags of tasks that a strategy may name.
std::vector<std::string> tags_to_name(const Dag& dag);
// Returns variables with what the conditions bind, if the chunk meets all of them for this
// microbatch.
Result<std::optional<Variables>> match_chunk(const Dag& dag, const Chunk& chunk, const Where& where,
                                             const Variables& variables, const MicroTag& micro);
// Returns variables with what the conditions bind, if the node's tags meet all of them for this
// microbatch. Requires conditions on tags only.
Result<std::optional<Variables>> match_node(const Graph& graph, const Node& node,
                                            const Where& where, const Variables& variables,
                                            const MicroTag& micro = {});
// Returns the tags that a node has, by name.
Variables named_tags(const Graph& graph, const Node& node);
// Holds what a `place` computes for an op: tags, and coordinates by axis.
struct PlacedAt {
  Variables tags;
  std::vector<std::pair<size_t, int64_t>> on;  // a position in the mesh, and the coordinate
};
// Returns what a `place` computes for a node that has these tags, for this microbatch; nothing if
// the node does not meet its conditions. Axes that the mesh lacks are left out: apply_place names
// them.
Result<std::optional<PlacedAt>> place_node(const Graph& graph, const Node& node, const Place& place,
                                           const Variables& variables, const Variables& tags,
                                           int32_t micro, const Mesh& mesh);
// Returns whether some forward op is among the readers of a value, and all of these meet the
// conditions; of none, that is so.
Result<bool> is_read_where(const Graph& graph, const std::vector<NodeId>& readers,
                           const Where& where, const Variables& variables);
// Where-conditions against tasks. A computation has the pass and tags of its chunk; a send, receive
// or reduction those of the tasks that make what it moves, an input or gathered parameter those of
// its readers, as far as all of them agree; a collective within a computation those of that, and
// the part of a region that its ops are.
class TaskMatcher {
 public:
  // Microbatches are called as split calls them. Requires tasks.
  TaskMatcher(const Dag& dag, const Strategy& strategy);
  Result<bool> matches(TaskId task, const Where& where, const Variables& variables) const;
  // Returns variables with what the conditions bind, if the task meets all of them.
  Result<std::optional<Variables>> bound(TaskId task, const Where& where,
                                         const Variables& variables) const;
  // Equal for tasks of equal pass and tags.
  int32_t view(TaskId task) const { return view_of_[task.index()]; }
  // Returns whether what makes or reads what the task moves is of one pass.
  bool is_of_one_pass(TaskId task) const {
    return views_[static_cast<size_t>(view(task))].pass != TaskPass::kMove;
  }
  // Returns all that match.
  Result<std::vector<TaskId>> find(const Where& where, const Variables& variables) const;
  // Says why it is no mistake that none does, "nothing: axis 'dp' has one rank"; empty: it is one.
  // `messages`: the directive is for messages only, whatever the conditions say.
  std::string excuse(const Where& where, bool messages = false) const;
  // Returns the error that none does, with what there is, at the condition on values if no task
  // carries such a one.
  Error nothing(const Where& where, const SourceSpan& at, std::string_view directive) const;

 private:
  struct View {
    TaskPass pass = TaskPass::kMove;
    std::vector<int32_t> tags;
    bool operator==(const View&) const = default;
  };
  // Returns by value whether a condition's patterns match its name, or that of the parameter whose
  // own value or gradient it is.
  Result<const std::vector<bool>*> named_by(const Condition& condition) const;
  int32_t add(const View& view);
  int32_t agreed(int32_t a, int32_t b);
  int32_t view_within(const Task& task);
  void look_at_writers(const std::vector<std::vector<TaskId>>& writers);
  void look_at_readers();

  const Dag& dag_;
  std::string micro_;
  std::vector<std::string> tags_;  // of views: those of regions, then parts that are no tasks
  std::vector<View> views_;        // distinct ones; the first has nothing
  std::vector<int32_t> view_of_;   // by task
  mutable std::map<const Condition*, std::vector<bool>> named_;  // what named_by has answered
};
// Returns whether `place` tells the parts of the split's regions apart.
bool is_placed(const Strategy& strategy, const Split& split);
// Returns the mesh axis of this name.
Result<int32_t> find_axis(const Dag& dag, const std::string& name, const SourceSpan& at,
                          std::string_view directive);
// "nothing: axis 'dp' has one rank", of a directive over it.
std::string one_rank(std::string_view axis);
// "nothing: axes 'dp', 'tp' have one rank each", so that no message goes along them; empty: there
// are none such.
std::string of_one_rank(const Dag& dag);
// "strategy.yaml:3:5", for notes: the file without its folder.
std::string place_of(const SourceSpan& at);
// "0 to 3, 8" of ascending numbers.
std::string ranges(const std::vector<int32_t>& numbers);
// "line 3" of a place in the same file as `from`; else as place_of.
std::string line_of(const SourceSpan& at, const SourceSpan& from);
// Adds to an error about a place without work which values the region tags have, and which are left
// out.
Error with_regions(Error error, const Dag& dag);
// Adds to an error about a pattern that matches none of the scopes how it would match deeper ones.
Error with_deeper(Error error, const Glob& match, std::span<const std::string> scopes);
// Returns what matches no forward op, at `at` or where the first condition is, whichever is at
// fault, with the scopes and values of tags that there are.
Error no_ops(const Graph& graph, std::string_view what, const SourceSpan& at,
             const std::optional<Glob>& match, const Where& where);
// "matches nothing", with the tags and passes there are.
Error no_match(const Dag& dag, const Where& where, const SourceSpan& at,
               std::string_view directive);

}  // namespace piper
