// The search: which candidates are tried.
#include "piper/planner/search.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "choices.h"
#include "evaluate.h"
#include "piper/base/parallel.h"
#include "piper/frontend/strategy.h"

namespace piper {
namespace {

using namespace choices;  // NOLINT: this room's own

constexpr const char* kNone = "no";

// Names a choice for --fix, and sets it.
struct Knob {
  std::string_view name;
  int64_t SearchChoice::*number = nullptr;
  std::string SearchChoice::*word = nullptr;
  bool SearchChoice::*flag = nullptr;
  std::string_view beside;  // a name of the library that is included or not
};
constexpr Knob kKnobs[] = {{"microbatches", &SearchChoice::microbatches},
                           {"schedule", nullptr, &SearchChoice::schedule},
                           {"memory", nullptr, &SearchChoice::memory},
                           {"recompute", nullptr, &SearchChoice::recompute},
                           {"keep", &SearchChoice::keep}};

class Search {
 public:
  Search(const SearchOptions& options, Evaluator evaluator)
      : options_(options), evaluator_(std::move(evaluator)) {
    for (const ChoicePart& part : kParts)
      all_knobs_.push_back({.name = part.name, .number = part.ranks, .flag = part.flag});
    all_knobs_.insert(all_knobs_.end(), std::begin(kKnobs), std::end(kKnobs));
    for (const SearchSpace::Beside& file : options.space.beside)
      all_knobs_.push_back({.name = last_of(file.name), .beside = file.name});
  }

  Result<Found> run() {
    ranks_ = options_.ranks > 0 ? options_.ranks : options_.cluster.size();
    if (ranks_ > options_.cluster.size())
      return fail(options_.cluster.at, "the cluster has {} devices, but {} ranks are asked for",
                  options_.cluster.size(), ranks_)
          .with_code(ExitCode::kUsage);
    memory_ = least_memory();
    PIPER_TRY(read_fixed());
    PIPER_TRY(read_batch());
    std::vector<SearchChoice> starts =
        beginnings(options_.space, ranks_, options_.cluster.nodes.front().devices, batch_);
    for (SearchChoice& start : starts) start = fixed(std::move(start));
    try_all(starts);
    if (!any_compiles()) try_all(all_meshes());  // the usual numbers do not divide these devices
    if (!ended_by_) PIPER_TRY(check_start());
    if (!ended_by_) climb();
    if (ended_by_) return *std::move(ended_by_);
    return found();
  }

 private:
  // Returns the bytes that the device with the least memory has.
  double least_memory() const {
    double least = static_cast<double>(options_.memory);
    for (const ClusterDevice& device : options_.cluster.devices)
      if (const double has = device.memory - device.reserve; least <= 0 || has < least) least = has;
    return least;
  }
  // ---- What stays ----
  Status read_fixed() {
    for (const auto& [name, value] : options_.fixed) {
      const auto knob = std::ranges::find(all_knobs_, name, &Knob::name);
      if (knob == all_knobs_.end()) {
        std::vector<std::string> names;
        for (const Knob& one : all_knobs_) names.emplace_back(one.name);
        return fail("--fix: there is no choice '{}'; there are {}", quote_control(name),
                    join(names, ", "))
            .with_code(ExitCode::kUsage);
      }
      PIPER_TRY(read_value(*knob, value));
    }
    return check_fixed_axes();
  }
  Status check_fixed_axes() const {
    const SearchChoice stays = fixed({});
    int64_t left = options_.cluster.size();
    for (const int64_t ranks :
         {stays.pipeline, stays.tensor, stays.replicas, stays.context, stays.experts}) {
      if (ranks > left)
        return fail("--fix: these axes need more than the {} devices of the cluster",
                    options_.cluster.size())
            .with_code(ExitCode::kUsage);
      left /= ranks;
    }
    return ok_status();
  }
  std::vector<std::string> words_of(const Knob& knob) const {
    const SearchSpace& space = options_.space;
    if (knob.word == &SearchChoice::schedule) return space.schedules;
    if (knob.word == &SearchChoice::memory) return space.memory;
    std::vector<std::string> words{kNone};
    words.insert(words.end(), space.recompute.begin(), space.recompute.end());
    if (!space.budget.empty()) words.push_back(space.budget);
    return words;
  }
  Status read_value(const Knob& knob, const std::string& value) {
    constexpr int64_t kMostMicrobatches = 4096;      // as many as a plan may have
    constexpr int64_t kMostKept = int64_t{1} << 30;  // MiB
    const auto wrong = [&](const std::string& wanted) {
      return fail("--fix {}={}: expected {}", knob.name, quote_control(value), wanted)
          .with_code(ExitCode::kUsage);
    };
    if (knob.number) {
      int64_t number = 0;
      const auto read = std::from_chars(value.data(), value.data() + value.size(), number);
      if (read.ec != std::errc() || read.ptr != value.data() + value.size() || number < 1)
        return wrong("a whole number from 1 on");
      const int64_t most = knob.number == &SearchChoice::microbatches ? kMostMicrobatches
                           : knob.number == &SearchChoice::keep       ? kMostKept
                                                                      : options_.cluster.size();
      if (number > most) return wrong(fmt::format("at most {}", most));
      values_.*knob.number = number;
    } else if (knob.word) {
      const std::vector<std::string> known = words_of(knob);
      // A name may stand without its folder.
      const auto named = std::find_if(known.begin(), known.end(), [&](const std::string& name) {
        return name == value || last_of(name) == value;
      });
      if (named == known.end()) return wrong(join(known, ", "));
      values_.*knob.word = *named == kNone ? "" : *named;
    } else {
      if (value != "yes" && value != "no") return wrong("yes or no");
      if (knob.flag) values_.*knob.flag = value == "yes";
      if (value == "yes" && !knob.flag) values_.beside.emplace(knob.beside);
    }
    if (std::find(knobs_.begin(), knobs_.end(), &knob) != knobs_.end())
      return fail("--fix: '{}' is given twice", knob.name).with_code(ExitCode::kUsage);
    knobs_.push_back(&knob);
    return ok_status();
  }
  static bool includes(const SearchChoice& choice, const Knob& knob) {
    return choice.beside.contains(std::string(knob.beside));
  }
  bool keeps(const SearchChoice& choice) const {
    return std::all_of(knobs_.begin(), knobs_.end(), [&](const Knob* knob) {
      if (knob->number) return choice.*knob->number == values_.*knob->number;
      if (knob->word) return choice.*knob->word == values_.*knob->word;
      if (knob->flag) return choice.*knob->flag == values_.*knob->flag;
      return includes(choice, *knob) == includes(values_, *knob);
    });
  }
  // Returns the choice with the values of --fix; the rest of the mesh is adapted to them.
  SearchChoice fixed(SearchChoice choice) const {
    for (const Knob* knob : knobs_) {
      if (knob->number) choice.*knob->number = values_.*knob->number;
      if (knob->word) choice.*knob->word = values_.*knob->word;
      if (knob->flag) choice.*knob->flag = values_.*knob->flag;
      if (includes(values_, *knob)) choice.beside.emplace(knob->beside);
    }
    // A budget needs an amount to keep, and the amount needs a budget.
    if (values_.keep > 0 && values_.recompute.empty()) choice.recompute = options_.space.budget;
    settle(options_.space, choice);
    if (!values_.recompute.empty() && values_.recompute == options_.space.budget &&
        choice.keep == 0)
      choice.keep = std::max<int64_t>(kept_of(choice, memory_ / 2), 1);
    return choice;
  }
  std::vector<SearchChoice> all_meshes() const {
    std::vector<SearchChoice> all;
    const SearchChoice stays = fixed({});
    const int64_t ranks = ranks_ / (stays.context * stays.experts);
    for (int64_t pipeline = 1; pipeline <= ranks; ++pipeline)
      for (int64_t tensor = 1; ranks % pipeline == 0 && tensor <= ranks / pipeline; ++tensor) {
        if (ranks / pipeline % tensor != 0) continue;
        SearchChoice choice{
            .pipeline = pipeline, .tensor = tensor, .replicas = ranks / pipeline / tensor};
        choice.schedule = options_.space.schedules.front();
        choice.memory = options_.space.memory.front();
        choice = fixed(choice);
        add_counts(choice, all);
      }
    return all;
  }
  // Adds the choice with each number of microbatches that is allowed.
  void add_counts(SearchChoice choice, std::vector<SearchChoice>& all) const {
    std::vector<int64_t> counts{1, 2, 4, 8, 16, 32, 64};
    if (!std::ranges::count(counts, choice.microbatches)) counts.push_back(choice.microbatches);
    for (const int64_t count : counts) {
      choice.microbatches = count;
      if (keeps(choice)) all.push_back(choice);
    }
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
    return !ended_by_ && choice.ranks() == ranks_ && keeps(choice) &&
           is_possible(options_.space, choice, batch_) && !known_.contains(choice) &&
           may_work(choice) && std::ssize(tried_) < options_.most;
  }
  // A choice for which the model has nothing, such as experts, is refused each time, so it is not
  // tried again after the second refusal.
  bool may_work(const SearchChoice& choice) const {
    return std::ranges::none_of(names_of(options_.space, choice), [&](const std::string& name) {
      const auto found = refused_.find(name);
      return found != refused_.end() && found->second >= kRefusals;
    });
  }
  void note_refusal(const Tried& tried) {
    for (const std::string& name : names_of(options_.space, tried.choice)) {
      int64_t& count = refused_[name];
      if (tried.refused.empty())
        count = kWorks;
      else
        ++count;
    }
  }
  // Tries the choices, several at once. Their results count in the order of the choices, as if one
  // were tried after the other.
  void try_all(const std::vector<SearchChoice>& choices) {
    for (size_t from = 0; from < choices.size();) {
      std::vector<SearchChoice> wave;
      std::set<SearchChoice> met;
      for (; from < choices.size() && std::ssize(tried_) + std::ssize(wave) < options_.most; ++from)
        if (may_try(choices[from]) && met.insert(choices[from]).second)
          wave.push_back(choices[from]);
      if (wave.empty()) return;
      try_wave(wave);
    }
  }
  struct Trial {
    bool works = false;                // so far
    bool may_be_kept_refusal = false;  // the first refusal may be the answer, with all of its text
    std::optional<Tried> tried;        // nothing: it was left
    double products = 0;
    std::optional<Error> refusal;
  };
  void try_wave(const std::vector<SearchChoice>& wave) {
    std::vector<Trial> trials(wave.size());
    in_parallel_in_order(
        wave.size(),
        [&](size_t i) {
          trials[i].works = may_work(wave[i]);  // what does not work at one time never will
          trials[i].may_be_kept_refusal = refusal_.has_value();
        },
        [&](size_t i) {
          if (trials[i].works) try_one(wave[i], i, trials[i]);
        },
        [&](size_t i) {
          if (may_try(wave[i])) count(std::move(trials[i]));
        },
        static_cast<size_t>(options_.threads));
  }
  void try_one(const SearchChoice& choice, size_t number, Trial& trial) const {
    const auto base = std::filesystem::relative(options_.compile.strategy, options_.folder);
    Tried& tried = trial.tried.emplace();
    tried.choice = choice;
    tried.text = text_of(options_.space, choice, base.string());
    Result<Outcome> outcome = evaluator_.run(tried.text, number, trial.may_be_kept_refusal);
    if (outcome) {
      take(*outcome, options_, tried);
      trial.products = outcome->products;
    } else {
      tried.refused = outcome.error().message;
      trial.refusal = std::move(outcome).error();
    }
  }
  // Counts a trial. If the system refused it, that says nothing of the candidate: the search ends.
  void count(Trial trial) {
    if (trial.refusal && trial.refusal->code == ExitCode::kStorage) {
      ended_by_ = std::move(trial.refusal);
      return;
    }
    known_[trial.tried->choice] = tried_.size();
    const Tried& tried = tried_.emplace_back(*std::move(trial.tried));
    if (tried.choice.recompute.empty() && trial.products > 0)
      bound_ = bound_ > 0 ? std::min(bound_, trial.products) : trial.products;
    if (!refusal_) refusal_ = std::move(trial.refusal);
    note_refusal(tried);
    if (options_.progress) options_.progress(tried, std::ssize(tried_));
  }
  bool any_compiles() const {
    return std::ranges::any_of(tried_, [](const Tried& one) { return one.refused.empty(); });
  }
  Status check_start() const {
    if (tried_.empty())
      return fail("no mesh of {} ranks has what --fix asks for{}", ranks_,
                  batch_ > 0 ? fmt::format(", with a batch of {} samples", batch_) : "")
          .with_code(ExitCode::kUsage);
    if (any_compiles()) return ok_status();
    Error error = *refusal_;
    error.notes.push_back(
        fmt::format("none of the {} candidates that the search begins with can be "
                    "compiled; this is what is wrong with the first: {}",
                    tried_.size(), describe(tried_.front().choice)));
    if (batch_ > 0 && batch_ % ranks_ != 0) error.notes.push_back(help_with_batch());
    return error;
  }
  // Says which batch or ranks would go together.
  std::string help_with_batch() const {
    const int64_t more = (batch_ / ranks_ + 1) * ranks_;
    int64_t fewer = ranks_ - 1;
    while (batch_ % fewer != 0) --fewer;
    return fmt::format(
        "help: {} replicas cannot share {} samples evenly: 'global_batch: {}' allows them, and "
        "'--ranks {}' leaves devices idle",
        ranks_, batch_, more, fewer);
  }

  // Choices that fit in memory come first; of the others one is better the less memory it takes.
  static bool is_better(const Tried& a, const Tried& b) {
    const auto rank = [](const Tried& one) { return one.fits() ? 0 : one.refused.empty() ? 1 : 2; };
    if (rank(a) != rank(b)) return rank(a) < rank(b);
    return rank(a) == 0 ? a.step < b.step : a.peak_bytes < b.peak_bytes;
  }
  // Climbs from the best of the usual candidates, and from the best on other meshes: the best of
  // one mesh need not be near the best of another.
  void climb() {
    constexpr size_t kStarts = 3;
    std::vector<size_t> order(tried_.size());
    for (size_t t = 0; t < order.size(); ++t) order[t] = t;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return is_better(tried_[a], tried_[b]); });
    std::set<Mesh> meshes;
    for (const size_t start : order) {
      if (meshes.size() == kStarts) break;
      if (!meshes.insert(mesh_of(tried_[start].choice)).second) continue;
      climb_from(start);
      if (meshes.size() == 1) climb_from_what_may_fit(order);
    }
  }
  using Mesh = std::pair<int64_t, int64_t>;
  static Mesh mesh_of(const SearchChoice& choice) { return {choice.pipeline, choice.tensor}; }
  // Climbs from meshes that would be faster, but none of whose usual candidates fit in memory, as a
  // neighbour of these may fit.
  void climb_from_what_may_fit(const std::vector<size_t>& order) {
    const size_t none = tried_.size();
    std::map<Mesh, size_t> best;  // of those of a mesh
    for (const size_t one : order) best.try_emplace(mesh_of(tried_[one].choice), one);
    size_t fastest = none;
    double step = std::ranges::min_element(tried_, is_better)->step;
    for (const size_t one : order) {
      const Tried& tried = tried_[one];
      const size_t start = best.at(mesh_of(tried.choice));
      if (!tried.refused.empty() || tried_[start].fits() || tried.step >= step) continue;
      step = tried.step;
      fastest = start;
    }
    if (fastest != none) climb_from(fastest);
  }
  void climb_from(size_t at) {
    for (;;) {
      size_t best = at;
      const Tried& here = tried_[at];
      const double spare = here.memory > 0 ? here.memory - here.peak_bytes : 0;
      const std::vector<SearchChoice> all = neighbours(options_.space, here.choice, spare);
      try_all(all);
      for (const SearchChoice& next : all) {
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
  const Evaluator evaluator_;
  std::vector<Knob> all_knobs_;
  int64_t ranks_ = 0, batch_ = 0;
  double memory_ = 0;    // bytes that a plan may take of the smallest device
  SearchChoice values_;  // of what stays
  std::vector<const Knob*> knobs_;
  std::map<SearchChoice, size_t> known_;
  std::vector<Tried> tried_;
  std::optional<Error> refusal_, ended_by_;
  static constexpr int64_t kRefusals = 2, kWorks = -(int64_t{1} << 40);
  std::map<std::string, int64_t> refused_;  // by name of the library: how often; never that often
  double bound_ = 0;
};

// Makes the cluster `factor` times as large: with more nodes in each range and in the last level,
// or, where it is a single node, with more devices.
void enlarge(Cluster& cluster, int64_t factor) {
  if (cluster.levels.empty()) {
    cluster.nodes.front().devices *= factor;
    return;
  }
  for (Cluster::Nodes& range : cluster.nodes) range.count *= factor;
  cluster.levels.back().nodes *= factor;
}

}  // namespace

Result<std::optional<Tried>> fit_on_more(const SearchOptions& options, const Tried& least) {
  constexpr int64_t kTried = 12, kNumbers = 3, kMostRanks = 65536;
  int64_t factor = 2;
  while (static_cast<double>(factor) * least.memory < least.peak_bytes) factor *= 2;
  for (int64_t n = 0; n < kNumbers && least.choice.ranks() * factor <= kMostRanks;
       ++n, factor *= 2) {
    SearchOptions more = options;
    more.ranks = least.choice.ranks() * factor;
    more.most = std::min(kTried, options.most);
    more.progress = {};
    if (const int64_t has = more.cluster.size(); has < more.ranks)
      enlarge(more.cluster, (more.ranks + has - 1) / has);
    const Result<Found> found = search(more);
    if (!found && found.error().code == ExitCode::kStorage) return found.error();
    if (found && found->tried.front().fits()) return std::optional(found->tried.front());
  }
  return std::optional<Tried>();
}

Result<Found> search(const SearchOptions& options) {
  PIPER_ASSIGN(Evaluator evaluator, Evaluator::make(options));
  return Search(options, std::move(evaluator)).run();
}

}  // namespace piper
