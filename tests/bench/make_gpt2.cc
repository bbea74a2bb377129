// usage: make_gpt2 BATCH FOLDER [LAYERS=12 WIDTH=768 HEADS=12 CONTEXT=1024 VOCABULARY=50257]: GPT-2
// with 124M parameters, unless told otherwise, forward only and as opset 23 says it, with its
// output matrix tied to the embedding. Weights are zeros but for their first element, its number,
// in one external file with hardly a block on the disk. Writes FOLDER/model.onnx,
// FOLDER/model.onnx.data and FOLDER/bf16.yaml, a strategy for one device.
#include <fmt/core.h>
#include <onnx/onnx_pb.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

struct Sizes {
  int64_t batch = 0, layers = 12, width = 768, heads = 12, context = 1024, vocabulary = 50257;
};

class Writer {
 public:
  Writer(onnx::GraphProto& graph, const Sizes& sizes) : graph_(graph), sizes_(sizes) {}

  void run() {
    graph_.set_name("gpt2");
    const int64_t width = sizes_.width;
    input("input_ids");
    input("labels");
    weight("wte.weight", {sizes_.vocabulary, width});
    weight("wpe.weight", {sizes_.context, width});
    const std::string tokens = op("wte", "Gather", {"wte.weight", "input_ids"}, "tokens");
    std::string x = op("", "Add", {tokens, "wpe.weight"}, "embedded");
    for (int64_t layer = 0; layer < sizes_.layers; ++layer)
      x = block(fmt::format("h.{}", layer), x);
    x = norm("ln_f", x);
    const std::string matrix = op("lm_head", "Transpose", {"wte.weight"}, "lm_head.matrix");
    integers("perm", {1, 0});
    type(*graph_.add_output(), op("lm_head", "MatMul", {x, matrix}, "logits"),
         onnx::TensorProto::FLOAT, {sizes_.batch, sizes_.context, sizes_.vocabulary});
  }
  bool write_weights(const std::string& path) const {
    std::ofstream file(path, std::ios::binary);
    for (size_t i = 0; i < starts_.size(); ++i) {
      const auto number = static_cast<float>(i + 1);
      file.seekp(starts_[i]);
      file.write(reinterpret_cast<const char*>(&number), sizeof number);
    }
    file.close();
    std::error_code failed;
    std::filesystem::resize_file(path, static_cast<uintmax_t>(bytes_), failed);
    return file && !failed;
  }
  int64_t bytes() const { return bytes_; }

 private:
  static void type(onnx::ValueInfoProto& value, const std::string& name, int32_t element,
                   const std::vector<int64_t>& dims) {
    value.set_name(name);
    auto& tensor = *value.mutable_type()->mutable_tensor_type();
    tensor.set_elem_type(element);
    for (const int64_t dim : dims) tensor.mutable_shape()->add_dim()->set_dim_value(dim);
  }
  void input(const char* name) {
    type(*graph_.add_input(), name, onnx::TensorProto::INT64, {sizes_.batch, sizes_.context});
  }
  std::string weight(const std::string& name, const std::vector<int64_t>& dims) {
    onnx::TensorProto& tensor = *graph_.add_initializer();
    tensor.set_name(name);
    tensor.set_data_type(onnx::TensorProto::FLOAT);
    int64_t bytes = 4;
    for (const int64_t dim : dims) {
      tensor.add_dims(dim);
      bytes *= dim;
    }
    tensor.set_data_location(onnx::TensorProto::EXTERNAL);
    const std::pair<const char*, std::string> entries[] = {{"location", "model.onnx.data"},
                                                           {"offset", std::to_string(bytes_)},
                                                           {"length", std::to_string(bytes)}};
    for (const auto& [key, value] : entries) {
      auto* entry = tensor.add_external_data();
      entry->set_key(key);
      entry->set_value(value);
    }
    starts_.push_back(bytes_);
    bytes_ += bytes;
    return name;
  }

  // The name of its first output.
  std::string op(const std::string& scope, const char* kind, const std::vector<std::string>& inputs,
                 const std::string& output) {
    onnx::NodeProto& node = *graph_.add_node();
    node.set_name(fmt::format("/{}{}{}", scope, scope.empty() ? "" : "/", kind));
    node.set_op_type(kind);
    for (const std::string& name : inputs) node.add_input(name);
    node.add_output(output);
    return output;
  }
  onnx::AttributeProto& attribute(const char* name, onnx::AttributeProto::AttributeType type) {
    auto& attribute = *graph_.mutable_node(graph_.node_size() - 1)->add_attribute();
    attribute.set_name(name);
    attribute.set_type(type);
    return attribute;
  }
  void integer(const char* name, int64_t value) {
    attribute(name, onnx::AttributeProto::INT).set_i(value);
  }
  void integers(const char* name, const std::vector<int64_t>& values) {
    auto& list = attribute(name, onnx::AttributeProto::INTS);
    for (const int64_t value : values) list.add_ints(value);
  }

  std::string norm(const std::string& scope, const std::string& x) {
    const std::string y =
        op(scope, "LayerNormalization",
           {x, weight(scope + ".weight", {sizes_.width}), weight(scope + ".bias", {sizes_.width})},
           scope + ".y");
    attribute("epsilon", onnx::AttributeProto::FLOAT).set_f(1e-5f);
    return y;
  }
  std::string linear(const std::string& scope, const std::string& x, int64_t from, int64_t to) {
    const std::string product =
        op(scope, "MatMul", {x, weight(scope + ".weight", {from, to})}, scope + ".product");
    return op(scope, "Add", {product, weight(scope + ".bias", {to})}, scope + ".y");
  }

  std::string block(const std::string& scope, const std::string& x) {
    const int64_t width = sizes_.width;
    const std::string attention = scope + ".attn", mlp = scope + ".mlp";
    const std::string qkv =
        linear(attention + ".c_attn", norm(scope + ".ln_1", x), width, 3 * width);
    const std::string q = op(attention, "Split", {qkv}, attention + ".q");
    for (const char* part : {".k", ".v"})
      graph_.mutable_node(graph_.node_size() - 1)->add_output(attention + part);
    integer("axis", 2);
    integer("num_outputs", 3);
    const std::string mixed =
        op(attention, "Attention", {q, attention + ".k", attention + ".v"}, attention + ".mixed");
    integer("is_causal", 1);
    integer("q_num_heads", sizes_.heads);
    integer("kv_num_heads", sizes_.heads);
    const std::string attended = op(
        scope, "Add", {x, linear(attention + ".c_proj", mixed, width, width)}, scope + ".attended");
    const std::string wide =
        linear(mlp + ".c_fc", norm(scope + ".ln_2", attended), width, 4 * width);
    const std::string bent = op(mlp, "Gelu", {wide}, mlp + ".bent");
    attribute("approximate", onnx::AttributeProto::STRING).set_s("tanh");
    return op(scope, "Add", {attended, linear(mlp + ".c_proj", bent, 4 * width, width)},
              scope + ".y");
  }

  onnx::GraphProto& graph_;
  const Sizes sizes_;
  int64_t bytes_ = 0;
  std::vector<int64_t> starts_;  // of the weights
};

constexpr const char* kStrategy = R"(piper: 1
loss: {cross_entropy: {logits: logits, labels: labels, ignore_index: -100}}
train: {optimizer: {adamw: {lr: 6e-4, weight_decay: 0.1}}, clip_norm: 1.0}
directives:
  - precision: {compute: bf16}
)";

}  // namespace

int main(int argc, char** argv) {
  Sizes sizes;
  int64_t* const fields[] = {&sizes.layers, &sizes.width, &sizes.heads, &sizes.context,
                             &sizes.vocabulary};
  if (argc < 3 || argc > 8) {
    std::fputs("usage: make_gpt2 BATCH FOLDER [LAYERS WIDTH HEADS CONTEXT VOCABULARY]\n", stderr);
    return 2;
  }
  sizes.batch = std::atoll(argv[1]);
  for (int i = 3; i < argc; ++i) *fields[i - 3] = std::atoll(argv[i]);
  const std::string folder = argv[2];
  onnx::ModelProto model;
  model.set_ir_version(10);
  model.add_opset_import()->set_version(23);
  Writer writer(*model.mutable_graph(), sizes);
  writer.run();
  std::ofstream out(folder + "/model.onnx", std::ios::binary), text(folder + "/bf16.yaml");
  text << kStrategy;
  if (!model.SerializeToOstream(&out) || !out.flush() || !text.flush() ||
      !writer.write_weights(folder + "/model.onnx.data")) {
    std::fprintf(stderr, "cannot write to %s\n", folder.c_str());
    return 1;
  }
  std::printf("%.1f M parameters\n", static_cast<double>(writer.bytes()) / 4e6);
}
