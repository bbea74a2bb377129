// What fuzzing begins with, cut down from real files.
#include <onnx/onnx_pb.h>

#include <filesystem>
#include <map>
#include <set>

#include "piper/planner/compile.h"
#include "piper/runtime/checkpoint.h"
#include "targets.h"

namespace piper::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr int kWindow = 12, kStride = 9;
constexpr size_t kWhole = 60'000;  // bytes
constexpr size_t kPlan = 40'000;

std::string bytes_of(const std::string& path) {
  const Result<Bytes> file = map_file(path);
  return file ? std::string(as_text(file->span())) : std::string();
}

// Nodes [first, first + kWindow) with the initializers they read; what others made for them is an
// input.
onnx::ModelProto window(const onnx::ModelProto& model, int first) {
  const onnx::GraphProto& graph = model.graph();
  std::map<std::string, const onnx::ValueInfoProto*> types;
  for (const auto* list : {&graph.input(), &graph.value_info(), &graph.output()})
    for (const onnx::ValueInfoProto& value : *list) types[value.name()] = &value;
  onnx::ModelProto out = model;
  out.clear_graph();
  onnx::GraphProto& part = *out.mutable_graph();
  part.set_name(graph.name());
  std::set<std::string> known, read;
  for (int n = first; n < std::min(first + kWindow, graph.node_size()); ++n) {
    *part.add_node() = graph.node(n);
    for (const std::string& name : graph.node(n).output()) known.insert(name);
    for (const std::string& name : graph.node(n).input()) read.insert(name);
  }
  for (const onnx::TensorProto& tensor : graph.initializer()) {
    if (!read.contains(tensor.name()) || !known.insert(tensor.name()).second) continue;
    if (tensor.ByteSizeLong() < 10'000) *part.add_initializer() = tensor;
  }
  for (const std::string& name : read) {
    if (!known.insert(name).second || !types.contains(name)) continue;
    *part.add_input() = *types[name];
  }
  for (const std::string& name : part.node(part.node_size() - 1).output()) {
    if (types.contains(name))
      *part.add_output() = *types[name];
    else
      part.add_output()->set_name(name);
  }
  return out;
}

void add_windows(const onnx::ModelProto& model, Seeds& seeds) {
  for (int first = 0; first < model.graph().node_size(); first += kStride)
    seeds["onnx"].push_back(window(model, first).SerializeAsString());
}

// Plans of a small model under each strategy, and for one device: roles as bytes, all of them as
// text, and the files around them.
void add_plans(const std::string& model, std::vector<std::string> strategies, Seeds& seeds) {
  const Folder folder("seeds");
  strategies.push_back(folder.write("one.yaml",
                                    "piper: 1\n"
                                    "train: {global_batch: 4, optimizer: {adamw: {lr: 1e-3}}}\n"
                                    "directives: [{split: {dim: batch, into: 2, as: mb}}]\n"));
  for (const std::string& strategy : strategies) {
    CompileOptions options;
    options.model = model;
    options.strategy = strategy;
    options.oracles = false;
    const Result<Compiled> compiled = compile(options);
    if (!compiled) continue;
    std::string text;
    for (const RoleProgram& role : compiled->set.roles) text += print_plan(role);
    if (text.size() < kPlan) seeds["plan_text"].push_back(text);
    if (compiled->set.world() == 1) seeds["run"].push_back(text);
    const std::string plans = folder.path("plans");
    if (!write_plan_set(compiled->set, nullptr, nullptr, plans, {true})) continue;
    for (const auto& file : fs::directory_iterator(plans + "/roles")) {
      const std::string bytes = bytes_of(file.path());
      if (bytes.size() > kPlan) continue;
      seeds["plan"].push_back(bytes.substr(52));
      seeds["plan_set"].push_back("r" + bytes);
    }
    seeds["plan_set"].push_back("m" + bytes_of(plans + "/manifest.json"));
    seeds["plan_set"].push_back("h" + bytes_of(plans + "/rank0.plan").substr(52));
    seeds["plan_set"].push_back("H" + bytes_of(plans + "/rank0.plan"));
  }
}

void add_data(Seeds& seeds) {
  const std::string numbers(64, '\3');
  std::string npy("\x93NUMPY\1\0", 8),
      header = "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 4), }\n";
  npy += static_cast<char>(header.size());
  npy += '\0';
  seeds["data"].push_back("n" + npy + header + numbers);
  for (const char* kind : {"0", "1", "2", "3"}) seeds["data"].push_back(kind + numbers);
  std::string listed = header;
  listed.replace(listed.find("<i8"), 3, "<u2").replace(listed.find("(2, 4)"), 6, "(32, )");
  seeds["data"].push_back("3" + npy + listed + numbers);
  std::string headed(1024, '\0');
  headed.replace(0, 12, std::string("\x88\xd8\x34\x01\1\0\0\0\x20\0\0\0", 12));
  seeds["data"].push_back("3" + headed + numbers);
  // Two documents of 12 and 20 tokens.
  seeds["data"].push_back(
      std::string("iMMIDIDX\0\0\1\0\0\0\0\0\0\0\x08\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0", 35) +
      std::string("\x0c\0\0\0\x14\0\0\0", 8) + std::string(8, '\0') +
      std::string("\x18\0\0\0\0\0\0\0", 8) + std::string(8, '\0') +
      std::string("\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0", 16));
  seeds["data"].push_back(
      "msources:\n  - {name: a, files: a.bin, weight: 0.7, separator: 3, type: u16}\n"
      "  - {name: b, files: [b.bin], weight: 0.3, mask: [b.bin]}\n"
      "phases:\n  - {from: 5, weights: {a: 1, b: 2}}\n");
  std::string tensors =
      R"({"batch/0/ids":{"dtype":"I64","shape":[2,4],"data_offsets":[0,64]},"batch/0/labels":{"dtype":"I32","shape":[2,4],"data_offsets":[64,96]},"batch/0/position_ids":{"dtype":"I64","shape":[2,4],"data_offsets":[96,160]}})";
  std::string size(8, '\0');
  size[0] = static_cast<char>(tensors.size());
  tensors = size + tensors + numbers + numbers.substr(0, 32) + numbers;
  seeds["data"].push_back("s" + tensors);
  seeds["plan_set"].push_back("p" + tensors);
}

void add_checkpoints(Seeds& seeds) {
  Checkpoint about;
  about.step = 3;
  about.sources = {{"text", 12}};
  about.files = {{"rank00000.safetensors", digest(""), 0}};
  seeds["checkpoint"].push_back("m" + print_checkpoint(about));
  seeds["checkpoint"].push_back(
      R"(b{"w": {"shape": [4, 6], "blocks": [[0, 1, 2, 1], [1, 2, 2, 1]], "range": [1, 6]}})");
  seeds["checkpoint"].push_back(R"(b{"w": {"shape": [6], "blocks": [], "range": [0, 6]}})");
}

// The order programs inside strategy files: what follows `program: |`.
void add_strategy(const std::string& text, Seeds& seeds) {
  seeds["strategy"].push_back(text);
  const size_t at = text.find("program: |");
  if (at != text.npos) seeds["order"].push_back(text.substr(text.find('\n', at) + 1));
}

}  // namespace

Seeds make_seeds(const std::vector<std::string>& strategies,
                 const std::vector<std::string>& models) {
  Seeds seeds;
  for (const std::string& path : strategies) add_strategy(bytes_of(path), seeds);
  for (const std::string& path : models) {
    const std::string bytes = bytes_of(path);
    onnx::ModelProto model;
    if (!model.ParseFromString(bytes)) continue;
    add_windows(model, seeds);
    if (bytes.size() > kWhole) continue;
    seeds["onnx"].push_back(bytes);
    add_plans(path, strategies, seeds);
  }
  add_data(seeds);
  add_checkpoints(seeds);
  seeds["kernel"] = kernel_seeds();
  return seeds;
}

}  // namespace piper::fuzz
