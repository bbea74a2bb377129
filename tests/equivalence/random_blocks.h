// Random models over values of [batch, tokens, width]: blocks of what transformers are made of, and
// others. Every dim but the batch can be cut in several ways.
#pragma once

#include <limits>
#include <set>

#include "equivalence/numbers.h"
#include "equivalence/random_model.h"

namespace piper {

class RandomBlocks : public ModelMaker {
 public:
  static constexpr int64_t kClasses = Numbers::kClasses;
  static constexpr int64_t kHidden = 10;  // which fewer axes divide

  // `grouped`: heads may share their keys and values; `rare`: there are layers that transformers
  // seldom have; `mixed`: parameters are combined before they are used, and factors of dims change
  // places. `in_order`: tokens depend on themselves and earlier ones alone.
  explicit RandomBlocks(uint64_t seed, bool grouped = false, bool rare = false, bool mixed = false,
                        bool in_order = false)
      : ModelMaker(seed), grouped_(grouped), rare_(rare), mixed_(mixed), in_order_(in_order) {
    const int64_t size = below(3);
    tokens_ = in_order ? 8 << size : 4 * (1 + size);
    scope_ = "block.0";
    start();
    const int64_t ops = 3 + below(10);
    for (int64_t i = 0; i < ops; ++i) {
      scope_ = fmt::format("block.{}", i / 3);
      add_op();
    }
    scope_ = "head";
    finish();
    find_used();
  }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<std::string>& scopes() const { return scopes_; }
  const std::vector<std::string>& inputs() const { return inputs_; }
  bool attends() const { return attends_; }
  bool is_in_order() const { return in_order_; }
  // Scopes whose ops work on each token by itself.
  const std::vector<std::string>& scopes_by_token() const { return scopes_by_token_; }
  size_t tokens() const { return static_cast<size_t>(tokens_); }

 private:
  struct Live {
    std::string name;
    int64_t width = 0;
  };
  int64_t widths() { return 12 * (1 + below(2)); }
  Live any() {
    const auto count = static_cast<int64_t>(live_.size());
    const int64_t back = std::min(below(count), below(count));
    return live_[static_cast<size_t>(count - 1 - back)];
  }
  std::string along(const std::string& op, const std::vector<std::string>& inputs, int64_t axis) {
    onnx::NodeProto& at = node(op, inputs);
    attribute(at, "axis", {axis}, false);
    return at.output(0);
  }
  std::string turned(const std::string& from, const std::vector<int64_t>& perm) {
    onnx::NodeProto& at = node("Transpose", {from});
    attribute(at, "perm", perm, true);
    return at.output(0);
  }
  std::string shaped(const std::string& from, const std::vector<int64_t>& shape) {
    return made("Reshape", {from, integers(shape)});
  }
  void keep(const std::string& name, int64_t width) { live_.push_back({name, width}); }

  void start() {
    const int64_t width = widths();
    if (below(2)) {
      input("x", {tokens_, width});
      keep("x", width);
    } else {
      input("ids", {tokens_}, onnx::TensorProto::INT64);
      keep(made("Gather", {parameter({kClasses, width}, 0, 0.6f), "ids"}), width);
    }
    if (below(2))
      keep(made("Add", {live_.back().name, parameter({tokens_, width}, 0, 0.4f)}), width);
  }

  // A weight of its own or of another layer, as [from, to] or turned.
  std::string weight(int64_t from, int64_t to) {
    auto& known = weights_[{from, to}];
    if (known.empty() || below(3) != 0) {
      const float spread = 1.5f / std::sqrt(static_cast<float>(from));
      known.push_back(mixed_ && below(3) == 0 ? combined(below(kWays), from, to, 0.5f * spread)
                      : below(2)              ? parameter({from, to}, 0, spread)
                                              : turned(parameter({to, from}, 0, spread), {1, 0}));
    }
    return known[static_cast<size_t>(below(static_cast<int64_t>(known.size())))];
  }
  Live linear(const Live& from, int64_t width) {
    const std::string product = made("MatMul", {from.name, weight(from.width, width)});
    if (below(3) == 0) return {product, width};
    return {made("Add", {product, parameter({width}, 0, 0.3f)}), width};
  }
  Live norm(const Live& from) {
    if (below(2))
      return {made("LayerNormalization",
                   {from.name, parameter({from.width}, 1, 0.2f), parameter({from.width}, 0, 0.2f)}),
              from.width};
    const std::string square = made("Mul", {from.name, from.name});
    const std::string mean = made("ReduceMean", {square, integers({-1})});
    const std::string least = made("Add", {mean, scalar(onnx::TensorProto::FLOAT, 0.01f)});
    const std::string unit = made("Div", {from.name, made("Sqrt", {least})});
    return {made("Mul", {unit, parameter({from.width}, 1, 0.2f)}), from.width};
  }
  std::string part(const Live& from, int64_t first, int64_t end, int64_t axis = 2) {
    return made("Slice", {from.name, integers({first}), integers({end}), integers({axis})});
  }
  std::string pointwise(const std::string& from) {
    static const char* const kOps[] = {"Tanh", "Relu", "Sigmoid", "Neg"};
    return made(kOps[below(4)], {from});
  }

  void add_op() {
    const Live v = any();
    if (mixed_ && below(4) == 0 && !in_order_) return shuffle(v);
    switch (below(rare_ ? 16 : 12)) {
      case 0: {
        const Live made = linear(v, widths());
        return keep(made.name, made.width);
      }
      case 1:
        return keep(pointwise(v.name), v.width);
      case 2: {
        static const char* const kOps[] = {"Add", "Mul", "Sub", "Max"};
        const Live w = any();
        const Live same = w.width == v.width ? w : linear(w, v.width);
        return keep(made(kOps[below(4)], {v.name, same.name}), v.width);
      }
      case 3:
        return keep(made("Mul", {v.name, parameter({v.width}, 1, 0.3f)}), v.width);
      case 4: {
        const Live made = norm(v);
        return keep(made.name, made.width);
      }
      case 5:
        if (below(2) || in_order_) return keep(along("Softmax", {v.name}, -1), v.width);
        mixing_.insert(scope_);
        return keep(along("Softmax", {v.name}, 1), v.width);
      case 6: {
        const Live w = any();
        if (v.width + w.width > 48) return keep(pointwise(v.name), v.width);
        return keep(along("Concat", {v.name, w.name}, 2), v.width + w.width);
      }
      case 7:
      case 8:
        return attend(v);
      case 9:
      case 10:
        return feed(v);
      case 11:
        return rearrange(v);
      default:
        return add_rare(v);
    }
  }
  void add_rare(const Live& v) {
    const int64_t kind = below(9);
    const bool of_all_tokens = kind == 3 || kind == 8;
    if (of_all_tokens && !in_order_) mixing_.insert(scope_);
    switch (of_all_tokens && in_order_ ? 0 : kind) {
      case 0:
      case 1:
        return keep(made("Mul", {v.name, parameter({}, 1, 0.3f)}), v.width);
      case 8: {
        const std::string mean = running_mean(shaped(v.name, {-1, v.width}), v.width);
        return keep(made("Sub", {v.name, mean}), v.width);
      }
      case 2:
        return keep(made("Mul", {v.name, constants(v.width)}), v.width);
      case 3: {
        const std::string rows = batch_norm(shaped(v.name, {-1, v.width}), v.width);
        return keep(shaped(rows, {-1, tokens_, v.width}), v.width);
      }
      default: {
        const int64_t width = widths();
        const std::string weight = parameter({v.width, width}, 0.05f, 0.4f);
        const std::string of = below(3) ? normed(weight, below(2)) : standardised(weight);
        return keep(made("MatMul", {v.name, of}), width);
      }
    }
  }
  // Keys, values and queries of one weight or of three; heads; a residual.
  void attend(const Live& v) {
    mixing_.insert(scope_);
    const Live in = below(2) ? norm(v) : v;
    const int64_t width = widths(), heads = below(2) ? 4 : 2, head = width / heads;
    const int64_t few = grouped_ && below(3) ? heads >> (heads == 4 && below(2) ? 2 : 1) : heads;
    const int64_t keys = few * head;  // of groups of heads that share them
    std::string q, k, u;
    if (below(2)) {
      const Live all = linear(in, width + 2 * keys);
      q = part(all, 0, width), k = part(all, width, width + keys);
      u = part(all, width + keys, width + 2 * keys);
    } else {
      q = linear(in, width).name, k = linear(in, keys).name, u = linear(in, keys).name;
    }
    const auto split = [&](const std::string& from, const std::vector<int64_t>& perm) {
      const int64_t own = from == q ? heads : few;
      const std::string apart = turned(shaped(from, {-1, tokens_, own, head}), perm);
      if (own == heads) return apart;
      const int64_t rows = perm[2] == 1 ? tokens_ : head, columns = perm[2] == 1 ? head : tokens_;
      const std::string one = shaped(apart, {-1, own, 1, rows, columns});
      const std::string all = made("Expand", {one, integers({1, own, heads / own, rows, columns})});
      return shaped(all, {-1, heads, rows, columns});
    };
    const std::string scores = made("MatMul", {split(q, {0, 2, 1, 3}), split(k, {0, 2, 3, 1})});
    const std::string scaled =
        made("Mul", {scores, scalar(onnx::TensorProto::FLOAT, below(2) ? 0.3f : 0.5f)});
    const std::string seen = in_order_ ? made("Add", {scaled, hides_later()}) : scaled;
    const std::string read = made("MatMul", {along("Softmax", {seen}, -1), split(u, {0, 2, 1, 3})});
    attention_.insert(read);
    const std::string joined = shaped(turned(read, {0, 2, 1, 3}), {-1, tokens_, width});
    const Live out = linear({joined, width}, v.width);
    keep(made("Add", {v.name, out.name}), v.width);
  }
  // A constant, as an initializer would be trained.
  std::string hides_later() {
    onnx::AttributeProto value;
    value.set_name("value");
    value.set_type(onnx::AttributeProto::TENSOR);
    onnx::TensorProto& mask = *value.mutable_t();
    mask.set_data_type(onnx::TensorProto::FLOAT);
    for (const int64_t dim : {int64_t{1}, int64_t{1}, tokens_, tokens_}) mask.add_dims(dim);
    for (int64_t i = 0; i < tokens_ * tokens_; ++i)
      mask.add_float_data(i % tokens_ <= i / tokens_ ? 0 : -std::numeric_limits<float>::infinity());
    onnx::NodeProto& at = node("Constant", {});
    *at.add_attribute() = value;
    return at.output(0);
  }
  // Two of four experts for each token, whose matrices are looked up.
  void mix(const Live& v) {
    const std::string rows = shaped(v.name, {-1, v.width});
    const std::string scores = along("Softmax", {made("MatMul", {rows, weight(v.width, 4)})}, -1);
    onnx::NodeProto& top = node("TopK", {scores, integers({2})});
    const std::string weights = top.output(0), index = top.output(0) + "_index";
    top.add_output(index);
    const auto multiply = [&](const std::string& from, int64_t width, int64_t to) {
      const std::string stack = parameter({4, width, to}, 0, 0.4f);
      const std::string each = along("Gather", {stack, shaped(index, {-1})}, 0);
      return shaped(made("MatMul", {shaped(from, {-1, 1, width}), each}), {-1, to});
    };
    const std::string twice = made("Expand", {shaped(rows, {-1, 1, v.width}), integers({1, 2, 1})});
    const std::string inside = pointwise(multiply(twice, v.width, 12));
    const std::string scaled =
        made("Mul", {multiply(inside, 12, v.width), shaped(weights, {-1, 1})});
    const std::string sum = made("ReduceSum", {shaped(scaled, {-1, 2, v.width}), integers({1})});
    keep(made("Add", {v.name, shaped(sum, {-1, tokens_, v.width})}), v.width);
  }
  void feed(const Live& v) {
    if (below(3) == 0) return mix(v);
    const Live in = below(2) ? norm(v) : v;
    const int64_t hidden = tokens_ == 8 ? kHidden : 24;
    const Live up = linear(in, hidden);
    std::string inside = pointwise(up.name);
    if (below(2)) inside = made("Mul", {inside, linear(in, hidden).name});
    keep(made("Add", {v.name, linear({inside, hidden}, v.width).name}), v.width);
  }
  // Tokens or columns in another order, or some of the columns.
  void rearrange(const Live& v) {
    switch (below(4)) {
      case 0:
        return keep(part(v, v.width - 12, v.width), 12);
      case 1: {
        if (v.width != 48) return keep(pointwise(v.name), v.width);
        const std::string cube = shaped(v.name, {-1, tokens_, 6, 8});
        return keep(shaped(turned(cube, {0, 1, 3, 2}), {-1, tokens_, v.width}), v.width);
      }
      case 2: {
        const std::string rows = shaped(v.name, {-1, v.width});
        return keep(shaped(pointwise(rows), {-1, tokens_, v.width}), v.width);
      }
      default: {  // a product along the tokens
        if (in_order_) return keep(pointwise(v.name), v.width);
        mixing_.insert(scope_);
        const std::string mixed =
            made("MatMul", {turned(v.name, {0, 2, 1}), parameter({tokens_, tokens_}, 0, 0.4f)});
        return keep(turned(mixed, {0, 2, 1}), v.width);
      }
    }
  }

  // Factors of tokens and columns in another order: pixel shuffle, space to depth, channels mixed.
  void shuffle(const Live& v) {
    mixing_.insert(scope_);
    const int64_t inner = below(2) ? 2 : 4, part = v.width % 12 == 0 && below(2) ? 3 : 2;
    std::vector<int64_t> perm{1, 2, 3, 4};
    std::shuffle(perm.begin(), perm.end(), random_);
    perm.insert(perm.begin(), 0);
    const std::string apart = shaped(v.name, {-1, tokens_ / inner, inner, v.width / part, part});
    const std::string mixed = shaped(turned(apart, perm), {-1, tokens_, v.width});
    keep(below(2) ? mixed : made("Add", {pointwise(mixed), v.name}), v.width);
  }

  void finish() {
    const Live last = live_.back();
    if (rare_ && below(2)) return finish_rarely(last);
    if (below(2)) {
      input("labels", {tokens_}, onnx::TensorProto::INT64);
      const Live logits = linear(last, kClasses);
      node("SoftmaxCrossEntropyLoss", {shaped(logits.name, {-1, kClasses}), shaped("labels", {-1})},
           "loss");
    } else {
      input("target", {tokens_, 12});
      const bool penalised = rare_ && below(4) == 0;
      squares(made("Sub", {linear(last, 12).name, "target"}), penalised ? "mean" : "loss");
      if (penalised) penalise(weights_.begin()->second.front());
    }
    finish_with_loss();
  }

  // Losses that take the classes of a token together, of which ranks seldom have equal parts; some
  // take the samples together, too.
  void finish_rarely(const Live& last) {
    const int64_t classes = below(4) ? kHidden : kClasses;
    const Live logits = linear(last, classes);
    const std::string rows = shaped(logits.name, {-1, classes});
    input("labels", {tokens_}, onnx::TensorProto::INT64);
    const std::string labels = made("Mod", {shaped("labels", {-1}), whole_number(classes)});
    static constexpr const char* kForms[] = {"none", "z", "smooth", "likely", "margin", "coupled"};
    const std::string form = kForms[below(in_order_ ? 5 : 6)];
    if (form == "likely") {
      input("target", {tokens_, classes});
      const std::string likely = along("Softmax", {shaped("target", {-1, classes})}, 1);
      const std::string each = made("Mul", {likely, along("LogSoftmax", {rows}, 1)});
      return end(made("Neg", {made("ReduceSum", {each, integers({1})})}));
    }
    if (form == "margin") {  // between the label's and the greatest of the others
      const std::string places = shaped(labels, {-1, 1});
      const std::string own = along("GatherElements", {rows, places}, 1);
      const std::string is_own = made("Equal", {places, integers(all_below(classes))});
      const std::string others = made("Where", {is_own, number(-1e9f), rows});
      const std::string most = made("ReduceMax", {others, integers({1})});
      return end(made("Softplus", {made("Sub", {most, own})}));
    }
    if (form == "smooth") {
      const std::string logs = along("LogSoftmax", {rows}, 1);
      const std::string own = along("GatherElements", {logs, shaped(labels, {-1, 1})}, 1);
      const std::string all = made("ReduceMean", {logs, integers({1})});
      return end(made("Neg", {made("Add", {own, made("Mul", {all, number(0.1f)})})}));
    }
    onnx::NodeProto& loss = node("SoftmaxCrossEntropyLoss", {rows, labels});
    onnx::AttributeProto& reduction = *loss.add_attribute();
    reduction.set_name("reduction");
    reduction.set_type(onnx::AttributeProto::STRING);
    reduction.set_s("none");
    const std::string each = loss.output(0);
    if (form == "none") {
      input("weight", {tokens_});
      return end(made("Mul", {each, made("Sigmoid", {shaped("weight", {-1})})}));
    }
    if (form == "z") {
      const std::string sum = made("ReduceLogSumExp", {rows, integers({1})});
      const std::string small = made("Mul", {made("Mul", {sum, sum}), number(0.01f)});
      return end(made("Add", {each, shaped(small, {-1})}));
    }
    onnx::NodeProto& mean = node("ReduceMean", {rows, integers({0})});  // of all samples
    const std::string square = made("Mul", {mean.output(0), mean.output(0)});
    return end(made("Add", {each, made("ReduceSum", {square, integers({1})})}));
  }
  void end(const std::string& each) {
    attribute(node("ReduceMean", {each}, "loss"), "keepdims", {0}, false);
    finish_with_loss();
  }
  std::string whole_number(int64_t value) { return shaped(integers({value}), {}); }
  static std::vector<int64_t> all_below(int64_t count) {
    std::vector<int64_t> numbers;
    for (int64_t i = 0; i < count; ++i) numbers.push_back(i);
    return numbers;
  }

  void find_used() {
    const std::set<std::string> used = used_names();
    std::set<std::string> scopes;
    for (const onnx::NodeProto& node : graph_.node()) {
      if (!used.count(node.output(0))) continue;
      attends_ = attends_ || attention_.count(node.output(0)) > 0;
      const std::string scope = node.name().substr(1, node.name().rfind('/') - 1);
      if (scope != "head") scopes.insert(scope);  // of which nothing is read elsewhere
    }
    parameters_ = ModelMaker::parameters();
    scopes_.assign(scopes.begin(), scopes.end());
    std::ranges::copy_if(scopes_, std::back_inserter(scopes_by_token_),
                         [&](const std::string& scope) { return !mixing_.contains(scope); });
    for (const auto& input : graph_.input())
      if (used.count(input.name())) inputs_.push_back(input.name());
  }

  bool grouped_ = false, rare_ = false, mixed_ = false, in_order_ = false;
  int64_t tokens_ = 0;
  bool attends_ = false;             // in what the loss depends on
  std::set<std::string> attention_;  // what it makes
  std::vector<Live> live_;
  std::vector<Parameter> parameters_;
  std::vector<std::string> scopes_, scopes_by_token_, inputs_;
  std::set<std::string> mixing_;  // scopes in which tokens meet
  std::map<std::pair<int64_t, int64_t>, std::vector<std::string>> weights_;
};

}  // namespace piper
