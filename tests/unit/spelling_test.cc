// The strategy that counts as one text: what means alike prints alike, and reads back.
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "golden.h"
#include "seed.h"
#include "unit/strategy_texts.h"

namespace piper::spelling_test {
namespace {

std::string printed(const std::string& text, const std::vector<Definition>& defines = {}) {
  return print_strategy(parsed(text, defines));
}

TEST(Spelling, IsOneForAllThatMeansAlike) {
  const std::string wanted = R"y(piper: 1
mesh: {pp: 4, dp: 2}
inputs:
  "a:0": {shape: [8, 2], dtype: i64, batch_dim: 0}
  b: {dtype: f32}
dims: {k: 3, n: 5}
parameters:
  - freeze: "h/0/**"
  - rename: {from: "a/{x}", to: "b/$$/{x}"}
loss: {output: loss}
train:
  optimizer: {adamw: {lr: 0.0003, betas: [0.9, 0.999], eps: 1e-08, weight_decay: 0.01}}
  schedule: "lr * (step < 3 ? (step + 1) / 3 : step < 10 ? 0 + 1 * (1 + cos(3.141592653589793 * ((step - 3) / 7))) / 2 : 0)"
  groups:
    - {match: "**/bias", lr: 0.0003, weight_decay: 0}
  clip_norm: 1
  global_batch: 16
  seed: 7
weight_versions:
  - {where: {stage: s}, versions: "8 - s"}
annotate:
  - balance: {tag: stage, into: 8}
  - {match: "h/{layer}/**", tags: {odd: layer % 2, stage: "layer > 3 ? 1 : 0"}}
directives:
  - precision: {compute: bf16, keep: [Gelu], loss_scale: {static: 8}}
  - split: {dim: batch, into: 4, as: mb}
  - recompute: {match: "h/**", where: {stage: "<3", odd: [0, 1]}}
  - place: {where: {stage: s, mb: "0..M - 1"}, on: {pp: s % 4}}
  - replicate: {over: dp, bucket: 25MiB, shard: [optimizer, gradients], reduce: {when: per_microbatch}}
  - local_steps: {over: pp, match: "h/**", every: 6, offset: 2, delay: 3, mix: 0.25, outer: {sgd: {lr: 0.5, momentum: 0.9, dampening: 0, nesterov: true, weight_decay: 0}}}
  - offload: {what: activations, min: 512B, distance: 2}
  - stream: {where: {kind: [send, recv]}, name: tx, priority: 1}
  - prefetch: {where: {kind: recv}, distance: eager}
  - fuse: {where: {kind: send, value: "h/*"}, bucket: 1KiB}
  - order:
      each: pp
      program: |
        let k = M - 4
        repeat min(k, 3, r): F
        for i in 0..M:
          if i % 2 == 0: F[chunk=0] & B[chunk=i]?
          else if i > 2: F
          else:
            repeat 2: B
            BW?
)y";
  std::string quotes = wanted;
  for (const char* plain : {"layer % 2", "s % 4"})
    quotes.replace(quotes.find(plain), std::string(plain).size(), fmt::format("\"{}\"", plain));
  EXPECT_EQ(printed(R"y(
directives:   # in any order, with params, blanks and units
  - order:
      each: $axis
      program: |
        let k = M - stages      # so many
        repeat min(min(k, 1+2), (r)): F

        for i in 0*2 .. M:
            if (i%2)==0: F[chunk = 0]&B[chunk=i]?
            else if i>2:   F
            else:
              repeat 4/2: B
              BW?
  - fuse: {where: {kind: send, value: "h/*"}, bucket: 1024}
  - prefetch: {where: {kind: recv}, distance: eager}
  - stream: {name: tx, where: {kind: [send, recv]}, priority: high}
  - offload: {what: activations, in_flight: 1, min: 512 B, distance: stages - 2}
  - replicate:
      bucket: mib MiB
      over: dp
      shard: [optimizer, gradients]
      reduce: {when: per_microbatch, stream: reduce}
  - local_steps: {outer: {sgd: {nesterov: true, momentum: 0.9, lr: 0.5}}, offset: stages - 2, over: pp, match: "h/**", mix: 0.25, every: stages + 2, delay: stages - 1}
  - recompute: {where: {stage: "<stages-1", odd: [0, 3 - 2]}, match: "h/**"}
  - place: {on: {pp: "s%stages"}, where: {stage: s, mb: "(0) .. M-1"}}
  - precision: {keep: Gelu, compute: bf16, loss_scale: {static: 8.0}}
  - split: {into: "1 ? stages : 1/0", dim: batch}
annotate:
  strict: false
  rules:
    - balance: {into: 2*$stages, tag: stage}
    - {tags: {odd: layer%2, stage: "(layer > (stages - 1)) ? 1 : (0)"}, match: "h/{layer}/**"}
weight_versions: [{versions: 2*$stages-s, where: {stage: s}}]
train:
  seed: 7
  global_batch: 16
  schedule: [{warmup: 3}, {cosine: {steps: 10 - 3}}]
  clip_norm: 1.0
  groups: [{match: "**/bias", weight_decay: 0.0}]
  optimizer: {adamw: {lr: $rate}}
loss: loss
parameters: [freeze: "h/0/**", rename: {to: "b/$$/{x}", from: "a/{x}"}]
dims: {n: 5, k: 3}
inputs: {b: {dtype: f32}, "a:0": {dtype: i64, shape: [2*stages, 2], batch_dim: 0}}
mesh: {pp: $stages, dp: stages / 2}
params: {stages: 4, mib: 5*5, rate: 3e-4, axis: pp}
require: [{that: stages > 1, why: "two at least"}]
piper: 1
)y"),
            quotes);
  EXPECT_EQ(printed(quotes), quotes);
}

// Every key of the schema, but those that are gone when a strategy is printed: a key that is read
// and not printed would change what is read again.
void expect_keys_in(const std::string& said) {
  // Phases are printed as the formula that they make.
  const std::set<std::string> gone = {"requirement", "directive", "phase", "decay"};
  const std::set<std::string> spelled_out = {"csv", "dialect", "program", "when"};
  const auto schema = nlohmann::json::parse(strategy_schema());
  for (const auto& [object, definition] : schema["definitions"].items()) {
    if (gone.contains(object)) continue;
    for (const auto& [key, value] : definition["properties"].items()) {
      const bool is_said = spelled_out.contains(key) || said.find(key + ":") != said.npos;
      EXPECT_TRUE(is_said) << object << "." << key;
    }
  }
}

// Returns the strategies of all golden tests, printed, and checks that they read back. So the keys
// of a directive are those of its golden tests.
std::string print_goldens() {
  int count = 0;
  std::string said;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(
           std::string(PIPER_SOURCE_DIR) + "/tests/golden")) {
    if (entry.path().extension() != ".test") continue;
    const auto text = read_text_file(entry.path().string(), 1 << 24);
    EXPECT_TRUE(text);
    for (size_t at = text->find("--- strategy\n"); at != text->npos;
         at = text->find("--- strategy\n", at + 1)) {
      const size_t begin = at + 13;
      const size_t end = std::min(text->find("\n--- ", begin), text->find("\n#", begin));
      const auto strategy = parse(text->substr(begin, end - begin) + "\n");
      if (!strategy) continue;
      const std::string once = print_strategy(*strategy);
      EXPECT_EQ(printed(once), once) << entry.path();
      said += once;
      ++count;
    }
  }
  EXPECT_GT(count, 50);
  return said;
}

// What else can be said, as it is printed: nothing is lost.
TEST(Spelling, HasAllThatCanBeSaid) {
  const std::string head = "piper: 1\nmesh: {pp: 2}\n";
  const std::string stages =
      "annotate:\n  strict: true\n  rules:\n"
      "    - {match: \"**\", tags: {stage: 0, part: 1}}\n";
  const std::string all[] = {
      "parameters:\n"
      "  - include: \"c/**\"\n"
      "  - include: {match: d, as: \"m.d\", transposed: true}\n"
      "  - exclude: \"e/**\"\n"
      "  - thaw: \"t/**\"\n"
      "  - tie: [\"a.b\", \"c.d\"]\n"
      "  - stored: {match: \"**/norm/**\", plus: 1}\n"
      "loss: {cross_entropy: {logits: \"lo.g\", labels: labels, ignore_index: -1}}\n",
      "inputs:\n  x: {shape: [8, 2], dtype: i64, batch_dim: 0}\n"
      "parameters:\n  - freeze: a\n  - rename: {from: b, to: c}\nloss: {output: loss}\n",
      "train:\n  optimizer: {adamw: {lr: 0.5, betas: [0.9, 0.999], eps: 1e-08, weight_decay: 0, "
      "states: [bf16, f32]}}\n"
      "  ema: {decay: 0.999}\n"
      "  schedule: \"lr * min(1, (step + 1) / 3)\"\n"
      "  groups:\n    - {match: \"**/bias\", lr: 0.5, weight_decay: 0}\n"
      "    - {of: [norms, biases], lr: 0.5, weight_decay: 0, schedule: \"lr\"}\n  clip_norm: 1\n  "
      "skip_nonfinite: true\n"
      "  global_batch: 16\n"
      "  rampup:\n    - {steps: 3, global_batch: 4}\n    - {steps: 2, global_batch: 8}\n"
      "  seed: 7\n",
      "weight_versions:\n  - {where: {stage: s}, versions: s}\n"
      "annotate:\n  - balance: {tag: stage, into: 8}\n"
      "directives:\n  - precision: {compute: bf16, keep: [Gelu], loss_scale: {static: 8}}\n"
      "  - split: {dim: batch, into: 4, as: mb}\n"
      "  - split: {dim: tokens, into: 2, sizes: [5, 3], as: seq}\n"
      "  - split: {scope: \"b/**\", tensor: \"b/w\", dim: 1, into: 2, within: pp, as: piece}\n"
      "  - replicate: {over: pp, bucket: 25MiB, shard: [optimizer, gradients], reduce: {when: "
      "per_microbatch}}\n"
      "  - local_steps: {over: pp, every: 8, offset: 3, delay: 2, mix: 0.5, outer: {sgd: {lr: 0.7, "
      "momentum: 0.9, dampening: 0, nesterov: false, weight_decay: 0}}}\n"
      "  - offload: {what: activations, min: 512B, distance: 2}\n",
      "loss:\n"
      "  - {output: a}\n"
      "  - {mean: a}\n"
      "  - {sum: a, weight: -2}\n"
      "  - {cross_entropy: {logits: a, labels: b, dim: 1, ignore_index: -1, label_smoothing: 0.5, "
      "reduction: sum}, weight: 0.5}\n"
      "  - {mse: {output: a, target: b}}\n"
      "  - {l1: {output: a, target: b, reduction: sum}}\n"
      "  - {smooth_l1: {output: a, target: b, beta: 0.5}}\n"
      "  - {huber: {output: a, target: b, delta: 0.5}}\n"
      "  - {bce: {output: a, target: b}}\n"
      "  - {bce_with_logits: {logits: a, target: b, pos_weight: 3}}\n"
      "  - {kl: {output: a, target: b, log_target: true, reduction: batchmean}}\n",
      "train:\n  optimizer: {sgd: {lr: 0.1, momentum: 0.9, dampening: 0, nesterov: true, "
      "weight_decay: 1e-05, states: [bf16]}}\n  microbatch_size: 2\n",
      "train:\n  optimizer: {adagrad: {lr: 0.01, lr_decay: 0.5, eps: 1e-10, weight_decay: 0, "
      "initial_accumulator_value: 0.25, states: [bf16]}}\n",
      "train:\n  optimizer: {lion: {lr: 0.0001, betas: [0.9, 0.99], weight_decay: 0.5, states: "
      "[bf16]}}\n",
      "train:\n  optimizer: {onnx_adam: {lr: 0.001, betas: [0.5, 0.75], eps: 1e-06, "
      "weight_decay: 0, weight_decay_after: 0.125, states: [bf16]}}\n",
      "train:\n  optimizer: {muon: {lr: 0.02, momentum: 0.95, nesterov: true, ns_steps: 4, "
      "adjust_lr: match_rms_adamw, eps: 1e-07, weight_decay: 0.1}}\n",
      "train:\n  optimizer: {adafactor: {lr: 0.01, beta2_decay: -0.8, eps1: 0.5, eps2: 0.001, d: "
      "1, "
      "weight_decay: 0}}\n",
      "train:\n  optimizer: {adam: {lr: 0.001, betas: [0.9, 0.999], eps: 1e-08, "
      "weight_decay: 0, states: [bf16]}}\n",
      stages +
          "directives:\n"
          "  - precision: {compute: f16, match: \"h/**\", where: {stage: 0}, accumulate: f16, "
          "reduce: bf16, master: none, loss_scale: {init_scale: 8, growth_factor: 3, "
          "backoff_factor: 0.25, growth_interval: 10}}\n"
          "  - recompute: {where: {stage: absent}, ops: [Gelu, Tanh]}\n"
          "  - recompute: {budget: 64MiB}\n"
          "  - place: {where: {stage: s, part: \"*\"}, tags: {dir: \"mb % 2\"}, on: {pp: dir}}\n"
          "  - replicate: {over: pp, match: \"h/**\", where: {stage: 0}, stream: r2, shard: "
          "[optimizer, gradients, parameters], persist: 1KiB, gather: {prefetch: 2, when: "
          "per_step, stream: g2, dtype: int8, lossy: true, block: 64}}\n"
          "  - shard: {match: [\"**/w\", \"**/v\"], dim: -1, pad: true, over: pp}\n"
          "  - shard: {match: \"**/experts/*\", dim: 0, capacity: 1.5, over: pp}\n"
          "  - shard: {input: tokens, dim: none, over: pp}\n"
          "  - shard: {scope: \"h/*\", where: {stage: 0}, dim: 1, over: pp}\n"
          "  - shard: {sends: \"h/*\", over: pp}\n"
          "  - shard: {attention: \"h/*\", by: ring, over: pp}\n"
          "  - offload: {what: optimizer, in_flight: 3}\n"
          "  - offload: {what: activations, match: \"h/**\", where: {stage: \"!=1\"}}\n"
          "  - stream: {where: {pass: [B, BW]}, name: w, priority: -1, sms: 8}\n"
          "  - stream: {name: w2, sms: 9, credit: 3MiB}\n"
          "  - prefetch: {where: {kind: input}, distance: 3}\n"
          "  - fuse: {where: {kind: send}, microbatches: 2}\n"
          "  - order:\n      each: pp\n      lists:\n"
          "        - \"0F0 0F1&&0B0 0BI1 0BW1\"\n        - \"1F0 1B0 1F1 1B1\"\n",
      "directives:\n"
      "  - replicate: {over: pp, reduce: {dtype: bf16, sum: fast, slice: 2MiB}}\n"
      "  - replicate: {over: pp, match: \"h/**\", shard: [optimizer], reduce: {dtype: float8, "
      "lossy: "
      "true, block: 128}}\n"
      "  - order:\n      each: pp\n"
      "      policy: {prefer: [BI, F, BW], in_flight: 2 * P - r, memory: 2GiB, costs: {F: 18.5, B: "
      "28, BI: 19, BW: 9, send: 0.6, stages: [{stage: 0, F: 20, B: 31, BI: 20, BW: 11}, "
      "{stage: 1, F: 21, B: 31, BI: 20, BW: 11}]}, goal: span}\n"};
  std::string said = print_goldens();
  for (std::string text : all) {
    said += text;
    for (const char* plain : {": 2 * P - r"})
      if (const size_t at = text.find(plain); at != text.npos)
        text.replace(at, 11, ": \"2 * P - r\"");
    EXPECT_EQ(printed(head + text), head + text);
  }
  expect_keys_in(said);
}

TEST(Spelling, OfAPipelineFileIsItsLists) {
  const Folder folder;
  const std::string csv = folder.write("order.csv", "0F0,0F1,0I0,0W0,0B1\n,1F0,1B0,1F1,1B1\n");
  const std::string head = "piper: 1\nmesh: {pp: 2}\ndirectives:\n  - order:\n      each: pp\n";
  EXPECT_EQ(printed(fmt::format("{}      csv: \"{}\"\n      dialect: new\n", head, csv)),
            head +
                "      lists:\n        - \"0F0 0F1 0BI0 0BW0 0B1\"\n"
                "        - \"1F0 1B0 1F1 1B1\"\n");
}

// Lists are longer than the file that they come of, and are read again all the same.
TEST(Spelling, OfALongPipelineFileIsReadAgain) {
  std::string row;
  for (int micro = 0; micro < 1 << 16; ++micro) row += fmt::format("0F{},0I{},", micro, micro);
  row.back() = '\n';
  const Folder folder;
  const std::string csv = folder.write("order.csv", row);
  const std::string lists = printed(fmt::format(
      "piper: 1\nmesh: {{pp: 1}}\ndirectives:\n  - order: {{each: pp, csv: \"{}\"}}\n", csv));
  EXPECT_GT(lists.size(), row.size());
  EXPECT_EQ(printed(lists), lists);
}

// ---- Expressions --------------------------------------------------------------------------------

std::string random_expression(std::mt19937_64& random, int depth) {
  const auto part = [&] { return random_expression(random, depth - 1); };
  static const char* const kOps[] = {"+",  "-", "*",  "/",  "%",  "<",
                                     "<=", ">", "==", "!=", "&&", "||"};
  switch (depth == 0 ? random() % 3 : random() % 8) {
    case 0:
      return std::to_string(random() % 4);
    case 1:
      return random() % 2 ? "x" : "y";
    case 2:
      return random() % 2 ? "a" : "b";
    case 3:
      return fmt::format("{}({})", random() % 2 ? "-" : "!", part());
    case 4:
      return fmt::format("{}({}, {})", random() % 2 ? "min" : "max", part(), part());
    case 5:
      return fmt::format("({}) ? ({}) : ({})", part(), part(), part());
    default:
      return fmt::format("({}) {} ({})", part(), kOps[random() % std::size(kOps)], part());
  }
}

TEST(Spelling, OfExpressionsKeepsTheirValues) {
  const uint64_t seed = given_seed().value_or(5);
  SCOPED_TRACE(fmt::format("PIPER_SEED={}", seed));
  std::mt19937_64 random(seed);
  int values = 0;
  for (int tries = 0; tries < 4000; ++tries) {
    const std::string text = random_expression(random, 3);
    const auto bound = Expr::parse(text, {});
    ASSERT_TRUE(bound) << text;
    const Variables params = {{"a", 1}, {"a", static_cast<int64_t>(random() % 5) - 2}, {"b", 0}};
    const Expr expression = bound->with(params);
    const auto spelled = Expr::parse(expression.spelled(), {});
    ASSERT_TRUE(spelled) << text << " became " << expression.spelled();
    EXPECT_EQ(spelled->spelled(), expression.spelled()) << text;
    for (const auto& name : spelled->names()) EXPECT_TRUE(name == "x" || name == "y") << text;
    for (const Variables& variables : {Variables{{"x", 0}, {"y", 3}}, {{"x", -2}, {"y", 1}}}) {
      const auto before = expression.evaluate(variables), after = spelled->evaluate(variables);
      ASSERT_EQ(before.ok(), after.ok()) << text << " became " << expression.spelled();
      if (!before) continue;
      EXPECT_EQ(*before, *after) << text << " became " << expression.spelled();
      ++values;
    }
  }
  EXPECT_GT(values, 2000);
  EXPECT_EQ(Expr::constant(std::numeric_limits<int64_t>::min()).spelled(),
            "-9223372036854775807 - 1");
  const auto lowest = Expr::parse("x - (-9223372036854775807 - 1)", {});
  EXPECT_EQ(lowest->spelled(), "x - (-9223372036854775807 - 1)");
}

}  // namespace
}  // namespace piper::spelling_test
