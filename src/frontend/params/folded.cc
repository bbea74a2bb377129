// What the exporter computed from parameters while it folded constants: derived from them again,
// and the parameters had back where there is one exact answer. A result bears the name of its call,
// "permute_3", and the file lists what it was computed from: all of it.
#include <algorithm>
#include <charconv>

#include "calls.h"
#include "pieces.h"
#include "piper/frontend/onnx.h"

namespace piper::onnx_import {
namespace {

// Softplus is a function of its own in ONNX, with values under names of its own.
bool is_inlined(std::string_view stem) { return stem == "softplus"; }
bool is_temporary(std::string_view name) {
  return name == "beta" || name == "threshold" || name == "self_scaled";
}

// The program's.
std::string line_of(const OnnxNode& node) {
  const std::vector<std::string> lines =
      split_text(std::string(find_metadata(node.metadata, "pkg.torch.onnx.stack_trace")), '\n');
  for (size_t i = lines.size(); i-- > 0;)
    if (lines[i].find_first_not_of(' ') != std::string::npos) return lines[i];
  return {};
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; }

// The one number added to something in a line of Python: "1.0 + x" or "x + 1".
std::optional<double> number_added(const std::string& line) {
  std::optional<double> found;
  for (size_t i = 0; i < line.size(); ++i) {
    if (!std::isdigit(static_cast<unsigned char>(line[i])) || (i > 0 && is_word(line[i - 1])))
      continue;
    double number = 0;
    const char* end = std::from_chars(&line[i], line.data() + line.size(), number).ptr;
    const size_t behind = line.find_first_not_of(' ', static_cast<size_t>(end - line.data()));
    const size_t before = i == 0 ? line.npos : line.find_last_not_of(' ', i - 1);
    i = static_cast<size_t>(end - line.data()) - 1;
    if (end < line.data() + line.size() && is_word(*end)) continue;
    const bool added = (behind != line.npos && line[behind] == '+') ||
                       (before != line.npos && line[before] == '+');
    if (!added) continue;
    if (found && *found != number) return {};
    found = number;
  }
  return found;
}

}  // namespace

bool is_literal(std::string_view name) {
  constexpr std::string_view kMakers[] = {"val",   "const",     "arange",    "zeros",      "ones",
                                          "full",  "new_zeros", "new_ones",  "new_full",   "eye",
                                          "empty", "full_like", "ones_like", "zeros_like", "tmp"};
  const std::string_view stem = stem_of(name);
  return std::count(std::begin(kMakers), std::end(kMakers), stem) > 0 ||
         stem.starts_with("scalar_tensor") || stem.starts_with("const_") || name.ends_with("_cast");
}

std::string class_of(const OnnxNode& node) {
  const std::vector<std::string> classes =
      split_text(std::string(find_metadata(node.metadata, "pkg.torch.onnx.class_hierarchy")), '\'');
  return classes.size() < 5 ? "" : classes[classes.size() - 4];
}

// ---- What was folded ----------------------------------------------------------------------------

Chain CallClaims::chain_of(const OnnxTensor& folded, const std::string& source) const {
  Chain chain;
  for (const std::string& name : folded.folded_from) {
    if (name == source) continue;
    if (by_target_.count(name))
      chain.functions.push_back(name);  // which is no function
    else if (is_literal(name))
      chain.literal = true;
    else
      chain.functions.emplace_back(stem_of(name));
  }
  const std::string last(stem_of(folded.name));
  if (is_inlined(last))
    std::erase_if(chain.functions,
                  [&](const std::string& f) { return is_temporary(f) || f == last; });
  chain.functions.push_back(last);
  // What made the places of a lookup is not done to the table.
  const auto lookup = std::find_if(chain.functions.begin(), chain.functions.end(), is_lookup);
  if (lookup == chain.functions.end()) return chain;
  const std::string name = *lookup;
  std::erase_if(chain.functions,
                [&](const std::string& f) { return f != last && !is_function(f); });
  if (name != last) chain.functions.insert(chain.functions.end() - 1, name);
  return chain;
}

// The call names it; or, of what the call computed itself, that of which it did.
bool CallClaims::is_made_of(const OnnxTensor& folded, const CallArg& arg) const {
  const std::vector<std::string>& from = folded.folded_from;
  return arg.name == folded.name ||
         (is_literal(folded.name) && std::count(from.begin(), from.end(), arg.name) > 0);
}

std::vector<CallClaims::Fold> CallClaims::find_folds() const {
  std::map<int, Fold> folds;
  std::map<std::pair<int, const Group*>, size_t> seen;
  for (size_t n = 0; n < model_.nodes.size(); ++n) {
    for (size_t i = 0; i < model_.nodes[n].inputs.size(); ++i) {
      const int found = index_.find(model_.nodes[n].inputs[i]);
      if (found < 0 || taken_.count({n, i})) continue;
      const OnnxTensor& t = tensor(found);
      Fold fold{.initializer = found};
      std::copy_if(t.folded_from.begin(), t.folded_from.end(), std::back_inserter(fold.sources),
                   [&](const std::string& name) { return is_parameter(name); });
      if (fold.sources.empty()) continue;
      Fold& known = folds.emplace(found, std::move(fold)).first->second;
      const Group* group = group_at(n);
      const auto named = group
                             ? std::count_if(group->call.args.begin(), group->call.args.end(),
                                             [&](const CallArg& arg) { return is_made_of(t, arg); })
                             : 0;
      const bool own =
          !group || unknowns(*group).empty() || seen[{found, group}]++ < static_cast<size_t>(named);
      (own ? known.own : known.copies).push_back({n, i, found});
    }
  }
  std::vector<Fold> out;
  for (auto& [initializer, fold] : folds) {
    fold.chain = chain_of(tensor(initializer), fold.sources[0]);
    find_layout(fold);
    out.push_back(std::move(fold));
  }
  return out;
}

// What a call made of its argument has no name of its own: as of which argument, the call says.
void CallClaims::find_layout(Fold& fold) const {
  if (!is_literal(tensor(fold.initializer).name) || fold.chain.functions.size() < 2) return;
  std::optional<Derivation> layout;
  for (const Slot& slot : fold.own) {
    std::optional<Derivation> here = layout_in_call(slot);
    if (!here || (!here->empty() && !is_transpose(*here))) return;
    if (layout && layout->size() != here->size()) return;
    layout = std::move(here);
  }
  if (!layout) return;
  fold.layout = *std::move(layout);
  fold.chain.functions.pop_back();
}

OnnxTensor CallClaims::made_by_chain(const Fold& fold) const {
  const OnnxTensor& folded = tensor(fold.initializer);
  if (fold.layout.empty()) return folded;
  return {folded.name, {folded.type.dtype, fold.layout[0].from}, undo_layout(fold.layout, folded)};
}

// ---- 1 + w --------------------------------------------------------------------------------------

// A norm multiplies by 1 + w what it has divided by a root.
bool CallClaims::scales_a_norm(const Slot& slot) const {
  const OnnxNode& node = model_.nodes[slot.node];
  if (node.op.ends_with("Normalization")) return slot.input == 1;
  if (node.op != "Mul" || class_of(node).find("Norm") == std::string::npos) return false;
  const std::string& scaled = node.inputs[1 - slot.input];
  return std::any_of(model_.nodes.begin(), model_.nodes.end(), [&](const OnnxNode& other) {
    const size_t n = static_cast<size_t>(&other - model_.nodes.data());
    const bool root = other.op == "Sqrt" || other.op == "Reciprocal" ||
                      other.op.find("Normalization") != std::string::npos;
    return root && scopes_[n] == scopes_[slot.node] && comes_from(scaled, other.outputs[0]);
  });
}

bool CallClaims::comes_from(const std::string& value, const std::string& source) const {
  constexpr size_t kMost = 16;  // nodes
  std::vector<std::string> open{value};
  for (size_t k = 0; k < open.size() && k < kMost; ++k) {
    if (open[k] == source) return true;
    const auto made = maker_.find(open[k]);
    if (made == maker_.end()) continue;
    const OnnxNode& node = model_.nodes[made->second];
    open.insert(open.end(), node.inputs.begin(), node.inputs.end());
  }
  return false;
}

// The number is not in the file: the strategy says it, else the program's line; norms have 1.
std::optional<double> CallClaims::added_number(const Fold& fold) const {
  const OnnxTensor& folded = tensor(fold.initializer);
  const std::string& source = fold.sources[0];
  if (const auto said = stored_plus(prior_, source)) return said;
  for (const std::string& name : folded.folded_from) {
    const int literal = index_.find_float(name);
    if (literal >= 0 && name != source && tensor(literal).type.shape.empty())
      return read_number(tensor(literal).data, tensor(literal).type.dtype, 0);
  }
  const std::string leaf = source.substr(source.rfind('.') + 1);
  std::vector<Slot> slots = fold.own;
  slots.insert(slots.end(), fold.copies.begin(), fold.copies.end());
  for (const Slot& slot : slots) {
    const std::string line = line_of(model_.nodes[slot.node]);
    if (line.find(leaf) == std::string::npos) continue;
    if (const auto number = number_added(line)) return number;
  }
  const bool ones = is_uniform(folded.data, folded.type.dtype) &&
                    read_number(folded.data, folded.type.dtype, 0) == 1;
  for (const Slot& slot : slots)
    if (scales_a_norm(slot) || (ones && model_.nodes[slot.node].op == "Mul")) return 1;
  return {};
}

// ---- From whom ----------------------------------------------------------------------------------

std::optional<OnnxTensor> CallClaims::value_of_parameter(const std::string& name) const {
  const auto given = claims_.given.find(name);
  if (given != claims_.given.end()) return given->second;
  for (const Claim& claim : claims_.list) {
    if (claim.name != name || claim.copy) continue;
    if (claim.initializer < 0)
      return OnnxTensor{name, claim.type, Bytes::zeros(static_cast<size_t>(claim.type.bytes()))};
    Result<OnnxTensor> value = parameter_of(claim.derivation, tensor(claim.initializer));
    return value ? std::optional(*std::move(value)) : std::nullopt;
  }
  return {};
}

void CallClaims::claim_fold(const Fold& fold, const Slot& slot, const std::string& name,
                            bool copy) {
  const OnnxTensor& folded = tensor(slot.initializer);
  TensorType type = folded.type;
  if (!fold.derivation.empty()) type.shape = fold.derivation[0].from;
  const std::string how = describe(fold.derivation);
  if (claimed_.insert(name).second && !copy && !is_layout(fold.derivation))
    stored_[how].push_back(name);
  taken_.emplace(slot.node, slot.input);
  claims_.list.push_back({slot.node, slot.input, slot.initializer, name, fold.derivation, type,
                          "folded from it, as " + folded.name, copy});
}

// Of factor 1, as the line of the program says.
bool CallClaims::is_plain_softplus(const Fold& fold) const {
  std::vector<Slot> slots = fold.own;
  slots.insert(slots.end(), fold.copies.begin(), fold.copies.end());
  return std::any_of(slots.begin(), slots.end(), [&](const Slot& slot) {
    const std::string line = line_of(model_.nodes[slot.node]);
    const size_t call = line.find("softplus(");
    return call != line.npos && line.find("beta", call) == line.npos &&
           line.find(',', call) == line.npos;
  });
}

void CallClaims::claim_solved(Fold& fold, Derivation derivation, bool copy) {
  fold.solved = true;
  fold.derivation = std::move(derivation);
  fold.derivation.insert(fold.derivation.end(), fold.layout.begin(), fold.layout.end());
  for (const Slot& slot : fold.own) claim_fold(fold, slot, fold.sources[0], copy);
}

// What was computed of one parameter in several ways comes back by that which the others agree to:
// near where it is flat, a function tells its parameter less well.
bool CallClaims::explains_others(const Fold& fold, const Derivation& derivation,
                                 const std::vector<Fold>& folds) const {
  const Result<OnnxTensor> parameter = parameter_of(derivation, made_by_chain(fold));
  return parameter && std::all_of(folds.begin(), folds.end(), [&](const Fold& other) {
           return &other == &fold || other.sources != fold.sources ||
                  way_forth(*parameter, made_by_chain(other), other.chain);
         });
}

// What a convolution reads has as many dims as the operator wants: dims of one that came and went
// before it have left the parameter's shape.
bool CallClaims::keeps_shape(const Fold& fold) const {
  const auto moves_nothing = [](const std::string& function) {
    const PieceKind kind = kind_of(function);
    return kind == PieceKind::kReshape || kind == PieceKind::kSame;
  };
  const auto convolves = [&](const Slot& slot) {
    return model_.nodes[slot.node].op == "Conv" && slot.input == 1;
  };
  const Shape& shape = tensor(fold.initializer).type.shape;
  return !fold.own.empty() && std::all_of(fold.own.begin(), fold.own.end(), convolves) &&
         std::count(shape.begin(), shape.end(), 1) > 0 &&
         std::all_of(fold.chain.functions.begin(), fold.chain.functions.end(), moves_nothing);
}

// From the value alone. `cut`: also where only a part of the parameter is left, or its shape lost.
void CallClaims::solve_back(Fold& fold, const std::vector<Fold>& folds, bool cut) {
  if (fold.solved || fold.sources.size() > 1 || value_of_parameter(fold.sources[0])) return;
  const auto& functions = fold.chain.functions;
  if (std::count(functions.begin(), functions.end(), "softplus") && !is_plain_softplus(fold)) {
    fold.why = ": the factor of 'softplus' is lost";
    return;
  }
  const bool adds = std::count(functions.begin(), functions.end(), "add");
  if (adds) fold.chain.plus = added_number(fold);
  Result<Way> way = keeps_shape(fold) ? Way{tensor(fold.initializer).type, {}}
                                      : way_back(made_by_chain(fold), fold.chain);
  if (!way) fold.why = ": " + way.error().message;
  if (!way || (!cut && !way->note.empty())) return;
  if (!explains_others(fold, way->derivation, folds)) {
    fold.why = ", and so was another value, which its bytes do not show";
    return;
  }
  if (!way->note.empty() && !fold.own.empty()) {
    claims_.notes.push_back({fold.sources[0], way->note});
    partial_.emplace(fold.sources[0], fold.initializer);
  }
  claim_solved(fold, std::move(way->derivation), false);
}

// From the parameter that another place has: the bytes tell how.
void CallClaims::solve_forth(Fold& fold) {
  if (fold.solved || fold.sources.size() > 1) return;
  const auto value = value_of_parameter(fold.sources[0]);
  if (!value) return;
  auto derivation = way_forth(*value, made_by_chain(fold), fold.chain);
  if (derivation)
    claim_solved(fold, *std::move(derivation), true);
  else
    fold.why = ", which its bytes do not show";
}

// ---- Values that were merged with those ---------------------------------------------------------

// Parameters with a place that give `value` by the chain.
std::vector<std::string> CallClaims::makers_of(const OnnxTensor& value, const Chain& chain) const {
  std::set<std::string> out;
  for (const Claim& claim : claims_.list) {
    if (claim.name.empty() || claim.copy || out.count(claim.name)) continue;
    if (num_elements(claim.type.shape) != num_elements(value.type.shape)) continue;
    const auto of = value_of_parameter(claim.name);
    if (of && way_forth(*of, value, chain)) out.insert(claim.name);
  }
  return {out.begin(), out.end()};
}

// In the module, else within it.
std::vector<std::string> CallClaims::unseen_in(const std::string& scope) const {
  std::set<std::string> seen;
  for (const OnnxTensor& t : model_.initializers)
    seen.insert(t.folded_from.begin(), t.folded_from.end());
  for (const Group& group : groups_)
    for (const CallArg& arg : group.call.args)
      if (const auto at = targets_.find(arg.name); at != targets_.end())
        seen.insert(at->second->target);
  std::vector<std::string> own, within;
  for (const std::string& name : missing()) {
    if (seen.count(name)) continue;
    const size_t dot = name.rfind('.');
    const std::string module = dot == name.npos ? "" : scope_of_name(name.substr(0, dot));
    if (module == scope)
      own.push_back(name);
    else if (scope.empty() || module.starts_with(scope + "/"))
      within.push_back(name);
  }
  return own.empty() ? within : own;
}

// Of modules of one kind: what stands beside `source` under `name`'s own name has another shape, or
// something else is done to it.
bool CallClaims::differs_beside(const std::string& source, const std::string& name) const {
  const auto shape_of = [&](const std::string& parameter) -> const Shape* {
    for (const Claim& claim : claims_.list)
      if (claim.name == parameter) return &claim.type.shape;
    return nullptr;
  };
  const std::string beside =
      source.substr(0, source.rfind('.') + 1) + name.substr(name.rfind('.') + 1);
  const Shape *a = shape_of(source), *b = shape_of(beside);
  const auto x = chains_.find(source), y = chains_.find(beside);
  const bool otherwise = x != chains_.end() && y != chains_.end() && x->second != y->second;
  return otherwise || (a && b && *a != *b);
}

// As in another module of the class: of this one, it is the parameter of the same name.
bool CallClaims::is_read_alike(const Fold& fold, const Slot& slot) const {
  const std::string of = class_of(model_.nodes[slot.node]);
  return !of.empty() && std::any_of(fold.own.begin(), fold.own.end(), [&](const Slot& own) {
    return own.input == slot.input && scopes_[own.node] != scopes_[slot.node] &&
           class_of(model_.nodes[own.node]) == of && group_at(own.node) &&
           group_at(own.node)->call.function == group_at(slot.node)->call.function;
  });
}

// The values merged into `fold` that are read in the slot's scope are several, or its call stands
// for another, too: then one of them may be of a parameter of elsewhere.
bool CallClaims::stands_for_several(const Fold& fold, const Slot& slot) const {
  std::set<std::string> values;
  for (const Slot& copy : fold.copies)
    if (scopes_[copy.node] == scopes_[slot.node])
      for (const std::string& value : unknowns(*group_at(copy.node)))
        if (stem_of(value) == stem_of(tensor(fold.initializer).name)) values.insert(value);
  const std::string& result = group_at(slot.node)->call.name;
  return values.size() > 1 || std::any_of(groups_.begin(), groups_.end(), [&](const Group& group) {
           const std::vector<std::string> read = unknowns(group);
           return std::any_of(read.begin(), read.end(),
                              [&](const auto& v) { return stem_of(v) == stem_of(result); }) &&
                  std::any_of(group.nodes.begin(), group.nodes.end(), [&](size_t n) {
                    const auto& inputs = model_.nodes[n].inputs;
                    return std::count(inputs.begin(), inputs.end(), result) > 0;
                  });
         });
}

// The call names a value that no node makes: it was equal to this one. It is made, in the same way,
// of the parameter of the call's module that has no place, or of one with a place.
void CallClaims::claim_copy(const Fold& fold, const Slot& slot) {
  const OnnxTensor& folded = tensor(fold.initializer);
  const std::vector<std::string> values = unknowns(*group_at(slot.node));
  const auto same = std::find_if(values.begin(), values.end(), [&](const std::string& value) {
    return stem_of(value) == stem_of(folded.name);
  });
  const std::string& value = same == values.end() ? values[0] : *same;
  const std::vector<std::string> unseen = unseen_in(scopes_[slot.node]);
  std::vector<std::string> fit = unseen;
  if (unseen.size() > 1)
    std::erase_if(fit, [&](const std::string& n) {
      return differs_beside(fold.sources[0], n) ||
             (is_read_alike(fold, slot) && leaf_of(n) != leaf_of(fold.sources[0]));
    });
  const std::string why = fmt::format("'{}' was merged into {}", value, place_of(slot));
  if (same != values.end() && fold.solved && fit.size() == 1 && !stands_for_several(fold, slot))
    return claim_fold(fold, slot, fit[0], false);
  if (!unseen.empty()) return swallow_unseen(unseen, why);
  Fold copy = fold;
  if (same == values.end()) copy.chain = {{std::string(stem_of(value))}};
  // What a call made of its argument is in no layout that the function would tell.
  std::vector<std::string> makers;
  if (!is_literal(folded.name)) makers = makers_of(folded, copy.chain);
  if (makers.size() > 1)
    std::erase_if(makers, [&](const std::string& name) {
      return scope_of_name(name.substr(0, name.rfind('.'))) != scopes_[slot.node];
    });
  const bool itself = makers.empty() && same != values.end() && fold.solved;
  if (itself) return claim_fold(fold, slot, fold.sources[0], true);
  if (makers.size() != 1) {
    for (const std::string& source : fold.sources) swallow(source, why);
    return;
  }
  copy.derivation = *way_forth(*value_of_parameter(makers[0]), folded, copy.chain);
  claim_fold(copy, slot, makers[0], true);
}

// A parameter's own tensor, read for a value that was equal to it.
void CallClaims::claim_stand_in(const Slot& slot) {
  const OnnxTensor& stored = tensor(slot.initializer);
  const std::vector<std::string> values = unknowns(*group_at(slot.node));
  const std::string why = fmt::format("'{}' was merged into {}", values[0], place_of(slot));
  const std::vector<std::string> unseen = unseen_in(scopes_[slot.node]);
  if (!unseen.empty()) return swallow_unseen(unseen, why);
  if (is_uniform(stored.data, stored.type.dtype)) return void(swallow(stored.name, why));
  Fold fold{.initializer = slot.initializer, .chain = {{std::string(stem_of(values[0]))}}};
  const auto own = value_of_parameter(stored.name);
  const auto derivation = way_forth(own ? *own : stored, stored, fold.chain);
  // A factor of 1 and a sum with 0 are removed.
  constexpr std::string_view kRemoved[] = {"mul", "add", "sub", "div"};
  const bool removed =
      std::count(std::begin(kRemoved), std::end(kRemoved), fold.chain.functions[0]);
  if (!derivation && !removed) return void(swallow(stored.name, why));
  if (derivation) fold.derivation = *derivation;
  claim_fold(fold, slot, stored.name, own.has_value());
}

void CallClaims::swallow_fold(const Fold& fold) {
  const std::string place = place_of(fold.own.empty() ? fold.copies[0] : fold.own[0]);
  const bool one = fold.sources.size() == 1;
  for (const std::string& source : fold.sources) {
    MissingParam& lost = swallow(
        source, one ? fmt::format("{} was computed from it{}", place, fold.why)
                    : fmt::format("{} was computed from {}", place, join(fold.sources, " and ")));
    lost.by_value = one && has_way_forth(fold.chain) && !claims_.given.count(source);
  }
}

// A part of a parameter stands for it where the others are of no use. One of them may be read where
// a call names a part that no node makes, and a constant stands that was equal to it.
void CallClaims::check_whole(const Fold& fold) {
  const auto part = std::find_if(fold.chain.functions.begin(), fold.chain.functions.end(), is_part);
  if (!fold.solved || !partial_.count(fold.sources[0]) || part == fold.chain.functions.end())
    return;
  for (const Group& group : groups_) {
    if (group.slots.empty()) continue;
    for (const std::string& value : unknowns(group))
      if (is_part(stem_of(value)))
        swallow(fold.sources[0], fmt::format("'{}', which {} reads, may be another part of it",
                                             value, model_.nodes[group.slots[0].node].label()));
  }
}

// What users would not expect, since it is saved otherwise than the file has it.
void CallClaims::note_stored() {
  for (const auto& [how, names] : stored_)
    for (const std::string& name : names) claims_.notes.push_back({name, "stored as " + how});
}

void CallClaims::claim_folded() {
  std::vector<Fold> folds = find_folds();
  std::erase_if(folds, [&](const Fold& fold) {  // a choice that was made once and for all
    const OnnxTensor& t = tensor(fold.initializer);
    if (info(t.type.dtype).is_float) return false;
    if (t.type.dtype == DType::kBool || !is_literal(t.name)) swallow_fold(fold);  // else a shape
    return true;
  });
  for (const bool cut : {false, true})
    for (Fold& fold : folds) solve_back(fold, folds, cut);
  for (Fold& fold : folds) solve_forth(fold);
  for (const Fold& fold : folds)
    if (!fold.solved) swallow_fold(fold);
  for (const Fold& fold : folds) chains_.emplace(fold.sources[0], fold.chain.functions);
  for (const Fold& fold : folds)
    for (const Slot& slot : fold.copies) claim_copy(fold, slot);
  for (const Fold& fold : folds) check_whole(fold);
  note_stored();
}

}  // namespace piper::onnx_import
