// Loops of every row of the op table: each letter can be split, and costs and sums follow.
#include <set>

#include "unit/op_uses.h"

namespace piper::op_loops_test {
namespace {

using namespace test;  // NOLINT: the helpers of this test
using test::Tensor;    // not that of plans

// A dim as [outer, size of the letter, inner].
struct Place {
  size_t dim = 0;
  int64_t outer = 1, size = 1;
};

std::optional<Place> place_of(const LoopRule& rule, const std::vector<LoopRule::Dim>& dims,
                              const Shape& shape, char letter) {
  auto size = [&](char wanted) {
    for (const auto& [name, extent] : rule.sizes) {
      if (name == wanted) return extent;
    }
    ADD_FAILURE() << "letter " << wanted << " has no size";
    return int64_t{1};
  };
  const auto is_whole = [&](char l) { return rule.whole.find(l) != std::string::npos; };
  for (size_t d = 0; d < dims.size(); ++d) {
    // A whole letter in front stands for what the others leave of the dim.
    int64_t outer = 1, others = 1;
    for (char at : dims[d]) others *= is_whole(at) ? 1 : size(at);
    for (char at : dims[d]) {
      if (at == letter) return Place{d, outer, size(letter)};
      outer *= is_whole(at) ? shape[d] / others : size(at);
    }
  }
  return std::nullopt;
}

Shape block_shape(const Shape& shape, const Place& place, int64_t count) {
  Shape block = shape;
  block[place.dim] = block[place.dim] / place.size * count;
  return block;
}

// Calls f(position in the whole, position in the block) for the elements [from, from + count) of
// the letter.
template <class F>
void for_block(const Shape& shape, const Place& place, int64_t from, int64_t count, F f) {
  int64_t inner = 1, outer = place.outer;
  for (size_t d = place.dim + 1; d < shape.size(); ++d) inner *= shape[d];
  for (size_t d = 0; d < place.dim; ++d) outer *= shape[d];
  inner *= shape[place.dim] / place.size / place.outer;
  size_t to = 0;
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t l = from; l < from + count; ++l) {
      for (int64_t i = 0; i < inner; ++i) {
        f(static_cast<size_t>((o * place.size + l) * inner + i), to++);
      }
    }
  }
}

Tensor cut(const Tensor& whole, const Place& place, int64_t from, int64_t count) {
  Tensor part{{whole.type.dtype, block_shape(whole.type.shape, place, count)}, {}};
  for_block(whole.type.shape, place, from, count,
            [&](size_t at, size_t) { part.values.push_back(whole.values[at]); });
  return part;
}

Shape local_shape(const Use& use, const LoopRule& rule, size_t output, char letter, int64_t count) {
  const auto place = place_of(rule, rule.outputs[output], use.types.outputs[output].shape, letter);
  const Shape& shape = use.types.outputs[output].shape;
  return place ? block_shape(shape, *place, count) : shape;
}

// What sharding tells an op that draws random numbers: which of two halves it has.
void place_draw(Use& local, const Use& use, const Place& place, int64_t from) {
  int64_t rows = place.outer;
  for (size_t d = 0; d < place.dim; ++d) rows *= use.types.outputs[0].shape[d];
  local.types.attrs.set("rows", rows);
  local.types.attrs.set("shards", int64_t{2});
  local.types.inputs.push_back({DType::kI64, {1}});
  local.types.present.push_back(true);
  local.inputs.push_back(Tensor{{DType::kI64, {1}}, {from > 0 ? 1.0 : 0.0}});
}

// The use that a shard makes of the op: elements [from, from + count) of the letter.
Use local_use(const Use& use, const LoopRule& rule, char letter, int64_t from, int64_t count) {
  Use local = use;
  for (size_t i = 0; i < use.inputs.size(); ++i) {
    const auto place = place_of(rule, rule.inputs[i], use.types.inputs[i].shape, letter);
    if (!use.inputs[i] || !place) continue;
    local.inputs[i] = cut(*use.inputs[i], *place, from, count);
    local.types.inputs[i] = local.inputs[i]->type;
  }
  std::vector<Shape> shapes;
  for (size_t o = 0; o < use.types.outputs.size(); ++o) {
    shapes.push_back(local_shape(use, rule, o, letter, count));
  }
  if (use.def->localise) local.types.attrs = use.def->localise(use.types, shapes);
  for (const auto& [begins, input] : rule.firsts) {
    if (begins != letter) continue;
    local.types.attrs.set("whole", std::find_if(rule.sizes.begin(), rule.sizes.end(), [&](auto& s) {
                                     return s.first == letter;
                                   })->second);
    const auto at = static_cast<size_t>(input);
    local.types.inputs.resize(at + 1);
    local.types.present.resize(at + 1, false);
    local.inputs.resize(at + 1);
    local.types.inputs[at] = {DType::kI64, {}};
    local.types.present[at] = true;
    local.inputs[at] = Tensor{{DType::kI64, {}}, {static_cast<double>(from)}};
  }
  if (use.def->draws >= 0) {
    place_draw(local, use, *place_of(rule, rule.outputs[0], use.types.outputs[0].shape, letter),
               from);
  }
  local.types.outputs = must(use.def->types(local.types));
  return local;
}

int64_t size_of(const LoopRule& rule, char letter) {
  for (const auto& [name, size] : rule.sizes)
    if (name == letter && rule.whole.find(letter) == std::string::npos) return size;
  return 0;
}

// What so many shards of the first letter make together, each made of shards of the others. Of two
// halves alone a random op can be told which one it has.
std::vector<Tensor> run_in_shards(const Use& use, const std::string& letters, int64_t parts) {
  if (letters.empty()) return use.run();
  const char letter = letters[0];
  const LoopRule rule = use.def->loops(use.types);
  const int64_t size = size_of(rule, letter);
  if (size < parts) return run_in_shards(use, letters.substr(1), parts);
  std::vector<Tensor> joined;
  for (const TensorType& type : use.types.outputs) {
    joined.push_back({type, std::vector<double>(num_elements(type.shape), 0.0)});
  }
  for (int64_t shard = 0; shard < parts; ++shard) {
    const int64_t from = size * shard / parts, count = size * (shard + 1) / parts - from;
    const Use local = local_use(use, rule, letter, from, count);
    const std::vector<Tensor> made = run_in_shards(local, letters.substr(1), parts);
    for (size_t o = 0; o < joined.size(); ++o) {
      EXPECT_EQ(made[o].type.shape, local_shape(use, rule, o, letter, count)) << "output " << o;
      const auto place = place_of(rule, rule.outputs[o], use.types.outputs[o].shape, letter);
      for (size_t i = 0; !place && i < made[o].values.size(); ++i) {
        double& all = joined[o].values[i];
        const double part = made[o].values[i];
        all = rule.reduces == LoopRule::kMax && shard > 0 ? std::max(all, part)
              : rule.reduces == LoopRule::kMax            ? part
                                                          : all + part;
      }
      if (!place) continue;
      for_block(joined[o].type.shape, *place, from, count,
                [&](size_t at, size_t in) { joined[o].values[at] = made[o].values[in]; });
    }
  }
  return joined;
}

// Every dim of an operand is the product of its letters, unless one of them is whole.
void check_dims(const LoopRule& rule, const std::vector<LoopRule::Dim>& dims, const Shape& shape) {
  ASSERT_EQ(dims.size(), shape.size());
  for (size_t d = 0; d < dims.size(); ++d) {
    int64_t product = 1;
    bool whole = false;
    for (char letter : dims[d]) {
      for (const auto& [name, size] : rule.sizes) product *= name == letter ? size : 1;
      whole = whole || rule.whole.find(letter) != std::string::npos;
    }
    ASSERT_TRUE(whole || product == shape[d]) << "dim " << d;
  }
}

// LabelCount and casts make f32, whose sums are exact here too.
void expect_same(const std::vector<Tensor>& joined, const std::vector<Tensor>& whole) {
  for (size_t o = 0; o < whole.size(); ++o) expect_near(joined[o], whole[o], 1e-12);
}

TEST(Ops, EveryLetterCanBeSplit) {
  int split = 0, pairs = 0;
  for_each_use([&](const Use& use, std::mt19937_64&) {
    const LoopRule rule = use.def->loops(use.types);
    ASSERT_EQ(rule.inputs.size(), use.inputs.size());
    ASSERT_EQ(rule.outputs.size(), use.types.outputs.size());
    for (size_t i = 0; i < use.inputs.size(); ++i) {
      check_dims(rule, rule.inputs[i], use.types.inputs[i].shape);
    }
    for (size_t i = 0; i < rule.outputs.size(); ++i) {
      check_dims(rule, rule.outputs[i], use.types.outputs[i].shape);
    }
    const std::vector<Tensor> whole = use.run();
    for (const auto& [letter, size] : rule.sizes) {
      if (size < 2 || rule.whole.find(letter) != std::string::npos) continue;
      for (const int64_t parts : {2, 3}) {
        if (parts > size || (parts > 2 && use.def->draws >= 0)) continue;
        SCOPED_TRACE(fmt::format("letter {} of {} in {}", letter, size, parts));
        expect_same(run_in_shards(use, std::string(1, letter), parts), whole);
        ++split;
      }
      // Over two axes at once.
      for (const auto& [other, extent] : rule.sizes) {
        if (other == letter || size_of(rule, other) < 2 || use.def->draws >= 0) continue;
        SCOPED_TRACE(fmt::format("letters {} of {}, {} of {}", letter, size, other, extent));
        expect_same(run_in_shards(use, {letter, other}, 2), whole);
        ++pairs;
      }
    }
  });
  EXPECT_GT(pairs, 400);
  EXPECT_GT(split, 250);
}

// ---- Letters of which an axis cuts two at once ------------------------------------------------

// With the numbers that tell where the parts of both letters begin.
Use told(Use use, size_t mask, double first, double first_key, int64_t keys) {
  const TensorType number{DType::kI64, {}};
  use.types.inputs.resize(mask + 3);
  use.types.present.resize(mask + 3, false);
  use.inputs.resize(mask + 3);
  for (const auto& [at, value] : {std::pair(mask + 1, first), {mask + 2, first_key}}) {
    use.types.inputs[at] = number;
    use.types.present[at] = true;
    use.inputs[at] = Tensor{number, {value}};
  }
  use.types.attrs.set("keys", keys);
  return use;
}
Use cut_use(Use use, const LoopRule& rule, char letter, int64_t from, int64_t count) {
  for (size_t i = 0; i < use.inputs.size(); ++i)
    if (const auto place = place_of(rule, rule.inputs[i], use.types.inputs[i].shape, letter);
        use.inputs[i] && place) {
      use.inputs[i] = cut(*use.inputs[i], *place, from, count);
      use.types.inputs[i] = use.inputs[i]->type;
    }
  use.types.outputs = must(use.def->types(use.types));
  return use;
}

// What own queries and the keys of each part in turn make, merged or added up.
struct InTurn {
  const Use& use;
  const LoopRule& rule;
  size_t mask;
  int64_t keys, parts;
  std::vector<Tensor> joined;

  int64_t begin_of(char letter, int64_t part) const {
    const auto size = std::find_if(rule.sizes.begin(), rule.sizes.end(),
                                   [&](const auto& known) { return known.first == letter; });
    return size->second * part / parts;
  }
  std::vector<Tensor> run(int64_t q, int64_t k) const {
    const char own = rule.turns->own, other = rule.turns->other;
    const int64_t first = begin_of(own, q), key = begin_of(other, k);
    Use local = told(use, mask, static_cast<double>(first), static_cast<double>(key), keys);
    local = cut_use(std::move(local), rule, own, first, begin_of(own, q + 1) - first);
    return cut_use(std::move(local), rule, other, key, begin_of(other, k + 1) - key).run();
  }
  void put(const std::vector<Tensor>& made, int64_t q, int64_t k) {
    for (size_t o = 0; o < made.size(); ++o) {
      bool is_cut = false;
      for (const auto& [letter, part] : {std::pair(rule.turns->own, q), {rule.turns->other, k}}) {
        const auto place = place_of(rule, rule.outputs[o], joined[o].type.shape, letter);
        if (!place) continue;
        is_cut = true;
        const int64_t from = begin_of(letter, part);
        for_block(joined[o].type.shape, *place, from, begin_of(letter, part + 1) - from,
                  [&](size_t at, size_t in) { joined[o].values[at] += made[o].values[in]; });
      }
      for (size_t i = 0; !is_cut && i < made[o].values.size(); ++i)
        joined[o].values[i] += made[o].values[i];
    }
  }
  void run_all() {
    for (int64_t q = 0; q < parts; ++q) {
      std::vector<Tensor> merged;
      for (int64_t k = 0; k < parts; ++k) {
        const std::vector<Tensor> made = run(q, k);
        if (rule.reduces != LoopRule::kMerge) {
          put(made, q, k);
        } else if (k == 0) {
          merged = made;
        } else {
          Attrs attrs{{"tokens_first", use.types.attrs.integers("tokens_first")[3]}};
          if (const AttrValue* score = use.types.attrs.find("hidden_score")) {
            attrs.set("hidden_score", *score);
            attrs.set("parts", k);
          }
          merged = evaluate("AttentionMerge", attrs, {merged[0], merged[1], made[0], made[1]},
                            std::vector{made[0].type, made[1].type});
        }
      }
      put(merged, q, 0);
    }
  }
};

TEST(Ops, LettersAreCutTwoAtOnce) {
  int cuts = 0;
  for_each_use([&](const Use& use, std::mt19937_64&) {
    if (use.def->name != "Attention" && use.def->name != "AttentionGrad") return;
    const size_t mask = use.def->name == "Attention" ? 3 : 6;
    const bool tokens_first = use.types.attrs.integers("tokens_first")[1] != 0;
    const int64_t keys = use.types.inputs[1].shape[tokens_first ? 1 : 2];
    const LoopRule rule = use.def->loops(told(use, mask, 0, 0, keys).types);
    ASSERT_TRUE(rule.turns);
    const std::vector<Tensor> wanted = use.run();
    for (const int64_t parts : {2, 3}) {
      SCOPED_TRACE(fmt::format("in {}", parts));
      InTurn turns{use, rule, mask, keys, parts, wanted};
      for (Tensor& tensor : turns.joined) std::fill(tensor.values.begin(), tensor.values.end(), 0);
      turns.run_all();
      expect_same(turns.joined, wanted);
      ++cuts;
    }
  });
  EXPECT_GE(cuts, 28);
}

// All keys of a query that a finite number hides have equal weights, in whatever parts they come.
TEST(Ops, HiddenKeysAreMergedByTheirNumber) {
  const OpDef& attention = *find_op("Attention");
  for (size_t i = 0; i < attention.samples.size(); ++i) {
    const OpSample& sample = attention.samples[i];
    if (sample.inputs.size() < 4 || sample.inputs[3].shape != Shape{2, 1, 1, 6}) continue;
    std::mt19937_64 random(kSeed);
    Use use = make_use(attention, i, random);
    use.types.attrs.set("hidden_score", -0x1p100);
    for (size_t key = 6; key < 12; ++key) use.inputs[3]->values[key] = -0x1p100;
    const std::vector<Tensor> wanted = use.run();
    const LoopRule rule = attention.loops(told(use, 3, 0, 0, 6).types);
    for (const int64_t parts : {2, 3}) {
      InTurn turns{use, rule, 3, 6, parts, wanted};
      for (Tensor& tensor : turns.joined) std::fill(tensor.values.begin(), tensor.values.end(), 0);
      turns.run_all();
      expect_near(turns.joined[0], wanted[0], 1e-14);
    }
    return;
  }
  FAIL() << "no sample has such a mask";
}

// Twice the elements cost at most twice as much, and products of matrices exactly: what a plan's
// parts cost adds up to the whole.
TEST(Ops, CostsGrowWithTheLettersOfTheLoops) {
  int split = 0;
  for_each_use([&](const Use& use, std::mt19937_64&) {
    const LoopRule rule = use.def->loops(use.types);
    const Cost whole = use.def->cost(use.types);
    for (const auto& [letter, size] : rule.sizes) {
      if (size < 2 || rule.whole.find(letter) != std::string::npos) continue;
      double sum = 0;
      for (const auto& [from, count] :
           {std::pair(int64_t{0}, size / 2), {size / 2, size - size / 2}}) {
        const Cost part = use.def->cost(local_use(use, rule, letter, from, count).types);
        EXPECT_LE(part.flops, whole.flops) << "letter " << letter;
        sum += part.flops;
      }
      EXPECT_GE(sum, whole.flops * (1 - 1e-12)) << "letter " << letter;
      if (use.def->name == "MatMul") {
        EXPECT_DOUBLE_EQ(sum, whole.flops);
      }
      ++split;
    }
  });
  EXPECT_GT(split, 250);
}

// f(u + v) = f(u) + f(v) in each linear set of inputs.
TEST(Ops, LinearSetsAreLinear) {
  int checked = 0;
  for_each_use([&](const Use& use, std::mt19937_64& random) {
    for (const std::vector<int>& set : use.def->loops(use.types).linear) {
      Use u = use, v = use, sum = use;
      for (int i : set) {
        const OpSample& sample = *use.sample;
        v.inputs[i] = draw(sample.inputs[i], random, sample.low, sample.high, sample.int_high);
        for (size_t e = 0; e < v.inputs[i]->values.size(); ++e) {
          sum.inputs[i]->values[e] += v.inputs[i]->values[e];
        }
      }
      const std::vector<Tensor> of_u = u.run(), of_v = v.run(), of_sum = sum.run();
      for (size_t o = 0; o < of_u.size(); ++o) {
        Tensor expected = of_u[o];
        for (size_t e = 0; e < expected.values.size(); ++e) {
          expected.values[e] += of_v[o].values[e];
        }
        expect_near(of_sum[o], expected, of_u[o].type.dtype == DType::kF32 ? 1e-6 : 1e-12);
      }
      ++checked;
    }
  });
  EXPECT_GT(checked, 60);
}

std::string dims_text(const std::vector<LoopRule::Dim>& dims) {
  std::string text;
  for (const LoopRule::Dim& dim : dims) {
    if (!text.empty()) text += " ";
    text += dim.empty() ? "-" : std::string(dim.begin(), dim.end());
  }
  return text;
}

std::string rule_text(const LoopRule& rule) {
  std::vector<std::string> inputs, outputs;
  for (const auto& dims : rule.inputs) inputs.push_back(dims_text(dims));
  for (const auto& dims : rule.outputs) outputs.push_back(dims_text(dims));
  return join(inputs, ", ") + " -> " + join(outputs, ", ") +
         (rule.whole.empty() ? "" : " whole " + rule.whole);
}

std::string reshape_rule(Shape from, Shape to) {
  OpTypes use;
  use.inputs = {{DType::kF32, std::move(from)}};
  use.present = {true};
  use.outputs = {{DType::kF32, std::move(to)}};
  return rule_text(find_op("Reshape")->loops(use));
}

// What an op says that it makes of zeros.
TEST(Ops, ZerosAreMadeOfZeros) {
  std::map<std::string_view, std::set<int>> nonzero;
  for_each_use([&](Use& use, std::mt19937_64&) {
    bool reads_floats = false;
    for (size_t i = 0; i < use.inputs.size(); ++i) {
      if (!use.types.present[i] || !is_float(use.types.inputs[i])) continue;
      reads_floats = true;
      std::fill(use.inputs[i]->values.begin(), use.inputs[i]->values.end(), 0.0);
    }
    if (!reads_floats || use.def->states >= 0) return;
    const auto made = use.run();
    for (size_t o = 0; o < made.size(); ++o)
      if (is_float(use.types.outputs[o]) &&
          !std::all_of(made[o].values.begin(), made[o].values.end(),
                       [](double x) { return x == 0; }))
        nonzero[use.def->name].insert(static_cast<int>(o));
  });
  for (const OpDef* def : all_ops()) {
    const std::set<int> said(def->nonzero.begin(), def->nonzero.end()), &seen = nonzero[def->name];
    EXPECT_TRUE(std::includes(said.begin(), said.end(), seen.begin(), seen.end())) << def->name;
    // Elements that count as none may leave others beside them, as the last of running sums.
    if (!def->absent) {
      EXPECT_EQ(seen, said) << def->name;
    }
  }
}

// Whether the op takes the elements of the letter together, and one number counts as none there.
bool may_lack(const OpDef& def, const LoopRule& rule, char letter) {
  const auto has = [&](const std::vector<LoopRule::Dim>& dims) {
    return std::find(dims.begin(), dims.end(), LoopRule::Dim{letter}) != dims.end();
  };
  const bool begins = std::any_of(rule.firsts.begin(), rule.firsts.end(),
                                  [&](const auto& first) { return first.first == letter; });
  const bool takes = begins || rule.whole.find(letter) != std::string::npos ||
                     (rule.reduces == LoopRule::kMax &&
                      !std::all_of(rule.outputs.begin(), rule.outputs.end(), has));
  return def.absent && takes &&
         (has(rule.inputs[static_cast<size_t>(def.absent_in)]) ||
          std::none_of(rule.inputs.begin(), rule.inputs.end(), has));
}

// Of the last element of a letter: what counts as none, and zeros beside it. No index is that one.
void take_last_away(Use& use, const LoopRule& rule, char letter, int64_t last) {
  const double none = std::clamp(*use.def->absent, -std::numeric_limits<double>::max(),
                                 std::numeric_limits<double>::max());
  for (size_t i = 0; i < use.inputs.size(); ++i) {
    if (!use.inputs[i]) continue;
    std::vector<double>& values = use.inputs[i]->values;
    if (!is_float(use.types.inputs[i]))
      for (double& index : values) index = std::min(index, static_cast<double>(last - 1));
    const auto place = place_of(rule, rule.inputs[i], use.types.inputs[i].shape, letter);
    const bool is_absent = i == static_cast<size_t>(use.def->absent_in);
    if (place)
      for_block(use.types.inputs[i].shape, *place, last, 1,
                [&](size_t at, size_t) { values[at] = is_absent ? none : 0; });
  }
}

TEST(Ops, WhatIsAbsentCountsAsNone) {
  std::set<std::string_view> tried;
  for_each_use([&](const Use& use, std::mt19937_64&) {
    const LoopRule rule = use.def->loops(use.types);
    for (const auto& [letter, size] : rule.sizes) {
      if (size < 2 || !may_lack(*use.def, rule, letter)) continue;
      const TensorType& type = use.types.inputs[static_cast<size_t>(use.def->absent_in)];
      if (!is_float(type)) continue;
      tried.insert(use.def->name);
      Use whole = use;
      take_last_away(whole, rule, letter, size - 1);
      const Use without = local_use(whole, rule, letter, 0, size - 1);
      const std::vector<Tensor> made = whole.run(), wanted = without.run();
      for (size_t o = 0; o < made.size(); ++o) {
        const auto place = place_of(rule, rule.outputs[o], use.types.outputs[o].shape, letter);
        expect_near(place ? cut(made[o], *place, 0, size - 1) : made[o], wanted[o], 1e-12);
        const auto& nonzero = use.def->nonzero;
        if (!place || std::count(nonzero.begin(), nonzero.end(), static_cast<int>(o))) continue;
        for (double value : cut(made[o], *place, size - 1, 1).values)
          EXPECT_EQ(value, 0) << "output " << o << " letter " << letter;
      }
    }
  });
  EXPECT_EQ(tried.size(), 17u);
}

TEST(Ops, ReshapeFindsCommonFactors) {
  EXPECT_EQ(reshape_rule({8, 16, 4}, {128, 4}), "a b c -> ab c");
  EXPECT_EQ(reshape_rule({128, 4}, {8, 16, 4}), "ab c -> a b c");
  EXPECT_EQ(reshape_rule({8, 16, 12}, {8, 16, 3, 4}), "a b cd -> a b c d");
  EXPECT_EQ(reshape_rule({8, 3, 1, 5}, {8, 15}), "a b - c -> a bc");
  EXPECT_EQ(reshape_rule({6, 4}, {4, 6}), "ab e -> ac d whole bcde");
  EXPECT_EQ(reshape_rule({2, 3, 4}, {2, 4, 3}), "a b d -> a c e whole bcde");
  EXPECT_EQ(reshape_rule({3, 4, 5}, {4, 3, 5}), "a c e -> b d e whole abcd");
  EXPECT_EQ(reshape_rule({1}, {}), "- -> ");
  EXPECT_EQ(reshape_rule({0, 3}, {3, 0}), "a b -> c d whole abcd");
}

TEST(Ops, LoopsOfAForm) {
  EXPECT_EQ(rule_text(loops("mk,kn->mn", {{4, 5}, {5, 6}}, {{4, 6}})), "m k, k n -> m n");
  EXPECT_EQ(rule_text(loops(".mk,.kn->.mn", {{2, 7, 4, 5}, {1, 5, 6}}, {{2, 7, 4, 6}})),
            "A B m k, - k n -> A B m n");
}

}  // namespace
}  // namespace piper::op_loops_test
