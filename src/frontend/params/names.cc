// Parameters of files without metadata (the older exporter, other frameworks). An initializer that
// kept its name is the parameter of that name. An anonymous one is what the exporter computed: of a
// parameter that the file has too, if the values say so; of one that the node reading it tells; or
// of something that nobody can tell, and then the strategy has to say what it is.
#include <algorithm>
#include <limits>
#include <set>

#include "name_recovery.h"
#include "piper/frontend/onnx.h"

namespace piper::onnx_import {
namespace {

// Returns whether no training changes the input: running statistics, scales.
bool is_setting(std::string_view op, size_t input) {
  if (op == "BatchNormalization") return input >= 3;
  constexpr std::string_view kOnlyFirst[] = {"DequantizeLinear", "OneHot", "QuantizeLinear",
                                             "Resize", "Upsample"};
  return input >= 1 &&
         std::find(std::begin(kOnlyFirst), std::end(kOnlyFirst), op) != std::end(kOnlyFirst);
}

// Returns whether the input is mostly a literal, which PyTorch writes as a node.
bool is_bound(std::string_view op, size_t input) {
  return (op == "Clip" && input >= 1) || (op == "Pad" && input == 2);
}

}  // namespace

void NameBasedRecovery::add(int initializer, const Place& place, std::string name, TensorType type,
                            Derivation derivation, std::string evidence) {
  claims_.list.push_back({place.node, place.input, initializer, std::move(name),
                          std::move(derivation), std::move(type), std::move(evidence)});
}

void NameBasedRecovery::alias(const std::string& other, const std::string& name) {
  const std::pair<std::string, std::string> names(other, name);
  std::vector<std::pair<std::string, std::string>>& known = claims_.ties.alias_of;
  if (other != name && !readers_.of.count(other) &&
      std::find(known.begin(), known.end(), names) == known.end())
    known.push_back(names);
}

// ---- Names that were kept -----------------------------------------------------------------------

// Returns the other name of a head that is an embedding, or of a bias that two modules have: it is
// read in the scope of a Linear or an Embedding that is not its own. A table of another name may be
// handed to a module that has none.
std::string NameBasedRecovery::other_name(int initializer, const Place& place) const {
  const std::string& scope = readers_.scopes[place.node];
  const std::string& op = node(place).op;
  const bool linear = readers_.is_leaf_of(scope, {"MatMul", "Transpose", "Add"}) ||
                      readers_.is_leaf_of(scope, {"Gemm"});
  const bool looked_up = op == "Gather" && place.input == 0 &&
                         tensor(initializer).name.ends_with(".weight") &&
                         readers_.is_leaf_of(scope, {"Gather", "Mul", "Constant", "Cast"});
  const bool multiplied = linear && (op == "Transpose" || (op == "Gemm" && place.input == 1));
  const bool added = linear && (op == "Add" || (op == "Gemm" && place.input == 2));
  if (!looked_up && !multiplied && !added) return {};
  const std::string module = modules_.of(scope);
  const std::string& name = tensor(initializer).name;
  if (module.empty() || name.starts_with(module + ".")) return {};
  return module + (added ? ".bias" : ".weight");
}

// Merging by other programs leaves no trace: one number has the name of one module, and is read by
// it and by others.
std::string NameBasedRecovery::merged_with(int initializer,
                                           const std::vector<Place>& places) const {
  const OnnxTensor& kept = tensor(initializer);
  const std::string module = module_of(kept.name);
  if (module.empty() || !is_uniform(kept.data, kept.type.dtype)) return {};
  std::string own, other;
  for (const Place& place : places) {
    const std::string& scope = readers_.scopes[place.node];
    if (scope.empty() || !readers_.is_leaf(scope)) continue;
    (modules_.of(scope) == module ? own : other) = node(place).label();
  }
  if (own.empty() || other.empty()) return {};
  return fmt::format(
      "it is one number in all places and is read by {} and by {}: equal parameters of several "
      "modules were merged",
      own, other);
}

// Returns why the values of a tensor that kept its name are perhaps not those of the parameter
// alone. Where calls are lost, several readers may stand for several equal tensors that are small
// or hold one number.
std::string NameBasedRecovery::doubt_of(int initializer, const std::vector<Place>& places) const {
  constexpr int64_t kMostMerged = 1024;  // elements of what the newer exporter merges
  const OnnxTensor& kept = tensor(initializer);
  if (!model_.lacks_calls) return merged_with(initializer, places);
  const auto is_lookup = [&](const Place& at) { return node(at).op == "Gather" && at.input == 0; };
  if (places.size() > 1 && std::none_of(places.begin(), places.end(), is_lookup) &&
      (num_elements(kept.type.shape) <= kMostMerged || is_uniform(kept.data, kept.type.dtype)))
    return fmt::format("{} and {} read it: they may have been of several equal tensors",
                       node(places[0]).label(), node(places[1]).label());
  return may_be_fused(places[0]) ? "perhaps a batch norm was multiplied into it" : "";
}

void NameBasedRecovery::doubt(int initializer, std::string why) {
  if (!why.empty())
    claims_.missing.push_back(
        {.name = tensor(initializer).name, .why = std::move(why), .placed = true});
}

void NameBasedRecovery::claim_kept(int initializer, const std::vector<Place>& places) {
  doubt(initializer, doubt_of(initializer, places));
  const OnnxTensor& kept = tensor(initializer);
  for (const Place& place : places) {
    add(initializer, place, kept.name, kept.type, {}, "kept name");
    const std::string other = other_name(initializer, place);
    if (!other.empty()) alias(other, kept.name);
  }
}

// ---- Names that were lost -----------------------------------------------------------------------

// The transpose of an embedding is a tied head, and so is that of any matrix where the file has no
// other name for it.
bool NameBasedRecovery::claim_tied(int initializer, const std::vector<Place>& places,
                                   const std::optional<Role>& role) {
  const OnnxTensor& lost = tensor(initializer);
  if (lost.type.shape.size() != 2 || !is_telling(lost)) return false;
  for (const OnnxTensor& kept : model_.initializers) {
    if (is_anonymous(model_, kept.name) || !is_transpose(kept, lost)) continue;
    const auto readers = readers_.of.find(kept.name);
    const bool looked_up =
        readers != readers_.of.end() &&
        std::any_of(readers->second.begin(), readers->second.end(), [&](const Place& place) {
          return node(place).op == "Gather" && place.input == 0;
        });
    if (role && !looked_up && role->name != kept.name) continue;
    for (const Place& place : places)
      add(initializer, place, kept.name, kept.type, transposition(kept.type.shape),
          "kept name and content");
    if (role) alias(role->name, kept.name);
    return true;
  }
  return false;
}

// A convolution has its weight and bias under their names, unless they were computed, both of them
// where a batch norm was multiplied into it. The newer exporter keeps the name of the weight, and
// leaves out a bias of zeros.
bool NameBasedRecovery::may_be_fused(const Place& place) const {
  const OnnxNode& conv = node(place);
  if (conv.op != "Conv" && conv.op != "ConvTranspose") return false;
  const bool bias = conv.inputs.size() > 2;
  if (bias && !readers_.anonymous.count(conv.inputs[2])) return false;
  if (!model_.lacks_calls) return bias && readers_.anonymous.count(conv.inputs[1]);
  return place.input > 0 && !readers_.only(place.node, "BatchNormalization");
}

// x · w + y · (1 - w): whether what is read here has its results added to those of the parameter.
bool NameBasedRecovery::is_mixed_with(const Place& place, const std::string& name) const {
  const auto add = readers_.only(place.node, "Add");
  if (!add) return false;
  const std::string& other = model_.nodes[add->node].inputs[1 - add->input];
  const auto makes = [&](const Place& reader) { return node(reader).outputs[0] == other; };
  const std::vector<Place>& places = readers_.of.at(name);
  return std::any_of(places.begin(), places.end(), makes);
}

// Claims what was computed of a parameter whose values are known: one that the file has too, or,
// with `lost`, one of --init.
bool NameBasedRecovery::claim_computed(int initializer, const std::vector<Place>& places, bool lost,
                                       std::string& why) {
  const OnnxTensor& computed = tensor(initializer);
  std::vector<Claim> claims;
  for (const Place& place : places) {
    auto found = sources_.of(computed, modules_.of(readers_.scopes[place.node]), lost);
    if (found.size() > 1 && !lost)
      std::erase_if(found,
                    [&](const auto& one) { return !is_mixed_with(place, one.parameter->name); });
    if (found.size() > 1)
      why = fmt::format(": of '{}' or '{}', which are equal", found[0].parameter->name,
                        found[1].parameter->name);
    if (found.size() != 1) return false;
    const OnnxTensor& parameter = *found[0].parameter;
    claims.push_back({place.node, place.input, initializer, parameter.name, found[0].derivation,
                      parameter.type, "values", true});
    claims_.given.emplace(parameter.name, parameter);
  }
  claims_.list.insert(claims_.list.end(), claims.begin(), claims.end());
  return true;
}

// Returns whether the tensor is a literal that another program made a tensor of:
// "/Constant_1_output_0"; without calls, any number. Else a number may have been computed of a
// parameter, as sigmoid(0) was.
bool NameBasedRecovery::is_number(const OnnxTensor& tensor) const {
  const std::string_view name = tensor.name;
  if (name.substr(name.rfind('/') + 1).starts_with("Constant") && name.find('/') != name.npos)
    return true;
  return model_.lacks_calls && num_elements(tensor.type.shape) == 1;
}

void NameBasedRecovery::claim_anonymous(int initializer, const std::vector<Place>& places) {
  const OnnxTensor& lost = tensor(initializer);
  std::vector<std::optional<Role>> roles;
  for (const Place& place : places) roles.push_back(role_of(readers_, modules_, lost, place));
  const auto every = [&](auto holds) { return std::all_of(roles.begin(), roles.end(), holds); };
  if (is_number(lost) || claim_tied(initializer, places, roles[0])) return;
  const bool named = every([](const auto& r) { return !!r; });
  const bool certain = named && every([&](const auto& r) {
                         const bool said =
                             r->form == Role::Form::kNorm && stored_plus(prior_, r->name);
                         return said || r->evidence == kByBias;
                       });
  std::string why;
  if (!certain && claim_computed(initializer, places, true, why)) return;
  for (size_t i = 0; named && i < places.size(); ++i)
    named_.push_back({initializer, places[i], *roles[i]});
  if (named || is_mask(lost) || claim_computed(initializer, places, false, why)) return;
  const bool fused = std::any_of(places.begin(), places.end(),
                                 [&](const Place& place) { return may_be_fused(place); });
  leave(initializer, places[0], fused ? ", perhaps with a batch norm multiplied into it" : why);
}

void NameBasedRecovery::leave(int initializer, const Place& place, std::string_view why) {
  const OnnxTensor& lost = tensor(initializer);
  claims_.unknown.push_back(
      {lost.name,
       fmt::format("{} {} at {}{}", lost.name, to_string(lost.type), node(place).label(), why),
       scope_of_name(modules_.of(readers_.scopes[place.node])) + "/" + lost.name});
}

// A weight in 'fc_1' is that of 'fc', called again, if it has the same values; but equal numbers
// are no proof of it.
bool NameBasedRecovery::name_again(Named& named) {
  const std::string& scope = readers_.scopes[named.place.node];
  const std::string own = modules_.of_first_call(scope);
  const auto call = call_number(scope);
  if (named.role.evidence == kByBias || !call || modules_.of(scope) == own) return true;
  const OnnxTensor& lost = tensor(named.initializer);
  const bool same = std::any_of(named_.begin(), named_.end(), [&](const Named& other) {
    return readers_.scopes[other.place.node] == call->first &&
           as_text(tensor(other.initializer).data.span()) == as_text(lost.data.span());
  });
  if (same) return is_telling(lost) || modules_.called_again(scope);
  named.role.name = own + named.role.name.substr(named.role.name.rfind('.'));
  return true;
}

// Finds what was added to the weight of a norm, in at most `steps` steps: two are a conversion and
// a sum.
bool NameBasedRecovery::tell_norm(Named& named, int64_t steps) {
  Role& role = named.role;
  if (role.form != Role::Form::kNorm) return true;
  const std::optional<double> said = stored_plus(prior_, role.name);
  if (said || steps > 1) role.plus = said.value_or(1);
  if (!said && role.plus)
    claims_.notes.push_back(
        {role.name,
         fmt::format(
             "{}, which the file does not say; 'stored: {{match: NAME, plus: NUMBER}}' "
             "under 'parameters' says what a norm adds to it, or --init with the values that "
             "it was exported with what it does",
             *role.plus == 0 ? "taken as it stands there, though converted"
                             : "the file is taken to have 1 + w of it")});
  return role.plus.has_value();
}

// Those of which the file does not say enough go.
void NameBasedRecovery::leave_named() {
  int64_t steps = std::numeric_limits<int64_t>::max();  // norms of one model are of one class
  for (const Named& named : named_)
    if (named.role.form == Role::Form::kNorm) steps = std::min(steps, named.role.steps);
  std::vector<Named> told;
  for (Named named : named_) {
    if (!name_again(named)) {
      leave(named.initializer, named.place,
            fmt::format(": '{}', called again, or a module of its own",
                        modules_.of(readers_.scopes[named.place.node])));
    } else if (!tell_norm(named, steps)) {
      leave(named.initializer, named.place,
            fmt::format(": '{0}', or that and a number, as 'stored: {{match: {0}, plus: NUMBER}}' "
                        "under 'parameters' says",
                        named.role.name));
    } else {
      told.push_back(std::move(named));
    }
  }
  named_ = std::move(told);
}

namespace {

// Returns the parameter's type and the way from it to what the file has.
std::pair<TensorType, Derivation> undone(const Role& role, TensorType type) {
  const Shape file = type.shape;
  if (role.form == Role::Form::kNorm) {
    if (*role.plus == 0) return {type, {}};
    return {type, {literal_step("Add", file, scalar_literal(*role.plus, type.dtype))}};
  }
  if (role.form == Role::Form::kFlat) {
    type.shape = {file[0]};
    return {type, {reshape_step(type.shape, file)}};
  }
  type.shape = Shape(file.rbegin(), file.rend());
  return {type, transposition(type.shape)};
}

}  // namespace

// A factor of ones beside a parameter may have made a tensor of its values, and is in no other.
void NameBasedRecovery::leave_shared() {
  std::set<std::string> seen;
  for (const Claim& claim : claims_.list) seen.insert(claim.name);
  for (const Named& named : named_) seen.insert(named.role.name);
  std::erase_if(claims_.list, [&](const Claim& claim) {
    if (claim.evidence != "values") return false;
    const std::string other = sources_.unseen(module_of(claim.name), seen);
    if (!other.empty())
      leave(claim.initializer, {claim.node, claim.input},
            fmt::format(": of '{}' only, or also of '{}'", claim.name, other));
    return !other.empty();
  });
}

void NameBasedRecovery::claim_named() {
  leave_named();
  leave_shared();
  for (const Named& named : named_) {
    auto [type, from] = undone(named.role, tensor(named.initializer).type);
    if (named.role.plus == 0.0) claims_.stored.push_back(named.role.name);
    add(named.initializer, named.place, named.role.name, std::move(type), std::move(from),
        named.role.evidence);
  }
}

// ---- All of them --------------------------------------------------------------------------------

void NameBasedRecovery::claim(int initializer, const std::vector<Place>& places) {
  const OnnxTensor& one = tensor(initializer);
  const bool setting = std::all_of(places.begin(), places.end(), [&](const Place& place) {
    const std::string& op = node(place).op;
    return is_setting(op, place.input) || (!exported_ && is_bound(op, place.input));
  });
  if (setting) return;
  if (is_anonymous(model_, one.name) && (exported_ || one.name.find("::") != std::string::npos))
    return claim_anonymous(initializer, places);
  // Of other programs a scalar is a literal unless it bears the name of a module's parameter.
  const bool literal = one.type.shape.empty() && one.name.find('.') == std::string::npos;
  if (exported_ || !literal) claim_kept(initializer, places);
}

Result<Claims> NameBasedRecovery::run() {
  for (size_t i = 0; i < model_.initializers.size(); ++i) {
    const auto places = readers_.of.find(model_.initializers[i].name);
    if (places == readers_.of.end() || !info(model_.initializers[i].type.dtype).is_float) continue;
    claim(static_cast<int>(i), places->second);
  }
  claim_named();
  std::sort(claims_.list.begin(), claims_.list.end(), [](const Claim& a, const Claim& b) {
    return std::pair(a.node, a.input) < std::pair(b.node, b.input);
  });
  if (exported_) report_padding();
  report_copies();
  report_scopes();
  report_metadata();
  return std::move(claims_);
}

std::vector<std::string> NameBasedRecovery::paths() const {
  std::vector<std::string> out;
  for (const std::string& scope : readers_.scopes) out.push_back(scope_of_name(modules_.of(scope)));
  return out;
}

namespace {

bool is_without_calls(const OnnxModel& model) {
  const bool named = std::any_of(model.nodes.begin(), model.nodes.end(),
                                 [](const OnnxNode& n) { return n.name.starts_with("node_"); });
  return named && model.producer.starts_with("pytorch") &&
         find_metadata(model.metadata, kSignatureKey).empty();
}

}  // namespace

Result<Claims> claims_by_names(OnnxModel& model, std::vector<std::string>& scopes,
                               const PriorKnowledge& prior) {
  model.lacks_calls = is_without_calls(model);
  std::map<std::string, std::string> copies = separate_copies(model, scopes);
  NameBasedRecovery namer(model, scopes, prior, std::move(copies));
  PIPER_ASSIGN(Claims claims, namer.run());
  scopes = namer.paths();
  return claims;
}

}  // namespace piper::onnx_import
