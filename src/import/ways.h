// Ways from a parameter to what the exporter computed of it while it folded constants. The file
// says which calls there were and which values they read, not their other arguments.
#pragma once

#include "derivation.h"

namespace piper::onnx_import {

// "layer_norm_12" -> "layer_norm": calls of one function are numbered.
std::string_view stem_of(std::string_view call);

bool is_function(std::string_view stem);  // that is known, of one value

struct Chain {
  std::vector<std::string> functions;  // stems of calls, innermost first
  bool literal = false;                // one of them may have a number as well
  std::optional<double> plus;          // what that is, where it is added
};

struct Way {
  TensorType type;  // of the parameter
  Derivation derivation;
  std::string note = {};  // what the user should know of the parameter, or ""
};
// From the value alone, where there is one exact answer. Errors: why there is none.
Result<Way> way_back(const OnnxTensor& folded, const Chain& chain);
// From a parameter whose value is known: what makes `folded` of it, as the bytes show.
std::optional<Derivation> way_forth(const OnnxTensor& parameter, const OnnxTensor& folded,
                                    const Chain& chain);

}  // namespace piper::onnx_import
