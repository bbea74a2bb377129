// The library of schedules: every order equal cell for cell to the published one, made here from
// its rule or read from PyTorch's files; bubble and activations as the closed forms say.
#include <algorithm>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <random>

#include "library_text.h"
#include "piper/inspect/picture.h"
#include "piper/planner/lower.h"
#include "seed.h"
#include "unit/chain.h"
#include "unit/published_schedules.h"

namespace piper {
namespace {

using namespace published;  // NOLINT: what is tested here

Result<chain::Made> make(const Rule& rule, int64_t P, int64_t V, int64_t M) {
  std::vector<Definition> more;
  if (rule.chunks(7) == 7) more.push_back({"chunks", std::to_string(V)});
  return chain::library(rule.name, P, V, M, more);
}

TEST(Schedules, AreThePublishedOnes) {
  for (const Rule& rule : rules())
    for (const int64_t P : {1, 2, 3, 4, 8})
      for (const int64_t M : {1, 2, 3, 4, 6, 10, 16, 19})
        for (const int64_t v : {1, 2, 3}) {
          const int64_t V = rule.chunks(v);
          if (!rule.fits(P, M) || (v > 1 && rule.chunks(7) != 7)) continue;
          const auto made = make(rule, P, V, M);
          ASSERT_TRUE(made) << rule.name << " P=" << P << " V=" << V << " M=" << M << "\n"
                            << print_error(made.error());
          for (int64_t r = 0; r < P; ++r)
            ASSERT_EQ(chain::row(*made, static_cast<size_t>(r)),
                      text_of(merged(rule.order(P, V, M, r))))
                << rule.name << " P=" << P << " V=" << V << " M=" << M << " r=" << r;
        }
}

TEST(Schedules, AreThoseWrittenDown) {
  const struct {
    const char* name;
    int64_t P, V, M, r;
    const char* row;
  } rows[] = {
      {"1f1b", 4, 1, 4, 1, "1F0 1F1 1F2 1B0 1F3 1B1 1B2 1B3"},
      {"interleaved-1f1b", 2, 2, 4, 0,
       "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3"},
      {"zb-h1", 4, 1, 6, 2,
       "2F0 2F1 2I0 2F2 2I1 2F3 2I2 2W0 2F4 2I3 2W1 2F5 2I4 2W2 2I5 2W3 2W4 2W5"},
      {"zb-h2", 3, 1, 6, 1,
       "1F0 1F1 1F2 1I0 1F3 1I1 1F4 1I2 1W0 1F5 1I3 1W1 1I4 1W2 1I5 1W3 1W4 1W5"},
      {"dualpipev", 2, 2, 5, 0,
       "0F0 0F1 0F2 3F0 3B0 3F1 0F3&3B1 3F2&0B0 0F4&3B2 3F3&0B1 3B3 3F4&0B2 3B4 0B3 0B4"},
      {"chimera", 4, 1, 4, 1, "1F0 2F2 1F1 2F3 2B2 1B0 2B3 1B1"},
  };
  for (const auto& one : rows) {
    for (const Rule& rule : rules()) {
      if (std::string(one.name) != rule.name) continue;
      const auto made = make(rule, one.P, one.V, one.M);
      ASSERT_TRUE(made) << print_error(made.error());
      EXPECT_EQ(chain::row(*made, static_cast<size_t>(one.r)), one.row) << one.name;
    }
  }
}

// The first half of the devices works as those of a V of half as many do on half the microbatches:
// the way up runs other microbatches through the stages that lie behind the turn.
TEST(Schedules, HalfOfBothWaysIsAV) {
  for (const int64_t P : {2, 4, 6, 8})
    for (const int64_t M : {2 * P, 2 * P + 2, 3 * P + 4}) {
      const auto both = chain::library("dualpipe", P, 1, M);
      const auto turned = chain::library("dualpipev", P / 2, 2, M / 2);
      ASSERT_TRUE(both && turned) << P << " " << M;
      for (int64_t r = 0; r < P / 2; ++r) {
        Cells cells;
        std::string text = chain::row(*both, static_cast<size_t>(r));
        std::replace(text.begin(), text.end(), '&', ' ');
        for (const std::string& each : split_text(text, ' ')) {
          const size_t letter = each.find_first_of("FBIW");
          const int64_t stage = std::stol(each), micro = std::stol(each.substr(letter + 1));
          EXPECT_EQ(stage == r, micro < M / 2) << each;
          cells.push_back(cell(stage, each.substr(letter, 1).c_str(), micro % (M / 2)));
        }
        std::string wanted = chain::row(*turned, static_cast<size_t>(r));
        std::replace(wanted.begin(), wanted.end(), '&', ' ');
        EXPECT_EQ(text_of(cells), wanted) << "P=" << P << " M=" << M << " r=" << r;
      }
    }
}

// Groups of microbatches are part of the text of a DAG.
TEST(Schedules, OfBothWaysHaveGroups) {
  const auto made = chain::library("chimera", 4, 1, 8);
  ASSERT_TRUE(made) << print_error(made.error());
  EXPECT_EQ(made->dag.group_of, (std::vector<int32_t>{0, 0, 1, 1, 0, 0, 1, 1}));
  EXPECT_NE(print_dag(made->dag).find("groups=[0,0,1,1,0,0,1,1]"), std::string::npos);
}

// ---- Bubble and activations --------------------------------------------------------------------

// Units of time that the parts of a chunk take; messages take none.
struct Costs {
  int64_t F = 1, I = 1, W = 1;
  int64_t X = 0;  // a forward and a whole backward that overlap; 0: nothing is hidden
};
struct Measured {
  std::vector<int64_t> idle;  // by device, from the step's start to the end of the last device
  std::vector<int64_t> gaps;  // by device, between its own first and last task
  std::vector<int64_t>
      alive;  // by device: most chunks whose forward has run and weight part has not
};

class Clock {
 public:
  Clock(const chain::Made& made, int64_t stages, Costs costs = {})
      : made_(made), stages_(stages), costs_(costs) {}

  Measured run() {
    const size_t devices = made_.compute.size();
    std::vector<size_t> next(devices);
    Measured out{std::vector<int64_t>(devices), std::vector<int64_t>(devices),
                 std::vector<int64_t>(devices)};
    std::vector<int64_t> clock(devices), first(devices, -1), busy(devices), alive(devices);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t d = 0; d < devices; ++d)
        while (next[d] < made_.compute[d].tasks.size()) {
          // An overlap begins when all of it can.
          const size_t count = together(d, next[d]);
          int64_t start = clock[d];
          for (size_t i = 0; i < count && start >= 0; ++i) {
            const int64_t ready = ready_at(at(d, next[d] + i), i);
            start = ready < 0 ? -1 : std::max(start, ready);
          }
          const int64_t cost = cost_of(d, next[d], count);
          if (start < 0) break;
          if (first[d] < 0) first[d] = start;
          clock[d] = start + cost;
          busy[d] += cost;
          for (size_t i = 0; i < count; ++i) {
            const Task& task = at(d, next[d]++);
            done_[{task.pass, stage(task), task.micro}] = clock[d];
            alive[d] += task.pass == TaskPass::kF ? 1 : task.pass == TaskPass::kBI ? 0 : -1;
            out.alive[d] = std::max(out.alive[d], alive[d]);
          }
          moved = true;
        }
    }
    const int64_t end = *std::max_element(clock.begin(), clock.end());
    for (size_t d = 0; d < devices; ++d) {
      EXPECT_EQ(next[d], made_.compute[d].tasks.size());
      out.idle[d] = end - busy[d];
      out.gaps[d] = clock[d] - first[d] - busy[d];
    }
    return out;
  }

 private:
  const Task& at(size_t device, size_t i) const {
    return made_.dag.tasks[made_.compute[device].tasks[i].index()];
  }
  int64_t cost_of(size_t device, size_t first, size_t count) const {
    int64_t sum = 0;
    bool whole = false;
    for (size_t i = 0; i < count; ++i) {
      const TaskPass pass = at(device, first + i).pass;
      whole = whole || pass == TaskPass::kB || pass == TaskPass::kBW;
      sum += pass == TaskPass::kF    ? costs_.F
             : pass == TaskPass::kBI ? costs_.I
             : pass == TaskPass::kBW ? costs_.W
                                     : costs_.I + costs_.W;
    }
    return count == 1 || costs_.X == 0 ? sum : whole ? costs_.X : costs_.X - costs_.W;
  }
  int32_t stage(const Task& task) const { return made_.dag.chunks[task.chunk.index()].tags[0]; }
  int64_t done(TaskPass pass, int32_t stage, int32_t micro) const {
    const auto it = done_.find({pass, stage, micro});
    return it == done_.end() ? -1 : it->second;
  }
  size_t together(size_t device, size_t i) const {
    for (const Overlap& o : made_.compute[device].overlaps)
      if (static_cast<size_t>(o.first) == i) return static_cast<size_t>(o.end - o.first);
    return 1;
  }
  // -1: not yet known. Inside an overlap a weight part follows its input part.
  int64_t ready_at(const Task& task, size_t position) const {
    const int32_t s = stage(task), m = task.micro;
    if (task.pass == TaskPass::kBW && position > 0) return 0;
    if (task.pass == TaskPass::kF) return s == 0 ? 0 : done(TaskPass::kF, s - 1, m);
    if (task.pass == TaskPass::kBW) return done(TaskPass::kBI, s, m);
    const int64_t own = done(TaskPass::kF, s, m);
    if (s + 1 == stages_ || own < 0) return own;
    const int64_t after = std::max(done(TaskPass::kBI, s + 1, m), done(TaskPass::kB, s + 1, m));
    return after < 0 ? -1 : std::max(own, after);
  }

  const chain::Made& made_;
  const int64_t stages_;
  const Costs costs_;
  std::map<std::tuple<TaskPass, int32_t, int32_t>, int64_t> done_;
};

// A row of the library's table: for which sizes and costs (of a chunk) the formulas hold, and what
// they are. Activations are in chunks.
struct Size {
  int64_t P, V, M;
  int64_t G() const { return largest_round(P, M); }
};
struct Form {
  const char* name;
  std::function<bool(const Size&, const Costs&)> holds;
  std::function<int64_t(const Size&, const Costs&)> idle;  // of the device that waits longest
  std::function<int64_t(const Size&, int64_t r)> alive;
  std::function<int64_t(const Size&, const Costs&)> gaps;  // inside a device's span; may be empty
};
const std::vector<Form>& forms() {
  static const auto always = [](const Size&, const Costs&) { return true; };
  static const auto filled = [](const Size& s, const Costs& c) {
    return s.M >= s.P && c.W <= c.F && c.W <= c.I;
  };
  static const auto twice_filled = [](const Size& s, const Costs& c) {
    return s.M >= 2 * s.P - 1 && c.W <= c.F && c.W <= c.I;
  };
  static const auto all_equal = [](const Size& s, const Costs& c) {
    return s.M >= 2 * s.P - 1 && c.F == c.I && c.I == c.W;
  };
  static const auto hidden = [](const Size&, const Costs& c) { return c.F == c.I && c.I == c.W; };
  static const auto double_backward = [](const Size&, const Costs& c) {
    return c.I + c.W == 2 * c.F;
  };
  static const auto full = [](const Size& s, const Costs& c) {
    return (s.P - 1) * (c.F + c.I + c.W);
  };
  static const auto short_rounds = [](const Size& s, const Costs& c) {
    return full(s, c) + (s.V - 1) * std::max<int64_t>(0, s.P - s.M) * (c.F + c.I + c.W);
  };
  static const auto pairs = [](const Costs& c) { return c.X + c.I - 2 * c.W; };
  static const std::vector<Form> kForms = {
      {"gpipe", always, full, [](auto& s, auto) { return s.M; }, {}},
      {"1f1b", always, full, [](auto& s, auto r) { return std::min(s.P - r, s.M); }, {}},
      {"interleaved-1f1b",
       always,
       short_rounds,
       [](auto& s, auto r) {
         return std::min(s.M * s.V, (s.V - 1) * s.G() + 2 * (s.P - 1 - r) + 1);
       },
       {}},
      {"looped-bfs", always, short_rounds, [](auto& s, auto) { return s.M * s.V; }, {}},
      {"zb-h1",
       filled,
       [](auto& s, auto& c) { return (s.P - 1) * (c.F + c.I - c.W); },
       [](auto& s, auto) { return s.P + (s.V - 1) * s.G(); },
       {}},
      {"zb-h2", twice_filled,
       [](auto& s, auto& c) { return (s.P - 1) * std::max(c.F, c.F + c.I - 2 * c.W); },
       [](auto& s, auto) { return 2 * s.P - 1; },
       [](auto& s, auto& c) { return (s.P - 1) * std::max<int64_t>(0, c.F + c.I - 2 * c.W); }},
      {"zbv", all_equal, [](auto& s, auto& c) { return (s.P - 1) * c.F; },
       [](auto& s, auto) { return 2 * s.P; }, [](auto&, auto&) { return int64_t{0}; }},
      {"dualpipev",
       hidden,
       [](auto& s, auto& c) { return (s.P - 1) * pairs(c); },
       [](auto& s, auto) { return 2 * s.P + 1; },
       {}},
      {"dualpipe",
       hidden,
       [](auto& s, auto& c) { return (s.P / 2 - 1) * pairs(c); },
       [](auto& s, auto) { return s.P + 1; },
       {}},
      {"chimera",
       double_backward,
       [](auto& s, auto& c) { return (s.P - 2) * (s.M / s.P + 1) * c.F; },
       [](auto& s, auto r) { return s.P / 2 + 1 + std::min(r, s.P - 1 - r); },
       {}},
  };
  return kForms;
}

void expect_form(const Form& form, const Size& size, const Costs& costs, const chain::Made& made) {
  const std::string what = fmt::format("{} P={} V={} M={} F={} I={} W={} X={}", form.name, size.P,
                                       size.V, size.M, costs.F, costs.I, costs.W, costs.X);
  const Measured measured = Clock(made, static_cast<int64_t>(size.P * size.V), costs).run();
  EXPECT_EQ(*std::max_element(measured.idle.begin(), measured.idle.end()), form.idle(size, costs))
      << what;
  if (form.gaps) {
    EXPECT_EQ(*std::max_element(measured.gaps.begin(), measured.gaps.end()), form.gaps(size, costs))
        << what;
  }
  for (int64_t r = 0; r < size.P; ++r)
    EXPECT_EQ(measured.alive[static_cast<size_t>(r)], form.alive(size, r)) << what << " r=" << r;
}

// Costs for which the formula holds, if some are found.
std::optional<Costs> draw_costs(const Form& form, const Size& size, std::mt19937_64& random) {
  const auto draw = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  for (int tries = 0; tries < 200; ++tries) {
    Costs costs{draw(1, 5), draw(1, 5), draw(1, 5)};
    const int64_t backward = costs.I + costs.W;
    costs.X = draw(std::max(costs.F, backward), costs.F + backward);
    if (form.holds(size, costs)) return costs;
  }
  return {};
}

TEST(Schedules, HaveTheBubbleAndActivationsOfTheClosedForms) {
  const uint64_t seed = given_seed().value_or(20260);
  SCOPED_TRACE(fmt::format("PIPER_SEED={}", seed));
  std::mt19937_64 random(seed);
  for (const Form& form : forms()) {
    const auto rule = std::find_if(rules().begin(), rules().end(), [&](const Rule& one) {
      return std::string(one.name) == form.name;
    });
    ASSERT_NE(rule, rules().end()) << form.name;
    int shown = 0;
    for (int tries = 0; tries < 4000 && shown < 30; ++tries) {
      Size size{1 + static_cast<int64_t>(random() % 10), 1 + static_cast<int64_t>(random() % 4),
                1 + static_cast<int64_t>(random() % 40)};
      size.V = rule->chunks(size.V);
      if (!rule->fits(size.P, size.M)) continue;
      const auto costs = draw_costs(form, size, random);
      if (!costs) continue;
      const auto made = make(*rule, size.P, size.V, size.M);
      ASSERT_TRUE(made) << print_error(made.error());
      expect_form(form, size, *costs, *made);
      ++shown;
    }
    EXPECT_EQ(shown, 30) << form.name;
  }
}

// Rounds of at least a microbatch a device reach the bubble whatever is left over. In smaller ones,
// where each backward follows its forward at once, devices would wait for each other for ever.
TEST(Schedules, RoundsReachTheirBubbleAtEverySize) {
  const int64_t sizes[][3] = {{4, 2, 9},  {4, 2, 11}, {6, 2, 15},
                              {8, 2, 31}, {4, 3, 17}, {3, 4, 13}};
  for (const auto& [P, V, M] : sizes)
    for (const char* name : {"interleaved-1f1b", "zb-h1"}) {
      const auto made = chain::library(name, P, V, M, {{"chunks", std::to_string(V)}});
      ASSERT_TRUE(made) << print_error(made.error());
      const Measured measured = Clock(*made, P * V).run();
      const int64_t idle = (std::string(name) == "zb-h1" ? 1 : 3) * (P - 1);
      for (int64_t waits : measured.idle) EXPECT_EQ(waits, idle) << name << " " << P << " " << M;
      if (std::string(name) == "zb-h1") continue;
      const auto small = chain::library(
          name, P, V, M, {{"chunks", std::to_string(V)}, {"rounds", std::to_string(M / P + 3)}});
      ASSERT_FALSE(small) << name;
      EXPECT_EQ(small.error().code, ExitCode::kInput);
      EXPECT_EQ(small.error().message, "the order cannot run: its tasks wait for each other");
      EXPECT_FALSE(small.error().notes.empty());
    }
}

// Those that list scheduling makes: idle times of a chunk on each device, and chunks held. Of
// "hanayo" the published ratios at M = P: .333, .213, .119 on four devices, .368, .238, .135 on
// eight.
struct Listed {
  const char* name;
  int64_t P, V, M, idle, alive;
};
std::vector<Definition> unit_costs(const std::string& name, int64_t V) {
  std::vector<Definition> more{{"costs", "unit"}};
  if (name == "hanayo") more.push_back({"waves", std::to_string(V / 2)});
  return more;
}

TEST(Schedules, AreFilledUnderTheirLimits) {
  const Listed listed[] = {
      {"hanayo", 4, 2, 4, 12, 8},  {"hanayo", 4, 4, 4, 13, 16},  {"hanayo", 4, 8, 4, 13, 32},
      {"hanayo", 8, 2, 8, 28, 16}, {"hanayo", 8, 4, 8, 30, 32},  {"hanayo", 8, 8, 8, 30, 64},
      {"v-half", 4, 2, 12, 7, 6},  {"v-half", 8, 2, 24, 20, 10}, {"v-min", 4, 2, 12, 11, 4},
      {"v-min", 8, 2, 24, 27, 8},
  };
  for (const Listed& one : listed) {
    const auto made = chain::library(one.name, one.P, one.V, one.M, unit_costs(one.name, one.V));
    ASSERT_TRUE(made) << one.name << print_error(made.error());
    const Measured measured = Clock(*made, one.P * one.V).run();
    for (size_t d = 0; d < measured.idle.size(); ++d) {
      const std::string what = fmt::format("{} P={} V={} device {}", one.name, one.P, one.V, d);
      EXPECT_EQ(measured.idle[d], one.idle) << what;
      EXPECT_LE(measured.alive[d], one.alive) << what;
    }
  }
}

TEST(Schedules, SayWhichSizesTheyWant) {
  const struct {
    const char* name;
    int64_t P, M;
    const char* message;
    std::vector<std::string> notes;
  } wrong[] = {
      {"dualpipe",
       3,
       8,
       "both ways meet halfway: the number of stages must be even",
       {"stages is 3 (-D stages=3)"}},
      {"dualpipe",
       2,
       7,
       "half of the microbatches run each way: their number must be even",
       {"microbatches is 7 (-D microbatches=7)"}},
      {"dualpipev",
       4,
       6,
       "two microbatches a stage are the least that fill the pipeline",
       {"microbatches is 6 (-D microbatches=6)", "stages is 4 (-D stages=4)"}},
      {"chimera",
       4,
       6,
       "a unit has a microbatch for each stage: only whole units can run",
       {"microbatches is 6 (-D microbatches=6)", "stages is 4 (-D stages=4)"}},
      {"pipedream-2bw",
       4,
       3,
       "a microbatch a stage is the least that runs without a pause",
       {"microbatches is 3 (-D microbatches=3)", "stages is 4 (-D stages=4)"}},
  };
  for (const auto& one : wrong) {
    const auto made = chain::library(one.name, one.P, 1, one.M);
    ASSERT_FALSE(made) << one.name;
    EXPECT_EQ(made.error().message, one.message);
    EXPECT_EQ(made.error().notes, one.notes) << one.name;
  }
}

// About two thirds and a half of what 1F1B idles, 6(P-1), however many microbatches follow.
TEST(Schedules, ListsRepeatAPattern) {
  for (const int64_t P : {2, 3, 4, 5, 6, 7, 8, 12, 16})
    for (const int64_t M : {P, 2 * P, 5 * P})
      for (const auto& [name, third] : {std::pair("v-min", true), std::pair("v-half", false)}) {
        const std::string what = fmt::format("{} P={} M={}", name, P, M);
        const auto made = chain::library(name, P, 2, M, unit_costs(name, 2));
        ASSERT_TRUE(made) << what << print_error(made.error());
        const Measured measured = Clock(*made, 2 * P).run();
        for (size_t d = 0; d < measured.idle.size(); ++d) {
          EXPECT_LE(measured.idle[d], (third ? 4 : 3) * (P - 1) + 1) << what;
          EXPECT_LE(measured.alive[d], 2 * (third ? (P + 4) / 3 : (P + 2) / 2)) << what;
        }
      }
}

TEST(Schedules, LimitsThatLetNothingThroughAreErrors) {
  auto strategy = parse_strategy(chain::library_file("v-min"),
                                 {{"stages", "2"}, {"microbatches", "2"}, {"costs", "unit"}});
  ASSERT_TRUE(strategy) << print_error(strategy.error());
  Policy& policy = *strategy->orders.at(0).policy;
  policy.in_flight = Expr::constant(1);
  const auto tight = chain::schedule(*strategy, 4);
  ASSERT_FALSE(tight);
  EXPECT_EQ(tight.error().message, "policy: the limits let no microbatch through on pp=0");
  EXPECT_EQ(
      tight.error().notes,
      (std::vector<std::string>{"one microbatch holds 2 chunks there, and in_flight allows 1"}));
  policy.in_flight.reset();
  policy.memory = 8;
  const auto small = chain::schedule(*strategy, 4);
  ASSERT_FALSE(small);
  EXPECT_EQ(
      small.error().notes,
      (std::vector<std::string>{"one microbatch's 2 chunks there keep 12 bytes, and memory is 8"}));
}

// ---- Pictures ----------------------------------------------------------------------------------

Result<Picture> picture(const chain::Made& made) {
  PIPER_ASSIGN(Lowered lowered, lower(made.dag, made.schedule));
  PlanSet set;
  for (const DagAxis& axis : made.dag.mesh) set.manifest.mesh.emplace_back(axis.name, axis.size);
  for (size_t d = 0; d < lowered.roles.size(); ++d)
    set.role_of_rank.push_back(static_cast<int32_t>(d));
  set.roles = std::move(lowered.roles);
  return make_picture(set, PictureCosts::kUnits);
}

// As simulated from plans, with messages and pairs: the same as from the orders alone.
TEST(Schedules, AreDrawnWithTheBubbleOfTheClosedForms) {
  for (const Form& form : forms()) {
    const auto rule = std::find_if(rules().begin(), rules().end(), [&](const Rule& one) {
      return std::string(one.name) == form.name;
    });
    int drawn = 0;
    for (const int64_t P : {2, 4, 6})
      for (const int64_t M : {2 * P, 3 * P, 2 * P + 2}) {
        const Size size{P, rule->chunks(2), M};
        if (!rule->fits(P, M)) continue;
        const auto made = make(*rule, P, size.V, M);
        ASSERT_TRUE(made) << print_error(made.error());
        const auto picture_made = picture(*made);
        ASSERT_TRUE(picture_made) << print_error(picture_made.error());
        double idle = 0;
        for (const PictureRow& row : picture_made->rows)
          idle = std::max(idle, row.idle * picture_made->length);
        EXPECT_NEAR(idle, static_cast<double>(form.idle(size, {.X = 3})), 1e-6)
            << form.name << " P=" << P << " M=" << M;
        ++drawn;
      }
    EXPECT_GE(drawn, 6) << form.name;
  }
}

// "### zbv: P=4 V=2 M=6" and what stands in the block below it.
TEST(Schedules, LookAsOnTheLibrarysPage) {
  const std::string path = PIPER_SOURCE_DIR "/strategies/schedules.md";
  const auto page = read_text_file(path, 1 << 20);
  ASSERT_TRUE(page);
  std::string made_page = *page;
  size_t title = 0;
  int drawn_ones = 0;
  while ((title = made_page.find("### ", title + 1)) != made_page.npos) {
    const std::string name = made_page.substr(title + 4, made_page.find(':', title) - title - 4);
    const std::string head = made_page.substr(title, made_page.find('\n', title) - title);
    const auto size = [&](const char* name) {
      const size_t at = head.find(fmt::format(" {}=", name));
      return at == head.npos ? int64_t{1} : std::stol(head.substr(at + 3));
    };
    const auto rule = std::find_if(rules().begin(), rules().end(),
                                   [&](const Rule& one) { return name == one.name; });
    const auto made = rule != rules().end() ? make(*rule, size("P"), size("V"), size("M"))
                                            : chain::library(name, size("P"), size("V"), size("M"),
                                                             unit_costs(name, size("V")));
    ASSERT_TRUE(made) << name << print_error(made.error());
    ++drawn_ones;
    const auto drawn = picture(*made);
    ASSERT_TRUE(drawn) << print_error(drawn.error());
    const size_t begin = made_page.find("```\n", title) + 4;
    made_page.replace(begin, made_page.find("```", begin) - begin, draw_text(*drawn, {}));
  }
  EXPECT_EQ(drawn_ones, 15);
  if (std::getenv("PIPER_UPDATE_GOLDEN")) (void)write_file(path, made_page);
  EXPECT_EQ(made_page, std::getenv("PIPER_UPDATE_GOLDEN") ? made_page : *page)
      << "PIPER_UPDATE_GOLDEN=1 writes it";
}

// ---- The house ---------------------------------------------------------------------------------

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// Where a word of the text begins with the name: SIGPIPE does not with gpipe.
bool is_named(const std::string& text, const std::string& name) {
  for (size_t at = text.find(name); at != text.npos; at = text.find(name, at + 1))
    if (at == 0 || !std::isalpha(static_cast<unsigned char>(text[at - 1]))) return true;
  return false;
}

// But for the table of other systems' words.
TEST(Schedules, NoneIsNamedInTheCompiler) {
  namespace fs = std::filesystem;
  int files = 0;
  for (const char* folder : {"/src", "/include", "/tools"})
    for (const auto& entry :
         fs::recursive_directory_iterator(std::string(PIPER_SOURCE_DIR) + folder)) {
      const std::string extension = entry.path().extension();
      const bool is_source = extension == ".cc" || extension == ".h";
      if (!is_source || entry.path().filename() == "foreign_words.cc") continue;
      const auto text = read_text_file(entry.path(), 1 << 20);
      ASSERT_TRUE(text);
      ++files;
      for (const char* name :
           {"gpipe", "1f1b", "interleaved 1", "looped", "bfs", "zero bubble", "zb-h", "zbh1", "zbv",
            "zb1p", "dualpipe", "dual_pipe", "chimera", "hanayo", "pipedream", "v-half"})
        EXPECT_FALSE(is_named(lower_case(*text), name)) << entry.path() << " " << name;
    }
  EXPECT_GT(files, 100);
  EXPECT_TRUE(is_named("as gpipe does", "gpipe"));
}

TEST(Schedules, AreShortPrograms) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(
           std::string(PIPER_SOURCE_DIR) + "/strategies")) {
    if (!is_strategy(entry.path())) continue;
    const auto strategy = parse_strategy(entry.path(), {});
    ASSERT_TRUE(strategy) << print_error(strategy.error());
    for (const Order& order : strategy->orders)
      EXPECT_LE(std::count(order.program.begin(), order.program.end(), '\n'), 15) << entry.path();
  }
}

}  // namespace
}  // namespace piper
