// The smallest models that every strategy of the library has something to do with: whole blocks of
// transformers, of at most some 600 parameters each, under the names that the library looks for.
#pragma once

#include "equivalence/random_model.h"

namespace piper {

class TinyGpt : public ModelMaker {
 public:
  static constexpr int64_t kTokens = 8, kWidth = 8, kHeads = 2, kHidden = 12, kClasses = 10;
  enum Kind : uint8_t { kPlain, kDense, kExperts };  // kPlain: without attention

  explicit TinyGpt(Kind kind, int64_t layers = 4) : ModelMaker(7) {
    model_.set_ir_version(10);
    model_.mutable_opset_import(0)->set_version(23);
    input("ids", {kTokens}, onnx::TensorProto::INT64);
    input("labels", {kTokens}, onnx::TensorProto::INT64);
    scope_ = "wte";
    std::string x = made("Gather", {own("wte.weight", {kClasses, kWidth}), "ids"});
    for (int64_t layer = 0; layer < layers; ++layer) {
      const std::string block = fmt::format("h.{}", layer);
      if (kind != kPlain) x = made("Add", {x, attention(block, norm(block + ".ln_1", x))});
      const std::string in = norm(block + ".ln_2", x);
      x = made("Add",
               {x, kind == kExperts && layer % 2 == 1 ? experts(block, in) : mlp(block, in)});
    }
    const std::string logits =
        linear("lm_head", norm("ln_f", x), kWidth, kClasses, /*has_bias=*/false);
    node("SoftmaxCrossEntropyLoss",
         {made("Reshape", {logits, integers({-1, kClasses})}),
          made("Reshape", {"labels", integers({-1})})},
         "loss");
    finish_with_loss();
  }

 private:
  std::string made(const std::string& op, const std::vector<std::string>& inputs) {
    return node(op, inputs).output(0);
  }
  std::string own(const std::string& name, const Shape& shape, float centre = 0,
                  float spread = 0.5f) {
    parameter(shape, centre, spread);
    graph_.mutable_initializer(graph_.initializer_size() - 1)->set_name(name);
    return name;
  }
  std::string norm(const std::string& scope, const std::string& x) {
    scope_ = scope;
    return made("LayerNormalization", {x, own(scope + ".weight", {kWidth}, 1, 0.2f),
                                       own(scope + ".bias", {kWidth}, 0, 0.2f)});
  }
  std::string linear(const std::string& scope, const std::string& x, int64_t from, int64_t to,
                     bool has_bias = true) {
    scope_ = scope;
    onnx::NodeProto& turned = node("Transpose", {own(scope + ".weight", {to, from})});
    attribute(turned, "perm", {1, 0}, true);
    const std::string product = made("MatMul", {x, turned.output(0)});
    return has_bias ? made("Add", {product, own(scope + ".bias", {to}, 0, 0.2f)}) : product;
  }
  std::string attention(const std::string& block, const std::string& x) {
    std::vector<std::string> parts;
    for (const char* part : {".q_proj", ".k_proj", ".v_proj"})
      parts.push_back(linear(block + ".attn" + part, x, kWidth, kWidth));
    scope_ = block + ".attn";
    onnx::NodeProto& read = node("Attention", parts);
    attribute(read, "is_causal", {1}, false);
    attribute(read, "q_num_heads", {kHeads}, false);
    attribute(read, "kv_num_heads", {kHeads}, false);
    return linear(block + ".attn.o_proj", read.output(0), kWidth, kWidth);
  }
  std::string mlp(const std::string& block, const std::string& x) {
    const std::string wide = linear(block + ".mlp.fc1", x, kWidth, kHidden);
    return linear(block + ".mlp.fc2", made("Tanh", {wide}), kHidden, kWidth);
  }
  // Two of four experts for each token, whose matrices are looked up.
  std::string experts(const std::string& block, const std::string& x) {
    constexpr int64_t kExpertsOf = 4, kTop = 2;
    const std::string scores = linear(block + ".mlp.router", x, kWidth, kExpertsOf, false);
    scope_ = block + ".mlp.experts";
    const std::string rows = made("Reshape", {x, integers({-1, kWidth})});
    onnx::NodeProto& shares =
        node("Softmax", {made("Reshape", {scores, integers({-1, kExpertsOf})})});
    attribute(shares, "axis", {-1}, false);
    onnx::NodeProto& top = node("TopK", {shares.output(0), integers({kTop})});
    const std::string weights = top.output(0), index = top.output(0) + "_index";
    top.add_output(index);
    const std::string flat = made("Reshape", {index, integers({-1})});
    const auto multiply = [&](const std::string& from, int64_t width, int64_t to,
                              const char* name) {
      onnx::NodeProto& each = node("Gather", {own(scope_ + name, {kExpertsOf, width, to}), flat});
      attribute(each, "axis", {0}, false);
      const std::string row = made("Reshape", {from, integers({-1, 1, width})});
      return made("Reshape", {made("MatMul", {row, each.output(0)}), integers({-1, to})});
    };
    const std::string twice = made(
        "Expand", {made("Reshape", {rows, integers({-1, 1, kWidth})}), integers({1, kTop, 1})});
    const std::string inside = made("Tanh", {multiply(twice, kWidth, kHidden, ".up")});
    const std::string scaled = made("Mul", {multiply(inside, kHidden, kWidth, ".down"),
                                            made("Reshape", {weights, integers({-1, 1})})});
    const std::string sum =
        made("ReduceSum", {made("Reshape", {scaled, integers({-1, kTop, kWidth})}), integers({1})});
    return made("Reshape", {sum, integers({-1, kTokens, kWidth})});
  }
};

}  // namespace piper
