// What the exporters' metadata says: the framework's parameters, the call each node came from, and
// its module path.
#pragma once

#include "onnx_model.h"

namespace piper::onnx_import {

// ---- The exported program's signature ("p_h_0_qkv_weight: PARAMETER target='h.0.qkv.weight'") ---
struct SignatureInput {
  std::string placeholder;  // "p_h_0_qkv_weight"
  std::string kind;         // PARAMETER, BUFFER, CONSTANT_TENSOR, USER_INPUT
  std::string target;       // the framework's name, "" for user inputs
};
std::vector<SignatureInput> parse_signature(std::string_view text);
// "add_8: BUFFER_MUTATION target='m.mu'": what a buffer becomes when forward has run.
struct BufferMutation {
  std::string value, target;
};
std::vector<BufferMutation> parse_mutations(std::string_view text);
// "add_8: USER_OUTPUT": the results that the module returns.
std::vector<std::string> parse_outputs(std::string_view text);
inline constexpr std::string_view kSignatureKey =
    "pkg.torch.export.ExportedProgram.graph_signature";
// By onnxruntime, which leaves no word of what they were.
bool has_fused_operators(const OnnxModel& model);
// How to export it so that nothing is lost, by the exporter that wrote it: "help: …".
std::string export_help(const OnnxModel& model);

// ---- The call a node came from ("%linear : […] = call_function[target=…linear.default](args =
// (…), …)") --
struct CallArg {
  int position = -1;  // in args; -1 for keyword arguments
  std::string name;   // of the value, without '%'
};
struct Call {
  std::string name;                // of its result: "linear_3"
  std::string function;            // "aten.linear"
  std::vector<CallArg> args;       // those that are values, nested lists flattened
  int positions = 0;               // arguments by position, values or not
  std::vector<std::string> words;  // by position, as they are written: "%x", "2", "False"
};
std::optional<Call> parse_call(std::string_view text);
inline constexpr std::string_view kAttentionCall = "aten.scaled_dot_product_attention";
// Not one of the numbers in a list of sizes: "%view", "[%mul_3, 128]".
bool is_tensor(const Call& call, const CallArg& arg);

// ---- Scopes -------------------------------------------------------------------------------------
// By node, "h/0/qkv": from the module path of either exporter; a node without one takes that of its
// first consumer that has one, else of its producer.
std::vector<std::string> scopes_of(const OnnxModel& model);
// "h.0.qkv" -> "h/0/qkv".
std::string scope_of_name(std::string_view dotted);
// The innermost that both are in.
std::string common_scope(const std::string& a, const std::string& b);
// "a/b" is within "a", "a/b" and "".
bool is_within(const std::string& inner, const std::string& outer);
// "h.0.qkv" and "weight" of "h.0.qkv.weight"; "" and "weight" of "weight".
std::string module_of(std::string_view name);
std::string leaf_of(const std::string& name);

}  // namespace piper::onnx_import
