// Recovers parameters that the exporter copied by Identity.
#include <algorithm>
#include <set>
#include <unordered_map>

#include "names.h"

namespace piper::onnx_import {

// Parameters of one name in the framework have one in the trace, so a copy under a name is never a
// tie. Scoped names ("/h.0/Identity_output_0") are of nodes that the module itself has.
std::map<std::string, std::string> separate_copies(OnnxModel& model,
                                                   std::vector<std::string>& scopes) {
  std::map<std::string, std::string> copies;
  if (!model.producer.starts_with("pytorch")) return copies;
  std::unordered_map<std::string, size_t> floats;
  for (size_t i = 0; i < model.initializers.size(); ++i)
    if (info(model.initializers[i].type.dtype).is_float)
      floats.emplace(model.initializers[i].name, i);
  const std::set<std::string_view> outputs(model.outputs.begin(), model.outputs.end());
  size_t kept = 0;
  for (size_t n = 0; n < model.nodes.size(); ++n) {
    const OnnxNode& node = model.nodes[n];
    const bool one = node.op == "Identity" && node.inputs.size() == 1 && node.outputs.size() == 1;
    const auto source = one ? floats.find(node.inputs[0]) : floats.end();
    if (source == floats.end() || node.outputs[0].find('/') != std::string::npos ||
        outputs.count(node.outputs[0])) {
      if (kept != n) model.nodes[kept] = std::move(model.nodes[n]);
      if (kept != n) scopes[kept] = std::move(scopes[n]);
      ++kept;
      continue;
    }
    OnnxTensor copy = model.initializers[source->second];
    copy.name = node.outputs[0];
    const auto of = copies.find(source->first);
    copies.emplace(copy.name, of == copies.end() ? source->first : of->second);
    floats.emplace(copy.name, model.initializers.size());
    model.initializers.push_back(std::move(copy));
  }
  model.nodes.resize(kept);
  scopes.resize(kept);
  return copies;
}

}  // namespace piper::onnx_import
