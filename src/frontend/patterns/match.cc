// Looks at nodes, constants, products and sums for the patterns.
#include "match.h"

#include <cstring>

#include "piper/base/float16.h"

namespace piper::patterns {
namespace {

template <class T>
std::vector<double> numbers(const Value& value) {
  const auto* data = reinterpret_cast<const T*>(value.data.data);
  return {data, data + num_elements(value.type.shape)};
}
std::vector<double> halves(const Value& value) {  // 16-bit floats
  const auto* data = reinterpret_cast<const uint16_t*>(value.data.data);
  std::vector<double> all;
  for (int64_t i = 0; i < num_elements(value.type.shape); ++i)
    all.push_back(float_of_half(value.type.dtype, data[i]));
  return all;
}

// Products or sums that are seen through from one value. What is further up counts as one atom or
// term: else a chain would be walked again from each of its members, as deep as it is long.
constexpr int kMostOpened = 128;

}  // namespace

Matcher::Matcher(const Graph& graph)
    : graph_(graph), readers_(graph.values.size()), last_reader_(graph.values.size()) {
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (ValueId input : graph.nodes[i].inputs) {
      if (!input.valid()) continue;
      ++readers_[input.index()];
      last_reader_[input.index()] = NodeId(i);
    }
  }
  // What the graph gives away must stay.
  for (ValueId output : graph.outputs) ++readers_[output.index()];
  if (graph.loss.valid()) ++readers_[graph.loss.index()];
  for (const StateUpdate& update : graph.updates) ++readers_[update.next.index()];
}

const Node* Matcher::producer(ValueId id) const {
  if (!id.valid() || !graph_.value(id).producer.valid()) return nullptr;
  return &graph_.node(graph_.value(id).producer);
}

const Node* Matcher::sole(ValueId id, std::string_view op) const {
  const Node* node = producer(id);
  return node && node->op == op && readers_[id.index()] == 1 ? node : nullptr;
}

std::optional<double> Matcher::scalar(ValueId id) const {
  return num_elements(graph_.value(id).type.shape) == 1 ? number(id) : std::nullopt;
}

std::optional<double> Matcher::number(ValueId id) const {
  const Value& value = graph_.value(id);
  if (value.kind != ValueKind::kConstant || value.data.size == 0 || !value.data.data)
    return std::nullopt;
  const auto width = static_cast<size_t>(info(value.type.dtype).bytes);
  if (std::memcmp(value.data.data, value.data.data + width, value.data.size - width) != 0)
    return std::nullopt;
  if (value.type.dtype == DType::kF32) return *reinterpret_cast<const float*>(value.data.data);
  if (value.type.dtype == DType::kF64) return *reinterpret_cast<const double*>(value.data.data);
  if (!info(value.type.dtype).is_float) return std::nullopt;
  return float_of_half(value.type.dtype, *reinterpret_cast<const uint16_t*>(value.data.data));
}

std::optional<std::vector<double>> Matcher::elements(ValueId id) const {
  const Value& value = graph_.value(id);
  if (value.kind != ValueKind::kConstant || !value.data.data) return std::nullopt;
  if (value.type.dtype == DType::kF32) return numbers<float>(value);
  if (value.type.dtype == DType::kF64) return numbers<double>(value);
  if (value.type.dtype == DType::kBool) return numbers<uint8_t>(value);
  if (value.type.dtype == DType::kI64) return numbers<int64_t>(value);
  if (info(value.type.dtype).is_float) return halves(value);
  return std::nullopt;
}

Matcher::Product Matcher::product(ValueId id) const {
  Product product;
  int opened = 0;
  add_factors(id, true, opened, product);
  return product;
}

void Matcher::add_factors(ValueId id, bool root, int& opened, Product& product) const {
  if (const auto constant = scalar(id)) {
    product.factor *= *constant;
    return;
  }
  const Node* node = producer(id);
  const bool inside = node && (root || readers_[id.index()] == 1) && opened++ < kMostOpened;
  if (inside && node->op == "Mul") {
    add_factors(node->inputs[0], false, opened, product);
    add_factors(node->inputs[1], false, opened, product);
  } else if (inside && node->op == "Div" && scalar(node->inputs[1]) &&
             *scalar(node->inputs[1]) != 0) {
    product.factor /= *scalar(node->inputs[1]);
    add_factors(node->inputs[0], false, opened, product);
  } else {
    product.atoms.push_back(id);
  }
}

std::vector<ValueId> Matcher::sum(ValueId id) const {
  std::vector<ValueId> terms;
  int opened = 0;
  add_terms(id, true, opened, terms);
  return terms;
}

void Matcher::add_terms(ValueId id, bool root, int& opened, std::vector<ValueId>& terms) const {
  const Node* node = producer(id);
  if (node && node->op == "Add" && (root || readers_[id.index()] == 1) && opened++ < kMostOpened) {
    add_terms(node->inputs[0], false, opened, terms);
    add_terms(node->inputs[1], false, opened, terms);
  } else {
    terms.push_back(id);
  }
}

void become(Graph& graph, size_t index, const std::vector<ValueId>& made) {
  Node& node = graph.nodes[index];
  Node& composite = graph.node(graph.value(made[0]).producer);
  node.op = composite.op;
  node.attrs = composite.attrs;
  node.inputs = composite.inputs;
  for (size_t i = 1; i < made.size(); ++i) {
    node.outputs.push_back(made[i]);
    graph.value(made[i]).producer = NodeId(index);
  }
  // What is left makes a value that nothing reads.
  composite.op = "Reshape";
  composite.inputs = {node.outputs[0]};
  composite.outputs = {made[0]};
  composite.attrs = Attrs{{"shape", Shape(graph.value(made[0]).type.shape)}};
}

}  // namespace piper::patterns
