// The verifier against wrong plans, and against right ones.
//
// A mutant is wrong when the interpreter of plans sees it end otherwise than the plan that it was
// made from, under any order tried: the verifier must refuse it. The others count as equivalent,
// and those that it accepts are listed in equivalent-TEST.txt of the build folder.
#include "communicators.h"
#include "mutation/fields.h"
#include "mutation/interpreter.h"
#include "mutation/plans.h"
#include "piper/plan/verify.h"
#include "seed.h"

namespace piper::mutation {
namespace {

uint64_t seed() { return given_seed().value_or(20260101); }
constexpr uint64_t kOrders = 6;

Outcome run(const PlanSet& set, uint64_t order) {
  const int64_t steps = set.roles[0].steps_ahead > 0 ? 3 : 2;
  return interpret(set, {.seed = order, .in_order = order == 0, .steps = steps});
}

// What shows that the set does not do what `right` did; empty when nothing does.
std::string trouble_of(const PlanSet& set, const Outcome& right) {
  for (uint64_t order = 0; order < kOrders; ++order) {
    const Outcome outcome = run(set, order);
    if (!outcome.fault.empty()) return outcome.fault;
    if (outcome.symbols != right.symbols) return fmt::format("order {} ends otherwise", order);
  }
  return "";
}

std::string findings_of(const PlanSet& set, const PlanSet* single) {
  const auto report = verify_plan_set(set, single);
  if (!report) return "structure";
  return report->findings.empty() ? "" : report->findings[0].rule;
}

void accept_right_plans(MakeStrategy strategy, int wanted) {
  Random random(seed());
  int accepted = 0, refused = 0;
  while (accepted < wanted && refused < 3 * wanted) {  // about half do not fit
    const Made made = make_plan(random, 1, strategy);
    ASSERT_FALSE(made.refused_plan) << "seed " << seed() << "\n" << made.strategy << made.error;
    if (!made.compiled) {
      ++refused;
      continue;
    }
    const Outcome right = run(made.compiled->set, 0);
    ASSERT_EQ(right.fault, "") << made.strategy;
    ASSERT_EQ(trouble_of(made.compiled->set, right), "") << made.strategy;
    ++accepted;
  }
  std::printf("seed %lu: %d right plans, %d strategies that do not fit their model\n", seed(),
              accepted, refused);
  EXPECT_EQ(accepted, wanted);
}

TEST(RightPlans, AreAcceptedAndEndAlikeUnderEveryOrder) {
  accept_right_plans(random_strategy, given_count().value_or(kSanitized ? 100 : 200));
}
TEST(RightPlans, WithTwoVersionsAreAcceptedToo) {
  accept_right_plans(overlapping_strategy, kSanitized ? 10 : 50);
}

TEST(RightPlans, WithRunningStatisticsAreAcceptedToo) {
  accept_right_plans(uncut_strategy, kSanitized ? 10 : 25);
}

TEST(RightPlans, ThatDrawRandomNumbersAreAcceptedToo) {
  accept_right_plans(drawing_strategy, kSanitized ? 3 : 15);
}

TEST(RightPlans, WithBlocksOfWeightsAreAcceptedToo) {
  accept_right_plans(blocks_strategy, kSanitized ? 5 : 60);
}
TEST(RightPlans, OfStatesOverSeveralAxesAreAccepted) {
  accept_right_plans(nested_strategy, kSanitized ? 3 : 15);
}
TEST(RightPlans, OfTurnsAreAccepted) { accept_right_plans(turns_strategy, kSanitized ? 1 : 6); }
TEST(RightPlans, OfRowsAreAccepted) { accept_right_plans(rows_strategy, kSanitized ? 3 : 30); }

TEST(RightPlans, OfSpreadDirectionsAreAccepted) {
  accept_right_plans(spread_strategy, kSanitized ? 2 : 12);
}

TEST(RightPlans, OfRoundedSendsAreAccepted) {
  accept_right_plans(sending_strategy, kSanitized ? 3 : 20);
}

TEST(RightPlans, OfExpertsAreAccepted) {
  accept_right_plans(experts_strategy, kSanitized ? 2 : 20);
}

struct Count {
  int wrong = 0, caught = 0, equal = 0, equal_refused = 0;
};

// At least `least` mutants are wrong.
void catch_mutants(MakeStrategy strategy, std::span<const Mutation> mutations, int plans, int each,
                   int least, bool oracles = false) {
  Random random(seed());
  std::map<std::string, Count> counts;
  std::map<std::string, int> by_rule;
  const std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
  std::ofstream equivalent(fmt::format("{}/equivalent-{}.txt", PIPER_BINARY_DIR, test));
  for (int p = 0; p < plans;) {
    const Made made = make_plan(random, oracles ? 1 : 2, strategy, oracles);
    ASSERT_FALSE(made.refused_plan) << "seed " << seed() << "\n" << made.strategy << made.error;
    if (!made.compiled) continue;
    ++p;
    const Outcome right = run(made.compiled->set, 0);
    ASSERT_EQ(right.fault, "") << made.strategy;
    for (const Mutation& mutation : mutations)
      for (int i = 0; i < each; ++i) {
        PlanSet mutant = made.compiled->set;
        const auto what = mutation.apply(mutant, random);
        if (!what) continue;
        give_communicators(mutant);
        for (RoleProgram& role : mutant.roles) role.staging_bytes = staging_of(role);
        const std::optional<PlanSet>& single = made.compiled->single;
        const std::string found = findings_of(mutant, single ? &*single : nullptr);
        const std::string trouble = trouble_of(mutant, right);
        Count& count = counts[mutation.name];
        (trouble.empty() ? count.equal : count.wrong) += 1;
        if (trouble.empty() && found.empty())
          equivalent << mutation.name << ": " << *what << ", plan " << p << "\n";
        if (found.empty()) {
          EXPECT_EQ(trouble, "") << "not found: " << mutation.name << ": " << *what << "\n"
                                 << made.strategy;
          continue;
        }
        ++by_rule[found];
        (trouble.empty() ? count.equal_refused : count.caught) += 1;
      }
  }
  std::printf("seed %lu\n%-26s %6s %6s %6s %8s\n", seed(), "mutation", "wrong", "caught", "equal",
              "refused");
  int wrong = 0;
  for (const auto& [name, c] : counts) {
    std::printf("%-26s %6d %6d %6d %8d\n", name.c_str(), c.wrong, c.caught, c.equal,
                c.equal_refused);
    wrong += c.wrong;
  }
  for (const auto& [rule, count] : by_rule) std::printf("  rule %-12s %d\n", rule.c_str(), count);
  EXPECT_GE(counts.size(), std::min<size_t>(mutations.size(), 10));
  EXPECT_GE(wrong, least);
}

TEST(Mutants, AreCaughtWhenTheyEndOtherwise) {
  catch_mutants(random_strategy, mutations(), kSanitized ? 4 : 12, kSanitized ? 1 : 4,
                kSanitized ? 20 : 500);
}
TEST(Mutants, OfJoinedMessagesAreCaughtToo) {
  std::vector<Mutation> all = mutations();
  const auto more = join_mutations();
  for (int k = 0; k < 4; ++k) all.insert(all.end(), more.begin(), more.end());
  catch_mutants(joining_strategy, all, kSanitized ? 2 : 10, kSanitized ? 1 : 3,
                kSanitized ? 10 : 400);
}
TEST(Mutants, OfTwoVersionsAreCaughtToo) {
  std::vector<Mutation> all = mutations();
  const auto more = version_mutations();
  for (int k = 0; k < 3; ++k) all.insert(all.end(), more.begin(), more.end());
  catch_mutants(overlapping_strategy, all, kSanitized ? 2 : 5, kSanitized ? 1 : 3,
                kSanitized ? 10 : 250);
}
TEST(Mutants, OfCopiesAreCaughtToo) {
  catch_mutants(copying_strategy, copy_mutations(), kSanitized ? 10 : 30, kSanitized ? 2 : 5,
                kSanitized ? 5 : 80);
}
TEST(Mutants, OfRandomNumbersAreCaughtToo) {
  std::vector<Mutation> all = mutations();
  const auto more = agreement_mutations();
  for (int k = 0; k < 3; ++k) all.insert(all.end(), more.begin(), more.end());
  catch_mutants(drawing_strategy, all, kSanitized ? 1 : 2, 1, kSanitized ? 5 : 30);
}
TEST(Mutants, OfRunningStatisticsAreCaughtToo) {
  // Which of two values of one type an op takes shows only beside another microbatch.
  std::vector<Mutation> known = mutations();
  std::erase_if(known, [](const Mutation& mutation) {
    return std::string_view(mutation.name).ends_with("argument") ||
           std::string_view(mutation.name).ends_with("arguments");
  });
  catch_mutants(uncut_strategy, known, kSanitized ? 2 : 8, kSanitized ? 1 : 3,
                kSanitized ? 10 : 150);
}

TEST(Mutants, OfStatesOverOtherAxesAreCaughtToo) {
  std::vector<Mutation> all = mutations();
  const auto more = state_mutations();
  for (int k = 0; k < 8; ++k) all.insert(all.end(), more.begin(), more.end());
  catch_mutants(nested_strategy, all, kSanitized ? 1 : 5, kSanitized ? 1 : 2, kSanitized ? 5 : 150);
}

TEST(Mutants, OfBlocksAreCaughtToo) {
  std::vector<Mutation> all = mutations();
  const auto more = block_mutations();
  for (int k = 0; k < 4; ++k) all.insert(all.end(), more.begin(), more.end());
  catch_mutants(blocks_strategy, all, kSanitized ? 1 : 4, kSanitized ? 1 : 2, kSanitized ? 5 : 100);
}

TEST(Mutants, OfRowsAreCaughtToo) {
  std::vector<Mutation> all = mutations();
  const auto more = block_mutations();
  for (int k = 0; k < 4; ++k) all.insert(all.end(), more.begin(), more.end());
  catch_mutants(rows_strategy, all, kSanitized ? 1 : 4, 1, kSanitized ? 5 : 60);
}

TEST(Mutants, OfTurnsAreCaughtToo) {
  std::vector<Mutation> all = mutations();
  const auto more = block_mutations();
  for (int k = 0; k < 4; ++k) all.insert(all.end(), more.begin(), more.end());
  catch_mutants(turns_strategy, all, kSanitized ? 1 : 2, 1, kSanitized ? 3 : 40);
}

// Also where a rank has one element of a dim, of which others may be before or behind it.
TEST(Mutants, OfExchangesAreCaughtToo) {
  catch_mutants(heads_strategy, exchange_mutations(), 2, kSanitized ? 1 : 4, kSanitized ? 1 : 4);
}

TEST(Mutants, OfExpertsAreCaughtToo) {
  std::vector<Mutation> all = mutations();
  const auto more = block_mutations();
  for (int k = 0; k < 4; ++k) all.insert(all.end(), more.begin(), more.end());
  catch_mutants(experts_strategy, all, kSanitized ? 1 : 4, 1, kSanitized ? 5 : 60);
}

// Beside the plan for one device; also of one microbatch.
TEST(Mutants, ThatDoSomethingElseAreCaughtBesideOneDevice) {
  catch_mutants(random_strategy, doing_mutations(), kSanitized ? 2 : 12, kSanitized ? 1 : 6,
                kSanitized ? 10 : 300, true);
}
TEST(Mutants, OfTwoVersionsAreCaughtBesideOneDevice) {
  catch_mutants(overlapping_strategy, doing_mutations(), kSanitized ? 1 : 6, kSanitized ? 1 : 4,
                kSanitized ? 5 : 100, true);
}

TEST(Mutants, OfRoundedSendsAreCaughtBesideOneDevice) {
  std::vector<Mutation> all(doing_mutations().begin(), doing_mutations().end());
  const auto more = round_mutations();
  for (int k = 0; k < 6; ++k) all.insert(all.end(), more.begin(), more.end());
  catch_mutants(sending_strategy, all, kSanitized ? 1 : 6, kSanitized ? 1 : 3, kSanitized ? 5 : 100,
                true);
}

// Where ranks have blocks of values, too.
TEST(Mutants, OfBlocksAreCaughtBesideOneDevice) {
  catch_mutants(blocks_strategy, doing_mutations(), kSanitized ? 1 : 5, kSanitized ? 1 : 2,
                kSanitized ? 3 : 60, true);
}
TEST(Mutants, OfRowsAreCaughtBesideOneDevice) {
  catch_mutants(rows_strategy, doing_mutations(), kSanitized ? 1 : 3, kSanitized ? 1 : 2,
                kSanitized ? 3 : 40, true);
}
TEST(Mutants, OfTurnsAreCaughtBesideOneDevice) {
  catch_mutants(turns_strategy, doing_mutations(), kSanitized ? 1 : 2, kSanitized ? 1 : 2,
                kSanitized ? 3 : 20, true);
}
TEST(Mutants, OfExpertsAreCaughtBesideOneDevice) {
  catch_mutants(experts_strategy, doing_mutations(), kSanitized ? 1 : 3, kSanitized ? 1 : 2,
                kSanitized ? 3 : 40, true);
}

TEST(Mutants, OfSpreadDirectionsAreCaughtBesideOneDevice) {
  std::vector<Mutation> all(doing_mutations().begin(), doing_mutations().end());
  for (const auto& more : {block_mutations(), state_mutations(), exchange_mutations()})
    all.insert(all.end(), more.begin(), more.end());
  catch_mutants(spread_strategy, all, kSanitized ? 1 : 6, kSanitized ? 1 : 4, kSanitized ? 5 : 100,
                true);
}

// What takes elements from other dims of the same numbers.
TEST(Mutants, OfOtherDimsAreCaughtBesideOneDevice) {
  catch_mutants(turns_strategy, view_mutations(), kSanitized ? 1 : 3, 8, 8, true);
  catch_mutants(heads_strategy, view_mutations(), kSanitized ? 1 : 3, 8, 8, true);
  catch_mutants(experts_strategy, view_mutations(), kSanitized ? 1 : 4, 8, 8, true);
}

// Where ranks have parts, operands may be shorter than on one device, and longer only where states
// are padded.
TEST(Mutants, ThatSumOverMoreAreCaughtBesideOneDevice) {
  catch_mutants(blocks_strategy, longer_mutations(), kSanitized ? 1 : 6, 6, 6, true);
  catch_mutants(turns_strategy, longer_mutations(), kSanitized ? 1 : 3, 6, 6, true);
  catch_mutants(heads_strategy, longer_mutations(), kSanitized ? 1 : 3, 6, 6, true);
}

TEST(Mutants, OfTheNumbersOfAStepAreCaught) {
  catch_mutants(random_strategy, number_mutations(), kSanitized ? 2 : 10, kSanitized ? 1 : 4,
                kSanitized ? 5 : 60);
}
TEST(Mutants, OfTheNumbersOfAStepAreCaughtBesideBlocks) {
  catch_mutants(blocks_strategy, number_mutations(), kSanitized ? 1 : 6, kSanitized ? 1 : 4,
                kSanitized ? 5 : 40);
}
TEST(Mutants, OfWhatIsDrawnAreCaughtBesideOneDevice) {
  catch_mutants(drawing_strategy, draw_mutations(), kSanitized ? 1 : 3, kSanitized ? 1 : 3, 4,
                true);
}
TEST(Mutants, OfWhatIsDrawnAgainAreCaught) {
  catch_mutants(drawing_strategy, redraw_mutations(), kSanitized ? 1 : 4, kSanitized ? 1 : 4,
                kSanitized ? 1 : 6);
}
TEST(Mutants, ThatHideBehindOwnPartsAreCaughtBesideOneDevice) {
  catch_mutants(random_strategy, hidden_mutations(), kSanitized ? 4 : 12, kSanitized ? 1 : 4, 3,
                true);
}

// ---- Fields -------------------------------------------------------------------------------------

// Fields whose changes may mean nothing to verify_plan_set: what is for people and pictures, how a
// device orders and shares its work, and what targets take, with which piper-verify compares it.
bool is_not_read(std::string_view field) {
  constexpr std::string_view kEnds[] = {" label",  " pass", " stage", " micro",
                                        " micros", " fast", " sms",   " priority"};
  constexpr std::string_view kAll[] = {
      "role target",        "role table",        "role workspace_bytes",
      "role packed_bytes",  "role streams name", "role transport_bytes",
      "role scratch_bytes", "role groups name",  "role mesh name"};
  return field.starts_with("role programs work") ||
         std::find(std::begin(kAll), std::end(kAll), field) != std::end(kAll) ||
         std::any_of(std::begin(kEnds), std::end(kEnds),
                     [&](std::string_view end) { return field.ends_with(end); });
}

// Whether some change of the field was refused; else one that was not.
using OfFields = std::map<std::string, std::pair<bool, std::string>>;

// Every field, or one of so many.
void change_fields(MakeStrategy strategy, size_t one_of, OfFields& fields) {
  const int many = one_of == 1 ? 16 : 4;  // places of names and of lists in any order mean nothing
  Random random(seed());
  std::optional<Made> made;
  while (!made || !made->compiled) made = make_plan(random, 1, strategy, true);
  const PlanSet& set = made->compiled->set;
  const Outcome right = run(set, 0);
  const size_t r = pick(random, set.roles.size());
  for (const auto& [field, places] : fields_of(set.roles[r])) {
    if (pick(random, one_of) != 0) continue;
    auto& [refused, accepted] = fields[field];
    const int tries = is_not_read(field) ? 1 : many;
    for (int i = 0; i < tries && !refused && (accepted.empty() || tries > 1); ++i) {
      PlanSet mutant = set;
      const auto what = change_field(mutant.roles[r], places[pick(random, places.size())], random);
      if (!what) continue;
      refused = !findings_of(mutant, &*made->compiled->single).empty();
      if (refused) break;
      accepted = *what;
      EXPECT_EQ(trouble_of(mutant, right), "") << "not found: " << *what << "\n" << made->strategy;
    }
  }
}

// What no rule reads a wrong compiler may write. PIPER_FIELDS=all: every field of five plans, which
// takes 10 to 20 s.
TEST(Fields, AreReadByARule) {
  const bool all = std::getenv("PIPER_FIELDS") != nullptr;
  const MakeStrategy strategies[] = {random_strategy, blocks_strategy, overlapping_strategy,
                                     experts_strategy, turns_strategy};
  OfFields fields;
  for (const MakeStrategy strategy : strategies) change_fields(strategy, all ? 1 : 4, fields);
  std::printf("seed %lu: %zu fields\n", seed(), fields.size());
  EXPECT_GT(fields.size(), all ? 150u : 20u);
  for (const auto& [field, found] : fields)  // of a few places of each, some may mean nothing
    EXPECT_TRUE(!all || found.first || found.second.empty() || is_not_read(field)) << found.second;
}

}  // namespace
}  // namespace piper::mutation
