// What a strategy says about a model, and what reading a model says back: inputs, rules for
// parameters, updates of an optimizer, notes. These types know nothing of ONNX.
#pragma once

#include "piper/base/base.h"

namespace piper {

// Holds what the strategy says about one data input. All but the name is optional.
struct InputBinding {
  std::string name;
  std::optional<Shape> shape;  // the whole shape, the batch dim included
  std::optional<DType> dtype;
  // Default: the dim named by a dim_param that all inputs share, else dim 0 of each.
  std::optional<int> batch_dim;
  SourceSpan at;
};

// Holds the size of a dynamic dim that is not the batch, by its name in the file.
struct DimSize {
  std::string name;
  int64_t size = 0;
  SourceSpan at = {};
};

// Holds one entry of the strategy's `parameters`: a fact about tensors of the file that the user
// knows. Globs match the path of a name ("h/0/mlp/weight") or the name itself, and the other names
// of a tied parameter.
struct ParamRule {
  enum class Kind {
    kInclude,  // float constants become parameters
    kExclude,  // parameters become constants
    kFreeze,   // parameters keep their values: no gradient, no optimizer state
    kThaw,     // parameters that the importer freezes are trained
    kRename,   // parameters get new names: {name} is what the pattern captures, ** what its **
               // matches
    kTie,      // the names belong to one tensor, which the file cannot tell; the first is its own
    kStored,   // the file has `plus` added to the values of parameters
  } kind = Kind::kFreeze;
  std::string match;               // a glob, for all kinds except kTie
  std::string to;                  // kRename: a path; kInclude: the parameter's name, or ""
  bool transposed = false;         // kInclude: the file has the transpose of that parameter
  std::vector<std::string> names;  // kTie
  double plus = 0;                 // kStored
  SourceSpan at, to_at;            // of `match` or `names`, and of `to`
};

// Holds what one ParamRule matched.
struct RuleMatch {
  std::vector<std::string> names;
  int64_t elements = 0;
};

// Says how the file's training_info updates one parameter. The fields are the attributes of an
// optimizer of ai.onnx.preview.training, version 1.
struct TrainingUpdate {
  enum class Kind { kAdagrad, kAdam, kMomentum } kind = Kind::kMomentum;
  std::string parameter;
  double rate = 0;    // R
  int64_t count = 0;  // T in the first step
  double norm_coefficient = 0, norm_coefficient_post = 0;
  double epsilon = 1e-6, decay_factor = 0, alpha = 0.9, beta = 0.999;
  bool nesterov = false;
  double accumulator = 0;  // the value of every element of Adagrad's first H
  bool operator==(const TrainingUpdate&) const = default;
};
struct TrainingInfo {
  std::vector<TrainingUpdate> updates;
};

// Tells the user something about the parameter or buffer `of`; "" where it concerns none.
struct Note {
  std::string of, text;
};
// Returns one line for all notes of the same text, which lists at most `most_names` of their names.
std::vector<std::string> lines_of(std::span<const Note> notes, size_t most_names = SIZE_MAX);

}  // namespace piper
