// Which `replicate` entries speak of which parameter, and in which order gradients are summed over
// the axes of replicas.
#include <algorithm>

#include "match.h"
#include "piper/plan/sites.h"

namespace piper {
namespace {

// Counts the kinds of state that an entry cuts.
int kinds_of(const Replicate& one) {
  return one.shard_optimizer + one.shard_gradients + one.shard_parameters;
}

class LineFinder {
 public:
  LineFinder(const Graph& step, const Strategy& strategy, const Variables& variables, Cut& cut)
      : graph_(step),
        replicates_(strategy.replicates),
        has_sites_(!strategy.local_steps.empty()),
        variables_(variables),
        cut_(cut) {}

  // Returns the entries that speak of a parameter, in their order.
  std::vector<size_t> lines_of(size_t p, const std::vector<size_t>& others) const {
    std::vector<size_t> lines = named_[p];
    for (const size_t r : others)
      if (std::ranges::none_of(named_[p], [&](size_t named) { return meet(named, r); }))
        lines.push_back(r);
    return in_order(lines);
  }

  Status run() {
    find_strides();
    std::vector<size_t> others;  // entries without names, for sums of no parameter
    for (size_t r = 0; r < replicates_.size(); ++r)
      if (!replicates_[r].is_of_some()) others.push_back(r);
    PIPER_TRY(check_nested(in_order(others), ""));
    cut_.rounds = rounds_of(others);
    PIPER_TRY(find_named());
    for (size_t p = 0; p < graph_.params.size(); ++p) {
      std::vector<size_t> lines = lines_of(p, others);
      const std::string& name = graph_.params[p].name;
      PIPER_TRY(check_nested(lines, fmt::format(" of '{}'", quote_control(name))));
      cut_.rounds_of[name] = rounds_of(lines);
      if (const auto site = has_sites_ ? site_of(name) : std::nullopt)
        cut_.lines_of[std::string(site->name)] = lines;  // in an evaluation
      cut_.lines_of[name] = std::move(lines);
    }
    return ok_status();
  }

 private:
  // Replicas are numbered along the mesh, those of its last axis fastest.
  void find_strides() {
    stride_.resize(cut_.mesh.size());
    int64_t stride = 1;
    for (size_t a = cut_.mesh.size(); a-- > 0;) {
      stride_[a] = stride;
      if (cut_.mesh[a].replicated && !cut_.mesh[a].is_coupled()) stride *= cut_.mesh[a].size;
    }
  }

  bool meet(size_t a, size_t b) const {
    return std::ranges::any_of(
        replicates_[a].over, [&](const std::string& axis) { return replicates_[b].is_over(axis); });
  }

  Status find_params_of(size_t r, const std::vector<std::vector<NodeId>>& all) {
    const Replicate& one = replicates_[r];
    bool matches = false;
    for (size_t p = 0; p < graph_.params.size(); ++p) {
      const Param& param = graph_.params[p];
      if (one.match && !has_name(param, *one.match)) continue;
      PIPER_ASSIGN(const bool met,
                   is_read_where(graph_, all[param.value.index()], one.where, variables_));
      if (!met) continue;
      matches = true;
      for (const size_t other : named_[p])
        if (meet(other, r)) return twice(param, replicates_[other], one);
      named_[p].push_back(r);
    }
    if (!matches) return no_parameter(one);
    return ok_status();
  }

  // ---- Which parameters an entry names ----
  Status find_named() {
    named_.resize(graph_.params.size());
    const auto all = readers(graph_);
    for (size_t r = 0; r < replicates_.size(); ++r) {
      if (replicates_[r].is_of_some()) PIPER_TRY(find_params_of(r, all));
    }
    return ok_status();
  }

  static Error twice(const Param& param, const Replicate& first, const Replicate& second) {
    return fail(second.at, "replicate: two entries speak of '{}', over [{}] and over [{}]",
                quote_control(param.name), join(first.over, ", "), join(second.over, ", "))
        .with_note(fmt::format("the other one is at {}", place_of(first.at)))
        .with_note("help: a pattern with '!' takes out what another entry names");
  }

  Error no_parameter(const Replicate& one) const {
    std::vector<std::string> all;
    for (const Param& param : graph_.params)
      std::ranges::move(paths_of(param), std::back_inserter(all));
    const std::string pattern = one.match ? one.match->pattern() : "";
    Error error = one.match
                      ? fail(one.at, "replicate: no parameter matches '{}'{}{}",
                             quote_control(pattern), one.where.empty() ? "" : " and 'where'",
                             did_you_mean(pattern.substr(0, pattern.find(", ")), all))
                      : fail(one.at, "replicate: no parameter is read only where 'where' says");
    error.notes.push_back("help: `piperc MODEL --describe` lists parameters");
    return error;
  }

  // ---- Sums ----
  std::vector<size_t> axes_of(const Replicate& one) const {
    std::vector<size_t> axes;
    for (size_t a = 0; a < cut_.mesh.size(); ++a)
      if (one.is_over(cut_.mesh[a].name)) axes.push_back(a);
    return axes;
  }

  // States that are cut by more come first: what the first leaves of a gradient, the next ones cut
  // again. Equals are in the order of the mesh, its last axis first.
  std::vector<size_t> in_order(std::vector<size_t> lines) const {
    std::ranges::sort(lines, [&](size_t a, size_t b) {
      const auto key = [&](size_t r) {
        return std::pair(kinds_of(replicates_[r]), axes_of(replicates_[r]).back());
      };
      return key(a) > key(b);
    });
    return lines;
  }

  // Checks entries in their order: the first one alone cuts parameters, and sums in each
  // microbatch.
  Status check_nested(const std::vector<size_t>& lines, const std::string& of) const {
    for (size_t i = 1; i < lines.size(); ++i) {
      const Replicate &first = replicates_[lines[0]], &one = replicates_[lines[i]];
      const auto refuse = [&](const char* what) {
        return fail(one.shard_at, "not supported: {}{} that are cut over [{}] and then over [{}]",
                    what, of, join(first.over, ", "), join(one.over, ", "))
            .with_note(fmt::format("the other entry is at {}", place_of(first.at)));
      };
      if (one.shard_parameters)
        return refuse("parameters")
            .with_note(fmt::format("help: 'over: [{}, {}]' in one entry cuts them over both, or "
                                   "leave 'parameters' out of one",
                                   join(one.over, ", "), join(first.over, ", ")));
      if (one.reduce == Replicate::When::kMicrobatch)
        return refuse("gradients, summed in each microbatch,")
            .with_note("help: 'per_microbatch' is for the entry that cuts most kinds of state");
    }
    return ok_status();
  }

  SumRound round_over(size_t line, const std::vector<size_t>& axes) const {
    const Replicate& one = replicates_[line];
    SumRound round{.line = static_cast<int32_t>(line)};
    round.dtype = one.dtype;
    if (one.reduce_in.any()) round.scaled = one.reduce_in.type, round.block = one.reduce_in.block;
    round.fast = one.sum == Replicate::Order::kFast;
    round.bucket = one.bucket_bytes, round.slice = one.slice_bytes;
    for (const size_t a : axes) {
      if (cut_.mesh[a].size == 1) continue;
      round.axes.push_back(static_cast<int32_t>(a));
      if (!cut_.mesh[a].is_coupled()) round.size *= cut_.mesh[a].size;
      if (cut_.mesh[a].twins) round.twins = cut_.mesh[a].size;
      round.stride = stride_[a];
    }
    return round;
  }

  std::vector<SumRound> rounds_of(const std::vector<size_t>& lines) const {
    std::vector<SumRound> rounds;
    std::vector<bool> taken(cut_.mesh.size());
    const auto add = [&](size_t line, const std::vector<size_t>& axes, bool cuts) {
      for (const size_t a : axes) taken[a] = true;
      SumRound round = round_over(line, axes);
      round.cuts = cuts && !rounds.empty();
      if (!round.axes.empty()) rounds.push_back(std::move(round));
    };
    for (const size_t line : in_order(lines))
      add(line, axes_of(replicates_[line]), replicates_[line].shard_optimizer);
    // Over the axes of other entries gradients are summed whole.
    for (size_t a = cut_.mesh.size(); a-- > 0;)
      for (size_t r = 0; r < replicates_.size() && !taken[a]; ++r)
        if (replicates_[r].is_over(cut_.mesh[a].name)) add(r, {a}, false);
    return rounds;
  }

  const Graph& graph_;
  const std::vector<Replicate>& replicates_;
  const bool has_sites_;
  const Variables& variables_;
  Cut& cut_;
  std::vector<int64_t> stride_;             // by axis, of replicas
  std::vector<std::vector<size_t>> named_;  // by parameter: the entries that name it
};

}  // namespace

Result<Cut> choose_replicas(const Graph& step, const Strategy& strategy, const Variables& variables,
                            Cut cut) {
  PIPER_TRY(LineFinder(step, strategy, variables, cut).run());
  return cut;
}

Result<Cut> couple_replicas(const Graph& step, const Strategy& strategy, Cut cut,
                            Explanations& out) {
  Status cuttable = check_batch(step, {cut.replicas, cut.microbatches, cut.at});
  if (cuttable) return cut;
  if (cut.microbatches > 1) return std::move(cuttable).error();
  for (DagAxis& axis : cut.mesh) axis.sharded |= axis.replicated;
  cut.replicas = 1;
  out.push_back({strategy.replicates.front().at,
                 "replicate",
                 {"the ranks run one step together, each on its block of the samples, and exchange "
                  "inside it what samples need of each other",
                  "note: " + cuttable.error().message}});
  return cut;
}

}  // namespace piper
