// Every schedule of the library on small models: five steps equal, bit for bit, to the
// single-device plan with the same cut of the batch.
#include "equivalence/jobs.h"

namespace piper::pipelines_test {
namespace {

using namespace jobs;

struct Pipeline {
  const char* order;
  int64_t pp, dp, mb;
  VerifyAgainst against = VerifyAgainst::kSingle;
  const char* more = "";  // further params
};

std::vector<Pipeline> pipelines() {
  if (kSanitized)
    return {{"zbv", 2, 2, 2},
            {"dualpipev", 2, 1, 4},
            {"interleaved-1f1b", 2, 1, 2},
            {"dualpipe", 2, 1, 4},
            {"chimera", 2, 2, 2}};
  std::vector<Pipeline> out;
  for (const char* order : {"gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zbv"}) {
    out.push_back({order, 2, 1, 8});
    out.push_back({order, 2, 2, 4});
    out.push_back({order, 4, 1, 8});
    out.push_back({order, 4, 2, 2});
  }
  out.push_back({"zb-h1", 2, 1, 8, VerifyAgainst::kSingle, "chunks: 2"});
  for (const int64_t pp : {2, 4}) {
    out.push_back({"looped-bfs", pp, 1, 8});
    out.push_back({"looped-bfs", pp, 1, 8, VerifyAgainst::kUncut});
    out.push_back({"looped-bfs", pp, 1, 8, VerifyAgainst::kSingle, "ascending: 1"});
  }
  for (const char* order : {"v-half", "v-min", "hanayo"}) {
    out.push_back({order, 2, 2, 4});
    out.push_back({order, 4, 1, 8});
  }
  out.push_back({"dualpipev", 2, 1, 4});
  out.push_back({"dualpipev", 2, 2, 4});
  out.push_back({"dualpipev", 2, 1, 8});
  out.push_back({"dualpipev", 4, 1, 8});
  // Each stage on two devices: their microbatches are summed first, also by the single device.
  for (const VerifyAgainst against : {VerifyAgainst::kSingle, VerifyAgainst::kUncut}) {
    out.push_back({"dualpipe", 2, 1, 4, against});
    out.push_back({"dualpipe", 2, 2, 4, against});
    out.push_back({"dualpipe", 4, 1, 8, against});
    out.push_back({"chimera", 2, 2, 4, against});
    out.push_back({"chimera", 4, 1, 4, against});
    out.push_back({"chimera", 4, 1, 8, against});
    out.push_back({"chimera", 4, 2, 4, against});
  }
  return out;
}

void expect_equal(const std::string& model, const Pipeline& pipeline) {
  const std::string what = fmt::format("{} {} pp={} dp={} mb={} {}", model, pipeline.order,
                                       pipeline.pp, pipeline.dp, pipeline.mb, pipeline.more);
  std::string text = strategy_text(model, kAdamW);
  if (*pipeline.more) text += fmt::format("params: {{{}}}\n", pipeline.more);
  const auto compiled =
      compile_model(model, text, {pipeline.pp, pipeline.dp, pipeline.mb, pipeline.order}, true);
  ASSERT_TRUE(compiled) << what << "\n" << print_error(compiled.error());
  const PlanSet& reference =
      pipeline.against == VerifyAgainst::kSingle ? *compiled->single : *compiled->uncut;
  const auto data = open_batches(compiled->set, model);
  const auto reference_data = open_batches(reference, model);
  ASSERT_TRUE(data && reference_data);
  JobOptions options;
  options.steps = 5;
  options.threads = 1;
  options.verify.against = pipeline.against;
  const auto job = run_job(compiled->set, data->get(), &reference, reference_data->get(), options);
  EXPECT_TRUE(job) << what << "\n" << print_error(job.error());
  if (model == "mlp") expect_same_when_queued(compiled->set, model, what);
}

class Pipelines : public ::testing::TestWithParam<const char*> {};

TEST_P(Pipelines, EqualTheSingleDevicePlan) {
  const std::string model = GetParam();
  NEED_MODEL(model);
  for (const Pipeline& pipeline : pipelines()) expect_equal(model, pipeline);
}

// An order that we wrote as a file and read again makes the same programs.
TEST(PipelineFiles, EqualTheirOwnFiles) {
  const std::string model = kSanitized ? "gpt-deep" : "gpt";
  NEED_MODEL(model);
  for (const Pipeline& pipeline : {Pipeline{"interleaved-1f1b", 2, 1, 4}, Pipeline{"zbv", 2, 1, 4},
                                   Pipeline{"dualpipev", 2, 1, 4}}) {
    const Folder folder;
    CompileOptions options;
    options.model = model_path(model, "model.onnx");
    options.order = true;
    options.oracles = false;
    const std::string library = fmt::format(
        "piper: 1\ninclude: {}/strategies/{}.yaml\nparams: {{stages: 2, microbatches: 4}}\n"
        "train: {{global_batch: 8, {}}}\n",
        PIPER_SOURCE_DIR, pipeline.order, kAdamW);
    options.strategy = folder.write("library.yaml", library);
    const auto wanted = compile(options);
    ASSERT_TRUE(wanted) << print_error(wanted.error());
    const std::string on =
        std::string(pipeline.order) == "interleaved-1f1b" ? "s % 2" : "\"s < 2 ? s : 3 - s\"";
    options.strategy = folder.write(
        "file.yaml",
        fmt::format("piper: 1\nmesh: {{pp: 2, dp: 1}}\ntrain: {{global_batch: 8, {}}}\n"
                    "annotate: [{{balance: {{tag: stage, into: 4}}}}]\ndirectives:\n"
                    "  - split: {{dim: batch, into: 4}}\n"
                    "  - place: {{where: {{stage: s}}, on: {{pp: {}}}}}\n"
                    "  - replicate: {{over: dp, bucket: 25MiB}}\n"
                    "  - order: {{each: pp, csv: order.csv}}\n",
                    kAdamW, on));
    for (const CsvDialect dialect : {CsvDialect::kOld, CsvDialect::kNew})
      for (const bool communication : {false, true}) {
        auto rows = communication ? add_communication(wanted->order) : wanted->order;
        ASSERT_TRUE(rows) << print_error(rows.error());
        folder.write("order.csv", print_order_csv(*rows, dialect));
        const auto got = compile(options);
        ASSERT_TRUE(got) << print_error(got.error());
        ASSERT_EQ(got->set.roles.size(), wanted->set.roles.size());
        for (size_t r = 0; r < got->set.roles.size(); ++r)
          EXPECT_EQ(print_plan(got->set.roles[r]) == print_plan(wanted->set.roles[r]), true)
              << pipeline.order << " " << r << (communication ? " comms" : " compute");
      }
  }
}

// Neighbours may take the microbatches in different orders, and each in others forwards and
// backwards: what is received is what is wanted, and the single-device plan adds as each of them.
struct Unordered {
  const char* name;
  const char* model;
  int64_t dp;
  const char* replicate;
  const char* order;
};
const Unordered kUnordered[] = {
    {"lists", "mlp", 1, "",
     "lists: [F0 F1 F2 F3 BI3 BI0 BI1 BI2 BW0 BW1 BW2 BW3, "
     "F1 F0 F3 F2 BI3 BI2 BI0 BI1 BW0 BW1 BW2 BW3]"},
    {"ddp", "gpt-deep", 2, "  - replicate: {over: dp, bucket: 4KiB}\n",
     "program: 'repeat M: F; for m in 0..M: B[mb = r == 0 ? (m+2)%M : M-1-m]'"},
    {"zero_1", "gpt-deep", 2, "  - replicate: {over: dp, bucket: 4KiB, shard: [optimizer]}\n",
     "program: 'repeat M: F; for m in 0..M: B[mb = M-1-m]'"},
    {"zero_3_split", "gpt-deep", 2,
     "  - replicate: {over: dp, bucket: 4KiB, shard: [optimizer, gradients, parameters]}\n",
     "program: 'repeat M: F; repeat M: BI; for m in 0..M: BW[mb = r == 0 ? M-1-m : (m+1)%M]'"},
};

std::string unordered_text(const Unordered& one, const std::string& order) {
  return fmt::format(
      "piper: 1\nmesh: {{pp: 2, dp: {}}}\n"
      "annotate: [{{balance: {{tag: stage, into: 2}}}}]\ndirectives:\n"
      "  - split: {{dim: batch, into: 4}}\n"
      "  - place: {{where: {{stage: s}}, on: {{pp: s}}}}\n{}"
      "  - order: {{each: pp, {}}}\n",
      one.dp, one.replicate, order);
}

Status compare(const Compiled& compiled, const PlanSet& reference, const std::string& model) {
  PIPER_ASSIGN(const auto data, open_batches(compiled.set, model));
  PIPER_ASSIGN(const auto reference_data, open_batches(reference, model));
  JobOptions job;
  job.steps = 4;
  job.threads = 1;
  job.verify.against = VerifyAgainst::kSingle;
  PIPER_ASSIGN(const auto ran,
               run_job(compiled.set, data.get(), &reference, reference_data.get(), job));
  (void)ran;
  return ok_status();
}

class UnorderedSums : public ::testing::TestWithParam<Unordered> {};

TEST_P(UnorderedSums, EqualTheirSingleDevicePlan) {
  const Unordered& one = GetParam();
  NEED_MODEL(one.model);
  const auto compiled = compile_text(one.model, unordered_text(one, one.order), kAdamW, {});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const Status equal = compare(*compiled, *compiled->single, one.model);
  EXPECT_TRUE(equal.ok()) << print_error(equal.error());
  std::string said;
  for (const Explanation& each : compiled->explanations)
    for (const std::string& line : each.lines) said += each.directive + ": " + line + "\n";
  EXPECT_NE(said.find("order: sums are not formed in microbatch order: '"), said.npos) << said;
  // The plan that adds in microbatch order is another one.
  const auto ascending = compile_text(
      one.model, unordered_text(one, "program: 'repeat M: F; repeat M: B'"), kAdamW, {});
  ASSERT_TRUE(ascending) << print_error(ascending.error());
  const Status differs = compare(*compiled, *ascending->single, one.model);
  ASSERT_FALSE(differs.ok());
  EXPECT_EQ(differs.error().code, ExitCode::kNumeric) << print_error(differs.error());
}

INSTANTIATE_TEST_SUITE_P(Orders, UnorderedSums, ::testing::ValuesIn(kUnordered),
                         [](const auto& info) { return std::string(info.param.name); });

INSTANTIATE_TEST_SUITE_P(Models, Pipelines, ::testing::Values("mlp", "gpt-deep"),
                         [](const auto& info) { return identifier(info.param); });

}  // namespace
}  // namespace piper::pipelines_test
