// Parses the calls that the dynamo exporter writes into metadata: functions, arguments, modules.
#include <algorithm>
#include <unordered_map>

#include "piper/frontend/onnx.h"

namespace piper::onnx_import {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

bool is_name_char(char c) {
  return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

std::string_view name_at(std::string_view text, size_t start) {
  size_t end = start;
  while (end < text.size() && is_name_char(text[end])) ++end;
  return text.substr(start, end - start);
}

// Walks "(%a, [%b, 3], None), kwargs = {k: %c}" from after the opening parenthesis.
void parse_args(std::string_view text, Call& call) {
  int depth = 1, position = 0;
  bool keywords = false, any = false;
  size_t word = 0;  // where the argument at `position` begins
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') {
      if (--depth == 0 && !keywords) {
        keywords = true;
        call.positions = any ? position + 1 : 0;
        if (any) call.words.emplace_back(trimmed(text.substr(word, i - word)));
      }
    }
    if (c == ',' && depth == 1 && !keywords) {
      ++position;
      any = false;
      call.words.emplace_back(trimmed(text.substr(word, i - word)));
      word = i + 1;
    }
    if (c != ' ' && c != ',' && !keywords) any = true;
    if (c != '%') continue;
    const std::string_view name = name_at(text, i + 1);
    if (!name.empty()) call.args.push_back({keywords ? -1 : position, std::string(name)});
  }
  if (call.positions == 0 && position > 0) call.positions = position;  // "(%a,)"
}

// 'torch.ops.aten.linear.default' -> "aten.linear"; "operator.mul" stays.
std::string function_name(std::string_view target) {
  constexpr std::string_view kOps = "torch.ops.";
  if (target.substr(0, kOps.size()) != kOps) return std::string(target);
  target.remove_prefix(kOps.size());
  const size_t overload = target.rfind('.');
  const size_t first = target.find('.');
  return std::string(overload != first ? target.substr(0, overload) : target);
}

std::string dots_to_slashes(std::string_view path) {
  std::string out(path);
  std::replace(out.begin(), out.end(), '.', '/');
  return out;
}

// "['', 'model', 'model.h.0', 'view_3']": the last but one is the module; the last names the call.
std::optional<std::string> module_scope(std::string_view scopes) {
  std::vector<std::string_view> parts;
  for (size_t i = 0; i < scopes.size(); ++i) {
    if (scopes[i] != '\'' && scopes[i] != '"') continue;
    const size_t end = scopes.find(scopes[i], i + 1);
    if (end == std::string_view::npos) break;
    parts.push_back(scopes.substr(i + 1, end - i - 1));
    i = end;
  }
  if (parts.size() < 2) return {};
  parts.pop_back();
  const std::string_view module = parts.back();
  // The exporter's own passes write this for what is in no module.
  if (module.substr(0, 6) == "_empty") return {};
  return dots_to_slashes(module);
}

// "h.0_1" -> "h.0": a number after that of a list is that of a call.
std::string_view without_call(std::string_view part) {
  const size_t dot = part.rfind('.'), end = part.rfind('_');
  const auto digits = [&](size_t from, size_t to) {
    return from < to && std::all_of(part.begin() + static_cast<int64_t>(from),
                                    part.begin() + static_cast<int64_t>(to),
                                    [](char c) { return c >= '0' && c <= '9'; });
  };
  if (dot == part.npos || end == part.npos || dot > end) return part;
  return digits(dot + 1, end) && digits(end + 1, part.size()) ? part.substr(0, end) : part;
}

// "/model/h.0/qkv/MatMul_1" -> "model/h/0/qkv". In "/fc/fc.0/MatMul" the list that was called
// is twice.
std::optional<std::string> node_name_scope(std::string_view name) {
  if (name.empty() || name.front() != '/') return {};
  const size_t end = name.rfind('/');
  if (end == 0) return std::string();
  std::vector<std::string> parts;
  for (const std::string& raw : split_text(std::string(name.substr(1, end - 1)), '/')) {
    const std::string_view part = without_call(raw);
    if (!parts.empty() && part.starts_with(parts.back() + ".")) parts.pop_back();
    parts.emplace_back(part);
  }
  return dots_to_slashes(join(parts, "/"));
}

// Returns the text between quotes that follows target=, or "".
std::string target_in(std::string_view line) {
  const size_t target = line.find("target='");
  if (target == line.npos) return "";
  const size_t start = target + 8, end = line.find('\'', start);
  return end == line.npos ? "" : std::string(line.substr(start, end - start));
}

// Returns the lines under a heading; outputs have the same form as inputs.
std::vector<SignatureInput> parse_section(std::string_view text, std::string_view heading) {
  std::vector<SignatureInput> out;
  bool within = false;
  for (const std::string& raw : split_text(text, '\n')) {
    const std::string_view line = trimmed(raw);
    if (line.substr(0, 1) == "#") within = line == heading;
    const size_t colon = line.find(": ");
    if (!within || colon == std::string_view::npos) continue;
    SignatureInput& input = out.emplace_back();
    input.placeholder = std::string(line.substr(0, colon));
    input.kind = std::string(name_at(line, colon + 2));
    input.target = target_in(line);
  }
  return out;
}

std::optional<std::string> own_scope(const OnnxNode& node) {
  const std::string_view scopes = find_metadata(node.metadata, "pkg.torch.onnx.name_scopes");
  return scopes.empty() ? node_name_scope(node.name) : module_scope(scopes);
}

}  // namespace

std::vector<SignatureInput> parse_signature(std::string_view text) {
  return parse_section(text, "# inputs");
}

std::vector<BufferMutation> parse_mutations(std::string_view text) {
  std::vector<BufferMutation> out;
  for (SignatureInput& output : parse_section(text, "# outputs"))
    if (output.kind == "BUFFER_MUTATION")
      out.push_back({std::move(output.placeholder), std::move(output.target)});
  return out;
}

std::vector<std::string> parse_outputs(std::string_view text) {
  std::vector<std::string> out;
  for (SignatureInput& output : parse_section(text, "# outputs"))
    if (output.kind == "USER_OUTPUT") out.push_back(std::move(output.placeholder));
  return out;
}

bool has_fused_operators(const OnnxModel& model) {
  return std::any_of(model.nodes.begin(), model.nodes.end(),
                     [](const OnnxNode& node) { return node.domain == "com.microsoft"; });
}

std::string export_help(const OnnxModel& model) {
  const std::string tool = "help: export the module by tools/export.py, which loses nothing";
  if (lists_parameters(model)) return "help: give piperc the file as tools/export.py wrote it";
  if (has_fused_operators(model))
    return "help: give piperc the file as it was before another program fused its operators "
           "(com.microsoft); of a module, tools/export.py writes one that loses nothing";
  constexpr int64_t kOldestWithCalls = 18;  // to write an older opset, the exporter removes them
  if (model.lacks_calls && model.opset < kOldestWithCalls)
    return fmt::format("{}; or at opset {} or later, so that its metadata stays in the file", tool,
                       kOldestWithCalls);
  if (model.lacks_calls) return tool + "; or give piperc the file that the exporter wrote";
  if (!find_metadata(model.metadata, kSignatureKey).empty()) {
    const bool whole = std::any_of(model.nodes.begin(), model.nodes.end(),
                                   [](const OnnxNode& node) { return node.op == "Constant"; });
    return whole ? tool + ": one of optimize=False says no more than this file"
                 : tool + "; or with optimize=False";
  }
  return model.producer.starts_with("pytorch")
             ? tool +
                   "; or with dynamo=True, or with do_constant_folding=False and "
                   "training=TrainingMode.PRESERVE"
             : "help: export the model without folding constants and merging tensors";
}

std::optional<Call> parse_call(std::string_view text) {
  if (text.substr(0, 1) != "%") return {};
  Call call;
  call.name = std::string(name_at(text, 1));
  constexpr std::string_view kTarget = "[target=", kArgs = "](args = (";
  const size_t target = text.find(kTarget), args = text.find(kArgs);
  if (target == std::string_view::npos || args == std::string_view::npos || args < target)
    return {};
  const size_t start = target + kTarget.size();
  call.function = function_name(text.substr(start, args - start));
  parse_args(text.substr(args + kArgs.size()), call);
  return call;
}

bool is_tensor(const Call& call, const CallArg& arg) {
  const auto at = static_cast<size_t>(arg.position);
  if (arg.position < 0 || at >= call.words.size()) return false;
  return !call.words[at].starts_with("[") || call.function == "aten.cat" ||
         call.function == "aten.stack";
}

std::vector<std::string> scopes_of(const OnnxModel& model) {
  std::vector<std::optional<std::string>> scopes;
  std::unordered_map<std::string_view, size_t> producer;
  for (size_t i = 0; i < model.nodes.size(); ++i) {
    scopes.push_back(own_scope(model.nodes[i]));
    for (const std::string& output : model.nodes[i].outputs)
      if (!output.empty()) producer.emplace(output, i);
  }
  std::vector<std::optional<std::string>> from_consumer(scopes.size());
  for (size_t i = 0; i < model.nodes.size(); ++i) {
    for (const std::string& input : model.nodes[i].inputs) {
      const auto found = producer.find(input);
      if (found == producer.end() || scopes[found->second] || !scopes[i]) continue;
      if (!from_consumer[found->second]) from_consumer[found->second] = scopes[i];
    }
  }
  std::vector<std::string> out(scopes.size());
  for (size_t i = 0; i < scopes.size(); ++i) {
    if (!scopes[i]) scopes[i] = from_consumer[i];
    for (size_t k = 0; k < model.nodes[i].inputs.size() && !scopes[i]; ++k) {
      const auto found = producer.find(model.nodes[i].inputs[k]);
      if (found != producer.end()) scopes[i] = scopes[found->second];
    }
    out[i] = scopes[i].value_or("");
  }
  return out;
}

std::string scope_of_name(std::string_view dotted) { return dots_to_slashes(dotted); }

std::string common_scope(const std::string& a, const std::string& b) {
  const std::vector<std::string> x = split_text(a, '/'), y = split_text(b, '/');
  size_t same = 0;
  while (same < x.size() && same < y.size() && x[same] == y[same]) ++same;
  return join(std::span(x.data(), same), "/");
}

bool is_within(const std::string& inner, const std::string& outer) {
  return outer.empty() || inner == outer || inner.starts_with(outer + "/");
}

std::string module_of(std::string_view name) {
  const size_t dot = name.rfind('.');
  return std::string(dot == name.npos ? std::string_view() : name.substr(0, dot));
}
std::string leaf_of(const std::string& name) { return name.substr(name.rfind('.') + 1); }

}  // namespace piper::onnx_import
