// Cuts a graph over one mesh axis: chooses a layout for each node and inserts collectives.
#include "axis_walk.h"
#include "pad.h"

namespace piper {

std::vector<NodeId> AxisWalk::find_gathered() {
  for (const ShardSeed& seed : cut_.seeds)
    if (!seed_layout_of(seed)) return {};
  for (size_t i = 0; i < graph_.nodes.size(); ++i) visit(NodeId(i));
  return std::move(gathered_);
}

Result<ShardedGraph> AxisWalk::run() {
  for (const ShardSeed& seed : cut_.seeds) PIPER_TRY(seed_layout_of(seed));
  bool backward = false;
  const size_t count = graph_.nodes.size();
  for (size_t i = 0; i < count; ++i) {
    if (!backward && is_backward(graph_.nodes[i])) {
      backward = true;
      for (const Param& param : graph_.params)
        if (param.gradient.valid() && layout_[param.value.index()].kind == kCut)
          hint(param.gradient, layout_[param.value.index()]);
    }
    visit(NodeId(i));
    if (error_) return *std::move(error_);
  }
  // This lists the readers by their places among the nodes that are made.
  std::vector<NodeId> now(count);
  for (size_t n = 0; n < source_node_.size(); ++n)
    if (source_node_[n].valid()) now[source_node_[n].index()] = NodeId(n);
  for (Conversion& conversion : conversions_) conversion.reader = now[conversion.reader.index()];
  end_step();
  localise_all();
  return ShardedGraph{std::move(graph_), std::move(conversions_)};
}

// The numbers of several stretches are those of one that axes before have left, or these are cut.
bool AxisWalk::may_begin(const Loops& loops, size_t first, const LoopCut& cut) {
  const bool told = first < loops.types.present.size() && loops.types.present[first] &&
                    !loops.types.inputs[first].shape.empty();
  if (told) return !cut.mirrored && loops.types.inputs[first].shape[0] == cut.outer;
  return cut.outer == 1 || loops.rule.stretches;
}

bool AxisWalk::is_legal(const Loops& loops, const LoopCut& cut) const {
  const LoopRule& rule = loops.rule;
  if (rule.whole.find(cut.letter) != std::string::npos) return false;
  for (const auto& [letter, input] : rule.firsts)
    if (letter == cut.letter && !may_begin(loops, static_cast<size_t>(input), cut)) return false;
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

void AxisWalk::visit(NodeId id) {
  visited_ = id.value;
  const Node node = graph_.node(id);
  const Loops loops = loops_of(graph_, node);
  if (const AttentionCut* how = attention_of(node)) {
    if (!error_) lower_attention(id, node, loops, *how);
    return;
  }
  if (only_moves(loops, node) && may_adopt(node.inputs[0]) && !hints_[node.outputs[0].index()])
    hints_[node.outputs[0].index()] = preferred_layout(node.outputs[0]);
  note_route(node, loops);
  std::vector<Choice> choices;
  if (std::optional<Choice> gradient = gradient_choice(node)) {
    choices = {*std::move(gradient)};
  } else if (is_touched(node)) {
    for (ValueId output : node.outputs)
      if (loops.is_product() && !hints_[output.index()])
        hints_[output.index()] = preferred_layout(output);
    if (std::optional<Choice> terms = terms_choice(node, loops)) {
      choices = {*std::move(terms)};
    } else {
      for (const LoopCut& cut : cuts_of(node, loops)) choices.push_back(choose(node, loops, cut));
      if (const std::optional<Choice> rows = routed_choice(node, loops)) choices.push_back(*rows);
      const bool must = loops.def->loops && loops.is_product() && !choices.empty();
      if (!must) choices.push_back(choose(node, loops, {}));
    }
  } else {
    choices = {choose(node, loops, {})};
  }
  const Choice& best = *std::min_element(
      choices.begin(), choices.end(), [](const Choice& a, const Choice& b) { return a.before(b); });
  for (size_t i = 0; loops.def->apart && i < node.inputs.size(); ++i)
    if (node.inputs[i].valid() && layout_[node.inputs[i].index()].kind == kCut &&
        best.needs[i].kind == kWhole && !loops.def->apart(loops.types).steps.empty())
      gathered_.push_back(id);
  rewrite(id, node, best);
}

std::optional<AxisWalk::Choice> AxisWalk::gradient_choice(const Node& node) const {
  if (!is_step_sum(node)) return std::nullopt;
  const auto is_own = [&](const Param& param) { return param.gradient == node.outputs[0]; };
  const auto param = std::find_if(graph_.params.begin(), graph_.params.end(), is_own);
  if (param == graph_.params.end()) return std::nullopt;
  const Layout& lies = layout_[param->value.index()];
  const bool terms = lies.kind == kWhole &&
                     std::all_of(node.inputs.begin(), node.inputs.end(),
                                 [&](ValueId id) { return layout_[id.index()].kind == kTerms; });
  return Choice{{}, std::vector(node.inputs.size(), terms ? Layout{kTerms} : lies), {lies}};
}

bool AxisWalk::is_touched(const Node& node) const {
  const auto lies = [&](ValueId id) { return id.valid() && layout_[id.index()].kind != kWhole; };
  const auto hinted = [&](ValueId id) { return hints_[id.index()].has_value(); };
  return std::any_of(node.inputs.begin(), node.inputs.end(), lies) ||
         std::any_of(node.outputs.begin(), node.outputs.end(), hinted);
}

std::vector<LoopCut> AxisWalk::cuts_of(const Node& node, const Loops& loops) const {
  std::vector<LoopCut> cuts;
  const auto add = [&](const std::optional<LoopCut>& cut) {
    if (cut && is_legal(loops, *cut) && std::find(cuts.begin(), cuts.end(), *cut) == cuts.end())
      cuts.push_back(*cut);
  };
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (!node.inputs[i].valid()) continue;
    const Layout& lies = layout_[node.inputs[i].index()];
    const auto& wanted = hints_[node.inputs[i].index()];
    if (lies.kind == kCut) add(cut_of(loops.input(i), lies, ranks_));
    if (lies.kind == kRouted)
      add(cut_of(loops.input(i), blocks_of_rows(node.inputs[i], lies), ranks_));
    if (lies.kind == kTerms && wanted) add(cut_of(loops.input(i), *wanted, ranks_));
  }
  for (size_t o = 0; o < node.outputs.size(); ++o)
    if (const auto& wanted = hints_[node.outputs[o].index()])
      add(cut_of(loops.output(o), *wanted, ranks_));
  return cuts;
}

ValueId AxisWalk::state_of(ValueId id) const {
  const Value* value = &graph_.value(id);
  for (; value->kind == ValueKind::kNode; value = &graph_.value(id)) {
    const Node& node = graph_.node(value->producer);
    if (node.op != "Cast") return {};
    id = node.inputs[0];
  }
  return value->kind == ValueKind::kState ? id : ValueId();
}

AxisWalk::Choice AxisWalk::choose(const Node& node, const Loops& loops,
                                  const std::optional<LoopCut>& cut) const {
  Choice choice{cut};
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const auto layout =
        cut && node.inputs[i].valid() ? layout_of(loops.input(i), *cut) : std::optional<Layout>();
    choice.needs.push_back(layout.value_or(Layout{}));
    if (!node.inputs[i].valid()) continue;
    const double bytes = cost(node.inputs[i], choice.needs.back());
    choice.bytes += bytes;
    const ValueId state = state_of(node.inputs[i]);
    const bool of_strategy = state.valid() && is_seed_[state.index()];
    const bool cuts_whole = (loops.is_product() || node.pass == Pass::kU) &&
                            choice.needs.back().kind == kCut &&
                            layout_[node.inputs[i].index()].kind == kWhole;
    choice.against += of_strategy && (bytes > 0 || cuts_whole);
  }
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    const auto layout = cut ? layout_of(loops.output(o), *cut) : std::optional(Layout{});
    const bool sums = loops.rule.reduces == LoopRule::kSum;
    choice.makes.push_back(layout.value_or(Layout{sums ? kTerms : kGreatest}));
    const auto& wanted = hints_[node.outputs[o].index()];
    choice.against += loops.is_product() && is_partial(choice.makes.back()) &&
                      adds_up(node.outputs[o]) && is_kept_cut(node.outputs[o]);
    if ((wanted || is_partial(choice.makes.back())) && !is_contribution(node.outputs[o]))
      choice.bytes +=
          cost_of(type_of(node.outputs[o]), choice.makes.back(), wanted.value_or(Layout{}));
  }
  return choice;
}

bool AxisWalk::adds_up(ValueId id) const {
  const auto& by = readers_[id.index()];
  return !by.empty() && std::all_of(by.begin(), by.end(), [&](NodeId reader) {
    return is_step_sum(graph_.node(reader));
  });
}

std::optional<AxisWalk::Choice> AxisWalk::terms_choice(const Node& node, const Loops& loops) const {
  const bool ends = is_step_sum(node);
  if (ends && is_kept_cut(node.outputs[0])) return std::nullopt;
  std::vector<int> terms;
  for (size_t i = 0; i < node.inputs.size(); ++i)
    if (node.inputs[i].valid() && layout_[node.inputs[i].index()].kind == kTerms)
      terms.push_back(static_cast<int>(i));
  if (terms.empty()) return std::nullopt;
  const auto& sets = loops.rule.linear;
  if (std::find(sets.begin(), sets.end(), terms) == sets.end()) return std::nullopt;
  const bool moves = node.outputs.size() == 1 &&
                     num_elements(type_of(node.outputs[0]).shape) <=
                         num_elements(type_of(node.inputs[static_cast<size_t>(terms[0])]).shape);
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const ValueId id = node.inputs[i];
    const bool is_term = std::find(terms.begin(), terms.end(), static_cast<int>(i)) != terms.end();
    if (!id.valid() || is_term) continue;
    const bool scales = num_elements(type_of(id).shape) == 1 || loops.def->collective;
    if (!moves || !scales || layout_[id.index()].kind != kWhole) return std::nullopt;
  }
  if (terms.size() == 1 && !moves) return std::nullopt;
  Choice choice;
  choice.needs.resize(node.inputs.size());
  for (int i : terms) choice.needs[static_cast<size_t>(i)] = {kTerms};
  choice.makes.assign(node.outputs.size(), Layout{ends ? kWhole : kTerms});
  return choice;
}

void AxisWalk::rewrite(NodeId id, const Node& node, const Choice& choice) {
  sum_numbers(id, node, choice);
  std::vector<ValueId> inputs = node.inputs;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].valid()) inputs[i] = read(inputs[i], choice.needs[i], id);
  for (size_t i = 0; is_step_sum(node) && i < inputs.size(); ++i)  // no collective adds to it
    if (inputs[i] != current_value_[node.inputs[i].index()]) {
      const Node near = graph_.node(graph_.value(node.inputs[i]).producer);
      inputs[i] =
          add("Reshape", {inputs[i]}, {{"shape", type_of(inputs[i]).shape}}, near, choice.needs[i]);
    }
  Node made = node;
  made.inputs = std::move(inputs);
  if (choice.cut) place_first(made, loops_of(graph_, node).rule, *choice.cut);
  if (choice.cut && find_op(node.op)->draws >= 0) place_draw(made, choice.makes[0]);
  nodes_.push_back(std::move(made));
  source_node_.push_back(id);
  record_layouts(id, node, choice);
}

void AxisWalk::record_layouts(NodeId id, const Node& node, const Choice& choice) {
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    const ValueId output = node.outputs[o];
    layout_[output.index()] = made_layout_[output.index()] = choice.makes[o];
    if (choice.makes[o].kind == kTerms && !hints_[output.index()])
      hints_[output.index()] = preferred_layout(output);
    const auto fixed = fixed_layout_.find(output.value);
    if (fixed == fixed_layout_.end() || fixed->second == choice.makes[o]) continue;
    current_value_[output.index()] = convert(output, fixed->second, id);
    layout_[output.index()] = fixed->second;
  }
}

Attrs AxisWalk::first_of(const LoopCut& cut, int64_t extent, ValueId before) const {
  Attrs attrs{{"over", int64_t{cut_.axis}}, {"size", extent / (ranks_ * cut.outer)}};
  if (cut.outer == 1 || (before.valid() && !type_of(before).shape.empty())) return attrs;
  attrs.set("ranks", ranks_);
  attrs.set("outer", cut.outer);
  if (cut.mirrored) attrs.set("mirrored", int64_t{1});
  return attrs;
}

void AxisWalk::place_first(Node& node, const LoopRule& rule, const LoopCut& cut) {
  for (const auto& [letter, input] : rule.firsts) {
    if (letter != cut.letter) continue;
    const auto at = static_cast<size_t>(input);
    const int64_t size = size_of(rule, letter);
    if (node.inputs.size() <= at) node.inputs.resize(at + 1);
    ValueId first = add("OwnFirst", {}, first_of(cut, size, node.inputs[at]), node, {});
    if (node.inputs[at].valid()) first = add("Add", {node.inputs[at], first}, {}, node, {});
    node.inputs[at] = first;
    if (!node.attrs.find("whole")) node.attrs.set("whole", size);
  }
}

void AxisWalk::place_draw(Node& node, const Layout& lies) {
  if (lies.kind != kCut) return;
  const Shape& shape = type_of(node.outputs[0]).shape;
  const int64_t rows = stretches_of(shape, lies.dim, lies.outer);
  std::vector<int64_t> cuts = node.attrs.integers("cuts");
  cuts.insert(cuts.end(), {lies.mirrored ? -rows : rows, ranks_});
  node.attrs.set("cuts", std::move(cuts));
  Node near = node;
  near.pass = region_of(node).first;
  const ValueId own = own_first(near, {{"over", int64_t{cut_.axis}}, {"size", int64_t{1}}});
  node.inputs.resize(
      std::max(node.inputs.size(), static_cast<size_t>(find_op(node.op)->draws) + 3));
  node.inputs.push_back(own);
}

void AxisWalk::sum_numbers(NodeId id, const Node& node, const Choice& choice) {
  std::vector<ValueId> numbers;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const ValueId input = node.inputs[i];
    if (!input.valid() || layout_[input.index()].kind != kTerms || choice.needs[i].kind != kWhole)
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
        add("Reshape", {current_value_[number.index()]}, {{"shape", Shape{1}}}, node, {kTerms}));
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

ValueId AxisWalk::add(std::string_view op, const std::vector<ValueId>& inputs, Attrs attrs,
                      const Node& near, const Layout& layout) {
  Node node = node_beside(near, cut_.name, op, inputs, std::move(attrs));
  Value value{.name = fmt::format("{}{}", node.name, graph_.values.size()),
              .type = types_here(node)[0]};
  if (!inputs.empty()) value.layout = graph_.value(inputs[0]).layout;
  if (!inputs.empty()) value.over = graph_.value(inputs[0]).over;
  std::erase_if(value.over, [&](const AxisLayout& lies) { return lies.axis == cut_.axis; });
  add_layout(value, layout);
  const ValueId made = graph_.add_value(std::move(value));
  node.outputs = {made};
  nodes_.push_back(std::move(node));
  source_node_.emplace_back();
  return made;
}

TensorType AxisWalk::type_here(ValueId id) const {
  TensorType type = type_of(id);
  if (id.index() >= global_count_ || is_loaded_whole(id)) return type;
  const bool is_made = graph_.value(id).kind == ValueKind::kNode;
  type.shape = local(std::move(type.shape), (is_made ? made_layout_ : layout_)[id.index()]);
  return type;
}

std::vector<TensorType> AxisWalk::types_here(const Node& node) const {
  OpTypes use = use_of(graph_, node);
  for (size_t i = 0; i < node.inputs.size(); ++i)
    if (node.inputs[i].valid()) use.inputs[i] = type_here(node.inputs[i]);
  Result<std::vector<TensorType>> types = find_op(node.op)->types(use);
  PIPER_CHECK(types.ok(), "{} '{}': {}", node.op, node.name, types.error().message);
  return *std::move(types);
}

void AxisWalk::end_step() {
  const size_t before = conversions_.size();
  const auto finish = [&](ValueId& id, const Layout& to) {
    if (!id.valid()) return;
    const NodeId producer = graph_.value(id).producer;
    if (layout_[id.index()] != to && producer.valid())
      id = convert(id, to, producer);
    else
      id = current_value_[id.index()];
  };
  for (StateUpdate& update : graph_.updates) finish(update.next, layout_[update.state.index()]);
  for (Param& param : graph_.params) finish(param.gradient, layout_[param.value.index()]);
  finish(graph_.loss, {});
  finish(graph_.grad_norm, {});
  for (size_t c = before; c < conversions_.size(); ++c) conversions_[c].reader = {};
}

void AxisWalk::localise_all() {
  std::vector<Layout> made = made_layout_;
  for (size_t i = 0; i < global_count_; ++i)
    if (graph_.values[i].kind == ValueKind::kState) made[i] = layout_[i];
  for (size_t n = 0; n < nodes_.size(); ++n)
    if (source_node_[n].valid())
      localise(graph_, graph_.node(source_node_[n]), nodes_[n],
               [&](ValueId id) { return local(type_of(id).shape, made[id.index()]); });
  for (size_t i = 0; i < global_count_; ++i) {
    Value& value = graph_.values[i];
    value.type.shape = local(std::move(value.type.shape), made[i]);
    add_layout(value, made[i]);
  }
  graph_.nodes = std::move(nodes_);
  for (size_t n = 0; n < graph_.nodes.size(); ++n)
    for (size_t o = 0; o < graph_.nodes[n].outputs.size(); ++o) {
      Value& made = graph_.value(graph_.nodes[n].outputs[o]);
      made.producer = NodeId(n), made.output_index = static_cast<int>(o);
    }
  check_types(graph_, cut_.name);
}

Result<ShardedGraph> shard_axis(Graph graph, const AxisCut& how) {
  AxisCut cut = how;
  PIPER_ASSIGN(graph, pad(std::move(graph), cut));
  const std::vector<NodeId> whole = AxisWalk(graph, cut).find_gathered();
  if (!whole.empty()) graph = taken_apart(std::move(graph), whole);
  return AxisWalk(std::move(graph), cut).run();
}

}  // namespace piper
