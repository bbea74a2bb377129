// The directive `replicate`: sums of gradients over replicas, and states that replicas share.
#include <algorithm>
#include <map>
#include <set>

#include "match.h"
#include "piper/ir/ops.h"

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

// Lists the parameters that an entry speaks of, and says whether it cuts them first or again.
struct Spoken {
  int32_t line = -1;  // of the entry
  std::vector<Param> params;
  std::set<ValueId> values;
  std::string above;    // the axes over which their gradients are cut already; empty: none
  bool is_last = true;  // no other entry cuts what this one leaves
  bool is_of_any =
      false;  // also of parameters that `shard` cuts over its axes, which it leaves out
};

// Returns the gradients of an entry that travel in blocks: those that it cuts.
Sums reduced_in_blocks(const Dag& dag, const Spoken& spoken, const Replicate& replicate) {
  Sums reduced;
  for (const Sum& sum : dag.sums) {
    const bool is_its = std::ranges::any_of(
        spoken.params, [&](const Param& param) { return param.gradient == sum.value; });
    for (size_t r = 0; is_its && r < sum.cut_rounds(); ++r) {
      const SumRound& round = dag.rounds[static_cast<size_t>(sum.rounds[r])];
      if (round.line != spoken.line || round.scaled == Scaled::kNone) continue;
      const ValueId term = r == 0 ? sum.value : sum.run_after(r - 1);
      reduced.add(replicate.reduce_in.bytes(num_elements(dag.graph.value(term).type.shape)));
    }
  }
  return reduced;
}

// ", in bf16 (3.4 KiB)": where gradients do not travel as they are.
std::string travelling(const Dag& dag, const Spoken& spoken, const Replicate& replicate,
                       int64_t least) {
  int64_t bytes = 0;
  bool rounded = false;
  for (const Param& param : spoken.params) {
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

std::string names_of(const Dag& dag, const std::vector<int32_t>& axes) {
  std::vector<std::string> names;
  for (const int32_t axis : axes) names.push_back(dag.mesh[static_cast<size_t>(axis)].name);
  return join(names, ", ");
}

// Gradients that are cut over further axes, for they are terms of a sum over these.
std::vector<std::string> explain_further(const Dag& dag, const Spoken& spoken, int64_t over,
                                         int64_t least) {
  std::map<ValueId, std::vector<int32_t>> axes_of;  // by gradient
  for (const Sum& sum : dag.sums) axes_of[sum.value] = further_axes(dag, sum);
  std::map<std::vector<int32_t>, Sums> further;
  for (const Param& param : spoken.params) {
    const int64_t bytes = dag.graph.value(param.value).type.bytes();
    const auto axes = axes_of.find(param.gradient);
    if (axes != axes_of.end() && !axes->second.empty() && bytes >= least)
      further[axes->second].add(bytes);
  }
  std::vector<std::string> lines;
  for (const auto& [axes, sums] : further) {
    int64_t ranks = over;
    for (const int32_t axis : axes) ranks *= dag.mesh[static_cast<size_t>(axis)].size;
    lines.push_back(fmt::format("{} of them over {} as well, into {} parts",
                                sums.print("gradients"), names_of(dag, axes), ranks));
  }
  return lines;
}

// Holds, of parameters that are gathered from parts, those of which that is the copy in 16 bits,
// and the bytes of all that are gathered after the update.
struct Gathered {
  Sums updated;
  std::string halves;
};
Gathered gathered_of(const Dag& dag, const Spoken& spoken) {
  std::map<ValueId, ValueId> master_of;
  for (const Copy& copy : dag.copies) master_of[copy.copy] = copy.master;
  std::set<ValueId> masters, halves;
  Gathered gathered;
  for (const Part& part : dag.parts) {
    if (!part.param.valid() || part.within.valid()) continue;
    const auto master = master_of.find(part.param);
    if (!spoken.values.contains(master == master_of.end() ? part.param : master->second)) continue;
    if (master != master_of.end()) halves.insert(master->second);
    if (part.gather != Gather::kUpdate) continue;
    masters.insert(master == master_of.end() ? part.param : master->second);
    gathered.updated.bytes += part.whole.bytes();
  }
  gathered.updated.count = static_cast<int64_t>(masters.size());
  if (!halves.empty()) gathered.halves = fmt::format(", {} of them in 16 bits", halves.size());
  return gathered;
}

const char* change_of(Scaled type) {
  return type == Scaled::kInt8 ? "1/254 of the largest of these"
                               : "1/16 of itself, or 2^-18 of the largest of these";
}

// Says how parameters travel in blocks of 8 bits.
std::string explain_blocks(const Dag& dag, const Spoken& spoken, const Replicate& replicate) {
  int64_t bytes = 0;
  size_t count = 0;
  for (const Part& part : dag.parts) {
    if (part.scaled == Scaled::kNone || !part.param.valid()) continue;
    const bool is_own = std::ranges::any_of(dag.copies, [&](const Copy& copy) {
      return copy.copy == part.param && spoken.values.contains(copy.master);
    });
    if (!is_own && !spoken.values.contains(part.param)) continue;
    bytes += replicate.gather_in.bytes(num_elements(part.whole.shape));
    ++count;
  }
  return fmt::format(
      "note: {} of them travel in {} ({}), rounded: {} elements of a part have one scale, and each "
      "differs by at most {}; the optimizer has them as they were",
      count, kScaledNames[static_cast<size_t>(replicate.gather_in.type)], human_bytes(bytes),
      replicate.gather_in.block, change_of(replicate.gather_in.type));
}

// Returns the gradients whose terms on ranks of other axes are added up before they are rounded, by
// these axes.
std::map<std::vector<int32_t>, Sums> added_before(const Dag& dag, const Spoken& spoken) {
  std::map<std::vector<int32_t>, Sums> added;
  for (const Sum& sum : dag.sums) {
    if (sum.cut_rounds() < 2) continue;
    const SumRound& first = dag.rounds[static_cast<size_t>(sum.rounds[0])];
    const SumRound& second = dag.rounds[static_cast<size_t>(sum.rounds[1])];
    if (first.line >= 0 || second.line != spoken.line) continue;
    added[first.axes].add(dag.graph.value(sum.value).type.bytes());
  }
  return added;
}

// Says how gradients travel in blocks of 8 bits.
std::string explain_reduced(const Dag& dag, const Spoken& spoken, const Replicate& replicate) {
  const Sums reduced = reduced_in_blocks(dag, spoken, replicate);
  std::string before;
  for (const auto& [axes, sums] : added_before(dag, spoken))
    before += fmt::format("; {} are first summed over {}, not rounded", sums.print("of them"),
                          names_of(dag, axes));
  return fmt::format(
      "note: {} of them travel in {} ({}), rounded: {} elements of a term have one scale, and each "
      "differs by at most {}; their sums are not rounded{}",
      reduced.count, kScaledNames[static_cast<size_t>(replicate.reduce_in.type)],
      human_bytes(reduced.bytes), replicate.reduce_in.block, change_of(replicate.reduce_in.type),
      before);
}

// Says how many messages gradients are where nothing joins them.
std::vector<std::string> note_on_messages(const Dag& dag, const Spoken& spoken,
                                          const Replicate& replicate) {
  constexpr int64_t kMany = 16, kSmall = 1 << 20;
  Sums sums;
  for (const Param& param : spoken.params)
    if (param.gradient.valid()) sums.add(dag.graph.value(param.gradient).type.bytes());
  if (replicate.bucket_bytes > 0 || sums.count < kMany || sums.bytes / sums.count >= kSmall)
    return {};
  return {fmt::format(
      "note: {} are {} messages over {}, of {} on average: 'bucket: 25MiB' joins those that are "
      "ready together",
      sums.print("gradients"), sums.count, join(replicate.over, ", "),
      human_bytes(sums.bytes / sums.count))};
}

// Returns what a directive that cuts states does to the parameters, in words.
std::vector<std::string> explain_cut(const Dag& dag, const Spoken& spoken,
                                     const Replicate& replicate, int64_t ranks) {
  Sums cut, whole, trained;
  for (const Param& param : spoken.params) {
    const int64_t bytes = dag.graph.value(param.value).type.bytes();
    const bool stays = bytes < replicate.persist_bytes;
    (stays ? whole : cut).add(bytes);
    if (!stays && param.gradient.valid()) trained.add(bytes);
  }
  std::vector<std::string> lines;
  const std::string each = replicate.reduce == Replicate::When::kMicrobatch ? "microbatch" : "step";
  if (trained.count > 0)
    lines.push_back(fmt::format("{} are reduce-scattered over {} once a {}{}, {}, on stream '{}'{}",
                                trained.print("gradients"), join(replicate.over, ", "), each,
                                travelling(dag, spoken, replicate, replicate.persist_bytes),
                                messages(replicate), replicate.stream, order_of(replicate)));
  if (replicate.reduce_in.any()) lines.push_back(explain_reduced(dag, spoken, replicate));
  const auto further = explain_further(dag, spoken, ranks, replicate.persist_bytes);
  lines.insert(lines.end(), further.begin(), further.end());
  const bool rounds =
      std::ranges::any_of(dag.sums, [&](const Sum& sum) { return rounds_in_micros(dag, sum); });
  if (replicate.reduce == Replicate::When::kMicrobatch && dag.microbatches > 1 && !rounds)
    lines.push_back(
        "note: the single-device plan adds the same numbers in another order, microbatches before "
        "replicas, and differs by rounding: compare with the uncut one");
  if (spoken.is_last && trained.count > 0)
    lines.push_back(fmt::format(
        "each of {} ranks updates its part, with its part of the optimizer's states", ranks));
  const Gathered gathered = gathered_of(dag, spoken);
  if (!replicate.shard_parameters) {
    const bool in_blocks = replicate.gather_in.any();
    lines.push_back(fmt::format("{} are gathered once a step, {} the update, on stream '{}'{}",
                                (in_blocks ? trained : gathered.updated).print("parameters"),
                                in_blocks ? "before they are read, not after" : "after",
                                replicate.gather_stream, gathered.halves));
  } else {
    const char* when[] = {"for each pass", "for each microbatch", "once a step"};
    lines.push_back(fmt::format(
        "{} live in parts{}; they are gathered {}, {} bucket{} ahead, on stream '{}'{}",
        cut.print("parameters"), dag.versions.empty() ? "" : ", those trained in all versions",
        when[static_cast<size_t>(replicate.gather)], replicate.prefetch,
        replicate.prefetch == 1 ? "" : "s", replicate.gather_stream, gathered.halves));
  }
  if (replicate.gather_in.any() && spoken.above.empty())
    lines.push_back(explain_blocks(dag, spoken, replicate));
  if (whole.count > 0)
    lines.push_back(fmt::format("{}, each below {}, stay whole", whole.print("parameters"),
                                human_bytes(replicate.persist_bytes)));
  return lines;
}

// Says which sums are scattered once more, and when.
std::string explain_scattered(const Spoken& spoken, const Replicate& replicate, const Dag& dag) {
  Sums trained;
  for (const Param& param : spoken.params)
    if (param.gradient.valid()) trained.add(dag.graph.value(param.value).type.bytes());
  return fmt::format(
      "{}, cut over {}, are reduce-scattered over {} once a step{}, {}, on stream "
      "'{}'{}",
      trained.print("gradients"), spoken.above, join(replicate.over, ", "),
      travelling(dag, spoken, replicate, 0), messages(replicate), replicate.stream,
      order_of(replicate));
}

// Says how an entry cuts again what another one has cut.
std::vector<std::string> explain_nested(const Spoken& spoken, const Replicate& replicate,
                                        const Dag& dag, int64_t ranks) {
  const std::string over = join(replicate.over, ", ");
  std::vector<std::string> lines{
      explain_scattered(spoken, replicate, dag),
      fmt::format("each of {} ranks with the same part over {} updates its part of that, with "
                  "its part of the optimizer's states",
                  ranks, spoken.above),
      fmt::format("parts of parameters are gathered over {} once a step, after the update, on "
                  "stream '{}'",
                  over, replicate.gather_stream)};
  if (!spoken.is_last) lines.erase(lines.begin() + 1);
  if (replicate.reduce_in.any())
    lines.insert(lines.begin() + 1, explain_reduced(dag, spoken, replicate));
  return lines;
}

Status check_persist(const Dag& dag, const Spoken& spoken, const Replicate& replicate) {
  int64_t largest = 0;
  for (const Param& param : spoken.params)
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
  if (dag.mesh[static_cast<size_t>(axis)].twins)
    return std::ranges::any_of(
        dag.sums, [&](const Sum& sum) { return sum.value == param.gradient && !sum.twin.empty(); });
  if (std::ranges::any_of(dag.graph.value(param.value).over, [&](const AxisLayout& lies) {
        return lies.axis == axis && lies.layout.kind == LayoutKind::kSharded;
      }))
    return false;
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

// Returns the axes of an entry that have more than one rank.
std::vector<int32_t> axes_of_many(const Dag& dag, const Replicate& replicate) {
  std::vector<int32_t> axes;
  for (size_t a = 0; a < dag.mesh.size(); ++a)
    if (replicate.is_over(dag.mesh[a].name) && dag.mesh[a].size > 1)
      axes.push_back(static_cast<int32_t>(a));
  return axes;
}

// Returns how an entry cuts states: the first that does may send them in blocks of fewer bits.
Part level_of(Dag& dag, const Replicate& one, bool is_first) {
  Part level{.over = axes_of_many(dag, one), .gather = static_cast<Gather>(one.gather)};
  const bool in_blocks = one.gather_in.any() && is_first;
  if (in_blocks) level.scaled = one.gather_in.type, level.block = one.gather_in.block;
  // What is rounded to travel is no state.
  if (!one.shard_parameters) level.gather = in_blocks ? Gather::kStep : Gather::kUpdate;
  level.stream = stream_of(dag, one.gather_stream);
  level.distance = static_cast<int32_t>(one.prefetch);
  level.bucket = one.bucket_bytes;
  return level;
}

// Returns over which axes a parameter and its states are cut, and where the parts travel: by the
// entries that speak of it, in their order. No levels: it stays whole.
StateCut cut_of(Dag& dag, const Param& param, const std::vector<size_t>& lines,
                const std::vector<Replicate>& replicates) {
  StateCut cut{.param = param};
  for (const size_t line : lines) {
    const Replicate& one = replicates[line];
    const std::vector<int32_t> axes = axes_of_many(dag, one);
    if (axes.empty()) continue;
    const bool cuts =
        one.shard_optimizer && (param.gradient.valid() || one.shard_parameters) &&
        dag.graph.value(param.value).type.bytes() >= one.persist_bytes &&
        std::ranges::all_of(axes, [&](int32_t axis) { return has_parts(dag, param, axis); });
    if (!cuts) break;
    Part level = level_of(dag, one, cut.levels.empty());
    if (cut.levels.empty()) cut.each_micro = one.reduce == Replicate::When::kMicrobatch;
    cut.levels.push_back(std::move(level));
  }
  return cut;
}

// Muon and Adafactor look at whole tensors, which they gather over axes whose ranks run one
// program. `how`: in which other way they are cut; `by`: the entry that says so.
Status check_whole(const Dag& dag, const StateCut& cut, const Replicate& by,
                   const std::string& how) {
  for (const StateUpdate& update : dag.graph.updates) {
    if (update.state != cut.param.value) continue;
    const std::string& op = dag.graph.node(dag.graph.value(update.next).producer).op;
    if (find_op(op)->directed)
      return fail(
                 by.shard_at,
                 "not supported: states of '{}' that are cut over {}, with an optimizer that looks "
                 "at whole tensors ({})",
                 quote_control(cut.param.name), how, op)
          .with_note("help: cut them over axes of the mesh that 'place' does not use");
  }
  return ok_status();
}
Status check_levels(const Dag& dag, const StateCut& cut, const Replicate& by) {
  for (const Part& level : cut.levels)
    for (const int32_t axis : level.over)
      if (dag.mesh[static_cast<size_t>(axis)].twins)
        return check_whole(dag, cut, by, "the places of a stage");
  return ok_status();
}

Status cut_all(Dag& dag, const std::vector<Replicate>& replicates, const Cut& from) {
  std::vector<StateCut> cuts;
  for (const Param& param : dag.graph.params) {
    const std::vector<size_t>& lines = from.lines_of.at(param.name);
    StateCut cut = cut_of(dag, param, lines, replicates);
    if (cut.levels.empty()) continue;
    if (cut.levels.size() == 1) {
      const auto first = std::ranges::find_if(
          lines, [&](size_t line) { return !axes_of_many(dag, replicates[line]).empty(); });
      PIPER_TRY(check_levels(dag, cut, replicates[*first]));
    } else {
      const auto second = std::ranges::find_if(lines.begin() + 1, lines.end(), [&](size_t line) {
        return !axes_of_many(dag, replicates[line]).empty();
      });
      PIPER_TRY(check_levels(dag, cut, replicates[lines.front()]));
      for (auto line = second; line != lines.end(); ++line) {
        const Replicate& again = replicates[*line];
        if (again.gather_in.any())
          return fail(again.gather_dtype_at,
                      "not supported: parts of parts that travel in {}: those of '{}' are put "
                      "together as the optimizer has them",
                      kScaledNames[static_cast<size_t>(again.gather_in.type)],
                      quote_control(cut.param.name))
              .with_note(fmt::format(
                  "help: `gather` of the entry over [{}] rounds what travels over that; without "
                  "its `shard`, the entry over [{}] gathers whole parameters, which may be rounded",
                  join(replicates[lines.front()].over, ", "), join(again.over, ", ")));
      }
    }
    cuts.push_back(std::move(cut));
  }
  cut_states(dag, cuts);
  return ok_status();
}

// Returns what a line speaks of.
Spoken spoken_of(const Dag& dag, const std::vector<Replicate>& replicates, size_t line,
                 const Cut& cut) {
  Spoken spoken{.line = static_cast<int32_t>(line)};
  Axes above;
  for (const Param& param : dag.graph.params) {
    const std::vector<size_t>& lines = cut.lines_of.at(param.name);
    const auto own = std::ranges::find(lines, line);
    if (own == lines.end()) continue;
    spoken.is_of_any = true;
    const std::vector<int32_t> axes = axes_of_many(dag, replicates[line]);
    const auto sums = [&](int32_t axis) { return has_parts(dag, param, axis); };
    if (param.gradient.valid() && !axes.empty() && std::ranges::none_of(axes, sums)) continue;
    spoken.params.push_back(param);
    spoken.values.insert(param.value);
    const auto cuts = [&](size_t other) {
      return replicates[other].shard_optimizer && !axes_of_many(dag, replicates[other]).empty();
    };
    for (auto before = lines.begin(); before != own; ++before)
      for (const std::string& axis : replicates[*before].over)
        if (cuts(*before) && std::ranges::count(above, axis) == 0) above.push_back(axis);
    spoken.is_last = spoken.is_last && std::none_of(own + 1, lines.end(), cuts);
  }
  spoken.above = join(above, ", ");
  return spoken;
}

}  // namespace

Result<Dag> apply_replicate(Dag dag, const std::vector<Replicate>& replicates, const Cut& cut,
                            Explanations& out) {
  std::vector<Spoken> spoken;
  for (size_t line = 0; line < replicates.size(); ++line) {
    const Replicate& replicate = replicates[line];
    spoken.push_back(spoken_of(dag, replicates, line, cut));
    for (const std::string& axis : replicate.over)
      PIPER_TRY(find_axis(dag, axis, replicate.over_at, "replicate"));
    if (axes_of_many(dag, replicate).empty()) continue;
    const int32_t stream = stream_of(dag, replicate.stream);
    for (SumRound& round : dag.rounds)
      if (round.line == static_cast<int32_t>(line)) round.stream = stream;
    if (replicate.is_of_some() && spoken[line].is_of_any && spoken[line].params.empty())
      return fail(replicate.at, "replicate: no gradient that it names is summed over {}",
                  join(replicate.over, ", "))
          .with_note("'shard' cuts these parameters over it, so that each rank has its own part")
          .with_note("help: leave one of the two out, or let them name different parameters");
    if (!replicate.shard_optimizer || spoken[line].params.empty()) continue;
    PIPER_TRY(check_persist(dag, spoken[line], replicate));
    stream_of(dag, replicate.gather_stream);
  }
  PIPER_TRY(cut_all(dag, replicates, cut));
  for (size_t line = 0; line < replicates.size(); ++line) {
    const Replicate& replicate = replicates[line];
    const Spoken& of = spoken[line];
    Explanation report{replicate.at, "replicate", {}};
    int64_t ranks = 1;
    for (const int32_t axis : axes_of_many(dag, replicate))
      ranks *= dag.mesh[static_cast<size_t>(axis)].size;
    if (replicate.reduce_in.any() && ranks > 1 && reduced_in_blocks(dag, of, replicate).count == 0)
      return fail(replicate.dtype_at, "no gradient travels in {}",
                  kScaledNames[static_cast<size_t>(replicate.reduce_in.type)])
          .with_note(
              "those that are not cut travel as they are, and so do sums over ranks none "
              "of which are replicas");
    if (ranks == 1) {
      report.lines = {one_rank(replicate.over.front())};
    } else if (of.params.empty()) {
      report.lines = {of.is_of_any ? "nothing: `shard` cuts all parameters over it"
                                   : "nothing: other entries speak of all parameters"};
    } else if (replicate.shard_optimizer) {
      report.lines = of.above.empty() ? explain_cut(dag, of, replicate, ranks)
                                      : explain_nested(of, replicate, dag, ranks);
    } else {
      Sums sums;
      for (const Param& param : of.params)
        if (param.gradient.valid()) sums.add(dag.graph.value(param.gradient).type.bytes());
      report.lines.push_back(fmt::format(
          "{} are summed over {} once a step{}, {}, on stream '{}'{}", sums.print("gradients"),
          join(replicate.over, ", "), travelling(dag, of, replicate, 0), messages(replicate),
          replicate.stream, order_of(replicate)));
    }
    if (ranks > 1)
      for (std::string& line : note_on_messages(dag, of, replicate))
        report.lines.push_back(std::move(line));
    out.push_back(std::move(report));
  }
  return dag;
}

}  // namespace piper
