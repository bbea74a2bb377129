// Parameters of files that list them: those that tools/export.py writes, and our own with
// training_info. Each is an initializer under its own name and in its own orientation, so that
// nothing has to be found again; the list says the other names, and what is not trained.
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "claims.h"
#include "modules.h"

namespace piper::onnx_import {
namespace {

using Json = nlohmann::json;

struct Listed {
  std::string name;
  std::vector<std::string> also;
  std::optional<Shape> shape;
  bool trained = true, unused = false;
};

Error bad_list(const std::string& what) {
  return fail("the list of parameters in its metadata ('{}') {}", kParametersKey, what);
}

Result<std::string> text_in(const Json& json, const char* what) {
  if (!json.is_string() || json.get_ref<const std::string&>().empty())
    return bad_list(fmt::format("has {} that is no text", what));
  return json.get<std::string>();
}

Result<bool> flag_in(const Json& entry, const char* key, bool otherwise) {
  const auto found = entry.find(key);
  if (found == entry.end()) return otherwise;
  if (!found->is_boolean()) return bad_list(fmt::format("has '{}' that is not true or false", key));
  return found->get<bool>();
}

Result<std::optional<Shape>> shape_in(const Json& entry) {
  const auto found = entry.find("shape");
  if (found == entry.end()) return std::optional<Shape>();
  Shape shape;
  if (!found->is_array()) return bad_list("has a shape that is no list");
  for (const Json& dim : *found) {
    if (!dim.is_number_integer() || dim.get<int64_t>() < 0)
      return bad_list("has a dim that is no size");
    shape.push_back(dim.get<int64_t>());
  }
  return std::optional(shape);
}

Result<Listed> parse_entry(const Json& entry) {
  Listed out;
  const auto name = entry.is_object() ? entry.find("name") : entry.end();
  if (!entry.is_object() || name == entry.end()) return bad_list("has an entry without a name");
  PIPER_ASSIGN(out.name, text_in(*name, "a name"));
  PIPER_ASSIGN(out.shape, shape_in(entry));
  PIPER_ASSIGN(out.trained, flag_in(entry, "trained", true));
  PIPER_ASSIGN(out.unused, flag_in(entry, "unused", false));
  const auto also = entry.find("also");
  if (also == entry.end()) return out;
  if (!also->is_array()) return bad_list("has other names that are no list");
  for (const Json& other : *also) {
    PIPER_ASSIGN(std::string text, text_in(other, "another name"));
    out.also.push_back(std::move(text));
  }
  return out;
}

Result<std::vector<Listed>> parse_list(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_array()) return bad_list("is no list in JSON");
  std::vector<Listed> out;
  std::set<std::string> names;
  for (const Json& entry : json) {
    PIPER_ASSIGN(Listed listed, parse_entry(entry));
    bool fresh = names.insert(listed.name).second;
    for (const std::string& other : listed.also) fresh = names.insert(other).second && fresh;
    if (!fresh) return bad_list(fmt::format("names '{}' twice", quote_control(listed.name)));
    out.push_back(std::move(listed));
  }
  return out;
}

}  // namespace

bool lists_parameters(const OnnxModel& model) {
  return model.training || !find_metadata(model.metadata, kParametersKey).empty();
}

std::string parameter_list(std::span<const RecoveredParam> params) {
  Json list = Json::array();
  for (const RecoveredParam& param : params) {
    Json entry = {{"name", param.name}};
    if (!param.aliases.empty()) entry["also"] = param.aliases;
    if (param.frozen) entry["trained"] = false;
    list.push_back(std::move(entry));
  }
  return list.dump(-1, ' ', false, Json::error_handler_t::replace);
}

namespace {

// Claims where the parameters are read. Fails if one has another shape than the list says.
Status claim_uses(const OnnxModel& model, const std::map<std::string, const Listed*>& listed,
                  std::string_view evidence, Claims& claims) {
  const std::set<std::string> names(claims.order.begin(), claims.order.end());
  const InitializerIndex index(model);
  for (size_t n = 0; n < model.nodes.size(); ++n) {
    for (size_t i = 0; i < model.nodes[n].inputs.size(); ++i) {
      const std::string& name = model.nodes[n].inputs[i];
      const int found = names.count(name) ? index.find_float(name) : -1;
      if (found < 0) continue;
      const TensorType& type = model.initializers[static_cast<size_t>(found)].type;
      const auto entry = listed.find(name);
      if (entry != listed.end() && entry->second->shape && *entry->second->shape != type.shape)
        return fail("the parameter '{}' is {}, and was {} when the file was exported",
                    quote_control(name), to_string(type.shape), to_string(*entry->second->shape))
            .with_note(export_help(model));
      claims.list.push_back({n, i, found, name, {}, type, std::string(evidence)});
    }
  }
  return ok_status();
}

// Reports parameters that were used when the file was exported and are not there now: another
// program changed the file.
void find_lost(const std::vector<Listed>& list, Claims& claims) {
  std::set<std::string_view> read;
  for (const Claim& claim : claims.list) read.insert(claim.name);
  for (const Listed& listed : list)
    if (listed.shape && !listed.unused && !read.count(listed.name))
      claims.missing.push_back({listed.name,
                                "the file had it under its name when it was exported, and was "
                                "changed since"});
}

}  // namespace

Result<Claims> claims_by_list(const OnnxModel& model, std::span<const ChangedBuffer> changed) {
  const std::string_view text = find_metadata(model.metadata, kParametersKey);
  std::vector<Listed> list;
  if (!text.empty()) {
    PIPER_ASSIGN(list, parse_list(text));
  }
  Claims claims;
  claims.listed = true;
  std::map<std::string, const Listed*> by_name;
  for (const Listed& listed : list) {
    by_name.emplace(listed.name, &listed);
    claims.order.push_back(listed.name);
    if (!listed.trained) claims.frozen.insert(listed.name);
    for (const std::string& other : listed.also)
      claims.ties.alias_of.emplace_back(other, listed.name);
  }
  for (const ChangedBuffer& buffer : changed)
    if (buffer.read) claims.order.push_back(buffer.name);
  // A training_info of other programs stands without a list.
  std::set<std::string> names(claims.order.begin(), claims.order.end());
  if (model.training)
    for (const TrainingUpdate& update : model.training->updates)
      if (names.insert(update.parameter).second) claims.order.push_back(update.parameter);
  PIPER_TRY(claim_uses(model, by_name, text.empty() ? "training_info" : "list", claims));
  find_lost(list, claims);
  return claims;
}

Result<Claims> claims_without_values(const OnnxModel& model,
                                     std::span<const SignatureInput> signature) {
  Claims claims;
  claims.listed = true;
  for (const SignatureInput& input : signature)
    if (input.kind == "PARAMETER") claims.order.push_back(input.target);
  if (claims.order.empty())
    for (const OnnxTensor& tensor : model.initializers)
      if (tensor.absent && !is_anonymous(model, tensor.name)) claims.order.push_back(tensor.name);
  PIPER_TRY(claim_uses(model, {}, "kept name", claims));
  return claims;
}

}  // namespace piper::onnx_import
