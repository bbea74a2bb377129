// Draws of random numbers that the exporter took for equal computations: two dropouts of one value
// became one node, of which a call still names the other's result. Where the numbers of the results
// show that nothing else was drawn in between, the node is made twice again.
#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "claims.h"
#include "ways.h"

namespace piper::onnx_import {
namespace {

struct ReadingCall {  // the nodes of one call
  Call call;
  std::vector<size_t> nodes;
  int64_t users = 0;  // calls that read its results in the exported program
};

int64_t users_of(std::string_view call) {
  constexpr std::string_view kUsers = "[num_users=";
  int64_t users = 0;
  const size_t at = call.find(kUsers);
  if (at != call.npos)
    std::from_chars(call.data() + at + kUsers.size(), call.data() + call.size(), users);
  return users;
}

// "getitem_4": 4; "getitem": 0.
int64_t number_of(std::string_view value) {
  const std::string_view stem = stem_of(value);
  int64_t number = 0;
  if (stem.size() < value.size())
    std::from_chars(value.data() + stem.size() + 1, value.data() + value.size(), number);
  return number;
}

// Returns whether the exporter removes the call where it changes nothing, so that what it read
// replaces its result.
bool may_be_removed(std::string_view stem) {
  constexpr std::string_view kLayouts[] = {
      "view",    "reshape",  "expand", "slice",      "transpose", "permute", "squeeze", "unsqueeze",
      "flatten", "_to_copy", "clone",  "contiguous", "alias",     "detach",  "to",      "t"};
  return std::find(std::begin(kLayouts), std::end(kLayouts), stem) != std::end(kLayouts);
}

class Draws {
 public:
  Draws(OnnxModel& model, std::vector<std::string>& scopes,
        const std::vector<SignatureInput>& signature)
      : model_(model), scopes_(scopes), signature_(signature) {}
  Status run();

 private:
  // Says that a call reads `instead` where it names another value of that kind, which no node
  // makes.
  struct Merged {
    size_t reader;
    std::string value, instead;
    bool both = false;  // it names `instead` as well
  };
  void add_outputs(size_t n);
  void read_calls();
  const ReadingCall* call_at(size_t node) const {
    return of_node_[node] < 0 ? nullptr : &readers_[static_cast<size_t>(of_node_[node])];
  }
  bool is_random(size_t node) const;
  bool names(const Call& call, std::string_view value) const;
  std::vector<std::string> reads_of(const ReadingCall& reader) const;
  std::optional<Merged> find_merged(size_t reader, const CallArg& arg) const;
  bool is_derived(const Merged& merged) const;
  std::set<size_t> nodes_before(std::span<const std::string> values) const;
  bool depends_on_draws(const std::string& value) const;
  bool all_are_known(std::string_view stem, int64_t below) const;
  int64_t first_after(std::string_view stem, size_t node) const;
  bool is_complete(const Merged& merged) const;
  bool draws_directly(const Merged& merged) const;
  Status separate(const Merged& merged);

  OnnxModel& model_;
  std::vector<std::string>& scopes_;
  const std::vector<SignatureInput>& signature_;
  std::vector<ReadingCall> readers_;
  std::vector<int> of_node_;                              // its reader; -1: none
  std::map<std::string, size_t, std::less<>> reader_of_;  // by call
  std::map<std::string, size_t, std::less<>> maker_;      // by value
  std::set<std::string, std::less<>> known_;              // what has a place in the file
  std::set<std::string, std::less<>> named_;              // what calls read
  std::set<std::string, std::less<>> masks_;              // of dropouts, which nobody reads
};

bool Draws::is_random(size_t node) const {
  const OnnxNode& n = model_.nodes[node];
  if (n.op == "Dropout") return n.inputs.size() > 2 && !n.inputs[2].empty();
  if (n.op == "Bernoulli" || n.op.starts_with("Random")) return true;
  const ReadingCall* of = call_at(node);
  return of && of->call.function == kAttentionCall && of->call.words.size() > 4 &&
         of->call.words[4] != "0.0";
}

void Draws::add_outputs(size_t n) {
  for (const std::string& output : model_.nodes[n].outputs) {
    if (output.empty()) continue;
    maker_.emplace(output, n);
    known_.insert(output);
  }
}

void Draws::read_calls() {
  for (const SignatureInput& input : signature_) known_.insert(input.placeholder);
  for (const OnnxTensor& tensor : model_.initializers) known_.insert(tensor.name);
  for (const OnnxInput& input : model_.inputs) known_.insert(input.name);
  for (size_t n = 0; n < model_.nodes.size(); ++n) {
    add_outputs(n);
    const std::string_view text = find_metadata(model_.nodes[n].metadata, "pkg.torch.onnx.fx_node");
    std::optional<Call> call = parse_call(text);
    of_node_.push_back(-1);
    if (!call) continue;
    const auto [entry, fresh] = reader_of_.emplace(call->name, readers_.size());
    if (fresh) {
      known_.insert(call->name);
      for (const CallArg& arg : call->args) named_.insert(arg.name);
      readers_.push_back({*std::move(call), {}, users_of(text)});
    }
    readers_[entry->second].nodes.push_back(n);
    of_node_.back() = static_cast<int>(entry->second);
  }
}

bool Draws::names(const Call& call, std::string_view value) const {
  const ReadingCall* of = call_at(maker_.find(value)->second);
  return std::any_of(call.args.begin(), call.args.end(), [&](const CallArg& arg) {
    return arg.name == value || (of && arg.name == of->call.name);
  });
}

// Returns what the nodes of a call read of other calls.
std::vector<std::string> Draws::reads_of(const ReadingCall& reader) const {
  std::vector<std::string> out;
  for (const size_t n : reader.nodes)
    for (const std::string& input : model_.nodes[n].inputs) {
      const auto maker = maker_.find(input);
      const bool own = maker != maker_.end() &&
                       std::count(reader.nodes.begin(), reader.nodes.end(), maker->second) > 0;
      if (maker != maker_.end() && !own) out.push_back(input);
    }
  return out;
}

std::optional<Draws::Merged> Draws::find_merged(size_t reader, const CallArg& arg) const {
  if (known_.contains(arg.name)) return {};
  const Call& call = readers_[reader].call;
  std::optional<std::string> named;
  bool all_named = true;
  for (const std::string& value : reads_of(readers_[reader])) {
    const bool is_named = names(call, value);
    all_named = all_named && is_named;
    if (stem_of(value) != stem_of(arg.name)) continue;
    if (!is_named) return Merged{reader, arg.name, value};
    named = value;
  }
  if (!named || !all_named || !is_tensor(call, arg)) return {};
  return Merged{reader, arg.name, *named, true};
}

// Returns whether the value is what a removed call made of `instead`: one more call has read that
// than calls here do.
bool Draws::is_derived(const Merged& merged) const {
  const auto of = reader_of_.find(merged.instead);
  if (of == reader_of_.end() || !may_be_removed(stem_of(merged.instead))) return false;
  const int64_t here =
      std::count_if(readers_.begin(), readers_.end(),
                    [&](const ReadingCall& reader) { return names(reader.call, merged.instead); });
  return readers_[of->second].users > here;
}

// Returns the nodes that a value's elements depend on.
std::set<size_t> Draws::nodes_before(std::span<const std::string> values) const {
  std::set<size_t> seen;
  std::vector<std::string_view> open(values.begin(), values.end());
  while (!open.empty()) {
    const auto made = maker_.find(open.back());
    open.pop_back();
    if (made == maker_.end()) continue;
    const OnnxNode& node = model_.nodes[made->second];
    if (node.op == "Shape" || node.op == "Size" || !seen.insert(made->second).second) continue;
    for (const std::string& input : node.inputs) open.push_back(input);
  }
  return seen;
}

bool Draws::depends_on_draws(const std::string& value) const {
  const std::set<size_t> before = nodes_before({&value, 1});
  return std::any_of(before.begin(), before.end(), [&](size_t n) { return is_random(n); });
}

// Results are numbered in the order of their calls: one that is missing may have been a draw.
bool Draws::all_are_known(std::string_view stem, int64_t below) const {
  for (int64_t n = 0; n < below; ++n) {
    const std::string name = n == 0 ? std::string(stem) : fmt::format("{}_{}", stem, n);
    if (!known_.contains(name) && !named_.contains(name) && !masks_.contains(name)) return false;
  }
  return true;
}

// Returns the number of the first result with the stem after a node; -1: there is none.
int64_t Draws::first_after(std::string_view stem, size_t node) const {
  int64_t first = -1;
  for (const auto& [value, maker] : maker_) {
    if (maker <= node || stem_of(value) != stem) continue;
    const int64_t number = number_of(value);
    first = first < 0 ? number : std::min(first, number);
  }
  return first;
}

// Returns whether no draw for the missing value is missing in the file. If one of the draws before
// it had been another, all draws between would have been others too.
bool Draws::is_complete(const Merged& merged) const {
  const OnnxNode& maker = model_.nodes[maker_.find(merged.instead)->second];
  const std::set<size_t> before =
      draws_directly(merged) ? nodes_before(maker.inputs) : nodes_before({&merged.instead, 1});
  std::set<size_t> settled;
  for (const size_t n : before) {
    if (!is_random(n) || settled.contains(n)) continue;
    const ReadingCall* of = call_at(n);
    const bool attention = of && of->call.function == kAttentionCall;
    const std::string_view stem = stem_of(attention ? of->call.name : model_.nodes[n].outputs[0]);
    const int64_t below = stem == stem_of(merged.value)
                              ? number_of(merged.value)
                              : first_after(stem, readers_[merged.reader].nodes.back());
    if (below < 0 || !all_are_known(stem, below)) continue;
    const std::set<size_t> upstream = nodes_before(model_.nodes[n].outputs);
    settled.insert(upstream.begin(), upstream.end());
  }
  return std::all_of(before.begin(), before.end(),
                     [&](size_t n) { return !is_random(n) || settled.contains(n); });
}

bool Draws::draws_directly(const Merged& merged) const {
  const size_t maker = maker_.find(merged.instead)->second;
  const std::string_view op = model_.nodes[maker].op;
  return is_random(maker) && (op == "Dropout" || op == "Bernoulli" || op.starts_with("Random"));
}

Status Draws::separate(const Merged& merged) {
  const bool direct = draws_directly(merged);
  const size_t reader = readers_[merged.reader].nodes[0];
  if (!is_complete(merged) || (direct && merged.both)) {
    const std::string where =
        scopes_[reader].empty() ? "" : fmt::format(" in '{}'", quote_control(scopes_[reader]));
    return fail(
               "{}{}: the exporter took '{}' for '{}', as if both had drawn the same random "
               "numbers",
               model_.nodes[reader].label(), where, quote_control(merged.value),
               quote_control(merged.instead))
        .with_note(export_help(model_));
  }
  if (!direct) return ok_status();
  if (!maker_.contains(merged.value)) {
    OnnxNode copy = model_.nodes[maker_.find(merged.instead)->second];
    copy.name += " for " + merged.value;
    copy.outputs = {merged.value};
    maker_.emplace(merged.value, model_.nodes.size());
    of_node_.push_back(-1);
    model_.nodes.push_back(std::move(copy));
    scopes_.push_back(scopes_[reader]);
  }
  for (const size_t n : readers_[merged.reader].nodes)
    std::replace(model_.nodes[n].inputs.begin(), model_.nodes[n].inputs.end(), merged.instead,
                 merged.value);
  return ok_status();
}

Status Draws::run() {
  read_calls();
  bool any = false;
  for (size_t n = 0; n < model_.nodes.size() && !any; ++n) any = is_random(n);
  if (!any) return ok_status();
  std::vector<Merged> found;
  for (size_t r = 0; r < readers_.size(); ++r)
    for (const CallArg& arg : readers_[r].call.args)
      if (auto merged = find_merged(r, arg); merged && !is_derived(*merged))
        if (depends_on_draws(merged->instead)) found.push_back(*std::move(merged));
  const auto add_mask = [&](std::string_view result) {
    masks_.insert(fmt::format("{}_{}", stem_of(result), number_of(result) + 1));
  };
  for (const OnnxNode& node : model_.nodes)
    if (node.op == "Dropout" && !node.outputs.empty()) add_mask(node.outputs[0]);
  for (const Merged& merged : found)
    if (draws_directly(merged)) add_mask(merged.value);
  for (const Merged& merged : found) PIPER_TRY(separate(merged));
  return ok_status();
}

}  // namespace

Status separate_draws(OnnxModel& model, std::vector<std::string>& scopes,
                      const std::vector<SignatureInput>& signature) {
  const bool any = std::any_of(model.nodes.begin(), model.nodes.end(), [](const OnnxNode& node) {
    return node.op == "Dropout" || node.op == "Bernoulli" || node.op.starts_with("Random") ||
           find_metadata(node.metadata, "pkg.torch.onnx.fx_node").find(kAttentionCall) !=
               std::string_view::npos;
  });
  if (!any || signature.empty()) return ok_status();
  return Draws(model, scopes, signature).run();
}

}  // namespace piper::onnx_import
