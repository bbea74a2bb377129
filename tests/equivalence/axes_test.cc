// Tensors cut over mesh axes, five steps of real exports: every rank of tensor-parallel,
// sequence-parallel and context-parallel meshes, beside pipelines, replicas and ZeRO, trains as one
// device does that cuts nothing, in f64 to the last digits.
#include "equivalence/jobs.h"
#include "piper/summary.h"

namespace piper {
namespace {

using namespace jobs;

#define NEED_MODELS()                                            \
  if (!std::filesystem::exists(model_path("gpt", "model.onnx"))) \
  GTEST_SKIP() << "no models in " << models_folder()

// What a user writes to cut a model's tensors; one directive a line.
const std::map<std::string, std::string> kTensor = {
    {"gpt-deep", R"(  - shard: {match: "**/qkv/*", dim: 0, over: tp}
  - shard: {match: "**/proj/weight", dim: 1, over: tp}
  - shard: {match: "**/fc/*", dim: 0, over: tp}
  - shard: {match: "**/fc_out/weight", dim: 1, over: tp}
)"},
    {"llama-hf", R"(  - shard: {match: "**/q_proj/weight", dim: 0, over: tp}
  - shard: {match: "**/k_proj/weight", dim: 0, over: tp}
  - shard: {match: "**/v_proj/weight", dim: 0, over: tp}
  - shard: {match: "**/o_proj/weight", dim: 1, over: tp}
  - shard: {match: "**/gate_proj/weight", dim: 0, over: tp}
  - shard: {match: "**/up_proj/weight", dim: 0, over: tp}
  - shard: {match: "**/down_proj/weight", dim: 1, over: tp}
)"},
};
const std::map<std::string, std::string> kSequence = {
    {"gpt-deep", R"(  - shard: {scope: "**/ln_*", dim: 1, over: tp}
)"},
    {"llama-hf", R"(  - shard: {scope: "**/*_layernorm", dim: 1, over: tp}
)"},
};

// Tokens in blocks, and heads where attention meets them all.
const std::string kTokens = R"(  - shard: {input: input_ids, dim: 1, over: cp}
  - shard: {input: labels, dim: 1, over: cp}
  - shard: {match: "**", dim: none, over: cp}
)";
const std::map<std::string, std::string> kHeads = {
    {"gpt-deep", kTokens + R"(  - shard: {scope: "**/qkv", dim: 2, over: cp}
)"},
    {"llama-hf",
     kTokens + R"(  - shard: {scope: ["**/q_proj", "**/k_proj", "**/v_proj"], dim: 2, over: cp}
)"},
};

struct Case {
  std::string name, model, mesh, directives;
  std::string include = "";  // a file of the library
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

std::string strategy_of(const Case& c, const std::string& train, bool wide) {
  return fmt::format("piper: 1\n{}mesh: {}\ntrain: {{global_batch: 8, {}}}\ndirectives:\n{}{}",
                     c.include, c.mesh, train, wide ? "  - precision: {compute: f64}\n" : "",
                     c.directives);
}

Result<Compiled> compile_case(const Case& c, const std::string& train, bool wide) {
  const Folder folder;
  CompileOptions options;
  options.model = model_path(c.model, "model.onnx");
  options.strategy = folder.write("strategy.yaml", strategy_of(c, train, wide));
  return compile(options);
}

// Of the largest element, over all parameters.
double largest_error(const Trained& a, const Trained& b) {
  double worst = 0;
  for (const auto& [name, tensor] : a.parameters) {
    const NamedTensor& other = b.parameters.at(name);
    EXPECT_EQ(tensor.type, other.type) << name;
    const auto n = static_cast<size_t>(num_elements(tensor.type.shape));
    const bool wide = tensor.type.dtype == DType::kF64;
    const auto at = [&](const NamedTensor& t, size_t i) {
      return wide ? reinterpret_cast<const double*>(t.data.data)[i]
                  : static_cast<double>(reinterpret_cast<const float*>(t.data.data)[i]);
    };
    double size = 0.05, difference = 0;
    for (size_t i = 0; i < n; ++i) {
      size = std::max(size, std::abs(at(other, i)));
      difference = std::max(difference, std::abs(at(tensor, i) - at(other, i)));
    }
    worst = std::max(worst, difference / size);
  }
  return worst;
}

class Axes : public ::testing::TestWithParam<Case> {};

TEST_P(Axes, TrainAsOneDeviceDoes) {
  NEED_MODELS();
  const Case& c = GetParam();
  for (const bool wide : {true, false}) {
    SCOPED_TRACE(wide ? "f64" : "f32");
    const Result<Compiled> compiled = compile_case(c, kAdamW, wide);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    const Result<Trained> uncut = train(*compiled->uncut, c.model, 5);
    ASSERT_TRUE(uncut) << print_error(uncut.error());
    const Result<Trained> spread = train(compiled->set, c.model, 5);
    ASSERT_TRUE(spread) << print_error(spread.error());
    for (size_t k = 0; k < uncut->losses.size(); ++k) {
      EXPECT_NEAR(spread->losses[k], uncut->losses[k], wide ? 1e-12 : 1e-5) << "step " << k;
      EXPECT_NEAR(spread->norms[k], uncut->norms[k], wide ? 1e-11 : 1e-4) << "step " << k;
    }
    EXPECT_LT(largest_error(*spread, *uncut), wide ? 1e-12 : 3e-4);
  }
}

// What a step of a rank sends over an axis, in f32: messages and bytes by kind.
std::map<InstructionKind, std::pair<int64_t, int64_t>> traffic(const Case& c,
                                                               std::string_view over = "tp") {
  const Result<Compiled> compiled = compile_case(c, kSgd, false);
  EXPECT_TRUE(compiled) << print_error(compiled.error());
  std::map<InstructionKind, std::pair<int64_t, int64_t>> sent;
  const Summary summary = summarise(compiled->set);
  for (const TrafficSummary& each : summary.roles[0].traffic)
    if (each.over == over && each.dtype == DType::kF32)
      sent[each.kind] = {each.messages, each.bytes};
  return sent;
}

// Shoeybi et al., 2019: 2 + 2 all-reduces a block of what a block hands on; Korthikanti et al.,
// 2022: each is a gather and a scatter, and what products read is gathered again for the gradients
// of their weights.
TEST(Axes, SendWhatTheirFormulasSay) {
  NEED_MODELS();
  const std::pair<std::string, int64_t> models[] = {{"gpt-deep", 8}, {"llama-hf", 4}};
  for (const auto& [model, layers] : models)
    for (const int64_t tp : {2, 4}) {
      SCOPED_TRACE(fmt::format("{} over {}", model, tp));
      const int64_t kTokens = 8 * 32, kWidth = 32, bytes = kTokens * kWidth * 4;
      const std::string mesh = fmt::format("{{tp: {}}}", tp);
      if (model != "llama-hf" || tp == 2) {  // whose two heads of keys cannot be cut in four
        const auto tensor = traffic({"", model, mesh, kTensor.at(model)});
        EXPECT_EQ(tensor.size(), 1U);
        EXPECT_EQ(tensor.at(InstructionKind::kAllReduce),
                  std::pair(4 * layers, 4 * layers * bytes));
      }
      if (model == "llama-hf") continue;
      const auto sequence = traffic({"", model, mesh, kTensor.at(model) + kSequence.at(model)});
      EXPECT_EQ(sequence.at(InstructionKind::kAllGather),
                std::pair(6 * layers, 6 * layers * bytes));
      EXPECT_EQ(sequence.at(InstructionKind::kReduceScatter),
                std::pair(4 * layers, 4 * layers * bytes));
      // The loss and the gradients of norms, of biases added to tokens and of both embeddings
      // travel once a step.
      const int64_t vocabulary = 96, positions = 32;
      const int64_t terms = (6 * layers + 2 + vocabulary + positions) * kWidth + 1;
      const auto step = sequence.at(InstructionKind::kAllReduce);
      for (const char* split : {"", "  - split: {dim: batch, into: 4}\n"})
        EXPECT_EQ(traffic({"", model, mesh, split + kTensor.at(model) + kSequence.at(model)})
                      .at(InstructionKind::kAllReduce),
                  step);
      EXPECT_EQ(step.second, terms * 4);
    }
}

// Between stages each rank of the axis sends its part of what all of them hold.
TEST(Axes, MessagesInPartsBringTheSameBits) {
  NEED_MODELS();
  const std::string more[] = {
      "", "  - prefetch: {where: {kind: recv}, distance: 1}\n",
      "  - fuse: {where: {kind: send}, microbatches: 2}\n",
      "  - stream: {where: {kind: [own_part, send, recv, all_gather]}, name: messages}\n"};
  for (const char* schedule : {"1f1b", "zbv", "dualpipev"})
    for (const std::string& also : more) {
      SCOPED_TRACE(std::string(schedule) + also);
      Case c{"", "gpt-deep", "{tp: 2}", kTensor.at("gpt-deep") + also,
             fmt::format("include: [{}/strategies/schedules/{}.yaml]\n"
                         "params: {{stages: 2, microbatches: 4}}\n",
                         PIPER_SOURCE_DIR, schedule)};
      const Result<Compiled> whole = compile_case(c, kAdamW, false);
      ASSERT_TRUE(whole) << print_error(whole.error());
      c.directives += "  - shard: {sends: \"**\", over: tp}\n";
      const Result<Compiled> parts = compile_case(c, kAdamW, false);
      ASSERT_TRUE(parts) << print_error(parts.error());
      const auto sent = [](const Result<Compiled>& compiled) {
        int64_t bytes = 0;
        const Summary summary = summarise(compiled->set);
        for (const TrafficSummary& each : summary.roles[0].traffic)
          if (each.kind == InstructionKind::kSend && each.of != "sums of the step")
            bytes += each.bytes;
        return bytes;
      };
      EXPECT_EQ(2 * sent(parts), sent(whole));
      const Result<Trained> a = train(whole->set, c.model, 2), b = train(parts->set, c.model, 2);
      ASSERT_TRUE(a && b);
      EXPECT_EQ(a->losses, b->losses);
      for (const auto& [name, tensor] : a->parameters)
        EXPECT_EQ(as_text(tensor.data.span()), as_text(b->parameters.at(name).data.span())) << name;
    }
}

// Jacobs et al., 2023 (DeepSpeed Ulysses): q, k, v and the result of attention change from tokens
// to heads or back, and their gradients the other way, each a message of 1/cp of the tensor.
TEST(Axes, HeadsForTokensAreExchanged) {
  NEED_MODELS();
  struct Model {
    std::string name;
    int64_t layers, messages, widths;  // of a layer, each way
  };
  // One product makes q, k and v; and two heads of keys and values serve four of queries.
  for (const Model& m : {Model{"gpt-deep", 8, 2, 4}, {"llama-hf", 4, 4, 3}})
    for (const int64_t cp : {2, 4}) {
      if (m.name == "llama-hf" && cp == 4) continue;
      const auto sent =
          traffic({"", m.name, fmt::format("{{cp: {}}}", cp), kHeads.at(m.name)}, "cp");
      const int64_t bytes = 8 * 32 * 32 * 4 / cp;
      EXPECT_EQ(sent.at(InstructionKind::kAllToAll),
                std::pair(2 * m.layers * m.messages, 2 * m.layers * m.widths * bytes));
    }
}

std::vector<Case> cases() {
  const std::string split = "  - split: {dim: batch, into: 2}\n";
  const std::string zero = "  - replicate: {over: dp, shard: [optimizer, gradients, parameters]}\n";
  std::vector<Case> all;
  for (const auto& [model, tensor] : kTensor) {
    const std::string sequence = tensor + kSequence.at(model), id = identifier(model);
    all.push_back({"tensor2_" + id, model, "{tp: 2}", tensor});
    all.push_back({"sequence2_" + id, model, "{tp: 2}", sequence});
    all.push_back({"tensor2_data2_" + id, model, "{dp: 2, tp: 2}",
                   split + tensor + "  - replicate: {over: dp}\n"});
    all.push_back({"sequence2_zero2_" + id, model, "{dp: 2, tp: 2}", split + sequence + zero});
    all.push_back({"tensor2_zero2_inner_" + id, model, "{tp: 2, dp: 2}", tensor + zero});
    const auto pipeline = [&](const std::string& name, const std::string& mesh,
                              const std::string& file, const std::string& more) {
      const std::string sizes = "params: {stages: 2, microbatches: 4}\n";
      all.push_back({name + "_" + id, model, mesh, more,
                     fmt::format("include: [{}/strategies/schedules/{}.yaml]\n{}", PIPER_SOURCE_DIR,
                                 file, sizes)});
    };
    pipeline("pipeline2_tensor2", "{tp: 2}", "1f1b", tensor);
    pipeline("pipeline2_sequence2", "{tp: 2}", "zb-h1", sequence);
    pipeline("pipeline2_sequence2_zero2", "{tp: 2, dp: 2}", "zbv", sequence + zero);
    pipeline("pipeline2_sequence2_recompute", "{tp: 2}", "1f1b", sequence + "  - recompute: {}\n");
    pipeline("pipeline2_sequence2_offload", "{tp: 2}", "gpipe",
             sequence + "  - offload: {what: activations}\n");
    pipeline("pipeline2_tensor2_dualpipev", "{tp: 2}", "dualpipev", tensor);
    const std::string context =
        "  - shard: {input: input_ids, dim: 1, over: cp}\n  - shard: "
        "{input: labels, dim: 1, over: cp}\n";
    const std::string rows = model == "gpt-deep"
                                 ? "  - shard: {match: \"**/wte/*\", dim: 0, over: tp}\n"
                                 : "  - shard: {match: [\"**/embed_tokens/*\", \"**/lm_head/*\"], "
                                   "dim: 0, over: tp}\n";
    all.push_back({"context2_" + id, model, "{cp: 2}", context});
    all.push_back({"context4_data2_" + id, model, "{dp: 2, cp: 4}", split + context + zero});
    all.push_back({"vocabulary2_" + id, model, "{tp: 2}", tensor + rows});
    all.push_back({"vocabulary4_data2_" + id, model, "{tp: 4, dp: 2}", sequence + rows + zero});
    all.push_back({"context2_tensor2_" + id, model, "{cp: 2, tp: 2}", context + tensor + rows});
    all.push_back({"context2_sequence2_data2_" + id, model, "{dp: 2, cp: 2, tp: 2}",
                   split + context + sequence + rows + zero});
    pipeline("pipeline2_context2_tensor2", "{cp: 2, tp: 2}", "zb-h1", context + tensor + rows);
    const std::string& heads = kHeads.at(model);
    all.push_back({"heads2_" + id, model, "{cp: 2}", heads});
    all.push_back({"heads2_data2_" + id, model, "{dp: 2, cp: 2}", split + heads + zero});
    all.push_back({"heads2_tensor2_" + id, model, "{cp: 2, tp: 2}", heads + tensor});
    pipeline("pipeline2_heads2_recompute", "{cp: 2}", "zbv", heads + "  - recompute: {}\n");
    if (model == "gpt-deep") all.push_back({"heads4_" + id, model, "{cp: 4}", heads});
    all.push_back({"tensor4_" + id, model, "{tp: 4}", tensor});
    // Samples over two axes: one of replicas, one that cuts what each replica has.
    const std::string samples = "  - shard: {input: \"*\", dim: 0, over: ep}\n";
    const std::string replicas = "  - replicate: {over: edp, bucket: 16KiB";
    all.push_back(
        {"batch2_data2_" + id, model, "{edp: 2, ep: 2}", split + samples + replicas + "}\n"});
    all.push_back({"batch2_zero2_" + id, model, "{ep: 2, edp: 2}",
                   split + samples + replicas + ", shard: [optimizer, gradients, parameters]}\n"});
    // Reduced in every microbatch; and over a third axis, of whole replicas.
    all.push_back({"sequence2_zero2_each_" + id, model, "{dp: 2, tp: 2}",
                   split + sequence +
                       "  - replicate: {over: dp, shard: [optimizer, gradients], reduce: {when: "
                       "per_microbatch}}\n"});
    all.push_back({"batch2_hybrid4_" + id, model, "{dp: 2, edp: 2, ep: 2}",
                   samples + replicas + ", shard: [optimizer]}\n  - replicate: {over: dp}\n"});
    all.push_back({"batch2_tensor2_" + id, model, "{ep: 2, tp: 2}", split + samples + sequence});
    all.push_back({"sequence4_data2_" + id, model, "{dp: 2, tp: 4}",
                   sequence + "  - replicate: {over: dp, shard: [optimizer], bucket: 16KiB}\n"});
  }
  // One sample a rank: a slice of it is a part of its block.
  for (const char* model : {"two-tower", "vit-hf"})
    all.push_back({"batch4_data2_" + identifier(model), model, "{dp: 2, ep: 4}",
                   "  - shard: {input: \"*\", dim: 0, over: ep}\n  - replicate: {over: dp}\n"});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models, Axes, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace piper
