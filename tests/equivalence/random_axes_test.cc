// Random models, cut by random directives over random meshes: the verifier accepts every plan, and
// its ranks train as one device does that cuts nothing, in f64 to the last digits.
#include "equivalence/numbers.h"
#include "equivalence/random_blocks.h"
#include "mutation/plans.h"
#include "piper/plan/verify.h"
#include "seed.h"

namespace piper {
namespace {

using mutation::one_of;
using mutation::pick;
using mutation::Random;

// ---- Strategies ---------------------------------------------------------------------------------

struct Axis {
  std::string name;
  size_t size = 1;
};

class RandomStrategy {
 public:
  // What else may be said. kProducts: tokens may be cut over two axes. kReplicas: an axis of
  // `shard` has replicas, too. kShares: two ranks have shares of the samples of a microbatch.
  enum Also : uint8_t { kNothing, kProducts, kReplicas, kShares };
  RandomStrategy(Random& random, const RandomBlocks& model, Also also = kNothing)
      : random_(random), model_(model), also_(also) {
    static const std::vector<std::vector<size_t>> kSizes = {{2}, {2},    {3},    {4},       {4},
                                                            {5}, {2, 2}, {2, 3}, {2, 2, 2}, {2, 4}};
    size_t left = 8;
    const size_t drawn = pick(random, kSizes.size());
    for (size_t size : also == kProducts ? std::vector<size_t>{2, 2}
                       : also == kShares ? std::vector<size_t>{2}
                                         : kSizes[drawn]) {
      shards_.push_back({fmt::format("a{}", shards_.size()), size});
      left /= size;
    }
    if (left >= 2 && pick(random, 2)) dp_ = 2, left /= 2;
    if (left >= 2 && dp_ > 1 && pick(random, 3) == 0) outer_ = 2, left /= 2;
    if (left >= 2 && pick(random, 2)) pp_ = 2, left /= 2;
    if (also == kShares && left < 2) also_ = kNothing;
    if (shards_.size() > 1 && pick(random, 2)) std::swap(shards_[0], shards_[1]);
  }

  std::string text() {
    const size_t microbatches = 1 + pick(random_, 3);
    const size_t samples = also_ == kReplicas ? shards_[0].size : also_ == kShares ? 4 : 1;
    const size_t batch = outer_ * dp_ * microbatches * samples * (1 + pick(random_, 2));
    std::string text = fmt::format("piper: 1\nmesh: {{{}}}\n", mesh());
    text += fmt::format(
        "train: {{global_batch: {}, optimizer: {{{}}}{}}}\n", batch,
        one_of<const char*>(random_, {"sgd: {lr: 0.05}", "sgd: {lr: 0.05, momentum: 0.9}",
                                      "adamw: {lr: 1e-3, eps: 1e-4, weight_decay: 0.1}"}),
        pick(random_, 2) ? ", clip_norm: 1.0" : "");
    text += fmt::format("annotate:\n  - balance: {{tag: stage, into: {}}}\n", pp_);
    text += fmt::format("directives:\n  - split: {{dim: batch, into: {}}}\n", microbatches);
    text += "  - place: {where: {stage: s}, on: {pp: s}}\n  - precision: {compute: f64}\n";
    if (dp_ > 1)
      text += fmt::format("  - replicate: {{over: dp, bucket: {}{}}}\n",
                          one_of<const char*>(random_, {"64B", "25MiB"}), states());
    if (outer_ > 1)
      text += fmt::format("  - replicate: {{over: outer{}}}\n",
                          pick(random_, 4) ? ", shard: [optimizer]" : "");
    if (dp_ > 1 && pick(random_, 4) == 0)
      text += fmt::format("  - replicate: {{over: dp, match: \"{}\"{}}}\n",
                          model_.parameters()[pick(random_, model_.parameters().size())].name,
                          states());
    size_t in_turn = pick(random_, 4);  // the first axis, where that is 0 and it divides
    size_t first = 0;
    if (also_ == kProducts && shards_.size() > 1 && model_.attends() &&
        model_.tokens() % (shards_[0].size * shards_[1].size) == 0)
      text += attention_over_two(shards_[0], shards_[1]), first = 2, ++in_turn;
    for (const Axis& axis : std::span(shards_).subspan(first)) {
      const bool turns = in_turn++ == 0 && model_.attends() && model_.tokens() % axis.size == 0;
      const size_t count = turns ? 0 : 1 + pick(random_, 5);
      for (size_t k = 0; k < count; ++k) text += directive(axis);
      if (turns) text += attention(axis);
    }
    if (pick(random_, 3) == 0) text += "  - recompute: {}\n";
    text += mutation::random_order(random_);
    if (also_ == kReplicas)
      text += fmt::format("  - replicate: {{over: {}{}}}\n", shards_[0].name, states());
    if (also_ == kShares)
      text += fmt::format(
          "  - split: {{dim: samples, into: 2{}}}\n"
          "  - place: {{where: {{share: k}}, on: {{sh: k}}}}\n",
          batch / outer_ / dp_ / microbatches == 4 ? ", sizes: [3, 1]" : "");
    return text;
  }
  // Where and when collectives within computations run, and which are one.
  std::string communication() {
    std::string text;
    if (pick(random_, 2))
      text +=
          "  - stream: {where: {kind: [all_reduce, all_gather, reduce_scatter, all_to_all, "
          "own_part], mb: \"*\"}, name: beside}\n";
    if (pick(random_, 2))
      text +=
          fmt::format("  - prefetch: {{where: {{kind: all_gather, mb: \"*\"}}, distance: {}}}\n",
                      one_of<const char*>(random_, {"1", "3", "eager"}));
    if (pick(random_, 2))
      text +=
          "  - fuse: {where: {kind: [all_reduce, all_gather, reduce_scatter, all_to_all], mb: "
          "\"*\"}}\n";
    return text;
  }
  // A region of ops in parts, or nothing.
  std::string parts() {
    if (pick(random_, 2)) return "";
    std::string scope = model_.scopes()[pick(random_, model_.scopes().size())];
    std::replace(scope.begin(), scope.end(), '.', '/');
    return fmt::format("  - split: {{scope: \"{}\", dim: {}, into: {}}}\n{}", scope,
                       pick(random_, 3), 2 + pick(random_, 2),
                       pick(random_, 2) ? "  - stream: {where: {kind: [all_reduce, all_gather], "
                                          "mb: \"*\"}, name: of_parts}\n"
                                        : "");
  }

 private:
  std::string mesh() {
    std::vector<std::string> axes{fmt::format("pp: {}", pp_), fmt::format("dp: {}", dp_)};
    if (also_ == kShares) axes.emplace_back("sh: 2");
    if (outer_ > 1) axes.insert(axes.begin() + static_cast<int64_t>(pick(random_, 3)), "outer: 2");
    for (const Axis& axis : shards_)
      axes.insert(axes.begin() + static_cast<int64_t>(pick(random_, axes.size() + 1)),
                  fmt::format("{}: {}", axis.name, axis.size));
    return join(axes, ", ");
  }
  std::string states() {  // gradients travel in their own type
    while (true)
      if (const std::string states = one_of<const char*>(random_, mutation::kShards);
          states.find("dtype") == states.npos)
        return states;
  }
  bool hidden(const std::string& what, size_t dim) const {
    const auto& all = model_.parameters();
    return std::any_of(all.begin(), all.end(), [&](const RandomBlocks::Parameter& one) {
      return what == "match: " + one.name && one.shape[dim] == RandomBlocks::kHidden;
    });
  }
  // Tokens in blocks, of which no product of this axis makes others.
  std::string attention(const Axis& axis) {
    for (const std::string& input : model_.inputs()) named_.insert("input: " + input);
    const bool zigzag = model_.tokens() % (2 * axis.size) == 0 && pick(random_, 2);
    return fmt::format(
        "  - shard: {{input: \"*\", dim: 1, over: {0}{2}}}\n"
        "  - shard: {{match: \"**\", dim: none, over: {0}}}\n"
        "  - shard: {{attention: \"**\", by: {1}, over: {0}}}\n",
        axis.name, one_of<const char*>(random_, {"ring", "ring", "gather", "heads"}),
        zigzag ? ", order: zigzag" : "");
  }
  // Tokens in blocks of blocks, which meet along one axis after the other.
  std::string attention_over_two(const Axis& a, const Axis& b) {
    for (const std::string& input : model_.inputs()) named_.insert("input: " + input);
    const bool zigzag = model_.tokens() % (2 * a.size * b.size) == 0 && pick(random_, 2);
    const auto by = [&] { return one_of<const char*>(random_, {"ring", "gather", "heads"}); };
    const char *first = by(), *second = by();
    return fmt::format(
        "  - shard: {{input: \"*\", dim: 1, over: [{0}, {1}]{4}}}\n"
        "  - shard: {{match: \"**\", dim: none, over: [{0}, {1}]}}\n"
        "  - shard: {{attention: \"**\", by: {2}, over: {0}}}\n"
        "  - shard: {{attention: \"**\", by: {3}, over: {1}}}\n",
        a.name, b.name, first, second, zigzag ? ", order: zigzag" : "");
  }
  // Of a tensor that no directive of this axis has named, or an input that none has, at a dim that
  // divides, or of hidden values, which go on into zeros.
  std::string directive(const Axis& axis) {
    std::string what;
    Shape shape{1, 12, 12};
    const size_t kind = pick(random_, 10);
    if (kind < 7) {
      const RandomBlocks::Parameter& one = model_.parameters()[pick(random_, count())];
      what = fmt::format("match: {}", one.name), shape = one.shape;
    } else if (kind < 9) {
      std::string scope = model_.scopes()[pick(random_, model_.scopes().size())];
      std::replace(scope.begin(), scope.end(), '.', '/');
      what = fmt::format("scope: \"{}\"", scope);
      shape[0] = shape[1] = 1;  // columns
    } else {
      what = fmt::format("input: {}", model_.inputs()[pick(random_, model_.inputs().size())]);
      shape = {1, 4};
    }
    if (shape.empty() || !named_.insert((kind < 9 ? axis.name : "") + what).second) return "";
    size_t dim = pick(random_, shape.size());
    auto& left = left_[what];
    if (left.empty()) left = shape;
    const auto size = static_cast<int64_t>(axis.size);
    const bool divides = left[dim] % size == 0;
    const bool zeros = !divides && kind < 7 && hidden(what, dim);
    if (divides || zeros) left[dim] = (left[dim] + size - 1) / size;
    return fmt::format("  - shard: {{{}, dim: {}, over: {}{}}}\n", what,
                       divides || zeros ? std::to_string(dim) : "none", axis.name,
                       zeros ? ", pad: true" : "");
  }
  size_t count() const { return model_.parameters().size(); }

  Random& random_;
  const RandomBlocks& model_;
  std::vector<Axis> shards_;
  Also also_ = kNothing;
  size_t pp_ = 1, dp_ = 1, outer_ = 1;  // outer: a second axis of replicas
  std::set<std::string> named_;
  std::map<std::string, Shape> left_;
};

// ---- One of each --------------------------------------------------------------------------------

struct Tried {
  bool refused = false;
  int64_t collectives = 0;
  double apart = 0;
  bool turns = false;    // keys come by in turn
  bool zeros = false;    // behind states
  bool parts = false;    // in turn on each rank
  bool product = false;  // tokens over two axes
  bool chunks = false;   // of tokens, in order
  bool replicas = false, shares = false;
};

// Of a step, over the axes that shard uses.
int64_t collectives_of(const PlanSet& set) {
  int64_t count = 0;
  for (const RoleProgram& role : set.roles)
    for (const Instruction& each : role.body)
      count += is_collective(each.kind) &&
               role.groups[static_cast<size_t>(each.group)].name.starts_with("a");
  return count;
}

bool is_in_order(uint64_t seed) { return seed % 5 == 3; }

RandomBlocks model_of(uint64_t seed, Random& random) {
  const bool grouped = pick(random, 4) == 0;
  return RandomBlocks(seed, grouped, pick(random, 3) == 0, seed % 3 == 0, is_in_order(seed));
}

std::string chunks_of(const RandomBlocks& model, uint64_t seed) {
  return fmt::format("  - split: {{dim: tokens, into: {}{}}}\n", model.tokens() > 4 ? 4 : 2,
                     seed % 2 == 0 ? ", by: cost" : "");
}

Tried try_one(uint64_t seed) {
  Random random(seed);
  const Folder folder;
  const RandomBlocks model = model_of(seed, random);
  CompileOptions options;
  options.model = folder.write("model.onnx", model.bytes());
  const auto also = seed % 4 == 0    ? RandomStrategy::kProducts
                    : seed % 11 == 6 ? RandomStrategy::kReplicas
                    : seed % 11 == 3 ? RandomStrategy::kShares
                                     : RandomStrategy::kNothing;
  RandomStrategy strategy(random, model, also);
  const std::string plain = strategy.text();
  std::string text = plain + strategy.communication();
  const std::string parts = is_in_order(seed) ? chunks_of(model, seed) : strategy.parts();
  options.strategy = folder.write("strategy.yaml", text + parts);
  auto compiled = compile(options);
  const bool in_parts = compiled.ok() && !parts.empty();
  if (!compiled && !parts.empty()) {  // a region that mixes the dim, or has none such
    EXPECT_GT(compiled.error().at.line, 0) << seed << "\n"
                                           << text << parts << print_error(compiled.error());
    options.strategy = folder.write("strategy.yaml", text);
    compiled = compile(options);
  }
  const auto says = [&](const char* words) {
    return !compiled && compiled.error().message.find(words) != std::string::npos;
  };
  if (says("matches nothing") || says("has a stream already")) {
    options.strategy = folder.write("strategy.yaml", text = plain);
    compiled = compile(options);
  }
  const std::string what = fmt::format("seed {}\n{}{}", seed, text, in_parts ? parts : "");
  if (!compiled) {
    const std::string error = print_error(compiled.error());
    EXPECT_GT(compiled.error().at.line, 0) << what << error;  // not a plan that was refused
    if (given_seed()) std::printf("%s\n%s", what.c_str(), error.c_str());
    return {true};
  }
  const jobs::Trained spread = train_on_numbers(compiled->set, what),
                      uncut = train_on_numbers(*compiled->uncut, what);
  if (seed % 8 == 0 && !spread.losses.empty())
    jobs::expect_same_when_queued(compiled->set, Numbers(*data_needs(compiled->set)), what);
  EXPECT_EQ(spread.losses.size(), uncut.losses.size()) << what;
  if (spread.losses.size() != uncut.losses.size() || uncut.losses.empty()) return {};
  for (size_t k = 0; k < uncut.losses.size(); ++k)
    EXPECT_NEAR(spread.losses[k], uncut.losses[k], 1e-12 * std::max(1.0, uncut.losses[k])) << what;
  const double apart = jobs::largest_difference(spread, uncut);
  EXPECT_LT(apart, 1e-12) << what;
  const std::vector<Instruction>& body = compiled->set.roles[0].body;
  const bool turns = std::any_of(body.begin(), body.end(), [](const Instruction& each) {
    return each.kind == InstructionKind::kRotate;
  });
  const auto& tensors = compiled->set.roles[0].tensors;
  const bool zeros = std::any_of(tensors.begin(), tensors.end(), [](const Tensor& each) {
    return std::any_of(each.cuts.begin(), each.cuts.end(),
                       [](const TensorCut& cut) { return cut.block > 0; });
  });
  const bool product = text.find("dim: 1, over: [") != text.npos;
  return {false,
          collectives_of(compiled->set),
          apart,
          turns,
          zeros,
          in_parts,
          product,
          in_parts && is_in_order(seed),
          also == RandomStrategy::kReplicas,
          text.find("dim: samples") != text.npos};
}

// Right plans in which blocks are hard to follow.
TEST(RandomAxes, BlocksBesideThoseOfOtherAxesAreFollowed) {
  const std::tuple<uint64_t, const char*, const char*> kCases[] = {
      // Rows go to experts over one axis, of whose experts another has cut each rank's.
      {7762, "{a1: 2, a0: 2, a2: 2}",
       "  - shard: {match: block.1.p27, dim: 0, over: a1}\n"
       "  - shard: {match: block.1.p19, dim: 1, over: a1}\n"
       "  - shard: {match: block.0.p1, dim: 0, over: a1}\n"
       "  - shard: {match: head.p35, dim: 0, over: a1}\n"
       "  - shard: {match: block.1.p27, dim: 0, over: a0}\n"
       "  - shard: {match: head.p35, dim: 0, over: a2}\n"},
      // A gradient is scattered beside an axis of which either may be outside.
      {8418, "{a1: 3, a0: 2}",
       "  - shard: {match: block.1.p10, dim: 0, over: a0}\n"
       "  - shard: {match: block.0.p1, dim: 1, over: a0}\n"
       "  - shard: {match: block.1.p12, dim: 0, over: a1}\n"}};
  for (const auto& [seed, mesh, directives] : kCases) {
    Random random(seed);
    const Folder folder;
    CompileOptions options;
    options.model = folder.write("model.onnx", RandomBlocks(seed, pick(random, 4) == 0).bytes());
    options.strategy = folder.write(
        "strategy.yaml", fmt::format("piper: 1\nmesh: {}\ntrain: {{global_batch: 4, optimizer: "
                                     "{{adamw: {{lr: 1e-3}}}}}}\ndirectives:\n{}",
                                     mesh, directives));
    const auto compiled = compile(options);
    EXPECT_TRUE(compiled) << seed << print_error(compiled.error());
  }
}

// The model of the seed under this strategy ends as one device that cuts nothing does.
void expect_as_uncut(uint64_t seed, const std::string& strategy) {
  Random random(seed);
  const Folder folder;
  CompileOptions options;
  options.model = folder.write("model.onnx", model_of(seed, random).bytes());
  options.strategy = folder.write("strategy.yaml", strategy);
  const auto compiled = compile(options);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const jobs::Trained cut = train_on_numbers(compiled->set, "cut"),
                      uncut = train_on_numbers(*compiled->uncut, "uncut");
  ASSERT_FALSE(uncut.losses.empty());
  EXPECT_LT(jobs::largest_difference(cut, uncut), 1e-12);
}

// Keys go through a ring over a0 before a1 cuts their heads, and their gradients after it.
TEST(RandomAxes, GradientsLeaveTheRingsOfOtherAxes) {
  expect_as_uncut(701005, R"(piper: 1
mesh: {a1: 2, a0: 2, a2: 2}
train: {global_batch: 3, optimizer: {sgd: {lr: 0.05, momentum: 0.9}}}
directives:
  - precision: {compute: f64}
  - shard: {input: "*", dim: 1, over: a0}
  - shard: {attention: "**", by: ring, over: a0}
  - shard: {match: block.0.p18, dim: 0, over: a1}
  - shard: {scope: "block/1", dim: 2, over: a2}
)");
}

// A region that keeps a mean by channel is split by its channels: each part keeps its own.
TEST(RandomAxes, StatisticsOfPartsAreOfTheirChannels) {
  expect_as_uncut(841256, R"(piper: 1
train: {global_batch: 6, optimizer: {sgd: {lr: 0.05}}}
directives:
  - precision: {compute: f64}
  - split: {scope: "block/3", dim: 2, into: 3}
)");
}

// Where an axis cuts these channels further, what the ranks gather is the whole of one mean.
TEST(RandomAxes, StatisticsOfPartsAreGatheredOverAxes) {
  expect_as_uncut(1002132, R"(piper: 1
mesh: {a1: 2, a0: 2}
train: {global_batch: 4, optimizer: {sgd: {lr: 0.05, momentum: 0.9}}}
directives:
  - precision: {compute: f64}
  - shard: {match: block.0.p1, dim: 1, over: a0}
  - shard: {scope: "block/2", dim: none, over: a1}
  - split: {scope: "block/2", dim: 2, into: 2}
)");
}

// Changes a program that masks what stands behind the end of a dim.
using ChangeMask = void (*)(Program& program, ProgramOp& fill, ProgramOp& pad);
// How many masks it has changed.
int change_masks(PlanSet& set, ChangeMask change) {
  int changed = 0;
  for (RoleProgram& role : set.roles)
    for (Program& program : role.programs)
      for (ProgramOp& pad : program.ops)
        for (ProgramOp& fill : program.ops)
          if (pad.op == "Pad" && fill.op == "Fill" && pad.inputs[0] == fill.outputs[0])
            change(program, fill, pad), ++changed;
  return changed;
}
std::string rule_of_masks(PlanSet set, const PlanSet& single, ChangeMask change) {
  EXPECT_GT(change_masks(set, change), 0);
  const auto report = verify_plan_set(set, &single);
  return !report ? "error" : report->findings.empty() ? "" : report->findings[0].rule;
}

// Takes away what puts another number behind the end of a dim, where nothing else adds or chooses
// rows; how many.
int read_without_masks(PlanSet& set, std::string_view mask) {
  int changed = 0;
  for (RoleProgram& role : set.roles)
    for (Program& program : role.programs)
      for (ProgramOp& op : program.ops) {
        if (op.op != mask) continue;
        const auto shape = [&](size_t i) {
          return program.values[static_cast<size_t>(op.inputs[i])].shape;
        };
        const size_t was = mask == "Add" ? 0 : 1, row = 1 - was;
        if (shape(row).size() >= shape(was).size()) continue;
        op = {.op = "Reshape",
              .attrs = {{"shape", shape(was)}},
              .inputs = {op.inputs[was]},
              .outputs = op.outputs};
        ++changed;
      }
  return changed;
}

// Alike on all ranks and in all microbatches: that is seen beside the plan for one device alone.
TEST(RandomAxes, MasksOfZerosAreThoseThatOneDeviceNeedsNot) {
  const auto as_it_is = [](Program&, ProgramOp&, ProgramOp&) {};
  const auto other_value = [](Program&, ProgramOp&, ProgramOp& pad) {
    pad.attrs.set("value", pad.attrs.real("value") + 1);
  };
  const auto ends_earlier = [](Program& program, ProgramOp& fill, ProgramOp& pad) {
    std::vector<int64_t> after = pad.attrs.integers("after");
    Shape& shape = program.values[static_cast<size_t>(fill.outputs[0])].shape;
    --shape[1], ++after[1];
    fill.attrs.set("shape", shape);
    pad.attrs.set("after", std::move(after));
  };
  int with_masks = 0;
  for (uint64_t seed = 1; seed < 1000 && with_masks < 2; ++seed) {
    Random random(seed);
    const Folder folder;
    const RandomBlocks model = model_of(seed, random);
    const std::string text = RandomStrategy(random, model).text();
    if (text.find("pad: true") == text.npos) continue;
    CompileOptions options;
    options.model = folder.write("model.onnx", model.bytes());
    options.strategy = folder.write("strategy.yaml", text);
    auto compiled = compile(options);
    if (!compiled || change_masks(compiled->set, as_it_is) == 0) continue;
    ++with_masks;
    EXPECT_EQ(rule_of_masks(compiled->set, *compiled->single, as_it_is), "") << seed;
    EXPECT_EQ(rule_of_masks(compiled->set, *compiled->single, other_value), "single") << seed;
    EXPECT_EQ(rule_of_masks(compiled->set, *compiled->single, ends_earlier), "single") << seed;
  }
  EXPECT_EQ(with_masks, 2);
}

// Classes that go on into zeros, those of some ranks alone: plans train as one device does. Zeros
// that are not put behind what an op has made of zeros, or a least number not added, are missed
// where the dim is taken together.
TEST(RandomAxes, MasksOfZerosAreMissed) {
  const std::string folder = PIPER_SOURCE_DIR "/tests/data/coupled/";
  const std::string kShard = "  - shard: {match: fc/weight, dim: 1, pad: true, over: ";
  const std::pair<const char*, std::string> kCuts[] = {
      {"{a: 3}", kShard + "a}\n"},
      {"{a: 8}", kShard + "a}\n"},
      {"{a: 2, b: 4}", kShard + "a}\n" + kShard + "b}\n"}};
  for (const auto& [mesh, shards] : kCuts)
    for (const char* name : {"probabilities", "smoothed", "z_loss", "margin"}) {
      const std::string what = fmt::format("{} {}", name, mesh);
      const Folder scratch;
      CompileOptions options;
      options.model = folder + name + ".onnx";
      options.strategy = scratch.write(
          "strategy.yaml",
          fmt::format("piper: 1\nmesh: {}\ntrain: {{global_batch: 8, optimizer: {{sgd: {{lr: "
                      "0.1}}}}}}\ndirectives:\n  - precision: {{compute: f64}}\n{}",
                      mesh, shards));
      const auto compiled = compile(options);
      ASSERT_TRUE(compiled) << what << print_error(compiled.error());
      EXPECT_LT(jobs::largest_difference(train_on_numbers(compiled->set, what),
                                         train_on_numbers(*compiled->uncut, what)),
                1e-12)
          << what;
      for (const std::vector<const char*>& masks :
           std::vector<std::vector<const char*>>{{"Add"}, {"Where"}, {"Add", "Where"}}) {
        PlanSet set = compiled->set;
        int changed = 0;
        for (const char* mask : masks) changed += read_without_masks(set, mask);
        EXPECT_GT(changed, 0) << what;
        const auto report = verify_plan_set(set, &*compiled->single);
        ASSERT_TRUE(report) << what << print_error(report.error());
        EXPECT_TRUE(!report->findings.empty() && report->findings[0].rule == "single")
            << what << masks[0];
      }
    }
}

TEST(RandomAxes, TrainAsOneDeviceDoes) {
  const int wanted = given_count().value_or(kSanitized ? 30 : 150);
  const uint64_t first = given_seed().value_or(1);
  int ran = 0, refused = 0, with_collectives = 0, with_turns = 0, with_zeros = 0, with_parts = 0,
      with_chunks = 0, products = 0, with_replicas = 0, with_shares = 0;
  double worst = 0;
  // What is seldom drawn is drawn for until there is enough of it.
  const auto is_enough = [&] {
    return ran >= wanted && with_turns > wanted / 60 && with_zeros >= wanted / 150 &&
           products >= wanted / 75;
  };
  for (uint64_t seed = first; !is_enough() && ran < 2 * wanted && !HasFailure(); ++seed) {
    const Tried tried = try_one(seed);
    ++(tried.refused ? refused : ran);
    with_collectives += tried.collectives > 0;
    with_turns += tried.turns;
    with_zeros += tried.zeros;
    with_parts += tried.parts;
    with_chunks += tried.chunks;
    products += tried.product;
    with_replicas += tried.replicas;
    with_shares += tried.shares;
    worst = std::max(worst, tried.apart);
  }
  std::printf(
      "seeds from %lu: %d ran, %d of them with collectives, %d with keys in turn, %d with zeros, "
      "%d with parts, %d with chunks of tokens, %d with tokens over two axes, %d with replicas "
      "over "
      "what is cut, %d with shares of samples, %d were refused; at most %.1e\n",
      first, ran, with_collectives, with_turns, with_zeros, with_parts, with_chunks, products,
      with_replicas, with_shares, refused, worst);
  EXPECT_GT(with_replicas, 0);
  EXPECT_GT(with_shares, 0);
  EXPECT_GT(with_chunks, 0);
  EXPECT_GT(with_parts, ran / 20);
  EXPECT_LT(refused, ran / 5);
  EXPECT_GT(with_collectives, ran / 2);
  EXPECT_TRUE(is_enough());
}

// A gradient of a mask that queries share, where a rank has one query; the own block of a sum over
// all samples; two axes of which the inner one becomes the outer.
TEST(RandomAxes, WhatRanksHaveOneOfIsTold) {
  for (const uint64_t seed : {31249, 32287, 64071}) EXPECT_FALSE(try_one(seed).refused) << seed;
}

}  // namespace
}  // namespace piper
