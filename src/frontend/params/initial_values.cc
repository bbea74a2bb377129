// What parameters begin with, from a file beside the model: a module's state_dict.
#include <algorithm>
#include <map>
#include <set>

#include "claims.h"
#include "piper/base/data.h"
#include "piper/devices/cpu.h"
#include "piper/frontend/onnx.h"
#include "ways.h"

namespace piper::onnx_import {
namespace {

// Describes a run of a value's rows, along one of its dims.
struct Part {
  size_t dim = 0;
  int64_t first = 0;
};

class InitialValues {
 public:
  InitialValues(const OnnxModel& model, const std::string& path,
                const std::vector<NamedTensor>& values, Recovery& recovery)
      : model_(model), at_{path, 0, 0, 1}, out_(recovery) {
    for (const NamedTensor& value : values) values_.emplace(value.name, value);
  }
  Status run();

 private:
  Result<const NamedTensor*> value_for(const RecoveredParam& param);
  Status give(size_t p, const NamedTensor& value);
  Status give_whole_of_cut(size_t p, const NamedTensor& value);
  std::optional<Part> find_part(const RecoveredParam& param, const NamedTensor& value) const;
  bool counts_from_zero(size_t p) const;
  Status give_to_buffers();
  Status give_to_untouched();
  Status check_rest();
  Error missing(const std::vector<std::string>& names) const;
  Error wrong_type(const std::string& name, const TensorType& own, const NamedTensor& value) const;

  const OnnxModel& model_;
  const SourceSpan at_;
  Recovery& out_;
  std::map<std::string, NamedTensor> values_;
  std::set<std::string> taken_;
};

Bytes converted(const NamedTensor& value, DType dtype) {
  if (value.type.dtype == dtype) return value.data;
  const TensorType to{dtype, value.type.shape};
  return Bytes::deferred(static_cast<size_t>(to.bytes()), [value, to] {
    const Attrs attrs{{"to", std::string(info(to.dtype).name)}};
    auto made = evaluate_op("Cast", attrs, std::vector{value.type}, std::vector{value.data},
                            std::vector{to});
    PIPER_CHECK(made, "floats are converted");
    return std::move((*made)[0]);
  });
}

std::string text_of(const Bytes& data) { return std::string(as_text(data.made().span())); }

// Returns the value under any of the parameter's names. Fails where it has several with different
// values.
Result<const NamedTensor*> InitialValues::value_for(const RecoveredParam& param) {
  const NamedTensor* found = nullptr;
  std::vector<std::string> names{param.name};
  names.insert(names.end(), param.aliases.begin(), param.aliases.end());
  for (const std::string& name : names) {
    const auto value = values_.find(name);
    if (value == values_.end()) continue;
    taken_.insert(name);
    if (found && (found->type != value->second.type ||
                  as_text(found->data.span()) != as_text(value->second.data.span())))
      return fail(at_, "'{}' and '{}' are one tensor of the model, and have two values",
                  quote_control(found->name), quote_control(name));
    found = &value->second;
  }
  return found;
}

Error InitialValues::wrong_type(const std::string& name, const TensorType& own,
                                const NamedTensor& value) const {
  return fail(at_, "'{}' is {}, but {} in the model", quote_control(name), to_string(value.type),
              to_string(own));
}

// Finds the file's rows among those of the value, where they are the same weights. Returns nothing
// where they are found twice.
std::optional<Part> InitialValues::find_part(const RecoveredParam& param,
                                             const NamedTensor& value) const {
  const Shape &own = param.type.shape, &whole = value.type.shape;
  const Bytes all = converted(value, param.type.dtype).made();
  const std::string rows = text_of(param.data);
  std::optional<Part> found;
  for (size_t d = 0; d < own.size(); ++d) {
    // Whole rows are together: a table of many positions is not copied for each of them.
    const bool is_rows = d == 0 && std::equal(own.begin() + 1, own.end(), whole.begin() + 1);
    const auto equals = [&](int64_t first) {
      if (is_rows)
        return as_text(all.span())
                   .substr(all.size / static_cast<size_t>(whole[0]) * static_cast<size_t>(first),
                           rows.size()) == rows;
      std::vector<int64_t> starts(own.size(), 0), steps(own.size(), 1);
      starts[d] = first;
      return as_text(slice_bytes(all, whole, starts, steps, own, param.type.dtype).span()) == rows;
    };
    for (int64_t first = 0; own[d] != whole[d] && first + own[d] <= whole[d]; ++first) {
      if (!equals(first)) continue;
      if (found) return {};
      found = Part{d, first};
    }
  }
  return found;
}

// The constants that the parameter stands in were looked up at 0, 1, …: nothing was added to that.
bool InitialValues::counts_from_zero(size_t p) const {
  constexpr std::string_view kPlain[] = {"arange", "expand", "unsqueeze", "slice",  "view",
                                         "zeros",  "val",    "select",    "reshape"};
  const InitializerIndex index(model_);
  return std::all_of(out_.uses.begin(), out_.uses.end(), [&](const ParamUse& use) {
    const int at = use.param == p ? index.find(model_.nodes[use.node].inputs[use.input]) : -1;
    if (at < 0) return true;
    const auto& from = model_.initializers[static_cast<size_t>(at)].folded_from;
    return std::all_of(from.begin(), from.end(), [&](const std::string& name) {
      return name == out_.params[p].name || name.ends_with("position_ids") ||
             std::count(std::begin(kPlain), std::end(kPlain), stem_of(name)) > 0;
    });
  });
}

// Gives the whole value to a table of which the exporter kept the rows that it read: these are
// trained, and all is saved.
Status InitialValues::give_whole_of_cut(size_t p, const NamedTensor& value) {
  RecoveredParam& param = out_.params[p];
  const Shape &own = param.type.shape, &whole = value.type.shape;
  size_t differing = 0, shorter = 0;
  for (size_t d = 0; d < own.size() && own.size() == whole.size(); ++d) {
    differing += own[d] != whole[d];
    shorter += own[d] < whole[d];
  }
  const bool is_cut = param.evidence.starts_with("folded from it");
  if (differing != 1 || shorter != 1 || !is_cut) return wrong_type(param.name, param.type, value);
  std::optional<Part> part = find_part(param, value);
  if (!part && counts_from_zero(p)) {
    const auto dim = std::mismatch(own.begin(), own.end(), whole.begin()).first - own.begin();
    part = Part{static_cast<size_t>(dim), 0};
  }
  if (!part)
    return fail(at_, "'{}' is {}, of which the model has {}: which of it, the file does not say",
                quote_control(param.name), to_string(value.type), to_string(param.type))
        .with_note("help: export the model with the weights of the file, or for as many positions");
  const int64_t end = part->first + own[part->dim];
  for (ParamUse& use : out_.uses)
    if (use.param == p)
      use.derivation.insert(use.derivation.begin(),
                            slice_step(whole, static_cast<int64_t>(part->dim), part->first, end));
  std::erase_if(out_.notes, [&](const Note& note) {
    return note.of == param.name && note.text.find("--init brings") != std::string::npos;
  });
  out_.notes.push_back({param.name, fmt::format("trained at {}..{} of {} positions and saved whole",
                                                part->first, end - 1, whole[part->dim])});
  param.type.shape = whole;
  return ok_status();
}

Status InitialValues::give(size_t p, const NamedTensor& value) {
  RecoveredParam& param = out_.params[p];
  if (!info(value.type.dtype).is_float) return wrong_type(param.name, param.type, value);
  if (value.type.shape != param.type.shape) PIPER_TRY(give_whole_of_cut(p, value));
  param.data = converted(value, param.type.dtype);
  param.evidence += "; begins with --init";
  return ok_status();
}

Error InitialValues::missing(const std::vector<std::string>& names) const {
  constexpr size_t kShown = 8;
  std::vector<std::string> known;
  for (const auto& [name, value] : values_)
    if (!taken_.count(name)) known.push_back(name);
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i)
    shown.push_back(quote_control(names[i]) + did_you_mean(names[i], known));
  return fail(at_, "has no value for {} parameter{} of the model: {}{}", names.size(),
              names.size() == 1 ? "" : "s", join(shown, ", "), names.size() > kShown ? ", …" : "");
}

// Gives values to buffers that forward writes and never reads.
Status InitialValues::give_to_buffers() {
  for (ChangedBuffer& buffer : out_.changed) {
    const auto value = buffer.read ? values_.end() : values_.find(buffer.name);
    if (value == values_.end() || !info(value->second.type.dtype).is_float) continue;
    taken_.insert(buffer.name);
    if (!buffer.data.data) buffer.type = value->second.type;
    if (buffer.type.shape != value->second.type.shape)
      return wrong_type(buffer.name, buffer.type, value->second);
    buffer.data = converted(value->second, buffer.type.dtype);
  }
  return ok_status();
}

// Gives values to what nothing reads. What forward reads is a constant of the file, and stays.
Status InitialValues::give_to_untouched() {
  std::set<std::string_view> read;
  for (const OnnxNode& node : model_.nodes) read.insert(node.inputs.begin(), node.inputs.end());
  for (NamedTensor& tensor : out_.untouched) {
    const auto value = read.count(tensor.name) ? values_.end() : values_.find(tensor.name);
    if (value == values_.end()) continue;
    taken_.insert(tensor.name);
    const NamedTensor& given = value->second;
    const bool both_float = info(given.type.dtype).is_float && info(tensor.type.dtype).is_float;
    if (given.type.shape != tensor.type.shape ||
        (given.type.dtype != tensor.type.dtype && !both_float))
      return wrong_type(tensor.name, tensor.type, given);
    tensor.data = converted(given, tensor.type.dtype);
  }
  return ok_status();
}

// What is neither a parameter nor a buffer belongs to another model, if the file names them all.
Status InitialValues::check_rest() {
  std::set<std::string_view> others;
  const auto signature = parse_signature(find_metadata(model_.metadata, kSignatureKey));
  for (const SignatureInput& input : signature) others.insert(input.target);
  for (const OnnxTensor& tensor : model_.initializers) others.insert(tensor.name);
  const bool names_all = !signature.empty() || lists_parameters(model_);
  std::vector<std::string> names;
  for (const RecoveredParam& param : out_.params) names.push_back(param.name);
  for (const auto& [name, value] : values_) {
    if (taken_.count(name)) continue;
    const bool is_float = info(value.type.dtype).is_float;
    if (!others.count(name) && is_float && names_all)
      return fail(at_, "the model has no parameter '{}'{}", quote_control(name),
                  did_you_mean(name, names));
    if (is_float) out_.notes.push_back({name, "no parameter: its value of --init is not used"});
  }
  return ok_status();
}

Status InitialValues::run() {
  std::vector<std::string> without;
  for (size_t p = 0; p < out_.params.size(); ++p) {
    PIPER_ASSIGN(const NamedTensor* value, value_for(out_.params[p]));
    if (value) PIPER_TRY(give(p, *value));
    if (!value && !out_.params[p].running) without.push_back(out_.params[p].name);
  }
  if (!without.empty()) return missing(without);
  PIPER_TRY(give_to_buffers());
  PIPER_TRY(give_to_untouched());
  return check_rest();
}

// Adds the values of the parameters that the model's metadata do not show.
void add_values(const OnnxModel& model, const Recovery& recovery,
                const std::vector<NamedTensor>& values, PriorKnowledge& prior) {
  const bool told =
      !find_metadata(model.metadata, kSignatureKey).empty() || lists_parameters(model);
  for (const NamedTensor& value : values)
    if (!told || recovery.is_missing(value.name))
      prior.values[value.name] = {value.name, value.type, value.data};
}

}  // namespace

// A parameter is found without its value where there is one way. Else the value shows how the
// file's was made of it, in a second recovery.
Result<Recovery> recover_params(OnnxModel& model, std::vector<std::string>& scopes,
                                const std::vector<ParamRule>& rules, const std::string& path) {
  PriorKnowledge prior{rules, {}};
  if (path.empty()) return recover_params(model, scopes, prior);
  PIPER_ASSIGN(const std::vector<NamedTensor> values, read_safetensors(path));
  const OnnxModel file = model;
  const std::vector<std::string> file_scopes = scopes;
  PIPER_ASSIGN(Recovery recovery, recover_params(model, scopes, prior));
  add_values(model, recovery, values, prior);
  if (!prior.values.empty()) {
    model = file;
    scopes = file_scopes;
    PIPER_ASSIGN(recovery, recover_params(model, scopes, prior));
  }
  recovery.given = true;
  PIPER_TRY(InitialValues(model, path, values, recovery).run());
  return recovery;
}

}  // namespace piper::onnx_import
