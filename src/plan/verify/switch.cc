// Proves that a transfer of states gives each rank what it is to hold, and that the stages of a job
// train the same. Shares no code with what plans transfers.
#include <algorithm>
#include <set>
#include <tuple>

#include "piper/ir/ops.h"
#include "piper/plan/verify.h"

namespace piper {
namespace {

using Spans = std::vector<std::pair<int64_t, int64_t>>;  // elements [first, second)
constexpr size_t kMostSwitchFindings = 20;

// Sorts what mostly is a few ascending lists, one after the other, of millions of spans.
void merge_lists(Spans& spans) {
  std::vector<Spans::iterator> ends{spans.begin()};
  for (auto at = spans.begin(); at != spans.end(); ++at)
    if (at != spans.begin() && *at < *std::prev(at)) ends.push_back(at);
  ends.push_back(spans.end());
  while (ends.size() > 2) {
    std::vector<Spans::iterator> left{spans.begin()};
    for (size_t k = 1; k < ends.size(); k += 2) {
      const auto end = ends[std::min(k + 1, ends.size() - 1)];
      std::inplace_merge(left.back(), ends[k], end);
      left.push_back(end);
    }
    ends = std::move(left);
  }
}

Spans in_one(Spans spans) {
  merge_lists(spans);
  Spans out;
  for (const auto& [first, end] : spans) {
    if (!out.empty() && first <= out.back().second)
      out.back().second = std::max(out.back().second, end);
    else if (end > first)
      out.emplace_back(first, end);
  }
  return out;
}

// Finds spans that have elements, of which most are asked for in order.
class SpanFinder {
 public:
  explicit SpanFinder(const Spans& all) : all_(all), near_(all.end()) {}
  bool has(int64_t first, int64_t end) {
    if (near_ == all_.end() || near_->first > first) {
      near_ = std::upper_bound(all_.begin(), all_.end(), std::pair(first, INT64_MAX));
      if (near_ != all_.begin()) --near_;
    }
    while (near_ != all_.end() && near_->second <= first) ++near_;
    return near_ != all_.end() && near_->first <= first && end <= near_->second;
  }

 private:
  const Spans& all_;
  Spans::const_iterator near_;
};

class SwitchProof {
 public:
  SwitchProof(const StateTransfer& transfer, const PlanSet& from, const PlanSet& to)
      : transfer_(transfer) {
    const auto known = held_states(from);
    for (size_t s = 0; s < transfer.states.size(); ++s) {
      const auto& [name, whole] = transfer.states[s];
      numbers_[name] = static_cast<int32_t>(s);
      const auto found = known.find(name);
      if (found == known.end() || found->second != whole)
        find("'{}' is no {} before", name, to_string(whole));
    }
    add(from, before_, [&](const RoleProgram& role, const Tensor& tensor) {
      return is_stored(tensor) ? std::optional(names_of_state(role, tensor)[0]) : std::nullopt;
    });
    add(to, after_, [&](const RoleProgram& role, const Tensor& tensor) {
      return name_held(known, names_of_state(role, tensor));
    });
  }

  std::vector<Finding> prove() {
    std::map<Place, Spans> given;
    for (const StateTransfer::Move& move : transfer_.moves) {
      if (move.state < 0 || move.state >= std::ssize(transfer_.states)) {
        find("a move of state {} of {}", move.state, transfer_.states.size());
        continue;
      }
      check_held(move);
      for (const StateTransfer::Run& run : move.runs)
        given[{move.to, move.state}].emplace_back(run.first, run.end());
    }
    for (auto& [place, spans] : given) compare(place, spans);
    for (const auto& [place, wanted] : after_)
      if (!given.contains(place) && !wanted.empty()) compare(place, {});
    return std::move(findings_);
  }

 private:
  // Checks that who gives elements holds them.
  void check_held(const StateTransfer::Move& move) {
    SpanFinder source(before_[{move.from, move.state}]);
    for (const StateTransfer::Run& run : move.runs)
      if (!source.has(run.first, run.end()))
        find("rank {} is to give elements [{}, {}) of '{}' to rank {}, and does not hold them",
             move.from, run.first, run.end(), name(move.state), move.to);
  }
  using Place = std::pair<int64_t, int32_t>;  // rank, state

  static void add_spans(const RoleProgram& role, const Tensor& tensor, int64_t rank, Spans& spans) {
    held_of(role, tensor, coordinates_of(role.mesh, rank)).for_each_run([&](const Held::Run& run) {
      spans.emplace_back(run.whole, run.whole + run.count);
    });
  }

  template <class NameOf>
  void add(const PlanSet& set, std::map<Place, Spans>& to, NameOf name_of) {
    for (int64_t rank = 0; rank < set.world(); ++rank) {
      const auto index = static_cast<size_t>(set.role_of_rank[static_cast<size_t>(rank)]);
      const RoleProgram& role = set.roles[index];
      for (const Buffer& buffer : role.buffers) {
        const Tensor& tensor = role.tensor(buffer);
        if (tensor.kind != BufferKind::kState) continue;
        const std::optional<std::string> name = name_of(role, tensor);
        if (!name) continue;
        const auto number = numbers_.find(*name);
        if (number == numbers_.end()) {
          if (&to == &after_) find("'{}' of rank {} is left out", *name, rank);
          continue;
        }
        add_spans(role, tensor, rank, to[{rank, number->second}]);
      }
    }
    for (auto& [place, spans] : to) spans = in_one(std::move(spans));
  }

  // Each element that the rank is to hold comes once, and no other.
  void compare(const Place& place, Spans spans) {
    merge_lists(spans);
    for (size_t k = 1; k < spans.size(); ++k)
      if (spans[k].first < spans[k - 1].second)
        find("element {} of '{}' comes to rank {} twice", spans[k].first, name(place.second),
             place.first);
    const auto wanted = after_.find(place);
    const Spans all = in_one(std::move(spans)),
                expected = wanted == after_.end() ? Spans() : wanted->second;
    if (all == expected) return;
    const auto differ = std::ranges::mismatch(all, expected);
    const int64_t at = std::min(differ.in1 == all.end() ? INT64_MAX : differ.in1->first,
                                differ.in2 == expected.end() ? INT64_MAX : differ.in2->first);
    find("what comes to rank {} of '{}' is not what it is to hold, from element {} on", place.first,
         name(place.second), at);
  }

  const std::string& name(int32_t state) const {
    return transfer_.states[static_cast<size_t>(state)].name;
  }
  template <class... Args>
  void find(fmt::format_string<Args...> text, Args&&... args) {
    if (findings_.size() < kMostSwitchFindings)
      findings_.push_back({"switch", fmt::format(text, std::forward<Args>(args)...)});
  }

  const StateTransfer& transfer_;
  std::map<std::string, int32_t> numbers_;
  std::map<Place, Spans> before_, after_;
  std::vector<Finding> findings_;
};

class Stages {
 public:
  std::vector<Finding> compare(const PlanSet& from, const PlanSet& to) {
    const Manifest &before = from.manifest, &after = to.manifest;
    compare_texts("model", before.model_digest, after.model_digest);
    compare_texts("strategy", before.strategy_text, after.strategy_text);
    compare_texts("seed", std::to_string(before.seed), std::to_string(after.seed));
    compare_sets("state", states_in(from), states_in(to));
    compare_sets("update", updates_in(from), updates_in(to));
    return std::move(findings_);
  }

 private:
  void compare_texts(std::string_view what, const std::string& before, const std::string& after) {
    if (before != after) find(fmt::format("its {} is another one than before", what));
  }
  // Says of each set the first that the other one has not.
  void compare_sets(std::string_view what, const std::set<std::string>& before,
                    const std::set<std::string>& after) {
    for (const auto& [some, others, text] :
         {std::tuple(&before, &after, "is gone"), std::tuple(&after, &before, "is new")})
      for (const std::string& one : *some)
        if (!others->contains(one)) {
          find(fmt::format("the {} {} {}", what, quote_control(one), text));
          break;
        }
  }
  // Returns what a checkpoint holds, except older versions, which begin as newer ones.
  static std::set<std::string> states_in(const PlanSet& set) {
    std::set<std::string> states;
    for (const RoleProgram& role : set.roles)
      for (const Tensor& tensor : role.tensors)
        if (is_stored(tensor) && tensor.previous_of < 0)
          states.insert(fmt::format("'{}', {}", names_of_state(role, tensor)[0],
                                    to_string(tensor.whole_type())));
    return states;
  }
  // Returns the ops of updates, with the parameters that they write.
  static std::set<std::string> updates_in(const PlanSet& set) {
    std::set<std::string> updates;
    for (const RoleProgram& role : set.roles)
      for (const auto* section : role.sections())
        for (const Instruction& one : *section) {
          if (one.kind != InstructionKind::kCompute || one.micro >= 0) continue;
          const Program& program = role.programs[static_cast<size_t>(one.program)];
          for (const ProgramOp& op : program.ops)
            if (const OpDef* def = find_op(op.op); def && def->states >= 0)
              updates.insert(fmt::format("{} of '{}'", print_op(op), param_of(role, one, op)));
            else if (is_number_of_step(op))
              updates.insert(print_op(op));
        }
    return updates;
  }
  // A rate may be told by tokens, of which stages have others in a step.
  static std::string print_op(const ProgramOp& op) {
    return op.op == "LearningRate" ? fmt::format("{} {}", op.op, op.attrs.real("base"))
                                   : fmt::format("{} {}", op.op, print_attrs(op.attrs));
  }
  static std::string param_of(const RoleProgram& role, const Instruction& one,
                              const ProgramOp& op) {
    const auto arg = static_cast<size_t>(op.outputs[0]);
    return arg < one.args.size()
               ? role.tensor(role.buffers[static_cast<size_t>(one.args[arg])]).param
               : "";
  }
  static bool is_number_of_step(const ProgramOp& op) {
    constexpr std::string_view kOps[] = {"ClipFactor", "LearningRate", "NextLossScale"};
    return std::ranges::find(kOps, op.op) != std::end(kOps);
  }
  void find(std::string text) { findings_.push_back({"switch", std::move(text)}); }

  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> verify_stages(const PlanSet& from, const PlanSet& to) {
  return Stages().compare(from, to);
}

std::vector<Finding> verify_manifest(const Manifest& own, const Manifest& oracle,
                                     std::string_view name) {
  std::vector<Finding> findings;
  const auto compare = [&](std::string_view what, const auto& here, const auto& there) {
    if (here != there)
      findings.push_back({"single", fmt::format("the {} of {}/ is another one", what, name)});
  };
  compare("compiler", own.compiler, oracle.compiler);
  compare("model", own.model_digest, oracle.model_digest);
  compare("strategy", own.strategy_text, oracle.strategy_text);
  compare("digest of the strategy", own.strategy_digest, oracle.strategy_digest);
  compare("seed", own.seed, oracle.seed);
  return findings;
}

std::vector<Finding> verify_transfer(const StateTransfer& transfer, const PlanSet& from,
                                     const PlanSet& to) {
  return SwitchProof(transfer, from, to).prove();
}

}  // namespace piper
