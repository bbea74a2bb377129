// Negative controls: what a plan inserts is needed. Taking one communication or the sum over two
// places out, or rescaling the label count or the clip factor, must make the comparison fail that
// the whole plan passes. SGD throughout: Adam hides constant factors.
#include "communicators.h"
#include "equivalence/jobs.h"

namespace piper::controls_test {
namespace {

using namespace jobs;

constexpr int64_t kSteps = 3;
constexpr double kLossBound = 1e-6, kParamBound = 5e-6;
const char* const kModel = "gpt-deep";

// Whether two runs differ beyond the bounds of equal training. A run that fails (a loss that is not
// finite) differs.
bool differs(const Trained& want, const Result<Trained>& got) {
  if (!got) return true;
  for (size_t k = 0; k < want.losses.size(); ++k)
    if (!(std::abs(got->losses[k] - want.losses[k]) <= kLossBound * std::abs(want.losses[k])))
      return true;
  for (const auto& [name, tensor] : want.parameters)
    if (!(tensor_error(got->parameters.at(name), tensor) <= kParamBound)) return true;
  return false;
}

// A group of one: reducing over it leaves the arguments as they are.
int32_t lone_group(RoleProgram& role) {
  role.groups.push_back({"alone", {}});
  return static_cast<int32_t>(role.groups.size() - 1);
}

void neutralise(RoleProgram& role, size_t i) {
  Instruction& instruction = role.body[i];
  instruction.group = lone_group(role);
  instruction.kind = InstructionKind::kAllReduce;
  instruction.peer.clear();
  instruction.communicator = -1;
}

struct Cut {
  std::string what;
  std::vector<std::pair<size_t, size_t>> instructions;  // (role, position)
};

// Every all-reduce, and every send with its receive.
std::vector<Cut> communications(const PlanSet& set) {
  std::vector<Cut> cuts;
  std::map<std::string, Cut> meetings;
  for (size_t r = 0; r < set.roles.size(); ++r)
    for (size_t i = 0; i < set.roles[r].body.size(); ++i) {
      const Instruction& instruction = set.roles[r].body[i];
      if (instruction.kind == InstructionKind::kAllReduce) {
        // Between roles all members lose it, or the others would wait for ever.
        const std::string name = set.roles[r].groups[static_cast<size_t>(instruction.group)].name;
        const bool between_roles = name.find("pp") != name.npos;
        Cut& cut =
            meetings[instruction.label + (between_roles ? "" : fmt::format(" of role {}", r))];
        cut.what = instruction.label;
        cut.instructions.emplace_back(r, i);
      }
      if (instruction.kind != InstructionKind::kSend) continue;
      Cut cut{instruction.label, {{r, i}}};
      const std::string wanted = "recv" + instruction.label.substr(4);
      for (size_t q = 0; q < set.roles.size(); ++q)
        for (size_t k = 0; k < set.roles[q].body.size(); ++k)
          if (q != r && set.roles[q].body[k].kind == InstructionKind::kRecv &&
              set.roles[q].body[k].label == wanted &&
              set.roles[q].body[k].communicator == instruction.communicator)
            cut.instructions.emplace_back(q, k);
      cuts.push_back(std::move(cut));
    }
  for (auto& [name, cut] : meetings) cuts.push_back(std::move(cut));
  return cuts;
}

PlanSet without(PlanSet set, const Cut& cut) {
  for (const auto& [role, position] : cut.instructions) neutralise(set.roles[role], position);
  give_communicators(set);
  return set;
}

TEST(Controls, EveryCommunicationIsNeeded) {
  NEED_MODEL(kModel);
  const auto compiled = compile_model(kModel, strategy_text(kModel, kSgd), {2, 2, 2, "1f1b"});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const auto whole = train(compiled->set, kModel, kSteps);
  ASSERT_TRUE(whole) << print_error(whole.error());
  const auto again = train(compiled->set, kModel, kSteps);
  ASSERT_FALSE(differs(*whole, again)) << "the whole plan must agree with itself";
  const auto cuts = communications(compiled->set);
  ASSERT_GE(cuts.size(), 8u);
  for (const Cut& cut : cuts)
    EXPECT_TRUE(differs(*whole, train(without(compiled->set, cut), kModel, kSteps)))
        << "nothing changes without '" << cut.what << "'";
}

// Whether all copies of all parameters have the bits of the single device in each step.
bool equals_single(const PlanSet& set, const PlanSet& single) {
  const auto data = open_batches(set, kModel), of_single = open_batches(single, kModel);
  if (!data || !of_single) return false;
  JobOptions options;
  options.steps = kSteps;
  options.threads = 1;
  options.verify.against = VerifyAgainst::kSingle;
  return run_job(set, data->get(), &single, of_single->get(), options).ok();
}

// Stages on two devices: they exchange parts of sums, and sums.
TEST(Controls, EveryMessageBetweenCopiesIsNeeded) {
  NEED_MODEL(kModel);
  const std::string train = std::string(kSgd) + ", clip_norm: 0.1";
  const auto compiled =
      compile_model(kModel, strategy_text(kModel, train), {2, 1, 4, "dualpipe"}, true);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  ASSERT_TRUE(equals_single(compiled->set, *compiled->single));
  size_t exchanges = 0, tried = 0;
  for (const Cut& cut : communications(compiled->set)) {
    const bool exchange = cut.what.find(".grad") != cut.what.npos;
    if (exchange && ++exchanges % (kSanitized ? 50 : 5) != 0) continue;
    ++tried;
    EXPECT_FALSE(equals_single(without(compiled->set, cut), *compiled->single))
        << "nothing changes without '" << cut.what << "'";
  }
  EXPECT_GT(exchanges, 190u);
  EXPECT_GT(tried, 10u);
}

// Each place with its own part of the sum alone, as if there were no exchange: far from the uncut
// plan, and not by rounding.
TEST(Controls, TheSumOverTwoPlacesIsNeeded) {
  NEED_MODEL(kModel);
  const auto compiled = compile_model(kModel, strategy_text(kModel, kSgd), {2, 1, 4, "chimera"});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const auto whole = train(compiled->set, kModel, kSteps);
  ASSERT_TRUE(whole) << print_error(whole.error());
  PlanSet broken = compiled->set;
  int sums = 0;
  for (RoleProgram& role : broken.roles)
    for (size_t i = 0; i < role.body.size(); ++i)
      if (!role.body[i].combines.empty()) neutralise(role, i), ++sums;
  give_communicators(broken);
  EXPECT_GT(sums, 100);
  EXPECT_TRUE(differs(*whole, train(broken, kModel, kSteps)));
}

// Runs the plan with every op named `op` changed by `change`.
template <class Change>
Result<Trained> train_changed(const PlanSet& set, const std::string& op, Change change) {
  PlanSet changed = set;
  size_t count = 0;
  for (RoleProgram& role : changed.roles)
    for (Program& program : role.programs)
      for (ProgramOp& candidate : program.ops)
        if (candidate.op == op) change(candidate.attrs), ++count;
  EXPECT_GT(count, 0u) << "the plan has no " << op;
  return train(changed, kModel, kSteps);
}

TEST(Controls, LabelCountMatters) {
  NEED_MODEL(kModel);
  const auto compiled = compile_model(kModel, strategy_text(kModel, kSgd), {2, 2, 2, "1f1b"});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const auto whole = train(compiled->set, kModel, kSteps);
  ASSERT_TRUE(whole) << print_error(whole.error());
  // Counting the ignored labels too is the mistake of a mean of means.
  const auto counted = train_changed(compiled->set, "LabelCount",
                                     [](Attrs& attrs) { attrs.set("ignore_index", int64_t{-1}); });
  EXPECT_TRUE(differs(*whole, counted));
}

TEST(Controls, ClipFactorMatters) {
  NEED_MODEL(kModel);
  const std::string clipped =
      std::string(kSgd) + ", clip_norm: 0.1";  // below every norm of these steps
  const auto compiled = compile_model(kModel, strategy_text(kModel, clipped), {2, 2, 2, "1f1b"});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const auto whole = train(compiled->set, kModel, kSteps);
  ASSERT_TRUE(whole) << print_error(whole.error());
  for (const double norm : whole->norms) EXPECT_GT(norm, 0.1);
  for (const double max_norm : {0.2, 1e9})
    EXPECT_TRUE(differs(*whole, train_changed(compiled->set, "ClipFactor", [&](Attrs& attrs) {
      attrs.set("max_norm", max_norm);
    }))) << max_norm;
}

}  // namespace
}  // namespace piper::controls_test
