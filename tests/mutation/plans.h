// Right plans to change: small models under random strategies.
#pragma once

#include "equivalence/jobs.h"
#include "mutation/mutations.h"

namespace piper::mutation {

struct Made {
  std::string strategy;              // its text
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
               "        repeat min(M, P-r-1): F\n        repeat M - min(M, P-r-1): F R? B\n"
               "        repeat min(M, P-r-1): R? B\n",
               "  - order:\n      each: pp\n      program: |\n"
               "        repeat M: F\n        repeat M: R?\n        repeat M: B\n"
               "        U[chunk=0]\n",
               "  - order:\n      each: pp\n      program: |\n"
               "        repeat min(M, P-r-1): F\n        for k in 0..M:\n          F? BI?\n"
               "          if k >= r: BW?\n        repeat min(M, r): BW?\n"});
}

inline std::string random_train(Random& random, size_t batch) {
  const std::string optimizer =
      one_of<const char*>(random, {"sgd: {lr: 0.1}", "sgd: {lr: 0.1, momentum: 0.9}",
                                   "adamw: {lr: 1e-3}", "adam: {lr: 1e-3, weight_decay: 0.1}",
                                   "adagrad: {lr: 0.1}", "adafactor: {lr: 1e-2}"});
  std::string text = fmt::format("train: {{optimizer: {{{}}}, global_batch: {}", optimizer, batch);
  if (pick(random, 2)) text += ", clip_norm: 1.0";
  if (pick(random, 3) == 0) text += ", schedule: [{warmup: 3}]";
  return text + "}\n";
}
inline std::string random_recompute(Random& random, size_t stages) {
  return one_of<std::string>(
      random, {"", "", "  - recompute: {budget: 200B}\n", "  - recompute: {budget: 600B}\n",
               "  - recompute: {}\n", "  - recompute: {ops: [Tanh, LayerNorm, Relu]}\n",
               "  - recompute: {where: {stage: s, mb: \"<=s\"}}\n",
               "  - recompute: {budget: 400B, where: {mb: 0}}\n"
               "  - recompute: {where: {mb: \">0\", stage: 0}}\n",
               fmt::format("  - recompute: {{where: {{stage: \"<{}\"}}}}\n", 1 + stages / 2)});
}

// Most stages have one device, some have several, by microbatch.
inline std::string random_place(Random& random) {
  return "  - place: " +
         one_of<std::string>(
             random,
             {"{where: {stage: s}, on: {pp: s}}\n", "{where: {stage: s}, on: {pp: s}}\n",
              "{where: {stage: s}, on: {pp: s}}\n",
              "{where: {stage: s}, on: {pp: \"mb % 2 ? P-1-s : s\"}}\n",
              "{where: {stage: s}, on: {pp: \"(s + mb) % P\"}}\n",
              "{where: {stage: s}, tags: {dir: \"mb >= M/2\"}, "
              "on: {pp: \"dir ? P-1-s : s\"}}\n",
              "{where: {stage: s, mb: 0}, on: {pp: s}}\n"
              "  - place: {where: {stage: s, mb: \">0\"}, on: {pp: \"s == 0 ? P-1 : s-1\"}}\n"});
}

inline std::string random_precision(Random& random) {
  return one_of<const char*>(
      random, {"", "", "", "  - precision: {compute: f32, accumulate: bf16}\n",
               "  - precision: {compute: bf16, accumulate: f16}\n",
               "  - precision: {compute: f16, loss_scale: dynamic}\n",
               "  - precision: {compute: bf16, keep: [Add], loss_scale: {static: 64}}\n"});
}

inline std::string random_offload(Random& random) {
  const std::string states = one_of<const char*>(
      random, {"", "", "  - offload: {what: optimizer, distance: 2, in_flight: 0}\n"});
  return states +
         one_of<const char*>(
             random, {"", "", "  - offload: {what: activations, distance: 0, in_flight: 0}\n",
                      "  - offload: {what: activations}\n"});
}

// Streams of their own, receives that are posted early, values that wait on the host.
inline std::string random_streams(Random& random, size_t pp) {
  std::string text;
  if (pp > 1)
    text += one_of<const char*>(
        random, {"", "", "  - stream: {where: {kind: [send, recv]}, name: messages}\n",
                 "  - stream: {where: {kind: send}, name: out, priority: high}\n"
                 "  - stream: {where: {kind: recv}, name: in}\n",
                 "  - stream: {where: {kind: [send, recv], pass: F}, name: forward}\n"
                 "  - stream: {where: {kind: [send, recv], pass: B}, name: backward}\n"
                 "  - prefetch: {where: {kind: recv, pass: B}, distance: eager}\n",
                 "  - prefetch: {where: {kind: recv}, distance: 2}\n"
                 "  - prefetch: {where: {kind: input}, distance: 1}\n"});
  text += one_of<const char*>(
      random, {"", "", "", "  - stream: {where: {kind: compute, pass: B}, name: back}\n"});
  return text + random_offload(random);
}

// Messages that travel together.
inline std::string random_fuse(Random& random, size_t pp, size_t dp) {
  std::string text;
  if (pp > 1)
    text += one_of<const char*>(random,
                                {"", "", "  - fuse: {where: {kind: send}}\n",
                                 "  - fuse: {where: {kind: send}, bucket: 64B, microbatches: 2}\n",
                                 "  - fuse: {where: {kind: recv, mb: absent}, bucket: 128B}\n"});
  if (dp > 1)
    text += one_of<const char*>(
        random,
        {"", "", "  - fuse: {where: {kind: [all_reduce, reduce_scatter]}, microbatches: 2}\n",
         "  - fuse: {where: {kind: [all_reduce, reduce_scatter, all_gather]}, bucket: "
         "100}\n"});
  return text;
}

// A strategy of the library.
inline std::string library_strategy(Random& random, size_t microbatches) {
  std::vector<std::string> files = jobs::library_files();
  std::erase_if(files, [](const std::string& file) {  // see overlapping_strategy()
    return jobs::library_text(file).find("weight_versions") != std::string::npos;
  });
  size_t pp = 1 + pick(random, 4), mb = microbatches + pick(random, 5);
  const size_t dp = 1 + pick(random, 2);
  const std::string file = files[pick(random, files.size())];
  if (file == "dualpipe" || file == "chimera") {
    pp = 2 * (1 + pick(random, 2));
    mb = 2 * pp;
  }
  const std::string read = jobs::library_text(file);
  const auto has = [&](const char* param) { return read.find(param) != std::string::npos; };
  std::vector<std::string> params;
  if (has("$dp")) params.push_back(fmt::format("dp: {}", dp));
  if (has("$stages")) params.push_back(fmt::format("stages: {}", pp));
  if (has("$microbatches")) params.push_back(fmt::format("microbatches: {}", mb));
  if (has("ascending: 0"))
    params.push_back("ascending: 1");  // the order of sums, so that bits can be compared
  std::string text = fmt::format("piper: 1\ninclude: {}/strategies/{}.yaml\nparams: {{{}}}\n",
                                 PIPER_SOURCE_DIR, file, join(params, ", "));
  text += random_train(random, dp * mb * (1 + pick(random, 2)));
  std::string more = random_recompute(random, pp) + random_precision(random);
  if (has("$stages")) more += random_fuse(random, pp, 1);
  return more.empty() ? text : text + "directives:\n" + more;
}

inline const std::initializer_list<const char*> kShards = {
    "",
    "",
    ", reduce: {dtype: bf16}",
    ", shard: [optimizer]",
    ", shard: [optimizer], reduce: {dtype: f16}",
    ", shard: [optimizer, gradients]",
    ", shard: [optimizer, gradients], reduce: {when: per_microbatch}",
    ", shard: [optimizer, gradients], reduce: {when: per_microbatch, dtype: bf16}",
    ", shard: [optimizer, gradients, parameters], gather: {prefetch: 2}",
    ", shard: [optimizer, gradients, parameters], gather: {when: per_step}",
    ", shard: [optimizer, gradients, parameters], gather: {when: per_microbatch, prefetch: 0}, "
    "reduce: {when: per_microbatch}"};

// With at least `microbatches`.
inline std::string random_strategy(Random& random, size_t microbatches) {
  if (pick(random, 3) == 0) return library_strategy(random, microbatches);
  const size_t pp = 1 + pick(random, 4), dp = 1 + pick(random, 3);
  const size_t mb = microbatches + pick(random, 3);
  std::string text = fmt::format("piper: 1\nmesh: {{pp: {}, dp: {}}}\n", pp, dp);
  text += random_train(random, dp * mb * (1 + pick(random, 2)));
  text += fmt::format("annotate:\n  - balance: {{tag: stage, into: {}}}\n", pp);
  text += fmt::format("directives:\n  - split: {{dim: batch, into: {}}}\n", mb);
  text += random_place(random) + random_recompute(random, pp);
  if (dp > 1)
    text += fmt::format("  - replicate: {{over: dp, bucket: {}{}}}\n",
                        one_of<const char*>(random, {"64B", "2KiB", "25MiB"}),
                        one_of<const char*>(random, kShards));
  return text + random_precision(random) + random_streams(random, pp) +
         random_fuse(random, pp, dp) + random_order(random);
}
// States over an axis and then again over another; entries for some parameters.
inline std::string nested_strategy(Random& random, size_t microbatches) {
  const size_t pp = 1 + pick(random, 2), mb = microbatches + pick(random, 2);
  std::string text = fmt::format("piper: 1\nmesh: {{pp: {}, {}}}\n", pp,
                                 pick(random, 2) ? "node: 2, gpu: 2" : "gpu: 2, node: 2");
  text += random_train(random, 4 * mb * (1 + pick(random, 2)));
  text += fmt::format(
      "annotate:\n  - balance: {{tag: stage, into: {}}}\n"
      "directives:\n  - split: {{dim: batch, into: {}}}\n"
      "  - place: {{where: {{stage: s}}, on: {{pp: s}}}}\n"
      "  - replicate: {{over: gpu, bucket: {}, shard: [optimizer, gradients, parameters]{}}}\n"
      "  - replicate: {{over: node, shard: [optimizer{}]{}}}\n",
      pp, mb, one_of<const char*>(random, {"64B", "25MiB"}),
      one_of<const char*>(random, {"", ", gather: {when: per_step}", ", persist: 64B"}),
      one_of<const char*>(random, {"", ", gradients"}),
      one_of<const char*>(random, {"", ", reduce: {dtype: bf16}"}));
  if (pick(random, 3) == 0)
    text += "  - replicate: {over: [MESH], where: {stage: 0}, shard: [optimizer]}\n";
  if (const size_t at = text.find("MESH"); at != text.npos)
    text.replace(at, 4, text.find("node: 2, gpu") != text.npos ? "node, gpu" : "gpu, node");
  return text + random_order(random);
}
inline std::string joining_strategy(Random& random, size_t microbatches) {
  while (true) {
    std::string text = random_strategy(random, microbatches);
    if (text.find("- fuse:") != std::string::npos) return text;
  }
}

// Returns a strategy whose stages hand on rounded values.
inline std::string sending_strategy(Random& random, size_t microbatches) {
  const std::string start = "directives:\n";
  while (true) {
    std::string text = random_strategy(random, microbatches);
    const size_t at = text.find(start);
    if (at == text.npos || text.find("{pp: 1,") != text.npos) continue;
    return text.insert(
        at + start.size(),
        one_of<const char*>(
            random, {"  - send: {across: stage, dtype: int8, block: 32, lossy: true}\n",
                     "  - send: {across: stage, dtype: float8, block: 64, lossy: true}\n",
                     "  - send: {across: stage, dtype: bf16, lossy: true}\n",
                     "  - send: {across: stage, dtype: int8, what: activations, lossy: true}\n"
                     "  - send: {across: stage, dtype: f16, what: gradients, lossy: true}\n"}));
  }
}

// Several versions of the weights, of all stages or of each its own number; two plans of three have
// steps that overlap.
inline std::string overlapping_strategy(Random& random, size_t microbatches) {
  const size_t pp = 1 + pick(random, 4), dp = 1 + pick(random, 2);
  const size_t mb = std::max(microbatches, pp) + pick(random, 3);
  std::string text = fmt::format(
      "piper: 1\nmesh: {{pp: {}, dp: {}}}\nweight_versions: {}\n", pp, dp,
      one_of<const char*>(random, {"2", "2", "{where: {stage: s}, versions: pp - s + 1}",
                                   "{where: {stage: s}, versions: \"min(2, pp - s)\"}"}));
  text += random_train(random, dp * mb * (1 + pick(random, 2)));
  text += fmt::format("annotate:\n  - balance: {{tag: stage, into: {}}}\n", pp);
  text += fmt::format("directives:\n  - split: {{dim: batch, into: {}}}\n", mb);
  text += "  - place: {where: {stage: s}, on: {pp: s}}\n" + random_recompute(random, pp);
  if (dp > 1)
    text += fmt::format("  - replicate: {{over: dp, bucket: {}{}}}\n",
                        one_of<const char*>(random, {"64B", "2KiB", "25MiB"}),
                        one_of<const char*>(random, kShards));
  text += random_precision(random);
  if (pp > 1)
    text += one_of<const char*>(random, {"", "  - fuse: {where: {kind: send}, bucket: 256B}\n",
                                         "  - fuse: {where: {kind: send}, microbatches: 2}\n"});
  if (dp > 1)
    text += one_of<const char*>(
        random, {"", "  - fuse: {where: {kind: [all_reduce, reduce_scatter]}, microbatches: 2}\n"});
  text += random_offload(random);
  if (pick(random, 3) == 0) {
    const std::string order = random_order(random);
    return text + (order.find("U[") == order.npos ? order : "");  // not with two versions
  }
  return text + "  - order:\n      each: pp\n      program: |\n" +
         one_of<const char*>(random, {"        repeat M - (P-r-1): F B\n"
                                      "        repeat P-r-1: F[step=1] B\n",
                                      "        repeat M - (P-r-1): F B\n"
                                      "        repeat P-r-1: F[step=1] & B\n",
                                      "        repeat M - (P-r-1): F BI? BW?\n"
                                      "        repeat P-r-1: F[step=1] BI? BW?\n"});
}

// Ops of 16 bits.
inline std::string copying_strategy(Random& random, size_t microbatches) {
  while (true) {
    std::string text = pick(random, 3) == 0 ? overlapping_strategy(random, microbatches)
                                            : random_strategy(random, microbatches);
    if (text.find("compute: bf16") != text.npos || text.find("compute: f16") != text.npos)
      return text;
  }
}

// For models whose batch cannot be cut: running statistics on stages.
inline std::string uncut_strategy(Random& random, size_t) {
  const size_t pp = 1 + pick(random, 3);
  std::string text = fmt::format("piper: 1\nmesh: {{pp: {}}}\n", pp) + random_train(random, 8);
  text += fmt::format("annotate:\n  - balance: {{tag: stage, into: {}}}\n", pp);
  text += "directives:\n  - place: {where: {stage: s}, on: {pp: s}}\n";
  text +=
      one_of<const char*>(random, {"", "", "  - recompute: {}\n",
                                   "  - stream: {where: {kind: compute, pass: B}, name: back}\n",
                                   "  - prefetch: {where: {kind: recv}, distance: 2}\n"});
  return text + random_precision(random) + random_order(random);
}

// Replicas whose numbers rule layout follows: an optimizer takes whole tensors of which they have
// runs, or parameters wait on the host.
inline std::string sampling_strategy(Random& random, size_t microbatches) {
  const size_t dp = 2 + 2 * pick(random, 2);
  const bool waits = pick(random, 2) == 0;
  std::string text = fmt::format("piper: 1\nmesh: {{dp: {}}}\n", dp);
  text += waits
              ? random_train(random, dp * microbatches * (1 + pick(random, 2)))
              : fmt::format("train: {{optimizer: {{adafactor: {{lr: 1e-2}}}}, global_batch: {}}}\n",
                            dp * microbatches * (1 + pick(random, 2)));
  text += fmt::format("directives:\n  - split: {{dim: batch, into: {}}}\n", microbatches);
  if (waits) text += "  - offload: {what: parameters}\n";
  text += fmt::format(
      "  - replicate: {{over: dp, bucket: {}, shard: [optimizer{}]}}\n",
      one_of<const char*>(random, {"64B", "25MiB"}),
      waits ? "" : one_of<const char*>(random, {"", ", gradients", ", gradients, parameters"}));
  return text + (pick(random, 3) == 0 ? "  - recompute: {}\n" : "");
}

// For models that draw random numbers.
inline std::string drawing_strategy(Random& random, size_t microbatches) {
  const size_t kind = pick(random, 4);
  if (kind == 0) return random_strategy(random, microbatches);
  if (kind == 1) return sampling_strategy(random, microbatches);
  const size_t dp = 1 + pick(random, 2);
  std::string text = fmt::format("piper: 1\nmesh: {{dp: {}, tp: 2}}\n", dp);
  text += random_train(random, dp * microbatches * 2);
  text += fmt::format("directives:\n  - split: {{dim: batch, into: {}}}\n", microbatches);
  if (dp > 1) text += "  - replicate: {over: dp}\n";
  const char *weights = "  - shard: {match: [\"**/qkv/*\", \"**/up/*\"], dim: 0, over: tp}\n",
             *tokens = "  - shard: {scope: \"**/ln_*\", dim: 1, over: tp}\n",
             *samples = "  - shard: {input: \"*\", dim: 0, over: tp}\n";
  return text + one_of<const char*>(random, {weights, tokens, samples}) + random_precision(random);
}

// Weights in blocks: the columns of one product and the rows of the next, or others that need more
// collectives.
inline std::string blocks_strategy(Random& random, size_t microbatches) {
  const size_t pp = 1 + pick(random, 2), dp = 1 + pick(random, 2);
  const std::string sizes =
      one_of<std::string>(random, {fmt::format("pp: {}, dp: {}, tp: 2", pp, dp),
                                   fmt::format("tp: 2, pp: {}, dp: {}", pp, dp),
                                   fmt::format("pp: {}, dp: {}, tp: 4", pp, dp)});
  std::string text = fmt::format("piper: 1\nmesh: {{{}}}\n", sizes);
  text += random_train(random, dp * microbatches * 4 * (1 + pick(random, 2)));
  text += fmt::format("annotate:\n  - balance: {{tag: stage, into: {}}}\n", pp);
  text += fmt::format("directives:\n  - split: {{dim: batch, into: {}}}\n", microbatches);
  text += "  - place: {where: {stage: s}, on: {pp: s}}\n";
  text += one_of<const char*>(
      random, {"  - shard: {match: \"model/0/*\", dim: 0, over: tp}\n"
               "  - shard: {match: \"model/2/weight\", dim: 1, over: tp}\n",
               "  - shard: {match: \"model/2/*\", dim: 0, over: tp}\n"
               "  - shard: {match: \"model/4/weight\", dim: 1, over: tp}\n",
               "  - shard: {match: [\"model/0/*\", \"model/2/*\"], dim: 0, over: tp}\n",
               "  - shard: {match: \"model/2/weight\", dim: 1, over: tp}\n",
               "  - shard: {scope: \"model/1\", dim: 1, over: tp}\n",
               "  - shard: {input: \"*\", dim: 0, over: tp}\n",
               "  - shard: {match: \"model/2/weight\", dim: 1, over: tp}\n"
               "  - shard: {input: \"*\", dim: 0, over: tp}\n",
               "  - shard: {scope: \"model/0\", dim: 0, over: tp}\n"
               "  - shard: {scope: \"model/1\", dim: 1, over: tp}\n",
               "  - shard: {sends: \"**\", over: tp}\n"});
  if (pp > 1) text += one_of<const char*>(random, {"", "  - shard: {sends: \"**\", over: tp}\n"});
  if (dp > 1)
    text += fmt::format("  - replicate: {{over: dp, bucket: {}{}}}\n",
                        one_of<const char*>(random, {"64B", "25MiB"}),
                        one_of<const char*>(random, kShards));
  return text + random_precision(random) + random_order(random);
}

// Tokens in blocks, whose keys come by in turn.
inline std::string turns_strategy(Random& random, size_t microbatches) {
  const size_t dp = 1 + pick(random, 2), cp = 2 + 2 * pick(random, 2);
  std::string text = fmt::format("piper: 1\nmesh: {{dp: {}, cp: {}}}\n", dp, cp);
  text += random_train(random, dp * microbatches);
  text += fmt::format("directives:\n  - split: {{dim: batch, into: {}}}\n", microbatches);
  text +=
      one_of<const char*>(random, {"  - shard: {input: \"*\", dim: 1, over: cp}\n",
                                   "  - shard: {input: \"*\", dim: 1, over: cp, order: zigzag}\n"});
  text +=
      "  - shard: {match: \"**\", dim: none, over: cp}\n"
      "  - shard: {attention: \"**\", by: ring, over: cp}\n";
  if (dp > 1) text += "  - replicate: {over: dp}\n";
  return text + random_precision(random);
}

// Tokens in blocks become heads in blocks and again tokens; some ranks have one of either.
inline std::string heads_strategy(Random& random, size_t microbatches) {
  const size_t dp = 1 + pick(random, 2);
  std::string text = fmt::format("piper: 1\nmesh: {{dp: {}, cp: 2}}\n", dp);
  text += random_train(random, dp * microbatches);
  text += fmt::format("directives:\n  - split: {{dim: batch, into: {}}}\n", microbatches);
  text +=
      "  - shard: {input: \"*\", dim: 1, over: cp}\n"
      "  - shard: {match: \"**\", dim: none, over: cp}\n"
      "  - shard: {attention: \"**\", by: heads, over: cp}\n";
  if (dp > 1) text += "  - replicate: {over: dp}\n";
  return text + random_precision(random);
}

// Rows of a table that is looked up and read by a cross-entropy, and tokens.
inline std::string rows_strategy(Random& random, size_t microbatches) {
  const size_t dp = 1 + pick(random, 2);
  std::string text = fmt::format("piper: 1\nmesh: {{dp: {}, tp: 2}}\n", dp);
  text += random_train(random, 4);
  text += fmt::format("directives:\n  - split: {{dim: batch, into: {}}}\n", microbatches);
  text += one_of<const char*>(random, {"  - shard: {match: \"words/*\", dim: 0, over: tp}\n",
                                       "  - shard: {match: \"words/*\", dim: 0, over: tp}\n"
                                       "  - shard: {scope: \"{norm,last}\", dim: 1, over: tp}\n",
                                       "  - shard: {input: ids, dim: 1, over: tp}\n"
                                       "  - shard: {input: labels, dim: 1, over: tp}\n"});
  if (dp > 1)
    text += fmt::format("  - replicate: {{over: dp, bucket: 64B{}}}\n",
                        one_of<const char*>(random, kShards));
  return text + random_precision(random);
}

// Experts that are looked up for the tokens of samples in blocks.
inline std::string experts_strategy(Random& random, size_t microbatches) {
  const size_t dp = 1 + pick(random, 2), ep = dp == 1 ? 2 << pick(random, 2) : 2;
  std::string text = fmt::format(
      "piper: 1\nmesh: {{{}}}\n",
      one_of<std::string>(
          random, {fmt::format("dp: {}, ep: {}", dp, ep), fmt::format("ep: {}, dp: {}", ep, dp)}));
  text += random_train(random, 8);
  text += fmt::format("directives:\n  - split: {{dim: batch, into: {}}}\n", microbatches);
  text += "  - shard: {match: \"**/experts/*\", dim: 0, over: ep}\n";
  text += fmt::format("  - shard: {{input: \"*\", dim: {}, over: ep}}\n",
                      ep == 2 ? pick(random, 2) : 0);
  if (pick(random, 3) == 0) text += "  - recompute: {}\n";
  if (dp > 1)
    text += fmt::format("  - replicate: {{over: dp, bucket: 64B{}}}\n",
                        one_of<const char*>(random, kShards));
  return text + random_precision(random);
}

// Directions of two equal matrices, of which each rank computes one; where there are four ranks,
// three compute the same.
inline std::string spread_strategy(Random& random, size_t microbatches) {
  const size_t dp = 2 + pick(random, 3);  // 3 does not divide the matrices
  std::string text = fmt::format(
      "piper: 1\nmesh: {{dp: {}}}\ntrain: {{global_batch: {}, optimizer: {{muon: {{lr: 0.1, "
      "ns_steps: "
      "1}}}}, groups: [{{of: vectors, optimizer: {{sgd: {{lr: 0.1}}}}}}]{}}}\n",
      dp, dp * microbatches, pick(random, 2) ? ", clip_norm: 1.0" : "");
  text += fmt::format("directives:\n  - split: {{dim: batch, into: {}}}\n", microbatches);
  return text + fmt::format("  - replicate: {{over: dp{}}}\n",
                            one_of<const char*>(
                                random, {", shard: [optimizer]", ", shard: [optimizer, gradients]",
                                         ", shard: [optimizer, gradients, parameters]"}));
}

using MakeStrategy = std::string (*)(Random& random, size_t microbatches);

inline Made make_plan(Random& random, size_t microbatches, MakeStrategy strategy,
                      bool oracles = false) {
  const Folder folder;
  Made made;
  made.strategy = strategy(random, microbatches);
  CompileOptions options;
  const std::initializer_list<const char*> cut = {"mlp.onnx", "mlp.onnx", "two_tower.onnx",
                                                  "coupled/plain_mean.onnx"};
  const std::initializer_list<const char*> layers = {"mlp.onnx"};
  const std::initializer_list<const char*> rows = {"init/language.onnx"};
  const std::initializer_list<const char*> turns = {"families/gptj/model.onnx"};
  const std::initializer_list<const char*> experts = {"experts/looked_up.onnx"};
  const std::initializer_list<const char*> uncut = {"batch_norm/residual.onnx",
                                                    "batch_norm/twice.onnx"};
  const std::initializer_list<const char*> drawing = {"dropout/dynamo.onnx",
                                                      "dropout/torchscript.onnx"};
  const std::initializer_list<const char*> equal = {"two_tower.onnx"};
  options.model = std::string(PIPER_SOURCE_DIR "/tests/data/") +
                  one_of<const char*>(random, strategy == blocks_strategy    ? layers
                                              : strategy == rows_strategy    ? rows
                                              : strategy == turns_strategy   ? turns
                                              : strategy == heads_strategy   ? turns
                                              : strategy == experts_strategy ? experts
                                              : strategy == uncut_strategy   ? uncut
                                              : strategy == drawing_strategy ? drawing
                                              : strategy == spread_strategy  ? equal
                                                                             : cut);
  options.strategy = folder.write("strategy.yaml", made.strategy);
  options.oracles = oracles;
  made.strategy = options.model + "\n" + made.strategy;
  auto compiled = compile(options);
  if (compiled) {
    made.compiled = *std::move(compiled);
  } else {
    made.error = print_error(compiled.error());
    made.refused_plan = compiled.error().message.starts_with("the plan was refused");
  }
  return made;
}

}  // namespace piper::mutation
