// The model's nodes grouped by the calls of the exported program, and edits of that graph. The
// passes of calls.cc read it.
#include <algorithm>

#include "calls.h"
#include "piper/base/parallel.h"
#include "ways.h"

namespace piper::onnx_import {
namespace {

// Returns whether the exporter merged equal tensors: it then left no two of them, and made literals
// initializers.
bool merges_equal(const OnnxModel& model) {
  std::set<std::string> seen;
  for (const OnnxNode& node : model.nodes)
    if (node.op == "Constant") return false;
  return std::all_of(
      model.initializers.begin(), model.initializers.end(), [&](const OnnxTensor& t) {
        if (num_elements(t.type.shape) > kMostMerged) return true;
        return seen.insert(to_string(t.type) + std::string(as_text(t.data.span()))).second;
      });
}

std::vector<std::optional<Call>> parse_calls(const OnnxModel& model) {
  constexpr size_t kBlock = 256;
  std::vector<std::optional<Call>> calls(model.nodes.size());
  in_parallel((calls.size() + kBlock - 1) / kBlock, [&](size_t b) {
    for (size_t n = b * kBlock; n < std::min((b + 1) * kBlock, calls.size()); ++n)
      calls[n] = parse_call(find_metadata(model.nodes[n].metadata, "pkg.torch.onnx.fx_node"));
  });
  return calls;
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

bool is_removable(std::string_view value) {
  constexpr std::string_view kRemoved[] = {"mul", "add", "sub", "div"};
  return std::count(std::begin(kRemoved), std::end(kRemoved), stem_of(value)) > 0;
}

std::string class_of(const OnnxNode& node) {
  const std::vector<std::string> classes =
      split_text(std::string(find_metadata(node.metadata, "pkg.torch.onnx.class_hierarchy")), '\'');
  return classes.size() < 5 ? "" : classes[classes.size() - 4];
}

CallGraph::CallGraph(OnnxModel& m, std::vector<std::string>& s,
                     const std::vector<SignatureInput>& signature)
    : model(m), scopes(s), index(m), merges(merges_equal(m)), edited_(m), edited_scopes_(s) {
  for (const SignatureInput& input : signature) {
    if (input.kind == "USER_INPUT" || input.target.empty()) {
      user_inputs_.insert(input.placeholder);
      continue;
    }
    placeholders_.emplace(input.placeholder, &input);
    targets_.emplace(input.target, &input);
    if (input.kind == "PARAMETER") order.push_back(input.target);
  }
  make_groups();
}

void CallGraph::make_groups() {
  std::vector<std::optional<Call>> calls = parse_calls(model);
  for (size_t n = 0; n < model.nodes.size(); ++n) {
    for (const std::string& output : node(n).outputs)
      if (!output.empty()) maker_.emplace(output, n);
    for (const std::string& input : node(n).inputs) reads(n, input);
    std::optional<Call>& call = calls[n];
    if (!call) continue;
    const auto [entry, is_new] = group_of_.emplace(call->name, groups_.size());
    if (is_new) groups_.push_back({*std::move(call), {}, {}});
    Group& group = groups_[entry->second];
    group.nodes.push_back(n);
    group_at_.emplace(n, entry->second);
    for (size_t i = 0; i < node(n).inputs.size(); ++i) {
      const int found = index.find_float(node(n).inputs[i]);
      if (found >= 0) group.slots.push_back({n, i, found});
    }
  }
}

void CallGraph::add_inputs(std::span<const Claim> claims) {
  for (const Claim& claim : claims) {
    std::vector<std::string>& inputs = edited_.nodes[claim.node].inputs;
    inputs.resize(std::max(inputs.size(), claim.input + 1));
  }
}

void CallGraph::apply(const Edit& edit) {
  for (size_t k = 0; k < edit.readers.size(); ++k) {
    const auto [n, i] = edit.readers[k];
    std::vector<std::string>& inputs = edited_.nodes[n].inputs;
    const std::string before = std::exchange(inputs[i], edit.results[k]);
    if (std::ranges::find(inputs, before) == inputs.end()) std::erase(readers_[before], n);
    reads(n, inputs[i]);
  }
  for (const NodeCopy& copy : edit.copies) {
    for (const std::string& input : copy.node.inputs) reads(model.nodes.size(), input);
    for (const std::string& output : copy.node.outputs)
      if (!output.empty()) maker_.emplace(output, model.nodes.size());
    edited_.nodes.push_back(copy.node);
    edited_scopes_.push_back(copy.scope);
  }
  if (edit.of) group_of_.emplace(edit.call, static_cast<size_t>(edit.of - groups_.data()));
}

const std::vector<size_t>& CallGraph::nodes_that_read(const std::string& value) const {
  static const std::vector<size_t> kNone;
  const auto at = readers_.find(value);
  return at == readers_.end() ? kNone : at->second;
}

void CallGraph::reads(size_t node, const std::string& value) {
  if (value.empty()) return;  // an input that is left out
  std::vector<size_t>& nodes = readers_[value];
  const auto at = std::ranges::lower_bound(nodes, node);
  if (at == nodes.end() || *at != node) nodes.insert(at, node);
}

const Group* CallGraph::group_at(size_t node) const {
  const auto at = group_at_.find(node);
  return at == group_at_.end() ? nullptr : &groups_[at->second];
}

const Group* CallGraph::group_named(std::string_view call) const {
  const auto at = group_of_.find(call);
  return at == group_of_.end() ? nullptr : &groups_[at->second];
}

const SignatureInput* CallGraph::placeholder(std::string_view name) const {
  const auto at = placeholders_.find(name);
  return at == placeholders_.end() ? nullptr : at->second;
}

const SignatureInput* CallGraph::target(std::string_view name) const {
  const auto at = targets_.find(name);
  return at == targets_.end() ? nullptr : at->second;
}

bool CallGraph::is_parameter(std::string_view name) const {
  const SignatureInput* input = target(name);
  return input && input->kind == "PARAMETER";
}

std::optional<size_t> CallGraph::maker(std::string_view value) const {
  const auto at = maker_.find(value);
  return at == maker_.end() ? std::nullopt : std::optional(at->second);
}

bool CallGraph::names(const Group& group, std::string_view value) const {
  return std::any_of(group.call.args.begin(), group.call.args.end(),
                     [&](const CallArg& arg) { return arg.name == value; });
}

bool CallGraph::is_named(const Claim& claim) const {
  const Group* group = group_at(claim.node);
  const SignatureInput* input = target(claim.name);
  return group && input && names(*group, input->placeholder);
}

bool CallGraph::is_unknown(const CallArg& arg) const {
  return !group_named(arg.name) && !placeholder(arg.name) && !user_inputs_.count(arg.name) &&
         index.find(arg.name) < 0;
}

std::vector<std::string> CallGraph::unknowns(const Group& group) const {
  std::vector<std::string> out;
  for (const CallArg& arg : group.call.args)
    if (is_unknown(arg) && is_tensor(group.call, arg) && !is_literal(arg.name))
      out.push_back(arg.name);
  return out;
}

bool CallGraph::names_apart(const Group& group, const std::vector<const Group*>& others) const {
  const std::vector<std::string> own = unknowns(group);
  return !own.empty() && std::all_of(others.begin(), others.end(), [&](const Group* other) {
    return std::none_of(own.begin(), own.end(),
                        [&](const std::string& value) { return names(*other, value); });
  });
}

bool CallGraph::stands_in_place(const Group& group) const {
  const std::vector<std::string>& inputs = node(group.nodes[0]).inputs;
  const std::vector<CallArg>& args = group.call.args;
  if (group.nodes.size() != 1 || args.size() != inputs.size()) return false;
  for (size_t i = 0; i < args.size(); ++i)
    if (group_named(args[i].name) && args[i].name != inputs[i]) return false;
  return true;
}

// The results are of the argument's function. An input at the place of another unknown argument is
// none of them: it may stand beside a product with 1 that was removed.
std::vector<std::string> CallGraph::read_instead(const Group& group, const CallArg& arg) const {
  std::vector<std::string> out;
  const std::vector<CallArg>& args = group.call.args;
  const bool in_place = stands_in_place(group);
  for (const size_t reader : group.nodes) {
    const std::vector<std::string>& inputs = node(reader).inputs;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!group_named(inputs[i]) || stem_of(inputs[i]) != stem_of(arg.name)) continue;
      const bool is_others = in_place && args[i].name != arg.name &&
                             (is_unknown(args[i]) || args[i].name == inputs[i]);
      if (!is_others) out.push_back(inputs[i]);
    }
  }
  return out;
}

std::vector<const Group*> CallGraph::readers_of(const std::string& value) const {
  std::set<const Group*> found;  // in the order of groups
  for (const size_t n : nodes_that_read(value))
    if (const Group* group = group_at(n)) found.insert(group);
  return {found.begin(), found.end()};
}

// The first steps of equal calls are merged, so the search goes on through nodes without a call and
// through values within one.
std::vector<const Group*> CallGraph::readers_of_node(size_t from) const {
  std::vector<const Group*> out;
  std::set<size_t> open;  // nodes after `from`
  const auto follow = [&](const std::string& value) {
    const std::vector<size_t>& nodes = nodes_that_read(value);
    open.insert(std::ranges::upper_bound(nodes, from), nodes.end());
  };
  for (const std::string& output : node(from).outputs) follow(output);
  for (auto n = open.begin(); n != open.end(); ++n) {
    const Group* group = group_at(*n);
    if (group) out.push_back(group);
    for (const std::string& output : node(*n).outputs)
      if (!group || output != group->call.name) follow(output);
  }
  return out;
}

std::vector<const Group*> CallGraph::readers_apart(size_t from) const {
  std::vector<const Group*> out;
  for (const std::string& part : node(from).outputs) {
    const std::vector<const Group*> readers = readers_of(part);
    for (const Group* reader : readers)
      if (std::any_of(readers.begin(), readers.end(), [&](const Group* other) {
            return other != reader && names_apart(*reader, {other});
          }))
        out.push_back(reader);
  }
  return out;
}

bool CallGraph::comes_from(size_t n, std::map<size_t, bool>& known) const {
  const auto [entry, is_new] = known.emplace(n, false);
  if (!is_new) return entry->second;
  bool found = false;
  for (const std::string& input : node(n).inputs)
    if (const auto made = maker(input)) found = comes_from(*made, known) || found;
  return known[n] = found;
}

std::string CallGraph::place_of(const Slot& slot) const {
  return fmt::format("'{}' at {}", node(slot.node).inputs[slot.input], node(slot.node).label());
}

bool CallGraph::ties_alone(size_t n) const {
  const std::string of = class_of(node(n));
  constexpr std::string_view kKinds[] = {"Linear", "Embedding", "Conv", "Norm"};
  return of.empty() || of.starts_with("torch.nn.") ||
         std::any_of(std::begin(kKinds), std::end(kKinds), [&](std::string_view kind) {
           return of.find(kind, of.rfind('.')) != std::string::npos;
         });
}

// Of equal tensors, the first in the signature's order stands for all. Of several names of one
// tensor, it is the last.
bool CallGraph::may_stand_for(const std::string& kept, const std::string& lost) const {
  const auto place = [&](const std::string& name) {
    return std::find(order.begin(), order.end(), name);
  };
  const int found = index.find(kept);
  return merges && found >= 0 && num_elements(tensor(found).type.shape) <= kMostMerged &&
         place(kept) < place(lost);
}

}  // namespace piper::onnx_import
