// The loss over a set: the sum over its batches of loss times weight, by the sum of weights.
#include "evaluation.h"

#include <algorithm>
#include <chrono>

#include "faults.h"
#include "resume.h"

namespace piper {
namespace {

// Splits "name=SOURCE". A source such as "x=rows.npy" or "labels=rows.npy" names an input.
std::pair<std::string, std::string> name_and_source(const std::string& text,
                                                    std::span<const InputNeed> needs) {
  const size_t equals = text.find('=');
  if (equals == text.npos || text.find_first_of("/.:") < equals) return {"", text};
  const std::string name = text.substr(0, equals);
  for (const InputNeed& need : needs)
    if (need.name == name) return {"", text};
  return {name, text.substr(equals + 1)};
}

// Returns the sets in order, each with its sources. One without a name is "valid".
std::vector<std::pair<std::string, std::vector<std::string>>> sets_of(
    const RunOptions& options, std::span<const InputNeed> needs) {
  std::vector<std::pair<std::string, std::vector<std::string>>> sets;
  for (const std::string& text : options.evaluation) {
    auto [name, source] = name_and_source(text, needs);
    if (name.empty()) name = "valid";
    auto known =
        std::find_if(sets.begin(), sets.end(), [&](const auto& one) { return one.first == name; });
    if (known == sets.end()) known = sets.insert(sets.end(), {name, {}});
    known->second.push_back(source);
  }
  return sets;
}

// Adds up losses times weights, without batches of no weight, as where all labels are ignored.
struct Mean {
  double sum = 0, weight = 0;
  void add(const Evaluated& batch) {
    const double own = batch.weight.value_or(1);
    if (own == 0 || !batch.loss) return;
    sum += *batch.loss * own;
    weight += own;
  }
};

Result<Evaluated> evaluate_batch(RankRun& run, const EvaluationSet& set, int64_t batch) {
  Status started = run.executor.start_evaluation(*set.data, batch);
  Result<Evaluated> made = started ? run.executor.finish_evaluation(batch)
                                   : Result<Evaluated>(std::move(started).error());
  if (made) return made;
  Error error = std::move(made).error();
  error.message = fmt::format("evaluating '{}': {}", quote_control(set.name), error.message);
  return error;
}

// A batch takes no longer than a step; the first one may have to wait for libraries.
Status evaluate_set(RankRun& run, const EvaluationSet& set, int64_t done,
                    const std::function<Result<bool>()>& goes_on, std::optional<Mean>& mean) {
  mean.emplace();
  for (int64_t batch = 0; batch < set.batches; ++batch) {
    PIPER_ASSIGN(const Evaluated made, evaluate_batch(run, set, batch));
    mean->add(made);
    PIPER_TRY(inject_fault("evaluate", run.control.rank(), done));
    PIPER_ASSIGN(const bool next, goes_on());
    if (next) continue;
    mean.reset();
    return ok_status();
  }
  return ok_status();
}

void warn_of_no_label(const EvaluationSet& set, int64_t done) {
  tell_user(fmt::format(
      "warning: evaluation of '{}' after step {}: no label of its {} batches counts, so there "
      "is no loss",
      quote_control(set.name), done, set.batches));
}

}  // namespace

bool counts_labels(const PlanSet& set) {
  return std::ranges::any_of(set.roles, [](const RoleProgram& role) {
    return std::ranges::any_of(role.evaluation_reports,
                               [](const Report& one) { return one.name == "weight"; });
  });
}

Status open_evaluation(RunOptions& options, const PlanSet& set,
                       std::vector<std::unique_ptr<BatchSource>>& keep) {
  JobOptions& job = options.job;
  job.evaluation.clear();  // of the plans that these follow
  if (options.evaluation.empty()) {
    if (!options.evaluate_only && job.evaluate_every == 0 && options.evaluation_batches == 0)
      return ok_status();
    return usage("--eval-only, --eval-every and --eval-batches need a set to evaluate")
        .with_note("help: --eval-data SOURCE, or --eval-data NAME=SOURCE for several sets");
  }
  for (const RoleProgram& role : set.roles)
    if (role.evaluation.empty())
      return usage(fmt::format("the plans in {} cannot evaluate", set.directory))
          .with_note("help: compile them with 'piperc --eval'");
  PIPER_ASSIGN(const std::vector<InputNeed> needs, data_needs(set));
  const int64_t batch = batch_of(set);
  for (const auto& [name, sources] : sets_of(options, needs)) {
    const DataOptions from{.sources = sources,
                           .seed = options.data.seed,
                           .shuffle = false,
                           .each_once = true,
                           .fills = counts_labels(set)};
    Result<std::unique_ptr<BatchSource>> data = open_data(from, needs, batch);
    if (!data) {
      Error error = std::move(data).error();
      error.message = fmt::format("--eval-data '{}': {}", quote_control(name), error.message);
      return error;
    }
    int64_t batches = (*data)->steps();
    if (batches < 1)
      return usage(fmt::format("--eval-data '{}' has less than one batch of {} samples",
                               quote_control(name), batch));
    if (options.evaluation_batches > 0) batches = std::min(batches, options.evaluation_batches);
    if (batches == INT64_MAX)
      return usage(fmt::format("--eval-data '{}' has no end", quote_control(name)))
          .with_note("help: --eval-batches K takes the first K batches");
    job.evaluation.push_back({name, data->get(), batches});
    keep.push_back(*std::move(data));
  }
  return ok_status();
}

std::string describe_evaluation(const JobOptions& job, const PlanSet& plans) {
  std::string text;
  const int64_t batch = batch_of(plans);
  for (const EvaluationSet& set : job.evaluation) {
    if (set.batches < set.data->steps()) continue;  // as --eval-batches says
    const int64_t left = set.data->samples() - set.batches * batch;
    if (left > 0)
      text += fmt::format(
          "--eval-data '{}': the last {} samples fill no batch of {}, and are left out\n",
          quote_control(set.name), left, batch);
  }
  return text;
}

std::vector<std::string> sources_of_first_set(const RunOptions& options, const PlanSet& set) {
  const auto needs = data_needs(set);
  return needs ? sets_of(options, *needs).front().second : std::vector<std::string>();
}

Status evaluate_sets(RankRun& run, int64_t done, const std::function<Result<bool>()>& goes_on,
                     std::optional<double>& loss) {
  using Clock = std::chrono::steady_clock;
  loss.reset();
  for (const EvaluationSet& set : run.options.evaluation) {
    const Clock::time_point since = Clock::now();
    std::optional<Mean> mean;
    PIPER_TRY(evaluate_set(run, set, done, goes_on, mean));
    if (!mean) return ok_status();
    if (run.control.rank() != 0) continue;
    if (mean->weight == 0) warn_of_no_label(set, done);
    const std::chrono::duration<double, std::milli> took = Clock::now() - since;
    const EvaluationMetrics metrics{done, set.name, mean->sum / mean->weight, set.batches,
                                    took.count()};
    if (&set == &run.options.evaluation.front()) loss = metrics.loss;
    run.result.evaluations.push_back(metrics);
    if (run.options.on_evaluation) run.options.on_evaluation(metrics);
  }
  return ok_status();
}

}  // namespace piper
