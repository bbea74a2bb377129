// An ONNX file as this room sees it: checked, with its data mapped, free of protobuf. proto.cc
// makes it; it, what it calls (proto_tensor.cc, functions.cc) and write_training.cc are the only
// sources that include onnx.pb.h.
#pragma once

#include <set>
#include <variant>

#include "piper/frontend/import.h"

namespace piper::onnx_import {

using Metadata = std::vector<std::pair<std::string, std::string>>;
// The value of `key`, or "".
std::string_view find_metadata(const Metadata& metadata, std::string_view key);

// The element type that the format has this number for (TensorProto.DataType); nothing: it is not
// supported.
std::optional<DType> dtype_of_code(int64_t code);
// What the format calls it, in small letters: "uint8".
std::string type_name(int64_t code);
int64_t code_of_type(std::string name);  // of letters of any size; 0 where there is none

// Integers of the file that have 2, 4, 8 or 16 bits, which are held in i32; bits 0: they are none.
struct Narrow {
  int bits = 0;
  bool is_signed = false;
  bool operator==(const Narrow&) const = default;
};
inline constexpr Narrow kUint8{8, false};
Narrow narrow_of_code(int64_t code);

struct OnnxTensor {
  std::string name;
  TensorType type;
  Bytes data;                            // exactly type.bytes()
  bool mapped = false;                   // a window of a file: may be released
  std::vector<std::string> folded_from;  // initializers: names that the exporter computed it from
  Narrow narrow = {};
};

struct OnnxAttr {
  std::string name;
  // monostate: of a kind that no supported op has (graphs, types, sparse tensors).
  std::variant<std::monostate, int64_t, double, std::string, std::vector<int64_t>,
               std::vector<double>, std::vector<std::string>, OnnxTensor>
      value;
};

struct OnnxSubgraph;
struct OnnxNode {
  std::string name, op, domain;              // domain "" is ai.onnx
  std::vector<std::string> inputs, outputs;  // "" where an optional one is absent
  std::vector<OnnxAttr> attrs;
  Metadata metadata;
  std::vector<OnnxSubgraph> branches;  // of an If; the body of a Loop or Scan
  const OnnxAttr* find(std::string_view attr) const;
  // Of a kind that OnnxAttr::value has; null where there is none of that name and kind.
  template <class T>
  const T* get(std::string_view attr) const {
    const OnnxAttr* found = find(attr);
    return found ? std::get_if<T>(&found->value) : nullptr;
  }
  template <class T>
  T get_or(std::string_view attr, T otherwise = T()) const {
    const T* value = get<T>(attr);
    return value ? *value : std::move(otherwise);
  }
  // "node 'x' (MatMul)": how every error about it begins.
  std::string label() const;
};

struct OnnxSubgraph {
  std::string attr;  // "then_branch", "else_branch" or "body"
  std::vector<std::string> inputs;
  std::vector<OnnxNode> nodes;
  std::vector<OnnxTensor> initializers;
  std::vector<std::string> outputs;
};

struct OnnxDim {
  int64_t value = -1;  // -1: dynamic
  std::string param;   // its name, or ""
};
struct OnnxInput {
  std::string name;
  DType dtype = DType::kF32;
  std::string type;  // as the file has it: "float", "uint8", "a sequence"
  bool has_shape = true;
  std::vector<OnnxDim> dims;
  Narrow narrow = {};
};

struct OnnxAlgorithm {  // of training_info; its nodes and values stand behind those of the graph
  std::vector<std::pair<std::string, std::string>> updates;  // initializer, and what it becomes
  size_t first_initializer = 0;
};

struct OnnxModel {
  std::string path;
  std::string producer;  // the program that wrote it, and its version
  int64_t opset = 0;
  std::vector<OnnxNode> nodes;
  std::vector<OnnxTensor> initializers;
  std::vector<OnnxInput> inputs;  // without those that are initializers
  std::vector<std::string> outputs;
  std::set<std::string, std::less<>> integers;  // values between nodes that are no floats
  Metadata metadata;                            // of the graph
  std::optional<OnnxAlgorithm> algorithm;       // until take_training
  std::optional<TrainingInfo> training;         // from then on
  std::string loss;                             // that training_info names, or ""
  // The newer exporter says in metadata what its tensors and calls are; some programs remove it.
  bool lacks_calls = false;
  // What of the file is not supported whatever is done with it; the first of them. Without the
  // tensors that are refused it is no model, but can be described.
  std::optional<Error> refused;
  SourceSpan at() const { return {path, 0, 0, 1}; }
};

Result<OnnxModel> read_onnx(const std::string& path, int64_t max_file_bytes);
// That a name is there, not too long, and UTF-8; `role` says what has it.
Status check_name(std::string_view role, const std::string& name);
// Every name is defined once and before it is used; what read_onnx ensures.
Status check_defined(const OnnxModel& model);
// Nodes so that each stands behind what it reads; the file's order wherever it can be kept.
Result<std::vector<size_t>> node_order(const OnnxModel& model);
// Puts a branch of the If at model.nodes[n] in its place; names are not checked again.
Status take_branch(OnnxModel& model, size_t n, bool condition);
// Makes one node of each bag of embeddings, which the exporter writes as a loop (rules_bags.cc).
void join_bags(OnnxModel& model);
// Puts the turns of the Loop or Scan at model.nodes[n] in its place.
Status unroll(OnnxModel& model, size_t n, int64_t turns);

// Gives back the memory of a window of a mapped file, which is read again when it is looked at
// again.
void release(const Bytes& window);

// The only class of this room that opens data files: those beside the model, by a relative path
// without links.
class ExternalData {
 public:
  explicit ExternalData(const std::string& model_path);
  // `length` < 0: all that follows `offset`.
  Result<Bytes> read(const std::string& location, int64_t offset, int64_t length);
  bool holds(const Bytes& window) const;  // or is it a copy?

 private:
  Result<Bytes> open(const std::string& location);
  std::string directory_;
  std::vector<std::pair<std::string, Bytes>> open_files_;
};

}  // namespace piper::onnx_import
