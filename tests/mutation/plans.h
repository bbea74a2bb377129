// Right plans to change: small models under random strategies.
#pragma once

#include "equivalence/jobs.h"
#include "mutation/mutations.h"

namespace piper::mutation {

struct Made {
  std::string strategy;  // its text
  bool fuse = true;
  std::optional<Compiled> compiled;  // nothing: refused with `error`
  std::string error;
  bool refused_plan = false;  // by the verifier
};

inline size_t pick(Random& random, size_t count) { return static_cast<size_t>(random() % count); }
template <class T>
T one_of(Random& random, std::initializer_list<T> list) {
  return *(list.begin() + pick(random, list.size()));
}

inline std::string random_order(Random& random) {
  return one_of<const char*>(
      random, {"",
               "  - order:\n      each: pp\n      program: |\n"
               "        repeat M: F\n        repeat M: B\n",
               "  - order:\n      each: pp\n      program: |\n"
               "        repeat min(M, P-r-1): F\n        repeat M - min(M, P-r-1): F B\n"
               "        repeat min(M, P-r-1): B\n",
               "  - order:\n      each: pp\n      program: |\n"
               "        repeat min(M, P-r-1): F\n        for k in 0..M:\n          F? BI?\n"
               "          if k >= r: BW?\n        repeat min(M, r): BW?\n"});
}

// With at least `microbatches`.
inline std::string random_strategy(Random& random, size_t microbatches) {
  const size_t pp = 1 + pick(random, 4), dp = 1 + pick(random, 3);
  const size_t mb = microbatches + pick(random, 3);
  const size_t batch = dp * mb * (1 + pick(random, 2));
  const std::string optimizer = one_of<const char*>(
      random, {"sgd: {lr: 0.1}", "sgd: {lr: 0.1, momentum: 0.9}", "adamw: {lr: 1e-3}",
               "adam: {lr: 1e-3, weight_decay: 0.1}", "adagrad: {lr: 0.1}"});
  std::string text = fmt::format("piper: 1\nmesh: {{pp: {}, dp: {}}}\ntrain: {{optimizer: {{{}}}",
                                 pp, dp, optimizer);
  if (pick(random, 2)) text += ", clip_norm: 1.0";
  if (pick(random, 3) == 0) text += ", schedule: {warmup: 3}";
  text += fmt::format(", global_batch: {}}}\nannotate:\n  - balance: {{tag: stage, into: {}}}\n",
                      batch, pp);
  text += fmt::format("directives:\n  - split: {{dim: batch, into: {}}}\n", mb);
  text += "  - place: {where: {stage: s}, on: {pp: s}}\n";
  if (dp > 1)
    text += fmt::format("  - replicate: {{over: dp, bucket: {}}}\n",
                        one_of<const char*>(random, {"64", "2KiB", "25MiB"}));
  return text + random_order(random);
}

inline Made make_plan(Random& random, size_t microbatches) {
  const jobs::Folder folder;
  Made made;
  made.strategy = random_strategy(random, microbatches);
  made.fuse = pick(random, 4) != 0;
  CompileOptions options;
  options.model = std::string(PIPER_SOURCE_DIR "/tests/data/") +
                  one_of<const char*>(random, {"mlp.onnx", "mlp.onnx", "two_tower.onnx",
                                               "coupled/plain_mean.onnx"});
  options.strategy = folder.write("strategy.yaml", made.strategy);
  options.fuse = made.fuse;
  options.oracles = false;
  made.strategy = options.model + "\n" + made.strategy;
  auto compiled = compile(options);
  if (compiled) {
    made.compiled = *std::move(compiled);
  } else {
    made.error = print_error(compiled.error());
    made.refused_plan = compiled.error().code == ExitCode::kRefused;
  }
  return made;
}

}  // namespace piper::mutation
