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
  // What else may be said. kProducts: something is cut over two axes. kReplicas: an axis of `shard`
  // has replicas, too. kShares: two ranks have shares of the samples of a microbatch.
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
    microbatches_ = 1 + pick(random_, model.is_in_order() ? 2 : 3);
    const size_t least = also_ == kReplicas ? shards_[0].size : also_ == kShares ? 4 : 1;
    samples_ = least * (1 + pick(random_, 2));
    least_chunk_ = model.tokens();
  }

  // All but the order and what follows.
  std::string text() {
    std::string text = fmt::format("piper: 1\nmesh: {{{}}}\n", mesh());
    text += fmt::format(
        "train: {{global_batch: {}, optimizer: {{{}}}{}}}\n",
        outer_ * dp_ * microbatches_ * samples_,
        one_of<const char*>(random_, {"sgd: {lr: 0.05}", "sgd: {lr: 0.05, momentum: 0.9}",
                                      "adamw: {lr: 1e-3, eps: 1e-4, weight_decay: 0.1}"}),
        pick(random_, 2) ? ", clip_norm: 1.0" : "");
    text += fmt::format("annotate:\n  - balance: {{tag: stage, into: {}}}\n", pp_);
    text += fmt::format("directives:\n  - split: {{dim: batch, into: {}}}\n", microbatches_);
    text += "  - place: {where: {stage: s}, on: {pp: s}}\n  - precision: {compute: f64}\n";
    text += replicas() + shards();
    if (pick(random_, 3) == 0) text += "  - recompute: {}\n";
    if (also_ == kReplicas)
      text += fmt::format("  - replicate: {{over: {}{}}}\n", shards_[0].name, states());
    if (also_ == kShares)
      text += fmt::format(
          "  - split: {{dim: samples, into: 2{}}}\n"
          "  - place: {{where: {{share: k}}, on: {{sh: k}}}}\n",
          samples_ == 4 ? ", sizes: [3, 1]" : "");
    return text;
  }
  std::string order() { return mutation::random_order(random_); }
  // Returns whether to draw chunks of tokens: each chunk needs tokens for each block.
  bool may_have_chunks() {
    return model_.is_in_order() && also_ != kShares && pick(random_, 3) > 0 &&
           model_.tokens() / 2 % blocks_ == 0;
  }
  // Chunks of tokens, and an order of all of a stage's.
  std::string chunks() {
    const size_t tokens = model_.tokens();
    const size_t into = tokens / 4 % blocks_ == 0 && pick(random_, 3) == 0 ? 4 : 2;
    least_chunk_ = tokens / into;
    std::string text = fmt::format("  - split: {{dim: tokens, into: {}", into);
    const size_t how = pick(random_, 4);
    if (how == 0 && blocks_ == 1) text += ", by: cost";
    if (how == 1 && into == 2 && tokens > 8 && 4 % blocks_ == 0)
      text += fmt::format(", sizes: [{}, {}]", tokens - 4, 4), least_chunk_ = 4;
    text += "}\n";
    const std::string order = "  - order:\n      each: pp\n      program: |\n        let n = ";
    switch (pick(random_, 3)) {
      case 0:
        return text;
      case 1:
        return text + order +
               fmt::format("M * {}\n        repeat n: F\n        repeat n: B\n", into);
      default:
        return text + order +
               fmt::format(
                   "M * {0}\n        let ahead = min(n, P-r-1 + {0}-1)\n"
                   "        repeat ahead: F\n        repeat n - ahead: F B\n"
                   "        repeat ahead: B\n",
                   into);
    }
  }
  // Where and when collectives within computations run, and which are one.
  std::string communication() {
    std::string text;
    has_stream_ = pick(random_, 2) == 0;
    if (has_stream_)
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
  // A region of ops in parts: of tokens, of which a part has its share of each rank's block; of
  // samples or columns; or of a parameter.
  std::string parts() {
    const auto slashed = [](std::string scope) {
      std::replace(scope.begin(), scope.end(), '.', '/');
      return scope;
    };
    const auto& by_token = model_.scopes_by_token();
    const std::string stream = !has_stream_ && pick(random_, 2)
                                   ? "  - stream: {where: {kind: [all_reduce, all_gather], mb: "
                                     "\"*\"}, name: of_parts}\n"
                                   : "";
    const bool divides = least_chunk_ % (2 * blocks_) == 0;
    if (!by_token.empty() && divides && (blocks_ > 1 || pick(random_, 2)))
      return fmt::format("  - split: {{scope: \"{}\", dim: 1, into: 2{}}}\n{}",
                         slashed(by_token[pick(random_, by_token.size())]),
                         blocks_ == 1 ? "" : ", within: " + tokens_over_, stream);
    const std::string& scope = model_.scopes()[pick(random_, model_.scopes().size())];
    std::vector<std::string> matrices;
    for (const RandomBlocks::Parameter& one : model_.parameters())
      if (one.name.starts_with(scope) && one.shape.size() == 2) matrices.push_back(one.name);
    const std::string of = matrices.empty() || pick(random_, 2)
                               ? ""
                               : ", tensor: " + matrices[pick(random_, matrices.size())];
    const size_t dim = !of.empty()                             ? pick(random_, 2)
                       : samples_ % 2 == 0 && pick(random_, 4) ? 0
                                                               : 2;
    return fmt::format("  - split: {{scope: \"{}\"{}, dim: {}, into: 2}}\n{}", slashed(scope), of,
                       dim, stream);
  }

 private:
  // Axes of replicas that are named together stand side by side.
  std::string mesh() {
    std::vector<std::string> axes{fmt::format("pp: {}", pp_), fmt::format("dp: {}", dp_)};
    if (also_ == kShares) axes.emplace_back("sh: 2");
    joins_replicas_ = outer_ > 1 && pick(random_, 2);
    if (joins_replicas_) axes[1] = "outer: 2, dp: 2";
    if (outer_ > 1 && !joins_replicas_)
      axes.insert(axes.begin() + static_cast<int64_t>(pick(random_, 3)), "outer: 2");
    for (const Axis& axis : shards_)
      axes.insert(axes.begin() + static_cast<int64_t>(pick(random_, axes.size() + 1)),
                  fmt::format("{}: {}", axis.name, axis.size));
    return join(axes, ", ");
  }
  std::string replicas() {
    std::string text;
    if (joins_replicas_)
      return fmt::format("  - replicate: {{over: [outer, dp], bucket: 64B{}}}\n", states());
    if (dp_ > 1)
      text += fmt::format("  - replicate: {{over: dp, bucket: {}{}}}\n",
                          one_of<const char*>(random_, {"64B", "25MiB"}), states());
    if (outer_ > 1)
      text += fmt::format("  - replicate: {{over: outer{}}}\n",
                          pick(random_, 4) ? ", shard: [optimizer]" : "");
    if (dp_ > 1 && pick(random_, 4) == 0)
      text += fmt::format("  - replicate: {{over: dp, match: \"{}\"{}}}\n",
                          model_.parameters()[pick(random_, count())].name, states());
    return text;
  }
  // Tokens over one axis or two, and others.
  std::string shards() {
    std::string text;
    size_t first = 0;
    const auto divide = [&](size_t ranks) { return model_.tokens() % ranks == 0; };
    if (also_ == kProducts) {
      const Axis &a = shards_[0], &b = shards_[1];
      if (divide(a.size * b.size) && (model_.is_in_order() || pick(random_, 3) == 0))
        text += tokens_over_two(a, b), first = 2;
      else
        text += weight_over_two(a, b);
    }
    bool turns = first == 0 && divide(shards_[0].size) &&
                 (model_.is_in_order() ? pick(random_, 3) > 0 : pick(random_, 4) == 0);
    for (const Axis& axis : std::span(shards_).subspan(first)) {
      const size_t directives = turns ? 0 : 1 + pick(random_, 5);
      for (size_t k = 0; k < directives; ++k) text += directive(axis);
      if (turns) text += tokens_over(axis);
      turns = false;
    }
    return text;
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
  // Tokens in blocks, of which no product of these axes makes others.
  std::string blocks_of_tokens(const std::string& over, size_t ranks) {
    for (const std::string& input : model_.inputs()) named_.insert("input: " + input);
    const bool zigzag = model_.tokens() % (4 * ranks) == 0 && pick(random_, 2);
    tokens_over_ = over;
    blocks_ = zigzag ? 2 * ranks : ranks;
    return fmt::format(
        "  - shard: {{input: \"*\", dim: 1, over: {0}{1}}}\n"
        "  - shard: {{match: \"**\", dim: none, over: {0}}}\n",
        over, zigzag ? ", order: zigzag" : "");
  }
  static std::string attention(const std::string& over, const std::string& by) {
    return fmt::format("  - shard: {{attention: \"**\", by: {}, over: {}}}\n", by, over);
  }
  std::string tokens_over(const Axis& axis) {
    const std::string text = blocks_of_tokens(axis.name, axis.size);
    const char* const by = one_of<const char*>(random_, {"ring", "ring", "gather", "heads"});
    return model_.attends() ? text + attention(axis.name, by) : text;
  }
  // Tokens meet along one axis after the other. The axis with the shorter blocks exchanges heads
  // if any does.
  std::string tokens_over_two(const Axis& a, const Axis& b) {
    const std::string both = fmt::format("[{}, {}]", a.name, b.name);
    const std::string text = blocks_of_tokens(both, a.size * b.size);
    const std::string by = one_of<const char*>(random_, {"ring", "gather", "heads"});
    if (!model_.attends()) return text;
    if (pick(random_, 4) == 0) return text + attention(both, by);
    return text + attention(a.name, by == "heads" ? "ring" : by) +
           attention(b.name, one_of<const char*>(random_, {"ring", "gather", "heads"}));
  }
  // A dim of a matrix that both axes divide.
  std::string weight_over_two(const Axis& a, const Axis& b) {
    const auto ranks = static_cast<int64_t>(a.size * b.size);
    std::vector<std::string> all;
    for (const RandomBlocks::Parameter& one : model_.parameters())
      for (size_t d = 0; d < one.shape.size(); ++d)
        if (one.shape[d] % ranks == 0)
          all.push_back(fmt::format("match: {}, dim: {}", one.name, d));
    if (all.empty()) return "";
    const std::string what = all[pick(random_, all.size())];
    for (const Axis& axis : {a, b}) named_.insert(axis.name + what.substr(0, what.find(',')));
    return fmt::format("  - shard: {{{}, over: [{}, {}]}}\n", what, a.name, b.name);
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
  size_t microbatches_ = 1, samples_ = 1;
  bool joins_replicas_ = false;  // which are one axis
  bool has_stream_ = false;
  std::string tokens_over_;  // an axis, or two as a list
  size_t blocks_ = 1;        // of tokens
  size_t least_chunk_ = 0;   // of tokens in order
  std::set<std::string> named_;
  std::map<std::string, Shape> left_;
};

// ---- One of each --------------------------------------------------------------------------------

struct Tried {
  bool refused = false;
  int64_t collectives = 0;
  double apart = 0;
  std::set<std::string> has;  // what is counted
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

bool is_in_order(uint64_t seed) {
  const uint64_t last = seed % 10;
  return last == 0 || last == 3 || last == 4 || last == 8;
}

RandomBlocks model_of(uint64_t seed, Random& random) {
  const bool grouped = pick(random, 4) == 0;
  return RandomBlocks(seed, grouped, pick(random, 3) == 0, seed % 3 == 0, is_in_order(seed));
}

RandomStrategy::Also also_of(uint64_t seed) {
  return seed / 10 % 5 < 2 ? RandomStrategy::kProducts
         : seed % 11 == 6  ? RandomStrategy::kReplicas
         : seed % 11 == 3  ? RandomStrategy::kShares
                           : RandomStrategy::kNothing;
}

// A strategy that grows by what is not refused.
class Growing {
 public:
  Growing(uint64_t seed, const RandomBlocks& model, std::string text)
      : seed_(seed), text_(std::move(text)) {
    options_.model = folder_.write("model.onnx", model.bytes());
  }
  bool add(const std::string& more) {
    if (more.empty() && compiled_) return false;
    options_.strategy = folder_.write("strategy.yaml", text_ + more);
    auto compiled = compile(options_);
    if (!compiled) {
      const std::string error = print_error(compiled.error());
      EXPECT_GT(compiled.error().at.line, 0)  // not a plan that was refused
          << "seed " << seed_ << "\n"
          << text_ << more << error;
      if (given_seed()) std::printf("seed %lu: %s", seed_, error.c_str());
      return false;
    }
    text_ += more;
    compiled_ = std::move(*compiled);
    return true;
  }
  const std::string& text() const { return text_; }
  const std::optional<Compiled>& compiled() const { return compiled_; }
  bool says(const char* words) const { return text_.find(words) != text_.npos; }

 private:
  const uint64_t seed_;
  const Folder folder_;
  CompileOptions options_;
  std::string text_;
  std::optional<Compiled> compiled_;
};

std::set<std::string> features_of(const Growing& strategy) {
  std::set<std::string> has;
  const std::pair<const char*, const char*> kWords[] = {
      {"scope: \"block/", "parts"},         {"dim: tokens", "chunks of tokens"},
      {"within:", "parts within blocks"},   {"within: [", "parts within blocks over two axes"},
      {"over: [", "products of axes"},      {"dim: 1, over: [", "tokens over two axes"},
      {"dim: samples", "shares of samples"}};
  for (const auto& [words, what] : kWords)
    if (strategy.says(words)) has.insert(what);
  if (!strategy.says("  - split: {scope")) has.erase("parts");
  if (has.contains("chunks of tokens") && has.contains("tokens over two axes"))
    has.insert("chunks over two axes");
  const RoleProgram& role = strategy.compiled()->set.roles[0];
  if (std::ranges::count(role.body, InstructionKind::kRotate, &Instruction::kind) > 0)
    has.insert("keys in turn");
  if (std::ranges::any_of(role.tensors, [](const Tensor& each) {
        return std::ranges::any_of(each.cuts, [](const TensorCut& cut) { return cut.block > 0; });
      }))
    has.insert("zeros");
  return has;
}

Tried try_one(uint64_t seed) {
  Random random(seed);
  const RandomBlocks model = model_of(seed, random);
  RandomStrategy draw(random, model, also_of(seed));
  Growing strategy(seed, model, draw.text());
  const std::string order = draw.order(), chunks = draw.may_have_chunks() ? draw.chunks() : order,
                    communication = draw.communication(), parts = draw.parts();
  if (!strategy.add(chunks + communication + parts)) {
    if (!strategy.add(chunks) && (chunks == order || !strategy.add(order))) return {true};
    for (int tries = 0; tries < 3 && !strategy.add(tries == 0 ? parts : draw.parts());) ++tries;
    strategy.add(communication);
  }
  const Compiled& compiled = *strategy.compiled();
  const std::string what = fmt::format("seed {}\n{}", seed, strategy.text());
  const jobs::Trained spread = train_on_numbers(compiled.set, what),
                      uncut = train_on_numbers(*compiled.uncut, what);
  if (seed % 8 == 0 && !spread.losses.empty())
    jobs::expect_same_when_queued(compiled.set, Numbers(*data_needs(compiled.set)), what);
  EXPECT_EQ(spread.losses.size(), uncut.losses.size()) << what;
  if (spread.losses.size() != uncut.losses.size() || uncut.losses.empty()) return {};
  for (size_t k = 0; k < uncut.losses.size(); ++k)
    EXPECT_NEAR(spread.losses[k], uncut.losses[k], 1e-12 * std::max(1.0, uncut.losses[k])) << what;
  // Where a drawn model's training diverges, each step multiplies what rounding left of the last.
  const double growth = std::max(1.0, *std::ranges::max_element(uncut.losses));
  const double apart = jobs::largest_difference(spread, uncut) / growth;
  EXPECT_LT(apart, 1e-12) << what;
  Tried tried{false, collectives_of(compiled.set), apart, features_of(strategy)};
  if (also_of(seed) == RandomStrategy::kReplicas) tried.has.insert("replicas over what is cut");
  return tried;
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
  const int wanted = given_count().value_or(kSanitized ? 30 : 80);
  const uint64_t first = given_seed().value_or(1);
  int ran = 0, refused = 0, with_collectives = 0;
  std::map<std::string, int> with;
  double worst = 0;
  // What is seldom drawn is drawn for until there is enough of it.
  const auto is_enough = [&] {
    return ran >= wanted && with["keys in turn"] > wanted / 60 && with["zeros"] >= wanted / 80 &&
           with["replicas over what is cut"] > 0 && with["shares of samples"] > 0;
  };
  for (uint64_t seed = first; !is_enough() && ran < 2 * wanted && !HasFailure(); ++seed) {
    const Tried tried = try_one(seed);
    ++(tried.refused ? refused : ran);
    with_collectives += tried.collectives > 0;
    for (const std::string& what : tried.has) ++with[what];
    worst = std::max(worst, tried.apart);
  }
  std::printf("seeds from %lu: %d ran, %d were refused; at most %.1e apart\n%d with collectives\n",
              first, ran, refused, worst, with_collectives);
  for (const auto& [what, count] : with) std::printf("%d with %s\n", count, what.c_str());
  for (const char* const what :
       {"parts", "chunks of tokens", "products of axes", "parts within blocks"})
    EXPECT_GT(with[what], ran / 10) << what;
  for (const char* const what : {"chunks over two axes", "replicas over what is cut",
                                 "shares of samples", "parts within blocks over two axes"})
    EXPECT_GT(with[what], 0) << what;
  EXPECT_LT(refused, ran / 5);
  EXPECT_GT(with_collectives, ran / 2);
  EXPECT_TRUE(is_enough());
}

// Two messages that are one, of which a collective on a stream needs the first alone.
TEST(RandomAxes, JoinedMessagesStayTogetherBesideStreams) {
  expect_as_uncut(1600077, R"(piper: 1
mesh: {a1: 2, a2: 2, a0: 2}
train: {global_batch: 4, optimizer: {sgd: {lr: 0.05}}}
directives:
  - split: {dim: batch, into: 2}
  - precision: {compute: f64}
  - shard: {match: block.0.p1, dim: 1, over: a1}
  - shard: {scope: "block/2", dim: 2, over: a0}
  - shard: {input: labels, dim: 1, over: a2}
  - shard: {match: block.0.p1, dim: 1, over: a2}
  - replicate: {over: a1}
  - fuse: {where: {kind: [all_reduce, all_gather, reduce_scatter, all_to_all], mb: "*"}}
  - split: {scope: "block/2", dim: 1, into: 2}
  - stream: {where: {kind: [all_reduce, all_gather], mb: "*"}, name: of_parts}
)");
}

// Chunks are taken from an input before a region begins with them.
TEST(RandomAxes, RegionsBeginWithChunksOfInputs) {
  expect_as_uncut(18, R"(piper: 1
train: {global_batch: 2, optimizer: {sgd: {lr: 0.05}}}
directives:
  - precision: {compute: f64}
  - split: {dim: tokens, into: 2}
  - split: {scope: "block/0", dim: 1, into: 2}
)");
}

// Gradients of all chunks may be cut at several dims, or be terms of a sum, if a rank has one token
// of one sample.
TEST(RandomAxes, ChunksOfOneTokenAreJoined) {
  expect_as_uncut(1600000, R"(piper: 1
mesh: {a0: 4}
train: {global_batch: 1, optimizer: {sgd: {lr: 0.05}}}
directives:
  - precision: {compute: f64}
  - shard: {input: "*", dim: 1, over: a0}
  - split: {dim: tokens, into: 4}
  - split: {scope: "block/2", dim: 2, into: 2}
)");
}

// A gradient of a mask that queries share, where a rank has one query.
TEST(RandomAxes, OneQueryOfARankHasItsMask) {
  expect_as_uncut(31249, R"(piper: 1
mesh: {pp: 2, a0: 4, dp: 1}
train: {global_batch: 1, optimizer: {sgd: {lr: 0.05}}}
annotate:
  - balance: {tag: stage, into: 2}
directives:
  - place: {where: {stage: s}, on: {pp: s}}
  - precision: {compute: f64}
  - shard: {input: x, dim: 1, over: a0}
  - shard: {input: labels, dim: none, over: a0}
  - shard: {match: head.p29, dim: 0, over: a0}
  - shard: {match: block.0.p4, dim: 0, over: a0}
)");
}

// The own block of a sum over all samples.
TEST(RandomAxes, SumsOfAllSamplesHaveOwnBlocks) {
  expect_as_uncut(32287, R"(piper: 1
mesh: {a1: 4, a0: 2}
train: {global_batch: 2, optimizer: {adamw: {lr: 1e-3, eps: 1e-4, weight_decay: 0.1}}, clip_norm: 1.0}
directives:
  - precision: {compute: f64}
  - shard: {scope: "block/1", dim: none, over: a0}
  - shard: {match: head.p7, dim: 0, over: a1, pad: true}
  - shard: {input: labels, dim: none, over: a1}
)");
}

// The inner one of two axes becomes the outer one.
TEST(RandomAxes, InnerAxesBecomeOuterOnes) {
  expect_as_uncut(64071, R"(piper: 1
mesh: {a1: 2, a2: 2, a0: 2}
train: {global_batch: 3, optimizer: {sgd: {lr: 0.05, momentum: 0.9}}}
directives:
  - split: {dim: batch, into: 3}
  - precision: {compute: f64}
  - shard: {match: head.p23, dim: 0, over: a1}
  - shard: {input: ids, dim: 1, over: a0}
  - shard: {match: block.0.p2, dim: 0, over: a2}
  - recompute: {}
)");
}

// Layers of two branches that are added up: the sum over an axis of one has the other beside it.
class Branches final : public ModelMaker {
 public:
  Branches() : ModelMaker(3) {
    input("x", {8});
    std::string x = "x";
    for (int layer = 0; layer < 3; ++layer) {
      scope_ = fmt::format("block.{}", layer);
      const std::string other = product(x, 8, 8), wide = product(x, 8, 16);
      x = made("Add", {product(wide, 16, 8), other});
    }
    attribute(node("ReduceMean", {x}, "loss"), "keepdims", {0}, false);
    finish_with_loss();
  }

 private:
  std::string product(const std::string& x, int64_t from, int64_t to) {
    return made("Tanh", {made("MatMul", {x, parameter({from, to}, 0, 0.3f)})});
  }
};

// What a later collective needs runs beside the one before it, not before that.
TEST(RandomAxes, CollectivesHaveBesideThemWhatDoesNotNeedThem) {
  const Folder folder;
  CompileOptions options;
  options.model = folder.write("model.onnx", Branches().bytes());
  std::string cuts;
  for (int layer = 0; layer < 3; ++layer)
    cuts += fmt::format(
        "  - shard: {{match: block.{0}.p{1}, dim: 1, over: tp}}\n"
        "  - shard: {{match: block.{0}.p{2}, dim: 0, over: tp}}\n",
        layer, 3 * layer + 2, 3 * layer + 3);
  options.strategy = folder.write(
      "strategy.yaml",
      "piper: 1\nmesh: {tp: 2}\ntrain: {global_batch: 4, optimizer: {sgd: {lr: 0.1}}}\n"
      "directives:\n  - stream: {where: {kind: all_reduce, pass: F}, name: tp}\n" +
          cuts);
  const auto compiled = compile(options);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const RoleProgram& role = compiled->set.roles[0];
  int sums = 0;
  for (size_t i = 0; i + 1 < role.body.size(); ++i) {
    const Instruction& one = role.body[i];
    if (one.stream == 0 || !one.label.starts_with("F")) continue;
    ++sums;
    EXPECT_EQ(role.body[i + 1].kind, InstructionKind::kCompute) << one.label;
    EXPECT_TRUE(role.body[i + 1].waits.empty()) << one.label;
  }
  EXPECT_EQ(sums, 3);
}

}  // namespace
}  // namespace piper
