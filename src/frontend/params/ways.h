// Ways from a parameter to what the exporter computed of it while it folded constants. The file
// says which calls there were and which values they read, not their other arguments.
#pragma once

#include "derivation.h"

namespace piper::onnx_import {

// Returns "layer_norm" for "layer_norm_12": calls of one function are numbered.
std::string_view stem_of(std::string_view call);

bool is_function(std::string_view stem);  // a known function of one value
bool is_lookup(std::string_view stem);    // a lookup of rows, at places that are in no file
bool is_part(std::string_view stem);

struct Chain {
  std::vector<std::string> functions;  // stems of calls, innermost first
  bool literal = false;                // one of them may have a number as an argument
  std::optional<double> plus;          // that number, where it is added
};

struct Way {
  TensorType type;  // of the parameter
  Derivation derivation;
  std::string note = {};  // what the user should know of the parameter, or ""
};
inline constexpr const char* kKeepsShape = "has the shape that the file keeps";  // a note
// Finds the way from the value alone. Fails where there is more or less than one exact answer.
Result<Way> way_back(const OnnxTensor& folded, const Chain& chain);
// Finds what makes `folded` of a parameter with a known value, as the bytes show.
std::optional<Derivation> way_forth(const OnnxTensor& parameter, const OnnxTensor& folded,
                                    const Chain& chain);
bool has_way_forth(const Chain& chain);  // for some values
// Does so for a lookup, where each row of `folded` is in the table once.
std::optional<Derivation> looked_up_forth(const OnnxTensor& table, const OnnxTensor& folded,
                                          const Chain& chain);

}  // namespace piper::onnx_import
