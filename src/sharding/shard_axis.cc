// One walk over the nodes. Each op either works on the part that a loop gives it, or on the whole,
// or passes terms of a sum on; what its operands lack for that is converted in front of it.
//
// Which of its loops an op is cut by is decided where it stands, by the bytes that its operands and
// results would have to travel. What lies behind is known as a hint: where a result must lie in the
// end, carried back to what it is made of element by element.
#include <algorithm>
#include <climits>
#include <map>
#include <set>

#include "letters.h"
#include "pad.h"
#include "piper/ops.h"
#include "piper/sharding.h"

namespace piper {
namespace {

constexpr LayoutKind kWhole = LayoutKind::kReplicated;
constexpr LayoutKind kCut = LayoutKind::kSharded;
constexpr LayoutKind kTerms = LayoutKind::kPartial;
constexpr LayoutKind kGreatest = LayoutKind::kGreatest;

bool is_apart(const Layout& layout) { return layout.kind == kTerms || layout.kind == kGreatest; }

// What an op could do: how it wants its operands, and how its results lie then.
struct Choice {
  std::optional<LoopCut> cut;
  std::vector<Layout> needs, makes;
  // States that do not lie as the strategy says: only where nothing else is left is put together
  // what it cuts, or is a product or update cut by what it keeps whole.
  int against = 0;
  double bytes = 0;
  bool before(const Choice& other) const {
    return std::pair(against, bytes) < std::pair(other.against, other.bytes);
  }
};

class AxisWalk {
 public:
  AxisWalk(Graph graph, const AxisCut& cut)
      : graph_(std::move(graph)),
        cut_(cut),
        ranks_(cut.ranks),
        global_(graph_.values.size()),
        lies_(graph_.values.size()),
        made_(graph_.values.size()),
        hints_(graph_.values.size()),
        is_seed_(graph_.values.size()),
        read_whole_(graph_.values.size()),
        now_(graph_.values.size()) {
    for (size_t i = 0; i < global_; ++i) now_[i] = ValueId(i);
    readers_ = readers(graph_);
  }

  // The ops whose operands would have to be put together although others can do with parts.
  std::vector<NodeId> find_whole() {
    for (const ShardSeed& seed : cut_.seeds)
      if (!plant(seed)) return {};
    for (size_t i = 0; i < graph_.nodes.size(); ++i) visit(NodeId(i));
    return std::move(put_together_);
  }

  Result<ShardedGraph> run() {
    for (const ShardSeed& seed : cut_.seeds) PIPER_TRY(plant(seed));
    bool backward = false;
    const size_t count = graph_.nodes.size();
    for (size_t i = 0; i < count; ++i) {
      if (!backward && is_backward(graph_.nodes[i])) {
        backward = true;
        hint_gradients();
      }
      visit(NodeId(i));
    }
    name_readers();
    end_step();
    localise();
    return ShardedGraph{std::move(graph_), std::move(conversions_)};
  }

 private:
  using Region = std::pair<Pass, std::vector<int32_t>>;        // F, U or BI for both, and its tags
  using Key = std::tuple<int32_t, int, int, int64_t, Region>;  // value, layout and where

  const TensorType& type_of(ValueId id) const { return graph_.value(id).type; }

  // ---- Seeds and hints --------------------------------------------------------------------------

  Status plant(const ShardSeed& seed) {
    const Value& value = graph_.value(seed.value);
    Layout layout;
    if (seed.dim >= 0) {
      PIPER_CHECK(seed.dim < static_cast<int>(value.type.shape.size()));
      const int64_t extent = value.type.shape[static_cast<size_t>(seed.dim)];
      const int64_t outer = extent % ranks_ == 0 ? outer_of(seed) : 0;
      if (outer == 0)
        return fail(seed.at, "dim {} of '{}' ({}) cannot be cut into {} equal parts over '{}'",
                    seed.dim, quote_control(value.name), to_string(value.type), ranks_, cut_.name);
      layout = {kCut, seed.dim, outer};
    }
    is_seed_[seed.value.index()] = true;
    if (value.kind == ValueKind::kNode)
      fixed_.emplace(seed.value.value, layout);
    else
      lies_[seed.value.index()] = layout;
    if (layout.kind == kCut) hint(seed.value, layout);
    return ok_status();
  }

  // The parts of a dim that its readers take apart are cut alike: the fewest that let most of the
  // readers, and those of what these make, work on their part. 0: none is beside blocks of others.
  int64_t outer_of(const ShardSeed& seed) const {
    const int64_t extent = type_of(seed.value).shape[static_cast<size_t>(seed.dim)];
    std::set<int64_t> outers{1};
    follow(seed.value, {kCut, seed.dim, 1}, &outers);
    for (const AxisLayout& before : graph_.value(seed.value).over)
      if (before.layout.dim == seed.dim) outers.insert(before.layout.outer);
    int64_t best = 0;
    int least = INT_MAX;
    for (int64_t outer : outers) {
      if (least == 0) break;
      if (extent % (outer * ranks_) != 0 || !is_beside(seed, outer)) continue;
      const int refused = follow(seed.value, {kCut, seed.dim, outer}, nullptr);
      if (refused < least) best = outer;
      least = std::min(least, refused);
    }
    return best;
  }
  // Blocks lie inside those of axes before, or have several of them.
  bool is_beside(const ShardSeed& seed, int64_t outer) const {
    const auto& over = graph_.value(seed.value).over;
    return std::all_of(over.begin(), over.end(), [&](const AxisLayout& before) {
      const int64_t known = before.layout.outer;
      return before.layout.kind != kCut || before.layout.dim != seed.dim || outer % known == 0 ||
             known % (outer * ranks_) == 0;
    });
  }

  // How many of the ops behind do not get past the cut, up to where it is summed over; `outers`
  // are those into which dims are taken apart on the way.
  int follow(ValueId from, const Layout& layout, std::set<int64_t>* outers) const {
    constexpr size_t kMost = 64;
    std::vector<std::pair<ValueId, Layout>> open{{from, layout}};
    int refused = 0;
    for (size_t at = 0; at < open.size() && at < kMost; ++at) {
      const auto [value, lies] = open[at];
      for (NodeId reader : readers_[value.index()]) {
        const Node& node = graph_.node(reader);
        if (node.pass != Pass::kF) continue;
        const Loops loops = loops_of(graph_, node);
        for (size_t i = 0; i < node.inputs.size(); ++i) {
          if (node.inputs[i] != value) continue;
          if (outers) note_outers(loops, i, lies, *outers);
          const std::optional<LoopCut> cut = cut_of(loops.input(i), lies, ranks_);
          if (!cut || !is_legal(loops, *cut)) {
            ++refused;
            continue;
          }
          for (size_t o = 0; o < node.outputs.size(); ++o)
            if (const auto made = layout_of(loops.output(o), *cut))
              open.emplace_back(node.outputs[o], *made);
        }
      }
    }
    return refused;
  }

  static void note_outers(const Loops& loops, size_t input, const Layout& lies,
                          std::set<int64_t>& outers) {
    const auto d = static_cast<size_t>(lies.dim);
    const LoopRule::Dim& dim = loops.rule.inputs[input][d];
    int64_t inner = 1;
    for (auto letter = dim.rbegin(); letter != dim.rend(); ++letter) {
      for (const auto& [name, size] : loops.rule.sizes) inner *= name == *letter ? size : 1;
      const int64_t extent = loops.types.inputs[input].shape[d];
      if (inner > 0 && extent % inner == 0) outers.insert(extent / inner);
    }
  }

  // Where a value must lie in the end, and what it is made of element by element with it.
  void hint(ValueId at, const Layout& layout) {
    std::vector<std::pair<ValueId, Layout>> open{{at, layout}};
    while (!open.empty()) {
      const auto [value, lies] = open.back();
      open.pop_back();
      if (hints_[value.index()]) continue;
      hints_[value.index()] = lies;
      const Value& made = graph_.value(value);
      if (made.kind != ValueKind::kNode) continue;
      const Node& node = graph_.node(made.producer);
      const Loops loops = loops_of(graph_, node);
      const auto cut = cut_of(loops.output(static_cast<size_t>(made.output_index)), lies, ranks_);
      const auto output = static_cast<size_t>(made.output_index);
      if (!cut || !is_legal(loops, *cut) || sums(loops.output(output))) continue;
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (!node.inputs[i].valid() || graph_.value(node.inputs[i]).kind != ValueKind::kNode)
          continue;
        if (const auto input = layout_of(loops.input(i), *cut))
          open.emplace_back(node.inputs[i], *input);
      }
    }
  }

  // Whether some loop of the op is not one of this result's.
  static bool sums(const Operand& output) {
    return std::any_of(output.rule.sizes.begin(), output.rule.sizes.end(),
                       [&](const auto& letter) { return occurrences(output, letter.first) == 0; });
  }

  // How a reader wants a sum or product that meets there what is cut already: a gradient beside the
  // value that it is multiplied with. Before that a bias may be added to it.
  std::optional<Layout> wanted_beside(ValueId value, int further = 3) const {
    for (NodeId reader : readers_[value.index()]) {
      const Node& node = graph_.node(reader);
      const Loops loops = loops_of(graph_, node);
      std::optional<LoopCut> cut;
      const bool moves = only_moves(loops, node),
                 is_same = further > 0 && node.outputs.size() == 1 && !loops.is_product() &&
                           type_of(node.outputs[0]).shape == type_of(value).shape;
      const std::optional<Layout> behind = moves || is_same
                                               ? wanted_beside(node.outputs[0], further - !moves)
                                               : std::optional<Layout>();
      if (behind) cut = cut_of(loops.output(0), *behind, ranks_);
      for (size_t i = 0; i < node.inputs.size() && !cut; ++i)
        if (const Layout lies = will_lie(node.inputs[i]); lies.kind == kCut)
          cut = cut_of(loops.input(i), lies, ranks_);
      if (!cut || !is_legal(loops, *cut)) continue;
      for (size_t i = 0; i < node.inputs.size(); ++i)
        if (node.inputs[i] == value)
          if (const auto layout = layout_of(loops.input(i), *cut)) return layout;
    }
    return std::nullopt;
  }

  // Also of what is still to come, where that only moves elements.
  Layout will_lie(ValueId id) const {
    if (!id.valid()) return {};
    const Value& value = graph_.value(id);
    if (value.kind != ValueKind::kNode || value.producer.value < visited_) return lies_[id.index()];
    const Node& node = graph_.node(value.producer);
    const Loops loops = loops_of(graph_, node);
    if (!only_moves(loops, node)) return {};
    const Layout source = will_lie(node.inputs[0]);
    if (source.kind != kCut) return {};
    const std::optional<LoopCut> cut = cut_of(loops.input(0), source, ranks_);
    if (!cut || !is_legal(loops, *cut)) return {};
    return layout_of(loops.output(0), *cut).value_or(Layout{});
  }

  // Elements of one value in another shape or order.
  static bool only_moves(const Loops& loops, const Node& node) {
    return node.inputs.size() == 1 && node.outputs.size() == 1 && !loops.def->collective &&
           loops.rule.linear == std::vector<std::vector<int>>{{0}} &&
           loops.types.inputs[0].bytes() == loops.types.outputs[0].bytes() &&
           loops.def->cost(loops.types).flops == 0;
  }

  void hint_gradients() {
    for (const Param& param : graph_.params)
      if (param.gradient.valid() && lies_[param.value.index()].kind == kCut)
        hint(param.gradient, lies_[param.value.index()]);
  }

  // ---- One op -----------------------------------------------------------------------------------

  bool is_legal(const Loops& loops, const LoopCut& cut) const {
    const LoopRule& rule = loops.rule;
    if (rule.whole.find(cut.letter) != std::string::npos) return false;
    const bool begins = std::any_of(rule.firsts.begin(), rule.firsts.end(),
                                    [&](const auto& first) { return first.first == cut.letter; });
    if (begins && cut.outer != 1) return false;
    for (size_t i = 0; i < rule.inputs.size(); ++i) {
      const int times = occurrences(loops.input(i), cut.letter);
      if (times > 1 || (times == 1 && !layout_of(loops.input(i), cut))) return false;
    }
    for (size_t o = 0; o < rule.outputs.size(); ++o) {
      const int times = occurrences(loops.output(o), cut.letter);
      if (times > 1 || (times == 1 && !layout_of(loops.output(o), cut))) return false;
      if (times == 0 && rule.reduces == LoopRule::kNone) return false;
    }
    return true;
  }

  void visit(NodeId id) {
    visited_ = id.value;
    const Node node = graph_.node(id);
    const Loops loops = loops_of(graph_, node);
    if (only_moves(loops, node) && may_adopt(node.inputs[0]) && !hints_[node.outputs[0].index()])
      hints_[node.outputs[0].index()] = wanted_beside(node.outputs[0]);
    std::vector<Choice> choices;
    if (std::optional<Choice> gradient = as_parameter(node)) {
      choices = {*std::move(gradient)};
    } else if (is_touched(node)) {
      for (ValueId output : node.outputs)
        if (loops.is_product() && !hints_[output.index()])
          hints_[output.index()] = wanted_beside(output);
      if (std::optional<Choice> terms = keep_terms(node, loops)) {
        choices = {*std::move(terms)};
      } else {
        for (const LoopCut& cut : cuts_of(node, loops)) choices.push_back(choose(node, loops, cut));
        const bool must = loops.def->loops && loops.is_product() && !choices.empty();
        if (!must) choices.push_back(choose(node, loops, {}));
      }
    } else {
      choices = {choose(node, loops, {})};
    }
    const Choice& best =
        *std::min_element(choices.begin(), choices.end(),
                          [](const Choice& a, const Choice& b) { return a.before(b); });
    for (size_t i = 0; loops.def->apart && i < node.inputs.size(); ++i)
      if (node.inputs[i].valid() && lies_[node.inputs[i].index()].kind == kCut &&
          best.needs[i].kind == kWhole && !loops.def->apart(loops.types).steps.empty())
        put_together_.push_back(id);
    take(id, node, best);
  }

  // A gradient lies as its parameter, so that what updates one by the other converts nothing; terms
  // of a whole one are summed up with the step.
  std::optional<Choice> as_parameter(const Node& node) const {
    if (!is_step_sum(node)) return std::nullopt;
    const auto is_own = [&](const Param& param) { return param.gradient == node.outputs[0]; };
    const auto param = std::find_if(graph_.params.begin(), graph_.params.end(), is_own);
    if (param == graph_.params.end()) return std::nullopt;
    const Layout& lies = lies_[param->value.index()];
    const bool terms = lies.kind == kWhole &&
                       std::all_of(node.inputs.begin(), node.inputs.end(),
                                   [&](ValueId id) { return lies_[id.index()].kind == kTerms; });
    return Choice{{}, std::vector(node.inputs.size(), terms ? Layout{kTerms} : lies), {lies}};
  }

  bool is_touched(const Node& node) const {
    const auto lies = [&](ValueId id) { return id.valid() && lies_[id.index()].kind != kWhole; };
    const auto hinted = [&](ValueId id) { return hints_[id.index()].has_value(); };
    return std::any_of(node.inputs.begin(), node.inputs.end(), lies) ||
           std::any_of(node.outputs.begin(), node.outputs.end(), hinted);
  }

  // The loops that operands, or what is known of the results, cut.
  std::vector<LoopCut> cuts_of(const Node& node, const Loops& loops) const {
    std::vector<LoopCut> cuts;
    const auto add = [&](const std::optional<LoopCut>& cut) {
      if (cut && is_legal(loops, *cut) && std::find(cuts.begin(), cuts.end(), *cut) == cuts.end())
        cuts.push_back(*cut);
    };
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!node.inputs[i].valid()) continue;
      const Layout& lies = lies_[node.inputs[i].index()];
      const auto& wanted = hints_[node.inputs[i].index()];
      if (lies.kind == kCut) add(cut_of(loops.input(i), lies, ranks_));
      if (lies.kind == kTerms && wanted) add(cut_of(loops.input(i), *wanted, ranks_));
    }
    for (size_t o = 0; o < node.outputs.size(); ++o)
      if (const auto& wanted = hints_[node.outputs[o].index()])
        add(cut_of(loops.output(o), *wanted, ranks_));
    return cuts;
  }

  // By the loop, or, without one, on the whole.
  Choice choose(const Node& node, const Loops& loops, const std::optional<LoopCut>& cut) const {
    Choice choice{cut};
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const auto layout =
          cut && node.inputs[i].valid() ? layout_of(loops.input(i), *cut) : std::optional<Layout>();
      choice.needs.push_back(layout.value_or(Layout{}));
      if (!node.inputs[i].valid()) continue;
      const double bytes = cost(node.inputs[i], choice.needs.back());
      choice.bytes += bytes;
      const bool of_strategy = is_seed_[node.inputs[i].index()] &&
                               graph_.value(node.inputs[i]).kind == ValueKind::kState;
      const bool cuts_whole = (loops.is_product() || node.pass == Pass::kU) &&
                              choice.needs.back().kind == kCut &&
                              lies_[node.inputs[i].index()].kind == kWhole;
      choice.against += of_strategy && (bytes > 0 || cuts_whole);
    }
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const auto layout = cut ? layout_of(loops.output(o), *cut) : std::optional(Layout{});
      const bool sums = loops.rule.reduces == LoopRule::kSum;
      choice.makes.push_back(layout.value_or(Layout{sums ? kTerms : kGreatest}));
      const auto& wanted = hints_[node.outputs[o].index()];
      if ((wanted || is_apart(choice.makes.back())) && !is_contribution(node.outputs[o]))
        choice.bytes +=
            cost_of(type_of(node.outputs[o]), choice.makes.back(), wanted.value_or(Layout{}));
    }
    return choice;
  }

  // What only sums over the step read is reduced with them.
  bool is_contribution(ValueId id) const {
    const auto& by = readers_[id.index()];
    return !by.empty() && !is_kept_cut(id) && std::all_of(by.begin(), by.end(), [&](NodeId reader) {
      return is_step_sum(graph_.node(reader));
    });
  }

  // Terms of a sum stay so where several become one, and where an op moves or scales one: it costs
  // nothing later. (Where else an op is linear, its results would be sums as well, and more bytes.)
  // A sum over the step ends them, unless its result is kept in blocks.
  std::optional<Choice> keep_terms(const Node& node, const Loops& loops) const {
    const bool ends = is_step_sum(node);
    if (ends && is_kept_cut(node.outputs[0])) return std::nullopt;
    std::vector<int> terms;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (node.inputs[i].valid() && lies_[node.inputs[i].index()].kind == kTerms)
        terms.push_back(static_cast<int>(i));
    if (terms.empty()) return std::nullopt;
    const auto& sets = loops.rule.linear;
    if (std::find(sets.begin(), sets.end(), terms) == sets.end()) return std::nullopt;
    const bool moves = node.outputs.size() == 1 &&
                       num_elements(type_of(node.outputs[0]).shape) <=
                           num_elements(type_of(node.inputs[static_cast<size_t>(terms[0])]).shape);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId id = node.inputs[i];
      const bool is_term =
          std::find(terms.begin(), terms.end(), static_cast<int>(i)) != terms.end();
      if (!id.valid() || is_term) continue;
      if (!moves || num_elements(type_of(id).shape) != 1 || lies_[id.index()].kind != kWhole)
        return std::nullopt;
    }
    if (terms.size() == 1 && !moves) return std::nullopt;
    Choice choice;
    choice.needs.resize(node.inputs.size());
    for (int i : terms) choice.needs[static_cast<size_t>(i)] = {kTerms};
    choice.makes.assign(node.outputs.size(), Layout{ends ? kWhole : kTerms});
    return choice;
  }
  bool is_kept_cut(ValueId id) const {
    const auto& wanted = hints_[id.index()];
    return wanted && wanted->kind == kCut;
  }

  void take(NodeId id, const Node& node, const Choice& choice) {
    sum_numbers(id, node, choice);
    std::vector<ValueId> inputs = node.inputs;
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].valid()) inputs[i] = read(inputs[i], choice.needs[i], id);
    for (size_t i = 0; is_step_sum(node) && i < inputs.size(); ++i)
      if (inputs[i] != now_[node.inputs[i].index()])
        inputs[i] = as_contribution(inputs[i], node.inputs[i], choice.needs[i]);
    Node made = node;
    made.inputs = std::move(inputs);
    if (choice.cut) place_first(made, loops_of(graph_, node).rule, *choice.cut);
    if (choice.cut && find_op(node.op)->draws >= 0) place_draw(made, choice.makes[0]);
    nodes_.push_back(std::move(made));
    was_.push_back(id);
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const ValueId output = node.outputs[o];
      lies_[output.index()] = made_[output.index()] = choice.makes[o];
      if (choice.makes[o].kind == kTerms && !hints_[output.index()])
        hints_[output.index()] = wanted_beside(output);
      const auto fixed = fixed_.find(output.value);
      if (fixed == fixed_.end() || fixed->second == choice.makes[o]) continue;
      now_[output.index()] = convert(output, fixed->second, id);
      lies_[output.index()] = fixed->second;
    }
  }

  // An op adds to a sum over the step, no collective does.
  ValueId as_contribution(ValueId from, ValueId origin, const Layout& layout) {
    const Node near = graph_.node(graph_.value(origin).producer);
    return add("Reshape", {from}, {{"shape", type_of(from).shape}}, near, layout);
  }

  // Tells a part where it begins, among the parts of axes before it too.
  void place_first(Node& node, const LoopRule& rule, const LoopCut& cut) {
    for (const auto& [letter, input] : rule.firsts) {
      if (letter != cut.letter) continue;
      const auto at = static_cast<size_t>(input);
      const auto size = std::find_if(rule.sizes.begin(), rule.sizes.end(),
                                     [&](const auto& s) { return s.first == cut.letter; });
      PIPER_CHECK(cut.outer == 1, "a part of {} that begins more than once", node.op);
      ValueId first =
          add("OwnFirst", {}, {{"over", int64_t{cut_.axis}}, {"size", size->second / ranks_}}, node,
              {});
      if (node.inputs.size() <= at) node.inputs.resize(at + 1);
      if (node.inputs[at].valid()) first = add("Add", {node.inputs[at], first}, {}, node, {});
      node.inputs[at] = first;
      if (!node.attrs.find("whole")) node.attrs.set("whole", size->second);
    }
  }

  // Tells an op which part of the random numbers it draws (ops/random.cc).
  void place_draw(Node& node, const Layout& lies) {
    if (lies.kind != kCut) return;
    const Shape& shape = type_of(node.outputs[0]).shape;
    int64_t rows = lies.outer;
    for (int d = 0; d < lies.dim; ++d) rows *= shape[static_cast<size_t>(d)];
    std::vector<int64_t> cuts = node.attrs.integers("cuts");
    cuts.insert(cuts.end(), {rows, ranks_});
    node.attrs.set("cuts", std::move(cuts));
    ValueId& own = own_number_[region_of(node)];
    if (!own.valid()) {
      Node near = node;
      near.pass = is_backward(node) ? Pass::kBI : node.pass;
      own = add("OwnFirst", {}, {{"over", int64_t{cut_.axis}}, {"size", int64_t{1}}}, near, {});
    }
    node.inputs.resize(
        std::max(node.inputs.size(), static_cast<size_t>(find_op(node.op)->draws) + 3));
    node.inputs.push_back(own);
  }

  // Numbers of which the op needs the sums travel together, as one vector.
  void sum_numbers(NodeId id, const Node& node, const Choice& choice) {
    std::vector<ValueId> numbers;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId input = node.inputs[i];
      if (!input.valid() || lies_[input.index()].kind != kTerms || choice.needs[i].kind != kWhole)
        continue;
      const TensorType& type = type_of(input);
      if (num_elements(type.shape) == 1 && !known(input, {}, id) &&
          (numbers.empty() || type.dtype == type_of(numbers[0]).dtype) &&
          std::find(numbers.begin(), numbers.end(), input) == numbers.end())
        numbers.push_back(input);
    }
    if (numbers.size() < 2) return;
    std::vector<ValueId> parts;
    for (ValueId number : numbers)
      parts.push_back(
          add("Reshape", {now_[number.index()]}, {{"shape", Shape{1}}}, node, {kTerms}));
    const ValueId joined = add("Concat", parts, {{"axis", int64_t{0}}}, node, {kTerms});
    const ValueId sums = add("AllReduce", {joined}, {{"over", int64_t{cut_.axis}}}, node, {});
    conversions_.push_back({NodeId(nodes_.size() - 1), joined, id,
                            static_cast<int64_t>(cost_of(type_of(joined), {kTerms}, {}))});
    for (size_t i = 0; i < numbers.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const Attrs one{{"starts", std::vector{at}},
                      {"ends", std::vector{at + 1}},
                      {"steps", std::vector<int64_t>{1}}};
      const ValueId sum = add("Slice", {sums}, one, node, {});
      converted_[key_of(numbers[i], {}, id)] =
          add("Reshape", {sum}, {{"shape", type_of(numbers[i]).shape}}, node, {});
    }
  }

  // An op beside `near`, on values as they are now.
  ValueId add(std::string_view op, const std::vector<ValueId>& inputs, Attrs attrs,
              const Node& near, const Layout& layout) {
    Node node;
    node.op = op;
    node.name = fmt::format("{}/{}.{}", near.name, cut_.name, op);
    node.attrs = std::move(attrs);
    node.scope = near.scope;
    node.pass = near.pass;
    node.tags = near.tags;
    node.inputs = inputs;
    OpTypes use = use_of(graph_, node);
    Result<std::vector<TensorType>> types = find_op(op)->types(use);
    PIPER_CHECK(types.ok(), "{} '{}': {}", op, node.name, types.error().message);
    Value value;
    value.name = fmt::format("{}{}", node.name, graph_.values.size());
    value.type = (*types)[0];
    if (!inputs.empty()) value.layout = graph_.value(inputs[0]).layout;
    if (!inputs.empty()) value.over = graph_.value(inputs[0]).over;
    std::erase_if(value.over, [&](const AxisLayout& lies) { return lies.axis == cut_.axis; });
    if (layout.kind != kWhole) value.over.push_back({cut_.axis, layout});
    const ValueId made = graph_.add_value(std::move(value));
    node.outputs = {made};
    nodes_.push_back(std::move(node));
    was_.emplace_back();
    return made;
  }

  // ---- Conversions ------------------------------------------------------------------------------

  double cost_of(const TensorType& type, const Layout& from, const Layout& to) const {
    const double all = static_cast<double>(type.bytes()), n = static_cast<double>(ranks_);
    const double most = all * (n - 1) / n;
    if (from == to || from.kind == kWhole) return 0;
    if (is_apart(from)) return to.kind == kWhole ? 2 * most : most;
    return is_exchange(from, to) ? most / n : most;  // of one dim: put together, then cut
  }

  double cost(ValueId id, const Layout& to) const {
    const Value& value = graph_.value(id);
    if (value.kind == ValueKind::kState && may_adopt(id)) return 0;
    if (is_there(id, to, NodeId(visited_))) return 0;
    return cost_of(value.type, lies_[id.index()], to);
  }

  // A state that nothing says more of lies as its first reader wants it.
  bool may_adopt(ValueId id) const {
    return graph_.value(id).kind == ValueKind::kState && !is_seed_[id.index()] &&
           lies_[id.index()].kind == kWhole && !read_whole_[id.index()];
  }

  ValueId read(ValueId id, const Layout& need, NodeId reader) {
    if (is_loaded_whole(id)) return read_input(id, need, reader);
    if (need.kind == kCut && may_adopt(id)) lies_[id.index()] = need;
    if (lies_[id.index()] == need) {
      if (need.kind == kWhole) read_whole_[id.index()] = true;
      return now_[id.index()];
    }
    return convert(id, need, reader);
  }

  bool is_loaded_whole(ValueId id) const {
    return is_seed_[id.index()] && graph_.value(id).kind == ValueKind::kInput;
  }
  // Every rank loads all of an input, and each region takes the blocks that it works on.
  ValueId read_input(ValueId id, const Layout& need, NodeId reader) {
    if (need.kind == kWhole) return id;
    const Key key = key_of(id, need, reader);
    if (const auto known = converted_.find(key); known != converted_.end()) return known->second;
    const Node near = graph_.node(reader);
    return converted_[key] = emit("OwnBlock", id, id, need, need, near, reader);
  }

  static Region region_of(const Node& node) {
    return {is_backward(node) ? Pass::kBI : node.pass, node.tags};
  }

  // A sum is finished where its terms are made, and what adds to a sum over the step is converted
  // there; the rest happens where it is wanted.
  NodeId place_of(ValueId id, NodeId reader) const {
    const Value& value = graph_.value(id);
    const bool is_sum = is_apart(lies_[id.index()]) || is_step_sum(graph_.node(reader));
    return is_sum && value.kind == ValueKind::kNode ? value.producer : reader;
  }
  Key key_of(ValueId id, const Layout& to, NodeId reader) const {
    Region region = region_of(graph_.node(place_of(id, reader)));
    const Value& value = graph_.value(id);
    // Blocks of another dim are no more than those that they are made of: they are kept for the
    // backward pass.
    if (value.kind == ValueKind::kNode && is_exchange(lies_[id.index()], to))
      region.first = region_of(graph_.node(value.producer)).first;
    return {id.value, static_cast<int>(to.kind), to.dim, to.outer, std::move(region)};
  }
  static bool is_exchange(const Layout& from, const Layout& to) {
    return from.kind == kCut && to.kind == kCut && from.dim != to.dim;
  }
  bool known(ValueId id, const Layout& to, NodeId reader) const {
    return converted_.count(key_of(id, to, reader)) > 0;
  }

  ValueId convert(ValueId id, const Layout& to, NodeId reader) {
    const Key key = key_of(id, to, reader);
    if (const auto known = converted_.find(key); known != converted_.end()) return known->second;
    const Layout from = lies_[id.index()];
    const Node near = graph_.node(place_of(id, reader));
    ValueId made = now_[id.index()];
    if (const std::optional<ValueId> moved = convert_source(id, to, reader))
      return converted_[key] = *moved;
    if (is_exchange(from, to)) {
      made = emit("AllToAll", made, id, from, to, near, reader);
    } else if (from.kind == kCut && to.kind == kCut) {
      made = emit("AllGather", made, id, from, Layout{}, near, reader);
      made = emit("OwnBlock", made, id, to, to, near, reader);
    } else if (from.kind == kGreatest) {
      made = emit("AllReduceMax", made, id, from, Layout{}, near, reader);
      if (to.kind == kCut) made = emit("OwnBlock", made, id, to, to, near, reader);
    } else if (from.kind == kTerms) {
      made = to.kind == kWhole ? emit("AllReduce", made, id, from, to, near, reader)
                               : emit("ReduceScatter", made, id, to, to, near, reader);
    } else if (from.kind == kWhole) {
      made = emit("OwnBlock", made, id, to, to, near, reader);
    } else {
      made = emit("AllGather", made, id, from, to, near, reader);
    }
    return converted_[key] = made;
  }

  // How the source of what only moves elements must lie, for that to lie so.
  std::optional<Layout> layout_of_source(ValueId id, const Layout& to) const {
    const Value& value = graph_.value(id);
    if (value.kind != ValueKind::kNode || fixed_.count(id.value)) return std::nullopt;
    const Node& node = graph_.node(value.producer);
    const Loops loops = loops_of(graph_, node);
    if (!only_moves(loops, node)) return std::nullopt;
    if (to.kind != kCut) return to;
    const std::optional<LoopCut> cut = cut_of(loops.output(0), to, ranks_);
    if (!cut || !is_legal(loops, *cut)) return std::nullopt;
    return layout_of(loops.input(0), *cut);
  }

  // Whether it lies so already, or has been converted for another reader.
  bool is_there(ValueId id, const Layout& to, NodeId reader) const {
    if (lies_[id.index()] == to || known(id, to, reader)) return true;
    const std::optional<Layout> source = layout_of_source(id, to);
    return source && is_there(graph_.node(graph_.value(id).producer).inputs[0], *source, reader);
  }

  // What only moves elements is done again on its converted source: one collective for all that
  // is the same but for its shape.
  std::optional<ValueId> convert_source(ValueId id, const Layout& to, NodeId reader) {
    const std::optional<Layout> source = layout_of_source(id, to);
    if (!source) return std::nullopt;
    const Value value = graph_.value(id);
    const Node node = graph_.node(value.producer);
    const Loops loops = loops_of(graph_, node);
    const ValueId from = node.inputs[0];
    const ValueId read = is_loaded_whole(from)            ? read_input(from, *source, reader)
                         : lies_[from.index()] == *source ? now_[from.index()]
                                                          : convert(from, *source, reader);
    Attrs attrs = node.attrs;
    const Shape shape = local(value.type.shape, to);
    if (loops.def->localise && shape != value.type.shape)
      attrs = loops.def->localise(loops.types, {shape});
    Node near = graph_.node(place_of(id, reader));
    near.name = value.name;
    near.pass = pass_of(id, near);
    return add(node.op, {read}, std::move(attrs), near, to);
  }

  // What the weights' gradients share with those of inputs belongs to the latter.
  Pass pass_of(ValueId origin, const Node& near) const {
    const Value& source = graph_.value(origin);
    const bool made_in_bw =
        source.kind == ValueKind::kNode && graph_.node(source.producer).pass == Pass::kBW;
    return near.pass == Pass::kBW && !made_in_bw ? Pass::kBI : near.pass;
  }

  // A collective on `from`, which is what has become of `origin`; `blocks`: the dim that it cuts or
  // puts together.
  ValueId emit(std::string_view op, ValueId from, ValueId origin, const Layout& blocks,
               const Layout& to, const Node& near, NodeId reader) {
    Node node;
    node.op = op;
    node.attrs.set("over", int64_t{cut_.axis});
    if (blocks.kind == kCut) {
      node.attrs.set("ranks", ranks_);
      node.attrs.set("dim", int64_t{blocks.dim});
      node.attrs.set("outer", blocks.outer);
    }
    if (op == "AllToAll") {
      node.attrs.set("to_dim", int64_t{to.dim});
      node.attrs.set("to_outer", to.outer);
    }
    node.name = fmt::format("{}/{}.{}", graph_.value(origin).name, cut_.name, op);
    node.scope = near.scope;
    node.tags = near.tags;
    const Value source = graph_.value(origin);
    node.pass = pass_of(origin, near);
    node.inputs = {from};
    Value value;
    value.name = node.name;
    value.type = {source.type.dtype, local(source.type.shape, to)};
    value.layout = source.layout;
    value.over = source.over;
    if (to.kind != kWhole) value.over.push_back({cut_.axis, to});
    const ValueId made = graph_.add_value(std::move(value));
    node.outputs = {made};
    const int64_t bytes = static_cast<int64_t>(cost_of(source.type, lies_[origin.index()], to));
    conversions_.push_back({NodeId(nodes_.size()), origin, reader, bytes});
    nodes_.push_back(std::move(node));
    was_.emplace_back();
    return made;
  }

  // By their places among the nodes that are made.
  void name_readers() {
    std::vector<NodeId> now(graph_.nodes.size());
    for (size_t n = 0; n < was_.size(); ++n)
      if (was_[n].valid()) now[was_[n].index()] = NodeId(n);
    for (Conversion& conversion : conversions_) conversion.reader = now[conversion.reader.index()];
  }

  // ---- The end ----------------------------------------------------------------------------------

  void end_step() {
    const size_t before = conversions_.size();
    const auto finish = [&](ValueId& id, const Layout& to) {
      if (!id.valid()) return;
      const NodeId producer = graph_.value(id).producer;
      if (lies_[id.index()] != to && producer.valid())
        id = convert(id, to, producer);
      else
        id = now_[id.index()];
    };
    for (StateUpdate& update : graph_.updates) finish(update.next, lies_[update.state.index()]);
    for (Param& param : graph_.params) finish(param.gradient, lies_[param.value.index()]);
    finish(graph_.loss, {});
    finish(graph_.grad_norm, {});
    for (size_t c = before; c < conversions_.size(); ++c) conversions_[c].reader = {};
  }

  Shape local(Shape shape, const Layout& layout) const {
    if (layout.kind == kCut) shape[static_cast<size_t>(layout.dim)] /= ranks_;
    return shape;
  }

  // Attributes first: they need all types as they were.
  void localise() {
    std::vector<Layout> made = made_;
    for (size_t i = 0; i < global_; ++i)
      if (graph_.values[i].kind == ValueKind::kState) made[i] = lies_[i];
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (!was_[n].valid()) continue;
      const Node& whole = graph_.node(was_[n]);
      const OpDef* def = find_op(whole.op);
      if (!def->localise) continue;
      std::vector<Shape> shapes;
      bool is_cut = false;
      for (ValueId id : whole.outputs) {
        shapes.push_back(local(type_of(id).shape, made[id.index()]));
        is_cut = is_cut || shapes.back() != type_of(id).shape;
      }
      if (!is_cut) continue;
      Attrs local = def->localise(use_of(graph_, whole), shapes);
      for (const char* key : {"whole", "cuts"})
        if (const auto* of = nodes_[n].attrs.find(key)) local.set(key, *of);
      nodes_[n].attrs = std::move(local);
    }
    for (size_t i = 0; i < global_; ++i) {
      Value& value = graph_.values[i];
      value.type.shape = local(std::move(value.type.shape), made[i]);
      if (made[i].kind != kWhole) value.over.push_back({cut_.axis, made[i]});
    }
    graph_.nodes = std::move(nodes_);
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      for (ValueId output : graph_.nodes[n].outputs) graph_.value(output).producer = NodeId(n);
    check_types();
  }

  // Every op must be legal on what it reads now.
  void check_types() const {
    for (const Node& node : graph_.nodes) {
      OpTypes use = use_of(graph_, node);
      const std::vector<TensorType> expected = std::move(use.outputs);
      use.outputs.clear();
      const auto types = find_op(node.op)->types(use);
      PIPER_CHECK(types.ok(), "{} '{}' cut over {}: {}", node.op, node.name, cut_.name,
                  types.error().message);
      for (size_t i = 0; i < expected.size(); ++i)
        PIPER_CHECK((*types)[i] == expected[i], "{} '{}' cut over {} makes {}, not {}", node.op,
                    node.name, cut_.name, to_string((*types)[i]), to_string(expected[i]));
    }
  }

  Graph graph_;
  const AxisCut& cut_;
  int64_t ranks_;
  size_t global_;  // so many values are there before
  std::vector<std::vector<NodeId>> readers_;
  std::vector<Layout> lies_;  // by value, of what now_ has
  std::vector<Layout> made_;  // by value, of what its node makes
  std::vector<std::optional<Layout>> hints_;
  std::vector<bool> is_seed_, read_whole_;
  int32_t visited_ = 0;              // nodes before this one
  std::vector<ValueId> now_;         // what stands for a value
  std::map<int32_t, Layout> fixed_;  // by value that a node makes: what its readers get
  std::map<Key, ValueId> converted_;
  std::map<Region, ValueId> own_number_;  // along the axis
  std::vector<NodeId> put_together_;
  std::vector<Node> nodes_;
  std::vector<NodeId> was_;  // by position in nodes_; invalid: a conversion
  std::vector<Conversion> conversions_;
};

}  // namespace

// The ops that do the same in steps stand for the nodes.
Graph taken_apart(Graph graph, const std::vector<NodeId>& which) {
  std::vector<Node> nodes;
  const auto append = [&](Node node) {
    for (ValueId output : node.outputs) graph.value(output).producer = NodeId(nodes.size());
    nodes.push_back(std::move(node));
  };
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (std::find(which.begin(), which.end(), NodeId(i)) == which.end()) {
      append(std::move(graph.nodes[i]));
      continue;
    }
    const Node whole = graph.nodes[i];
    const OpDef::Steps apart = find_op(whole.op)->apart(use_of(graph, whole));
    std::vector<std::vector<ValueId>> made;
    for (size_t s = 0; s < apart.steps.size(); ++s) {
      const OpDef::Step& step = apart.steps[s];
      Node node = whole;
      node.op = step.op;
      node.attrs = step.attrs;
      node.inputs.clear();
      node.outputs.clear();
      for (const OpDef::Operand& from : step.inputs) {
        const auto at = static_cast<size_t>(from.index);
        node.inputs.push_back(from.step < 0 ? whole.inputs[at]
                                            : made[static_cast<size_t>(from.step)][at]);
      }
      const auto types = find_op(node.op)->types(use_of(graph, node));
      PIPER_CHECK(types.ok(), "{} of {}: {}", node.op, whole.op, types.error().message);
      for (size_t o = 0; o < types->size(); ++o) {
        const auto own =
            std::find_if(apart.outputs.begin(), apart.outputs.end(), [&](const auto& x) {
              return x.step == static_cast<int>(s) && x.index == static_cast<int>(o);
            });
        if (own != apart.outputs.end()) {
          node.outputs.push_back(whole.outputs[static_cast<size_t>(own - apart.outputs.begin())]);
        } else {
          Value value;
          value.name = fmt::format("{}/{}", whole.name, node.op);
          value.type = (*types)[o];
          value.layout = graph.value(whole.outputs[0]).layout;  // of the batch: as its rows
          node.outputs.push_back(graph.add_value(std::move(value)));
        }
        graph.value(node.outputs.back()).output_index = static_cast<int>(o);
      }
      made.push_back(node.outputs);
      append(std::move(node));
    }
  }
  graph.nodes = std::move(nodes);
  return graph;
}

Result<ShardedGraph> shard_axis(Graph graph, const AxisCut& cut) {
  PIPER_ASSIGN(graph, pad(std::move(graph), cut));
  const std::vector<NodeId> whole = AxisWalk(graph, cut).find_whole();
  if (!whole.empty()) graph = taken_apart(std::move(graph), whole);
  return AxisWalk(std::move(graph), cut).run();
}

}  // namespace piper
