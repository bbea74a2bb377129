// Random models.
#pragma once

#include <google/protobuf/unknown_field_set.h>
#include <onnx/onnx_pb.h>

#include <random>
#include <set>

#include "piper/base/base.h"

namespace piper {

// An ONNX model that grows node by node.
class ModelMaker {
 public:
  struct Parameter {
    std::string name;
    Shape shape;
  };
  std::string bytes() const { return model_.SerializeAsString(); }
  // What the loss depends on; not buffers that forward changes.
  std::vector<Parameter> parameters() const {
    const std::set<std::string> used = used_names();
    const auto is_buffer = [&](const std::string& name) {
      return std::any_of(changed_.begin(), changed_.end(),
                         [&](const auto& each) { return each.first == name; });
    };
    std::vector<Parameter> found;
    for (const onnx::TensorProto& tensor : graph_.initializer())
      if (tensor.name()[0] != 'c' && used.count(tensor.name()) && !is_buffer(tensor.name()))
        found.push_back({tensor.name(), {tensor.dims().begin(), tensor.dims().end()}});
    return found;
  }

 protected:
  // Values that the loss is made of, by name.
  std::set<std::string> used_names() const {
    std::set<std::string> used{"loss"};
    for (int n = graph_.node_size() - 1; n >= 0; --n)
      if (const onnx::NodeProto& node = graph_.node(n); used.count(node.output(0)))
        used.insert(node.input().begin(), node.input().end());
    return used;
  }
  explicit ModelMaker(uint64_t seed) : random_(seed) {
    model_.set_ir_version(8);
    model_.add_opset_import()->set_version(18);
    graph_.set_name("random");
  }
  int64_t below(int64_t count) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(count));
  }
  // Of so many samples of that shape.
  void input(const std::string& name, const Shape& sample,
             onnx::TensorProto::DataType dtype = onnx::TensorProto::FLOAT) {
    onnx::ValueInfoProto& info = *graph_.add_input();
    info.set_name(name);
    auto& type = *info.mutable_type()->mutable_tensor_type();
    type.set_elem_type(dtype);
    type.mutable_shape()->add_dim()->set_dim_param("batch");
    for (int64_t dim : sample) type.mutable_shape()->add_dim()->set_dim_value(dim);
  }
  std::string parameter(const Shape& shape, float centre, float spread) {
    onnx::TensorProto& tensor = *graph_.add_initializer();
    tensor.set_name(fmt::format("{}.p{}", scope_, graph_.initializer_size()));
    tensor.set_data_type(onnx::TensorProto::FLOAT);
    for (int64_t dim : shape) tensor.add_dims(dim);
    std::uniform_real_distribution<float> noise(centre - spread, centre + spread);
    for (int64_t i = 0; i < num_elements(shape); ++i) tensor.add_float_data(noise(random_));
    return tensor.name();
  }
  std::string integers(const std::vector<int64_t>& values) {
    onnx::TensorProto& tensor = *graph_.add_initializer();
    tensor.set_name(fmt::format("c{}", graph_.initializer_size()));
    tensor.set_data_type(onnx::TensorProto::INT64);
    tensor.add_dims(static_cast<int64_t>(values.size()));
    for (int64_t value : values) tensor.add_int64_data(value);
    return tensor.name();
  }
  std::string scalar(onnx::TensorProto::DataType type, float value) {
    onnx::TensorProto& tensor = *graph_.add_initializer();
    tensor.set_name(fmt::format("c{}", graph_.initializer_size()));
    tensor.set_data_type(type);
    if (type == onnx::TensorProto::FLOAT) tensor.add_float_data(value);
    if (type == onnx::TensorProto::BOOL) tensor.add_int32_data(value != 0);
    return tensor.name();
  }
  onnx::NodeProto& node(const std::string& op, const std::vector<std::string>& inputs,
                        const std::string& output = "") {
    onnx::NodeProto& made = *graph_.add_node();
    made.set_op_type(op);
    for (const std::string& name : inputs) made.add_input(name);
    made.add_output(output.empty() ? fmt::format("v{}", graph_.node_size()) : output);
    made.set_name(fmt::format("/{}/{}_{}", scope_, op, graph_.node_size()));
    return made;
  }
  void attribute(onnx::NodeProto& node, const std::string& name, const std::vector<int64_t>& values,
                 bool list) {
    onnx::AttributeProto& attr = *node.add_attribute();
    attr.set_name(name);
    attr.set_type(list ? onnx::AttributeProto::INTS : onnx::AttributeProto::INT);
    if (!list) attr.set_i(values[0]);
    for (size_t i = 0; list && i < values.size(); ++i) attr.add_ints(values[i]);
  }
  std::string made(const std::string& op, const std::vector<std::string>& inputs) {
    return node(op, inputs).output(0);
  }
  std::string number(float value) { return scalar(onnx::TensorProto::FLOAT, value); }
  // Numbers that no parameter is made of: 1, 1/2, 1/3 …
  std::string constants(int64_t count) {
    onnx::AttributeProto value;
    value.set_name("value");
    value.set_type(onnx::AttributeProto::TENSOR);
    value.mutable_t()->set_data_type(onnx::TensorProto::FLOAT);
    value.mutable_t()->add_dims(count);
    for (int64_t i = 0; i < count; ++i)
      value.mutable_t()->add_float_data(1.0f / static_cast<float>(i + 1));
    onnx::NodeProto& at = node("Constant", {});
    *at.add_attribute() = value;
    return at.output(0);
  }
  // The rows, or columns, of a weight as unit vectors.
  std::string normed(const std::string& weight, int64_t dim) {
    const std::string square = made("Mul", {weight, weight});
    return made("Div", {weight, made("Sqrt", {made("ReduceSum", {square, integers({dim})})})});
  }
  // With the mean 0 and the deviation 1.
  std::string standardised(const std::string& weight) {
    const auto mean = [&](const std::string& of) {
      return made("ReduceMean", {of, integers({0, 1})});
    };
    const std::string centred = made("Sub", {weight, mean(weight)});
    const std::string variance =
        made("Add", {mean(made("Mul", {centred, centred})), number(1e-3f)});
    return made("Div", {centred, made("Sqrt", {variance})});
  }
  // A weight of that shape that parameters are combined to before it is used.
  static constexpr int64_t kWays = 10;
  std::string combined(int64_t way, int64_t rows, int64_t columns, float spread) {
    const auto weight = [&](const Shape& shape) { return parameter(shape, 0, spread); };
    const std::string first = way == 4 ? "" : weight({rows, columns});
    switch (way) {
      case 0:
        return made("Add", {first, weight({rows, columns})});
      case 1:
        return made("Sub", {first, weight({columns})});
      case 2:
        return made("Mul", {first, parameter({}, 1, 0.3f)});
      case 3: {  // of low rank, and scaled
        const std::string product = made("MatMul", {weight({rows, 2}), weight({2, columns})});
        return made("Add", {first, made("Mul", {product, number(0.5f)})});
      }
      case 4: {
        onnx::NodeProto& turned = node("Transpose", {weight({columns, rows})});
        attribute(turned, "perm", {1, 0}, true);
        const std::string rest = weight({rows * columns});
        return made("Add", {turned.output(0), made("Reshape", {rest, integers({rows, columns})})});
      }
      case 5:
        return made("Mul", {first, constants(columns)});
      case 6: {
        onnx::NodeProto& both = node("Concat", {first, weight({rows, columns})});
        attribute(both, "axis", {0}, false);
        return made("Slice", {both.output(0), integers({1}), integers({rows + 1}), integers({0})});
      }
      case 7:
        return made("Mul", {normed(first, 1), parameter({rows, 1}, 1, 0.3f)});
      case 8:
        return made("Mul",
                    {standardised(made("Add", {first, weight({rows, columns})})), number(0.2f)});
      default:
        return made("Add", {first, first});
    }
  }
  // Of [rows, width], with statistics of all rows and those that run.
  std::string batch_norm(const std::string& rows, int64_t width) {
    onnx::NodeProto& norm =
        node("BatchNormalization", {rows, parameter({width}, 1, 0.2f), parameter({width}, 0, 0.2f),
                                    parameter({width}, 0, 0), parameter({width}, 1, 0)});
    const std::string y = norm.output(0);
    norm.add_output(y + "_mean");
    norm.add_output(y + "_var");
    attribute(norm, "training_mode", {1}, false);
    return y;
  }
  // The mean of the squares is the loss, or what it is called.
  void squares(const std::string& error, const std::string& loss = "loss") {
    attribute(node("ReduceMean", {made("Mul", {error, error})}, loss), "keepdims", {0}, false);
  }
  // What is called "mean" and a penalty on a weight are the loss.
  void penalise(const std::string& weight) {
    const auto sum = [&](const std::string& of) {
      onnx::NodeProto& at = node("ReduceSum", {of});
      attribute(at, "keepdims", {0}, false);
      return at.output(0);
    };
    const std::string absolute = made("Mul", {sum(made("Abs", {weight})), number(0.003f)}),
                      squared = made("Mul", {sum(made("Mul", {weight, weight})), number(0.01f)});
    node("Add", {"mean", made("Add", {squared, absolute})}, "loss");
  }
  // A buffer that moves towards the mean of [rows, width], as the file of an exporter says it; what
  // it was before.
  std::string running_mean(const std::string& rows, int64_t width) {
    const std::string buffer = parameter({width}, 0, 0.2f);
    onnx::NodeProto& mean = node("ReduceMean", {rows, integers({0})});
    attribute(mean, "keepdims", {0}, false);
    const std::string next = made(
        "Add", {made("Mul", {buffer, number(0.9f)}), made("Mul", {mean.output(0), number(0.1f)})});
    changed_.emplace_back(buffer, next);
    return buffer;
  }
  void finish_with_loss() {
    onnx::ValueInfoProto& info = *graph_.add_output();
    info.set_name("loss");
    info.mutable_type()->mutable_tensor_type()->set_elem_type(onnx::TensorProto::FLOAT);
    info.mutable_type()->mutable_tensor_type()->mutable_shape();
    if (!changed_.empty()) say_changed();
    *model_.mutable_graph() = graph_;
  }

 private:
  void say_changed() {
    std::string inputs = "# inputs\n", outputs = "# outputs\n", list;
    const auto is_changed = [&](const std::string& name) {
      return std::any_of(changed_.begin(), changed_.end(),
                         [&](const auto& each) { return each.first == name; });
    };
    for (const onnx::TensorProto& tensor : graph_.initializer())
      if (tensor.name()[0] != 'c' && !is_changed(tensor.name()))
        list += fmt::format("{}{{\"name\": \"{}\"}}", list.empty() ? "" : ", ", tensor.name());
    for (const auto& [buffer, next] : changed_) {
      inputs += fmt::format("{0}: BUFFER target='{0}'\n", buffer);
      outputs += fmt::format("{}: BUFFER_MUTATION target='{}'\n", next, buffer);
    }
    const auto say = [&](const char* key, const std::string& value) {
      onnx::StringStringEntryProto entry;
      entry.set_key(key);
      entry.set_value(value);
      constexpr int kMetadata = 16;  // which older libraries of ONNX do not know
      graph_.GetReflection()->MutableUnknownFields(&graph_)->AddLengthDelimited(
          kMetadata, entry.SerializeAsString());
    };
    say("pkg.torch.export.ExportedProgram.graph_signature", inputs + outputs);
    say("piper.parameters", "[" + list + "]");
  }

 protected:
  std::vector<std::pair<std::string, std::string>> changed_;  // buffers, and what they become
  std::mt19937_64 random_;
  onnx::ModelProto model_;
  onnx::GraphProto graph_;
  std::string scope_;
};

// A chain of ops over values of [batch, width], with a mean of squares as its loss.
class RandomModel : public ModelMaker {
 public:
  explicit RandomModel(uint64_t seed) : ModelMaker(seed) {
    const int64_t width = widths();
    input("x", {width});
    live_.push_back({"x", width});
    const int64_t ops = 4 + below(14);
    for (int64_t i = 0; i < ops; ++i) {
      scope_ = fmt::format("block.{}", i / 3);
      add_op();
    }
    finish();
  }

 private:
  struct Live {
    std::string name;
    int64_t width = 0;
  };
  int64_t widths() { return 4 * (1 + below(4)); }
  // Late values more often than early ones: deep models, with skips.
  Live any() {
    const auto count = static_cast<int64_t>(live_.size());
    const int64_t back = std::min(below(count), below(count));
    return live_[static_cast<size_t>(count - 1 - back)];
  }

  void keep(const onnx::NodeProto& node, int64_t width) {
    live_.push_back({node.output(0), width});
  }

  // A weight of its own, or one that another layer has.
  std::string weight(int64_t from, int64_t to) {
    auto& known = weights_[{from, to}];
    if (known.empty() || below(4) != 0)
      known.push_back(below(4) ? parameter({from, to}, 0, 0.6f)
                               : combined(below(kWays), from, to, 0.25f));
    return known[static_cast<size_t>(below(static_cast<int64_t>(known.size())))];
  }
  Live linear(const Live& from, int64_t width) {
    const std::string product = node("MatMul", {from.name, weight(from.width, width)}).output(0);
    if (below(3) == 0) return {product, width};
    return {node("Add", {product, parameter({width}, 0, 0.3f)}).output(0), width};
  }

  void add_op() {
    const Live v = any();
    switch (below(11)) {
      case 0:
      case 1:
      case 2:
        live_.push_back(linear(v, widths()));
        return;
      case 3: {
        static const char* const kOps[] = {"Tanh", "Relu", "Sigmoid", "Softplus", "Neg"};
        return keep(node(kOps[below(5)], {v.name}), v.width);
      }
      case 4: {
        static const char* const kOps[] = {"Add", "Mul", "Sub", "Max"};
        const Live w = any();
        const Live same = w.width == v.width ? w : linear(w, v.width);
        return keep(node(kOps[below(4)], {v.name, same.name}), v.width);
      }
      case 5:
        return keep(node("Mul", {v.name, parameter(below(3) ? Shape{v.width} : Shape(), 1, 0.3f)}),
                    v.width);
      case 6:
        return keep(node("LayerNormalization",
                         {v.name, parameter({v.width}, 1, 0.2f), parameter({v.width}, 0, 0.2f)}),
                    v.width);
      case 7: {
        onnx::NodeProto& made = node("Softmax", {v.name});
        attribute(made, "axis", {-1}, false);
        return keep(made, v.width);
      }
      case 8: {
        const Live w = any();
        if (v.width + w.width > 32) return keep(node("Tanh", {v.name}), v.width);
        onnx::NodeProto& made = node("Concat", {v.name, w.name});
        attribute(made, "axis", {1}, false);
        return keep(made, v.width + w.width);
      }
      case 9:
        return keep(node("Dropout", {v.name, scalar(onnx::TensorProto::FLOAT, 0.25f),
                                     scalar(onnx::TensorProto::BOOL, 1)}),
                    v.width);
      default:
        return rearrange(v);
    }
  }
  // Columns in another order, through a third dim; or some of them.
  void rearrange(const Live& v) {
    if (below(2)) {
      const std::string part = node("Slice", {v.name, integers({v.width > 2 ? 2 : 0}),
                                              integers({v.width}), integers({1})})
                                   .output(0);
      live_.push_back({part, v.width > 2 ? v.width - 2 : v.width});
      return;
    }
    const std::string cube = node("Reshape", {v.name, integers({-1, 2, v.width / 2})}).output(0);
    onnx::NodeProto& turned = node("Transpose", {cube});
    attribute(turned, "perm", {0, 2, 1}, true);
    const std::string name = turned.output(0);
    keep(node("Reshape", {name, integers({-1, v.width})}), v.width);
  }

  void finish() {
    scope_ = "head";
    input("y", {4});
    const Live out = linear(live_.back(), 4);
    const std::string error = node("Sub", {out.name, "y"}).output(0);
    squares(error);
    finish_with_loss();
  }

  std::vector<Live> live_;
  std::map<std::pair<int64_t, int64_t>, std::vector<std::string>> weights_;
};

}  // namespace piper
