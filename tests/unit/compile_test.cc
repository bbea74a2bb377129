#include "equivalence/jobs.h"
#include "piper/devices/cpu.h"
#include "piper/frontend/autodiff.h"
#include "piper/plan/flops.h"
#include "piper/planner/make_dag.h"
#include "piper/planner/sharding.h"
#include "support/forms/parse_graph.h"

namespace piper::compile_test {
namespace {

using namespace jobs;

std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) {
      const auto text = read_text_file(entry.path(), int64_t{1} << 30);
      files[std::filesystem::relative(entry.path(), folder)] = text ? *text : "unreadable";
    }
  return files;
}

TEST(Compile, SameInputsGiveTheSameBytes) {
  NEED_MODEL("gpt");
  const Folder folder;
  std::string text = strategy_text("gpt", kAdamW);
  text.replace(text.find("ORDER"), 5, "1f1b");
  CompileOptions options;
  options.model = model_path("gpt", "model.onnx");
  options.strategy = folder.write("strategy.yaml", text);
  options.defines = {{"stages", "2"}, {"dp", "2"}, {"microbatches", "2"}};
  std::map<std::string, std::string> first;
  for (const std::string name : {"a", "b"}) {
    const auto compiled = compile(options);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    const std::string out = folder.path() + "/" + name;
    ASSERT_TRUE(write_plan_set(compiled->set, &*compiled->single, &*compiled->uncut, out, {}));
    const auto files = files_of(out);
    EXPECT_GE(files.size(), 8u);
    if (first.empty()) first = files;
    EXPECT_TRUE(first == files);
  }
}

// What says the same makes the same set; what trains otherwise does not.
TEST(Compile, SpellingsAndNamesAreNoPartOfASet) {
  const Folder folder;
  const auto id_of = [&](const std::string& name, const std::string& text,
                         const std::vector<Definition>& defines) {
    CompileOptions options;
    options.model = PIPER_SOURCE_DIR "/samples/gpt/model.onnx";
    options.strategy = folder.write(name + ".yaml", text);
    options.defines = defines;
    const auto compiled = compile(options);
    EXPECT_TRUE(compiled) << name << (compiled ? "" : print_error(compiled.error()));
    const std::string out = folder.path() + "/" + name;
    EXPECT_TRUE(compiled &&
                write_plan_set(compiled->set, &*compiled->single, &*compiled->uncut, out, {}));
    const auto read = read_plan_set(out);
    EXPECT_TRUE(read) << name << (read ? "" : print_error(read.error()));
    return read ? read->manifest.set_id : name;
  };
  const std::string include = "piper: 1\ninclude: " PIPER_SOURCE_DIR "/strategies/gpipe.yaml\n";
  const std::string rate = "train: {optimizer: {sgd: {lr: 1e-2}}, global_batch: 8}\n";
  const std::string id = id_of("plain", include + rate + "params: {stages: 2}\n", {});
  EXPECT_EQ(id_of("defined", include + rate, {{"stages", "2"}}), id);
  EXPECT_EQ(id_of("spelled",
                  "# A comment.\npiper: 1\nparams: {S: 1 + 1, m: 1}\n"
                  "train:\n  global_batch: 8 * m\n  optimizer:\n    sgd: {momentum: 0, lr: 0.01}\n"
                  "directives:\n"
                  "  - order: {each: pp, program: \"repeat M:F; repeat(M):  B\"}\n"
                  "  - replicate: {bucket: 25600 KiB, over: dp}\n"
                  "  - place: {where: {stage: s}, on: {pp: (s)}}\n"
                  "  - split: {dim: batch, into: $m}\n"
                  "annotate:\n  rules: [{balance: {tag: stage, into: S}}]\n"
                  "mesh: {pp: $S, dp: 1}\n",
                  {}),
            id);
  EXPECT_NE(id_of("faster", include + "train: {optimizer: {sgd: {lr: 2e-2}}, global_batch: 8}\n",
                  {{"stages", "2"}}),
            id);
}

TEST(Compile, PlansReadBackAndPrintTheSame) {
  NEED_MODEL("gpt");
  const auto compiled =
      compile_model("gpt-deep", strategy_text("gpt-deep", kAdamW), {4, 2, 4, "1f1b"});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  ASSERT_EQ(compiled->set.roles.size(), 4u);
  for (const RoleProgram& role : compiled->set.roles) {
    EXPECT_TRUE(check_role(role));
    EXPECT_EQ(role.transport_bytes, kTransportSlotBytes);  // what the transport takes
    EXPECT_EQ(role.scratch_bytes, kKernelScratchBytes);    // and the kernels
    const std::string text = print_plan(role);
    const auto back = parse_plan(text);
    ASSERT_TRUE(back) << print_error(back.error());
    EXPECT_EQ(print_plan(*back), text);
  }
}

TEST(Compile, PlansStateTheTableOfTheirTarget) {
  NEED_MODEL("gpt");
  const auto compiled = compile_model("mlp", strategy_text("mlp", kAdamW), {1, 2, 2, "1f1b"});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  for (const RoleProgram& role : compiled->set.roles) EXPECT_EQ(role.table, cpu_products().digest);
}

// Ops that run as one are another way to the same bits, and so are more threads.
TEST(Compile, JoinedOpsAndThreadsTrainLikeOpsOneByOne) {
  NEED_MODEL("gpt");
  const std::string model = kSanitized ? "mlp" : "gpt";
  std::vector<Trained> ways;
  const std::vector<std::pair<bool, int>> runs = {{true, 1}, {false, 1}, {true, 3}};
  const auto compiled = compile_model(model, strategy_text(model, kAdamW), {1, 2, 2, "1f1b"});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  for (const auto& [fused, threads] : runs) {
    auto trained = train(compiled->set, model, 3, threads, fused);
    ASSERT_TRUE(trained) << print_error(trained.error());
    ways.push_back(*std::move(trained));
  }
  for (size_t other : {1, 2}) {
    EXPECT_EQ(ways[0].losses, ways[other].losses);
    EXPECT_EQ(ways[0].norms, ways[other].norms);
    for (const auto& [name, tensor] : ways[0].parameters)
      EXPECT_TRUE(
          std::ranges::equal(tensor.data.span(), ways[other].parameters.at(name).data.span()))
          << name << " " << other;
  }
}

TEST(Compile, GraphsReadBackAndDagsSayAll) {
  NEED_MODEL("gpt");
  ImportOptions options;
  options.batch = 8;
  auto imported = import_onnx(model_path("two-tower", "model.onnx"), options);
  ASSERT_TRUE(imported) << print_error(imported.error());
  TrainSpec spec;
  spec.groups.push_back({"**", {}, 0.1, 0});
  auto step = differentiate(std::move(imported->graph), spec);
  ASSERT_TRUE(step) << print_error(step.error());
  auto sharded = shard_batch(std::move(step->graph), {2, 2, {}});
  ASSERT_TRUE(sharded) << print_error(sharded.error());
  const std::string graph_text = print_graph(*sharded);
  const auto graph_back = parse_graph(graph_text);
  ASSERT_TRUE(graph_back) << print_error(graph_back.error());
  EXPECT_EQ(print_graph(*graph_back), graph_text);
  DagSpec dag_spec;
  dag_spec.mesh = {{"dp", 2, false, true}};
  dag_spec.microbatches = 2;
  dag_spec.rounds = {{2, 1, {0}}};
  for (const auto& [shard, gather] :
       {std::pair(false, Gather::kUpdate), {true, Gather::kUpdate}, {true, Gather::kStep}}) {
    auto dag = make_dag(*sharded, dag_spec);
    ASSERT_TRUE(dag) << print_error(dag.error());
    std::vector<StateCut> cuts;
    for (const Param& param : dag->graph.params)
      if (shard)
        cuts.push_back({param, {{.over = {0}, .gather = gather, .stream = 0, .distance = 2}}});
    cut_states(*dag, cuts);
    for (Sum& sum : dag->sums) sum.each_micro = sum.part.valid() && gather == Gather::kStep;
    dag = expand_tasks(std::move(*dag));
    ASSERT_TRUE(dag) << print_error(dag.error());
    const std::string dag_text = print_dag(*dag);
    EXPECT_NE(dag_text.find("task all_reduce"), std::string::npos);
    EXPECT_EQ(dag_text.find("task reduce_scatter") != std::string::npos, shard);
    EXPECT_EQ(dag_text.find(" each_micro") != std::string::npos, gather == Gather::kStep);
    EXPECT_EQ(dag_text.find(" step distance=2") != std::string::npos, gather == Gather::kStep);
  }
}

// Peers share a program: nothing but the ranks' small files grows with the replicas.
TEST(Compile, RolesDoNotGrowWithReplicas) {
  NEED_MODEL("gpt");
  std::string text = strategy_text("gpt-deep", kSgd);
  text.replace(text.find("global_batch: 8"), 15, "global_batch: 4096");
  const auto two = compile_model("gpt-deep", text, {2, 2, 4, "1f1b"});
  const auto many = compile_model("gpt-deep", text, {2, 1024, 4, "1f1b"});
  ASSERT_TRUE(two && many) << print_error(two ? many.error() : two.error());
  ASSERT_EQ(many->set.roles.size(), two->set.roles.size());
  EXPECT_EQ(many->set.world(), 2048);
  for (size_t r = 0; r < two->set.roles.size(); ++r) {
    EXPECT_EQ(many->set.roles[r].body.size(), two->set.roles[r].body.size());
    EXPECT_EQ(many->set.roles[r].programs.size(), two->set.roles[r].programs.size());
  }
}

// More than two replicas on one device: the oracle's chain of sums.
TEST(Compile, OraclePlaysManyReplicas) {
  NEED_MODEL("gpt");
  const auto compiled =
      compile_model("gpt-deep", strategy_text("gpt-deep", kSgd), {2, 4, 2, "1f1b"}, true);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const auto single = train(*compiled->single, "gpt-deep", 2);
  const auto spread = train(compiled->set, "gpt-deep", 2);
  ASSERT_TRUE(single && spread);
  EXPECT_EQ(single->losses, spread->losses);
  EXPECT_EQ(single->norms, spread->norms);
}

// Layers of one shape share their programs, whatever the depth of the model.
TEST(Compile, EqualLayersAreCompiledOnce) {
  NEED_MODEL("gpt");
  const auto compiled =
      compile_model("gpt-deep", strategy_text("gpt-deep", kSgd), {1, 1, 4, "1f1b"});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const RoleProgram& role = compiled->set.roles[0];
  size_t computes = 0;
  for (const Instruction& instruction : role.body)
    computes += instruction.kind == InstructionKind::kCompute;
  // 8 layers × (forward, backward) × 4 microbatches run, of which a handful of programs differ.
  EXPECT_GE(computes, 64u);
  EXPECT_LE(role.programs.size(), 32u);
}

// ---- Messages of gradients ----------------------------------------------------------------------

// The sample GPT, whose embedding and head share a parameter, under a file of the library; without
// `with`, as it stands.
Result<Compiled> compile_tied(const std::string& file, const Shape2& shape,
                              const std::string& with = "") {
  const Folder folder;
  std::string text = library_text(file);
  const size_t bucket = text.find("bucket: 25MiB");
  if (bucket != text.npos) text.replace(bucket, 13, "bucket: 4KiB" + with);
  CompileOptions options;
  options.model = PIPER_SOURCE_DIR "/samples/gpt/model.onnx";
  options.strategy = folder.write("strategy.yaml",
                                  text + fmt::format("train: {{global_batch: 16, {}}}\n", kAdamW));
  options.defines = definitions_of(text, shape);
  options.oracles = false;
  return compile(options);
}

struct Message {
  size_t at = 0, ready = 0;  // instructions: itself, and the last one that makes what it reduces
};
// Gradients that one rank reduces with its replicas.
std::vector<Message> messages_of_gradients(const RoleProgram& role) {
  std::vector<Message> messages;
  for (size_t i = 0; i < role.body.size(); ++i) {
    const Instruction& one = role.body[i];
    const bool reduces =
        one.kind == InstructionKind::kAllReduce || one.kind == InstructionKind::kReduceScatter;
    if (!reduces || role.groups[static_cast<size_t>(one.group)].name != "dp") continue;
    if (role.tensor(one.args[0]).name.find(".grad") == std::string::npos) continue;
    size_t ready = i;
    while (ready-- > 0) {
      const auto& args = role.body[ready].args;
      if (std::any_of(one.args.begin(), one.args.end(), [&](int32_t arg) {
            return std::find(args.begin(), args.end(), arg) != args.end();
          }))
        break;
    }
    messages.push_back({i, ready});
  }
  return messages;
}

bool computes(const Instruction& one) { return is_ordered(one.pass); }

// A stream is worked off in order: a message that must wait for the last backward, as that of a
// tied parameter, comes last; and each is issued as soon as all that it carries is there.
void expect_as_finished(const RoleProgram& role, bool overlaps, const std::string& what) {
  const std::vector<Message> messages = messages_of_gradients(role);
  ASSERT_GE(messages.size(), 3u) << what;
  for (size_t m = 0; m < messages.size(); ++m) {
    const std::string label = what + ": " + role.body[messages[m].at].label;
    EXPECT_TRUE(m == 0 || messages[m - 1].ready <= messages[m].ready) << label;
    for (size_t i = messages[m].ready + 1; i < messages[m].at && !overlaps; ++i)
      EXPECT_FALSE(computes(role.body[i])) << label << " behind " << role.body[i].label;
  }
}
TEST(Compile, GradientsAreReducedAsTheyAreFinished) {
  const struct {
    const char* file;
    Shape2 shape;
    bool overlaps = false;  // pairs, into which no message moves
    const char* with = "";
  } cases[] = {
      {"ddp", {1, 2, 1}},
      {"ddp", {1, 2, 2}},
      {"1f1b", {2, 2, 4}},
      {"interleaved-1f1b", {2, 2, 4}},
      {"zb-h1", {2, 2, 4}},
      {"looped-bfs", {2, 2, 4}},
      {"dualpipev", {2, 2, 4}, true},
      {"chimera", {2, 2, 4}},
      {"1f1b", {2, 2, 4}, false, ", shard: [optimizer]"},
      {"1f1b", {1, 2, 2}, false, ", shard: [optimizer, gradients, parameters]"},
  };
  for (const auto& one : cases) {
    const std::string what = std::string(one.file) + one.with;
    const auto compiled = compile_tied(one.file, one.shape, one.with);
    ASSERT_TRUE(compiled) << what << print_error(compiled.error());
    for (const RoleProgram& role : compiled->set.roles) {
      expect_as_finished(role, one.overlaps, what);
      const size_t first = messages_of_gradients(role)[0].at;
      const bool hidden =
          std::any_of(role.body.begin() + static_cast<ptrdiff_t>(first), role.body.end(), computes);
      // Where each stage has two devices, some of them sum at the end of the step alone.
      EXPECT_TRUE(hidden || what == "chimera") << what;
    }
  }
}

// Returns whether it computes a matrix product: what does not, such as the gradient of an
// embedding, hides no reduction.
bool has_product(const RoleProgram& role, const Instruction& one) {
  if (!computes(one)) return false;
  const Program& program = role.programs[static_cast<size_t>(one.program)];
  return std::any_of(program.ops.begin(), program.ops.end(), [&](const ProgramOp& op) {
    const auto work = work_of(program, op);
    return work && work->kind != OpWork::kElements;
  });
}

// Says what rounds or adds up results of reductions: how often, and what does so with no backward
// since that reduction, though one follows.
struct Readers {
  int all = 0;
  std::vector<std::string> at_once;
};
Readers readers_of_reductions(const RoleProgram& role) {
  Readers readers;
  std::map<int32_t, bool> made;  // by buffer that a reduction made: a backward has run since
  for (size_t i = 0; i < role.body.size(); ++i) {
    const Instruction& one = role.body[i];
    const auto later = role.body.begin() + static_cast<ptrdiff_t>(i);
    for (size_t a = 0; a < one.args.size() && one.kind == InstructionKind::kCompute; ++a) {
      const auto from = made.find(one.args[a]);
      if (from == made.end()) continue;
      ++readers.all;
      const auto follows = [&](const Instruction& next) { return has_product(role, next); };
      if (!from->second && std::any_of(later, role.body.end(), follows))
        readers.at_once.push_back(one.label);
      made.erase(from);
    }
    if (has_product(role, one))
      for (auto& [buffer, has_run] : made) has_run = true;
    if (!info(one.kind).adds || one.stream == 0) continue;
    const size_t step = takes_pairs(one.kind) ? 2 : 1;
    for (size_t a = step - 1; a < one.args.size(); a += step) made[one.args[a]] = false;
  }
  return readers;
}

// Returns the matrix products that wait for a reduction with no other one since it.
std::vector<std::string> products_behind_reductions(const RoleProgram& role) {
  std::vector<std::string> waiting;
  int32_t last = -1;  // product
  for (size_t i = 0; i < role.body.size(); ++i) {
    const Instruction& one = role.body[i];
    if (!has_product(role, one)) continue;
    for (const int32_t wait : one.waits) {
      const Instruction& before = role.body[static_cast<size_t>(wait)];
      if (info(before.kind).adds && before.stream != 0 && wait > last)
        waiting.push_back(one.label + " for " + before.label);
    }
    last = static_cast<int32_t>(i);
  }
  return waiting;
}

// A computation that waits for a reduction when it has just begun leaves nothing to hide it behind.
TEST(Compile, ComputationsDoNotWaitForReductionsThatHaveJustBegun) {
  const struct {
    const char* file;
    Shape2 shape;
    const char* with;
  } cases[] = {
      {"ddp", {1, 2, 1}, ", reduce: {dtype: bf16}"},
      {"ddp", {1, 2, 2}, ", shard: [optimizer, gradients, parameters], reduce: {dtype: bf16}"},
      {"ddp", {1, 2, 2}, ", shard: [optimizer, gradients], reduce: {when: per_microbatch}"},
      {"1f1b",
       {2, 2, 4},
       ", shard: [optimizer, gradients], reduce: {when: per_microbatch, dtype: bf16}"},
      {"interleaved-1f1b", {2, 2, 4}, ", shard: [optimizer, gradients], reduce: {dtype: bf16}"},
      {"zb-h1", {2, 2, 4}, ", shard: [optimizer, gradients], reduce: {when: per_microbatch}"},
      {"dualpipev", {2, 2, 4}, ", shard: [optimizer, gradients], reduce: {when: per_microbatch}"},
  };
  for (const auto& one : cases) {
    const std::string what = std::string(one.file) + one.with;
    const auto compiled = compile_tied(one.file, one.shape, one.with);
    ASSERT_TRUE(compiled) << what << print_error(compiled.error());
    for (const RoleProgram& role : compiled->set.roles) {
      const Readers readers = readers_of_reductions(role);
      EXPECT_GT(readers.all, 2) << what;
      EXPECT_EQ(readers.at_once, std::vector<std::string>()) << what;
      EXPECT_EQ(products_behind_reductions(role), std::vector<std::string>()) << what;
    }
  }
}

// One region's gradients do not wait in a bucket for those of another.
TEST(Compile, BucketsHoldTheGradientsOfOneStage) {
  const Folder folder;
  CompileOptions options;
  options.model = PIPER_SOURCE_DIR "/samples/gpt/model.onnx";
  options.strategy =
      folder.write("strategy.yaml", library_text("interleaved-1f1b") +
                                        fmt::format("train: {{global_batch: 16, {}}}\n", kSgd));
  options.defines = {{"stages", "2"}, {"dp", "2"}, {"microbatches", "4"}};
  options.oracles = false;
  const auto large = compile(options);
  ASSERT_TRUE(large) << print_error(large.error());
  for (const RoleProgram& role : large->set.roles)
    EXPECT_EQ(messages_of_gradients(role).size(), 2u);  // two stages each, all in one bucket's size
}

// An entry that names no bucket sends a message for each parameter, whatever another one says.
TEST(Compile, EachEntryHasItsOwnBucket) {
  const auto messages = [](const std::string& of_layers, const std::string& of_others,
                           const std::string& shard) {
    const Folder folder;
    CompileOptions options;
    options.model = PIPER_SOURCE_DIR "/samples/gpt/model.onnx";
    options.strategy = folder.write(
        "strategy.yaml",
        fmt::format("piper: 1\nmesh: {{dp: 2}}\ntrain: {{global_batch: 4, {0}}}\ndirectives:\n"
                    "  - replicate: {{over: dp, match: \"model/h/**\"{1}{3}}}\n"
                    "  - replicate: {{over: dp{2}{3}}}\n",
                    kSgd, of_layers, of_others, shard));
    options.oracles = false;
    const auto compiled = compile(options);
    EXPECT_TRUE(compiled) << print_error(compiled.error());
    std::pair<size_t, size_t> counted;  // sums, with that of the loss, and gathers
    if (!compiled) return counted;
    const RoleProgram& role = compiled->set.roles[0];
    for (const Instruction& one : role.body) {
      counted.first += info(one.kind).adds;
      counted.second += one.kind == InstructionKind::kAllGather;
    }
    return counted;
  };
  const std::string large = ", bucket: 25MiB",
                    parts = ", shard: [optimizer, gradients, parameters]";
  for (const std::string& shard : {std::string(), std::string(", shard: [optimizer]"), parts}) {
    const auto none = messages("", "", shard), both = messages(large, large, shard);
    const auto layers = messages(large, "", shard), others = messages("", large, shard);
    EXPECT_LE(both.first, 5u) << shard;
    EXPECT_GT(layers.first, both.first) << shard;
    EXPECT_GT(others.first, both.first) << shard;
    EXPECT_EQ(layers.first + others.first, none.first + both.first) << shard;
    EXPECT_EQ(others.second > both.second, !shard.empty()) << shard;
  }
}

// ---- The single-device plan ---------------------------------------------------------------------

// It plays all replicas: where they are many, only if that is asked for, else the first.
TEST(Compile, LargeSingleDevicePlansPlayOneReplica) {
  const Folder folder;
  CompileOptions options;
  options.model = PIPER_SOURCE_DIR "/tests/data/mlp.onnx";
  options.strategy = folder.write(
      "strategy.yaml",
      library_text("ddp") + "train: {global_batch: 4096, optimizer: {sgd: {lr: 0.1}}}\n");
  const auto compile_with = [&](int64_t dp, int64_t largest) {
    options.defines = {{"dp", std::to_string(dp)}};
    options.largest_single = largest;
    return compile(options);
  };
  const auto few = compile_with(2, 500), many = compile_with(64, 500), asked = compile_with(64, 0);
  ASSERT_TRUE(few) << print_error(few.error());
  ASSERT_TRUE(many) << print_error(many.error());
  ASSERT_TRUE(asked) << print_error(asked.error());
  EXPECT_TRUE(few->single && few->warnings.empty());
  EXPECT_TRUE(asked->single && asked->warnings.empty());
  EXPECT_FALSE(few->set.manifest.predictions.contains("single_instructions"));
  ASSERT_TRUE(many->single && many->uncut);
  EXPECT_LT(many->single->roles[0].body.size(), 500u);
  ASSERT_EQ(many->warnings.size(), 1u);
  const double stated = many->set.manifest.predictions.at("single_instructions");
  EXPECT_EQ(many->warnings[0],
            fmt::format("the single-device plan plays only the first of 64 replicas, enough to "
                        "prove the plans by, not to train: for all it has about {:.0f} "
                        "instructions, more than 500; --oracles writes it",
                        stated));
  const auto made = static_cast<double>(asked->single->roles[0].body.size());
  EXPECT_GT(stated, made / 2);
  EXPECT_LT(stated, made * 2);
}

// The lines of the explanations of one kind.
std::vector<std::string> explained(const Compiled& compiled, std::string_view what) {
  std::vector<std::string> lines;
  for (const Explanation& one : compiled.explanations)
    if (one.directive == what) lines.insert(lines.end(), one.lines.begin(), one.lines.end());
  return lines;
}

TEST(Compile, ExplainsWhatTrainingIsAskedFor) {
  NEED_MODEL("gpt");
  const Folder folder;
  CompileOptions options;
  options.model = model_path("gpt-deep", "model.onnx");
  options.strategy = folder.write(
      "s.yaml",
      "piper: 1\nparams: {lr: 1e-3}\nmesh: {pp: 2, dp: 2}\ntrain:\n  microbatch_size: 2\n"
      "  optimizer: {adamw: {lr: $lr}}\n"
      "  groups: [{match: \"**/bias\", weight_decay: 0}, {match: \"**/ln_*/*\", lr: 0.5}]\n"
      "annotate:\n  - balance: {tag: stage, into: 2}\ndirectives:\n"
      "  - split: {dim: batch, into: 4, as: mb}\n  - place: {on: {pp: stage}}\n"
      "  - replicate: {over: dp}\n"
      "  - recompute: {where: {stage: 0, mb: \"<M/2\"}}\n"
      "  - precision: {compute: f16, keep: LayerNorm, loss_scale: {init_scale: 512}}\n"
      "  - order: {each: pp, policy: {prefer: B, in_flight: P - r}}\n");
  const auto compiled = compile(options);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  EXPECT_EQ(explained(*compiled, "split"),
            std::vector<std::string>{"batch 16 = 2 replicas × 4 microbatches × 2 samples"});
  EXPECT_EQ(explained(*compiled, "groups"),
            (std::vector<std::string>{
                "'**/bias': 49 parameters, 2848 elements, lr 0.001, weight_decay 0",
                "'**/ln_*/*': 17 parameters, 544 elements, lr 0.5, weight_decay 0.01"}));
  EXPECT_EQ(explained(*compiled, "loss_scale"),
            std::vector<std::string>{"the loss is scaled by 512 at first, times 0.5 after a step "
                                     "that is skipped, times 2 after 2000 that are not"});
  const auto precision = explained(*compiled, "precision");
  ASSERT_GE(precision.size(), 2u);
  EXPECT_EQ(precision.end()[-2], "LayerNorm computes in f32 also where 'keep' does not name it");
  EXPECT_EQ(
      precision.back(),
      "65 parameters are kept in 16 bits, too, 204.5 KiB more: the update rounds them, no pass");
  const auto policy = explained(*compiled, "policy");
  ASSERT_EQ(policy.size(), 5U);
  EXPECT_EQ(policy[2], "pp=0: F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(policy[4], "pp=1: F0 B0 F1 B1 F2 B2 F3 B3");
}

struct BadStrategy {
  const char* name;
  const char* find;
  const char* replace;
  const char* message;
};

class Refused : public ::testing::TestWithParam<BadStrategy> {};

TEST_P(Refused, SaysWhy) {
  NEED_MODEL("gpt");
  const Folder folder;
  std::string text =
      "piper: 1\nmesh: {pp: 2, dp: 2}\ntrain: {global_batch: 8, optimizer: {sgd: {lr: "
      "0.1}}}\nannotate:\n"
      "  - {match: \"**/h/{layer}/**\", tags: {stage: \"layer * 2 / layers\"}}\ndirectives:\n"
      "  - split: {dim: batch, into: 4, as: mb}\n  - place: {where: {stage: s}, on: {pp: s}}\n"
      "  - replicate: {over: dp}\n  - order: {each: pp, program: \"repeat M: F; repeat M: B\"}\n";
  const BadStrategy& bad = GetParam();
  ASSERT_NE(text.find(bad.find), std::string::npos);
  text.replace(text.find(bad.find), std::string(bad.find).size(), bad.replace);
  CompileOptions options;
  options.model = model_path("gpt-logits", "model.onnx");
  options.strategy =
      folder.write("s.yaml", "loss: {cross_entropy: {logits: logits, labels: labels}}\n" + text);
  const auto compiled = compile(options);
  ASSERT_FALSE(compiled);
  const Error& error = compiled.error();
  EXPECT_EQ(fmt::format("{}:{}: {}", error.at.line, error.at.column, error.message), bad.message);
}

INSTANTIATE_TEST_SUITE_P(
    Compile, Refused,
    ::testing::Values(
        BadStrategy{"glob", "**/h/{layer}", "**/g/{layer}",
                    "6:13: annotate: matches no forward op"},
        BadStrategy{"batch", "into: 4", "into: 3",
                    "8:5: split: 4 samples a replica cannot be cut into 3 equal microbatches"},
        BadStrategy{"axis", "over: dp", "over: dq",
                    "10:23: unknown mesh axis 'dq' (did you mean 'dp'?)"},
        BadStrategy{"coordinate", "on: {pp: s}", "on: {pp: s + 1}",
                    "9:41: place: 'F stage=1' goes to pp=2, but the axis has coordinates 0 to 1"},
        BadStrategy{"where", "where: {stage: s}", "where: {stag: s}",
                    "9:21: unknown tag 'stag' (did you mean 'stage'?)"},
        BadStrategy{"nothing", "where: {stage: s}, on: {pp: s}", "where: {stage: 5}, on: {pp: 0}",
                    "9:21: place: matches nothing"},
        BadStrategy{"unplaced", "where: {stage: s}, on: {pp: s}", "where: {stage: 0}, on: {pp: 0}",
                    "9:5: place: no directive places 'F stage=1' on axis 'pp'"},
        BadStrategy{"idle", "where: {stage: s}, on: {pp: s}", "where: {stage: s}, on: {pp: 0}",
                    "9:5: place: nothing is placed on pp=1"},
        BadStrategy{"dropped", "repeat M: B", "repeat M - 1: B",
                    "11:60: order: on pp=0 the program leaves 1 of 8 tasks out: 'B stage=0 mb=3'"},
        BadStrategy{"repeated", "repeat M: F", "repeat M + 1: F",
                    "11:47: order: on pp=0 no task is left for 'F' (item 5 of the program)"},
        BadStrategy{"deadlock", "repeat M: F; repeat M: B", "repeat M: B; repeat M: F",
                    "11:43: the order cannot run: its tasks wait for each other"},
        BadStrategy{"recompute_scope", "  - order", "  - recompute: {match: \"g/**\"}\n  - order",
                    "11:5: recompute: matches no forward op"},
        BadStrategy{"recompute_op", "  - order", "  - recompute: {ops: [Gellu]}\n  - order",
                    "11:23: recompute: unknown op 'Gellu' (did you mean 'Gelu'?)"},
        BadStrategy{"recompute_twice", "  - order",
                    "  - recompute: {ops: [Gelu]}\n  - recompute: {where: {stage: 1}}\n  - order",
                    "12:5: recompute: Gelu at 'model/h/2' is chosen twice"},
        BadStrategy{"recompute_nothing", "  - order", "  - recompute: {ops: [Gather]}\n  - order",
                    "11:5: recompute: the backward pass reads nothing that these 1 ops make"},
        BadStrategy{"recompute_micro", "  - order", "  - recompute: {where: {mb: 9}}\n  - order",
                    "11:25: recompute: matches no forward op of the microbatches 0 to 3"},
        BadStrategy{"regions", "layer * 2 / layers\"}", "(layer + 1) % 2\"}",
                    "5:1: the tags cut the model into regions that need each other: 'F stage=1' "
                    "needs 'F stage=0' needs 'F stage=1'"},
        BadStrategy{"masters", "  - order",
                    "  - precision: {compute: bf16, master: none}\n  - order",
                    "11:5: precision: 'master: none' changes nothing: no parameter that these ops "
                    "read is of 16 bits"},
        BadStrategy{"persist", "over: dp}", "over: dp, shard: optimizer, persist: 1MiB}",
                    "10:5: replicate: 'persist' leaves no parameter to cut"},
        BadStrategy{"unused", "  - replicate: {over: dp}\n", "",
                    "3:15: mesh: no directive uses axis 'dp' of size 2"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace piper::compile_test
