// Jobs that go on under other plans in the middle: each ordered pair of ten strategies ends as a
// job that saves there, stops and resumes under the other plans. And what proves a transfer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "piper/plan/verify.h"
#include "piper/plan/worlds.h"
#include "sample_jobs.h"

namespace piper::switch_test {
namespace {

struct Way {
  const char* name;
  const char* text;
};
// All of them for four ranks.
constexpr Way kWays[] = {
    {"ddp4", "include: <ddp>\nparams: {dp: 4}\n"},
    {"zero1x4", "include: <zero1>\nparams: {dp: 4}\n"},
    {"zero3x4", "include: <zero3>\nparams: {dp: 4}\n"},
    {"pp4", "include: <1f1b>\nparams: {stages: 4, microbatches: 4}\n"},
    {"pp2dp2", "include: <1f1b>\nparams: {stages: 2, dp: 2, microbatches: 3}\n"},
    {"zbv2dp2", "include: <zbv>\nparams: {stages: 2, dp: 2, microbatches: 3}\n"},
    {"tp4", "include: <tensor/tensor>\nparams: {tp: 4}\n"},
    {"tp2dp2", "include: [<tensor/tensor>, <memory/zero1>]\nparams: {tp: 2, dp: 2}\n"},
    {"cp4", "include: <context/ring>\nparams: {cp: 4}\n"},
    {"vocabulary4",
     "mesh: {tp: 4}\ndirectives:\n  - shard: {match: \"**/wte/*\", dim: 0, over: tp, pad: "
     "true}\n"}};

// What rank 0 says of the transfer.
struct Said {
  int64_t moved = -1, least = -1, kept = -1;
};
Said said_of(const std::string& output) {
  Said said;
  const size_t at = output.find("bytes moved between ranks");
  if (at == std::string::npos) return said;
  double ms = 0;
  const size_t begin = output.rfind(": ", at) + 2;
  std::sscanf(output.c_str() + begin,
              "%ld bytes moved between ranks in %lf ms (the least is %ld), %ld", &said.moved, &ms,
              &said.least, &said.kept);
  return said;
}

class Switch : public SampleJobs {
 protected:
  static void SetUpTestSuite() {
    SampleJobs::SetUpTestSuite();
    for (const Way& way : kWays) offer(way.name, [&way] { compile(way.name, way.text); });
  }
  // Writes a checkpoint after three steps.
  static void save(const std::string& name) {
    const auto [code, output] = run(name, "--steps 3 --checkpoint " + path("at-" + name));
    ASSERT_EQ(code, 0) << name << output;
  }
  static PlanSet plans(const std::string& name) {
    auto set = read_plan_set(path(name));
    EXPECT_TRUE(set) << print_error(set.error());
    return *std::move(set);
  }
  static std::string switched(const std::string& to, int step) {
    return fmt::format(" --switch {}@{} ", path(to), step);
  }
  // The lines of a metrics file without what differs from run to run.
  static std::string losses(const std::string& file) {
    std::string all;
    const std::string text = read(file);
    for (size_t at = 0; (at = text.find("{\"step\":", at)) != std::string::npos; ++at)
      all += text.substr(at, text.find(",\"tokens_per_s\"", at) - at) + "\n";
    return all;
  }
};

class SwitchPairs : public Switch, public ::testing::WithParamInterface<Way> {};

TEST_P(SwitchPairs, EndAsAJobThatResumes) {
  const Way& from = GetParam();
  save(from.name);
  int moving = 0;
  for (const Way& to : kWays) {
    const std::string what = fmt::format("{} -> {}", from.name, to.name);
    for (const char* folder : {"ours", "theirs"}) std::filesystem::remove_all(path(folder));
    const auto ours =
        run(from.name, "--steps 5 --checkpoint " + path("ours") + switched(to.name, 3));
    const auto theirs =
        run(to.name, fmt::format("--steps 5 --checkpoint {} --resume {}", path("theirs"),
                                 path(std::string("at-") + from.name)));
    ASSERT_EQ(ours.first, 0) << what << ours.second;
    ASSERT_EQ(theirs.first, 0) << what << theirs.second;
    EXPECT_TRUE(tensors_of("ours") == tensors_of("theirs")) << what;
    const Said said = said_of(ours.second);
    EXPECT_EQ(said.moved, said.least) << what << ours.second;
    EXPECT_GT(said.kept, 0) << what << ours.second;
    EXPECT_TRUE(said.moved == 0 || from.name != std::string(to.name)) << ours.second;
    moving += said.moved > 0 ? 1 : 0;
  }
  // What each rank holds whole is there already.
  const std::string name = from.name;
  EXPECT_EQ(moving > 0, name != "ddp4" && name != "cp4");
}
INSTANTIATE_TEST_SUITE_P(, SwitchPairs, ::testing::ValuesIn(kWays),
                         [](const auto& each) { return std::string(each.param.name); });

// The control: a job that does not switch, one that switches elsewhere and one that begins the
// optimizer afresh end otherwise; a loss after the switch tells it.
TEST_F(Switch, OtherCoursesEndOtherwise) {
  const auto ended = [&](const std::string& plans, const std::string& flags) {
    std::filesystem::remove(path("m.jsonl"));
    const auto [code, output] = run(plans, flags + " --metrics " + path("m.jsonl"));
    EXPECT_EQ(code, 0) << output;
    return losses("m.jsonl");
  };
  save("tp4");
  const std::string ours = ended("tp4", "--steps 6" + switched("pp2dp2", 3)),
                    same = ended("tp4", "--steps 6" + switched("pp2dp2", 3));
  EXPECT_EQ(std::ranges::count(ours, '\n'), 6);
  EXPECT_EQ(ours, same);
  EXPECT_NE(ours, ended("tp4", "--steps 6"));
  EXPECT_NE(ours, ended("tp4", "--steps 6" + switched("pp2dp2", 1)));
  const std::string afresh =
      ended("pp2dp2", "--steps 3 --init " + path("at-tp4") + "/step-000000003");
  EXPECT_EQ(afresh.find(ours.substr(ours.find("{\"step\":5"))), std::string::npos);
}

// Of equal matrices each rank computes the direction of one; its momentum is cut all the same.
TEST_F(Switch, MatricesThatRanksShareOutGoOn) {
  const std::string train =
      "train:\n"
      "  global_batch: 12\n"
      "  optimizer: {muon: {lr: 2e-2}}\n"
      "  groups: [{of: [vectors, embeddings, heads], optimizer: {adamw: {lr: 2e-3}}}]\n";
  const auto ends = [&](const std::string& plans, int steps, const std::string& folder,
                        const std::string& flags) {
    std::filesystem::remove_all(path(folder));
    const auto [code, output] =
        run(plans, fmt::format("--steps {} --checkpoint {}{}", steps, path(folder), flags));
    EXPECT_EQ(code, 0) << output;
    return tensors_of(folder);
  };
  for (const std::string frozen : {"", "parameters: [{freeze: '**/h/0/qkv/*'}]\n"}) {
    compile("shared", frozen + "include: <zero1>\nparams: {dp: 4}\n", train);
    compile("shared3", frozen + "include: <zero3>\nparams: {dp: 2, stages: 2}\n", train);
    compile("shared2", frozen + "include: <zero2>\nparams: {dp: 2, stages: 2}\n", train);
    const auto saved = ends("shared2", 3, "saved", "");
    const auto whole = ends("shared2", 5, "whole", "");
    EXPECT_TRUE(ends("shared2", 5, "other", switched("shared3", 3)) == whole);
    EXPECT_TRUE(ends("shared3", 5, "other", " --resume " + path("saved")) == whole);
    EXPECT_FALSE(ends("shared3", 2, "other", " --init " + path("saved/step-000000003")) == whole);
    const auto ours = ends("shared2", 5, "other", switched("shared", 3));
    EXPECT_TRUE(ends("shared", 5, "other", " --resume " + path("saved")) == ours);
  }
}

// Ranks as processes exchange over their own transport.
TEST_F(Switch, ProcessesEndAsThreadsDo) {
  for (const auto& [from, to] : {std::pair("zero3x4", "pp2dp2"), std::pair("tp4", "zero1x4"),
                                 std::pair("pp4", "vocabulary4")}) {
    const std::string flags = "--steps 5" + switched(to, 2);
    ASSERT_EQ(run(from, flags + "--save " + path("threads")).first, 0);
    const auto tcp =
        run_shell("exec 2>&1; " + as_processes(4, torch_variables(4, free_port()),
                                               command(from, flags + "--save " + path("tcp"))));
    const auto mpi = run_shell(std::string(kMpi) + "exec 2>&1; mpirun -n 4 " +
                               command(from, flags + "--save " + path("mpi")));
    EXPECT_EQ(tcp.first, 0) << from << tcp.second;
    EXPECT_EQ(mpi.first, 0) << from << mpi.second;
    EXPECT_EQ(read("threads"), read("tcp")) << from;
    EXPECT_EQ(read("threads"), read("mpi")) << from;
    EXPECT_NE(said_of(tcp.second).moved, -1) << tcp.second;
  }
}

// What the steps before a switch take is known after it: none is begun that would end too late.
TEST_F(Switch, ATimeLimitCountsStepsFromBeforeTheSwitch) {
  const auto [code, output] =
      run("ddp4", "--steps 9 --time-limit 8" + switched("pp4", 2), "slow@0:*:after");
  EXPECT_EQ(code, 130) << output;  // two steps took six seconds
  EXPECT_NE(output.find("interrupted after step 2\n"), std::string::npos) << output;
}

// A job that ends since a checkpoint is not written does so also where that is the one of a switch.
TEST_F(Switch, ACheckpointThatIsNotWrittenEndsTheJobThere) {
  const std::string flags = "--steps 5 --checkpoint " + path("unwritten") + switched("pp4", 2);
  const auto [code, output] = run("ddp4", flags, "disk@1:2:write");
  EXPECT_EQ(code, 12) << output;
  EXPECT_NE(output.find("interrupted after step 2\n"), std::string::npos) << output;
  const auto ignored =
      run("ddp4", flags + " --checkpoint-errors ignore --save " + path("a"), "disk@1:2:write");
  EXPECT_EQ(ignored.first, 12) << ignored.second;
  ASSERT_EQ(run("ddp4", "--steps 5" + switched("pp4", 2) + "--save " + path("b")).first, 0);
  EXPECT_TRUE(read("a") == read("b"));
}

// Ranks that would switch to other plans than the rest are refused when they meet, as are flags
// that each rank decides by.
TEST_F(Switch, ProcessesSwitchToTheSamePlans) {
  const auto together = [](const std::string& first, const std::string& rest) {
    return run_shell("exec 2>&1; " + as_processes(4, torch_variables(4, free_port()),
                                                  "sh -c '[ $RANK = 0 ] && exec " + first +
                                                      " || exec " + rest + "'"));
  };
  const auto other = together(command("pp4", "--steps 5" + switched("ddp4", 2)),
                              command("pp4", "--steps 5" + switched("zero1x4", 2)));
  EXPECT_NE(other.first, 0) << other.second;
  EXPECT_NE(other.second.find("--switch"), std::string::npos) << other.second;
  const auto most =
      together(command("pp4", "--steps 5 --on-nan rollback --checkpoint " + path("most") +
                                  " --most-rollbacks 2"),
               command("pp4", "--steps 5 --on-nan rollback --checkpoint " + path("most")));
  EXPECT_NE(most.first, 0) << most.second;
  EXPECT_NE(most.second.find("--most-rollbacks"), std::string::npos) << most.second;
}

// Scaled losses, two versions of weights and parameters in 16 bits move, too.
TEST_F(Switch, NumericsAndVersionsMove) {
  const std::pair<const char*, const char*> more[] = {
      {"bf16-zero1", "include: [<zero1>, <numerics/bf16>]\nparams: {dp: 4}\n"},
      {"bf16-pp", "include: [<1f1b>, <numerics/bf16>]\nparams: {stages: 4, microbatches: 4}\n"},
      {"f16-zero3", "include: [<zero3>, <numerics/f16>]\nparams: {dp: 4}\n"},
      {"f16-ddp", "include: [<ddp>, <numerics/f16>]\nparams: {dp: 4}\n"},
      {"versions4", "include: <pipedream-2bw>\nparams: {stages: 4, microbatches: 4}\n"},
      {"versions2", "include: <pipedream-2bw>\nparams: {stages: 2, dp: 2, microbatches: 3}\n"}};
  for (const auto& [name, text] : more) compile(name, text);
  for (const auto& [from, to] :
       {std::pair("bf16-zero1", "bf16-pp"), std::pair("bf16-pp", "bf16-zero1"),
        std::pair("f16-zero3", "f16-ddp"), std::pair("f16-ddp", "f16-zero3"),
        std::pair("versions4", "versions2"), std::pair("versions2", "versions4")}) {
    const std::string what = fmt::format("{} -> {}", from, to), folder = path("cut-" + what);
    const auto part = run(from, "--steps 3 --checkpoint '" + folder + "'"),
               rest = run(to, "--steps 6 --resume '" + folder + "' --save " + path("theirs")),
               ours = run(from, "--steps 6" + switched(to, 3) + "--save " + path("ours"));
    for (const auto& one : {part, rest, ours}) ASSERT_EQ(one.first, 0) << what << one.second;
    EXPECT_EQ(read("ours"), read("theirs")) << what;
    EXPECT_GE(said_of(ours.second).moved, said_of(ours.second).least) << what;
  }
  // Another precision is another setting.
  const auto refused = run("bf16-zero1", "--steps 6" + switched("ddp4", 3)),
             accepted = run("bf16-zero1", "--steps 6 --accept precision" + switched("ddp4", 3));
  EXPECT_EQ(refused.first, 2) << refused.second;
  EXPECT_NE(refused.second.find("was trained with other settings"), std::string::npos)
      << refused.second;
  EXPECT_EQ(accepted.first, 0) << accepted.second;
}

// Experts that are looked up lie with their ranks, or whole on each.
TEST_F(Switch, ExpertsMove) {
  std::ofstream tokens(path("tokens.bin"), std::ios::binary);
  for (int i = 0; i < 4000; ++i) tokens.put(static_cast<char>(i * i % 11));
  tokens.close();
  const auto make = [&](const std::string& name, const std::string& text) {
    std::ofstream(path(name + ".yaml")) << "piper: 1\n"
                                        << text << "train: {optimizer: {adamw: {lr: 1e-2}}}\n";
    const auto [code, output] = run_shell(
        fmt::format("{}/bin/piperc {}/tests/data/experts/looked_up.onnx {} -o {} 2>&1",
                    PIPER_BINARY_DIR, PIPER_SOURCE_DIR, path(name + ".yaml"), path(name)));
    ASSERT_EQ(code, 0) << output;
  };
  make("ep2", "include: [<experts/experts>, <memory/ddp>]\nparams: {ep: 2}\n");
  make("dp2", "include: <ddp>\nparams: {dp: 2}\n");
  const auto train = [&](const std::string& plans, const std::string& flags) {
    return run_shell(fmt::format("{}/bin/piper-run {} --data {}:u8 --threads 1 {} 2>&1",
                                 PIPER_BINARY_DIR, path(plans), path("tokens.bin"), flags));
  };
  for (const auto& [from, to] : {std::pair("ep2", "dp2"), std::pair("dp2", "ep2")}) {
    const std::string folder = path(std::string("experts-") + from);
    const auto part = train(from, "--steps 3 --checkpoint " + folder),
               rest = train(to, "--steps 6 --resume " + folder + " --save " + path("theirs")),
               ours = train(from, "--steps 6" + switched(to, 3) + "--save " + path("ours"));
    for (const auto& one : {part, rest, ours}) ASSERT_EQ(one.first, 0) << from << one.second;
    EXPECT_EQ(read("ours"), read("theirs")) << from;
    const Said said = said_of(ours.second);
    EXPECT_EQ(said.moved, said.least) << ours.second;
    EXPECT_EQ(said.moved > 0, from == std::string("ep2")) << ours.second;
  }
}

// Killed before or after the switch, the same command goes on and ends as one that nobody killed.
TEST_F(Switch, KilledJobsGoOn) {
  const std::string common = "--steps 6" + switched("zero3x4", 3);
  ASSERT_EQ(run("pp2dp2", common + "--save " + path("b")).first, 0);
  for (const int step : {3, 4, 5}) {
    const std::string folder = fmt::format("{}-{}", path("killed"), step),
                      flags = common + fmt::format("--every 1 --checkpoint {} --resume-or-start {}",
                                                   folder, folder);
    const auto killed = run("pp2dp2", flags, fmt::format("kill@1:{}:after", step));
    EXPECT_NE(killed.first, 0) << killed.second;
    const auto resumed = run("pp2dp2", flags + " --save " + path("a"));
    EXPECT_EQ(resumed.first, 0) << resumed.second;
    EXPECT_NE(resumed.second.find("goes on after step"), std::string::npos) << resumed.second;
    EXPECT_EQ(read("a"), read("b")) << step;
  }
}

// A list of switches is as many jobs that each end with a checkpoint; killed between them, the same
// command goes on.
TEST_F(Switch, SeveralInOneJob) {
  const std::string list =
      switched("pp2dp2", 2) + switched("zero3x4", 4) + switched("tp4", 5) + switched("ddp4", 6);
  const auto ours = run("ddp4", "--steps 8" + list + "--save " + path("ours"));
  ASSERT_EQ(ours.first, 0) << ours.second;
  const std::string folder = path("chain");
  ASSERT_EQ(run("ddp4", "--steps 2 --checkpoint " + folder).first, 0);
  const auto go_on = [&](const std::string& plans, int steps) {
    const auto [code, output] =
        run(plans, fmt::format("--steps {} --checkpoint {} --resume {} --save {}", steps, folder,
                               folder, path("theirs")));
    EXPECT_EQ(code, 0) << output;
  };
  go_on("pp2dp2", 4);
  go_on("zero3x4", 5);
  go_on("tp4", 6);
  EXPECT_NE(read("ours"), read("theirs"));
  go_on("ddp4", 8);
  EXPECT_EQ(read("ours"), read("theirs"));
  for (const int step : {1, 4, 5, 7}) {
    const std::string kept = fmt::format("{}-{}", path("listed"), step),
                      flags =
                          fmt::format("--steps 8 {} --every 1 --checkpoint {} --resume-or-start {}",
                                      list, kept, kept);
    EXPECT_NE(run("ddp4", flags, fmt::format("kill@1:{}:after", step)).first, 0);
    const auto resumed = run("ddp4", flags + " --save " + path("theirs"));
    EXPECT_EQ(resumed.first, 0) << resumed.second;
    EXPECT_EQ(read("ours"), read("theirs")) << step;
  }
  const auto early = run("ddp4", "--steps 8" + switched("pp4", 4) + switched("tp4", 4));
  EXPECT_EQ(early.first, 2);
  EXPECT_NE(early.second.find("the switch before it is after step 4, which is not earlier"),
            std::string::npos)
      << early.second;
}

// The data go on at the next sample, whatever the batches, and evaluations go on under the plans.
TEST_F(Switch, AnotherBatchGoesOnAtTheNextSample) {
  std::string larger = kTrain;
  larger.replace(larger.find("12"), 2, "24");
  compile("larger", kWays[0].text, larger);
  const auto [code, output] = run("pp4", "--steps 5 --accept global_batch --checkpoint " +
                                             path("grown") + switched("larger", 3));
  ASSERT_EQ(code, 0) << output;
  const auto reader = CheckpointReader::open(file_storage(), path("grown/step-000000005"));
  ASSERT_TRUE(reader) << print_error(reader.error());
  EXPECT_EQ(reader->about().samples, 3 * 12 + 2 * 24);
  const auto twice = run("pp4", "--steps 6 --accept global_batch --checkpoint " + path("twice") +
                                    switched("larger", 3) + switched("pp2dp2", 5));
  ASSERT_EQ(twice.first, 0) << twice.second;
  const auto later = CheckpointReader::open(file_storage(), path("twice/step-000000006"));
  ASSERT_TRUE(later) << print_error(later.error());
  EXPECT_EQ(later->about().samples, 3 * 12 + 2 * 24 + 12);
}

constexpr const char* kAdam = "optimizer: {adamw: {lr: 0.01}}";
constexpr const char* kPipes = "include: <1f1b>\nparams: {stages: 2, dp: 2, microbatches: 2}\n";

// A batch that grows by a list in the strategy is as many plans, and switches between them.
TEST_F(Switch, ABatchGrowsByTheStrategy) {
  const char* const stages =
      "global_batch: 24, rampup: [{steps: 2, global_batch: 8}, {steps: 3, global_batch: 12}]";
  compile("grows", kPipes, fmt::format("train: {{{}, {}}}\n", kAdam, stages));
  for (const int batch : {8, 12, 24})
    compile(fmt::format("b{}", batch), kPipes,
            fmt::format("train: {{{}, global_batch: {}}}\n", kAdam, batch));
  const std::string common = "--steps 7 --every 1 --checkpoint ";
  const auto ours = run("grows", common + path("grew") + " --save " + path("ours")),
             theirs = run("b8", "--steps 7 --accept global_batch" + switched("b12", 2) +
                                    switched("b24", 5) + "--save " + path("theirs")),
             other = run("b8", "--steps 7 --save " + path("alone"));
  for (const auto& one : {ours, theirs, other}) ASSERT_EQ(one.first, 0) << one.second;
  EXPECT_EQ(read("ours"), read("theirs"));
  EXPECT_NE(read("ours"), read("alone"));
  const auto reader = CheckpointReader::open(file_storage(), path("grew/step-000000007"));
  ASSERT_TRUE(reader) << print_error(reader.error());
  EXPECT_EQ(reader->about().samples, 2 * 8 + 3 * 12 + 2 * 24);
  for (const int step : {2, 4, 6}) {
    const std::string kept = fmt::format("{}-{}", path("growing"), step),
                      flags = common + kept + " --resume-or-start " + kept;
    EXPECT_NE(run("grows", flags, fmt::format("kill@1:{}:after", step)).first, 0);
    const auto resumed = run("grows", flags + " --save " + path("resumed"));
    EXPECT_EQ(resumed.first, 0) << resumed.second;
    EXPECT_EQ(read("ours"), read("resumed")) << step;
  }
  EXPECT_EQ(run("grows", "--steps 2").first, 0);
  const auto compared = run("grows", "--steps 7 --verify-against single");
  EXPECT_EQ(compared.first, 2);
  EXPECT_NE(compared.second.find(path("grows") + " has plans for each stage of a batch that grows"),
            std::string::npos)
      << compared.second;
  const auto refused = run("grows", "--steps 7" + switched("b24", 6));
  EXPECT_EQ(refused.first, 2);
  EXPECT_NE(refused.second.find("--switch and further plans do not go together with it"),
            std::string::npos)
      << refused.second;
}

// An evaluation of a checkpoint is that of the job, in the plans of its stage; one of the initial
// values is in those of the last stage.
TEST_F(Switch, ABatchThatGrowsIsEvaluatedInItsStage) {
  compile("evaluated", kPipes,
          fmt::format("train: {{{}, global_batch: 24, rampup: [{{steps: 2, global_batch: 8}}]}}\n",
                      kAdam),
          "--eval");
  const std::string valid = fmt::format("--eval-data {}:u8 ", path("valid.bin"));
  std::ofstream(path("valid.bin"), std::ios::binary) << read("text.bin").substr(0, 66 * 32 + 1);
  const auto evaluation = [&](const std::string& flags) {
    std::filesystem::remove(path("e.jsonl"));
    const auto [code, output] = run("evaluated", valid + flags + " --metrics " + path("e.jsonl"));
    EXPECT_EQ(code, 0) << output;
    const std::string lines = read("e.jsonl"), key = "{\"evaluation\":";
    const size_t at = lines.rfind(key);
    return at == lines.npos ? "" : lines.substr(at, lines.find(",\"ms\"", at) - at);
  };
  const std::string folder = path("evaluated-at");
  const std::string early = evaluation("--steps 1 --checkpoint " + folder),
                    early_again = evaluation("--eval-only --resume " + folder),
                    late = evaluation("--steps 4 --resume " + folder + " --checkpoint " + folder),
                    late_again = evaluation("--eval-only --resume " + folder);
  EXPECT_EQ(early, early_again);
  EXPECT_EQ(late, late_again);
  EXPECT_NE(early.find("\"batches\":9"), early.npos) << early;  // the last ones are not full
  EXPECT_NE(late.find("\"batches\":3"), late.npos) << late;
  EXPECT_NE(evaluation("--eval-only").find("\"batches\":3"), std::string::npos);
}

// A job that goes back to before a switch runs the steps between again under their plans, and
// switches again: it ends as one that began there, on the data after what failed.
TEST_F(Switch, AJobGoesBackToBeforeASwitch) {
  const auto train = [](int batch) {
    return fmt::format("train: {{{}, clip_norm: 1.0, global_batch: {}}}\n", kAdam, batch);
  };
  compile("back8", kPipes, train(8));
  compile("back12", "include: <zero3>\nparams: {dp: 4}\n", train(12));
  const std::string text = read("text.bin");
  // `samples`: of 32 tokens each, which the data begin after.
  const auto without = [&](const char* name, size_t samples) {
    std::ofstream(path(name), std::ios::binary) << text.substr(samples * 32);
  };
  const auto on = [&](const std::string& plans, const char* data, const std::string& flags) {
    return run_shell(
        fmt::format("{}/bin/piper-run {} --data {}:u8 --threads 1 --no-shuffle {} 2>&1",
                    PIPER_BINARY_DIR, path(plans), path(data), flags));
  };
  const std::string both = "--accept data,global_batch --every 2" + switched("back12", 4);
  const auto back = [&](const char* folder) {
    return fmt::format("{} --no-shuffle --on-nan rollback --metrics {}.jsonl --checkpoint {} ",
                       both, path(folder), path(folder));
  };
  // The checkpoint of the switch holds what is not finite. Step 5 fails twice under the new plans.
  for (const char* const folder : {"back-threads", "back-processes"}) {
    ASSERT_EQ(run("back8", "--no-shuffle --steps 4 --every 2 --checkpoint " + path(folder),
                  "nan@*:4:update")
                  .first,
              0);
    const std::string flags = "--steps 7 " + back(folder) + "--resume " + path(folder);
    const auto [code, output] =
        folder[5] == 't'
            ? run("back8", flags)
            : run_shell("exec 2>&1; " +
                        as_processes(4, torch_variables(4, free_port()), command("back8", flags)));
    ASSERT_EQ(code, 0) << output;
    EXPECT_NE(output.find("the job goes on from the checkpoint after step 2"), output.npos)
        << output;
    EXPECT_NE(output.find("after step 4 the job goes on under " + path("back12")), output.npos)
        << output;
    const std::string lines = read(std::string(folder) + ".jsonl");
    for (const int step : {3, 4, 5, 7}) {
      const std::string line = fmt::format("{{\"step\":{},", step);
      EXPECT_NE(lines.find(line), lines.npos) << lines;
      EXPECT_EQ(lines.find(line), lines.rfind(line)) << lines;
    }
    const auto reader = CheckpointReader::open(file_storage(), path(folder) + "/step-000000007");
    ASSERT_TRUE(reader) << print_error(reader.error());
    EXPECT_EQ(reader->about().samples, 4 * 8 + 2 * 12 + 2 * 8 + 3 * 12);
  }
  ASSERT_EQ(on("back8", "text.bin", "--steps 2 --checkpoint " + path("back-straight")).first, 0);
  std::filesystem::copy(path("back-straight"), path("back-shorter"),
                        std::filesystem::copy_options::recursive);
  without("later.bin", 4 * 8 + 2 * 12 - 2 * 8);
  const auto straight = on("back8", "later.bin",
                           "--steps 7 " + both + "--resume " + path("back-straight") +
                               " --checkpoint " + path("back-straight"));
  ASSERT_EQ(straight.first, 0) << straight.second;
  EXPECT_TRUE(tensors_of("back-threads") == tensors_of("back-straight"));
  EXPECT_TRUE(tensors_of("back-processes") == tensors_of("back-straight"));
  const auto other =
      on("back8", "text.bin", "--steps 7 " + both + "--checkpoint " + path("back-other"));
  ASSERT_EQ(other.first, 0) << other.second;
  EXPECT_FALSE(tensors_of("back-threads") == tensors_of("back-other"));

  // A step that fails whenever it comes: the job goes back so often in all, not under each plans.
  const auto stuck =
      run("back8", "--steps 7 --most-rollbacks 2 " + back("back-stuck"), "nan@1:5:backward");
  EXPECT_EQ(stuck.first, 11) << stuck.second;
  EXPECT_NE(stuck.second.find("the job has gone back 2 times"), std::string::npos) << stuck.second;
  ASSERT_EQ(on("back8", "later.bin",
               "--steps 4 --accept data --resume " + path("back-shorter") + " --checkpoint " +
                   path("back-shorter"))
                .first,
            0);
  EXPECT_TRUE(tensors_of("back-stuck") == tensors_of("back-shorter"));

  // Without any checkpoint it goes back to where it began.
  const auto began = run("back8",
                         "--steps 7 --most-rollbacks 1 --checkpoint-errors ignore --no-shuffle "
                         "--on-nan rollback --accept global_batch --checkpoint " +
                             path("back-began") + switched("back12", 4) + "--save " + path("a"),
                         "disk@0:4:commit,nan@1:5:backward");
  EXPECT_NE(began.second.find("the job goes on from where it began"), std::string::npos)
      << began.second;
  without("latest.bin", 4 * 8 + 12);
  ASSERT_EQ(on("back8", "latest.bin", "--steps 4 --save " + path("b")).first, 0);
  EXPECT_TRUE(read("a") == read("b")) << began.second;
}

// A job whose batch grows goes back over two of its stages, and ends as one that began there.
TEST_F(Switch, ABatchThatGrowsGoesBackToAnEarlierStage) {
  compile("steps-up", kPipes,
          fmt::format("train: {{{}, global_batch: 24, rampup: [{{steps: 2, global_batch: 8}}, "
                      "{{steps: 2, global_batch: 12}}]}}\n",
                      kAdam));
  const std::string common = "--no-shuffle --every 1 --checkpoint ", folder = path("went-up");
  ASSERT_EQ(run("steps-up", "--steps 4 " + common + folder, "nan@*:4:update").first, 0);
  for (const char* step : {"/step-000000002", "/step-000000003"})
    std::filesystem::remove_all(folder + step);
  const auto [code, output] =
      run("steps-up", "--steps 6 --on-nan rollback " + common + folder + " --resume " + folder);
  ASSERT_EQ(code, 0) << output;
  const size_t failed = 2 * 8 + 2 * 12 + 2 * 24;
  const auto reader = CheckpointReader::open(file_storage(), folder + "/step-000000006");
  ASSERT_TRUE(reader) << print_error(reader.error());
  EXPECT_EQ(reader->about().samples, static_cast<int64_t>(failed + 8 + 2 * 12 + 2 * 24));
  const std::string again = path("straight-up");
  ASSERT_EQ(run("steps-up", "--steps 1 " + common + again).first, 0);
  std::ofstream(path("up.bin"), std::ios::binary) << read("text.bin").substr((failed - 8) * 32);
  const auto straight = run_shell(fmt::format(
      "{}/bin/piper-run {} --data {}:u8 --threads 1 --steps 6 --accept data {} --resume {} 2>&1",
      PIPER_BINARY_DIR, path("steps-up"), path("up.bin"), common + again, again));
  ASSERT_EQ(straight.first, 0) << straight.second;
  EXPECT_TRUE(tensors_of("went-up") == tensors_of("straight-up"));
}

// Steps and folders in the index of stages are no plans, whose digests would tell of a change.
TEST_F(Switch, StagesThatWereChangedAreRefused) {
  compile("stages", kPipes,
          fmt::format("train: {{{}, global_batch: 24, rampup: [{{steps: 2, global_batch: 8}}]}}\n",
                      kAdam));
  const std::string index = read("stages/stages.json");
  const auto refuse = [&](const std::string& why) {
    const auto [code, output] = run("stages", "--steps 4");
    EXPECT_EQ(code, 4) << output;
    EXPECT_NE(output.find(why), std::string::npos) << output;
  };
  std::string later = index;
  later.replace(later.find("\"first_step\": 2"), 15, "\"first_step\": 3");
  std::ofstream(path("stages/stages.json")) << later;
  refuse("stages.json: error: the file was modified: it does not match its digest");
  std::ofstream(path("stages/stages.json")) << index;
  std::filesystem::remove_all(path("stages/stage-1"));
  std::filesystem::copy(path("stages/stage-0"), path("stages/stage-1"),
                        std::filesystem::copy_options::recursive);
  refuse("stages.json: error: stage-1 is not the plan set that was written there with it");
}

// Formulas of the learning rate count the tokens that each stage has taken; 32 a sample.
TEST_F(Switch, RatesCountTheTokensOfABatchThatGrows) {
  compile(
      "counts", kPipes,
      fmt::format("train: {{{}, schedule: \"lr * max(1 - tokens / 16384, 0)\", global_batch: 24, "
                  "rampup: [{{steps: 2, global_batch: 8}}, {{steps: 3, global_batch: 12}}]}}\n",
                  kAdam));
  std::filesystem::remove(path("m.jsonl"));
  const auto [code, output] = run("counts", "--steps 7 --metrics " + path("m.jsonl"));
  ASSERT_EQ(code, 0) << output;
  const std::string text = read("m.jsonl");
  const int before[] = {0, 8, 16, 28, 40, 52, 76};  // samples
  size_t at = 0;
  for (const int samples : before) {
    const std::string key = "\"learning_rate\":";
    at = text.find(key, at);
    ASSERT_NE(at, text.npos) << text;
    at += key.size();
    EXPECT_NEAR(std::strtod(text.c_str() + at, nullptr), 0.01 * (1 - samples * 32 / 16384.0), 1e-8)
        << samples;
  }
  const auto [explained, lines] = run_shell(
      fmt::format("{0}/bin/piperc {1}/samples/gpt/model.onnx {2} --dry-run --explain=train 2>&1",
                  PIPER_BINARY_DIR, PIPER_SOURCE_DIR, path("counts.yaml")));
  EXPECT_EQ(explained, 0) << lines;
  for (const char* line :
       {"steps 1 to 2: 8 samples each, 16 in all by then",
        "steps 3 to 5: 12 samples each, 52 in all by then", "from step 6 on: 24"})
    EXPECT_NE(lines.find(line), std::string::npos) << lines;
  std::ofstream(path("bad.yaml")) << "piper: 1\ntrain: {rampup: [{steps: 2, global_batch: 8}]}\n";
  const auto [bad, why] =
      run_shell(fmt::format("{0}/bin/piperc {1}/samples/gpt/model.onnx {2} --dry-run 2>&1",
                            PIPER_BINARY_DIR, PIPER_SOURCE_DIR, path("bad.yaml")));
  EXPECT_NE(bad, 0);
  EXPECT_NE(
      why.find("bad.yaml:2:9: error: 'rampup' says how the batch grows to global_batch, which "
               "is not given"),
      std::string::npos)
      << why;
}

// Averages that a checkpoint lacks begin with the parameters that it has.
TEST_F(Switch, AveragesBeginWithTheParametersOfABranch) {
  const auto train = [](const char* more) {
    return fmt::format("train: {{global_batch: 12, optimizer: {{adamw: {{lr: 2e-3}}}}{}}}\n", more);
  };
  compile("bare", "include: <ddp>\nparams: {dp: 2}\n", train(""));
  compile("averaged", "include: <zero1>\nparams: {dp: 2}\n", train(", ema: {decay: 0.75}"));
  const auto before = run("bare", "--steps 2 --checkpoint " + path("bare-2")),
             after = run("averaged", "--steps 3 --branch " + path("bare-2") + " --checkpoint " +
                                         path("averaged-3"));
  for (const auto& one : {before, after}) ASSERT_EQ(one.first, 0) << one.second;
  const auto first = tensors_of("bare-2"), next = tensors_of("averaged-3");
  size_t averages = 0;
  for (const auto& [name, bytes] : next) {
    if (!name.ends_with(".ema")) continue;
    ++averages;
    const std::string param = name.substr(0, name.size() - 4);
    for (size_t at = 0; at < bytes.size(); at += sizeof(float)) {
      float average = 0, was = 0, is = 0;
      std::memcpy(&average, bytes.data() + at, sizeof average);
      std::memcpy(&was, first.at(param).data() + at, sizeof was);
      std::memcpy(&is, next.at(param).data() + at, sizeof is);
      ASSERT_NEAR(average, 0.75f * was + 0.25f * is, 1e-6) << name;
    }
  }
  EXPECT_GT(averages, 0u);
}

// Weights of a mixture that change for samples which are consumed move its sources: this is said. A
// phase from the next sample on moves none.
TEST_F(Switch, SourcesThatDoNotGoOnWhereTheyWereAreNamed) {
  std::ofstream(path("other.bin"), std::ios::binary) << read("text.bin");
  const auto mix = [&](const char* weights, const std::string& phases) {
    std::ofstream(path("mix.yaml")) << fmt::format(
        "sources:\n  - {{name: web, files: text.bin, type: u8, weight: {}}}\n"
        "  - {{name: code, files: other.bin, type: u8, weight: 0.5}}\n{}",
        weights, phases);
  };
  const auto train = [&](const std::string& flags) {
    return run_shell(fmt::format("{}/bin/piper-run {} --data {} --threads 1 {} 2>&1",
                                 PIPER_BINARY_DIR, path("pp2dp2"), path("mix.yaml"), flags));
  };
  mix("0.5", "");
  const auto begun = train("--steps 2 --checkpoint " + path("mixed"));
  ASSERT_EQ(begun.first, 0) << begun.second;
  const std::string on = "--steps 2 --accept data --resume " + path("mixed");
  mix("0.25", "");
  const auto moved = train(on);
  EXPECT_EQ(moved.first, 0) << moved.second;
  for (const char* line : {"source 'web' goes back by 4 samples, which come once more",
                           "source 'code' leaves out 4 samples",
                           "help: weights of a phase with 'from: 24' hold from here on"})
    EXPECT_NE(moved.second.find(line), std::string::npos) << moved.second;
  mix("0.5", "phases:\n  - {from: 24, weights: {web: 0.25, code: 0.5}}\n");
  const auto kept = train(on);
  EXPECT_EQ(kept.first, 0) << kept.second;
  EXPECT_EQ(kept.second.find("source '"), std::string::npos) << kept.second;
}

// The order of a source follows from how many samples it has: a job that goes on with more of them
// is told what that means for its epoch.
TEST_F(Switch, SourcesWithAnotherNumberOfSamplesAreNamed) {
  std::filesystem::create_directory(path("shards"));
  const std::string text = read("text.bin");
  const auto write = [&](const char* name, size_t windows) {
    std::ofstream(path(name), std::ios::binary) << text.substr(0, windows * 32 + 1);
  };
  const auto train = [&](const std::string& flags) {
    const auto [code, output] =
        run_shell(fmt::format("{}/bin/piper-run {} --data '{}:u8' --threads 1 {} 2>&1",
                              PIPER_BINARY_DIR, path("pp2dp2"), path("shards/*.bin"), flags));
    EXPECT_EQ(code, 0) << output;
    return output;
  };
  for (const std::string order : {"", " --no-shuffle"}) {
    std::filesystem::remove(path("shards/b.bin"));
    write("shards/a.bin", 64);
    const std::string folder = path(order.empty() ? "shards-drawn" : "shards-in-order");
    train("--steps 3 --checkpoint " + folder + order);
    write("shards/b.bin", 8);
    const std::string said = train("--steps 4 --accept data --resume " + folder + order);
    EXPECT_NE(said.find("has 72 samples instead of 64"), said.npos) << said;
    EXPECT_EQ(said.find("Of the 36 samples that its epoch has given, about 18 come once more in "
                        "it, and about 18 others do not come in it") == said.npos,
              !order.empty())
        << said;
    // The order stays where the source has as many samples as before.
    write("shards/a.bin", 56);
    const std::string alike = train("--steps 4 --accept data --resume " + folder + order);
    EXPECT_EQ(alike.find("samples instead of"), alike.npos) << alike;
    // Files that lie one behind the other go on elsewhere where an epoch has ended before.
    write("shards/a.bin", 16);
    const std::string fewer = train("--steps 4 --accept data --resume " + folder + order);
    EXPECT_EQ(fewer.find("it goes on at sample 12 of its epoch instead of 36") != fewer.npos,
              !order.empty())
        << fewer;
  }
}

// A skipped step counts in no stage: neither does the rate stand still at the begin of the next one
// nor jump. The job counts them over all stages.
TEST_F(Switch, SkippedStepsOfABatchThatGrowsCountNoTokens) {
  compile(
      "skips", kPipes,
      fmt::format("train: {{{}, schedule: \"lr * max(1 - tokens / 65536, 0)\", global_batch: 24, "
                  "rampup: [{{steps: 3, global_batch: 8}}, {{steps: 3, global_batch: 12}}]}}\n"
                  "directives:\n  - precision: {{compute: f16, loss_scale: {{init_scale: 1e9}}}}\n",
                  kAdam));
  std::filesystem::remove(path("m.jsonl"));
  const auto [code, output] = run("skips", "--steps 24 --metrics " + path("m.jsonl"));
  ASSERT_EQ(code, 0) << output;
  std::istringstream lines(read("m.jsonl"));
  int updates = 0, skipped = 0, samples = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto number = [&](const std::string& key) {
      const size_t at = line.find("\"" + key + "\":");
      return at == line.npos ? -1 : std::strtod(line.c_str() + at + key.size() + 3, nullptr);
    };
    if (number("learning_rate") < 0) continue;
    EXPECT_NEAR(number("learning_rate"), 0.01 * (1 - samples * 32 / 65536.0), 1e-8) << line;
    if (line.find("\"skipped\":true") != line.npos) {
      ++skipped;
    } else {
      samples += updates < 3 ? 8 : updates < 6 ? 12 : 24;
      ++updates;
    }
    EXPECT_EQ(number("steps_skipped"), skipped) << line;
  }
  EXPECT_EQ(updates + skipped, 24);
  EXPECT_GT(skipped, 4);  // in two stages
  EXPECT_GT(updates, 7);
}

// Shares of samples are to one another in each stage as they are in the whole batch.
TEST_F(Switch, SharesGrowWithTheBatch) {
  const auto of = [&](const char* sizes) {
    std::ofstream(path("shares.yaml"))
        << "piper: 1\ntrain: {global_batch: 8, rampup: [{steps: 1, global_batch: 4}]}\n"
        << "directives: [{split: {dim: samples, into: 2, sizes: " << sizes << "}}]\n";
    return run_shell(
        fmt::format("{0}/bin/piperc {1}/samples/gpt/model.onnx {2} -o {3} --force 2>&1",
                    PIPER_BINARY_DIR, PIPER_SOURCE_DIR, path("shares.yaml"), path("shares")));
  };
  const auto [code, text] = of("[6, 2]");
  EXPECT_EQ(code, 0) << text;
  const auto [bad, why] = of("[7, 1]");
  EXPECT_EQ(bad, 1);
  EXPECT_NE(why.find("shares.yaml:3:53: error: split: shares of 7, 1 of 8 samples are no whole "
                     "samples of the 4 that a microbatch has"),
            std::string::npos)
      << why;
}

// The data that are evaluated on are read by either plans in their own order, and at the switch
// nothing is evaluated that would not be without it.
TEST_F(Switch, EvaluationsGoOn) {
  for (const Way& way : {kWays[2], kWays[4]}) {
    const std::string made = path(std::string("eval-") + way.name);
    std::ofstream(path("eval.yaml")) << "piper: 1\n" << way.text << kTrain;
    ASSERT_EQ(run_shell(fmt::format(
                            "{}/bin/piperc {}/tests/data/small_gpt/model.onnx {} --eval -o {} 2>&1",
                            PIPER_BINARY_DIR, PIPER_SOURCE_DIR, path("eval.yaml"), made))
                  .first,
              0);
  }
  const std::string common =
      fmt::format("--eval-data {}:u8 --eval-batches 2 --eval-every 2 ", path("text.bin"));
  const auto losses_of = [](const std::string& output) {
    std::vector<std::string> found;
    for (size_t at = 0; (at = output.find(": valid loss ", at)) != std::string::npos; ++at)
      found.push_back(output.substr(at - 12, output.find("  ", at) - at + 12));
    return found;
  };
  const auto part = run("eval-pp2dp2", common + "--steps 4 --checkpoint " + path("eval-at")),
             rest = run("eval-zero3x4", common + "--steps 6 --resume " + path("eval-at")),
             ours = run("eval-pp2dp2", common + "--steps 6" + switched("eval-zero3x4", 4)),
             odd = run("eval-pp2dp2", common + "--steps 6" + switched("eval-zero3x4", 3)),
             twice = run("eval-pp2dp2", common + "--steps 6" + switched("eval-zero3x4", 2) +
                                            switched("eval-pp2dp2", 3));
  for (const auto& one : {part, rest, ours, odd, twice}) ASSERT_EQ(one.first, 0) << one.second;
  std::vector<std::string> theirs = losses_of(part.second);
  const std::vector<std::string> more = losses_of(rest.second);
  theirs.insert(theirs.end(), more.begin(), more.end());
  EXPECT_EQ(theirs.size(), 3u) << part.second << rest.second;
  EXPECT_EQ(losses_of(ours.second), theirs);
  EXPECT_EQ(losses_of(odd.second).size(), 3u) << odd.second;
  EXPECT_EQ(losses_of(twice.second).size(), 3u) << twice.second;
}

TEST_F(Switch, WhatCannotBeIsSaid) {
  compile("ddp2", "include: <ddp>\nparams: {dp: 2}\n");
  compile("sgd", kWays[0].text,
          "train: {global_batch: 12, optimizer: {sgd: {lr: 0.01, momentum: 0.9}}}\n");
  std::ofstream(path("other.yaml")) << "piper: 1\ninclude: <ddp>\nparams: {dp: 4}\n"
                                       "train: {optimizer: {adamw: {lr: 1e-2}}}\n";
  ASSERT_EQ(
      run_shell(fmt::format("{}/bin/piperc {}/tests/data/experts/looked_up.onnx {} -o {} 2>&1",
                            PIPER_BINARY_DIR, PIPER_SOURCE_DIR, path("other.yaml"), path("moe")))
          .first,
      0);
  const auto refuse = [&](const std::string& flags, const std::string& why) {
    const auto [code, output] = run("ddp4", "--steps 5 " + flags);
    EXPECT_NE(code, 0) << flags;
    EXPECT_NE(output.find(why), std::string::npos) << flags << output;
  };
  refuse(switched("ddp2", 3), "is for 4 ranks and " + path("ddp2") + " for 2");
  refuse(switched("pp4", 5), "less than the 5 of --steps");
  refuse(switched("pp4", 0), "less than the 5 of --steps");
  refuse("--switch " + path("pp4"), "expected DIR@STEP");
  refuse("--switch " + path("pp4") + "@3x", "expected DIR@STEP");
  refuse(switched("nowhere", 3), "nowhere");
  refuse(switched("sgd", 3), "trains something else than");
  refuse(switched("moe", 3), "");
  refuse(switched("pp4", 3) + "--verify-against single", "do not go together");
}

// ---- The proof ----------------------------------------------------------------------------------

TEST_F(Switch, TransfersAreProvedAndWrongOnesAreNot) {
  for (const auto& [from, to] : {std::pair("zero3x4", "tp2dp2"), std::pair("tp4", "pp2dp2"),
                                 std::pair("vocabulary4", "zero1x4")}) {
    const PlanSet before = plans(from), after = plans(to);
    const auto transfer = plan_transfer(before, after);
    ASSERT_TRUE(transfer) << print_error(transfer.error());
    EXPECT_TRUE(verify_transfer(*transfer, before, after).empty());
    EXPECT_FALSE(verify_transfer(*transfer, after, before).empty()) << from;
    const auto found = [&](const char* what, const auto& change) {
      for (size_t m = 0; m < transfer->moves.size(); m += 131) {
        StateTransfer wrong = *transfer;
        change(wrong, m);
        EXPECT_FALSE(verify_transfer(wrong, before, after).empty())
            << from << " -> " << to << ", move " << m << ": " << what;
      }
    };
    found("left out", [](StateTransfer& t, size_t m) {
      t.moves.erase(t.moves.begin() + static_cast<ptrdiff_t>(m));
    });
    found("twice", [](StateTransfer& t, size_t m) { t.moves.push_back(t.moves[m]); });
    found("shorter", [](StateTransfer& t, size_t m) { --t.moves[m].runs.back().count; });
    found("longer", [](StateTransfer& t, size_t m) { ++t.moves[m].runs.back().count; });
    found("elsewhere", [](StateTransfer& t, size_t m) { ++t.moves[m].runs.front().first; });
    found("to another",
          [](StateTransfer& t, size_t m) { t.moves[m].to = (t.moves[m].to + 1) % 4; });
    found("of no state", [](StateTransfer& t, size_t m) { t.moves[m].state = 1 << 20; });
  }
  // From a rank that does not hold it.
  const PlanSet before = plans("zero3x4"), after = plans("ddp4");
  auto transfer = plan_transfer(before, after);
  ASSERT_TRUE(transfer);
  for (StateTransfer::Move& move : transfer->moves)
    if (move.from != move.to) {
      move.from = move.to;
      break;
    }
  const std::vector<Finding> findings = verify_transfer(*transfer, before, after);
  ASSERT_FALSE(findings.empty());
  EXPECT_NE(findings[0].text.find("does not hold them"), std::string::npos) << findings[0].text;
}

// A few bytes of a plan may cut a state into more stretches than memory has room for.
TEST_F(Switch, StatesInTooManyStretchesAreRefused) {
  PlanSet set = plans("ddp4");
  constexpr int64_t kStretches = int64_t{1} << 33;
  for (RoleProgram& role : set.roles) {
    Tensor tensor{.name = "large", .type = {DType::kF32, {kStretches}}, .kind = BufferKind::kState};
    tensor.whole = {4 * kStretches};
    tensor.cuts = {{.axis = 0, .dim = 0, .outer = kStretches}};
    role.tensors.push_back(tensor);
    role.buffers.push_back({static_cast<int32_t>(role.tensors.size()) - 1});
  }
  const auto transfer = plan_transfer(set, set);
  ASSERT_FALSE(transfer);
  EXPECT_NE(print_error(transfer.error()).find("in more than 67108864 runs, up to 'large'"),
            std::string::npos)
      << print_error(transfer.error());
}

// Plan sets that each are proved, and train one after the other what no strategy says.
TEST_F(Switch, StagesThatTrainOtherwiseAreNotProved) {
  compile("alike", kPipes,
          fmt::format("train: {{{}, global_batch: 24, rampup: [{{steps: 2, global_batch: 8}}]}}\n",
                      kAdam));
  const auto load = [&](const std::string& name) {
    auto set = plans(name);
    EXPECT_TRUE(load_params(set));
    return set;
  };
  const PlanSet first = load("alike/stage-0"), first_single = load("alike/stage-0/single");
  const auto verified = [&](const auto& change) {
    PlanSet last = load("alike/stage-1"), last_single = load("alike/stage-1/single");
    for (PlanSet* set : {&last, &last_single}) change(*set);
    const std::vector<SetWithOracles> sets{{&first, &first_single}, {&last, &last_single}};
    const auto written =
        write_stages(sets, std::vector<int64_t>{0, 2}, path("otherwise"), {.force = true});
    EXPECT_TRUE(written) << print_error(written.error());
    return run_shell(
        fmt::format("{}/bin/piper-verify {} 2>&1", PIPER_BINARY_DIR, path("otherwise")));
  };
  const auto each_op = [](PlanSet& set, const auto& change) {
    for (RoleProgram& role : set.roles)
      for (Program& program : role.programs)
        for (ProgramOp& op : program.ops) change(op);
  };
  const auto right = verified([](PlanSet&) {});
  EXPECT_EQ(right.first, 0) << right.second;
  const auto expect = [&](const std::string& why, const auto& change) {
    const auto [code, output] = verified(change);
    EXPECT_EQ(code, 3) << why;
    EXPECT_NE(output.find(": switch: " + why), std::string::npos) << output;
  };
  expect("the update AdamW ", [&](PlanSet& set) {
    each_op(set, [](ProgramOp& op) {
      if (op.op == "AdamW") op.attrs.set("beta1", 0.5);
    });
  });
  expect("the update LearningRate 0.01 is gone", [&](PlanSet& set) {
    each_op(set, [](ProgramOp& op) {
      if (op.op == "LearningRate") op.attrs.set("base", 0.5);
    });
  });
  expect("its strategy is another one than before", [](PlanSet& set) {
    set.manifest.strategy_text += "# more\n";
    set.manifest.strategy_digest = digest(set.manifest.strategy_text);
  });
  expect("its model is another one than before",
         [](PlanSet& set) { set.manifest.model_digest = digest("other"); });
}

// Jobs that resume compare settings by the strategy's text.
TEST_F(Switch, TheTextOfTheStrategyIsThatOfTheOracles) {
  PlanSet set = plans("pp2dp2"), single = plans("pp2dp2/single");
  ASSERT_TRUE(load_params(set) && load_params(single));
  const auto verified = [&] {
    const auto written = write_plan_set(set, &single, nullptr, path("texts"), {.force = true});
    EXPECT_TRUE(written) << print_error(written.error());
    return run_shell(fmt::format("{}/bin/piper-verify {} 2>&1", PIPER_BINARY_DIR, path("texts")));
  };
  const auto right = verified();
  EXPECT_EQ(right.first, 0) << right.second;
  std::string& text = set.manifest.strategy_text;
  text.replace(text.find("lr: "), 4, "lr: 1");
  const auto changed = verified();
  EXPECT_EQ(changed.first, 3);
  EXPECT_NE(changed.second.find("structure: the text of the strategy does not have its digest"),
            std::string::npos)
      << changed.second;
  set.manifest.strategy_digest = digest(text);
  const auto other = verified();
  EXPECT_EQ(other.first, 3);
  EXPECT_NE(other.second.find("single: the strategy of single/ is another one"), std::string::npos)
      << other.second;
}

TEST_F(Switch, PiperVerifyProvesIt) {
  const auto [code, output] = run_shell(fmt::format(
      "{}/bin/piper-verify {} --switch {} 2>&1", PIPER_BINARY_DIR, path("zero3x4"), path("tp4")));
  EXPECT_EQ(code, 0) << output;
  EXPECT_NE(output.find("each element comes once"), std::string::npos) << output;
  EXPECT_EQ(output.find("--accept"), std::string::npos) << output;
}

// piper-verify names what piper-run asks to accept, and nothing else.
TEST_F(Switch, PiperVerifyNamesWhatIsToBeAccepted) {
  std::string train = kTrain;
  train.replace(train.find("lr: "), 4, "lr: 1");
  compile("steeper", "weight_versions: 2\ninclude: <ddp>\nparams: {dp: 4}\n", train);
  const std::string verify = fmt::format("{}/bin/piper-verify {} --switch {} 2>&1",
                                         PIPER_BINARY_DIR, path("ddp4"), path("steeper"));
  const auto [code, output] = run_shell(verify);
  EXPECT_EQ(code, 0) << output;
  std::string names;
  for (size_t at = 0; (at = output.find("--accept ", at)) != std::string::npos;) {
    at += std::strlen("--accept ");
    names += (names.empty() ? "" : ",") + output.substr(at, output.find(')', at) - at);
  }
  EXPECT_EQ(names, "optimizer.adamw.lr,weight_versions") << output;
  EXPECT_EQ(run("ddp4", "--steps 3" + switched("steeper", 2)).first, 2);
  const auto switched_to = run("ddp4", "--steps 3 --accept " + names + switched("steeper", 2));
  EXPECT_EQ(switched_to.first, 0) << switched_to.second;
  const auto json = run_shell("exec " + verify + " --json");
  EXPECT_NE(json.second.find("\"accept\":[\"optimizer.adamw.lr\",\"weight_versions\"]"),
            std::string::npos)
      << json.second;
}

}  // namespace
}  // namespace piper::switch_test
