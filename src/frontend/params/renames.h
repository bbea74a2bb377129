// New names of parameters by a rule's template: {layer} in `to` is what the pattern captures, ** is
// what the pattern's only ** matches.
#pragma once

#include "piper/frontend/model.h"

namespace piper::onnx_import {

// Fails if the template names what the pattern does not capture.
Status check_template(const ParamRule& rule, const Glob& glob);
// Returns the new name, dotted, of a path that the pattern matches.
std::string renamed(const ParamRule& rule, const GlobMatch& match, const std::string& path);

}  // namespace piper::onnx_import
