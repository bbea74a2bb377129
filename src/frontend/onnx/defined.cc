// Names: well-formed, each defined once; and an order in which each is.
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "piper/frontend/onnx.h"

namespace piper::onnx_import {
namespace {

constexpr size_t kMaxName = 4096;

bool is_utf8(const std::string& text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const size_t more = byte < 0x80    ? 0
                        : byte >= 0xf0 ? 3
                        : byte >= 0xe0 ? 2
                        : byte >= 0xc2 ? 1
                                       : 9;
    if (byte > 0xf4 || more == 9 || text.size() - i <= more) return false;
    for (size_t k = 1; k <= more; ++k) {
      if ((static_cast<unsigned char>(text[i + k]) & 0xc0) != 0x80) return false;
    }
    i += more + 1;
  }
  return true;
}

}  // namespace

Status check_name(std::string_view role, const std::string& name) {
  if (name.empty()) return fail("{} has an empty name", role);
  if (name.size() > kMaxName) {
    return fail("{} has a name of {} bytes; at most {} are allowed", role, name.size(), kMaxName);
  }
  if (!is_utf8(name))
    return fail("{} '{}' has a name that is not UTF-8", role, quote_control(name.substr(0, 80)));
  return ok_status();
}

Status check_defined(const OnnxModel& model) {
  std::unordered_map<std::string, std::string_view> defined;  // and as what
  auto define = [&](std::string_view what, const std::string& name) -> Status {
    PIPER_TRY(check_name(what, name));
    const auto [known, fresh] = defined.emplace(name, what);
    if (fresh) return ok_status();
    Error error = fail("the name '{}' is defined twice, as {} and as {}", quote_control(name),
                       known->second, what);
    if (known->second != what)
      error.notes.emplace_back(
          "help: the exporter calls a buffer of the outermost module and the result of a function "
          "alike, as 'mean' and 't': give the buffer another name");
    return error;
  };
  for (const OnnxTensor& t : model.initializers) PIPER_TRY(define("an initializer", t.name));
  for (const OnnxInput& i : model.inputs) PIPER_TRY(define("an input", i.name));
  for (const OnnxNode& node : model.nodes) {
    for (const std::string& name : node.outputs) {
      if (!name.empty()) PIPER_TRY(define("an output of a node", name));
    }
  }
  for (const OnnxNode& node : model.nodes) {
    for (const std::string& name : node.inputs) {
      if (!name.empty() && !defined.count(name)) {
        return fail("{} reads '{}', which nothing defines", node.label(), quote_control(name));
      }
    }
  }
  std::set<std::string> outputs;
  for (const std::string& name : model.outputs) {
    if (!defined.count(name)) return fail("the output '{}' is not defined", quote_control(name));
    if (!outputs.insert(name).second)
      return fail("the output '{}' is there twice", quote_control(name));
  }
  if (model.outputs.empty()) return fail("the graph has no outputs");
  return ok_status();
}

Result<std::vector<size_t>> node_order(const OnnxModel& model) {
  std::unordered_map<std::string_view, size_t> producer;
  for (size_t n = 0; n < model.nodes.size(); ++n) {
    for (const std::string& output : model.nodes[n].outputs)
      if (!output.empty()) producer.emplace(output, n);
  }
  enum class State : uint8_t { kNew, kOpen, kDone };
  std::vector<State> state(model.nodes.size(), State::kNew);
  std::vector<size_t> order;
  std::vector<std::pair<size_t, size_t>> stack;  // node, next input
  for (size_t root = 0; root < model.nodes.size(); ++root) {
    if (state[root] == State::kNew) stack.emplace_back(root, 0);
    while (!stack.empty()) {
      auto& [n, next] = stack.back();
      state[n] = State::kOpen;
      const std::vector<std::string>& inputs = model.nodes[n].inputs;
      if (next == inputs.size()) {
        state[n] = State::kDone;
        order.push_back(n);
        stack.pop_back();
        continue;
      }
      const auto found = producer.find(inputs[next++]);
      if (found == producer.end() || state[found->second] == State::kDone) continue;
      if (state[found->second] == State::kOpen) {
        return fail(model.at(), "{} depends on its own result: the graph has a cycle",
                    model.nodes[found->second].label());
      }
      stack.emplace_back(found->second, 0);
    }
  }
  return order;
}

}  // namespace piper::onnx_import
