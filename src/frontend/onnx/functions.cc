// Replaces calls of a file's own functions by their bodies.
#include "functions.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <map>

namespace piper::onnx_import {
namespace {

namespace pb = google::protobuf;

constexpr int64_t kMaxNodes = 500'000;
constexpr int64_t kMaxBytes = int64_t{1} << 30;  // of what calls copy, constants above all
constexpr size_t kMaxDepth = 64;
constexpr int kAttributeDefaults =
    11;  // of a FunctionProto; the installed schema (IR 8) does not know it

using Nodes = pb::RepeatedPtrField<onnx::NodeProto>;
using Names = std::map<std::string, std::string>;
using Attributes = std::map<std::string, onnx::AttributeProto>;

std::string plain_domain(const std::string& domain) { return domain == "ai.onnx" ? "" : domain; }

std::string label(const onnx::FunctionProto& function) {
  return fmt::format("the function '{}'", quote_control(function.name().substr(0, 80)));
}

// Holds one call, as the nodes of the body see it.
struct Call {
  Names names;            // formal inputs and outputs to those of the caller
  Attributes attributes;  // by the names of the function's
  std::string value_prefix, node_prefix;
  int64_t opset = 0;  // of the function; 0: the model's
  const std::string& name_of(const std::string& inner) {
    if (inner.empty()) return inner;
    return names.try_emplace(inner, value_prefix + inner).first->second;
  }
};

class Inliner {
 public:
  explicit Inliner(onnx::ModelProto& model) : model_(model) {}
  Result<Opsets> run();

 private:
  const onnx::FunctionProto* find(const onnx::NodeProto& node) const;
  Status expand(Nodes& nodes);
  Status expand_call(const onnx::NodeProto& node, const onnx::FunctionProto& function, Nodes& out);
  Result<Call> make_call(const onnx::NodeProto& node, const onnx::FunctionProto& function) const;
  Result<onnx::NodeProto> body_node(const onnx::NodeProto& inner, Call& call);
  Status add_attributes(const onnx::NodeProto& inner, Call& call, onnx::NodeProto& node);
  Status rename_graph(onnx::GraphProto& graph, Call& call);

  onnx::ModelProto& model_;
  std::map<std::pair<std::string, std::string>, const onnx::FunctionProto*> functions_;
  std::vector<const onnx::FunctionProto*> open_;  // calls that are being expanded
  Opsets opsets_;
  int64_t nodes_ = 0, bytes_ = 0;
};

const onnx::FunctionProto* Inliner::find(const onnx::NodeProto& node) const {
  const auto found = functions_.find({plain_domain(node.domain()), node.op_type()});
  return found == functions_.end() ? nullptr : found->second;
}

// Returns the version of the standard operators that the function is written for; 0: the model's.
int64_t opset_of(const onnx::FunctionProto& function) {
  for (const onnx::OperatorSetIdProto& own : function.opset_import())
    if (plain_domain(own.domain()).empty()) return own.version();
  return 0;
}

Result<Call> Inliner::make_call(const onnx::NodeProto& node,
                                const onnx::FunctionProto& function) const {
  if (node.input_size() > function.input_size() || node.output_size() > function.output_size()) {
    return fail("node '{}' calls {} with {} inputs and {} outputs; it has {} and {}",
                quote_control(node.name()), label(function), node.input_size(), node.output_size(),
                function.input_size(), function.output_size());
  }
  Call call;
  call.opset = opset_of(function);
  for (const std::string& output : node.output()) {
    if (call.value_prefix.empty() && !output.empty()) call.value_prefix = output + "/";
  }
  if (!node.name().empty()) call.node_prefix = node.name() + "/";
  for (int i = 0; i < function.input_size(); ++i) {
    call.names[function.input(i)] = i < node.input_size() ? node.input(i) : "";
  }
  for (int i = 0; i < function.output_size() && i < node.output_size(); ++i) {
    if (!node.output(i).empty() && !call.names.count(function.output(i))) {
      call.names[function.output(i)] = node.output(i);
    }
  }
  const pb::UnknownFieldSet& fields = function.GetReflection()->GetUnknownFields(function);
  for (int i = 0; i < fields.field_count(); ++i) {
    onnx::AttributeProto value;
    if (fields.field(i).number() == kAttributeDefaults &&
        fields.field(i).type() == pb::UnknownField::TYPE_LENGTH_DELIMITED &&
        value.ParseFromString(fields.field(i).length_delimited())) {
      call.attributes[value.name()] = value;
    }
  }
  for (const onnx::AttributeProto& attr : node.attribute()) call.attributes[attr.name()] = attr;
  return call;
}

Status Inliner::rename_graph(onnx::GraphProto& graph, Call& call) {
  for (onnx::TensorProto& tensor : *graph.mutable_initializer()) {
    tensor.set_name(call.name_of(tensor.name()));
  }
  for (onnx::ValueInfoProto& value : *graph.mutable_input()) {
    value.set_name(call.name_of(value.name()));
  }
  for (onnx::NodeProto& node : *graph.mutable_node()) {
    PIPER_ASSIGN(node, body_node(node, call));
  }
  for (onnx::ValueInfoProto& value : *graph.mutable_output()) {
    value.set_name(call.name_of(value.name()));
  }
  return ok_status();
}

// Returns a node of the body under the caller's names, its attributes' references resolved.
Result<onnx::NodeProto> Inliner::body_node(const onnx::NodeProto& inner, Call& call) {
  onnx::NodeProto node = inner;
  node.clear_attribute();
  for (std::string& name : *node.mutable_input()) name = call.name_of(name);
  for (std::string& name : *node.mutable_output()) {
    name = call.name_of(name);
    if (call.opset > 0) opsets_[name] = call.opset;
  }
  if (!node.name().empty()) node.set_name(call.node_prefix + node.name());
  PIPER_TRY(add_attributes(inner, call, node));
  return node;
}

// Gives the node its own attributes, and the call's where it refers to those of the function.
Status Inliner::add_attributes(const onnx::NodeProto& inner, Call& call, onnx::NodeProto& node) {
  for (const onnx::AttributeProto& attr : inner.attribute()) {
    const bool is_own = attr.ref_attr_name().empty();
    const auto found = call.attributes.find(attr.ref_attr_name());
    if (!is_own && found == call.attributes.end()) continue;  // left out: the operator's default
    onnx::AttributeProto& copy = *node.add_attribute();
    copy = is_own ? attr : found->second;
    copy.set_name(attr.name());
    if (is_own && copy.has_g()) PIPER_TRY(rename_graph(*copy.mutable_g(), call));
  }
  return ok_status();
}

Status Inliner::expand_call(const onnx::NodeProto& node, const onnx::FunctionProto& function,
                            Nodes& out) {
  if (std::find(open_.begin(), open_.end(), &function) != open_.end())
    return fail("{} calls itself", label(function));
  if (open_.size() >= kMaxDepth)
    return fail("{} is called {} functions deep, which is not supported", label(function),
                kMaxDepth);
  PIPER_ASSIGN(Call call, make_call(node, function));
  Nodes body;
  for (const onnx::NodeProto& inner : function.node()) {
    PIPER_ASSIGN(*body.Add(), body_node(inner, call));
    bytes_ += static_cast<int64_t>(body.rbegin()->ByteSizeLong());
    if (bytes_ > kMaxBytes)
      return fail("calls of its functions make more than {}", human_bytes(kMaxBytes));
    // What the exporter says of the call holds for its nodes.
    onnx::NodeProto& made = body.at(body.size() - 1);
    pb::UnknownFieldSet* own = made.GetReflection()->MutableUnknownFields(&made);
    if (own->empty()) own->MergeFrom(node.GetReflection()->GetUnknownFields(node));
  }
  for (int i = 0; i < node.output_size(); ++i) {  // an output that is an input, or stands twice
    if (node.output(i).empty() || call.names[function.output(i)] == node.output(i)) continue;
    onnx::NodeProto& same = *body.Add();
    same.set_op_type("Identity");
    same.add_input(call.names[function.output(i)]);
    same.add_output(node.output(i));
  }
  open_.push_back(&function);
  PIPER_TRY(expand(body));
  open_.pop_back();
  for (onnx::NodeProto& made : body) *out.Add() = std::move(made);
  return ok_status();
}

Status Inliner::expand(Nodes& nodes) {
  Nodes out;
  for (onnx::NodeProto& node : nodes) {
    for (onnx::AttributeProto& attr : *node.mutable_attribute()) {
      if (attr.has_g()) PIPER_TRY(expand(*attr.mutable_g()->mutable_node()));
    }
    if (++nodes_ > kMaxNodes) {
      return fail("its functions make more than {} nodes", kMaxNodes);
    }
    if (const onnx::FunctionProto* function = find(node)) {
      PIPER_TRY(expand_call(node, *function, out));
    } else {
      *out.Add() = std::move(node);
    }
  }
  nodes.Swap(&out);
  return ok_status();
}

Result<Opsets> Inliner::run() {
  for (const onnx::FunctionProto& function : model_.functions()) {
    if (!functions_.emplace(std::pair(plain_domain(function.domain()), function.name()), &function)
             .second) {
      return fail("{} is there twice", label(function));
    }
  }
  PIPER_TRY(expand(*model_.mutable_graph()->mutable_node()));
  return std::move(opsets_);
}

}  // namespace

Result<Opsets> inline_functions(onnx::ModelProto& model) {
  if (model.functions_size() == 0) return Opsets();
  return Inliner(model).run();
}

}  // namespace piper::onnx_import
