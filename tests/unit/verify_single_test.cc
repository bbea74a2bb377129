// What the verifier says of plans that do something else than the plan for one device.
#include "piper/ir/ops.h"
#include "unit/verify_plans.h"

namespace piper::verify_single_test {
namespace {

using Edits = std::vector<std::pair<std::string, std::string>>;
using Said = std::vector<std::string>;

// The plan of verify_plans.h on one device: four blocks of one sample.
std::string one_device() {
  std::string text = R"(plan batch=4 arena=1536 workspace=[0] scratch=4194304
axis "one" 1
stream 0 "compute"
input "x" f32[4,2]
sum 0 "w0.grad"
sum 1 "w1.grad"
buffer 0 "w0" f32[1,2] state at=0 init="w0" param="w0"
buffer 1 "w1" f32[1,2] state at=256 init="w1" param="w1"
buffer 2 "x" f32[1,2] step at=512
buffer 3 "da" f32[1,2] step at=768
buffer 4 "g0" f32[1,2] step at=1024
buffer 5 "g1" f32[1,2] step at=1280
program 0 label="first" args=6
  value 0 f32[1,2] read
  value 1 f32[1,2] read
  value 2 f32[1,2] read
  value 3 f32[1,2] written
  value 4 f32[1,2] written
  value 5 f32[1,2] written
  value 6 f32[1,2]
  op Mul in=[0,2] out=[6]
  op Mul in=[1,6] out=[3]
  op Mul in=[6,6] out=[5]
  op Mul in=[2,3] out=[4]
program 1 label="next" args=6
  value 0 f32[1,2] read
  value 1 f32[1,2] read
  value 2 f32[1,2] read
  value 3 f32[1,2] written
  value 4 f32[1,2] read written
  value 5 f32[1,2] read written
  value 6 f32[1,2]
  value 7 f32[1,2]
  value 8 f32[1,2]
  op Mul in=[0,2] out=[6]
  op Mul in=[1,6] out=[3]
  op Mul in=[6,6] out=[7]
  op Add in=[5,7] out=[5]
  op Mul in=[3,2] out=[8]
  op Add in=[8,4] out=[4]
program 2 label="U" args=4
  value 0 f32[1,2] read
  value 1 f32[1,2] read written
  value 2 f32[1,2] read
  value 3 f32[1,2] read written
  op Sub in=[1,0] out=[1]
  op Sub in=[3,2] out=[3]
body
)";
  int index = 0;
  for (int block = 0; block < 4; ++block) {
    text += fmt::format(
        "  {} input label=\"input x\" args=[2] input=\"x\" first={} count=1 stride=[0]\n"
        "  {} compute label=\"block {}\" program={} args=[0,1,2,3,4,5]\n",
        index, block, index + 1, block, block == 0 ? 0 : 1);
    for (int sum = 0; sum < 2; ++sum)
      text += fmt::format("    contribution arg={} target={} first={} count=1 stride=[0]{}\n",
                          4 + sum, sum, block, block == 0 ? "" : " accumulates");
    index += 2;
  }
  return text + fmt::format(
                    "  {} compute label=\"U\" program=2 args=[4,0,5,1]\n"
                    "    sum_read\n    sum_read arg=2 target=1\n",
                    index);
}

Said said(const Edits& stage0, const Edits& stage1, const Edits& single = {}) {
  const PlanSet one = set_of({edited(one_device(), single)}, 1);
  EXPECT_EQ(findings_of(one), Said());
  return findings_of(set_of({edited(kStage0, stage0), edited(kStage1, stage1)}, 2), &one);
}

constexpr const char* kFirst = "'F stage=0 mb=0' on rank 0 (and 1 like it) is the first that does";
std::string adds_otherwise_than_one(int stage, const std::string& more) {
  return fmt::format(
      "single: 'B stage={0} mb=0' on rank {1} (and 1 like it) adds to 'w{0}.grad' something else "
      "than one device does{2}",
      stage, 2 * stage, more);
}

TEST(VerifySingle, AcceptsPlansThatDoTheSame) { EXPECT_EQ(said({}, {}), Said()); }

// Alike in all microbatches and on all replicas.
TEST(VerifySingle, AnotherComputation) {
  const std::string from = fmt::format("; {}, with 'a@0'", kFirst);
  const Said both = {adds_otherwise_than_one(1, from), adds_otherwise_than_one(0, from)};
  EXPECT_EQ(said({{"op Mul in=[0,1] out=[2]", "op Sub in=[0,1] out=[2]"}}, {}), both);
  EXPECT_EQ(said({}, {{"op Mul in=[0,1] out=[2]\n  op Mul in=[1,1] out=[4]",
                       "op Mul in=[0,1] out=[2]\n  op Mul in=[1,0] out=[4]"},
                      {"op Mul in=[0,1] out=[2]\n  op Mul in=[1,1] out=[3]",
                       "op Mul in=[0,1] out=[2]\n  op Mul in=[1,0] out=[3]"}}),
            Said{adds_otherwise_than_one(1, "")});
  EXPECT_EQ(said({{"input=\"x\" count", "input=\"y\" count"},
                  {"input=\"x\" first", "input=\"y\" first"},
                  {"input \"x\" f32", "input \"y\" f32"}},
                 {})[0],
            "single: data input 'y' of rank 0 (and 1 like it) differs from that of the plan for "
            "one device");
}

// Of an attribute that is left out each op has a value of its own.
TEST(VerifySingle, AnAttributeOfZeroIsNoneThatIsAbsent) {
  const auto with = [](const char* attributes) {
    return Edits{
        {"op Mul in=[0,1] out=[2]", fmt::format("op Trilu in=[1] out=[2] {}", attributes)}};
  };
  const std::pair<std::string, std::string> zero{"op Mul in=[0,2] out=[6]",
                                                 "op Trilu in=[2] out=[6] {upper=0}"};
  const Edits single{zero, zero};  // of both programs
  EXPECT_EQ(said(with("{upper=0}"), {}, single), Said());
  EXPECT_NE(said(with(""), {}, single), Said());
}

// A product of `from` and what moves it through 64 levels, each of which doubles what is read, with
// a cast there and back in front of all levels or behind them. Values from `next` on are its own.
struct Nested {
  std::string values, ops;
  int made = 0;
};
Nested nested(const char* product, int next, bool early, int first) {
  Nested text;
  const auto value = [&](const char* type) {
    text.values += fmt::format("  value {} {}\n", next, type);
    return next++;
  };
  const auto cast = [&](const std::string& type) {
    const int to = value(type.c_str());
    text.ops +=
        fmt::format("  op Cast in=[{}] out=[{}] {{to=\"{}\"}}\n", text.made, to, type.substr(0, 3));
    text.made = to;
  };
  text.made = value("f32[1,2]");
  text.ops = fmt::format("  op Mul in={} out=[{}]\n", product, text.made);
  if (early) cast("f64[1,2]");
  for (int level = 0; level < 64; ++level) {
    const int wide = value(early ? "f64[2,2]" : "f32[2,2]"),
              one = value(early ? "f64[1,2]" : "f32[1,2]");
    text.ops += fmt::format(
        "  op Concat in=[{0},{0}] out=[{1}] {{axis=0}}\n"
        "  op Slice in=[{1}] out=[{2}] {{ends=[{4},2], starts=[{3},0], steps=[1,1]}}\n",
        text.made, wide, one, level == 30 ? first : 0, level == 30 ? first + 1 : 1);
    text.made = one;
  }
  if (!early) cast("f64[1,2]");
  cast("f32[1,2]");
  return text;
}

TEST(VerifySingle, MovesAndCastsMayBeNestedDeeply) {
  const Nested first = nested("[0,2]", 6, false, 0), next = nested("[0,2]", 9, false, 0);
  const std::string begin = "  value 6 f32[1,2]\n  op Mul in=[0,2] out=[6]\n",
                    again = "  value 8 f32[1,2]\n  op Mul in=[0,2] out=[6]\n";
  const auto after = [](const Nested& text, const char* ops) {
    return text.ops + fmt::format(fmt::runtime(ops), text.made);
  };
  Edits single = {
      {begin + "  op Mul in=[1,6] out=[3]\n  op Mul in=[6,6] out=[5]\n",
       first.values + after(first, "  op Mul in=[1,{0}] out=[3]\n  op Mul in=[{0},{0}] out=[5]\n")},
      {again + "  op Mul in=[1,6] out=[3]\n  op Mul in=[6,6] out=[7]",
       "  value 8 f32[1,2]\n" + next.values +
           after(next,
                 "  op Reshape in=[{0}] out=[6] {{shape=[1,2]}}\n  op Mul in=[1,6] out=[3]\n"
                 "  op Mul in=[6,6] out=[7]")}};
  const auto spread = [&](bool early, int from) {
    const Nested stage = nested("[0,1]", 3, early, from);
    return said({{"  op Mul in=[0,1] out=[2]\n",
                  stage.values + after(stage, "  op Reshape in=[{}] out=[2] {{shape=[1,2]}}\n")}},
                {}, single);
  };
  for (const bool early : {false, true}) {
    EXPECT_EQ(spread(early, 0), Said()) << early;
    EXPECT_NE(spread(early, 1), Said()) << early;
  }
}

// Nobody has looked yet whether an op has the operands that it takes.
TEST(VerifySingle, OperandsThatAreMissing) {
  for (const OpDef* def : all_ops())
    for (const char* rest : {"in=[] out=[2]", "in=[-1] out=[2]", "in=[0] out=[2] {then=\"Mul\"}"})
      EXPECT_NE(said({{"op Mul in=[0,1] out=[2]", fmt::format("op {} {}", def->name, rest)}}, {}),
                Said())
          << def->name << rest;
}

TEST(VerifySingle, AnotherUpdate) {
  const std::string becomes =
      "single: 'w0' on rank 0 (and 1 like it) becomes something else than on one device";
  EXPECT_EQ(said({{"op Sub in=[1,0] out=[1]", "op Add in=[1,0] out=[1]"}}, {}), Said{becomes});
  EXPECT_EQ(said({{"op Sub in=[1,0] out=[1]", "op Sub in=[0,1] out=[1]"}}, {}), Said{becomes});
}

// One device that also adds up a loss and a count, and reports one of them.
std::string reports_as_loss(int buffer) {
  const std::string text =
      edited(one_device(),
             {{"arena=1536", "arena=2304"},
              {"sum 1 \"w1.grad\"\n", "sum 1 \"w1.grad\"\nsum 2 \"step_loss\"\nsum 3 \"count\"\n"},
              {"program 0 label",
               "buffer 6 \"loss\" f32[] step at=1536\nbuffer 7 \"count\" f32[] step at=1792\n"
               "buffer 8 \"all\" f32[4,2] step at=2048\nprogram 0 label"},
              {"body\n",
               "program 3 label=\"L\" args=3\n  value 0 f32[4,2] read\n  value 1 f32[] written\n"
               "  value 2 f32[] written\n  value 3 i64[4,2]\n  op ReduceSum in=[0] out=[1] "
               "{axes=[0,1], keepdims=0}\n"
               "  op Cast in=[0] out=[3] {to=\"i64\"}\n  op LabelCount in=[3] out=[2]\nbody\n"},
              {"  8 compute",
               "  8 input label=\"input x\" args=[8] input=\"x\" count=4 stride=[0]\n"
               "  9 compute label=\"L\" program=3 args=[8,6,7]\n"
               "    contribution arg=1 target=2 count=4 stride=[0]\n"
               "    contribution arg=2 target=3 count=4 stride=[0]\n  10 compute"}});
  return text + fmt::format("report \"loss\" buffer={}\n", buffer);
}

TEST(VerifySingle, TheLossIsThatOfOneDevice) {
  const PlanSet one = set_of({reports_as_loss(6)}, 1);
  EXPECT_EQ(findings_of(one, &one), Said());
  const PlanSet other = set_of({reports_as_loss(7)}, 1);
  EXPECT_EQ(findings_of(other), Said());
  EXPECT_EQ(findings_of(other, &one), Said{"update: rank 0 reports something else as 'loss'"});
}

TEST(VerifySingle, OtherStates) {
  EXPECT_EQ(said({{"init=\"w0\"", "init=\"v\""}}, {}),
            Said{"single: 'w0' on rank 0 (and 1 like it) starts with the values 'v', not 'w0'"});
  EXPECT_EQ(said({{"init=\"w0\"", "fill=1"}}, {}),
            Said{"single: 'w0' on rank 0 (and 1 like it) starts with the values '', not 'w0'"});
  EXPECT_EQ(said({}, {}, {{"param=\"w0\"", "param=\"w0\" aliases=[\"v0\"]"}}),
            Said{"single: 'w0' on rank 0 (and 1 like it) has other aliases"});
}

}  // namespace
}  // namespace piper::verify_single_test
