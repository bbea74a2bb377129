// Zeros behind dims that a cut does not divide, and behind the same loop of all ops that meet them.
//
// They never count: a loop that is added up adds products of zeros; what puts its elements in
// relation to one another (a cross-entropy's classes) reads the least number there, and makes
// zeros. So gradients are zero there, and what is updated stays zero.
#include "pad.h"

#include <algorithm>
#include <map>

#include "letters.h"

namespace piper {
namespace {

// No infinity, of which differences are no numbers, and one that 16 bits hold: e to the power of it
// is 0.
constexpr double kLeast = -60000;

class Padding {
 public:
  Padding(Graph graph, const AxisCut& cut)
      : graph_(std::move(graph)), cut_(cut), marks_(graph_.values.size()) {}

  Result<Graph> run() {
    for (const ShardSeed& seed : cut_.seeds) begin(seed);
    if (!changed_) return std::move(graph_);
    while (changed_) {
      changed_ = false;
      for (const Node& node : graph_.nodes) spread(node);
    }
    for (size_t n = 0; n < graph_.nodes.size(); ++n) PIPER_TRY(check(NodeId(n)));
    for (const StateUpdate& update : graph_.updates)
      if (marks_[update.state.index()] && !marks_[update.next.index()].zero)
        return refuse("its update", update.state, marks_[update.state.index()]);
    for (size_t v = 0; v < marks_.size(); ++v)
      if (marks_[v] && graph_.values[v].kind == ValueKind::kState && !graph_.values[v].over.empty())
        return refuse("blocks over another axis", ValueId(v), marks_[v]);
    localise();
    mask();
    return std::move(graph_);
  }

 private:
  struct Mark {
    int dim = -1;
    int64_t there = 0, extent = 0;  // without the zeros, and with them
    bool zero = false;              // whether they are
    const ShardSeed* seed = nullptr;
    explicit operator bool() const { return dim >= 0; }
  };
  void begin(const ShardSeed& seed) {
    if (!seed.pad || seed.dim < 0) return;
    const Shape& shape = graph_.value(seed.value).type.shape;
    const int64_t extent = shape[static_cast<size_t>(seed.dim)];
    if (extent % cut_.ranks == 0) return;
    marks_[seed.value.index()] = {seed.dim, extent, round_up(extent, cut_.ranks), true, &seed};
    changed_ = true;
  }
  static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

  // The dim that the letter has alone.
  static int dim_of(const std::vector<LoopRule::Dim>& dims, char letter) {
    for (size_t d = 0; d < dims.size(); ++d)
      if (dims[d] == LoopRule::Dim{letter}) return static_cast<int>(d);
    return -1;
  }

  // The loop of the op that goes on into zeros; 0: none, '?': only a part of a dim does.
  char letter_of(const Node& node, const LoopRule& rule, Mark& mark) const {
    const auto find = [&](const std::vector<ValueId>& ids, const auto& operands) {
      for (size_t i = 0; i < ids.size(); ++i) {
        if (!ids[i].valid() || !marks_[ids[i].index()]) continue;
        mark = marks_[ids[i].index()];
        const LoopRule::Dim& dim = operands[i][static_cast<size_t>(mark.dim)];
        return dim.size() == 1 ? dim[0] : '?';
      }
      return '\0';
    };
    const char letter = find(node.inputs, rule.inputs);
    return letter ? letter : find(node.outputs, rule.outputs);
  }

  void spread(const Node& node) {
    Mark mark;
    const LoopRule rule = loops_of(graph_, node).rule;
    const char letter = letter_of(node, rule, mark);
    if (letter == 0) return;
    const auto set = [&](const std::vector<ValueId>& ids, const auto& operands) {
      for (size_t i = 0; i < ids.size(); ++i) {
        if (!ids[i].valid() || marks_[ids[i].index()]) continue;
        const ValueKind kind = graph_.value(ids[i]).kind;
        const int dim = dim_of(operands[i], letter);
        if (dim < 0 || (kind != ValueKind::kState && kind != ValueKind::kNode)) continue;
        marks_[ids[i].index()] = {dim, mark.there, mark.extent, kind == ValueKind::kState,
                                  mark.seed};
        changed_ = true;
      }
    };
    set(node.inputs, rule.inputs);
    set(node.outputs, rule.outputs);
  }

  // All operands of the loop must go on into zeros, and what is made of these must be none that
  // counts.
  Status check(NodeId id) {
    Node& node = graph_.node(id);
    Mark mark;
    const Loops loops = loops_of(graph_, node);
    const char letter = letter_of(node, loops.rule, mark);
    if (letter == 0) return ok_status();
    bool any_zero = false, all_zero = true, reads_any = false;
    std::vector<bool> zero(node.inputs.size());
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!node.inputs[i].valid()) continue;
      const Mark& known = marks_[node.inputs[i].index()];
      const bool reads = occurrences(loops.input(i), letter) > 0;
      if (reads != static_cast<bool>(known) ||
          (known && dim_of(loops.rule.inputs[i], letter) != known.dim))
        return refuse(node, node.inputs[i], mark);
      reads_any = reads_any || reads;
      zero[i] = known && known.zero;
      any_zero = any_zero || zero[i];
      all_zero = all_zero && (zero[i] || !reads);
    }
    const bool masked = is_whole_letter(loops.rule, letter);
    if (masked) PIPER_TRY(mask_input(id, loops, letter, mark));
    const bool indexed = std::any_of(loops.rule.firsts.begin(), loops.rule.firsts.end(),
                                     [&](const auto& first) { return first.first == letter; });
    if (indexed) tell_whole(node, loops, letter);
    const bool scattered = indexed && !reads_any;  // no index is one behind the end
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      if (occurrences(loops.output(o), letter) > 0)
        marks_[node.outputs[o].index()].zero = masked || scattered ||
                                               (node.pass == Pass::kU && all_zero) ||
                                               keeps_zeros(loops, letter, zero);
      else if (!masked && (!any_zero || loops.rule.reduces != LoopRule::kSum))
        return refuse(node, node.inputs[0], mark);
    }
    return ok_status();
  }

  static bool is_whole_letter(const LoopRule& rule, char letter) {
    return rule.whole.find(letter) != std::string::npos;
  }

  // An op that is linear in operands which are zero there makes zeros.
  static bool keeps_zeros(const Loops& loops, char letter, const std::vector<bool>& zero) {
    const auto are_zero = [&](const std::vector<int>& set) {
      return std::all_of(set.begin(), set.end(), [&](int i) {
        return zero[static_cast<size_t>(i)] &&
               occurrences(loops.input(static_cast<size_t>(i)), letter) > 0;
      });
    };
    return std::any_of(loops.rule.linear.begin(), loops.rule.linear.end(), are_zero);
  }

  // Indices are those of what is there.
  void tell_whole(Node& node, const Loops& loops, char letter) const {
    for (const auto& [name, size] : loops.rule.sizes)
      if (name == letter) node.attrs.set("whole", size);
  }

  Status mask_input(NodeId id, const Loops& loops, char letter, const Mark& mark) {
    const Node& node = graph_.node(id);
    const int last = static_cast<int>(loops.types.inputs[0].shape.size()) - 1;
    if (!loops.def->least_is_absent || dim_of(loops.rule.inputs[0], letter) != last)
      return refuse(node, node.inputs[0], mark);
    tell_whole(graph_.node(id), loops, letter);
    masked_.push_back(id);
    return ok_status();
  }

  Error refuse(const Node& node, ValueId operand, const Mark& mark) const {
    return refuse(
        fmt::format("{}{}", node.op, node.scope.empty() ? "" : " in " + quote_control(node.scope)),
        operand, mark);
  }
  Error refuse(const std::string& reader, ValueId operand, const Mark& mark) const {
    const auto& [value, dim, at, padded, zigzag] = *mark.seed;
    const Value& seed = graph_.value(value);
    return fail(at, "dim {} of '{}' ({}) cannot be padded for {} ranks over '{}'", dim,
                quote_control(seed.name), to_string(seed.type), cut_.ranks, cut_.name)
        .with_note(fmt::format("elements behind the end of '{}' ({}) would count in {}",
                               quote_control(graph_.value(operand).name),
                               to_string(graph_.value(operand).type), reader));
  }

  // Attributes first: they need all types as they were.
  void localise() {
    const auto padded = [&](ValueId id) {
      Shape shape = graph_.value(id).type.shape;
      const Mark& mark = marks_[id.index()];
      if (mark) shape[static_cast<size_t>(mark.dim)] = mark.extent;
      return shape;
    };
    for (Node& node : graph_.nodes) {
      const OpDef* def = find_op(node.op);
      std::vector<Shape> shapes;
      bool grows = false;
      for (ValueId id : node.outputs) {
        shapes.push_back(padded(id));
        grows = grows || marks_[id.index()];
      }
      if (!grows || !def->localise) continue;
      node.attrs = def->localise(use_of(graph_, node), shapes);
    }
    for (size_t v = 0; v < marks_.size(); ++v) {
      if (!marks_[v]) continue;
      Value& value = graph_.values[v];
      if (value.kind == ValueKind::kState) value.unpadded = value.type.shape;
      value.type.shape = padded(ValueId(v));
    }
  }

  // The least number is added behind the end, once for all that read the value.
  void mask() {
    std::map<int32_t, ValueId> made;
    const std::vector<Node> before = std::exchange(graph_.nodes, {});
    for (size_t n = 0; n < before.size(); ++n) {
      Node node = before[n];
      if (std::find(masked_.begin(), masked_.end(), NodeId(n)) != masked_.end()) {
        ValueId& masked = made[node.inputs[0].value];
        if (!masked.valid()) masked = add_mask(node.inputs[0], node);
        node.inputs[0] = masked;
      }
      append(std::move(node));
    }
  }

  void append(Node node) {
    for (ValueId output : node.outputs) graph_.value(output).producer = NodeId(graph_.nodes.size());
    graph_.nodes.push_back(std::move(node));
  }

  ValueId add_mask(ValueId read, const Node& reader) {
    const Value source = graph_.value(read);
    const Mark mark = marks_[read.index()];
    const auto add = [&](std::string_view op, std::vector<ValueId> inputs, Attrs attrs,
                         const TensorType& type, const Layout& layout) {
      Node node = reader;
      node.op = op;
      node.name = fmt::format("{}/{}.{}", source.name, cut_.name, op);
      node.attrs = std::move(attrs);
      node.inputs = std::move(inputs);
      Value value;
      value.name = node.name;
      value.type = type;
      value.layout = layout;
      if (type == source.type) value.over = source.over;
      node.outputs = {graph_.add_value(std::move(value))};
      const ValueId made = node.outputs[0];
      append(std::move(node));
      return made;
    };
    const DType dtype = source.type.dtype;
    const ValueId nothing = add(
        "Fill", {},
        {{"shape", Shape{mark.there}}, {"value", 0.0}, {"dtype", std::string(info(dtype).name)}},
        {dtype, {mark.there}}, {});
    const ValueId least = add("Pad", {nothing},
                              {{"before", std::vector<int64_t>{0}},
                               {"after", std::vector{mark.extent - mark.there}},
                               {"value", kLeast}},
                              {dtype, {mark.extent}}, {});
    return add("Add", {read, least}, {}, source.type, source.layout);
  }

  Graph graph_;
  const AxisCut& cut_;
  std::vector<Mark> marks_;  // by value
  bool changed_ = false;
  std::vector<NodeId> masked_;  // these read the least number
};

}  // namespace

Result<Graph> pad(Graph graph, const AxisCut& cut) { return Padding(std::move(graph), cut).run(); }

}  // namespace piper
