// Functions of the model's own: each call becomes the nodes of the function.
#pragma once

#include <map>

#include "piper/base/base.h"

namespace onnx {
class ModelProto;
}

namespace piper::onnx_import {

// Requires: a parsed model, unchecked. Ensures: no node calls a function of the model; values made
// inside of a call are named "OUTPUT/NAME" and nodes "NODE/NAME" after the call's first output and
// name. Fails on calls in a cycle, and where more nodes come out than any model has. Returns, by
// the results of nodes from functions, the version of the standard operators that these are written
// for.
using Opsets = std::map<std::string, int64_t>;
Result<Opsets> inline_functions(onnx::ModelProto& model);

}  // namespace piper::onnx_import
