// Ways from a parameter to what the exporter computed of it while it folded constants. The file
// says which calls there were and which values they read, not their other arguments.
#pragma once

#include "derivation.h"

namespace piper::onnx_import {

// "layer_norm_12" -> "layer_norm": calls of one function are numbered.
std::string_view stem_of(std::string_view call);

bool is_function(std::string_view stem);  // that is known, of one value
bool is_lookup(std::string_view stem);    // of rows, at places that are in no file
bool is_part(std::string_view stem);

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
inline constexpr const char* kKeepsShape = "has the shape that the file keeps";  // a note
// From the value alone, where there is one exact answer. Errors: why there is none.
Result<Way> way_back(const OnnxTensor& folded, const Chain& chain);
// From a parameter whose value is known: what makes `folded` of it, as the bytes show.
std::optional<Derivation> way_forth(const OnnxTensor& parameter, const OnnxTensor& folded,
                                    const Chain& chain);
bool has_way_forth(const Chain& chain);  // for some values
// That of a lookup: each row that `folded` has stands once in the table.
std::optional<Derivation> looked_up_forth(const OnnxTensor& table, const OnnxTensor& folded,
                                          const Chain& chain);

}  // namespace piper::onnx_import
