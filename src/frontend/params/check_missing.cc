// The error for parameters that are missing, and for constants that nobody knows. The import fails
// with it where the strategy does not say what they are.
#include <algorithm>

#include "claims.h"

namespace piper::onnx_import {
namespace {

constexpr size_t kShown = 8;
constexpr const char* kInitHelp =
    "help: or bring the values that the file was exported with: --init STATE.safetensors";

Status check_unknown(const OnnxModel& model, const Recovery& recovery) {
  const std::vector<UnknownConstant>& unknown = recovery.unknown;
  if (unknown.empty()) return ok_status();
  Error error = fail(
      "the exporter computed {} tensor{} from parameters or constants, and the file "
      "does not say from which",
      unknown.size(), unknown.size() == 1 ? "" : "s");
  for (size_t i = 0; i < std::min(unknown.size(), kShown); ++i)
    error.notes.push_back(quote_control(unknown[i].text));
  if (unknown.size() > kShown) error.notes.emplace_back("…");
  error.notes.push_back(export_help(model));
  if (!recovery.given) error.notes.emplace_back(kInitHelp);
  error.notes.push_back(fmt::format(
      "help: or say under 'parameters' what they are: {{include: {{match: \"{0}\", as: NAME}}}} "
      "trains such a tensor, {{exclude: \"{0}\"}} leaves it as it is",
      quote_control(unknown[0].initializer)));
  return error;
}

}  // namespace

Status check_missing(const OnnxModel& model, const Recovery& recovery) {
  PIPER_TRY(check_unknown(model, recovery));
  const std::vector<MissingParam>& all = recovery.missing;
  if (all.empty()) return ok_status();
  std::vector<std::string> names;
  for (const MissingParam& param : all) names.push_back(param.name);
  const std::span shown(names.data(), std::min(names.size(), kShown));
  Error error = fail("the exporter merged or folded {} parameter{}, which cannot be had back: {}{}",
                     names.size(), names.size() == 1 ? "" : "s", quote_control(join(shown, ", ")),
                     names.size() > kShown ? ", …" : "");
  bool uncalled = false, adds = false, by_value = false;
  for (size_t i = 0; i < all.size(); ++i) {
    uncalled = uncalled || all[i].uncalled;
    by_value = by_value || all[i].by_value;
    adds = adds || all[i].why.find("'add'") != std::string::npos;
    if (i >= kShown) continue;
    error.notes.push_back(quote_control(fmt::format(
        "'{}': {}{}", all[i].name, all[i].uncalled ? "no call names it, and " : "", all[i].why)));
  }
  error.notes.push_back(export_help(model));
  if (by_value) error.notes.emplace_back(kInitHelp);
  if (adds)
    error.notes.push_back(
        "help: or say under 'parameters' what was added: 'stored: {match: NAME, plus: NUMBER}'");
  if (uncalled)
    error.notes.push_back(
        "help: what no call names may be unused: 'exclude' it; or another name of a tensor: 'tie: "
        "[NAME, OTHER]'");
  error.notes.push_back(
      "help: or write 'exclude' for them under 'parameters', and they stay as they are");
  return error;
}

}  // namespace piper::onnx_import
