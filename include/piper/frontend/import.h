// ONNX -> forward Graph in the ops of ops.h, with the exporting module's parameters under their
// framework names.
//
// Everything in the file is hostile until checked: sizes, names, shapes, external data paths.
// Errors name the file, the node, its op and scope; one error lists all unsupported ops with their
// counts.
#pragma once

#include "piper/base/data.h"
#include "piper/frontend/model.h"
#include "piper/ir/graph.h"

namespace piper {

// The largest file that protobuf reads, without the tensors that are stored beside it.
inline constexpr int64_t kMostFileBytes = INT32_MAX;

struct ImportOptions {
  int64_t batch = 0;  // binds the dynamic batch dim; 0: the file must be static
  SourceSpan batch_at;
  std::vector<InputBinding> inputs;
  std::vector<DimSize> dims;
  std::vector<ParamRule> parameters;
  uint64_t seed = 0;  // for ops that draw random numbers and have no seed of their own
  // A safetensors file with the parameters' first values, which replace the model's: a state_dict,
  // under the framework's names and in its orientation. Empty: there is no such file.
  std::string initial_values;
  int64_t max_file_bytes = kMostFileBytes;
  // Zeros stand for floats whose data file is not there: for plans that nobody trains with.
  bool absent_values = false;
};

struct ParamReport {  // for --explain=parameters and --describe
  std::string name;
  TensorType type;
  std::vector<std::string> aliases;
  bool frozen = false;
  // How it was found: "signature + call linear_3", "kept name", "scope and content", …
  std::string evidence;
  std::string initializer;  // where its values are stored, and how: "val_9 (transposed)"
};

struct Imported {
  // Forward only. Has outputs, and a loss if exactly one output is a scalar of floats.
  Graph graph;
  std::vector<ParamReport> parameters;
  std::vector<std::string> constants;  // float initializers that are no parameters: name and why
  std::vector<std::string> separated;  // merged initializers that became several parameters again
  // The file's own, if it has one: then the graph has its loss, and other parameters are frozen.
  std::optional<TrainingInfo> training;
  std::vector<RuleMatch> matched;  // by ImportOptions::parameters
  // What the module's state_dict has beside the parameters, by the names there: buffers that no
  // step changes, and parameters that nothing reads. Empty where the file does not list it.
  std::vector<NamedTensor> untouched;
  std::vector<Note> notes;
};

// Reads an ONNX file. One error lists all operators without a rule, and all nodes that their rule
// refuses.
Result<Imported> import_onnx(const std::string& path, const ImportOptions& options);

// Says what a file holds, independent of the sizes of dynamic dims and of what is supported.
struct Survey {
  struct Input {
    std::string name;
    std::string type;               // "f32", or the file's word for a type that is not supported
    bool has_shape = true;          // the file says its shape
    std::vector<std::string> dims;  // sizes, names of dynamic dims, or "?"
    int batch_dim = -1;
  };
  std::string producer;  // "pytorch 2.13.0"
  int64_t opset = 0;
  std::vector<Input> inputs;
  std::vector<std::string> outputs;
  std::vector<ParamReport> parameters;
  std::vector<std::string> constants, separated;
  std::vector<Note> notes;
  std::vector<std::string> scopes;                   // of each node; "" outside of all modules
  std::vector<std::pair<std::string, int64_t>> ops;  // names, and how many nodes have each
  std::vector<std::string> tensors;  // all tensors, where the parameters among them are not found
};
// Describes an ONNX file. Fails if the file is not one.
Result<Survey> survey_onnx(const std::string& path, int64_t max_file_bytes = kMostFileBytes);

// Names an operator of ai.onnx, or "domain::op", that import_onnx reads in the opsets [since,
// until]. `until` is far beyond any opset for operators that are still current.
struct SupportedOperator {
  std::string op;
  int64_t since, until;
  std::string note;  // which part of the operator is read, if not all of it
};
// Returns all of them, sorted by name.
std::vector<SupportedOperator> supported_operators();

// Names a mean cross-entropy of logits, which are an output with classes last. Labels that equal
// ignore_index do not count.
struct CrossEntropyExport {
  std::string logits, labels;
  int64_t ignore_index = -100;
};
struct TrainingExport {
  TrainingInfo training;  // of the imported graph, with its names of parameters
  std::string output;     // the loss, or "" where cross_entropy makes it
  std::optional<CrossEntropyExport> cross_entropy;
};
// Writes the model of `path` with training_info: parameters under their own names in their own
// orientation, without what the exporter made of them. import_onnx reads the same step back.
// Writes one file. Fails if it would have 2 GB or more.
Status write_onnx_training(const std::string& path, const ImportOptions& options,
                           const TrainingExport& training, const std::string& to);

}  // namespace piper
