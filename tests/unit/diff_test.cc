// What a change of a strategy shows as, and what never shows.
#include "piper/inspect/diff.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "diff_cases.h"
#include "folder.h"
#include "piper/planner/compile.h"
#include "shell.h"

namespace piper::diff_test {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string source(const std::string& path) { return std::string(PIPER_SOURCE_DIR) + "/" + path; }

Result<Compiled> compile_text(const std::string& text) {
  const Folder folder;
  return compile({.model = source("samples/gpt/model.onnx"),
                  .strategy = folder.write("strategy.yaml", text),
                  .oracles = false});
}
Summary summary_of(const std::string& text) {
  const auto compiled = compile_text(text);
  EXPECT_TRUE(compiled) << print_error(compiled.error()) << text;
  return compiled ? summarise(compiled->set) : Summary();
}
const Summary& base() {
  static const Summary summary = summary_of(kStrategy);
  return summary;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  for (; at != text.npos; at = text.find(from, at + to.size())) text.replace(at, from.size(), to);
  return text;
}

std::string names_of(const Diff& diff) {
  std::string names;
  for (const DiffSection& section : diff.sections)
    names += (names.empty() ? "" : " ") + section.name;
  return names;
}

class DiffOf : public testing::TestWithParam<DiffCase> {};

TEST_P(DiffOf, SaysThisAndNothingElse) {
  const DiffCase& c = GetParam();
  const std::string text =
      *c.from ? replaced(kStrategy, c.from, c.to) : std::string(kStrategy) + c.to;
  Diff diff = compare(base(), summary_of(text));
  EXPECT_EQ(names_of(diff), c.sections) << print_diff(diff, false);
  const std::string printed = print_diff(diff, false);
  for (const char* words : c.says) EXPECT_THAT(printed, HasSubstr(words));
  EXPECT_THAT(printed, Not(HasSubstr(".yaml")));
  if (*c.sections == '\0') {
    EXPECT_THAT(printed, HasSubstr("no difference in what runs"));
  }
}

INSTANTIATE_TEST_SUITE_P(, DiffOf, testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

// Of two streams that do what one did, one has its place.
TEST(DiffStreams, OneIsNowCalledOtherwiseOnce) {
  Summary now = base();
  for (RoleSummary& role : now.roles)
    for (size_t s = role.streams.size(); s-- > 0;) {
      if (role.streams[s].name != "reduce") continue;
      role.streams[s].name = "first";
      role.streams.push_back(role.streams[s]);
      role.streams.back().name = "second";
    }
  const std::string printed = print_diff(compare(base(), now), false);
  EXPECT_THAT(printed, HasSubstr("stream 'reduce' is now called 'first'"));
  EXPECT_THAT(printed, Not(HasSubstr("is now called 'second'")));
}

// Plans that can evaluate are others than those that cannot, and than those that evaluate more.
TEST(DiffEvaluation, IsOfTheTraining) {
  const Folder folder;
  const auto evaluating = [&](const std::string& text) {
    const auto compiled = compile({.model = source("samples/gpt/model.onnx"),
                                   .strategy = folder.write("strategy.yaml", text),
                                   .evaluation = true,
                                   .oracles = false});
    EXPECT_TRUE(compiled) << print_error(compiled.error());
    return compiled ? summarise(compiled->set) : Summary();
  };
  const Summary with = evaluating(kStrategy);
  Diff diff = compare(base(), with);
  EXPECT_EQ(names_of(diff), "train memory") << print_diff(diff, false);
  EXPECT_THAT(print_diff(diff, false), HasSubstr("evaluation  none → "));
  EXPECT_THAT(print_diff(diff, false), HasSubstr("FLOP a batch over all ranks"));
  Diff more =
      compare(with, evaluating(replaced(kStrategy, "global_batch: 16", "global_batch: 32")));
  EXPECT_THAT(print_diff(more, false), HasSubstr("evaluation"));
  EXPECT_TRUE(compare(with, evaluating(kStrategy)).sections.empty());
}

TEST(DiffTarget, AndItsTableOfAlgorithmsAreNamed) {
  Summary other = base();
  for (RoleSummary& role : other.roles) role.table = "0123456789abcdef";
  Diff diff = compare(base(), other);
  EXPECT_EQ(names_of(diff), "target");
  EXPECT_THAT(print_diff(diff, false), HasSubstr("table of algorithms"));
  EXPECT_THAT(print_diff(diff, false), HasSubstr("0123456789abcdef"));
  for (RoleSummary& role : other.roles) role.target = "cuda", role.table = "";
  diff = compare(base(), other);
  EXPECT_EQ(names_of(diff), "target");
  EXPECT_THAT(print_diff(diff, false), HasSubstr("made for"));
  EXPECT_THAT(print_diff(diff, false), HasSubstr("cuda"));
}

TEST(DiffPlaces, PermutedDevicesAreComparedByTheirWork) {
  const std::string turned =
      replaced(replaced(kStrategy, "{pp: s}", "{pp: \"P-1-s\"}"), "P-r-1", "r");
  const Diff diff = compare(base(), summary_of(turned));
  EXPECT_EQ(names_of(diff), "placement") << print_diff(diff, false);
  EXPECT_EQ(diff.sections[0].summary, "2 devices are permuted: each does what another did");
  EXPECT_THAT(print_diff(diff, false), HasSubstr("pp=0  its work is on  pp=0 → pp=1"));
}

TEST(DiffPlaces, AModelOfOneStageMayHaveNoTag) {
  const std::string one = replaced(kStrategy, "stages: 2", "stages: 1");
  std::string none = replaced(one, "  - place: {where: {stage: s}, on: {pp: s}}\n", "");
  none.resize(none.find("  - order"));
  const Diff diff = compare(summary_of(none), summary_of(one));
  EXPECT_TRUE(diff.same()) << print_diff(diff, false);
  EXPECT_THAT(diff.notes, testing::ElementsAre("the whole model is now stage 'stage=0'"));
}

TEST(DiffPlaces, DevicesOfAnAxisThatIsGoneAreNotPermuted) {
  const Diff diff = compare(base(), summary_of(replaced(kStrategy, "stages: 2", "stages: 1")));
  const DiffSection* placement = diff.find("placement");
  ASSERT_NE(placement, nullptr);
  EXPECT_EQ(placement->summary, "4 → 2 ranks");
  EXPECT_THAT(print_diff(diff, false), Not(HasSubstr("its work is on")));
}

// A stage runs as many forwards ahead as 1F1B does, and keeps as much: in part for the step before.
TEST(DiffOrder, WhatTheStepBeforeHasBegunCounts) {
  std::string text = replaced(kStrategy, "piper: 1", "piper: 1\nweight_versions: 2");
  text = text.substr(0, text.find("        repeat")) +
         "        repeat M - (P-r-1): F B\n        repeat P-r-1:       F[step=1] B\n";
  const std::string said = print_diff(compare(base(), summary_of(text)), false);
  EXPECT_THAT(said, HasSubstr("    + F1 B0 F2 B1 F3 B2 …\n"));
  EXPECT_THAT(said, Not(HasSubstr("forwards in flight")));
  EXPECT_THAT(said, Not(HasSubstr("  kept for the backward")));
}

TEST(DiffOrder, BothSidesNameStagesWhereOneHasSeveral) {
  const std::string text = replaced(replaced(kStrategy, "into: $stages", "into: 2 * stages"),
                                    "{pp: s}", "{pp: s % stages}");
  const Diff diff = compare(base(), summary_of(text.substr(0, text.find("  - order"))));
  EXPECT_THAT(print_diff(diff, false), HasSubstr("    - 0F0 0F1 0B0 "));
}

// ---- Sets on the disk ---------------------------------------------------------------------------

std::string write_set(const Folder& folder, const std::string& text, const char* name) {
  const auto compiled = compile_text(text);
  EXPECT_TRUE(compiled);
  const std::string path = folder.path() + "/" + name;
  const Status written = write_plan_set(compiled->set, nullptr, nullptr, path, {});
  EXPECT_TRUE(written) << print_error(written.error());
  return path;
}

TEST(DiffSets, FoldersSayWhatPlansInMemorySay) {
  const Folder folder;
  const std::string text = replaced(kStrategy, "  clip_norm", "  seed: 7\n  clip_norm");
  const std::string path = write_set(folder, text, "a");
  // Nothing is read for each rank.
  for (int rank = 0; rank < 4; ++rank)
    std::filesystem::remove(fmt::format("{}/rank{}.plan", path, rank));
  const auto read = summarise(path);
  ASSERT_TRUE(read) << print_error(read.error());
  EXPECT_EQ(read->manifest.seed, 7U);
  const Summary made = summary_of(text);
  EXPECT_TRUE(compare(*read, made).same());
  EXPECT_EQ(names_of(compare(base(), *read)), "train");
  EXPECT_EQ(memory_lines(*read), memory_lines(made));
  EXPECT_EQ(train_lines(*read), train_lines(made));
}

TEST(DiffSets, RolesThatAreKnownAreNotRead) {
  const Folder folder;
  const std::string path = write_set(folder, kStrategy, "a");
  std::filesystem::remove_all(path + "/roles");
  const auto known = summarise(path, &base());
  ASSERT_TRUE(known) << print_error(known.error());
  EXPECT_TRUE(compare(base(), *known).same());
  EXPECT_FALSE(summarise(path));
}

TEST(DiffSets, WhatNoSectionTellsIsNotCalledTheSame) {
  Summary other = base();
  other.roles[0].digest[0] ^= 1;
  EXPECT_EQ(names_of(compare(base(), other)), "other");
  other = base();
  other.stages[1].programs[0].second[0] ^= 1;
  EXPECT_EQ(names_of(compare(base(), other)), "stages");
  other = base();
  other.manifest.model_digest[0] ^= 1;
  other.roles[1].peak_bytes *= 2;
  EXPECT_EQ(names_of(compare(base(), other)), "model memory");
}

TEST(DiffSets, ModelsAreToldByWhatTheySay) {
  Summary before = base(), after = base();
  before.initial_values = after.initial_values = "values";
  after.manifest.model_digest[0] ^= 1;
  after.manifest.model = "copy.onnx";
  const Diff same = compare(before, after);
  EXPECT_TRUE(same.same());
  EXPECT_THAT(same.notes, testing::ElementsAre(HasSubstr("'copy.onnx', which says the same")));
  after.initial_values = "others";
  EXPECT_THAT(print_diff(compare(before, after), false),
              HasSubstr("initial values  those of before → "));
  after.manifest.model_digest = before.manifest.model_digest;
  const Diff values = compare(before, after);
  EXPECT_EQ(names_of(values), "model");
  EXPECT_EQ(values.sections[0].summary, "it begins with other values");
  after.parameters[0].type.dtype = DType::kF64;  // its values are others, then
  EXPECT_EQ(names_of(compare(before, after)), "parameters");
}

// ---- Gates and forms ----------------------------------------------------------------------------

Diff grown() {
  Summary other = base();
  for (RoleSummary& role : other.roles) role.peak_bytes = role.peak_bytes * 107 / 100;
  other.roles[0].order.pop_back();
  Diff diff = compare(base(), other);
  diff.before = "old";
  diff.after = "new";
  return diff;
}

std::vector<std::string> failed(const std::string& gates) {
  Diff diff = grown();
  const auto parsed = parse_gates(gates);
  EXPECT_TRUE(parsed) << print_error(parsed.error());
  apply_gates(*parsed, diff);
  return diff.failed;
}

TEST(DiffGates, FailForWhatTheyName) {
  EXPECT_THAT(failed("memory:+5%"),
              testing::Contains(testing::AllOf(HasSubstr(" grew from 21.8 MiB to 23.4 MiB"),
                                               HasSubstr("more than 5 %"))));
  EXPECT_THAT(failed("memory:+8%,collectives,flops:+0%"), testing::IsEmpty());
  EXPECT_THAT(failed("order,memory"), testing::ElementsAre("order differs", "memory differs"));
  EXPECT_EQ(headline(grown()), "old → new: memory +7.0 %, order differ");
  Diff diff = grown();
  keep_sections(diff, {"train", "streams"});
  EXPECT_EQ(headline(diff), "old → new: no difference in train, streams");
}

// A gate on what is not known of one side would pass whatever it costs.
TEST(DiffGates, FailWhereNothingIsKnown) {
  Summary silent = base();
  for (const char* name : {"idle", "step_flops"}) silent.manifest.predictions.erase(name);
  for (const auto& [before, after] : {std::pair(base(), silent), {silent, base()}}) {
    Diff diff = compare(before, after);
    apply_gates(*parse_gates("memory:+5%,time:+5%"), diff);
    EXPECT_THAT(diff.failed, testing::ElementsAre(HasSubstr("time of one side or both is not "
                                                            "known")));
  }
  Diff same = compare(base(), base());
  apply_gates(*parse_gates("time:+5%"), same);
  EXPECT_THAT(same.failed, testing::IsEmpty());
}

// A device may run out of memory though another one has more.
TEST(DiffGates, SeeTheMemoryOfEachDevice) {
  const auto grown_by = [](int64_t RoleSummary::*bytes, bool greatest, double factor) {
    Summary other = base();
    const auto by_peak = [](const RoleSummary& a, const RoleSummary& b) {
      return a.peak_bytes < b.peak_bytes;
    };
    const auto role = greatest ? std::max_element(other.roles.begin(), other.roles.end(), by_peak)
                               : std::min_element(other.roles.begin(), other.roles.end(), by_peak);
    (*role).*bytes = static_cast<int64_t>(static_cast<double>((*role).*bytes) * factor);
    Diff diff = compare(base(), other);
    apply_gates(*parse_gates("memory:+5%"), diff);
    return diff.failed;
  };
  EXPECT_THAT(grown_by(&RoleSummary::peak_bytes, false, 1.1),
              testing::ElementsAre(testing::AllOf(HasSubstr("memory of pp="),
                                                  HasSubstr("(+10.0 %), more than 5 %"))));
  EXPECT_EQ(grown_by(&RoleSummary::peak_bytes, true, 1.1).size(), 1u);
  EXPECT_THAT(grown_by(&RoleSummary::peak_bytes, false, 1.04), testing::IsEmpty());
}

// Of one microbatch all is twice as much where there are half as many; of a step nothing is, but
// for what is added once a microbatch.
TEST(Diff, AnotherNumberOfMicrobatchesIsNoOtherStage) {
  const Diff diff =
      compare(base(), summary_of(replaced(kStrategy, "microbatches: 4}", "microbatches: 8}")));
  EXPECT_THAT(print_diff(diff, false), testing::Not(HasSubstr("forward  ")));
  EXPECT_THAT(print_diff(diff, false), testing::Not(HasSubstr("00.0 %")));
  EXPECT_NE(diff.find("train"), nullptr);
  ASSERT_NE(diff.find("time"), nullptr);
  EXPECT_THAT(print_diff(diff, false), HasSubstr("idle"));
}

// DDP and ZeRO-1 send the same bytes, in other collectives.
TEST(DiffGates, AnAllReduceIsItsTwoHalves) {
  const std::string replicate = "  - replicate: {over: dp";
  ASSERT_NE(std::string(kStrategy).find(replicate), std::string::npos);
  Diff diff = compare(
      base(), summary_of(replaced(kStrategy, replicate, replicate + ", shard: [optimizer]")));
  ASSERT_NE(diff.find("collectives"), nullptr);
  apply_gates(*parse_gates("collectives:+5%"), diff);
  EXPECT_THAT(diff.failed, testing::IsEmpty()) << print_diff(diff, false);
}

TEST(DiffGates, WrongOnesAreUsageErrors) {
  const std::pair<const char*, const char*> kWrong[] = {
      {"memry", "did you mean 'memory'"},      {"memory:5%", "write memory:+5%"},
      {"memory:+5", "write memory:+5%"},       {"memory:+nan%", "write memory:+5%"},
      {"order:+5%", "'order' has no measure"}, {"", "there is no section ''"}};
  for (const auto& [text, says] : kWrong) {
    const auto parsed = parse_gates(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code, ExitCode::kUsage);
    EXPECT_THAT(parsed.error().message, HasSubstr(says));
  }
  EXPECT_FALSE(parse_sections("order,memry"));
}

TEST(DiffForms, JsonIsAsThePageSays) {
  const auto json = nlohmann::json::parse(print_diff_json(grown()));
  EXPECT_EQ(json["format"], "piper diff");
  EXPECT_EQ(json["format_version"], 1);
  EXPECT_EQ(json["same"], false);
  EXPECT_EQ(json["sections"][0]["name"], "memory");
  EXPECT_EQ(json["sections"][0]["measure"]["unit"], "bytes");
  const auto& change = json["sections"][0]["changes"][0];
  EXPECT_EQ(change["what"], "peak");
  EXPECT_EQ(change["where"], nlohmann::json({"pp=0"}));
  EXPECT_EQ(change["before"], base().roles[0].peak_bytes);
  EXPECT_EQ(change["unit"], "bytes");
  Summary more = base();
  more.devices.push_back(more.devices[0]);
  more.devices.back().at = {7};
  const auto added = nlohmann::json::parse(print_diff_json(compare(base(), more)));
  EXPECT_EQ(added["sections"][0]["changes"][0]["before"], nullptr);
  EXPECT_EQ(added["sections"][0]["changes"][0]["unit"], "bytes");
}

TEST(DiffForms, MarkdownIsFoldedAndFitsAComment) {
  Diff diff = grown();
  const std::string text = print_diff_markdown(diff);
  EXPECT_THAT(text, HasSubstr("<details><summary><b>memory</b> – the largest peak"));
  EXPECT_THAT(text, HasSubstr("| pp=0 | peak | 21.8 MiB | 23.4 MiB | +7.0 % |"));
  EXPECT_THAT(text, HasSubstr("```diff\n@@ pp=0 from task 8 on @@\n- … F3 B2 B3\n"));
  for (int i = 0; i < 5000; ++i)
    diff.sections[0].changes.push_back({{fmt::format("a|b<c>&~`{}`", i)}, "peak", 1.0, 2.0});
  diff.sections[0].changes.push_back({{"pp=9"}, "weights", 1.0, 2.0});
  EXPECT_THAT(print_diff(diff, false), HasSubstr("  pp=9         weights"));
  EXPECT_THAT(print_diff(diff, false), HasSubstr("  … 4990 more, which --json has\n"));
  const std::string large = print_diff_markdown(diff);
  EXPECT_LE(large.size(), 60'000U);
  EXPECT_GE(large.size(), 50'000U);
  EXPECT_THAT(large, HasSubstr("a\\|b&lt;c>&amp;\\~\\`0\\`"));
  EXPECT_THAT(large, testing::ContainsRegex("… [0-9]+ more\n"));
  EXPECT_THAT(large, HasSubstr("<b>order</b>"));
  diff.notes.assign(2000, std::string(100, '*'));
  const std::string noted = print_diff_markdown(diff);
  EXPECT_LE(noted.size(), 60'000U);
  EXPECT_THAT(noted, testing::ContainsRegex("… [0-9]+ more notes\n"));
}

TEST(DiffForms, ColoursAreForTerminalsAlone) {
  EXPECT_THAT(print_diff(grown(), true), HasSubstr("\x1b[31m    - "));
  EXPECT_THAT(print_diff(grown(), false), Not(HasSubstr("\x1b")));
}

// ---- The program --------------------------------------------------------------------------------

std::pair<int, std::string> piper_diff(const std::string& args) {
  return run_shell(fmt::format("{}/bin/piper-diff {} 2>&1", PIPER_BINARY_DIR, args));
}

TEST(DiffProgram, ExitCodesAreThoseOfDiff) {
  const Folder folder;
  const std::string model = "--model " + source("samples/gpt/model.onnx ");
  const std::string a = folder.write("a.yaml", kStrategy);
  const std::string b = folder.write("b.yaml", replaced(kStrategy, "lr: 2e-3", "lr: 4e-3"));
  const std::string sets = write_set(folder, kStrategy, "x") + " " +
                           write_set(folder, replaced(kStrategy, "25MiB", "1MiB"), "y");
  EXPECT_EQ(piper_diff(model + a + " " + a).first, 0);
  EXPECT_EQ(piper_diff(model + a + " " + b).first, 1);
  EXPECT_EQ(piper_diff(model + a + " " + b + " -D dp=1 --only order,memory").first, 0);
  EXPECT_EQ(piper_diff(model + a + " " + b + " --fail-on order").first, 0);
  EXPECT_EQ(piper_diff(model + a + " " + b + " --fail-on order,train").first, 1);
  EXPECT_EQ(piper_diff(sets).first, 1);
}

TEST(DiffProgram, BadInputIsSaidAndExitsWithTwo) {
  const Folder folder;
  const std::string set = write_set(folder, kStrategy, "set");
  const std::string other = write_set(folder, kStrategy, "other");
  auto manifest = read_text_file(other + "/manifest.json", 1 << 20);
  ASSERT_TRUE(manifest);
  folder.write("other/manifest.json",
               replaced(*manifest, fmt::format("\"format_version\": {}", kPlanFormatVersion),
                        "\"format_version\": 3"));
  const std::string strategy = folder.write("a.yaml", kStrategy);
  const std::string wrong = folder.write("wrong.yaml", replaced(kStrategy, "stage: s", "stge: s"));
  const std::string model = " --model " + source("samples/gpt/model.onnx");
  std::filesystem::create_directory(folder.path() + "/empty");
  const std::pair<std::string, const char*> kWrong[] = {
      {set + " " + folder.path() + "/empty", "this is no plan set"},
      {set + " " + folder.path() + "/nowhere", "this is no plan set"},
      {other + " " + set, "format version 3"},
      {set + " " + strategy, "--model MODEL.onnx"},
      {set + " " + set + model, "are compared without --model"},
      {strategy + " " + wrong + model, "wrong.yaml:"},
      {set + " " + set + " -D dp=2", "--model MODEL.onnx"},
      {set + " " + set + " --only memry", "did you mean 'memory'"},
      {set + " " + set + " --fial-on=memory", "did you mean '--fail-on'"},
      {set + " " + set + " --only ''", "there is no section ''"},
      {set + " " + set + " --fail-on ''", "there is no section ''"},
      {set + " " + set + " --only order --fail-on memory", "--only leaves out memory"},
      {set + " " + set + " --json --markdown", "excludes"},
      {set, "AFTER is required"}};
  for (const auto& [args, says] : kWrong) {
    const auto [code, output] = piper_diff(args);
    EXPECT_EQ(code, 2) << args << output;
    EXPECT_THAT(output, HasSubstr(says)) << args;
  }
}

// What is dumped has stdout for itself.
TEST(DiffProgram, DumpsAndExplanationsDoNotMix) {
  const Folder folder;
  const std::string command =
      fmt::format("{}/bin/piperc {} {} --dry-run", PIPER_BINARY_DIR,
                  source("samples/gpt/model.onnx"), folder.write("a.yaml", kStrategy));
  const std::string dump = run_shell(command + " --dump schedule 2>/dev/null").second;
  EXPECT_EQ(run_shell(command + " --dump schedule --explain 2>/dev/null").second, dump);
  EXPECT_THAT(dump, Not(HasSubstr("GFLOP")));
  EXPECT_THAT(run_shell(command + " --dump schedule --explain 2>&1 >/dev/null").second,
              HasSubstr("GFLOP"));
  EXPECT_THAT(run_shell(command + " --explain 2>/dev/null").second, HasSubstr("GFLOP"));
}

}  // namespace
}  // namespace piper::diff_test
