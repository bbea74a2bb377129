// The communicators of every strategy of the library, as NCCL takes them: proved from the plans,
// beside what the verifier proves of them when they are compiled (rules communicator, transfer,
// collective, deadlock).
//
// All ranks open those of which they are members in the order of one list, and all operations of a
// communicator stand on one stream of a rank, in one order and of the same sizes on all members.
// Then what all ranks queue is run as devices run it: an operation of a communicator begins at the
// head of its stream, when what it waits for is done and the one before it of its communicator,
// too. It is done when it has begun on all members, as if NCCL had no memory in between. Nothing
// waits for room on a device: what may run at once fits (blocks_of in nccl_links.h).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <set>

#include "equivalence/jobs.h"
#include "library_text.h"
#include "piper/planner/compile.h"

namespace piper::communicator_orders_test {
namespace {

// A communicator as its members open it.
using Members = std::pair<int32_t, std::vector<int64_t>>;  // number in the plan, ranks

struct Queued {
  int64_t lane = 0;            // stream of the device; what is sent has one for each communicator
  std::vector<int64_t> after;  // places in the rank's list
  Members members;             // none: it computes or copies
  std::string what;            // kind and sizes, the same on all members
  std::string name;
};
struct Rank {
  std::vector<Members> opened;
  std::vector<Queued> queue;  // in the order of its host
};

// ---- What ranks queue ---------------------------------------------------------------------------

// A prologue, two bodies and an epilogue, each behind all of the one before.
class Expander {
 public:
  Expander(const PlanSet& set, int64_t rank)
      : role_(set.roles[static_cast<size_t>(set.role_of_rank[static_cast<size_t>(rank)])]),
        own_(rank),
        coordinates_(coordinates_of(role_.mesh, rank)) {}

  Rank run() {
    for (size_t c = 0; c < role_.communicators.size(); ++c)
      if (const Members members = members_of(static_cast<int32_t>(c)); !members.second.empty())
        made_.opened.push_back(members);
    add_section(role_.prologue);
    for (int step = 0; step < 2; ++step) {
      add_section(role_.body);
      for (const OuterUpdate& update : role_.outer_updates) add_section(update.instructions);
    }
    add_section(role_.epilogue);
    return std::move(made_);
  }

 private:
  // Of a pair who sends stands first; no ranks: the own one is none of them.
  Members members_of(int32_t number) const {
    const Communicator& one = role_.communicators[static_cast<size_t>(number)];
    if (!one.is_pair()) return {number, group_ranks(role_, {"", one.axes}, coordinates_)};
    const auto is_own = [&](const std::vector<int32_t>& place) {
      return std::equal(place.begin(), place.end(), coordinates_.begin(),
                        [](int32_t at, int64_t own) { return at < 0 || at == own; });
    };
    if (is_own(one.from)) return {number, {own_, peer_rank(role_, one.to, coordinates_)}};
    if (is_own(one.to)) return {number, {peer_rank(role_, one.from, coordinates_), own_}};
    return {number, {}};
  }
  std::string what(const Instruction& one) const {
    const bool is_message = !one.peer.empty();
    std::string text =
        is_message ? fmt::format("message of rank {}", members_of(one.communicator).second[0])
                   : fmt::format("{}{} {}", one.fast ? "fast " : "", to_string(one.kind), one.turn);
    for (const int32_t arg : one.args) {
      const TensorType& type = role_.tensor(arg).type;
      text += fmt::format(" {}x{}", num_elements(type.shape), info(type.dtype).name);
    }
    return text;
  }
  void add_section(const std::vector<Instruction>& section) {
    const auto first = static_cast<int64_t>(made_.queue.size());
    std::map<int64_t, int64_t> last;  // by lane
    std::vector<int64_t> place;       // of instructions
    const auto add = [&](Queued queued) {
      if (!last.contains(queued.lane))
        for (int64_t i = begun_; i < first; ++i) queued.after.push_back(i);
      last[queued.lane] = static_cast<int64_t>(made_.queue.size());
      made_.queue.push_back(std::move(queued));
      return std::ssize(made_.queue) - 1;
    };
    for (const Instruction& one : section) {
      Queued queued{.lane = one.stream, .name = fmt::format("'{}' on rank {}", one.label, own_)};
      for (const int32_t wait : one.waits) queued.after.push_back(place[static_cast<size_t>(wait)]);
      const bool sends = one.kind == InstructionKind::kSend;
      if (one.communicator >= 0 && !sends) {
        queued.members = members_of(one.communicator);
        queued.what = what(one);
      }
      place.push_back(add(queued));
      if (!sends) continue;
      queued.lane = -1 - one.communicator;
      queued.after = {place.back()};
      queued.members = members_of(one.communicator);
      queued.what = what(one);
      add(queued);
    }
    if (!section.empty()) begun_ = first;
  }

  const RoleProgram& role_;
  const int64_t own_;
  const std::vector<int64_t> coordinates_;
  int64_t begun_ = 0;  // where the section before begins
  Rank made_;
};

std::vector<Rank> ranks_of(const PlanSet& set) {
  std::vector<Rank> ranks;
  for (int64_t rank = 0; rank < set.world(); ++rank) ranks.push_back(Expander(set, rank).run());
  return ranks;
}

std::string name_of(const Members& of) {
  return fmt::format("communicator {} of ranks [{}]", of.first, fmt::join(of.second, ","));
}

// ---- What is wrong with it ----------------------------------------------------------------------

// Each rank opens one after the other, and waits for all members of it.
std::string wrong_opening(const std::vector<Rank>& ranks) {
  std::vector<size_t> next(ranks.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < ranks.size(); ++r) {
      if (next[r] == ranks[r].opened.size()) continue;
      const Members& wanted = ranks[r].opened[next[r]];
      const bool all = std::ranges::all_of(wanted.second, [&](int64_t member) {
        const Rank& other = ranks[static_cast<size_t>(member)];
        const size_t at = next[static_cast<size_t>(member)];
        return at < other.opened.size() && other.opened[at] == wanted;
      });
      if (!all) continue;
      for (const int64_t member : wanted.second) ++next[static_cast<size_t>(member)];
      moved = true;
    }
  }
  for (size_t r = 0; r < ranks.size(); ++r)
    if (next[r] < ranks[r].opened.size())
      return fmt::format("rank {} waits to open {}", r, name_of(ranks[r].opened[next[r]]));
  return "";
}

// By communicator and rank: its operations, in the order of the host.
std::map<Members, std::map<int64_t, std::vector<const Queued*>>> operations_of(
    const std::vector<Rank>& ranks) {
  std::map<Members, std::map<int64_t, std::vector<const Queued*>>> all;
  for (size_t r = 0; r < ranks.size(); ++r)
    for (const Queued& one : ranks[r].queue)
      if (!one.members.second.empty()) all[one.members][static_cast<int64_t>(r)].push_back(&one);
  return all;
}

std::string wrong_operations(const std::vector<Rank>& ranks) {
  for (const auto& [of, by_rank] : operations_of(ranks)) {
    const auto& first = by_rank.begin()->second;
    for (const int64_t member : of.second) {
      const auto found = by_rank.find(member);
      if (found == by_rank.end() || found->second.size() != first.size())
        return fmt::format("{}: rank {} does not do as much as rank {}", name_of(of), member,
                           by_rank.begin()->first);
      for (size_t n = 0; n < first.size(); ++n) {
        const Queued &one = *found->second[n], &other = *first[n];
        if (one.what != other.what)
          return fmt::format("{}: {} is {}, {} is {}", name_of(of), one.name, one.what, other.name,
                             other.what);
        if (one.lane != found->second[0]->lane)
          return fmt::format("{}: {} stands on another stream", name_of(of), one.name);
      }
    }
  }
  return "";
}

class Simulation {
 public:
  explicit Simulation(const std::vector<Rank>& ranks, bool keeps_host_order = false)
      : ranks_(ranks), keeps_host_order_(keeps_host_order) {
    for (const Rank& rank : ranks) {
      states_.emplace_back(rank.queue.size());
      auto& lanes = lanes_.emplace_back();
      for (size_t i = 0; i < rank.queue.size(); ++i) {
        lanes[rank.queue[i].lane].push_back(i);
        if (!rank.queue[i].members.second.empty()) hosts_[lanes_.size() - 1].push_back(i);
      }
    }
  }
  // What never ends; empty: all does.
  std::string run() {
    while (step()) {
    }
    for (size_t r = 0; r < ranks_.size(); ++r)
      for (const auto& [lane, queue] : lanes_[r])
        if (!queue.empty())
          return fmt::format("{} never ends", ranks_[r].queue[queue.front()].name);
    return "";
  }

 private:
  enum State : uint8_t { kQueued, kBegun, kDone };

  bool step() {
    bool moved = false;
    for (size_t r = 0; r < ranks_.size(); ++r)
      for (auto& [lane, queue] : lanes_[r])
        while (!queue.empty() && go_on(r, queue.front())) {
          moved = true;
          if (states_[r][queue.front()] == kDone) queue.pop_front();
        }
    return moved;
  }
  bool go_on(size_t r, size_t i) {
    const Queued& one = ranks_[r].queue[i];
    State& state = states_[r][i];
    const bool meets = !one.members.second.empty();
    if (state == kQueued) {
      const bool ready = std::ranges::all_of(one.after, [&](int64_t before) {
        return states_[r][static_cast<size_t>(before)] == kDone;
      });
      if (!ready || (meets && !is_turn(r, i))) return false;
      state = meets ? kBegun : kDone;
      if (meets) {
        std::erase(hosts_[r], i);
        auto& begun = begun_[one.members];
        if (++begun.first == std::ssize(one.members.second)) {
          begun.first = 0;
          ++begun.second;
        }
        const std::pair own(one.members, r);
        number_[{r, i}] = count_[own]++;
        last_[own] = i;
      }
      return true;
    }
    if (state != kBegun || begun_[one.members].second <= number_[{r, i}]) return false;
    state = kDone;
    return true;
  }
  bool is_turn(size_t r, size_t i) {
    const auto before = last_.find({ranks_[r].queue[i].members, r});
    return (!keeps_host_order_ || hosts_[r].front() == i) &&
           (before == last_.end() || states_[r][before->second] == kDone);
  }

  const std::vector<Rank>& ranks_;
  const bool keeps_host_order_;
  std::vector<std::vector<State>> states_;
  std::vector<std::map<int64_t, std::deque<size_t>>> lanes_;
  std::map<size_t, std::deque<size_t>> hosts_;
  std::map<Members, std::pair<int64_t, int64_t>> begun_;  // members, operations that all began
  std::map<std::pair<size_t, size_t>, int64_t> number_;
  std::map<std::pair<Members, size_t>, int64_t> count_;
  std::map<std::pair<Members, size_t>, size_t> last_;  // that has begun
};

// What a host would wait for if members connected as late as NCCL lets them: at the first operation
// of a communicator each host waits until all members have come to theirs. Empty: for nothing.
std::string blocked_by_late_connections(const std::vector<Rank>& ranks) {
  std::vector<size_t> next(ranks.size());
  std::map<Members, std::set<size_t>> arrived;
  const auto can_pass = [&](size_t r) {
    const Members& members = ranks[r].queue[next[r]].members;
    if (members.second.empty()) return true;
    arrived[members].insert(r);
    return arrived[members].size() == members.second.size();
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < ranks.size(); ++r)
      for (; next[r] < ranks[r].queue.size() && can_pass(r); ++next[r]) moved = true;
  }
  for (size_t r = 0; r < ranks.size(); ++r)
    if (next[r] < ranks[r].queue.size())
      return fmt::format("the host of {} waits for others of {}", ranks[r].queue[next[r]].name,
                         name_of(ranks[r].queue[next[r]].members));
  return "";
}

std::string wrong_of(const std::vector<Rank>& ranks) {
  for (const auto& wrong : {wrong_opening(ranks), wrong_operations(ranks)})
    if (!wrong.empty()) return wrong;
  return Simulation(ranks).run();
}

// ---- All strategies -----------------------------------------------------------------------------

constexpr const char* kTwo[] = {"nodes", "gpus", "tp", "cp", "ep", "sites", "every"};

std::vector<std::string> all_files() {
  std::vector<std::string> names;
  const std::filesystem::path root = PIPER_SOURCE_DIR "/strategies";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root))
    if (is_strategy(entry.path()))
      names.push_back(std::filesystem::relative(entry.path(), root).replace_extension().string());
  std::sort(names.begin(), names.end());
  return names;
}
// Says nothing of where its stages are.
bool is_half(const std::string& name) {
  return name.find('/') != std::string::npos && !name.starts_with("meshes") &&
         !name.starts_with("schedules") &&
         jobs::library_text(name).find("place:") == std::string::npos;
}

// Not the sample, where a file is for other models; of 8 samples.
std::string other_model(const std::string& name) {
  if (name.starts_with("experts") || name.ends_with("-ep") || name.ends_with("gshard") ||
      name.ends_with("-experts"))
    return jobs::model_path("moe-gshard", "model.onnx");
  return name.ends_with("f32") ? jobs::model_path("gpt-bf16", "model.onnx") : "";
}

// Halves that say nothing of stages or replicas have both beside them.
Result<Compiled> compile_file(const std::string& name, int stages) {
  const bool has_memory = name.starts_with("memory");
  std::string text, includes;
  const auto include = [&](const std::string& file) {
    text += jobs::library_text(file);
    includes += fmt::format("{}" PIPER_SOURCE_DIR "/strategies/{}.yaml",
                            includes.empty() ? "" : ", ", file);
  };
  if (is_half(name)) include("schedules/1f1b");
  if (is_half(name) && (!has_memory || name.ends_with("recompute") || name.ends_with("offload")))
    include("memory/ddp");
  if (name.ends_with("async-tp")) include("tensor/sequence");
  include(name);
  std::string params;
  const auto define = [&](const char* param, int value) {
    if (text.find(fmt::format("${}", param)) != std::string::npos)
      params += fmt::format("{}{}: {}", params.empty() ? "" : ", ", param, value);
  };
  // A parameter of several devices, as the sample's embedding, is updated when a step ends.
  const bool is_early = text.find("F[step=1, chunk=c]") != std::string::npos;
  define("stages", is_early ? 1 : stages);
  const bool is_other = !other_model(name).empty();
  define("microbatches", 2 * stages);
  define("dp", is_other ? 1 : 2);
  for (const char* param : kTwo) define(param, 2);
  const Folder folder;
  CompileOptions options;
  options.model = is_other ? other_model(name) : PIPER_SOURCE_DIR "/samples/gpt/model.onnx";
  options.strategy =
      folder.write("strategy.yaml",
                   fmt::format("piper: 1\ninclude: [{}]\nparams: {{{}}}\ntrain: {{global_batch: "
                               "{}, optimizer: {{adamw: {{lr: 1e-3}}}}, clip_norm: 1.0}}\n",
                               includes, params, is_other ? 8 : 8 * stages));
  options.target = "cuda";
  options.oracles = false;
  return compile(options);
}

class Library : public testing::TestWithParam<std::string> {};

TEST_P(Library, AllRanksAgree) {
  const std::string& name = GetParam();
  if (const std::string other = other_model(name);
      !other.empty() && !std::filesystem::exists(other))
    GTEST_SKIP() << "no models in " << jobs::models_folder();
  // What leaves for the host waits there for long enough.
  const auto compiled = compile_file(name, name.ends_with("offload") ? 4 : 2);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const std::vector<Rank> ranks = ranks_of(compiled->set);
  EXPECT_EQ(wrong_of(ranks), "");
  EXPECT_FALSE(operations_of(ranks).empty());
}
INSTANTIATE_TEST_SUITE_P(Strategies, Library, testing::ValuesIn(all_files()), [](const auto& info) {
  std::string name = info.param;
  std::ranges::replace(name, '/', '_');
  return jobs::identifier(name);
});

// Four stages keep more messages under way.
TEST(CommunicatorOrders, OfFourStages) {
  for (const char* name : {"gpipe", "1f1b", "zb-h1", "zb-h2", "dualpipe", "chimera"}) {
    const auto compiled = compile_file(name, 4);
    ASSERT_TRUE(compiled) << name << print_error(compiled.error());
    EXPECT_EQ(wrong_of(ranks_of(compiled->set)), "") << name;
  }
}

// Kernels that began in the order in which hosts have called NCCL, of all communicators, would wait
// for each other: a message that has not left yet, behind one that is not received yet, keeps back
// what the receiver waits for. So nobody asks NCCL for that order (NCCL_LAUNCH_ORDER_IMPLICIT).
TEST(CommunicatorOrders, TheHostsOrderOfAllWouldBlock) {
  for (const char* name : {"interleaved-1f1b", "dualpipe", "dualpipev", "looped-bfs"}) {
    const auto compiled = compile_file(name, 2);
    ASSERT_TRUE(compiled) << name << print_error(compiled.error());
    const std::vector<Rank> ranks = ranks_of(compiled->set);
    EXPECT_TRUE(Simulation(ranks, true).run().ends_with(" never ends")) << name;
  }
}

// So links connect all communicators when they open them (nccl_links.cc).
TEST(CommunicatorOrders, ConnectionsAtTheFirstUseWouldBlock) {
  for (const char* name : {"dualpipe", "chimera"}) {
    const auto compiled = compile_file(name, 2);
    ASSERT_TRUE(compiled) << name << print_error(compiled.error());
    EXPECT_NE(blocked_by_late_connections(ranks_of(compiled->set)), "") << name;
  }
  const auto in_one_order = compile_file("gpipe", 2);
  ASSERT_TRUE(in_one_order) << print_error(in_one_order.error());
  EXPECT_EQ(blocked_by_late_connections(ranks_of(in_one_order->set)), "");
}

// ---- Faults -------------------------------------------------------------------------------------

std::vector<Queued*> operations_on(Rank& rank) {
  std::vector<Queued*> all;
  for (Queued& one : rank.queue)
    if (!one.members.second.empty()) all.push_back(&one);
  return all;
}

TEST(CommunicatorOrders, FaultsOfOneRankAreFound) {
  const auto compiled = compile_file("1f1b", 2);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const std::vector<Rank> right = ranks_of(compiled->set);
  const auto with = [&](const std::function<void(Rank&)>& fault) {
    std::vector<Rank> wrong = right;
    fault(wrong[0]);
    return wrong_of(wrong);
  };
  const auto says = [](const std::string& text, const char* what) {
    EXPECT_NE(text.find(what), std::string::npos)
        << "'" << text << "' does not say '" << what << "'";
  };
  ASSERT_EQ(wrong_of(right), "");
  says(with([](Rank& rank) { std::ranges::reverse(rank.opened); }), " waits to open communicator ");
  says(with([](Rank& rank) { operations_on(rank)[0]->what += " more"; }), " more");
  says(with([](Rank& rank) { operations_on(rank)[0]->members = {}; }), " does not do as much as ");
  says(with([](Rank& rank) { operations_on(rank).back()->lane = 77; }), " on another stream");
  // A message both ways, on one communicator.
  std::vector<Rank> both = right;
  for (Rank& rank : both)
    for (Queued* one : operations_on(rank))
      if (one->what.starts_with("message")) {
        one->members.first = 0;
        std::ranges::sort(one->members.second);
      }
  EXPECT_NE(wrong_of(both), "");
}

TEST(CommunicatorOrders, TwoOperationsInAnotherOrderAreFound) {
  const auto compiled = compile_file("zero3", 2);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  std::vector<Rank> ranks = ranks_of(compiled->set);
  ASSERT_EQ(wrong_of(ranks), "");
  const auto swap = [](std::span<Queued* const> all) {
    for (Queued* one : all)
      for (Queued* other : all)
        if (one->members == other->members && one->what != other->what) {
          std::swap(one->what, other->what);
          return true;
        }
    return false;
  };
  ASSERT_TRUE(swap(operations_on(ranks[0])));
  EXPECT_NE(wrong_of(ranks).find(" is "), std::string::npos) << wrong_of(ranks);
}

// Two of one stream, in another order on one of the ranks; on streams of their own both go on.
TEST(CommunicatorOrders, TwoCommunicatorsInTwoOrdersBlock) {
  const auto run = [](int64_t second_lane, bool other_order) {
    const Members first{0, {0, 1}}, second{1, {0, 1}};
    std::vector<Rank> ranks(2);
    for (Rank& rank : ranks)
      rank.queue = {{0, {}, first, "sum", "first"}, {second_lane, {}, second, "sum", "second"}};
    if (other_order) std::swap(ranks[1].queue[0], ranks[1].queue[1]);
    return Simulation(ranks).run();
  };
  EXPECT_EQ(run(0, false), "");
  EXPECT_EQ(run(0, true), "first never ends");
  EXPECT_EQ(run(1, true), "");
}

}  // namespace
}  // namespace piper::communicator_orders_test
