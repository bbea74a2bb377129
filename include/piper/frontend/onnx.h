// An ONNX file as the importer sees it: checked, with its data mapped, without protobuf; the bytes
// of its constants; and what exporters note in its metadata.
#pragma once

#include <set>
#include <variant>

#include "piper/frontend/model.h"

namespace piper::onnx_import {

using Metadata = std::vector<std::pair<std::string, std::string>>;
// Returns the value of `key`, or "".
std::string_view find_metadata(const Metadata& metadata, std::string_view key);
// The field numbers of metadata, which the installed schema (IR 8) does not know yet.
inline constexpr int kNodeMetadata = 9, kGraphMetadata = 16, kValueMetadata = 4;

// ---- Types --------------------------------------------------------------------------------------

// Returns the element type with this number in the format (TensorProto.DataType), if it is
// supported.
std::optional<DType> dtype_of_code(int64_t code);
std::string type_name(int64_t code);     // returns the format's word in small letters: "uint8"
int64_t code_of_type(std::string name);  // reads letters of either case; returns 0 for other words

// Describes an integer type of the file with 2, 4, 8 or 16 bits, which is held in i32. Zero bits:
// not one.
struct Narrow {
  int bits = 0;
  bool is_signed = false;
  bool operator==(const Narrow&) const = default;
};
inline constexpr Narrow kUint8{8, false};
Narrow narrow_of_code(int64_t code);

// ---- The model ----------------------------------------------------------------------------------

struct OnnxTensor {
  std::string name;
  TensorType type;
  Bytes data;                            // exactly type.bytes()
  bool mapped = false;                   // a window of a file: may be released
  std::vector<std::string> folded_from;  // initializers: names that the exporter computed it from
  Narrow narrow = {};
  bool absent = false;  // the data file is not there: nothing may read the zeros that `data` is
};

struct OnnxAttr {
  std::string name;
  // The value is monostate for kinds that no supported op has (graphs, types, sparse tensors).
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
  int64_t opset = 0;                   // of the function that it comes from; 0: the model's
  const OnnxAttr* find(std::string_view attr) const;
  // Returns null where no attribute has that name and kind.
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
  std::string label() const;  // "node 'x' (MatMul)", with which every error about it begins
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
  std::string type;  // the file's word: "float", "uint8", "a sequence"
  bool has_shape = true;
  std::vector<OnnxDim> dims;
  Narrow narrow = {};
};

struct OnnxAlgorithm {  // of training_info; its nodes and values follow those of the graph
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
  std::set<std::string, std::less<>> integers;  // values between nodes that are not floats
  Metadata metadata;                            // of the graph
  std::optional<OnnxAlgorithm> algorithm;       // until training_info is taken out
  std::optional<TrainingInfo> training;         // from then on
  int64_t absent_bytes = 0;  // of floats whose data file is not there, for which zeros stand
  std::string loss;          // the loss that training_info names, or ""
  // Some programs remove the newer exporter's metadata about tensors and calls.
  bool lacks_calls = false;
  // The first thing in the file that is not supported in any use. The model can still be described.
  std::optional<Error> refused;
  SourceSpan at() const { return {path, 0, 0, 1}; }
};

// Reads and checks a file. `absent_values`: as in ImportOptions. Ensures: every name is defined
// once and before it is used.
Result<OnnxModel> read_onnx(const std::string& path, int64_t max_file_bytes,
                            bool absent_values = false);
// Fails if a name is defined twice, or not before it is used.
Status check_defined(const OnnxModel& model);
// Returns nodes in an order in which each follows what it reads: the file's where that is possible.
Result<std::vector<size_t>> node_order(const OnnxModel& model);

// Returns whether the node has no rule: an If becomes a branch once its condition is known, a Loop
// or Scan becomes its turns.
inline bool is_nested(const OnnxNode& node) {
  return node.domain.empty() && (node.op == "If" || node.op == "Loop" || node.op == "Scan");
}
// Returns the nodes of an If's branch, to stand in its place; the branch's constants become the
// model's. Names are not checked again.
Result<std::vector<OnnxNode>> take_branch(OnnxModel& model, const OnnxNode& node, bool condition);
// Returns copies of the body of a Loop or Scan, to stand in its place. `room`: how many nodes may
// be written one by one; those that were are taken off.
Result<std::vector<OnnxNode>> unroll(OnnxModel& model, const OnnxNode& node, int64_t turns,
                                     int64_t& room);

// Gives back the memory of a window of a mapped file. A later look reads the file again.
void release(const Bytes& window);

// ---- Bytes of constants -------------------------------------------------------------------------

std::optional<Shape> broadcast_shapes(const Shape& a, const Shape& b);
// Repeats `from`, each dim of which is 1 or equals that of `to`, to the shape `to`.
Bytes expand_bytes(const Bytes& data, const Shape& from, const Shape& to, DType dtype);
Bytes permute_bytes(const Bytes& data, const Shape& shape, std::span<const int64_t> perm,
                    DType dtype);
Bytes slice_bytes(const Bytes& data, const Shape& shape, std::span<const int64_t> starts,
                  std::span<const int64_t> steps, const Shape& out, DType dtype);
// Cuts every dim along which all slices are equal to 1, and returns the shape and its bytes.
std::pair<Shape, Bytes> compress(const Bytes& data, const Shape& shape, DType dtype);
Shape permuted(const Shape& shape, std::span<const int64_t> perm);
bool is_uniform(const Bytes& data, DType dtype);  // all elements have the same bytes

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  return Bytes::copy_of(values.data(), values.size() * sizeof(T));
}
std::vector<int64_t> read_integers(const Bytes& data, DType dtype);  // of kI64, kI32 or kBool
double read_number(const Bytes& data, DType dtype, size_t index);    // of any type
Bytes number_bytes(double value, DType dtype);                       // one element of `dtype`

// ---- What exporters note ------------------------------------------------------------------------

// Holds one line of the exported program's signature:
// "p_h_0_qkv_weight: PARAMETER target='h.0.qkv.weight'".
struct SignatureInput {
  std::string placeholder;  // "p_h_0_qkv_weight"
  std::string kind;         // PARAMETER, BUFFER, CONSTANT_TENSOR, USER_INPUT
  std::string target;       // the framework's name, "" for user inputs
};
std::vector<SignatureInput> parse_signature(std::string_view text);
// "add_8: BUFFER_MUTATION target='m.mu'": what a buffer becomes when forward has run.
struct BufferMutation {
  std::string value, target;
};
std::vector<BufferMutation> parse_mutations(std::string_view text);
// Returns the results of the module, "add_8" of "add_8: USER_OUTPUT".
std::vector<std::string> parse_outputs(std::string_view text);
inline constexpr std::string_view kSignatureKey =
    "pkg.torch.export.ExportedProgram.graph_signature";
// The key of the graph's metadata that lists parameters in JSON: {"name": …} for each, in the
// module's order, with "also" (other names of a tied one), "shape", "trained": false, "unused":
// true.
inline constexpr std::string_view kParametersKey = "piper.parameters";
bool lists_parameters(const OnnxModel& model);  // by that key or by training_info
// Returns whether onnxruntime fused operators, which leaves no trace of what they were.
bool has_fused_operators(const OnnxModel& model);
// Returns how to export the model so that nothing is lost, for its exporter: "help: …".
std::string export_help(const OnnxModel& model);

// A call that nodes come from is written in their metadata:
// "%linear : […] = call_function[target=…linear.default](args = (…), …)".
struct CallArg {
  int position = -1;  // in args; -1 for keyword arguments
  std::string name;   // of the value, without '%'
};
struct Call {
  std::string name;                // of its result: "linear_3"
  std::string function;            // "aten.linear"
  std::vector<CallArg> args;       // those that are values, nested lists flattened
  int positions = 0;               // arguments by position, values or not
  std::vector<std::string> words;  // by position, as they are written: "%x", "2", "False"
};
std::optional<Call> parse_call(std::string_view text);
inline constexpr std::string_view kAttentionCall = "aten.scaled_dot_product_attention";
// Returns false for numbers in a list of sizes, as in "[%mul_3, 128]".
bool is_tensor(const Call& call, const CallArg& arg);

// Returns by node the module path of either exporter, "h/0/qkv". A node without one takes the path
// of its first consumer that has one, else of its producer.
std::vector<std::string> scopes_of(const OnnxModel& model);
std::string scope_of_name(std::string_view dotted);                    // "h.0.qkv" -> "h/0/qkv"
std::string common_scope(const std::string& a, const std::string& b);  // the innermost around both
bool is_within(const std::string& inner, const std::string& outer);    // or the same scope
// These return "h.0.qkv" and "weight" for "h.0.qkv.weight"; "" and "weight" for "weight".
std::string module_of(std::string_view name);
std::string leaf_of(const std::string& name);

}  // namespace piper::onnx_import
