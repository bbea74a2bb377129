// The directive `split` of tokens and of samples: which inputs have them, and how many a chunk or a
// share gets.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "match.h"
#include "piper/ir/ops.h"
#include "piper/planner/cost.h"
#include "piper/planner/directives.h"

namespace piper {
namespace {

std::string join_numbers(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t number : numbers)
    text += fmt::format("{}{}", text.empty() ? "" : ", ", number);
  return text;
}

// Inputs of a transformer are numbers of tokens, [samples, tokens], or [samples, tokens, features].
constexpr int kTokenDim = 1;

int64_t tokens_of(const Value& input) {
  const Shape& shape = input.type.shape;
  const bool has_tokens =
      shape.size() == 3 || (shape.size() == 2 && !info(input.type.dtype).is_float);
  return input.batch_dim == 0 && has_tokens ? shape[kTokenDim] : 0;
}

// Returns how many tokens a sample has: as the first input of integers has, or else the first that
// has any.
Result<int64_t> count_tokens(const Graph& step, const Split& split) {
  int64_t tokens = 0;
  bool told = false;
  std::vector<std::string> types;
  for (ValueId id : step.inputs) {
    if (id == step.sample) continue;
    const Value& input = step.value(id);
    types.push_back(fmt::format("'{}' is {}", quote_control(input.name), to_string(input.type)));
    const int64_t here = tokens_of(input);
    const bool tells = here > 1 && !info(input.type.dtype).is_float;
    if (told || here <= 1 || (tokens > 0 && !tells)) continue;
    tokens = here, told = tells;
  }
  if (tokens > 0) return tokens;
  return fail(split.dim_at,
              "split: no input has tokens: integers [samples, tokens], or [samples, tokens, …]")
      .with_note(join(types, ", "));
}

// Returns sizes of chunks that take equally long: of the forward, a token's products are alike, and
// its attention grows with what is before it. All are multiples of `unit`.
std::vector<int64_t> sizes_by_cost(const Graph& step, int64_t tokens, int64_t chunks,
                                   int64_t unit) {
  double products = 0, attention = 0;
  for (const Node& node : step.nodes) {
    if (node.pass != Pass::kF) continue;
    const bool grows = node.op == "Attention" && node.attrs.integer("causal") != 0;
    (grows ? attention : products) += flops_of(step, node);
  }
  // The first x of all tokens cost products · x + attention · x². Whole numbers of `grain` fit
  // tiles of kernels.
  int64_t tile = 128;
  while (tile > 1 && tokens < 8 * chunks * tile) tile /= 2;
  const int64_t both = std::lcm(tile, unit), grain = tokens < 8 * chunks * both ? unit : both;
  std::vector<int64_t> sizes;
  int64_t end = 0;
  for (int64_t c = 1; c <= chunks; ++c) {
    const double cost =
        (products + attention) * static_cast<double>(c) / static_cast<double>(chunks);
    const double x =
        attention > 0
            ? (std::sqrt(products * products + 4 * attention * cost) - products) / (2 * attention)
            : cost / std::max(products, 1.0);
    const auto wanted = static_cast<int64_t>(std::llround(x * static_cast<double>(tokens / grain)));
    const int64_t most = tokens - (chunks - c) * grain;  // the others have some, too
    const int64_t next = c == chunks ? most : std::min(most, std::max(end + grain, wanted * grain));
    sizes.push_back(next - end);
    end = next;
  }
  return sizes;
}

// Returns how many parts the axes of 'shard' may cut a chunk's tokens into. 1: not even chunks of
// one size can be cut so.
int64_t parts_of_chunk(const Strategy& strategy, const Split& split, int64_t tokens) {
  int64_t parts = 1;
  for (const MeshAxis& axis : strategy.mesh) {
    const auto is_over = [&](const ShardRule& each) { return each.over.front() == axis.name; };
    const auto in_two = [&](const ShardRule& each) { return is_over(each) && each.zigzag; };
    if (axis.size == 1 || std::ranges::none_of(strategy.shards, is_over)) continue;
    parts *= axis.size * (std::ranges::any_of(strategy.shards, in_two) ? 2 : 1);
  }
  return tokens % parts == 0 && tokens / parts >= split.into ? parts : 1;
}

// Says in words what a split makes, of what, and of what this is cut.
struct Words {
  const char *pieces, *what, *whole;
};
Words words_of(const Split& split) {
  return split.of_tokens ? Words{"chunks", "tokens", "sample"}
                         : Words{"shares", "samples", "microbatch"};
}

Error not_whole_samples(const Graph& step, const Strategy& strategy, const Split& split,
                        int64_t tokens, int64_t wanted) {
  return fail(split.sizes_at,
              "split: shares of {} of {} samples are no whole samples of the {} that a "
              "microbatch has while the batch is {}",
              join_numbers(split.sizes), wanted, tokens, step.batch)
      .with_note(fmt::format("'rampup' at {} begins with smaller batches",
                             line_of(strategy.rampup_at, split.at)))
      .with_note("help: batches of 'rampup' of which each share has whole samples");
}

// Returns sizes that are not all alike; empty: they are.
Result<std::vector<int64_t>> sizes_of(const Graph& step, const Strategy& strategy,
                                      const Split& split, int64_t tokens) {
  std::vector<int64_t> sizes = split.sizes;
  if (split.by == Split::By::kCost)
    sizes = sizes_by_cost(step, tokens, split.into, parts_of_chunk(strategy, split, tokens));
  const int64_t all = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const auto [pieces, what, whole] = words_of(split);
  // In a stage of 'rampup' shares are to one another as they are in the whole batch.
  const bool grows = split.of_samples && !strategy.rampup.empty();
  const int64_t wanted = grows ? tokens * strategy.global_batch / step.batch : tokens;
  if (!sizes.empty() && all != wanted)
    return fail(split.sizes_at, "split: {} of {} {} are {} in all, but a {} has {}", pieces,
                join_numbers(sizes), what, all, whole, wanted);
  for (int64_t& size : sizes) {
    if (size * tokens % wanted != 0)
      return not_whole_samples(step, strategy, split, tokens, wanted);
    size = size * tokens / wanted;
  }
  const bool alike = std::ranges::all_of(sizes, [&](int64_t size) { return size == sizes[0]; });
  return alike ? std::vector<int64_t>() : sizes;
}

Status check_beside(const Strategy& strategy, const Split& split) {
  if (split.of_samples) return ok_status();
  for (const Place& place : strategy.places) {
    bool names = std::ranges::any_of(place.where, [&](const auto& c) { return c.tag == split.as; });
    for (const auto* expressions : {&place.tags, &place.on})
      for (const auto& [name, value] : *expressions)
        names = names || std::ranges::count(value.names(), split.as) > 0;
    if (names)
      return fail(place.at,
                  "not supported: chunks of one sample on several devices: 'place' names "
                  "'{}'",
                  split.as)
          .with_note(fmt::format("tokens are split at {}", line_of(split.at, place.at)));
  }
  return ok_status();
}

// Returns how many samples a microbatch has for a replica; 0: no input has any.
int64_t count_samples(const Graph& step) {
  for (ValueId id : step.inputs)
    if (const Value& input = step.value(id); id != step.sample && input.batch_dim >= 0)
      return input.type.shape[static_cast<size_t>(input.batch_dim)];
  return 0;
}

// Seeds the inputs that have tokens, or samples.
void seed_inputs(const Graph& step, const Split& split, int64_t tokens, PartCut& cut) {
  for (ValueId id : step.inputs) {
    const Value& input = step.value(id);
    if (id == step.sample) continue;
    if (split.of_tokens && tokens_of(input) == tokens) cut.seeds.push_back({0, id, kTokenDim});
    if (split.of_samples && input.batch_dim >= 0) cut.seeds.push_back({0, id, input.batch_dim});
  }
}

// A single share is one, too: so a sweep over their number places all alike.
void tag_only_share(Graph& step, const std::string& name) {
  const int tag = step.add_tag(name);
  for (Node& node : step.nodes)
    if (node.pass != Pass::kU && !is_step_sum(node)) step.set_tag(node, tag, 0);
}

std::string explain_chunks(const Parts& made, const Split& split) {
  if (split.of_samples)
    return fmt::format("{} ops run share by share, and {} values are sums over the shares",
                       made.ops, made.summed);
  return fmt::format(
      "{} ops run chunk by chunk; {} keys and values, forward and backward, are read of the "
      "chunks before, and {} values are sums over the chunks",
      made.ops, made.carried, made.summed);
}

}  // namespace

Result<Graph> apply_chunks(Graph step, const Strategy& strategy, Explanations& out) {
  const Split* split = strategy.chunk_split();
  if (!split) return step;
  PIPER_TRY(check_beside(strategy, *split));
  int64_t tokens = count_samples(step);
  if (split->of_tokens) {
    PIPER_ASSIGN(tokens, count_tokens(step, *split));
  }
  const auto [chunks, what, whole] = words_of(*split);
  const bool are_alike = split->sizes.empty() && split->by != Split::By::kCost;
  if (tokens < split->into || (are_alike && tokens % split->into != 0))
    return fail(split->at, "split: {} {} a {} cannot be cut into {} {}", tokens, what, whole,
                split->into, chunks)
        .with_note(are_alike ? fmt::format("help: 'into' must divide {}, or 'sizes' say how many "
                                           "each has",
                                           tokens)
                             : fmt::format("each has one or more"));
  PartCut cut{.name = split->as, .into = split->into};
  PIPER_ASSIGN(cut.sizes, sizes_of(step, strategy, *split, tokens));
  std::vector<std::string> lines{fmt::format(
      "{} {} of {} {}, tasks of their own with the tag '{}'", split->into, chunks,
      cut.sizes.empty() ? std::to_string(tokens / split->into) : join_numbers(cut.sizes), what,
      split->as)};
  if (split->of_tokens && split->into == 1) lines = {"one chunk of all tokens: nothing is cut"};
  cut.in_order = true, cut.of_samples = split->of_samples;
  cut.at = split->at, cut.dim_at = split->dim_at;
  seed_inputs(step, *split, tokens, cut);
  if (split->into > 1) {
    PIPER_ASSIGN(Parts made, cut_chunks(std::move(step), cut));
    lines.push_back(explain_chunks(made, *split));
    step = std::move(made.graph);
  } else if (split->of_samples) {
    tag_only_share(step, split->as);
  }
  out.push_back({split->at, "split", std::move(lines)});
  return step;
}

}  // namespace piper
