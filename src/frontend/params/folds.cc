// Finds what the exporter computed from parameters while it folded constants. A result has the name
// of its call, "permute_3", and the file lists all that it was computed from. folded.cc solves it.
#include "folds.h"

#include <algorithm>
#include <charconv>

namespace piper::onnx_import {
namespace {

// Softplus is a function of its own in ONNX, whose inner values have names of its own.
bool is_inlined(std::string_view stem) { return stem == "softplus"; }
bool is_temporary(std::string_view name) {
  return name == "beta" || name == "threshold" || name == "self_scaled";
}

// Returns the line of the user's program that a node comes from, or "".
std::string line_of(const OnnxNode& node) {
  const std::vector<std::string> lines =
      split_text(std::string(find_metadata(node.metadata, "pkg.torch.onnx.stack_trace")), '\n');
  for (size_t i = lines.size(); i-- > 0;)
    if (lines[i].find_first_not_of(' ') != std::string::npos) return lines[i];
  return {};
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; }

// Returns the only number added to something in a line of Python: "1.0 + x" or "x + 1".
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

// Returns what the folded value was made by, but for the last function.
Chain chain_before(const CallGraph& graph, const OnnxTensor& folded, const std::string& source) {
  Chain chain;
  for (const std::string& name : folded.folded_from) {
    if (name == source) continue;
    if (graph.target(name))
      chain.functions.push_back(name);  // which is no function
    else if (is_literal(name))
      chain.literal = true;
    else
      chain.functions.emplace_back(stem_of(name));
  }
  return chain;
}

Chain chain_of(const CallGraph& graph, const OnnxTensor& folded, const std::string& source) {
  Chain chain = chain_before(graph, folded, source);
  const std::string last(stem_of(folded.name));
  if (is_inlined(last))
    std::erase_if(chain.functions,
                  [&](const std::string& f) { return is_temporary(f) || f == last; });
  chain.functions.push_back(last);
  // The functions that computed the indices of a lookup do not apply to the table.
  const auto lookup = std::find_if(chain.functions.begin(), chain.functions.end(), is_lookup);
  if (lookup == chain.functions.end()) return chain;
  const std::string name = *lookup;
  std::erase_if(chain.functions,
                [&](const std::string& f) { return f != last && !is_function(f); });
  if (name != last) chain.functions.insert(chain.functions.end() - 1, name);
  return chain;
}

// Returns whether a call that has the argument reads the constant: it names it, or, where the call
// computed it itself, what it was computed from.
bool is_made_of(const OnnxTensor& folded, const CallArg& arg) {
  const std::vector<std::string>& from = folded.folded_from;
  return arg.name == folded.name ||
         (is_literal(folded.name) && std::count(from.begin(), from.end(), arg.name) > 0);
}

size_t times_named(const Group& group, const OnnxTensor& folded) {
  return static_cast<size_t>(
      std::count_if(group.call.args.begin(), group.call.args.end(),
                    [&](const CallArg& arg) { return is_made_of(folded, arg); }));
}

// The result of a step within a call has no name of its own. The call says of which argument it was
// made.
void find_layout(const CallGraph& graph, Fold& fold) {
  if (!is_literal(graph.tensor(fold.initializer).name) || fold.chain.functions.size() < 2) return;
  std::optional<Derivation> layout;
  for (const Slot& slot : fold.own) {
    std::optional<Derivation> here = layout_in_call(graph, slot);
    if (!here || (!here->empty() && !is_transpose(*here))) return;
    if (layout && layout->size() != here->size()) return;
    layout = std::move(here);
  }
  if (!layout) return;
  fold.layout = *std::move(layout);
  fold.chain.functions.pop_back();
}

bool comes_from(const CallGraph& graph, const std::string& value, const std::string& source) {
  constexpr size_t kMost = 16;  // nodes
  std::vector<std::string> open{value};
  for (size_t k = 0; k < open.size() && k < kMost; ++k) {
    if (open[k] == source) return true;
    const std::optional<size_t> made = graph.maker(open[k]);
    if (!made) continue;
    const std::vector<std::string>& inputs = graph.node(*made).inputs;
    open.insert(open.end(), inputs.begin(), inputs.end());
  }
  return false;
}

// Returns whether a norm reads the slot: it multiplies by 1 + w what it has divided by a root.
bool scales_a_norm(const CallGraph& graph, const Slot& slot) {
  const OnnxNode& node = graph.model.nodes[slot.node];
  if (node.op.ends_with("Normalization")) return slot.input == 1;
  if (node.op != "Mul" || node.inputs.size() != 2 ||
      class_of(node).find("Norm") == std::string::npos)
    return false;
  const std::string& scaled = node.inputs[1 - slot.input];
  return std::any_of(
      graph.model.nodes.begin(), graph.model.nodes.end(), [&](const OnnxNode& other) {
        const size_t n = static_cast<size_t>(&other - graph.model.nodes.data());
        const bool root = other.op == "Sqrt" || other.op == "Reciprocal" ||
                          other.op.find("Normalization") != std::string::npos;
        return root && !other.outputs.empty() && graph.scopes[n] == graph.scopes[slot.node] &&
               comes_from(graph, scaled, other.outputs[0]);
      });
}

// Returns the number that was folded with the source; nothing: there is none in the file.
std::optional<double> folded_number(const CallGraph& graph, const OnnxTensor& folded,
                                    const std::string& source) {
  for (const std::string& name : folded.folded_from) {
    const int literal = graph.index.find_float(name);
    if (literal >= 0 && name != source && graph.tensor(literal).type.shape.empty())
      return read_number(graph.tensor(literal).data, graph.tensor(literal).type.dtype, 0);
  }
  return std::nullopt;
}

}  // namespace

std::vector<Slot> Fold::slots() const {
  std::vector<Slot> out = own;
  out.insert(out.end(), copies.begin(), copies.end());
  return out;
}

// The initializer's own slot is one that its call names, as often as it does; others are read for
// values that were merged with it.
std::vector<Fold> find_folds(const CallGraph& graph, const CallClaims& claims) {
  std::map<int, Fold> folds;
  std::map<std::pair<int, const Group*>, size_t> seen;
  for (size_t n = 0; n < graph.model.nodes.size(); ++n) {
    const Group* group = graph.group_at(n);
    for (size_t i = 0; i < graph.node(n).inputs.size(); ++i) {
      const Slot slot{n, i, graph.index.find(graph.node(n).inputs[i])};
      if (slot.initializer < 0 || claims.is_taken(slot)) continue;
      const OnnxTensor& t = graph.tensor(slot);
      Fold fold{.initializer = slot.initializer};
      std::copy_if(t.folded_from.begin(), t.folded_from.end(), std::back_inserter(fold.sources),
                   [&](const std::string& name) { return graph.is_parameter(name); });
      if (fold.sources.empty()) continue;
      Fold& known = folds.emplace(slot.initializer, std::move(fold)).first->second;
      const size_t named = group ? times_named(*group, t) : 0;
      const bool own =
          !group || graph.unknowns(*group).empty() || seen[{slot.initializer, group}]++ < named;
      (own ? known.own : known.copies).push_back(slot);
    }
  }
  std::vector<Fold> out;
  for (auto& [initializer, fold] : folds) {
    fold.chain = chain_of(graph, graph.tensor(initializer), fold.sources[0]);
    find_layout(graph, fold);
    out.push_back(std::move(fold));
  }
  return out;
}

OnnxTensor made_by_chain(const CallGraph& graph, const Fold& fold) {
  const OnnxTensor& folded = graph.tensor(fold.initializer);
  if (fold.layout.empty()) return folded;
  return {folded.name, {folded.type.dtype, fold.layout[0].from}, undo_layout(fold.layout, folded)};
}

std::optional<double> added_number(const CallGraph& graph, const Fold& fold,
                                   const PriorKnowledge& prior) {
  const OnnxTensor& folded = graph.tensor(fold.initializer);
  const std::string& source = fold.sources[0];
  if (const auto said = stored_plus(prior, source)) return said;
  if (const auto number = folded_number(graph, folded, source)) return number;
  const std::string leaf = source.substr(source.rfind('.') + 1);
  const std::vector<Slot> slots = fold.slots();
  for (const Slot& slot : slots) {
    const std::string line = line_of(graph.model.nodes[slot.node]);
    if (line.find(leaf) == std::string::npos) continue;
    if (const auto number = number_added(line)) return number;
  }
  const bool ones = is_uniform(folded.data, folded.type.dtype) &&
                    read_number(folded.data, folded.type.dtype, 0) == 1;
  for (const Slot& slot : slots)
    if (scales_a_norm(graph, slot) || (ones && graph.model.nodes[slot.node].op == "Mul")) return 1;
  return {};
}

bool is_plain_softplus(const CallGraph& graph, const Fold& fold) {
  const std::vector<Slot> slots = fold.slots();
  return std::any_of(slots.begin(), slots.end(), [&](const Slot& slot) {
    const std::string line = line_of(graph.node(slot.node));
    const size_t call = line.find("softplus(");
    return call != line.npos && line.find("beta", call) == line.npos &&
           line.find(',', call) == line.npos;
  });
}

}  // namespace piper::onnx_import
