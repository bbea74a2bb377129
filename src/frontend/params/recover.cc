// Makes the list of parameters, under the names of the exporting module, from all claims.
#include <algorithm>
#include <map>
#include <set>

#include "claims.h"
#include "names.h"
#include "piper/frontend/onnx.h"

namespace piper::onnx_import {
namespace {

constexpr size_t kLarge = size_t{1} << 16;

// Large tensors are transposed when they are written, and their pages given back: a model need not
// fit in memory, let alone twice.
Bytes oriented(const OnnxTensor& tensor, const Claim& claim) {
  if (!is_layout(claim.derivation)) {
    Result<OnnxTensor> parameter = parameter_of(claim.derivation, tensor);
    return parameter ? parameter->data : Bytes();
  }
  if (tensor.data.size < kLarge || !tensor.mapped) return undo_layout(claim.derivation, tensor);
  return Bytes::deferred(static_cast<size_t>(claim.type.bytes()),
                         [tensor, derivation = claim.derivation] {
                           Bytes out = undo_layout(derivation, tensor);
                           if (out.data == tensor.data.data)
                             out = Bytes::copy_of(out.data, out.size);
                           release(tensor.data);
                           return out;
                         });
}

std::string stored_as(const OnnxModel& model, const Claim& claim) {
  if (claim.initializer < 0) return "zeros, deleted by the exporter";
  const OnnxTensor& tensor = model.initializers[static_cast<size_t>(claim.initializer)];
  const std::string how = describe(claim.derivation);
  return how.empty() ? tensor.name : fmt::format("{} ({})", tensor.name, how);
}

class Assembly {
 public:
  Assembly(const OnnxModel& model, const Claims& claims) : model_(model), claims_(claims) {
    for (const auto& [alias, name] : claims.ties.alias_of) canonical_[alias] = name;
  }
  Status run();
  Recovery take() && { return std::move(out_); }

 private:
  const std::string& name_of(const Claim& claim) const {
    const auto found = canonical_.find(claim.name);
    return found == canonical_.end() ? claim.name : found->second;
  }
  void list_params();
  Status add_use(const Claim& claim);
  Status check_equal(const Claim& claim, const RecoveredParam& param) const;
  void report_initializers();

  const OnnxModel& model_;
  const Claims& claims_;
  std::map<std::string, std::string> canonical_;
  std::map<std::string, size_t> index_;
  Recovery out_;
};

void Assembly::list_params() {
  std::set<std::string> claimed;
  for (const Claim& claim : claims_.list) {
    if (!claim.name.empty()) claimed.insert(name_of(claim));
  }
  auto add = [&](const std::string& name) {
    if (!claimed.count(name) || !index_.emplace(name, out_.params.size()).second) return;
    out_.params.push_back({.name = name});
    for (const auto& [alias, of] : claims_.ties.alias_of) {
      if (of == name) out_.params.back().aliases.push_back(alias);
    }
  };
  for (const std::string& name : claims_.order) add(name);
  for (const Claim& claim : claims_.list) {
    if (!claim.name.empty()) add(name_of(claim));
  }
}

Status Assembly::check_equal(const Claim& claim, const RecoveredParam& param) const {
  const Bytes data =
      claim.initializer < 0
          ? Bytes::zeros(static_cast<size_t>(claim.type.bytes()))
          : oriented(model_.initializers[static_cast<size_t>(claim.initializer)], claim);
  if (data.data && data.data == param.data.data && claim.type == param.type) return ok_status();
  const Bytes other = param.data.made();
  const bool equal =
      claim.type == param.type &&
      (other.data == nullptr || as_text(data.made().span()) == as_text(other.span()));
  if (equal) return ok_status();
  Error error = fail("the parameter '{}' is stored with two values: {} and {}",
                     quote_control(param.name), param.initializer, stored_as(model_, claim));
  if (claim.evidence == kByBias)
    error.notes.push_back(
        "its name is that of the bias beside them: perhaps equal biases of several modules were "
        "merged");
  error.notes.push_back(export_help(model_));
  return error;
}

Status Assembly::add_use(const Claim& claim) {
  if (claim.name.empty()) return ok_status();
  const size_t p = index_.at(name_of(claim));
  RecoveredParam& param = out_.params[p];
  if (param.evidence.empty()) {
    param.evidence = claim.evidence;
    param.initializer = stored_as(model_, claim);
    param.type = claim.type;
    param.frozen = claims_.frozen.count(param.name) > 0;
    const auto given = claims_.given.find(param.name);
    if (given != claims_.given.end()) {
      param.data = given->second.data;
    } else if (claim.initializer >= 0) {
      const OnnxTensor& tensor = model_.initializers[static_cast<size_t>(claim.initializer)];
      param.data = oriented(tensor, claim);
      if (is_layout(claim.derivation)) param.stored = tensor.data;
      param.absent = tensor.absent;
    }
  } else {
    if (!claim.copy) PIPER_TRY(check_equal(claim, param));
    const std::string also = stored_as(model_, claim);
    if (param.initializer.find(also) == std::string::npos) param.initializer += ", " + also;
  }
  out_.uses.push_back({claim.node, claim.input, p, claim.derivation});
  return ok_status();
}

void Assembly::report_initializers() {
  std::vector<std::set<std::string>> names(model_.initializers.size());
  for (const Claim& claim : claims_.list) {
    if (claim.initializer >= 0 && !claim.name.empty()) {
      names[static_cast<size_t>(claim.initializer)].insert(name_of(claim));
    }
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const OnnxTensor& tensor = model_.initializers[i];
    if (names[i].size() > 1) {
      const std::vector<std::string> list(names[i].begin(), names[i].end());
      out_.separated.push_back(
          fmt::format("{}: {} parameters: {}", tensor.name, list.size(), join(list, ", ")));
    }
    if (names[i].empty() && info(tensor.type.dtype).is_float) {
      const bool unnamed =
          std::any_of(claims_.unknown.begin(), claims_.unknown.end(),
                      [&](const UnknownConstant& one) { return one.initializer == tensor.name; });
      const std::string why = !tensor.folded_from.empty()
                                  ? "computed from " + join(tensor.folded_from, ", ")
                              : unnamed ? "computed, the file does not say from what"
                                        : "a literal";
      out_.constants.push_back(fmt::format("{} {}: {}", tensor.name, to_string(tensor.type), why));
    }
  }
  for (const OnnxTensor& tensor : tensors_of_nodes(model_))
    if (num_elements(tensor.type.shape) > 1)
      out_.constants.push_back(
          fmt::format("{} {}: in a Constant node", tensor.name, to_string(tensor.type)));
}

Status Assembly::run() {
  list_params();
  for (const Claim& claim : claims_.list) PIPER_TRY(add_use(claim));
  std::sort(out_.uses.begin(), out_.uses.end(), [](const ParamUse& a, const ParamUse& b) {
    return std::pair(a.node, a.input) < std::pair(b.node, b.input);
  });
  report_initializers();
  out_.notes = claims_.notes;
  out_.lost = claims_.lost;
  out_.missing = claims_.missing;
  out_.unknown = claims_.unknown;
  out_.stored = claims_.stored;
  for (const Claim& claim : claims_.list)
    if (!claim.copy && claim.derivation.size() == 1 && claim.derivation[0].node.op == "Add")
      out_.stored.push_back(claim.name);
  return ok_status();
}

}  // namespace

InitializerIndex::InitializerIndex(const OnnxModel& m) : model(m) {
  for (size_t i = 0; i < m.initializers.size(); ++i) {
    by_name_.emplace_back(m.initializers[i].name, static_cast<int>(i));
  }
  std::sort(by_name_.begin(), by_name_.end());
}

std::vector<OnnxTensor> tensors_of_nodes(const OnnxModel& model) {
  std::vector<OnnxTensor> out;
  for (const OnnxNode& node : model.nodes) {
    if (node.op != "Constant" || node.outputs.empty()) continue;
    const auto* tensor = node.get<OnnxTensor>("value");
    if (!tensor || !info(tensor->type.dtype).is_float) continue;
    out.push_back(*tensor);
    out.back().name = node.outputs[0];
  }
  return out;
}

int InitializerIndex::find(std::string_view name) const {
  const auto found = std::lower_bound(by_name_.begin(), by_name_.end(), std::pair(name, -1));
  return found != by_name_.end() && found->first == name ? found->second : -1;
}

int InitializerIndex::find_float(std::string_view name) const {
  const int i = find(name);
  return i >= 0 && info(model.initializers[static_cast<size_t>(i)].type.dtype).is_float ? i : -1;
}

bool is_fused(const OnnxNode& node) {
  return find_metadata(node.metadata, "pkg.onnxscript.rewriter.rule_name").find("FuseBatchNorm") !=
         std::string_view::npos;
}

void find_fused_norms(const OnnxModel& model, Recovery& recovery) {
  for (const ParamUse& use : recovery.uses) {
    const std::string& name = recovery.params[use.param].name;
    if (!is_fused(model.nodes[use.node]) || recovery.is_missing(name)) continue;
    recovery.missing.push_back(
        {.name = name, .why = "a batch norm was multiplied into it", .placed = true});
  }
}

std::optional<double> stored_plus(const PriorKnowledge& prior, const std::string& name) {
  for (const ParamRule& rule : prior.rules) {
    if (rule.kind != ParamRule::Kind::kStored) continue;
    const Result<Glob> glob = Glob::parse(rule.match, rule.at);
    if (glob && (glob->match(scope_of_name(name)) || glob->match(name))) return rule.plus;
  }
  return {};
}

Result<Recovery> recover_params(OnnxModel& model, std::vector<std::string>& scopes,
                                const PriorKnowledge& prior) {
  std::vector<SignatureInput> signature =
      parse_signature(find_metadata(model.metadata, kSignatureKey));
  restore_training_norms(model, signature);
  separate_recurrent(model, scopes);
  PIPER_TRY(separate_draws(model, scopes, signature));
  guard_rows_without_keys(model);
  std::vector<Note> notes;
  PIPER_ASSIGN(auto changed, find_changed_buffers(model, signature, notes));
  const bool has_parameters =
      std::any_of(signature.begin(), signature.end(),
                  [](const SignatureInput& s) { return s.kind == "PARAMETER"; });
  Result<Claims> claims = lists_parameters(model)  ? claims_by_list(model, changed)
                          : model.absent_bytes > 0 ? claims_without_values(model, signature)
                          : has_parameters ? claims_by_calls(model, scopes, signature, prior)
                                           : claims_by_names(model, scopes, prior);
  if (!claims) return std::move(claims).error();
  Assembly assembly(model, *claims);
  PIPER_TRY(assembly.run());
  Recovery recovery = std::move(assembly).take();
  recovery.notes.insert(recovery.notes.end(), notes.begin(), notes.end());
  find_fused_norms(model, recovery);
  find_running_statistics(model, scopes, recovery);
  PIPER_TRY(find_detached(model, signature, recovery));
  keep_changed_buffers(model, std::move(changed), recovery);
  PIPER_TRY(find_untouched(model, recovery));
  if (!claims->listed) freeze_sinusoids(model, recovery);
  return recovery;
}

}  // namespace piper::onnx_import
