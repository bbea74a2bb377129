// The directive `replicate`: sums of gradients over replicas, and states that replicas share.
#include <algorithm>
#include <map>
#include <set>

#include "match.h"

namespace piper {
namespace {

struct Sums {
  int64_t count = 0, bytes = 0;
  void add(int64_t size) {
    ++count;
    bytes += size;
  }
  std::string print(const char* what) const {
    return fmt::format("{} {} ({})", count, what, human_bytes(bytes));
  }
};

std::string messages(const Replicate& replicate) {
  if (replicate.bucket_bytes == 0) return "a message each";
  return fmt::format("in messages of at least {}", human_bytes(replicate.bucket_bytes));
}

// ", in bf16 (3.4 KiB)": where gradients do not travel as they are.
std::string travelling(const Dag& dag, const Replicate& replicate, int64_t least) {
  int64_t bytes = 0;
  bool rounded = false;
  for (const Param& param : dag.graph.params) {
    if (!param.gradient.valid() || dag.graph.value(param.value).type.bytes() < least) continue;
    const TensorType& type = dag.graph.value(param.gradient).type;
    rounded = rounded || (replicate.dtype && *replicate.dtype != type.dtype);
    bytes += num_elements(type.shape) * info(replicate.dtype.value_or(type.dtype)).bytes;
  }
  if (!rounded) return "";
  return fmt::format(", in {} ({})", info(*replicate.dtype).name, human_bytes(bytes));
}

// Returns where the sum is not in rank order.
const char* order_of(const Replicate& replicate) {
  return replicate.sum == Replicate::Order::kFast ? ", by the device's own library" : "";
}

// Gradients that are cut over further axes, for they are terms of a sum over these.
std::vector<std::string> explain_further(const Dag& dag, int64_t over, int64_t least) {
  std::map<ValueId, std::vector<int32_t>> axes_of;  // by gradient
  for (const Sum& sum : dag.sums) axes_of[sum.value] = further_axes(dag, sum);
  std::map<std::vector<int32_t>, Sums> further;
  for (const Param& param : dag.graph.params) {
    const int64_t bytes = dag.graph.value(param.value).type.bytes();
    const auto axes = axes_of.find(param.gradient);
    if (axes != axes_of.end() && !axes->second.empty() && bytes >= least)
      further[axes->second].add(bytes);
  }
  std::vector<std::string> lines;
  for (const auto& [axes, sums] : further) {
    std::vector<std::string> names;
    int64_t ranks = over;
    for (int32_t axis : axes) {
      names.push_back(dag.mesh[static_cast<size_t>(axis)].name);
      ranks *= dag.mesh[static_cast<size_t>(axis)].size;
    }
    lines.push_back(fmt::format("{} of them over {} as well, into {} parts",
                                sums.print("gradients"), join(names, ", "), ranks));
  }
  return lines;
}

// Holds, of parameters that are gathered from parts, those of which that is the copy in 16 bits,
// and the bytes of all that are gathered after the update.
struct Gathered {
  Sums updated;
  std::string halves;
};
Gathered gathered_of(const Dag& dag) {
  std::map<ValueId, ValueId> master_of;
  for (const Copy& copy : dag.copies) master_of[copy.copy] = copy.master;
  std::set<ValueId> masters, halves;
  Gathered gathered;
  for (const Part& part : dag.parts) {
    if (!part.param.valid()) continue;
    const auto master = master_of.find(part.param);
    if (master != master_of.end()) halves.insert(master->second);
    if (part.gather != Gather::kUpdate) continue;
    masters.insert(master == master_of.end() ? part.param : master->second);
    gathered.updated.bytes += part.whole.bytes();
  }
  gathered.updated.count = static_cast<int64_t>(masters.size());
  if (!halves.empty()) gathered.halves = fmt::format(", {} of them in 16 bits", halves.size());
  return gathered;
}

// Returns what a directive that cuts states does to the parameters, in words.
std::vector<std::string> explain_cut(const Dag& dag, const Replicate& replicate, int64_t ranks) {
  Sums cut, whole, trained;
  for (const Param& param : dag.graph.params) {
    const int64_t bytes = dag.graph.value(param.value).type.bytes();
    const bool stays = bytes < replicate.persist_bytes;
    (stays ? whole : cut).add(bytes);
    if (!stays && param.gradient.valid()) trained.add(bytes);
  }
  std::vector<std::string> lines;
  const std::string each = replicate.reduce == Replicate::When::kMicrobatch ? "microbatch" : "step";
  lines.push_back(fmt::format("{} are reduce-scattered over {} once a {}{}, {}, on stream '{}'{}",
                              trained.print("gradients"), replicate.over.front(), each,
                              travelling(dag, replicate, replicate.persist_bytes),
                              messages(replicate), replicate.stream, order_of(replicate)));
  const auto further = explain_further(dag, ranks, replicate.persist_bytes);
  lines.insert(lines.end(), further.begin(), further.end());
  if (replicate.reduce == Replicate::When::kMicrobatch && dag.microbatches > 1)
    lines.push_back(
        "note: the single-device plan adds the same numbers in another order, microbatches before "
        "replicas, and differs by rounding: compare with the uncut one");
  lines.push_back(fmt::format(
      "each of {} ranks updates its part, with its part of the optimizer's states", ranks));
  const Gathered gathered = gathered_of(dag);
  if (!replicate.shard_parameters) {
    lines.push_back(fmt::format("{} are gathered once a step, after the update, on stream '{}'{}",
                                gathered.updated.print("parameters"), replicate.gather_stream,
                                gathered.halves));
  } else {
    const char* when[] = {"for each pass", "for each microbatch", "once a step"};
    lines.push_back(fmt::format(
        "{} live in parts{}; they are gathered {}, {} bucket{} ahead, on stream '{}'{}",
        cut.print("parameters"), dag.versions.empty() ? "" : ", those trained in two versions",
        when[static_cast<size_t>(replicate.gather)], replicate.prefetch,
        replicate.prefetch == 1 ? "" : "s", replicate.gather_stream, gathered.halves));
  }
  if (whole.count > 0)
    lines.push_back(fmt::format("{}, each below {}, stay whole", whole.print("parameters"),
                                human_bytes(replicate.persist_bytes)));
  return lines;
}

Status check_persist(const Dag& dag, const Replicate& replicate) {
  int64_t largest = 0;
  for (const Param& param : dag.graph.params)
    largest = std::max(largest, dag.graph.value(param.value).type.bytes());
  if (largest >= replicate.persist_bytes) return ok_status();
  return fail(replicate.at, "replicate: 'persist' leaves no parameter to cut")
      .with_note(fmt::format("the largest has {}, and parameters below {} stay whole",
                             human_bytes(largest), human_bytes(replicate.persist_bytes)));
}

// Returns whether each rank of the axis can update its part of what the parameter becomes: it has
// terms of a gradient. Coupled ranks may have all of it; and what forward makes of a buffer is
// whole.
bool has_parts(const Dag& dag, const Param& param, int32_t axis) {
  if (!param.gradient.valid())
    return std::none_of(dag.graph.updates.begin(), dag.graph.updates.end(),
                        [&](const StateUpdate& update) { return update.state == param.value; });
  if (!dag.mesh[static_cast<size_t>(axis)].is_coupled()) return true;
  const auto sum = std::find_if(dag.sums.begin(), dag.sums.end(),
                                [&](const Sum& each) { return each.value == param.gradient; });
  return sum == dag.sums.end() ||
         std::any_of(sum->rounds.begin(), sum->rounds.end(), [&](int32_t round) {
           const std::vector<int32_t>& axes = dag.rounds[static_cast<size_t>(round)].axes;
           return std::binary_search(axes.begin(), axes.end(), axis);
         });
}

// Decides which parameters are cut, and where their parts travel.
void cut_over(Dag& dag, const Replicate& replicate, int32_t axis) {
  Part like{.over = {axis}, .gather = static_cast<Gather>(replicate.gather)};
  if (!replicate.shard_parameters) like.gather = Gather::kUpdate;
  like.stream = stream_of(dag, replicate.gather_stream);
  like.distance = static_cast<int32_t>(replicate.prefetch);
  std::vector<Param> cut;
  for (const Param& param : dag.graph.params)
    if (dag.graph.value(param.value).type.bytes() >= replicate.persist_bytes &&
        (param.gradient.valid() || replicate.shard_parameters) && has_parts(dag, param, axis))
      cut.push_back(param);
  cut_states(dag, cut, like);
  for (Sum& sum : dag.sums)
    sum.each_micro = sum.part.valid() && replicate.reduce == Replicate::When::kMicrobatch;
}

}  // namespace

Result<Cut> couple_replicas(const Graph& step, const Strategy& strategy, Cut cut,
                            Explanations& out) {
  Status cuttable = check_batch(step, {cut.replicas, cut.microbatches, cut.at});
  if (cuttable) return cut;
  if (cut.microbatches > 1) return std::move(cuttable).error();
  for (DagAxis& axis : cut.mesh) axis.sharded |= axis.replicated;
  for (SumRound& round : cut.rounds) round.size = 1;  // of one graph
  cut.replicas = 1;
  out.push_back({strategy.replicates.front().at,
                 "replicate",
                 {"the ranks run one step together, each on its block of the samples, and exchange "
                  "inside it what samples need of each other",
                  "note: " + cuttable.error().message}});
  return cut;
}

Result<Dag> apply_replicate(Dag dag, const std::vector<Replicate>& replicates, Explanations& out) {
  for (const Replicate& replicate : replicates) {
    PIPER_ASSIGN(const int32_t axis,
                 find_axis(dag, replicate.over.front(), replicate.over_at, "replicate"));
    const int64_t ranks = dag.mesh[static_cast<size_t>(axis)].size;
    if (ranks == 1) {
      out.push_back({replicate.at, "replicate", {one_rank(replicate.over.front())}});
      continue;
    }
    dag.bucket_bytes = std::max(dag.bucket_bytes, replicate.bucket_bytes);
    const int32_t stream = stream_of(dag, replicate.stream);
    for (SumRound& round : dag.rounds)
      if (std::binary_search(round.axes.begin(), round.axes.end(), axis)) round.stream = stream;
    Explanation report{replicate.at, "replicate", {}};
    if (replicate.shard_optimizer) {
      PIPER_TRY(check_persist(dag, replicate));
      cut_over(dag, replicate, axis);
      report.lines = explain_cut(dag, replicate, ranks);
    } else {
      Sums sums;
      for (const Param& param : dag.graph.params)
        if (param.gradient.valid()) sums.add(dag.graph.value(param.gradient).type.bytes());
      report.lines.push_back(fmt::format(
          "{} are summed over {} once a step{}, {}, on stream '{}'{}", sums.print("gradients"),
          replicate.over.front(), travelling(dag, replicate, 0), messages(replicate),
          replicate.stream, order_of(replicate)));
    }
    out.push_back(std::move(report));
  }
  return dag;
}

}  // namespace piper
