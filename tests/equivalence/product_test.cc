// The product of the library: every file of strategies/ x ZeRO 0-3 x fused and split backward x
// recompute x replicas, five steps of an eight-layer GPT on up to eight ranks. For each file as
// many cells run as have every pair of the others' values; with PIPER_COUNT, all. Which cells are
// legal:
//
// - As many devices P as P * replicas <= 8 ranks and P * chunks <= 8 layers allow; the batch of 8
// is
//   cut into 8 / replicas microbatches for each replica. A file may want a number of microbatches
//   for each device, or an even number of devices.
// - ZeRO needs replicas to cut over. A file that says `shard` has its own level and no other.
// - The backward is split where an order names its halves, and then has no fused form. An order
// that
//   names B alone has a split form: every B written as BI BW. A policy has both. A file without an
//   order has whole backwards.
//
// A cell trains as one device does with the same cut of the batch, bit for bit. Two things add the
// same numbers in another order: weight gradients that run out of microbatch order, which the plan
// tells, and `reduce: per_microbatch`. Such cells are compared with one device that does not cut
// the batch, within the bounds of rounding; the former also with their own single-device plan, bit
// for bit.
#include <regex>
#include <set>
#include <span>

#include "equivalence/covering.h"
#include "equivalence/jobs.h"

namespace piper::product_test {
namespace {

using namespace jobs;

constexpr const char* kModel = "gpt-deep";
constexpr int64_t kLayers = 8, kRanks = 8, kSamples = 8;
constexpr int64_t kSteps = kSanitized ? 1 : 5;
constexpr double kLossBound = 1e-4, kParameterBound = 3e-4;  // of AdamW

struct Row {
  std::string file;
  int64_t chunks = 1;        // that a device holds
  int64_t microbatches = 0;  // at least so many for each device
  bool even = false;         // wants an even number of devices
  int64_t devices = kRanks;  // at most
  int zero = -1;             // the level that the file itself says
  // Its sums nest, over nodes or over the places of a stage, or it has another rule: no other
  // file's single device does the same.
  bool own_oracle = false;
  std::vector<int64_t> replicas = {1, 2};
  std::vector<Definition> more = {};
  std::string variant = "";  // a name for `more`
};

std::ostream& operator<<(std::ostream& out, const Row& row) {
  return out << row.file << " " << row.variant;
}

std::vector<Row> rows() {
  const std::vector<Definition> small{{"bucket_kib", "16"}};
  return {
      {.file = "1f1b"},
      {.file = "chimera", .microbatches = 1, .even = true, .own_oracle = true},
      {.file = "ddp", .devices = 1},
      {.file = "dualpipe", .microbatches = 2, .even = true, .own_oracle = true},
      {.file = "dualpipev", .chunks = 2, .microbatches = 2},
      {.file = "gpipe"},
      {.file = "hanayo", .chunks = 2},
      {.file = "hanayo", .chunks = 4, .more = {{"waves", "2"}}, .variant = "two_waves"},
      {.file = "hsdp", .zero = 3, .own_oracle = true, .replicas = {4}, .more = small},
      {.file = "interleaved-1f1b", .chunks = 2},
      {.file = "looped-bfs", .chunks = 2},
      {.file = "looped-bfs", .chunks = 2, .more = {{"ascending", "1"}}, .variant = "ascending"},
      {.file = "pipedream", .microbatches = 1, .own_oracle = true},
      {.file = "pipedream-2bw", .microbatches = 1, .own_oracle = true},
      {.file = "v-half", .chunks = 2},
      {.file = "v-min", .chunks = 2},
      {.file = "zb-h1"},
      {.file = "zb-h1", .chunks = 2, .more = {{"chunks", "2"}}, .variant = "two_chunks"},
      {.file = "zb-h2"},
      {.file = "zbv", .chunks = 2},
      {.file = "zero1", .zero = 1},
      {.file = "zero2", .zero = 2, .more = small},
      {.file = "zero3", .zero = 3, .more = small},
  };
}

// Schedules that are not in the library.
std::vector<Row> new_rows() {
  return {{.file = "eager-1f1b"},
          {.file = "groups"},
          {.file = "split-bfs", .chunks = 2},
          {.file = "wave-of-three", .chunks = 3}};
}

std::set<std::string> without_row(const std::set<std::string>& files) {
  std::set<std::string> left = files;
  for (const Row& row : rows()) left.erase(row.file);
  return left;
}

// ---- Cells --------------------------------------------------------------------------------------

struct Cell {
  Row row;
  int64_t replicas = 1, devices = 1;
  int zero = 0;
  bool each_microbatch = false;  // reduces gradients
  bool split = false, recompute = false;

  int64_t microbatches() const { return kSamples / replicas; }
  std::string name() const {
    return fmt::format("{} {} P={} M={} replicas={} ZeRO-{}{} {}{}", row.file, row.variant, devices,
                       microbatches(), replicas, zero, each_microbatch ? " per_microbatch" : "",
                       split ? "split" : "fused", recompute ? " recompute" : "");
  }
};

// The most devices that a row may have beside `replicas`; 0: none.
int64_t devices_of(const Row& row, int64_t replicas) {
  for (int64_t p = std::min({row.devices, kRanks / replicas, kLayers / row.chunks}); p > 0; --p)
    if (kSamples / replicas >= p * row.microbatches && !(row.even && p % 2)) return p;
  return 0;
}

// The file with a fused or a split backward, if it has that form.
std::optional<std::string> in_form(const std::string& text, bool split) {
  const size_t at = text.find("order:\n");
  if (at == std::string::npos) return split ? std::nullopt : std::optional(text);
  const std::string head = text.substr(0, at), order = text.substr(at);
  if ((order.find("BW") != std::string::npos) == split) return text;
  static const std::regex kPolicy(R"((prefer: \[B, F)(, BW)?\])"),
      kBackward(R"(\bB\b(\[[^\]]*\])?(\??))");
  if (std::regex_search(order, kPolicy))
    return head + std::regex_replace(order, kPolicy, split ? "$1, BW]" : "$1]");
  if (!split) return std::nullopt;
  return head + std::regex_replace(order, kBackward, "BI$1$2 BW$1$2");
}

std::vector<Cell> cells_of(const Row& row) {
  std::vector<Cell> cells;
  const std::string text = library_text(row.file);
  for (const int64_t replicas : row.replicas) {
    const int64_t devices = devices_of(row, replicas);
    if (devices == 0) continue;
    for (int zero = 0; zero <= 3; ++zero) {
      if (row.zero >= 0 ? zero != row.zero : zero > 0 && replicas == 1) continue;
      for (const bool each_microbatch : {false, true}) {
        if (each_microbatch && (zero < 2 || replicas == 1)) continue;
        for (const bool split : {false, true})
          for (const bool recompute : {false, true})
            if (in_form(text, split))
              cells.push_back({row, replicas, devices, zero, each_microbatch, split, recompute});
      }
    }
  }
  return cells;
}

Values values_of(const Cell& cell) {
  return {std::to_string(cell.replicas), std::to_string(cell.zero),
          cell.each_microbatch ? "each" : "sum", cell.split ? "split" : "fused",
          cell.recompute ? "recompute" : "keep"};
}

// ---- Running them -------------------------------------------------------------------------------

// Says the cell's level of ZeRO where the file says `replicate`.
std::string with_zero(std::string text, const Cell& cell) {
  if (cell.zero == 0 || cell.row.zero >= 0) return text;
  constexpr const char* kShards[] = {"", "optimizer", "optimizer, gradients",
                                     "optimizer, gradients, parameters"};
  static const std::regex kBucket("bucket: 25MiB");
  EXPECT_TRUE(std::regex_search(text, kBucket)) << cell.row.file << " has no 'bucket: 25MiB'";
  return std::regex_replace(
      text, kBucket,
      fmt::format("bucket: 16KiB, shard: [{}]{}", kShards[cell.zero],
                  cell.each_microbatch ? ", reduce: {when: per_microbatch}" : ""));
}

Result<Compiled> compile_cell(const Cell& cell, bool oracles = false) {
  std::string text = with_zero(*in_form(library_text(cell.row.file), cell.split), cell);
  if (cell.recompute) text += "  - recompute: {}\n";
  CompileOptions options;
  options.defines = definitions_of(text, {cell.devices, cell.replicas, cell.microbatches()});
  options.defines.insert(options.defines.end(), cell.row.more.begin(), cell.row.more.end());
  if (cell.row.zero >= 0 && cell.each_microbatch)
    options.defines.push_back({"reduce", "per_microbatch"});
  options.oracles = oracles;
  return compile_text(kModel, text, kAdamW, options);
}

// Whether the weight gradients of a stage on a device run lower microbatches first.
bool adds_in_order(const PlanSet& set) {
  for (const RoleProgram& role : set.roles) {
    std::map<int64_t, int64_t> last;  // microbatch, by stage
    for (const Instruction& one : role.body) {
      if (one.pass != TaskPass::kB && one.pass != TaskPass::kBW) continue;
      const auto [it, first] = last.try_emplace(one.stage, one.micro);
      if (!first && it->second > one.micro) return false;
      it->second = one.micro;
    }
  }
  return true;
}

// The runs of the single device, which cells share.
class Oracles {
 public:
  // With a cell's cut of the batch, or without any.
  const Trained* get(const Cell& cell, bool cut) {
    const std::string of = cell.row.own_oracle ? cell.row.file : "";
    const std::string key = cut ? fmt::format("{} {}", of, cell.replicas) : "uncut";
    if (const auto it = runs_.find(key); it != runs_.end()) return &it->second;
    Cell single{{.file = "ddp"}, cell.replicas};
    if (cell.row.own_oracle) single = cell;
    const auto compiled = compile_cell(single, true);
    EXPECT_TRUE(compiled) << print_error(compiled.error());
    if (!compiled) return nullptr;
    auto run = train(cut ? *compiled->single : *compiled->uncut, kModel, kSteps);
    EXPECT_TRUE(run) << print_error(run.error());
    return run ? &(runs_[key] = *std::move(run)) : nullptr;
  }

 private:
  std::map<std::string, Trained> runs_;
};

// Of a cell that adds in an order of its own.
void expect_own_oracle(const Cell& cell, const Trained& trained) {
  const auto compiled = compile_cell(cell, true);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const auto single = train(*compiled->single, kModel, kSteps);
  ASSERT_TRUE(single) << print_error(single.error());
  expect_equal_bits(trained, *single, cell.name());
}

// The largest error of losses and parameters, as a part of its bound.
double part_of_bound(const Trained& got, const Trained& want) {
  double worst = got.losses.size() == want.losses.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(got.losses.size(), want.losses.size()); ++i) {
    const double error = std::abs(got.losses[i] - want.losses[i]) /
                         std::max(std::abs(want.losses[i]), 0.05) / kLossBound;
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  if (got.parameters.size() != want.parameters.size()) return INFINITY;
  for (const auto& [name, tensor] : want.parameters) {
    const auto it = got.parameters.find(name);
    if (it == got.parameters.end()) return INFINITY;
    worst = std::max(worst, tensor_error(it->second, tensor) / kParameterBound);
  }
  return worst;
}

bool same_bits(const Trained& a, const Trained& b) {
  if (a.losses != b.losses || a.norms != b.norms || a.parameters.size() != b.parameters.size())
    return false;
  for (const auto& [name, tensor] : a.parameters) {
    const auto it = b.parameters.find(name);
    if (it == b.parameters.end() || as_text(tensor.data.span()) != as_text(it->second.data.span()))
      return false;
  }
  return true;
}

struct Ran {
  bool ok = false, in_order = false;
  PlanSet set;
  Trained trained;
};
Ran run_cell(const Cell& cell) {
  auto compiled = compile_cell(cell);
  if (!compiled) {
    ADD_FAILURE() << cell.name() << "\n" << print_error(compiled.error());
    return {};
  }
  EXPECT_EQ(compiled->set.role_of_rank.size(), static_cast<size_t>(cell.devices * cell.replicas));
  auto trained = train(compiled->set, kModel, kSteps);
  if (!trained) {
    ADD_FAILURE() << cell.name() << "\n" << print_error(trained.error());
    return {};
  }
  const bool in_order = adds_in_order(compiled->set);
  return {true, in_order, std::move(compiled->set), *std::move(trained)};
}

class Product : public ::testing::TestWithParam<Row> {
 protected:
  void SetUp() override { NEED_MODEL(kModel); }
};

TEST_P(Product, TrainsAsOneDevice) {
  Oracles oracles;
  int bitwise = 0, rounded = 0;
  double worst = 0;
  const std::vector<Cell> cells = covering(cells_of(GetParam()), values_of);
  ASSERT_FALSE(cells.empty());
  for (size_t i = 0; i < cells.size(); i += kSanitized ? 5 : 1) {
    const Cell& cell = cells[i];
    const Ran ran = run_cell(cell);
    if (!ran.ok) continue;
    if (i % 4 == 0) expect_same_when_queued(ran.set, kModel, cell.name());
    const bool exact = ran.in_order && !cell.each_microbatch;
    const Trained* oracle = oracles.get(cell, exact);
    ASSERT_NE(oracle, nullptr);
    ++(exact ? bitwise : rounded);
    if (exact) {
      expect_equal_bits(ran.trained, *oracle, cell.name());
      continue;
    }
    if (!cell.each_microbatch) expect_own_oracle(cell, ran.trained);
    const double error = part_of_bound(ran.trained, *oracle);
    EXPECT_LE(error, 1) << cell.name();
    worst = std::max(worst, error);
  }
  std::printf("%d cells equal bit for bit, %d within %.2g of their bound\n", bitwise, rounded,
              worst);
}

std::string name_of(const ::testing::TestParamInfo<Row>& info) {
  const Row& row = info.param;
  return identifier(row.variant.empty() ? row.file : row.file + "_" + row.variant);
}
INSTANTIATE_TEST_SUITE_P(Library, Product, ::testing::ValuesIn(rows()), name_of);
INSTANTIATE_TEST_SUITE_P(New, Product, ::testing::ValuesIn(new_rows()), name_of);

// ---- Halves -------------------------------------------------------------------------------------

struct Halves {
  std::string schedule, memory;
  bool recompute = false;
  int64_t stages = 2, microbatches = 4, batch = 16;
  int64_t nodes = 2;  // hsdp: of two devices

  std::string name() const {
    return fmt::format("{} {} recompute={} P={} M={}", schedule, memory, recompute, stages,
                       microbatches);
  }
};

// One file for all; definitions choose what it includes.
Result<Compiled> compile_halves(const Halves& of, bool oracles = false) {
  const Folder folder;
  const std::string text = fmt::format(
      "piper: 1\nparams: {{schedule: 1f1b, memory: ddp, recompute: 0}}\n"
      "include: [\"{0}/schedules/$schedule.yaml\", \"{0}/memory/$memory.yaml\", "
      "{0}/memory/recompute.yaml]\ntrain: {{global_batch: {1}, {2}}}\n",
      PIPER_SOURCE_DIR "/strategies", of.batch, kAdamW);
  CompileOptions options;
  options.model = model_path(kModel, "model.onnx");
  options.strategy = folder.write("strategy.yaml", text);
  options.defines = {{"schedule", of.schedule},
                     {"memory", of.memory},
                     {"recompute", of.recompute ? "1" : "0"},
                     {"stages", std::to_string(of.stages)},
                     {"microbatches", std::to_string(of.microbatches)}};
  if (of.memory == "hsdp") {
    options.defines.push_back({"nodes", std::to_string(of.nodes)});
    options.defines.push_back({"gpus", "2"});
  } else {
    options.defines.push_back({"dp", "2"});
  }
  options.oracles = oracles;
  return compile(options);
}

// The directives of a kind that say what they did, not that they are left out.
size_t count_directives(const Compiled& compiled, std::string_view directive) {
  std::set<int> lines;
  for (const Explanation& one : compiled.explanations)
    if (one.directive == directive && !one.lines.front().starts_with("left out"))
      lines.insert(one.at.line);
  return lines.size();
}

const char* const kMemories[] = {"ddp", "zero1", "zero2", "zero3", "hsdp"};

// With two stages and four microbatches every schedule has every memory.
TEST(Halves, EveryScheduleHasEveryMemory) {
  NEED_MODEL(kModel);
  for (const std::string& schedule : library_files("/schedules"))
    for (const char* memory : kMemories)
      for (const bool recompute : {false, true}) {
        const Halves of{schedule, memory, recompute};
        const auto compiled = compile_halves(of);
        ASSERT_TRUE(compiled) << of.name() << "\n" << print_error(compiled.error());
        const bool nodes = of.memory == "hsdp";
        EXPECT_EQ(compiled->set.role_of_rank.size(), nodes ? 8U : 4U) << of.name();
        EXPECT_EQ(count_directives(*compiled, "recompute"), recompute ? 1U : 0U) << of.name();
        EXPECT_EQ(count_directives(*compiled, "replicate"), nodes ? 2U : 1U) << of.name();
      }
}

// What a schedule does not have is refused at a line of its file, in one error.
TEST(Halves, WhatDoesNotFitIsRefusedAtALine) {
  NEED_MODEL(kModel);
  std::set<std::string> refused;
  for (const std::string& schedule : library_files("/schedules"))
    for (const char* memory : kMemories) {
      const Halves of{schedule, memory, true, 3, 2, 24};
      const auto compiled = compile_halves(of);
      if (compiled) continue;
      refused.insert(schedule);
      const Error& error = compiled.error();
      EXPECT_TRUE(error.at.file.ends_with("/schedules/" + schedule + ".yaml")) << of.name();
      EXPECT_GT(error.at.line, 0) << of.name();
      for (const std::string& note : error.notes) EXPECT_FALSE(note.starts_with("also:")) << note;
    }
  EXPECT_EQ(refused, (std::set<std::string>{"chimera", "dualpipe", "dualpipev", "pipedream-2bw"}));
}

TEST(Halves, TrainAsOneDevice) {
  NEED_MODEL(kModel);
  for (const Halves& of : {Halves{"zbv", "zero3", true, 2, 4, 8},
                           {"1f1b", "zero2", false, 2, 4, 8},
                           {"dualpipe", "hsdp", true, 2, 4, 8, 1},
                           {"hanayo", "zero1", true, 2, 4, 8}}) {
    const auto compiled = compile_halves(of, true);
    ASSERT_TRUE(compiled) << of.name() << "\n" << print_error(compiled.error());
    const auto trained = train(compiled->set, kModel, 2);
    const auto single = train(*compiled->single, kModel, 2);
    ASSERT_TRUE(trained && single) << of.name();
    expect_equal_bits(*trained, *single, of.name());
  }
}

// ---- Controls -----------------------------------------------------------------------------------

TEST(ProductTable, CoversTheLibrary) {
  const std::vector<std::string> names = library_files();
  std::set<std::string> files(names.begin(), names.end());
  EXPECT_EQ(without_row(files), std::set<std::string>{}) << "give these files a row in rows()";
  files.insert("new");
  EXPECT_EQ(without_row(files), std::set<std::string>{"new"});
  for (const Row& row : rows()) EXPECT_TRUE(files.contains(row.file)) << row.file;
  for (const std::string& schedule : library_files("/schedules"))
    EXPECT_TRUE(files.contains(schedule)) << "a schedule without a complete file: " << schedule;
  for (const char* memory : kMemories) {
    const std::vector<std::string> memories = library_files("/memory");
    EXPECT_EQ(std::count(memories.begin(), memories.end(), memory), 1) << memory;
  }
}

// The cells that run have all pairs of values that any cell has, and without one of them fewer.
TEST(ProductTable, HasEveryPair) {
  if (given_count()) GTEST_SKIP() << "all cells run";
  for (const Row& row : rows()) {
    const std::vector<Cell> all = cells_of(row), chosen = covering(all, values_of);
    const auto pairs = [](std::span<const Cell> cells) {
      std::set<ValuePair> found;
      for (const Cell& cell : cells) found.merge(pairs_of(values_of(cell)));
      return found;
    };
    EXPECT_EQ(pairs(chosen), pairs(all)) << row;
    EXPECT_LT(pairs(std::span(chosen).first(chosen.size() - 1)).size(), pairs(all).size()) << row;
    EXPECT_LE(chosen.size(), std::min<size_t>(all.size(), 14)) << row;
  }
}

// Sums in another order are seen by the comparison of bits and lie within the bounds; other losses
// and other values are seen by the bounds.
TEST(ProductControl, ComparisonsCanFail) {
  NEED_MODEL(kModel);
  Oracles oracles;
  const Ran last_first = run_cell({{.file = "looped-bfs", .chunks = 2}, 1, 2});
  const Ran each = run_cell({{.file = "1f1b"}, 2, 2, 2, true});
  const Trained *single = oracles.get({{}, 1}, true), *two = oracles.get({{}, 2}, true),
                *uncut = oracles.get({{}, 1}, false);
  ASSERT_TRUE(last_first.ok && each.ok && single && two && uncut);
  EXPECT_FALSE(last_first.in_order);
  EXPECT_TRUE(each.in_order);
  EXPECT_FALSE(same_bits(last_first.trained, *single));
  EXPECT_FALSE(same_bits(each.trained, *two));
  EXPECT_FALSE(same_bits(*single, *two));
  EXPECT_LE(part_of_bound(last_first.trained, *uncut), 1);
  Trained loss = *uncut;
  for (double& one : loss.losses) one *= 1.001;
  EXPECT_GT(part_of_bound(loss, *uncut), 1);
  // Another step, though the same losses before it.
  Trained values = *uncut;
  const auto compiled = compile_cell({{.file = "ddp"}}, true);
  auto more = train(*compiled->uncut, kModel, kSteps + 1);
  ASSERT_TRUE(more);
  values.parameters = std::move(more->parameters);
  EXPECT_GT(part_of_bound(values, *uncut), 1);
}

}  // namespace
}  // namespace piper::product_test
