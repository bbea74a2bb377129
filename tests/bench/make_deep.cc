// usage: make_deep samples/gpt/model.onnx LAYERS WIDTH FOLDER: a deep model as the exporter writes
// it. The sample's last block is repeated under the names, calls and scopes that the exporter would
// give; all its widths (and the context) become WIDTH, in 8 heads; random weights go to one
// external file. Writes FOLDER/model.onnx and FOLDER/model.onnx.data.
#include <fmt/core.h>
#include <onnx/onnx_pb.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int64_t kOldWidth = 128, kOldHeads = 4, kHeads = 8;
constexpr int kLastBlock = 3;

// The numbers of the sample that follow from its width.
int64_t widened(int64_t dim, int64_t width) {
  for (const int64_t times : {1, 3, 4})
    if (dim == times * kOldWidth) return times * width;
  if (dim == kOldHeads) return kHeads;
  return dim == kOldWidth / kOldHeads ? width / kHeads : dim;
}

// Applies `change` to the metadata entries of a message, which the installed schema does not know.
template <class Change>
void change_metadata(google::protobuf::Message& message, Change change) {
  auto& fields = *message.GetReflection()->MutableUnknownFields(&message);
  for (int i = 0; i < fields.field_count(); ++i) {
    auto& field = *fields.mutable_field(i);
    onnx::StringStringEntryProto entry;
    if (field.type() != google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED ||
        !entry.ParseFromString(field.length_delimited()))
      continue;
    change(entry);
    field.set_length_delimited(entry.SerializeAsString());
  }
}

std::string metadata_of(onnx::NodeProto& node, const std::string& key) {
  std::string found;
  change_metadata(node, [&](const auto& entry) {
    if (entry.key() == key) found = entry.value();
  });
  return found;
}

bool in_block(onnx::NodeProto& node) {
  return metadata_of(node, "namespace").find(fmt::format("model.h.{}:", kLastBlock)) !=
         std::string::npos;
}

const std::regex& words() {
  static const std::regex pattern("[A-Za-z_][A-Za-z_0-9.]*");
  return pattern;
}

// What another layer calls things: names of the block's own get a suffix, scopes and parameters the
// layer's number.
class Renaming {
 public:
  Renaming(const std::set<std::string>& own, int layer) : own_(own), layer_(layer) {}
  std::string word(std::string word) const {
    if (own_.contains(word) && !word.starts_with("model."))
      return fmt::format("{}_of_{}", word, layer_);
    for (const char mark : {'.', '_'}) {
      const std::string scope = fmt::format("model{}h{}{}", mark, mark, kLastBlock);
      const size_t at = word.find(scope), end = at + scope.size();
      if (at == word.npos || (end < word.size() && word[end] != mark)) continue;
      return word.replace(end - 1, 1, std::to_string(layer_));
    }
    return word;
  }
  std::string text(const std::string& text) const {
    std::string out;
    size_t end = 0;
    for (std::sregex_iterator it(text.begin(), text.end(), words()), last; it != last; ++it) {
      const auto at = static_cast<size_t>(it->position());
      out += text.substr(end, at - end) + word(it->str());
      end = at + static_cast<size_t>(it->length());
    }
    return out + text.substr(end);
  }

 private:
  const std::set<std::string>& own_;
  int layer_;
};

struct Block {
  int first = 0, last = 0;      // nodes
  std::string entry, exit;      // the residual stream before and after it
  std::set<std::string> names;  // what is made or stored for it alone, and its calls
};

// Names of values that calls make or read, parameters left out.
std::set<std::string> called(onnx::NodeProto& node) {
  static const std::regex call("%([A-Za-z_][A-Za-z_0-9]*)");
  const std::string text = metadata_of(node, "pkg.torch.onnx.fx_node");
  std::set<std::string> out;
  for (std::sregex_iterator it(text.begin(), text.end(), call), last; it != last; ++it)
    if (!it->str(1).starts_with("p_")) out.insert(it->str(1));
  return out;
}

Block find_block(onnx::GraphProto& graph) {
  Block block{graph.node_size(), 0, {}, {}, {}};
  for (int n = 0; n < graph.node_size(); ++n) {
    if (!in_block(*graph.mutable_node(n))) continue;
    block.first = std::min(block.first, n);
    block.last = n + 1;
  }
  std::set<std::string> elsewhere;
  for (int n = 0; n < graph.node_size(); ++n) {
    onnx::NodeProto& node = *graph.mutable_node(n);
    const bool own = n >= block.first && n < block.last;
    if (own) block.names.insert(node.name());
    if (!own) elsewhere.insert(node.input().begin(), node.input().end());
    auto& names = own ? block.names : elsewhere;
    if (own || n < block.first) names.insert(node.output().begin(), node.output().end());
    if (own || n < block.first) names.merge(called(node));
    if (own) names.insert(node.input().begin(), node.input().end());
  }
  block.entry = graph.node(block.first).input(0);
  block.exit = graph.node(block.last - 1).output(0);
  elsewhere.erase(block.exit);
  for (const std::string& name : elsewhere) block.names.erase(name);
  block.names.insert(block.exit);
  return block;
}

void widen(onnx::TensorShapeProto& shape, int64_t width) {
  for (auto& dim : *shape.mutable_dim())
    if (dim.has_dim_value()) dim.set_dim_value(widened(dim.dim_value(), width));
}

// Stored integers are shapes and positions.
void widen_integers(onnx::TensorProto& tensor, int64_t old_count, int64_t width) {
  std::vector<int64_t> values(static_cast<size_t>(old_count));
  if (tensor.raw_data().size() == values.size() * 8) {
    std::memcpy(values.data(), tensor.raw_data().data(), values.size() * 8);
    for (int64_t& value : values) value = widened(value, width);
  } else {  // the positions
    values.resize(static_cast<size_t>(width));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(i);
  }
  tensor.clear_external_data();
  tensor.set_data_location(onnx::TensorProto::DEFAULT);
  tensor.set_raw_data(values.data(), values.size() * 8);
}

class Writer {
 public:
  Writer(const std::string& path) : file_(path, std::ios::binary) {}
  // Numbers that differ between tensors; all ones or zeros where the exporter had merged tensors.
  void add(onnx::TensorProto& tensor) {
    int64_t count = 1;
    for (const int64_t dim : tensor.dims()) count *= dim;
    std::vector<float> values(static_cast<size_t>(count));
    const bool ones = tensor.name().ends_with("ln_1.weight");
    const bool zeros = tensor.name().ends_with("ln_1.bias");
    for (float& value : values)
      value = zeros ? 0.f : ones ? 1.f : 0.04f * (static_cast<float>(random_()) * 0x1p-32f - 0.5f);
    tensor.clear_raw_data();
    tensor.set_data_location(onnx::TensorProto::EXTERNAL);
    tensor.clear_external_data();
    const std::pair<const char*, std::string> entries[] = {{"location", "model.onnx.data"},
                                                           {"offset", std::to_string(offset_)},
                                                           {"length", std::to_string(count * 4)}};
    for (const auto& [key, value] : entries) {
      auto* entry = tensor.add_external_data();
      entry->set_key(key);
      entry->set_value(value);
    }
    file_.write(reinterpret_cast<const char*>(values.data()), count * 4);
    offset_ += count * 4;
  }
  bool done() { return file_.flush().good(); }
  int64_t bytes() const { return offset_; }

 private:
  std::ofstream file_;
  std::minstd_rand random_{1};
  int64_t offset_ = 0;
};

onnx::NodeProto renamed(onnx::NodeProto node, const Renaming& names) {
  node.set_name(names.word(node.name()));
  for (std::string& name : *node.mutable_input()) name = names.word(name);
  for (std::string& name : *node.mutable_output()) name = names.word(name);
  change_metadata(node, [&](auto& entry) { entry.set_value(names.text(entry.value())); });
  return node;
}

void replace_input(onnx::NodeProto& node, const std::string& from, const std::string& to) {
  for (std::string& name : *node.mutable_input())
    if (name == from) name = to;
  const std::regex call("%" + from + "\\b");
  change_metadata(node, [&](auto& entry) {
    entry.set_value(std::regex_replace(entry.value(), call, "%" + to));
  });
}

// The lines of the signature that speak of the block, again for every further layer.
void extend_signature(onnx::GraphProto& graph, const Block& block, int layers) {
  change_metadata(graph, [&](auto& entry) {
    std::string out, lines;
    for (std::istringstream text(entry.value()); std::getline(text, out);) {
      lines += out + "\n";
      if (out.find(fmt::format("p_model_h_{}_", kLastBlock)) != out.npos)
        for (int layer = kLastBlock + 1; layer < layers; ++layer)
          lines += Renaming(block.names, layer).text(out) + "\n";
    }
    entry.set_value(lines);
  });
}

void add_layer(const onnx::GraphProto& from, const Block& block, int layer,
               const std::string& stream, onnx::GraphProto& out) {
  const Renaming names(block.names, layer);
  for (int n = block.first; n < block.last; ++n) {
    *out.add_node() = renamed(from.node(n), names);
    replace_input(*out.mutable_node(out.node_size() - 1), block.entry, stream);
  }
  const auto copies = [&](const auto& list, auto* to) {
    for (const auto& item : list) {
      const std::string name = names.word(item.name());
      if (name == item.name() || !block.names.contains(item.name())) continue;
      *to->Add() = item;
      to->rbegin()->set_name(name);
      change_metadata(*to->rbegin(),
                      [&](auto& entry) { entry.set_value(names.text(entry.value())); });
    }
  };
  copies(from.initializer(), out.mutable_initializer());
  copies(from.value_info(), out.mutable_value_info());
}

void deepen(onnx::GraphProto& graph, int layers) {
  const Block block = find_block(graph);
  const onnx::GraphProto from = graph;
  graph.mutable_node()->DeleteSubrange(block.last, graph.node_size() - block.last);
  std::string stream = block.exit;
  for (int layer = kLastBlock + 1; layer < layers; ++layer) {
    add_layer(from, block, layer, stream, graph);
    stream = Renaming(block.names, layer).word(block.exit);
  }
  for (int n = block.last; n < from.node_size(); ++n) {
    *graph.add_node() = from.node(n);
    replace_input(*graph.mutable_node(graph.node_size() - 1), block.exit, stream);
  }
  extend_signature(graph, block, layers);
}

void widen(onnx::GraphProto& graph, int64_t width, Writer& writer) {
  for (auto* list : {graph.mutable_input(), graph.mutable_output(), graph.mutable_value_info()})
    for (auto& value : *list)
      widen(*value.mutable_type()->mutable_tensor_type()->mutable_shape(), width);
  for (onnx::TensorProto& tensor : *graph.mutable_initializer()) {
    const bool is_shape = tensor.data_type() == onnx::TensorProto::INT64;
    const int64_t old_count = tensor.dims_size() == 1 ? tensor.dims(0) : 1;
    const bool is_scalar = tensor.dims_size() == 0 || (tensor.dims_size() == 1 && old_count == 1);
    if (!is_shape || tensor.raw_data().empty())
      for (int64_t& dim : *tensor.mutable_dims()) dim = widened(dim, width);
    if (is_shape) {
      widen_integers(tensor, old_count, width);
    } else if (!is_scalar) {
      writer.add(tensor);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fputs("usage: make_deep samples/gpt/model.onnx LAYERS WIDTH FOLDER\n", stderr);
    return 2;
  }
  const int layers = std::atoi(argv[2]);
  const int64_t width = std::atoll(argv[3]);
  const std::string folder = argv[4];
  std::ifstream in(argv[1], std::ios::binary);
  onnx::ModelProto model;
  if (!model.ParseFromIstream(&in) || layers <= kLastBlock || width < kHeads ||
      width % kHeads != 0) {
    std::fputs("no such model, or impossible numbers\n", stderr);
    return 1;
  }
  deepen(*model.mutable_graph(), layers);
  Writer writer(folder + "/model.onnx.data");
  widen(*model.mutable_graph(), width, writer);
  std::ofstream out(folder + "/model.onnx", std::ios::binary);
  if (!model.SerializeToOstream(&out) || !out.flush() || !writer.done()) {
    std::fprintf(stderr, "cannot write to %s\n", folder.c_str());
    return 1;
  }
  std::printf("%d layers, %d nodes, %.1f MB of weights\n", layers, model.graph().node_size(),
              static_cast<double>(writer.bytes()) / 1e6);
}
