// Reads an ONNX file and checks everything that can be checked without knowing operators.
#include <google/protobuf/arena.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <filesystem>
#include <unordered_set>

#include "functions.h"
#include "piper/base/folders.h"
#include "piper/base/parallel.h"
#include "proto_tensor.h"

namespace piper::onnx_import {
namespace {

namespace pb = google::protobuf;

// Messages and texts of a file: two bytes can stand for an object of 150.
constexpr int64_t kMaxEntries = 20'000'000;

// ---- Metadata: kept as unknown fields -----------------------------------------------------------

bool parse_entry(const std::string& bytes, Metadata& out) {
  onnx::StringStringEntryProto entry;
  if (!entry.ParseFromString(bytes)) return false;
  out.emplace_back(std::move(*entry.mutable_key()), std::move(*entry.mutable_value()));
  return true;
}

Result<Metadata> read_metadata(const pb::Message& message, int field) {
  Metadata out;
  const pb::UnknownFieldSet& fields = message.GetReflection()->GetUnknownFields(message);
  for (int i = 0; i < fields.field_count(); ++i) {
    const pb::UnknownField& f = fields.field(i);
    if (f.number() != field || f.type() != pb::UnknownField::TYPE_LENGTH_DELIMITED) continue;
    if (!parse_entry(f.length_delimited(), out)) return fail("metadata that cannot be parsed");
  }
  return out;
}

// Returns the strings of a Python list literal such as "['a', 'b']".
std::vector<std::string> python_strings(std::string_view text) {
  std::vector<std::string> out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char quote = text[i];
    if (quote != '\'' && quote != '"') continue;
    const size_t end = text.find(quote, i + 1);
    if (end == std::string_view::npos) break;
    out.emplace_back(text.substr(i + 1, end - i - 1));
    i = end;
  }
  return out;
}

// ---- Nodes --------------------------------------------------------------------------------------

Result<OnnxAttr> read_attr(const std::string& node, onnx::AttributeProto& attr,
                           ExternalData& files) {
  OnnxAttr out{attr.name(), {}};
  switch (attr.type()) {
    case onnx::AttributeProto::INT:
      out.value = static_cast<int64_t>(attr.i());
      break;
    case onnx::AttributeProto::FLOAT:
      out.value = static_cast<double>(attr.f());
      break;
    case onnx::AttributeProto::STRING:
      out.value = attr.s();
      break;
    case onnx::AttributeProto::INTS:
      out.value = std::vector<int64_t>(attr.ints().begin(), attr.ints().end());
      break;
    case onnx::AttributeProto::FLOATS:
      out.value = std::vector<double>(attr.floats().begin(), attr.floats().end());
      break;
    case onnx::AttributeProto::STRINGS:
      out.value = std::vector<std::string>(attr.strings().begin(), attr.strings().end());
      break;
    case onnx::AttributeProto::TENSOR: {
      const std::string who = fmt::format("{}: attribute '{}'", node, shown(attr.name()));
      PIPER_ASSIGN(out.value, read_tensor(who, *attr.mutable_t(), files));
      break;
    }
    default:
      break;
  }
  return out;
}

Result<OnnxNode> read_node(onnx::NodeProto& node, ExternalData& files, Result<Metadata> metadata);

Result<OnnxSubgraph> read_branch(onnx::AttributeProto& attr, ExternalData& files) {
  OnnxSubgraph out;
  out.attr = attr.name();
  onnx::GraphProto& graph = *attr.mutable_g();
  if (graph.sparse_initializer_size() > 0) return fail("sparse initializers are not supported");
  for (onnx::TensorProto& tensor : *graph.mutable_initializer()) {
    PIPER_TRY(check_name("an initializer", tensor.name()));
    PIPER_ASSIGN(OnnxTensor read,
                 read_tensor(fmt::format("initializer '{}'", shown(tensor.name())), tensor, files));
    out.initializers.push_back(std::move(read));
  }
  for (onnx::NodeProto& node : *graph.mutable_node()) {
    PIPER_ASSIGN(OnnxNode read, read_node(node, files, read_metadata(node, kNodeMetadata)));
    out.nodes.push_back(std::move(read));
  }
  for (const onnx::ValueInfoProto& value : graph.input()) out.inputs.push_back(value.name());
  for (const onnx::ValueInfoProto& value : graph.output()) out.outputs.push_back(value.name());
  return out;
}

Result<OnnxNode> read_node(onnx::NodeProto& node, ExternalData& files, Result<Metadata> metadata) {
  OnnxNode out;
  out.name = node.name();
  out.op = node.op_type();
  out.domain = node.domain() == "ai.onnx" ? "" : node.domain();
  out.inputs.assign(node.input().begin(), node.input().end());
  out.outputs.assign(node.output().begin(), node.output().end());
  for (const std::string& output : out.outputs) {
    if (out.name.empty()) out.name = output;
  }
  PIPER_TRY(check_name("a node", out.name));
  if (out.op.empty() || !check_name("an op", out.op)) {
    return fail("node '{}' has no op type", shown(out.name));
  }
  for (onnx::AttributeProto& attr : *node.mutable_attribute()) {
    if (out.find(attr.name())) {
      return fail("{} has the attribute '{}' twice", out.label(), shown(attr.name()));
    }
    const bool nests = out.op == "If" || out.op == "Loop" || out.op == "Scan";
    if (nests && attr.has_g()) {
      PIPER_ASSIGN(OnnxSubgraph branch, read_branch(attr, files));
      out.branches.push_back(std::move(branch));
      continue;
    }
    PIPER_ASSIGN(OnnxAttr read, read_attr(out.label(), attr, files));
    out.attrs.push_back(std::move(read));
  }
  if (!metadata) return fail("{} has {}", out.label(), metadata.error().message);
  out.metadata = *std::move(metadata);
  return out;
}

// What is refused of it goes into `refused`.
OnnxInput read_input(const onnx::ValueInfoProto& value, std::optional<Error>& refused) {
  OnnxInput out;
  out.name = value.name();
  const std::string who = fmt::format("input '{}'", shown(out.name));
  const auto refuse = [&](Error error) {
    if (!refused) refused = std::move(error);
    return out;
  };
  out.has_shape = false;
  out.type = "no tensor";
  if (!value.type().has_tensor_type()) return refuse(fail("{} is not a tensor", who));
  const onnx::TypeProto::Tensor& type = value.type().tensor_type();
  out.type = type_name(type.elem_type());
  out.has_shape = type.has_shape();
  for (const onnx::TensorShapeProto::Dimension& dim : type.shape().dim()) {
    if (dim.has_dim_value() && dim.dim_value() < -1)
      refuse(fail("{} has a negative dim: {}", who, dim.dim_value()));
    out.dims.push_back({dim.has_dim_value() ? dim.dim_value() : -1, dim.dim_param()});
  }
  const std::optional<DType> dtype = dtype_of_code(type.elem_type());
  if (!dtype) return refuse(fail("{} has elements of {}, which is not supported", who, out.type));
  out.dtype = *dtype;
  out.narrow = narrow_of_code(type.elem_type());
  if (type.shape().dim_size() > kMaxRank)
    return refuse(fail("{} has {} dims", who, type.shape().dim_size()));
  return out;
}

// ---- The graph ----------------------------------------------------------------------------------

// Returns the names of all initializers, also of those whose values are refused.
Result<std::unordered_set<std::string>> read_initializers(onnx::GraphProto& graph,
                                                          ExternalData& files, OnnxModel& model) {
  if (graph.sparse_initializer_size() > 0) return fail("sparse initializers are not supported");
  std::unordered_set<std::string> stored;
  for (onnx::TensorProto& tensor : *graph.mutable_initializer()) {
    PIPER_TRY(check_name("an initializer", tensor.name()));
    const std::string who = fmt::format("initializer '{}'", shown(tensor.name()));
    if (!stored.insert(tensor.name()).second) return fail("{} is there twice", who);
    Result<OnnxTensor> read = read_tensor(who, tensor, files);
    if (read)
      model.initializers.push_back(*std::move(read));
    else if (!model.refused)
      model.refused = std::move(read).error();
  }
  return stored;
}

Status read_values(onnx::GraphProto& graph, ExternalData& files, OnnxModel& model) {
  PIPER_ASSIGN(const auto stored, read_initializers(graph, files, model));
  for (const onnx::ValueInfoProto& value : graph.input()) {
    PIPER_TRY(check_name("an input", value.name()));
    if (stored.count(value.name())) continue;  // its default value is an initializer: IR 3
    model.inputs.push_back(read_input(value, model.refused));
  }
  for (const onnx::ValueInfoProto& value : graph.output()) model.outputs.push_back(value.name());
  return ok_status();
}

Status read_value_infos(const onnx::GraphProto& graph, OnnxModel& model) {
  std::vector<std::pair<std::string_view, OnnxTensor*>> by_name;
  for (OnnxTensor& tensor : model.initializers) by_name.emplace_back(tensor.name, &tensor);
  std::sort(by_name.begin(), by_name.end());
  for (const OnnxInput& input : model.inputs)
    if (!info(input.dtype).is_float) model.integers.insert(input.name);
  for (const onnx::ValueInfoProto& value : graph.value_info()) {
    const auto dtype = dtype_of_code(value.type().tensor_type().elem_type());
    if (dtype && !info(*dtype).is_float) model.integers.insert(value.name());
    const auto found = std::lower_bound(
        by_name.begin(), by_name.end(), value.name(),
        [](const auto& entry, std::string_view name) { return entry.first < name; });
    if (found == by_name.end() || found->first != value.name()) continue;
    PIPER_ASSIGN(const Metadata metadata, read_metadata(value, kValueMetadata));
    found->second->folded_from =
        python_strings(find_metadata(metadata, "pkg.onnxscript.optimizer.folded_from"));
  }
  return ok_status();
}

// ---- The file -----------------------------------------------------------------------------------

// Counts messages and texts in the encoded bytes, at any depth, before objects many times their
// size are made of them.
int64_t count_entries(pb::io::CodedInputStream& in, const pb::Descriptor& type, int depth = 0) {
  constexpr int kMaxDepth = 100;  // the parser reads no deeper
  int64_t count = 0;
  while (const uint32_t tag = in.ReadTag()) {
    const uint32_t field = tag >> 3, kind = tag & 7;
    if (kind == 2) {
      uint32_t length = 0;
      if (!in.ReadVarint32(&length)) break;
      ++count;
      const pb::FieldDescriptor* known = type.FindFieldByNumber(static_cast<int>(field));
      if (known && known->message_type() && depth < kMaxDepth) {
        const auto limit = in.PushLimit(static_cast<int>(length));
        count += count_entries(in, *known->message_type(), depth + 1);
        if (!in.Skip(in.BytesUntilLimit())) break;
        in.PopLimit(limit);
      } else if (!in.Skip(static_cast<int>(length))) {
        break;
      }
    } else if (kind == 0) {
      uint64_t ignored = 0;
      if (!in.ReadVarint64(&ignored)) break;
    } else if (!in.Skip(kind == 1 ? 8 : kind == 5 ? 4 : 0) || kind == 3 || kind == 4) {
      break;
    }
  }
  return count;
}

Result<onnx::ModelProto*> parse_model(const std::string& path, int64_t max_bytes,
                                      pb::Arena& arena) {
  Result<Bytes> mapped = map_file(path);
  if (!mapped) {
    mapped.error().message +=
        did_you_mean(std::filesystem::path(path).filename().string(), files_beside(path, ".onnx"));
    return std::move(mapped).error();
  }
  const Bytes file = *std::move(mapped);
  const int64_t limit = std::min<int64_t>(max_bytes, INT32_MAX);
  if (static_cast<int64_t>(file.size) > limit) {
    return fail("the model file has {}; at most {} are read",
                human_bytes(static_cast<int64_t>(file.size)), human_bytes(limit))
        .with_note("help: store its tensors beside it, as external data");
  }
  const auto* data = reinterpret_cast<const uint8_t*>(file.data);
  const int size = static_cast<int>(file.size);
  pb::io::CodedInputStream count(data, size);
  if (count_entries(count, *onnx::ModelProto::descriptor()) > kMaxEntries)
    return fail("the model has more than {} messages and texts (nodes, tensors, names)",
                kMaxEntries);
  auto* model = pb::Arena::CreateMessage<onnx::ModelProto>(&arena);
  pb::LogSilencer silence;
  if (size == 0 || !model->ParseFromArray(data, size)) {
    return fail("not an ONNX model, or a truncated one");
  }
  return model;
}

Status read_nodes(onnx::GraphProto& graph, ExternalData& files, OnnxModel& model) {
  // Most of a node is metadata, and each node's stand for themselves.
  constexpr int kBlock = 256;
  const int count = graph.node_size();
  std::vector<Result<Metadata>> metadata(static_cast<size_t>(count), Metadata());
  in_parallel(static_cast<size_t>((count + kBlock - 1) / kBlock), [&](size_t b) {
    const int begin = static_cast<int>(b) * kBlock;
    for (int n = begin; n < std::min(begin + kBlock, count); ++n)
      metadata[static_cast<size_t>(n)] = read_metadata(graph.node(n), kNodeMetadata);
  });
  model.nodes.reserve(model.nodes.size() + static_cast<size_t>(count));
  for (int n = 0; n < count; ++n) {
    Result<OnnxNode> read =
        read_node(*graph.mutable_node(n), files, std::move(metadata[static_cast<size_t>(n)]));
    if (read)
      model.nodes.push_back(*std::move(read));
    else if (!model.refused)
      model.refused = std::move(read).error();
  }
  return ok_status();
}

// The algorithm's values and nodes join those of the graph.
Status read_algorithm(onnx::ModelProto& proto, ExternalData& files, OnnxModel& model) {
  if (proto.training_info_size() == 0) return ok_status();
  if (proto.training_info_size() > 1)
    return fail("{} entries of training_info are not supported, only one",
                proto.training_info_size());
  onnx::TrainingInfoProto& info = *proto.mutable_training_info(0);
  model.algorithm.emplace();
  model.algorithm->first_initializer = model.initializers.size();
  for (const onnx::StringStringEntryProto& entry : info.update_binding())
    model.algorithm->updates.emplace_back(entry.key(), entry.value());
  const std::vector<std::string> outputs = model.outputs;
  PIPER_TRY(read_values(*info.mutable_algorithm(), files, model));
  model.outputs = outputs;  // the algorithm's are bound
  return read_nodes(*info.mutable_algorithm(), files, model);
}

// Notes, for nodes that come from functions, the opset for which the function is written.
void note_opsets(const Opsets& opsets, std::vector<OnnxNode>& nodes) {
  if (opsets.empty()) return;
  for (OnnxNode& node : nodes) {
    for (const std::string& output : node.outputs)
      if (const auto of = opsets.find(output); of != opsets.end()) node.opset = of->second;
    for (OnnxSubgraph& branch : node.branches) note_opsets(opsets, branch.nodes);
  }
}

// Reads which program wrote the file, and which version of the standard operators it uses.
Status read_origin(const onnx::ModelProto& proto, OnnxModel& model) {
  for (const onnx::OperatorSetIdProto& opset : proto.opset_import()) {
    if (opset.domain().empty() || opset.domain() == "ai.onnx") model.opset = opset.version();
  }
  if (model.opset < 1) return fail("the model names no version of the standard operators");
  model.producer =
      shown(proto.producer_name().empty() ? "an unnamed program"
                                          : proto.producer_name() + " " + proto.producer_version());
  return ok_status();
}

Status read_model(onnx::ModelProto& proto, bool absent_values, OnnxModel& model) {
  if (!proto.has_graph()) return fail("the model has no graph");
  PIPER_ASSIGN(const Opsets opsets, inline_functions(proto));
  PIPER_TRY(read_origin(proto, model));
  ExternalData files(model.path, absent_values);
  onnx::GraphProto& graph = *proto.mutable_graph();
  PIPER_TRY(read_values(graph, files, model));
  PIPER_TRY(read_nodes(graph, files, model));
  note_opsets(opsets, model.nodes);
  PIPER_TRY(read_algorithm(proto, files, model));
  model.absent_bytes = files.absent_bytes();
  PIPER_ASSIGN(model.metadata, read_metadata(graph, kGraphMetadata));
  PIPER_TRY(read_value_infos(graph, model));
  if (Status defined = check_defined(model); !defined && !model.refused)
    model.refused = std::move(defined).error();
  return ok_status();
}

}  // namespace

std::string_view find_metadata(const Metadata& metadata, std::string_view key) {
  for (const auto& [name, value] : metadata) {
    if (name == key) return value;
  }
  return {};
}

const OnnxAttr* OnnxNode::find(std::string_view attr) const {
  for (const OnnxAttr& candidate : attrs) {
    if (candidate.name == attr) return &candidate;
  }
  return nullptr;
}

std::string OnnxNode::label() const {
  const std::string kind = domain.empty() ? op : domain + "::" + op;
  return fmt::format("node '{}' ({})", shown(name), shown(kind));
}

Result<OnnxModel> read_onnx(const std::string& path, int64_t max_file_bytes, bool absent_values) {
  OnnxModel model;
  model.path = path;
  auto located = [&](Error error) {
    if (error.at.file.empty()) error.at = model.at();
    return error;
  };
  pb::Arena arena;
  const Result<onnx::ModelProto*> proto = parse_model(path, max_file_bytes, arena);
  if (!proto) return located(proto.error());
  if (Status read = read_model(**proto, absent_values, model); !read)
    return located(std::move(read).error());
  if (model.refused) model.refused = located(*std::move(model.refused));
  return model;
}

}  // namespace piper::onnx_import
