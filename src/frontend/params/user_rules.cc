// What the strategy says of the file's tensors, applied to what was recovered: include, exclude,
// freeze, tie, rename. The first four go by the file's names; rename comes last.
#include <algorithm>
#include <map>
#include <set>

#include "claims.h"
#include "renames.h"

namespace piper::onnx_import {
namespace {

// Returns whether a pattern over paths matches a name in either of its forms.
bool matches(const Glob& glob, const std::string& name) {
  return glob.match(scope_of_name(name)) || glob.match(name);
}

// Returns whether it matches a parameter of these names; one that is taken out takes it out.
bool matches_any(const Glob& glob, const std::vector<std::string>& names) {
  const auto matched = [](const Glob& by) {
    return [&by](const std::string& name) { return matches(by, name); };
  };
  if (std::none_of(names.begin(), names.end(), matched(glob))) return false;
  const Result<Glob> left = Glob::parse("**, " + glob.pattern(), {});
  return !left || std::all_of(names.begin(), names.end(), matched(*left));
}

std::vector<std::string> names_of(const RecoveredParam& param) {
  std::vector<std::string> names{param.name};
  names.insert(names.end(), param.aliases.begin(), param.aliases.end());
  return names;
}

std::vector<std::string> paths_of(const std::vector<std::string>& names) {
  std::vector<std::string> paths;
  for (const std::string& name : names) paths.push_back(scope_of_name(name));
  return paths;
}

Bytes initial_bytes(const RecoveredParam& p) {
  return p.data.size > 0 ? p.data.made() : Bytes::zeros(static_cast<size_t>(p.type.bytes()));
}

class Rules {
 public:
  Rules(const OnnxModel& model, Recovery& recovery, const std::vector<ParamRule>& rules)
      : model_(model),
        out_(recovery),
        rules_(rules),
        matched_(rules.size()),
        constants_(tensors_of_nodes(model)) {
    for (const OnnxTensor& tensor : model.initializers)
      if (info(tensor.type.dtype).is_float) constants_.push_back(tensor);
  }
  Status run();
  std::vector<RuleMatch> take() && { return std::move(matched_); }

 private:
  Status claim(size_t r, const std::string& name);
  Status find_constants(size_t r, const Glob& glob);
  Status find_params(size_t r, const Glob& glob);
  std::vector<std::string> settle_lost(const Glob& glob, std::vector<std::string>& all);
  Status find_doubtful(size_t r, const Glob& glob);
  void forget_settled();
  Status find_stored(size_t r, const Glob& glob);
  Status tie(size_t r);
  Status merge(size_t r, size_t into, size_t from);
  Status include_found();
  Status include(size_t r, const OnnxTensor& tensor);
  void exclude_found();
  Status rename_all();
  Error nothing(size_t r, std::string_view what, const std::vector<std::string>& names) const;
  int find_param(const std::string& name) const;
  std::vector<std::string> all_names() const;
  std::vector<std::pair<size_t, size_t>> free_uses(const std::string& name) const;
  void forget(const std::set<size_t>& params);

  const OnnxModel& model_;
  Recovery& out_;
  const std::vector<ParamRule>& rules_;
  std::vector<RuleMatch> matched_;
  std::map<std::string, size_t> claimed_;            // name -> rule
  std::vector<OnnxTensor> constants_;                // and parameters: the file's tensors of floats
  std::vector<std::pair<size_t, size_t>> included_;  // rule, constant
  std::set<size_t> excluded_;                        // parameters
  std::set<std::string> settled_;                    // what is lost of these does not matter
};

Error Rules::nothing(size_t r, std::string_view what, const std::vector<std::string>& names) const {
  const ParamRule& rule = rules_[r];
  const std::vector<std::string> paths = paths_of(names);
  return fail(rule.at, "'{}' matches no {}{}", quote_control(rule.match), what,
              did_you_mean(rule.match, paths))
      .with_note("help: piperc MODEL --describe lists parameters and constants");
}

Status Rules::claim(size_t r, const std::string& name) {
  const auto [entry, fresh] = claimed_.emplace(name, r);
  using Kind = ParamRule::Kind;
  const Kind kind = rules_[r].kind;
  const bool again = kind == Kind::kExclude || kind == Kind::kFreeze || kind == Kind::kThaw;
  if (fresh || (again && rules_[entry->second].kind == kind)) return ok_status();
  return fail(rules_[r].at, "two entries of 'parameters' claim '{}'", quote_control(name))
      .with_note(fmt::format("the first is '{}' at line {}", rules_[entry->second].match,
                             rules_[entry->second].at.line));
}

int Rules::find_param(const std::string& name) const {
  for (size_t p = 0; p < out_.params.size(); ++p) {
    for (const std::string& known : names_of(out_.params[p])) {
      if (known == name || scope_of_name(known) == name) return static_cast<int>(p);
    }
  }
  return -1;
}

std::vector<std::string> Rules::all_names() const {
  std::vector<std::string> names;
  for (const RecoveredParam& param : out_.params) {
    for (std::string& name : names_of(param)) names.push_back(std::move(name));
  }
  return names;
}

// Returns where nodes read the tensor as a constant.
std::vector<std::pair<size_t, size_t>> Rules::free_uses(const std::string& name) const {
  std::vector<std::pair<size_t, size_t>> uses;
  for (size_t n = 0; n < model_.nodes.size(); ++n) {
    for (size_t i = 0; i < model_.nodes[n].inputs.size(); ++i) {
      if (model_.nodes[n].inputs[i] != name) continue;
      const bool taken = std::any_of(out_.uses.begin(), out_.uses.end(), [&](const ParamUse& use) {
        return use.node == n && use.input == i;
      });
      if (!taken) uses.emplace_back(n, i);
    }
  }
  return uses;
}

Status Rules::find_constants(size_t r, const Glob& glob) {
  PIPER_TRY(find_doubtful(r, glob));
  std::vector<std::string> names;
  for (size_t i = 0; i < constants_.size(); ++i) {
    const OnnxTensor& tensor = constants_[i];
    if (find_param(tensor.name) >= 0 || free_uses(tensor.name).empty()) continue;
    names.push_back(tensor.name);
    if (!matches(glob, tensor.name)) continue;
    PIPER_TRY(claim(r, tensor.name));
    included_.emplace_back(r, i);
    settled_.insert(tensor.name);
    matched_[r].names.push_back(tensor.name);
    matched_[r].elements += num_elements(tensor.type.shape);
  }
  if (matched_[r].names.empty()) return nothing(r, "constant of the model", names);
  return ok_status();
}

// What stays as it is may be anything. Of those that match, and have no place among the parameters,
// the names; `all` gets those of all.
std::vector<std::string> Rules::settle_lost(const Glob& glob, std::vector<std::string>& all) {
  std::vector<std::string> found;
  for (const MissingParam& lost : out_.missing) {
    if (!lost.placed) all.push_back(lost.name);
    if (!matches(glob, lost.name)) continue;
    settled_.insert(lost.name);
    if (!lost.placed) found.push_back(lost.name);
  }
  for (const UnknownConstant& one : out_.unknown) {
    all.push_back(one.initializer);
    if (!matches(glob, one.initializer) && !glob.match(one.path)) continue;
    settled_.insert(one.initializer);
    found.push_back(one.initializer);
  }
  return found;
}

// Finds parameters whose values are perhaps not their own, and which the strategy trains as they
// are.
Status Rules::find_doubtful(size_t r, const Glob& glob) {
  for (RecoveredParam& param : out_.params) {
    const bool doubtful =
        std::any_of(out_.missing.begin(), out_.missing.end(),
                    [&](const MissingParam& s) { return s.placed && s.name == param.name; });
    if (!doubtful || !matches(glob, param.name)) continue;
    if (!rules_[r].to.empty())
      return fail(rules_[r].to_at, "'{}' is a parameter under its own name",
                  quote_control(param.name))
          .with_note("help: 'rename' gives it another one");
    PIPER_TRY(claim(r, param.name));
    settled_.insert(param.name);
    matched_[r].names.push_back(param.name);
    matched_[r].elements += num_elements(param.type.shape);
  }
  return ok_status();
}

// Of what is settled the user is told what is wrong with its values.
void Rules::forget_settled() {
  std::erase_if(out_.missing, [&](const MissingParam& lost) {
    if (!settled_.count(lost.name)) return false;
    if (lost.placed) out_.notes.push_back({lost.name, lost.why});
    std::erase(out_.lost, lost.name);
    return true;
  });
  std::erase_if(out_.unknown,
                [&](const UnknownConstant& one) { return settled_.count(one.initializer) > 0; });
}

Status Rules::find_params(size_t r, const Glob& glob) {
  const bool thaws = rules_[r].kind == ParamRule::Kind::kThaw;
  std::vector<std::string> all;  // that it could have matched
  for (size_t p = 0; p < out_.params.size(); ++p) {
    RecoveredParam& param = out_.params[p];
    if (thaws && !param.frozen) continue;
    const std::vector<std::string> names = names_of(param);
    all.insert(all.end(), names.begin(), names.end());
    if (!matches_any(glob, names)) continue;
    PIPER_TRY(claim(r, param.name));
    param.frozen = !thaws && (param.frozen || rules_[r].kind == ParamRule::Kind::kFreeze);
    if (rules_[r].kind == ParamRule::Kind::kExclude) excluded_.insert(p);
    if (thaws)
      std::erase_if(out_.notes, [&](const Note& note) {
        return note.of == param.name && note.text == kSinusoids;
      });
    matched_[r].names.push_back(param.name);
    matched_[r].elements += num_elements(param.type.shape);
  }
  if (!thaws) {  // also what the file has as constants alone
    const std::vector<std::string> lost = settle_lost(glob, all);
    matched_[r].names.insert(matched_[r].names.end(), lost.begin(), lost.end());
  }
  if (matched_[r].names.empty())
    return nothing(r, thaws ? "parameter that the importer froze" : "parameter", all);
  return ok_status();
}

Status Rules::merge(size_t r, size_t into, size_t from) {
  RecoveredParam &a = out_.params[into], &b = out_.params[from];
  if (a.type != b.type || as_text(initial_bytes(a).span()) != as_text(initial_bytes(b).span())) {
    return fail(rules_[r].at, "'{}' and '{}' are stored with different values", a.name, b.name)
        .with_note("only names of one tensor can be tied");
  }
  for (ParamUse& use : out_.uses) {
    if (use.param == from) use.param = into;
  }
  for (std::string& name : names_of(b)) a.aliases.push_back(std::move(name));
  forget({from});
  return ok_status();
}

// What it says was heeded where they were found.
Status Rules::find_stored(size_t r, const Glob& glob) {
  for (const std::string& name : out_.stored) {
    if (!matches(glob, name)) continue;
    matched_[r].names.push_back(name);
    matched_[r].elements +=
        num_elements(out_.params[static_cast<size_t>(find_param(name))].type.shape);
  }
  if (matched_[r].names.empty())
    return nothing(r, "parameter that the file has with a number added", out_.stored);
  return ok_status();
}

// names[0] becomes the parameter's own name, the others its other names.
Status Rules::tie(size_t r) {
  const std::vector<std::string>& names = rules_[r].names;
  std::vector<std::string> known = all_names();
  known.insert(known.end(), out_.lost.begin(), out_.lost.end());
  std::vector<std::string> dotted;
  for (const std::string& name : names) {
    const auto found = std::find_if(known.begin(), known.end(), [&](const std::string& k) {
      return k == name || scope_of_name(k) == name;
    });
    if (found == known.end()) {
      return fail(rules_[r].at, "the module has no parameter '{}'{}", quote_control(name),
                  did_you_mean(name, known));
    }
    dotted.push_back(*found);
  }
  int into = -1;
  for (const std::string& name : dotted) {
    PIPER_TRY(claim(r, name));
    const int at = find_param(name);
    const bool placed = std::any_of(out_.missing.begin(), out_.missing.end(),
                                    [&](const auto& s) { return s.placed && s.name == name; });
    if (at < 0 || placed) settled_.insert(name);
    if (at < 0) std::erase(out_.lost, name);
    if (at < 0 || at == into) continue;
    if (into >= 0) {
      PIPER_TRY(merge(r, static_cast<size_t>(into), static_cast<size_t>(at)));
      into -= at < into;
    } else {
      into = at;
    }
  }
  if (into < 0) {
    return fail(rules_[r].at, "none of these is in the model's file: {}", join(dotted, ", "));
  }
  RecoveredParam& param = out_.params[static_cast<size_t>(into)];
  std::set<std::string> others(dotted.begin(), dotted.end());
  for (const std::string& name : names_of(param)) others.insert(name);
  others.erase(dotted[0]);
  param.name = dotted[0];
  param.aliases.assign(others.begin(), others.end());
  matched_[r].names = dotted;
  matched_[r].elements = num_elements(param.type.shape);
  return ok_status();
}

// Adds a use of the parameter that the entry names, or a parameter of the tensor's own.
Status Rules::include(size_t r, const OnnxTensor& tensor) {
  const ParamRule& rule = rules_[r];
  TensorType type = tensor.type;
  if (rule.transposed) {
    if (type.shape.size() != 2)
      return fail(rule.at, "'{}' {} is not a matrix, so it cannot be transposed",
                  quote_control(tensor.name), to_string(type));
    std::swap(type.shape[0], type.shape[1]);
  }
  std::string name = rule.to.empty() ? tensor.name : join(split_text(rule.to, '/'), ".");
  Derivation from = rule.transposed ? transposition(type.shape) : Derivation();
  const Bytes data = undo_layout(from, tensor);
  const int known = find_param(name);
  const size_t p = known >= 0 ? static_cast<size_t>(known) : out_.params.size();
  if (known >= 0 && !rule.transposed && out_.params[p].type != type &&
      out_.params[p].type.bytes() == type.bytes()) {
    from = {reshape_step(out_.params[p].type.shape, type.shape)};
    type.shape = out_.params[p].type.shape;
  }
  if (known >= 0 && !(out_.params[p].type == type &&
                      as_text(initial_bytes(out_.params[p]).span()) == as_text(data.span()))) {
    return fail(rule.to_at, "'{}' is not of the values of '{}'", quote_control(tensor.name),
                quote_control(name));
  }
  for (const auto& [node, input] : free_uses(tensor.name))
    out_.uses.push_back({node, input, p, from});
  if (known < 0)
    out_.params.push_back({.name = std::move(name),
                           .evidence = "included by the strategy",
                           .initializer = tensor.name,
                           .type = std::move(type),
                           .data = data});
  return ok_status();
}

Status Rules::include_found() {
  for (const auto& [r, i] : included_) {
    const OnnxTensor& tensor = constants_[i];
    std::erase_if(out_.constants,
                  [&](const std::string& line) { return line.starts_with(tensor.name + " "); });
    PIPER_TRY(include(r, tensor));
  }
  std::sort(out_.uses.begin(), out_.uses.end(), [](const ParamUse& a, const ParamUse& b) {
    return std::pair(a.node, a.input) < std::pair(b.node, b.input);
  });
  return ok_status();
}

// Uses of excluded parameters read the file's tensor, or nothing where the exporter deleted zeros.
void Rules::exclude_found() {
  for (const size_t p : excluded_) {
    out_.constants.push_back(fmt::format("{} {}: excluded by the strategy", out_.params[p].name,
                                         to_string(out_.params[p].type)));
  }
  forget(excluded_);
}

void Rules::forget(const std::set<size_t>& params) {
  std::vector<size_t> place(out_.params.size());
  std::vector<RecoveredParam> kept;
  for (size_t p = 0; p < out_.params.size(); ++p) {
    place[p] = kept.size();
    if (!params.count(p)) kept.push_back(std::move(out_.params[p]));
  }
  std::erase_if(out_.uses, [&](const ParamUse& use) { return params.count(use.param) > 0; });
  for (ParamUse& use : out_.uses) use.param = place[use.param];
  out_.params = std::move(kept);
}

Status Rules::rename_all() {
  const std::vector<std::string> old = all_names();
  std::map<std::string, std::string> target;
  std::map<std::string, size_t> by;
  for (size_t r = 0; r < rules_.size(); ++r) {
    if (rules_[r].kind != ParamRule::Kind::kRename) continue;
    PIPER_ASSIGN(const Glob glob, Glob::parse(rules_[r].match, rules_[r].at));
    PIPER_TRY(check_template(rules_[r], glob));
    for (const std::string& name : old) {
      const std::string path = scope_of_name(name);
      const auto match = glob.match(path);
      if (!match) continue;
      const auto [entry, fresh] = by.emplace(name, r);
      if (!fresh)
        return fail(rules_[r].at, "two entries of 'parameters' rename '{}'", quote_control(name))
            .with_note(fmt::format("the first is '{}' at line {}", rules_[entry->second].match,
                                   rules_[entry->second].at.line));
      target[name] = renamed(rules_[r], *match, path);
      matched_[r].names.push_back(fmt::format("{} -> {}", name, target[name]));
    }
    if (matched_[r].names.empty()) return nothing(r, "parameter", old);
  }
  std::map<std::string, std::string> taken;  // new name -> old
  for (const std::string& name : old) {
    const auto found = target.find(name);
    const std::string& now = found == target.end() ? name : found->second;
    const auto [entry, fresh] = taken.emplace(now, name);
    const bool is_ruled = by.contains(name) || by.contains(entry->second);
    if (fresh || !is_ruled) continue;  // the file may have a name twice
    const auto rule = by.count(name) ? by.at(name) : by.at(entry->second);
    return fail(rules_[rule].to_at, "'{}' and '{}' would both be called '{}'", entry->second, name,
                now);
  }
  const auto apply = [&](std::string& name) {
    if (const auto found = target.find(name); found != target.end()) name = found->second;
  };
  for (RecoveredParam& param : out_.params) {
    apply(param.name);
    for (std::string& alias : param.aliases) apply(alias);
  }
  return ok_status();
}

Status Rules::run() {
  for (size_t r = 0; r < rules_.size(); ++r) {
    if (rules_[r].kind == ParamRule::Kind::kTie) PIPER_TRY(tie(r));
  }
  for (size_t r = 0; r < rules_.size(); ++r) {
    const ParamRule& rule = rules_[r];
    if (rule.kind == ParamRule::Kind::kRename || rule.kind == ParamRule::Kind::kTie) continue;
    PIPER_ASSIGN(const Glob glob, Glob::parse(rule.match, rule.at));
    PIPER_TRY(rule.kind == ParamRule::Kind::kInclude  ? find_constants(r, glob)
              : rule.kind == ParamRule::Kind::kStored ? find_stored(r, glob)
                                                      : find_params(r, glob));
  }
  PIPER_TRY(include_found());
  exclude_found();
  forget_settled();
  return rename_all();
}

}  // namespace

Result<std::vector<RuleMatch>> apply_param_rules(const OnnxModel& model, Recovery& recovery,
                                                 const std::vector<ParamRule>& rules) {
  Rules apply(model, recovery, rules);
  PIPER_TRY(apply.run());
  return std::move(apply).take();
}

}  // namespace piper::onnx_import
