// usage: make_models NAME BATCH FOLDER [KEY=NUMBER…]: models of known architectures, forward only
// and as opset 23 says them.
//
//   gpt2      124M parameters; its output matrix is the embedding
//   gpt2-xl   1.5B parameters
//   llama-1b  rotary positions, RMS norms, SwiGLU, four heads for each of keys; 1.2B parameters
//
// KEYs are layers, width, heads, kv_heads, hidden, context and vocabulary; random=1 draws weights
// as training begins with them. Without, they are zeros but for their first element, its number, in
// one external file with hardly a block on the disk. Writes FOLDER/model.onnx,
// FOLDER/model.onnx.data and FOLDER/bf16.yaml, a strategy for one device.
#include <fmt/core.h>
#include <onnx/onnx_pb.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace {

struct Sizes {
  const char* name;
  bool is_llama;
  int64_t layers, width, heads, kv_heads, hidden, context, vocabulary;
  int64_t random = 0, batch = 0;
};
constexpr Sizes kModels[] = {{"gpt2", false, 12, 768, 12, 12, 3072, 1024, 50257},
                             {"gpt2-xl", false, 48, 1600, 25, 25, 6400, 1024, 50257},
                             {"llama-1b", true, 16, 2048, 32, 8, 8192, 2048, 128256}};

class Writer {
 public:
  Writer(onnx::GraphProto& graph, const Sizes& sizes) : graph_(graph), sizes_(sizes) {}

  void run() {
    graph_.set_name(sizes_.name);
    const int64_t width = sizes_.width;
    input("input_ids");
    input("labels");
    weight("wte.weight", {sizes_.vocabulary, width});
    std::string x = op("wte", "Gather", {"wte.weight", "input_ids"}, "tokens");
    if (sizes_.is_llama)
      rotary_tables();
    else
      x = op("", "Add", {x, weight("wpe.weight", {sizes_.context, width})}, "embedded");
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
    for (size_t i = 0; i < weights_.size(); ++i) {
      file.seekp(weights_[i].start);
      if (sizes_.random) {
        draw(weights_[i], i, file);
        continue;
      }
      const auto number = static_cast<float>(i + 1);
      file.write(reinterpret_cast<const char*>(&number), sizeof number);
    }
    file.close();
    std::error_code failed;
    std::filesystem::resize_file(path, static_cast<uintmax_t>(bytes_), failed);
    return file && !failed;
  }
  int64_t bytes() const { return bytes_; }

 private:
  struct Weight {
    int64_t start = 0, bytes = 0;
    bool is_norm = false, is_bias = false;
  };

  // Normal numbers of variance 0.02², the same ones again and again from another place; ones of
  // norms, zeros of biases.
  static void draw(const Weight& weight, size_t number, std::ofstream& file) {
    static const std::vector<float> numbers = [] {
      std::vector<float> drawn(1 << 22);
      std::mt19937 random(1);
      std::normal_distribution<float> normal(0, 0.02f);
      for (float& x : drawn) x = normal(random);
      return drawn;
    }();
    const std::vector<float> same(weight.is_norm || weight.is_bias ? 1 << 20 : 0,
                                  weight.is_norm ? 1.f : 0.f);
    const std::vector<float>& from = same.empty() ? numbers : same;
    const auto all = static_cast<int64_t>(from.size() * sizeof(float));
    int64_t at = static_cast<int64_t>(number * 7919 * sizeof(float)) % all;
    for (int64_t left = weight.bytes; left > 0; at = 0) {
      const int64_t count = std::min(left, all - at);
      file.write(reinterpret_cast<const char*>(from.data()) + at, count);
      left -= count;
    }
  }

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
    const bool is_bias = name.ends_with(".bias");
    weights_.push_back({bytes_, bytes, dims.size() == 1 && !is_bias, is_bias});
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

  // A constant of floats or whole numbers.
  template <class T>
  std::string constant(const std::string& name, const std::vector<int64_t>& dims,
                       const std::vector<T>& values) {
    op("constant", "Constant", {}, name);
    onnx::TensorProto& tensor = *attribute("value", onnx::AttributeProto::TENSOR).mutable_t();
    tensor.set_data_type(std::is_same_v<T, float> ? onnx::TensorProto::FLOAT
                                                  : onnx::TensorProto::INT64);
    for (const int64_t dim : dims) tensor.add_dims(dim);
    tensor.set_raw_data(
        std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
    return name;
  }
  // Of [1, 1, tokens, width of a head], with equal halves.
  void rotary_tables() {
    const int64_t width = sizes_.width / sizes_.heads, half = width / 2;
    for (const bool is_sine : {false, true}) {
      std::vector<float> turns;
      for (int64_t token = 0; token < sizes_.context; ++token)
        for (int64_t i = 0; i < width; ++i) {
          const double angle =
              static_cast<double>(token) *
              std::pow(5e5, -static_cast<double>(i % half) / static_cast<double>(half));
          turns.push_back(static_cast<float>(is_sine ? std::sin(angle) : std::cos(angle)));
        }
      constant(is_sine ? "rope.sin" : "rope.cos", {1, 1, sizes_.context, width}, turns);
    }
  }

  std::string norm(const std::string& scope, const std::string& x) {
    std::vector<std::string> inputs{x, weight(scope + ".weight", {sizes_.width})};
    if (!sizes_.is_llama) inputs.push_back(weight(scope + ".bias", {sizes_.width}));
    const std::string y = op(scope, sizes_.is_llama ? "RMSNormalization" : "LayerNormalization",
                             inputs, scope + ".y");
    attribute("epsilon", onnx::AttributeProto::FLOAT).set_f(1e-5f);
    return y;
  }
  std::string linear(const std::string& scope, const std::string& x, int64_t from, int64_t to) {
    const std::string product =
        op(scope, "MatMul", {x, weight(scope + ".weight", {from, to})}, scope + ".product");
    if (sizes_.is_llama) return product;
    return op(scope, "Add", {product, weight(scope + ".bias", {to})}, scope + ".y");
  }
  // [batch, heads, tokens, width of a head]
  std::string apart(const std::string& scope, const std::string& x, int64_t heads) {
    const int64_t width = sizes_.width / sizes_.heads;
    const std::string shape =
        constant<int64_t>(scope + ".shape", {4}, {sizes_.batch, sizes_.context, heads, width});
    const std::string rows = op(scope, "Reshape", {x, shape}, scope + ".rows");
    const std::string made = op(scope, "Transpose", {rows}, scope + ".heads");
    integers("perm", {0, 2, 1, 3});
    return made;
  }
  // x · cos + (-second half, first half) · sin
  std::string turned(const std::string& scope, const std::string& x) {
    const std::string first = op(scope, "Split", {x}, scope + ".first");
    const std::string second = scope + ".second";
    graph_.mutable_node(graph_.node_size() - 1)->add_output(second);
    integer("axis", 3);
    integer("num_outputs", 2);
    const std::string away = op(scope, "Neg", {second}, scope + ".away");
    const std::string half = op(scope, "Concat", {away, first}, scope + ".half");
    integer("axis", 3);
    return op(scope, "Add",
              {op(scope + ".cos", "Mul", {x, "rope.cos"}, scope + ".by_cos"),
               op(scope + ".sin", "Mul", {half, "rope.sin"}, scope + ".by_sin")},
              scope + ".turned");
  }

  std::string attend(const std::string& scope, const std::string& x) {
    const int64_t width = sizes_.width, of_keys = width / sizes_.heads * sizes_.kv_heads;
    std::vector<std::string> qkv;
    if (sizes_.is_llama) {
      const auto part = [&](const std::string& name, int64_t to, int64_t heads) {
        return apart(name, linear(name, x, width, to), heads);
      };
      qkv = {turned(scope + ".q", part(scope + ".q", width, sizes_.heads)),
             turned(scope + ".k", part(scope + ".k", of_keys, sizes_.kv_heads)),
             part(scope + ".v", of_keys, sizes_.kv_heads)};
    } else {
      qkv = {op(scope, "Split", {linear(scope + ".c_attn", x, width, 3 * width)}, scope + ".q"),
             scope + ".k", scope + ".v"};
      for (const char* part : {".k", ".v"})
        graph_.mutable_node(graph_.node_size() - 1)->add_output(scope + part);
      integer("axis", 2);
      integer("num_outputs", 3);
    }
    std::string mixed = op(scope, "Attention", qkv, scope + ".mixed");
    integer("is_causal", 1);
    if (sizes_.is_llama) {
      mixed = op(scope, "Transpose", {mixed}, scope + ".tokens");
      integers("perm", {0, 2, 1, 3});
      const std::string shape =
          constant<int64_t>(scope + ".shape", {3}, {sizes_.batch, sizes_.context, width});
      mixed = op(scope, "Reshape", {mixed, shape}, scope + ".side_by_side");
    } else {
      integer("q_num_heads", sizes_.heads);
      integer("kv_num_heads", sizes_.kv_heads);
    }
    return linear(scope + ".c_proj", mixed, width, width);
  }
  std::string feed_forward(const std::string& scope, const std::string& x) {
    const int64_t width = sizes_.width, hidden = sizes_.hidden;
    std::string bent;
    if (sizes_.is_llama) {
      const std::string gate = linear(scope + ".gate", x, width, hidden);
      const std::string up = linear(scope + ".up", x, width, hidden);
      const std::string open = op(scope, "Sigmoid", {gate}, scope + ".open");
      const std::string silu = op(scope + ".silu", "Mul", {gate, open}, scope + ".silu");
      bent = op(scope, "Mul", {silu, up}, scope + ".bent");
    } else {
      bent = op(scope, "Gelu", {linear(scope + ".c_fc", x, width, hidden)}, scope + ".bent");
      attribute("approximate", onnx::AttributeProto::STRING).set_s("tanh");
    }
    return linear(scope + ".c_proj", bent, hidden, width);
  }
  std::string block(const std::string& scope, const std::string& x) {
    const std::string attended = op(
        scope, "Add", {x, attend(scope + ".attn", norm(scope + ".ln_1", x))}, scope + ".attended");
    return op(scope, "Add",
              {attended, feed_forward(scope + ".mlp", norm(scope + ".ln_2", attended))},
              scope + ".y");
  }

  onnx::GraphProto& graph_;
  const Sizes sizes_;
  int64_t bytes_ = 0;
  std::vector<Weight> weights_;
};

constexpr const char* kStrategy = R"(piper: 1
loss: {cross_entropy: {logits: logits, labels: labels, ignore_index: -100}}
train: {optimizer: {adamw: {lr: 6e-4, weight_decay: 0.1}}, clip_norm: 1.0}
directives:
  - precision: {compute: bf16}
)";

int usage() {
  std::fputs("usage: make_models gpt2|gpt2-xl|llama-1b BATCH FOLDER [KEY=NUMBER…]\n", stderr);
  return 2;
}

// A KEY=NUMBER; false: it is none.
bool set(Sizes& sizes, const char* word) {
  const std::pair<const char*, int64_t*> keys[] = {
      {"layers", &sizes.layers},   {"width", &sizes.width},           {"heads", &sizes.heads},
      {"hidden", &sizes.hidden},   {"vocabulary", &sizes.vocabulary}, {"kv_heads", &sizes.kv_heads},
      {"context", &sizes.context}, {"random", &sizes.random}};
  const char* const equal = std::strchr(word, '=');
  for (const auto& [key, number] : keys)
    if (equal && std::string_view(word, static_cast<size_t>(equal - word)) == key) {
      *number = std::atoll(equal + 1);
      return *number > 0 || number == &sizes.random;
    }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  const Sizes* model = nullptr;
  for (const Sizes& each : kModels)
    if (argc > 1 && std::strcmp(each.name, argv[1]) == 0) model = &each;
  if (!model || argc < 4) return usage();
  Sizes sizes = *model;
  sizes.batch = std::atoll(argv[2]);
  for (int i = 4; i < argc; ++i)
    if (!set(sizes, argv[i])) return usage();
  if (sizes.batch < 1 || sizes.width % sizes.heads != 0 || sizes.heads % sizes.kv_heads != 0)
    return usage();
  const std::string folder = argv[3];
  onnx::ModelProto made;
  made.set_ir_version(10);
  made.add_opset_import()->set_version(23);
  Writer writer(*made.mutable_graph(), sizes);
  writer.run();
  std::ofstream out(folder + "/model.onnx", std::ios::binary), text(folder + "/bf16.yaml");
  text << kStrategy;
  if (!made.SerializeToOstream(&out) || !out.flush() || !text.flush() ||
      !writer.write_weights(folder + "/model.onnx.data")) {
    std::fprintf(stderr, "cannot write to %s\n", folder.c_str());
    return 1;
  }
  std::printf("%.1f M parameters\n", static_cast<double>(writer.bytes()) / 4e6);
}
