// ONNX -> forward Graph in the ops of ops.h, with the exporting module's parameters under their
// framework names. The only room that includes onnx.pb.h. Import rules, one entry per ONNX op,
// stand in src/frontend/import/rules_*.cc.
//
// Everything in the file is hostile until checked: sizes, names, shapes, external data paths.
// Errors name the file, the node, its op and scope; unsupported ops are all listed at once with
// counts.
#pragma once

#include "piper/ir/graph.h"

namespace piper {

// What the strategy says about a data input; all optional.
struct InputBinding {
  std::string name;
  std::optional<Shape> shape;  // whole shape, batch included
  std::optional<DType> dtype;
  // Default: the dim named by a dim_param shared by all inputs, else 0 of each.
  std::optional<int> batch_dim;
  SourceSpan at;
};

// One entry of the strategy's `parameters`: what the user knows of the file's tensors. Globs match
// the path of a name ("h/0/mlp/weight") or the name itself, other names of a tied parameter
// included.
struct ParamRule {
  enum class Kind {
    kInclude,  // float constants become parameters
    kExclude,  // parameters become constants
    kFreeze,   // parameters keep their values: no gradient, no optimizer state
    kThaw,     // parameters that the importer freezes are trained
    kRename,   // new names: {name} is what the pattern captures, ** what its only ** stands for
    kTie,      // names of one tensor, where the file cannot tell; the first is its own
    kStored,   // the file has `plus` added to the values of parameters
  } kind = Kind::kFreeze;
  std::string match;               // a glob; all but kTie
  std::string to;                  // kRename: a path; kInclude: the parameter's name, or ""
  bool transposed = false;         // kInclude: the file has the transpose of that parameter
  std::vector<std::string> names;  // kTie
  double plus = 0;                 // kStored
  SourceSpan at, to_at;            // of match or names, of to
};
struct RuleMatch {  // what one of them did
  std::vector<std::string> names;
  int64_t elements = 0;
};

// Of a file, tensors beside it apart: what protobuf reads.
inline constexpr int64_t kMostFileBytes = INT32_MAX;

struct ImportOptions {
  int64_t batch = 0;  // binds the dynamic batch dim; 0: the file must be static
  SourceSpan batch_at;
  std::vector<InputBinding> inputs;
  std::vector<std::pair<std::string, int64_t>> dims;  // other dynamic dims by dim_param name
  std::vector<ParamRule> parameters;
  uint64_t seed = 0;  // of ops that draw random numbers and have none of their own
  // A safetensors file with what parameters begin with instead of the model's values: under the
  // framework's names and in its orientation, as its state_dict is. Empty: none.
  std::string initial_values;
  int64_t max_file_bytes = kMostFileBytes;
};

// What the file's training_info says of one parameter: an optimizer of ai.onnx.preview.training 1,
// whose words these are.
struct TrainingUpdate {
  enum class Kind { kAdagrad, kAdam, kMomentum } kind = Kind::kMomentum;
  std::string parameter;
  double rate = 0;    // R
  int64_t count = 0;  // T in the first step
  double norm_coefficient = 0, norm_coefficient_post = 0;
  double epsilon = 1e-6, decay_factor = 0, alpha = 0.9, beta = 0.999;
  bool nesterov = false;
  double accumulator = 0;  // every element of Adagrad's first H
  bool operator==(const TrainingUpdate&) const = default;
};
struct TrainingInfo {
  std::vector<TrainingUpdate> updates;
};

struct ParamReport {  // for --explain=parameters and --describe
  std::string name;
  TensorType type;
  std::vector<std::string> aliases;
  bool frozen = false;
  // Evidence: "signature + call linear_3", "kept name", "scope and content", …
  std::string evidence;
  std::string initializer;  // where its values are stored, and how: "val_9 (transposed)"
};
// What the user should know of a parameter or buffer, `of`; "" for none.
struct Note {
  std::string of, text;
};
// One line for all of the same text, with at most so many of their names.
std::vector<std::string> lines_of(std::span<const Note> notes, size_t most_names = SIZE_MAX);

struct Imported {
  // Forward only; outputs set, and loss, if one output alone is a scalar of floats.
  Graph graph;
  std::vector<ParamReport> parameters;
  std::vector<std::string> constants;  // float initializers left alone: name and why
  std::vector<std::string> separated;  // merged initializers that became several parameters again
  // If the file has one: then the graph has its loss, and other parameters are frozen.
  std::optional<TrainingInfo> training;
  std::vector<RuleMatch> matched;  // by ImportOptions::parameters
  std::vector<Note> notes;
};

// What a file has whatever its dynamic dims are bound to, and whether or not all of it is
// supported.
struct Survey {
  struct Input {
    std::string name;
    std::string type;               // "f32", or the file's word for what is not supported
    bool has_shape = true;          // the file says it
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
  std::vector<std::pair<std::string, int64_t>> ops;  // by name, and how many nodes
  std::vector<std::string> tensors;  // where the parameters among them are not found: all of them
};
// Errors: the file is none of ONNX.
Result<Survey> survey_onnx(const std::string& path, int64_t max_file_bytes = kMostFileBytes);

// All operators without a rule, and all nodes whose rule refuses them, are in one error.
Result<Imported> import_onnx(const std::string& path, const ImportOptions& options);

// What import_onnx reads, by name: operators of ai.onnx in the opsets [since, until], `until` far
// beyond any for those of the newest kind.
struct SupportedOperator {
  std::string op;
  int64_t since, until;
  std::string note;  // what of it is read, where not all
};
std::vector<SupportedOperator> supported_operators();

// A mean cross-entropy over labels != ignore_index, of logits that are an output, classes last.
struct CrossEntropyExport {
  std::string logits, labels;
  int64_t ignore_index = -100;
};
struct TrainingExport {
  TrainingInfo training;  // of import's graph: parameters under its names
  std::string output;     // the loss, or
  std::optional<CrossEntropyExport> cross_entropy;
};
// Writes the model of `path` with training_info: parameters under their own names in their own
// orientation, without what the exporter made of them. import_onnx reads it back to the same step.
// One file, below 2 GB.
Status write_onnx_training(const std::string& path, const ImportOptions& options,
                           const TrainingExport& training, const std::string& to);

}  // namespace piper
