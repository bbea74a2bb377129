// The search: candidates are compiled, proven and simulated, each once.
#include "piper/planner/search.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <set>

#include "choices.h"
#include "piper/frontend/strategy.h"
#include "piper/plan/flops.h"

namespace piper {
namespace {

using namespace choices;  // NOLINT: this room's own

// Names a choice for --fix, and sets it.
struct Knob {
  std::string_view name;
  int64_t SearchChoice::*number = nullptr;
  std::string SearchChoice::*word = nullptr;
  bool SearchChoice::*flag = nullptr;
};
constexpr Knob kKnobs[] = {{"pipeline", &SearchChoice::pipeline},
                           {"tensor", &SearchChoice::tensor},
                           {"replicas", &SearchChoice::replicas},
                           {"microbatches", &SearchChoice::microbatches},
                           {"schedule", nullptr, &SearchChoice::schedule},
                           {"memory", nullptr, &SearchChoice::memory},
                           {"sequence", nullptr, nullptr, &SearchChoice::sequence},
                           {"vocabulary", nullptr, nullptr, &SearchChoice::vocabulary},
                           {"recompute", nullptr, nullptr, &SearchChoice::recompute}};

class Search {
 public:
  explicit Search(const SearchOptions& options) : options_(options) {}

  Result<Found> run() {
    ranks_ = options_.ranks > 0 ? options_.ranks : options_.cluster.size();
    if (ranks_ > options_.cluster.size())
      return fail(options_.cluster.at, "the cluster has {} devices, but {} ranks are asked for",
                  options_.cluster.size(), ranks_)
          .with_code(ExitCode::kUsage);
    PIPER_TRY(read_fixed());
    PIPER_TRY(read_batch());
    for (const SearchChoice& start :
         beginnings(options_.space, ranks_, options_.cluster.nodes.front().devices))
      try_one(fixed(start));
    if (tried_.empty())
      for (const SearchChoice& start : all_meshes()) try_one(fixed(start));
    PIPER_TRY(check_start());
    climb();
    return found();
  }

 private:
  // ---- What stays ----
  Status read_fixed() {
    for (const auto& [name, value] : options_.fixed) {
      const auto knob = std::find_if(std::begin(kKnobs), std::end(kKnobs),
                                     [&](const Knob& one) { return one.name == name; });
      if (knob == std::end(kKnobs)) {
        std::vector<std::string> names;
        for (const Knob& one : kKnobs) names.emplace_back(one.name);
        return fail("--fix: there is no choice '{}'; there are {}", quote_control(name),
                    join(names, ", "))
            .with_code(ExitCode::kUsage);
      }
      PIPER_TRY(read_value(*knob, value));
    }
    return ok_status();
  }
  Status read_value(const Knob& knob, const std::string& value) {
    const auto wrong = [&](const std::string& wanted) {
      return fail("--fix {}={}: expected {}", knob.name, quote_control(value), wanted)
          .with_code(ExitCode::kUsage);
    };
    if (knob.number) {
      int64_t number = 0;
      const auto read = std::from_chars(value.data(), value.data() + value.size(), number);
      if (read.ec != std::errc() || read.ptr != value.data() + value.size() || number < 1)
        return wrong("a whole number from 1 on");
      values_.*knob.number = number;
    } else if (knob.word) {
      const bool schedule = knob.word == &SearchChoice::schedule;
      const auto& known = schedule ? options_.space.schedules : options_.space.memory;
      // A name may stand without its folder.
      const auto named = std::find_if(known.begin(), known.end(), [&](const std::string& name) {
        return name == value || name.substr(name.rfind('/') + 1) == value;
      });
      if (named == known.end()) return wrong(join(known, ", "));
      values_.*knob.word = *named;
    } else {
      if (value != "yes" && value != "no") return wrong("yes or no");
      values_.*knob.flag = value == "yes";
    }
    if (std::find(knobs_.begin(), knobs_.end(), &knob) != knobs_.end())
      return fail("--fix: '{}' is given twice", knob.name).with_code(ExitCode::kUsage);
    knobs_.push_back(&knob);
    return ok_status();
  }
  bool keeps(const SearchChoice& choice) const {
    return std::all_of(knobs_.begin(), knobs_.end(), [&](const Knob* knob) {
      if (knob->number) return choice.*knob->number == values_.*knob->number;
      if (knob->word) return choice.*knob->word == values_.*knob->word;
      return choice.*knob->flag == values_.*knob->flag;
    });
  }
  // Returns the choice with the values that stay; others of the mesh give way.
  SearchChoice fixed(SearchChoice choice) const {
    for (const Knob* knob : knobs_) {
      if (knob->number) choice.*knob->number = values_.*knob->number;
      if (knob->word) choice.*knob->word = values_.*knob->word;
      if (knob->flag) choice.*knob->flag = values_.*knob->flag;
    }
    return choice;
  }
  std::vector<SearchChoice> all_meshes() const {
    std::vector<SearchChoice> all;
    for (int64_t pipeline = 1; pipeline <= ranks_; ++pipeline)
      for (int64_t tensor = 1; ranks_ % pipeline == 0 && tensor <= ranks_ / pipeline; ++tensor) {
        if (ranks_ / pipeline % tensor != 0) continue;
        SearchChoice choice{
            .pipeline = pipeline, .tensor = tensor, .replicas = ranks_ / pipeline / tensor};
        choice.schedule = options_.space.schedules.front();
        choice.memory = options_.space.memory.front();
        choice = fixed(choice);
        for (choice.microbatches = 1; choice.microbatches <= 64; choice.microbatches *= 2)
          if (keeps(choice)) all.push_back(choice);
      }
    return all;
  }
  // The user's file says how many samples a step has.
  Status read_batch() {
    PIPER_ASSIGN(const Strategy strategy,
                 parse_strategy(options_.compile.strategy, options_.compile.defines,
                                options_.compile.library));
    batch_ = strategy.global_batch;
    return ok_status();
  }

  // ---- Candidates ----
  bool may_try(const SearchChoice& choice) const {
    return choice.pipeline * choice.tensor * choice.replicas == ranks_ && keeps(choice) &&
           is_possible(options_.space, choice, batch_) && !known_.contains(choice) &&
           std::ssize(tried_) < options_.most;
  }
  void try_one(const SearchChoice& choice) {
    if (!may_try(choice)) return;
    known_[choice] = tried_.size();
    Tried& tried = tried_.emplace_back();
    tried.choice = choice;
    if (Status done = evaluate(tried); !done) {
      tried.refused = done.error().message;
      if (!refusal_) refusal_ = std::move(done).error();
    }
    if (options_.progress) options_.progress(tried, std::ssize(tried_));
  }
  Status evaluate(Tried& tried) {
    const auto base = std::filesystem::relative(options_.compile.strategy, options_.folder);
    tried.text = text_of(tried.choice, base.string());
    CompileOptions options = options_.compile;
    options.strategy = options_.folder + "/candidate.yaml";
    options.oracles = false;
    PIPER_TRY(write_file(options.strategy, tried.text));
    PIPER_ASSIGN(const Compiled compiled, compile(options));
    PIPER_ASSIGN(const std::unique_ptr<Machine> machine,
                 cluster_machine(options_.cluster, compiled.set,
                                 options_.profile ? &*options_.profile : nullptr));
    PIPER_ASSIGN(const StepReport report, report_step(compiled.set, *machine));
    const MachineFacts facts = facts_of(options_.cluster, compiled.set);
    tried.step = report.step;
    tried.idle = report.idle;
    for (const RowTimes& row : report.rows)
      tried.exposed = std::max(
          tried.exposed,
          report.step > 0 ? row.idle[static_cast<size_t>(IdleReason::kMoving)] / report.step : 0);
    for (const RoleProgram& role : compiled.set.roles)
      tried.peak_bytes = std::max(tried.peak_bytes, static_cast<double>(role.peak_bytes()));
    tried.memory = options_.memory > 0 && facts.memory > 0 ? std::min(options_.memory, facts.memory)
                   : options_.memory > 0                   ? options_.memory
                                                           : facts.memory;
    if (!tried.choice.recompute && facts.peak_flops > 0) {
      PIPER_ASSIGN(const double flops, flops_of(compiled.set));
      const double bound = flops / facts.peak_flops;
      bound_ = bound_ > 0 ? std::min(bound_, bound) : bound;
    }
    return ok_status();
  }
  // Returns the FLOPs of a step on all ranks.
  static Result<double> flops_of(const PlanSet& set) {
    std::vector<double> of_role;
    for (const RoleProgram& role : set.roles) {
      PIPER_ASSIGN(const std::vector<double> programs, program_flops(role));
      double sum = 0;
      for (const Instruction& one : role.body)
        if (one.kind == InstructionKind::kCompute)
          sum += programs[static_cast<size_t>(one.program)];
      of_role.push_back(sum);
    }
    double all = 0;
    for (const int32_t role : set.role_of_rank) all += of_role[static_cast<size_t>(role)];
    return all;
  }
  Status check_start() const {
    if (tried_.empty())
      return fail("no mesh of {} ranks has what --fix asks for{}", ranks_,
                  batch_ > 0 ? fmt::format(", with a batch of {} samples", batch_) : "")
          .with_code(ExitCode::kUsage);
    const bool any = std::any_of(tried_.begin(), tried_.end(),
                                 [](const Tried& one) { return one.refused.empty(); });
    if (any) return ok_status();
    Error error = *refusal_;
    error.notes.push_back(
        fmt::format("none of the {} candidates that the search begins with can be "
                    "compiled; this is what is wrong with the first: {}",
                    tried_.size(), describe(tried_.front().choice)));
    return error;
  }

  // Fitting ones are before others; these are better the less they lack.
  static bool is_better(const Tried& a, const Tried& b) {
    const auto rank = [](const Tried& one) { return one.fits() ? 0 : one.refused.empty() ? 1 : 2; };
    if (rank(a) != rank(b)) return rank(a) < rank(b);
    return rank(a) == 0 ? a.step < b.step : a.peak_bytes < b.peak_bytes;
  }
  // Climbs from the best of the usual ones, and from the next best of other meshes: what is best of
  // one mesh need not be near what is best of another.
  void climb() {
    constexpr size_t kStarts = 3;
    std::vector<size_t> order(tried_.size());
    for (size_t t = 0; t < order.size(); ++t) order[t] = t;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return is_better(tried_[a], tried_[b]); });
    std::set<std::pair<int64_t, int64_t>> meshes;
    for (const size_t start : order) {
      const SearchChoice& choice = tried_[start].choice;
      if (meshes.size() == kStarts) break;
      if (!meshes.insert({choice.pipeline, choice.tensor}).second) continue;
      climb_from(start);
    }
  }
  void climb_from(size_t at) {
    for (;;) {
      size_t best = at;
      for (const SearchChoice& next : neighbours(options_.space, SearchChoice(tried_[at].choice))) {
        try_one(next);
        const auto known = known_.find(next);
        if (known != known_.end() && is_better(tried_[known->second], tried_[best]))
          best = known->second;
      }
      if (best == at) return;
      at = best;
    }
  }
  Result<Found> found() {
    Found found;
    found.ended = std::ssize(tried_) < options_.most;
    found.bound = bound_;
    found.tried = std::move(tried_);
    std::stable_sort(found.tried.begin(), found.tried.end(), is_better);
    return found;
  }

  const SearchOptions& options_;
  int64_t ranks_ = 0, batch_ = 0;
  SearchChoice values_;  // of what stays
  std::vector<const Knob*> knobs_;
  std::map<SearchChoice, size_t> known_;
  std::vector<Tried> tried_;
  std::optional<Error> refusal_;
  double bound_ = 0;
};

}  // namespace

Result<Found> search(const SearchOptions& options) { return Search(options).run(); }

}  // namespace piper
