// Parameters of files without metadata (the older exporter, other frameworks). An initializer that
// kept its name is the parameter of that name. An anonymous one is what the exporter computed: of a
// parameter that the file has too, if the values say so; of one that the node reading it tells; or
// of something that nobody can tell, and then the strategy has to say what it is.
#include "params_names.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "host.h"

namespace piper::onnx_import {
namespace {

// Inputs that no training changes: running statistics, scales.
bool is_setting(std::string_view op, size_t input) {
  return (op == "BatchNormalization" && input >= 3) || (op == "Resize" && input >= 1) ||
         (op == "OneHot" && input >= 1);
}

// Inputs that are mostly literals; PyTorch writes those as nodes.
bool is_bound(std::string_view op, size_t input) {
  return (op == "Clip" && input >= 1) || (op == "Pad" && input == 2);
}

// Three different numbers: what is neither a repeated one nor an identity matrix.
bool is_telling(const OnnxTensor& tensor) {
  const size_t size = static_cast<size_t>(info(tensor.type.dtype).bytes);
  std::string_view first, second;
  for (size_t at = 0; at < tensor.data.size; at += size) {
    const std::string_view one = as_text(tensor.data.span()).substr(at, size);
    if (first.empty() || one == first) {
      first = one;
    } else if (second.empty() || one == second) {
      second = one;
    } else {
      return true;
    }
  }
  return false;
}

bool is_transpose(const OnnxTensor& a, const OnnxTensor& b) {
  const Shape &of = a.type.shape, &to = b.type.shape;
  if (a.type.dtype != b.type.dtype || of != Shape(to.rbegin(), to.rend())) return false;
  const size_t size = static_cast<size_t>(info(a.type.dtype).bytes);
  const size_t rows = static_cast<size_t>(of[0]), columns = static_cast<size_t>(of[1]);
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c)
      if (std::memcmp(a.data.data + (r * columns + c) * size, b.data.data + (c * rows + r) * size,
                      size) != 0)
        return false;
  return true;
}

// Zeros, and one number where attention must not look: no parameter is like that.
bool is_mask(const OnnxTensor& tensor) {
  constexpr double kHuge = -1e4;
  bool huge = false;
  const auto count = static_cast<size_t>(num_elements(tensor.type.shape));
  for (size_t i = 0; i < count; ++i) {
    const double x = read_number(tensor.data, tensor.type.dtype, i);
    if (x != 0 && !(x <= kHuge)) return false;
    huge = huge || x != 0;
  }
  return huge;
}

class Namer {
 public:
  Namer(const OnnxModel& model, const std::vector<std::string>& scopes,
        std::map<std::string, std::string> copies)
      : model_(model),
        copies_(std::move(copies)),
        readers_(model, scopes),
        modules_(model, scopes),
        exported_(model.producer.starts_with("pytorch")) {}
  Result<Claims> run();
  // Scopes by node, as the modules are called.
  std::vector<std::string> paths() const;

 private:
  struct Named {  // an anonymous tensor whose readers tell what it is
    int initializer;
    Place place;
    Role role;
  };
  const OnnxTensor& tensor(int i) const { return model_.initializers[static_cast<size_t>(i)]; }
  const OnnxNode& node(const Place& place) const { return model_.nodes[place.node]; }
  void add(int initializer, const Place& place, std::string name, TensorType type,
           Derivation derivation, std::string evidence);
  Status claim(int initializer, const std::vector<Place>& places);
  Status claim_kept(int initializer, const std::vector<Place>& places);
  Status claim_anonymous(int initializer, const std::vector<Place>& places);
  bool claim_tied(int initializer, const std::vector<Place>& places,
                  const std::optional<Role>& role);
  void claim_named();
  bool name_again(Named& named);
  void leave(int initializer, const Place& place, std::string_view why);
  Status check_exporter() const;
  Status check_unmerged(int initializer, const std::vector<Place>& places) const;
  std::string other_name(int initializer, const Place& place) const;
  void alias(const std::string& other, const std::string& name);
  void report_padding();
  void report_copies();
  void report_scopes();

  const OnnxModel& model_;
  const std::map<std::string, std::string> copies_;
  const Readers readers_;
  const ModulePaths modules_;
  const bool exported_;  // by PyTorch: what kept a name is a parameter or a buffer
  std::vector<Named> named_;
  Claims claims_;
};

void Namer::add(int initializer, const Place& place, std::string name, TensorType type,
                Derivation derivation, std::string evidence) {
  claims_.list.push_back({place.node, place.input, initializer, std::move(name),
                          std::move(derivation), std::move(type), std::move(evidence)});
}

void Namer::alias(const std::string& other, const std::string& name) {
  const std::pair<std::string, std::string> names(other, name);
  std::vector<std::pair<std::string, std::string>>& known = claims_.ties.alias_of;
  if (other != name && !readers_.of.count(other) &&
      std::find(known.begin(), known.end(), names) == known.end())
    known.push_back(names);
}

// ---- Names that were kept -----------------------------------------------------------------------

// A head that is an embedding, or a bias that two modules have: read in the scope of a Linear or an
// Embedding that is not its own.
std::string Namer::other_name(int initializer, const Place& place) const {
  const std::string& scope = readers_.scopes[place.node];
  const std::string& op = node(place).op;
  const bool linear = readers_.is_leaf_of(scope, {"MatMul", "Transpose", "Add"}) ||
                      readers_.is_leaf_of(scope, {"Gemm"});
  const bool looked_up =
      op == "Gather" && place.input == 0 && readers_.is_leaf_of(scope, {"Gather"});
  const bool multiplied = linear && (op == "Transpose" || (op == "Gemm" && place.input == 1));
  const bool added = linear && (op == "Add" || (op == "Gemm" && place.input == 2));
  if (!looked_up && !multiplied && !added) return {};
  const std::string module = modules_.of(scope);
  const std::string& name = tensor(initializer).name;
  if (module.empty() || name.starts_with(module + ".")) return {};
  return module + (added ? ".bias" : ".weight");
}

// What other programs merge leaves no trace: one number under the name of one module, read by it
// and by others.
Status Namer::check_unmerged(int initializer, const std::vector<Place>& places) const {
  const OnnxTensor& kept = tensor(initializer);
  const std::string module(module_of(kept.name));
  if (module.empty() || !is_uniform(kept.data, kept.type.dtype)) return ok_status();
  std::string own, other;
  for (const Place& place : places) {
    const std::string& scope = readers_.scopes[place.node];
    if (scope.empty() || !readers_.is_leaf(scope)) continue;
    (modules_.of(scope) == module ? own : other) = node(place).label();
  }
  if (own.empty() || other.empty()) return ok_status();
  return fail(
             "'{}' is one number in all places and is read by {} and by {}: equal parameters of "
             "several modules were merged",
             quote_control(kept.name), own, other)
      .with_note("help: give piperc the file that the exporter wrote");
}

Status Namer::claim_kept(int initializer, const std::vector<Place>& places) {
  PIPER_TRY(check_unmerged(initializer, places));
  const OnnxTensor& kept = tensor(initializer);
  for (const Place& place : places) {
    add(initializer, place, kept.name, kept.type, {}, "kept name");
    const std::string other = other_name(initializer, place);
    if (!other.empty()) alias(other, kept.name);
  }
  return ok_status();
}

// ---- Names that were lost -----------------------------------------------------------------------

// The transpose of an embedding is a tied head, and so is that of any matrix where the file has no
// other name for it.
bool Namer::claim_tied(int initializer, const std::vector<Place>& places,
                       const std::optional<Role>& role) {
  const OnnxTensor& lost = tensor(initializer);
  if (lost.type.shape.size() != 2 || !is_telling(lost)) return false;
  for (const OnnxTensor& kept : model_.initializers) {
    if (is_anonymous(kept.name) || !is_transpose(kept, lost)) continue;
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

Status Namer::claim_anonymous(int initializer, const std::vector<Place>& places) {
  const OnnxTensor& lost = tensor(initializer);
  std::vector<std::optional<Role>> roles;
  for (const Place& place : places) {
    if (node(place).op == "Conv" || node(place).op == "ConvTranspose") {
      return fail(
                 "{}: its weight has lost its name, as when the exporter multiplies a batch norm "
                 "into it",
                 node(place).label())
          .with_note(
              "help: export the model with training=TrainingMode.PRESERVE, or with dynamo=True and "
              "optimize=False");
    }
    roles.push_back(role_of(readers_, modules_, lost, place));
  }
  if (claim_tied(initializer, places, roles[0])) return ok_status();
  const bool all = std::all_of(roles.begin(), roles.end(), [](const auto& r) { return !!r; });
  for (size_t i = 0; all && i < places.size(); ++i)
    named_.push_back({initializer, places[i], *roles[i]});
  if (!all && !is_mask(lost)) leave(initializer, places[0], "");
  return ok_status();
}

void Namer::leave(int initializer, const Place& place, std::string_view why) {
  const OnnxTensor& lost = tensor(initializer);
  claims_.unnamed.push_back(
      {lost.name,
       fmt::format("{} {} at {}{}", lost.name, to_string(lost.type), node(place).label(), why)});
}

// A weight in 'fc_1' is that of 'fc', called again, if it has the same values; but equal numbers
// are no proof of it.
bool Namer::name_again(Named& named) {
  const std::string& scope = readers_.scopes[named.place.node];
  const std::string own = modules_.of_first_call(scope);
  const auto call = call_number(scope);
  if (named.role.evidence != "scope" || !call || modules_.of(scope) == own) return true;
  const OnnxTensor& lost = tensor(named.initializer);
  const bool same = std::any_of(named_.begin(), named_.end(), [&](const Named& other) {
    return readers_.scopes[other.place.node] == call->first &&
           as_text(tensor(other.initializer).data.span()) == as_text(lost.data.span());
  });
  if (same) return is_telling(lost) || modules_.called_again(scope);
  named.role.name = own + named.role.name.substr(named.role.name.rfind('.'));
  return true;
}

void Namer::claim_named() {
  std::vector<Named> told;
  for (Named named : named_) {
    if (name_again(named)) {
      told.push_back(std::move(named));
    } else {
      leave(named.initializer, named.place,
            fmt::format(": '{}', called again, or a module of its own",
                        modules_.of(readers_.scopes[named.place.node])));
    }
  }
  named_ = std::move(told);
  for (const Named& named : named_) {
    TensorType type = tensor(named.initializer).type;
    const Shape file = type.shape;
    const bool flat = named.role.form == Role::Form::kFlat;
    type.shape = flat ? Shape{file[0]} : Shape(file.rbegin(), file.rend());
    Derivation from = flat ? Derivation{reshape_step(type.shape, file)} : transposition(type.shape);
    add(named.initializer, named.place, named.role.name, std::move(type), std::move(from),
        named.role.evidence);
  }
}

// ---- What the user should know ------------------------------------------------------------------

// Whether a row of a table is zeros, as that of a padding index is.
bool has_zero_row(const OnnxTensor& table) {
  if (table.type.shape.size() != 2 || table.data.size == 0) return false;
  const size_t row = table.data.size / static_cast<size_t>(table.type.shape[0]);
  const std::string zeros(row, '\0');
  for (size_t at = 0; at < table.data.size; at += row)
    if (as_text(table.data.span()).substr(at, row) == zeros) return true;
  return false;
}

void Namer::report_padding() {
  std::set<std::string> padded;
  for (const Claim& claim : claims_.list)
    if (model_.nodes[claim.node].op == "Gather" && claim.input == 0 &&
        has_zero_row(tensor(claim.initializer)))
      padded.insert(claim.name);
  for (const std::string& name : padded)
    claims_.notes.push_back(
        {name,
         "has a row of zeros: if that is a padding row (padding_idx), which the file does not say, "
         "it is trained here and not in PyTorch; a file of dynamo=True says it"});
}

// Weights that were merged though their modules have names of their own.
void Namer::report_copies() {
  std::map<std::string, std::set<std::string>> by_content;
  for (const Named& named : named_) {
    const OnnxTensor& lost = tensor(named.initializer);
    const auto copy = copies_.find(lost.name);
    if (is_telling(lost))
      by_content[copy == copies_.end() ? lost.name : copy->second].insert(named.role.name);
  }
  for (const auto& [content, names] : by_content) {
    const std::vector<std::string> list(names.begin(), names.end());
    if (list.size() < 2) continue;
    claims_.notes.push_back(
        {fmt::format("[{}]", join(list, ", ")),
         "equal at first and trained apart, as copies are; where they are one tensor, 'tie: [NAME, "
         "OTHER]' under 'parameters' says so"});
  }
}

void Namer::report_scopes() {
  if (named_.empty()) return;
  claims_.notes.push_back(
      {"",
       "weights without a name in the file are taken as they stand there; where a module computes "
       "its weight (weight_norm, w * scale), only a file of dynamo=True or without constant "
       "folding says so"});
  std::set<std::string> names;
  for (const Named& named : named_)
    if (named.role.evidence == "scope") names.insert(named.role.name);
  for (const std::string& name : names)
    claims_.notes.push_back(
        {name, "named by the scope of the node that reads it, since the file keeps no name"});
}

// ---- All of them --------------------------------------------------------------------------------

Status Namer::claim(int initializer, const std::vector<Place>& places) {
  const OnnxTensor& one = tensor(initializer);
  const bool setting = std::all_of(places.begin(), places.end(), [&](const Place& place) {
    const std::string& op = node(place).op;
    return is_setting(op, place.input) || (!exported_ && is_bound(op, place.input));
  });
  if (setting) return ok_status();
  if (is_anonymous(one.name) && (exported_ || one.name.find("::") != std::string::npos))
    return claim_anonymous(initializer, places);
  // Of other programs a scalar is a literal unless it bears the name of a module's parameter.
  const bool literal = one.type.shape.empty() && one.name.find('.') == std::string::npos;
  return !exported_ && literal ? ok_status() : claim_kept(initializer, places);
}

// The other exporter's files say in metadata what a parameter is; some programs remove it.
Status Namer::check_exporter() const {
  const bool dynamo = std::any_of(model_.nodes.begin(), model_.nodes.end(),
                                  [](const OnnxNode& n) { return n.name.starts_with("node_"); });
  if (!exported_ || !dynamo || !find_metadata(model_.metadata, kSignatureKey).empty())
    return ok_status();
  return fail(
             "the metadata of the exporter was removed from the file, and with it what its "
             "parameters are")
      .with_note("help: give piperc the file that the exporter wrote");
}

Result<Claims> Namer::run() {
  PIPER_TRY(check_exporter());
  for (size_t i = 0; i < model_.initializers.size(); ++i) {
    const auto places = readers_.of.find(model_.initializers[i].name);
    if (places == readers_.of.end() || !info(model_.initializers[i].type.dtype).is_float) continue;
    PIPER_TRY(claim(static_cast<int>(i), places->second));
  }
  claim_named();
  std::sort(claims_.list.begin(), claims_.list.end(), [](const Claim& a, const Claim& b) {
    return std::pair(a.node, a.input) < std::pair(b.node, b.input);
  });
  if (exported_) report_padding();
  report_copies();
  report_scopes();
  return std::move(claims_);
}

std::vector<std::string> Namer::paths() const {
  std::vector<std::string> out;
  for (const std::string& scope : readers_.scopes) out.push_back(scope_of_name(modules_.of(scope)));
  return out;
}

}  // namespace

Result<Claims> claims_by_names(OnnxModel& model, std::vector<std::string>& scopes) {
  std::map<std::string, std::string> copies = separate_copies(model, scopes);
  Namer namer(model, scopes, std::move(copies));
  PIPER_ASSIGN(Claims claims, namer.run());
  scopes = namer.paths();
  return claims;
}

}  // namespace piper::onnx_import
