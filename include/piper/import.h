// ONNX -> forward Graph in the ops of ops.h, with the exporting module's parameters under their framework names.
// The only room that includes onnx.pb.h. Import rules, one entry per ONNX op, stand in src/import/rules_*.cc.
//
// Everything in the file is hostile until checked: sizes, names, shapes, external data paths. Errors name the file, the
// node, its op and scope; unsupported ops are all listed at once with counts.
#pragma once

#include "piper/graph.h"

namespace piper {

// What the strategy says about a data input; all optional.
struct InputBinding {
  std::string name;
  std::optional<Shape> shape;   // whole shape, batch included
  std::optional<DType> dtype;
  std::optional<int> batch_dim; // default: the dim named by a dim_param shared by all inputs, else 0 of each
  SourceSpan at;
};

struct ImportOptions {
  int64_t batch = 0;                  // binds the dynamic batch dim; 0: the file must be static
  SourceSpan batch_at;
  std::vector<InputBinding> inputs;
  std::vector<std::pair<std::string, int64_t>> dims;  // other dynamic dims by dim_param name
  int64_t max_file_bytes = int64_t{512} << 20;
};

struct ParamReport {                  // for --explain=parameters
  std::string name, evidence;         // evidence: "signature + call linear_3", "kept name", "scope and content", …
  std::string initializer;            // where its values are stored, and how: "val_9 (transposed)"
};
struct Imported {
  Graph graph;                        // forward only; outputs and, if the sole output is a float scalar, loss set
  std::vector<ParamReport> parameters;
  std::vector<std::string> constants; // float initializers left alone: name and why
  std::vector<std::string> separated; // merged initializers that became several parameters again
  std::vector<std::string> notes;     // warnings for the user
};

Result<Imported> import_onnx(const std::string& path, const ImportOptions& options);

}  // namespace piper
