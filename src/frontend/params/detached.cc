// What no gradient flows back through. The exporter removes detach(), but a call that read its
// result still names it.
#include <algorithm>
#include <map>
#include <set>

#include "claims.h"
#include "ways.h"

namespace piper::onnx_import {
namespace {

using NodeInput = std::pair<size_t, size_t>;  // node, input

struct DetachingCall {  // the nodes of one call
  Call call;
  std::vector<size_t> nodes;
};

bool is_detached(const std::string& value) { return stem_of(value) == "detach"; }

class Detached {
 public:
  Detached(const OnnxModel& model, const std::vector<SignatureInput>& signature,
           const Recovery& recovery);
  Result<std::vector<NodeInput>> run();

 private:
  // Describes an argument of a call that is neither a parameter nor a buffer, in the order of the
  // arguments.
  struct Arg {
    std::string name;
    bool detached = false, known = false;  // neither: a result that the file has no more
  };
  std::vector<Arg> args_of(const Call& call) const;
  std::vector<NodeInput> values_of(const DetachingCall& reader) const;
  bool reads_its_parameters(const DetachingCall& reader) const;
  bool stands_for(const NodeInput& at, const Arg& arg) const;
  void leave_constants_out(const DetachingCall& reader, size_t values,
                           std::vector<Arg>& args) const;
  Status find_detached_of(const DetachingCall& reader);
  const std::set<std::string_view>& trained_values();
  bool find_only(const std::vector<Arg>& args, const std::vector<NodeInput>& values);
  const ParamUse* param_at(const NodeInput& at) const;
  const std::string& name_at(const NodeInput& at) const {
    return model_.nodes[at.first].inputs[at.second];
  }

  const OnnxModel& model_;
  const Recovery& recovery_;
  std::map<std::string_view, const SignatureInput*> placeholders_;
  std::map<std::string_view, std::string> call_of_;  // that made a value
  std::set<std::string_view> calls_, inputs_;
  std::vector<DetachingCall> readers_;
  std::optional<std::set<std::string_view>> trained_;  // when it is first asked for
  std::vector<NodeInput> found_;
};

Detached::Detached(const OnnxModel& model, const std::vector<SignatureInput>& signature,
                   const Recovery& recovery)
    : model_(model), recovery_(recovery) {
  for (const SignatureInput& s : signature) placeholders_.emplace(s.placeholder, &s);
  for (const OnnxInput& input : model.inputs) inputs_.insert(input.name);
  std::map<std::string, size_t> index;
  for (size_t n = 0; n < model.nodes.size(); ++n) {
    std::optional<Call> call =
        parse_call(find_metadata(model.nodes[n].metadata, "pkg.torch.onnx.fx_node"));
    for (const std::string& output : model.nodes[n].outputs)
      if (!output.empty()) call_of_.emplace(output, call ? call->name : output);
    if (!call) continue;
    const auto [entry, fresh] = index.emplace(call->name, readers_.size());
    if (fresh) readers_.push_back({*std::move(call), {}});
    readers_[entry->second].nodes.push_back(n);
  }
  for (const DetachingCall& reader : readers_) calls_.insert(reader.call.name);
}

const ParamUse* Detached::param_at(const NodeInput& at) const {
  const auto place_of = [](const ParamUse& use) { return NodeInput(use.node, use.input); };
  const auto use = std::ranges::lower_bound(recovery_.uses, at, {}, place_of);
  return use == recovery_.uses.end() || place_of(*use) != at ? nullptr : &*use;
}

std::vector<Detached::Arg> Detached::args_of(const Call& call) const {
  std::vector<Arg> out;
  for (const CallArg& arg : call.args) {
    const auto at = placeholders_.find(arg.name);
    if (at != placeholders_.end() && !at->second->target.empty()) continue;
    const bool known = at != placeholders_.end() || calls_.count(arg.name);
    out.push_back({arg.name, is_detached(arg.name) && !known, known});
  }
  return out;
}

// Returns where the call's nodes read what another call made, an input, or a parameter that it does
// not name.
std::vector<NodeInput> Detached::values_of(const DetachingCall& reader) const {
  std::set<std::string_view> named;
  for (const CallArg& arg : reader.call.args)
    if (const auto at = placeholders_.find(arg.name); at != placeholders_.end())
      named.insert(at->second->target);
  std::vector<NodeInput> out;
  for (const size_t n : reader.nodes) {
    if (model_.nodes[n].op == "Shape" || model_.nodes[n].op == "Size") continue;  // of no elements
    for (size_t i = 0; i < model_.nodes[n].inputs.size(); ++i) {
      const ParamUse* param = param_at({n, i});
      const auto maker = call_of_.find(model_.nodes[n].inputs[i]);
      if ((param && !named.count(recovery_.params[param->param].name)) ||
          inputs_.count(model_.nodes[n].inputs[i]) ||
          (maker != call_of_.end() && maker->second != reader.call.name))
        out.push_back({n, i});
    }
  }
  return out;
}

// Returns false where some of the call's nodes were merged with those of another.
bool Detached::reads_its_parameters(const DetachingCall& reader) const {
  return std::all_of(reader.call.args.begin(), reader.call.args.end(), [&](const CallArg& arg) {
    const auto at = placeholders_.find(arg.name);
    if (at == placeholders_.end() || at->second->kind != "PARAMETER") return true;
    return std::any_of(reader.nodes.begin(), reader.nodes.end(), [&](size_t n) {
      for (size_t i = 0; i < model_.nodes[n].inputs.size(); ++i)
        if (const ParamUse* use = param_at({n, i}))
          if (recovery_.params[use->param].name == at->second->target) return true;
      return false;
    });
  });
}

bool Detached::stands_for(const NodeInput& at, const Arg& arg) const {
  const auto made = call_of_.find(name_at(at));
  if (made != call_of_.end()) return made->second == arg.name;
  return inputs_.count(name_at(at)) > 0 && placeholders_.count(arg.name) > 0;
}

// Numbers that were merged have lost their names, but there are nodes that read them.
void Detached::leave_constants_out(const DetachingCall& reader, size_t values,
                                   std::vector<Arg>& args) const {
  size_t constants = 0;
  for (const size_t n : reader.nodes)
    for (const std::string& input : model_.nodes[n].inputs)
      constants += !input.empty() && !call_of_.count(input) && !inputs_.count(input);
  const auto unknown = [](const Arg& arg) { return !arg.known && !arg.detached; };
  const auto count = static_cast<size_t>(std::count_if(args.begin(), args.end(), unknown));
  if (count <= constants && values + count == args.size()) std::erase_if(args, unknown);
}

// Returns the values from which a gradient would flow back.
const std::set<std::string_view>& Detached::trained_values() {
  if (trained_) return *trained_;
  std::set<std::string_view>& out = trained_.emplace();
  for (size_t n = 0; n < model_.nodes.size(); ++n) {
    const OnnxNode& node = model_.nodes[n];
    bool carries = false;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      carries = carries || param_at({n, i}) || out.count(node.inputs[i]);
    if (node.op == "Shape" || node.op == "Size") continue;
    for (const std::string& output : node.outputs)
      if (carries && !output.empty() && !model_.integers.count(output)) out.insert(output);
  }
  return out;
}

// Where one value alone of those that the call does not name has a gradient, that is the detached
// one, if what else it names and the file has no more is among those without.
bool Detached::find_only(const std::vector<Arg>& args, const std::vector<NodeInput>& values) {
  const std::set<std::string_view>& trained = trained_values();
  std::vector<NodeInput> places;
  std::set<std::string_view> names, others;
  for (const NodeInput& at : values) {
    const bool named = std::any_of(
        args.begin(), args.end(), [&](const Arg& arg) { return arg.known && stands_for(at, arg); });
    if (named) continue;
    if (!trained.count(name_at(at)) && !param_at(at)) {
      others.insert(name_at(at));
      continue;
    }
    names.insert(name_at(at));
    places.push_back(at);
  }
  const auto unknown =
      std::ranges::count_if(args, [](const Arg& arg) { return !arg.known && !arg.detached; });
  if (unknown > std::ssize(others) || names.size() > 1 ||
      std::ranges::count(args, true, &Arg::detached) != 1)
    return false;
  found_.insert(found_.end(), places.begin(), places.end());
  return true;
}

Status Detached::find_detached_of(const DetachingCall& reader) {
  const Error unsure = fail("{}: some of its inputs are detached, and the file does not say which",
                            model_.nodes[reader.nodes[0]].label())
                           .with_note(export_help(model_));
  std::vector<Arg> args = args_of(reader.call);
  const std::vector<NodeInput> values = values_of(reader);
  leave_constants_out(reader, values.size(), args);
  bool all_known = true, all_read = reads_its_parameters(reader), in_order = true;
  for (const Arg& arg : args) {
    all_known = all_known && (arg.known || arg.detached);
    all_read = all_read && (!arg.known ||
                            std::any_of(values.begin(), values.end(),
                                        [&](const NodeInput& at) { return stands_for(at, arg); }));
  }
  in_order = values.size() == args.size();
  for (size_t i = 0; i < args.size() && in_order; ++i)
    in_order = !args[i].known || stands_for(values[i], args[i]);
  if (!all_read || (!all_known && !(in_order && reader.nodes.size() == 1))) {
    if (find_only(args, values)) return ok_status();
    return unsure;
  }
  if (in_order) {
    for (size_t i = 0; i < args.size(); ++i)
      if (args[i].detached) found_.push_back(values[i]);
    return ok_status();
  }
  // Those that the call does not name are detached.
  const size_t before = found_.size();
  for (const NodeInput& at : values)
    if (std::none_of(args.begin(), args.end(),
                     [&](const Arg& arg) { return arg.known && stands_for(at, arg); }))
      found_.push_back(at);
  // Else it is a constant that was detached, if there are fewer values than arguments.
  if (found_.size() == before && values.size() >= args.size()) return unsure;
  return ok_status();
}

Result<std::vector<NodeInput>> Detached::run() {
  for (const DetachingCall& reader : readers_) {
    if (reader.call.function == "aten.detach" || is_detached(reader.call.name)) {
      for (const size_t n : reader.nodes) found_.emplace_back(n, 0);
      continue;
    }
    const std::vector<Arg> args = args_of(reader.call);
    if (std::any_of(args.begin(), args.end(), [](const Arg& arg) { return arg.detached; }))
      PIPER_TRY(find_detached_of(reader));
  }
  std::sort(found_.begin(), found_.end());
  return std::move(found_);
}

}  // namespace

Status find_detached(const OnnxModel& model, const std::vector<SignatureInput>& signature,
                     Recovery& recovery) {
  const bool any = std::any_of(model.nodes.begin(), model.nodes.end(), [](const OnnxNode& node) {
    return find_metadata(node.metadata, "pkg.torch.onnx.fx_node").find("detach") !=
           std::string_view::npos;
  });
  if (!any) return ok_status();
  PIPER_ASSIGN(recovery.detached, Detached(model, signature, recovery).run());
  return ok_status();
}

}  // namespace piper::onnx_import
