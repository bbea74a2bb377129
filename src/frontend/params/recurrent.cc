// The parameters of torch.nn's LSTM, GRU and RNN: an exporter folds those of both directions into
// one tensor, whose gates stand in ONNX's order. They come apart again, and nodes join them as it
// did.
#include <algorithm>
#include <charconv>
#include <numeric>

#include "claims.h"
#include "piper/frontend/onnx.h"

namespace piper::onnx_import {
namespace {

struct GateOrder {
  std::string_view op;
  std::vector<int64_t> order;  // by gate of ONNX, which of PyTorch's it is
};
const GateOrder* gate_order_of(const OnnxNode& node) {
  static const GateOrder kKinds[] = {{"LSTM", {0, 3, 1, 2}}, {"GRU", {1, 0, 2}}, {"RNN", {0}}};
  for (const GateOrder& kind : kKinds)
    if (node.domain.empty() && node.op == kind.op) return &kind;
  return nullptr;
}

// W, R and B of a node: the stems of the parameters in each direction's part.
const std::vector<std::string_view> kStems[] = {
    {}, {"weight_ih"}, {"weight_hh"}, {"bias_ih", "bias_hh"}};
constexpr size_t kOperands = 4;

class RecurrentSeparation {
 public:
  RecurrentSeparation(OnnxModel& model, std::vector<std::string>& scopes)
      : model_(model), scopes_(scopes) {
    for (const OnnxNode& node : model.nodes)
      for (const std::string& input : node.inputs) ++readers_[input];
  }

  void run() {
    std::map<std::pair<std::string, std::string>, int64_t> layers;  // by scope and op: seen so far
    for (size_t n = 0; n < model_.nodes.size(); ++n) {
      const GateOrder* kind = gate_order_of(model_.nodes[n]);
      if (!kind) continue;
      const int64_t layer = layers[{scopes_[n], model_.nodes[n].op}]++;
      for (size_t i = 1; i < std::min(kOperands, model_.nodes[n].inputs.size()); ++i)
        n += separate(n, i, *kind, layer);
    }
  }

 private:
  OnnxTensor* folded(const std::string& name) {
    const auto found = std::find_if(model_.initializers.begin(), model_.initializers.end(),
                                    [&](const OnnxTensor& t) { return t.name == name; });
    const bool fits = found != model_.initializers.end() && readers_[name] == 1 &&
                      info(found->type.dtype).is_float && !found->type.shape.empty();
    return fits ? &*found : nullptr;
  }

  // Returns what comes before and after the stem of a parameter's name: "encoder.rnn." and "_l1".
  // The newer exporter lists what it folded; the older one's name says that it did.
  std::optional<std::pair<std::string, std::string>> around(size_t n, const OnnxTensor& t,
                                                            std::string_view stem,
                                                            int64_t layer) const {
    for (const std::string& name : t.folded_from) {
      const size_t at = name.rfind('.') == name.npos ? 0 : name.rfind('.') + 1;
      std::string_view leaf = std::string_view(name).substr(at);
      if (!leaf.starts_with(std::string(stem) + "_l") || leaf.ends_with("_reverse")) continue;
      return std::pair(name.substr(0, at), std::string(leaf.substr(stem.size())));
    }
    const OnnxNode& node = model_.nodes[n];
    if (!t.name.starts_with(fmt::format("onnx::{}_", node.op))) return std::nullopt;
    std::string module = scopes_[n];
    std::replace(module.begin(), module.end(), '/', '.');
    return std::pair(module.empty() ? "" : module + ".", fmt::format("_l{}", layer));
  }

  // Separates an operand. Returns how many nodes were put before the node.
  size_t separate(size_t n, size_t input, const GateOrder& kind, int64_t layer) {
    const std::string name = model_.nodes[n].inputs[input];
    OnnxTensor* t = folded(name);
    const auto& stems = kStems[input];
    const auto gates = static_cast<int64_t>(kind.order.size() * stems.size());
    const auto names = t ? around(n, *t, stems[0], layer) : std::nullopt;
    if (!names || t->type.shape.size() != (input == 3 ? 2u : 3u) || t->type.shape[0] > 2 ||
        num_elements(t->type.shape) == 0 || t->type.shape[1] % gates != 0)
      return 0;
    const OnnxTensor whole = *t;
    const size_t first = model_.nodes.size();
    std::vector<std::string> directions;
    for (int64_t d = 0; d < whole.type.shape[0]; ++d) {
      std::vector<std::string> parts;
      for (size_t s = 0; s < stems.size(); ++s)
        parts.push_back(part(n, whole, d, static_cast<int64_t>(s), kind,
                             fmt::format("{}{}{}{}", names->first, stems[s], names->second,
                                         d == 0 ? "" : "_reverse")));
      Shape shape = whole.type.shape;
      shape[0] = 1;
      directions.push_back(reshaped(n, joined(n, parts), shape));
    }
    model_.nodes[n].inputs[input] = joined(n, directions);
    std::erase_if(model_.initializers, [&](const OnnxTensor& each) { return each.name == name; });
    const size_t count = model_.nodes.size() - first;
    std::rotate(model_.nodes.begin() + static_cast<int64_t>(n),
                model_.nodes.begin() + static_cast<int64_t>(first), model_.nodes.end());
    scopes_.insert(scopes_.begin() + static_cast<int64_t>(n), count, std::string(scopes_[n]));
    return count;
  }

  // Adds a parameter with its gates in ONNX's order, and returns its name.
  std::string part(size_t n, const OnnxTensor& whole, int64_t direction, int64_t which,
                   const GateOrder& kind, const std::string& name) {
    const auto gates = static_cast<int64_t>(kind.order.size());
    Shape shape(whole.type.shape.begin() + 1, whole.type.shape.end());
    shape[0] /= static_cast<int64_t>(whole.type.shape.size() == 2 ? 2 : 1);
    const int64_t size = shape[0] / gates;
    std::vector<int64_t> rows;  // of the parameter, in the file's order
    for (const int64_t gate : kind.order)
      for (int64_t r = 0; r < size; ++r) rows.push_back(gate * size + r);
    const auto row_bytes =
        static_cast<size_t>(num_elements(shape) / shape[0] * info(whole.type.dtype).bytes);
    const std::byte* from = whole.data.data + static_cast<size_t>(direction) * whole.data.size /
                                                  static_cast<size_t>(whole.type.shape[0]);
    from += static_cast<size_t>(which * shape[0]) * row_bytes;
    std::vector<std::byte> bytes(rows.size() * row_bytes);
    for (size_t r = 0; r < rows.size(); ++r)
      std::copy_n(from + r * row_bytes, row_bytes,
                  bytes.begin() + static_cast<int64_t>(static_cast<size_t>(rows[r]) * row_bytes));
    OnnxTensor made;
    made.name = name;
    made.type = {whole.type.dtype, shape};
    made.data = Bytes::copy_of(bytes.data(), bytes.size());
    model_.initializers.push_back(std::move(made));
    if (gates == 1) return name;
    return add(n, "Gather", {name, integers(name + "/rows", rows)}, name + "/gates", "axis");
  }

  std::string joined(size_t n, const std::vector<std::string>& parts) {
    return parts.size() == 1 ? parts[0] : add(n, "Concat", parts, parts[0] + "/joined", "axis");
  }
  std::string reshaped(size_t n, const std::string& x, const Shape& shape) {
    return add(n, "Reshape", {x, integers(x + "/shape", shape)}, x + "/direction", "");
  }

  std::string integers(const std::string& name, const std::vector<int64_t>& values) {
    OnnxTensor made;
    made.name = name;
    made.type = {DType::kI64, {static_cast<int64_t>(values.size())}};
    made.data = bytes_of(values);
    model_.initializers.push_back(std::move(made));
    return name;
  }

  // Adds a node of the call that node n is of, and returns the name of its result.
  std::string add(size_t n, std::string op, std::vector<std::string> inputs, std::string output,
                  std::string axis) {
    OnnxNode node;
    node.name = model_.nodes[n].name + "/" + output;
    node.op = std::move(op);
    node.inputs = std::move(inputs);
    node.outputs = {output};
    if (!axis.empty()) node.attrs = {{std::move(axis), int64_t{0}}};
    node.metadata = model_.nodes[n].metadata;
    model_.nodes.push_back(std::move(node));
    return output;
  }

  OnnxModel& model_;
  std::vector<std::string>& scopes_;
  std::map<std::string, int> readers_;
};

}  // namespace

void separate_recurrent(OnnxModel& model, std::vector<std::string>& scopes) {
  RecurrentSeparation(model, scopes).run();
}

}  // namespace piper::onnx_import
