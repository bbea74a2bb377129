// What the exporting module's state_dict has beside the parameters: buffers that no step changes,
// and parameters that nothing reads. The file lists it, so that what is saved can be loaded as a
// whole. recover.cc calls it.
#include <nlohmann/json.hpp>
#include <set>

#include "claims.h"

namespace piper::onnx_import {
namespace {

using Json = nlohmann::json;

Error bad_list(const std::string& what) {
  return fail("the list of what its module has beside its parameters ('{}' in its metadata) {}",
              kUntouchedKey, what);
}

}  // namespace

Status find_untouched(const OnnxModel& model, Recovery& recovery) {
  const std::string_view text = find_metadata(model.metadata, kUntouchedKey);
  if (text.empty()) return ok_status();
  const Json list = Json::parse(text, nullptr, false);
  if (!list.is_object()) return bad_list("is no object in JSON");
  std::set<std::string_view> states;
  for (const RecoveredParam& param : recovery.params) {
    states.insert(param.name);
    states.insert(param.aliases.begin(), param.aliases.end());
  }
  for (const ChangedBuffer& buffer : recovery.changed) states.insert(buffer.name);
  const InitializerIndex index(model);
  for (const auto& [name, initializer] : list.items()) {
    if (name.empty() || !initializer.is_string())
      return bad_list("has an entry that is not a name and its initializer");
    const auto& held = initializer.get_ref<const std::string&>();
    const int at = index.find(held);
    if (at < 0)
      return bad_list(fmt::format("names the initializer '{}', which the file does not have",
                                  quote_control(held)));
    const OnnxTensor& tensor = model.initializers[static_cast<size_t>(at)];
    if (!states.count(name) && !tensor.absent)
      recovery.untouched.push_back({name, tensor.type, tensor.data});
  }
  return ok_status();
}

}  // namespace piper::onnx_import
