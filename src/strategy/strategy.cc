#include "piper/strategy.h"

#include "sections.h"

namespace piper {
namespace {

Status read_versions(const yaml::Entry* versions, const Scope& scope, Strategy& out) {
  if (versions == nullptr) return ok_status();
  const yaml::Node& value = versions->value;
  PIPER_ASSIGN(out.weight_versions, read_integer(value, scope));
  out.weight_versions_at = value.at;
  if (out.weight_versions == 1 || out.weight_versions == 2) return ok_status();
  return fail(value.at, "'weight_versions' must be 1 or 2, not {}", out.weight_versions);
}

Status read_model_sections(const Sections& sections, const Scope& scope, Strategy& out) {
  if (const yaml::Entry* inputs = sections.find("inputs")) {
    PIPER_ASSIGN(out.inputs, read_inputs(*inputs, scope));
  }
  if (const yaml::Entry* dims = sections.find("dims")) {
    PIPER_ASSIGN(out.dims, read_dims(*dims, scope));
  }
  if (const yaml::Entry* parameters = sections.find("parameters")) {
    PIPER_ASSIGN(out.parameters, read_parameters(*parameters, scope));
  }
  if (const yaml::Entry* loss = sections.find("loss")) PIPER_TRY(read_loss(*loss, scope, out));
  PIPER_TRY(read_versions(sections.find("weight_versions"), scope, out));
  return read_train(sections.find("train"), scope, out);
}

}  // namespace

Result<Strategy> parse_strategy(const std::string& path, const std::vector<Definition>& defines) {
  PIPER_ASSIGN(const std::vector<StrategyFile> files, load_files(path));
  PIPER_ASSIGN(const Sections sections, gather_sections(files));
  Strategy out;
  out.path = path;
  for (const StrategyFile& file : files) out.text += file.text;
  Scope scope;
  PIPER_TRY(read_params(sections, defines, scope));
  out.params = scope.integers;
  out.text_params = scope.texts;
  if (const yaml::Entry* mesh = sections.find("mesh")) {
    PIPER_ASSIGN(out.mesh, read_mesh(*mesh, scope));
  }
  PIPER_TRY(check_required(sections, scope, defines));
  PIPER_TRY(read_model_sections(sections, scope, out));
  out.annotate.at = {path};
  for (const yaml::Entry* entry : sections.annotate) {
    PIPER_TRY(read_annotate(*entry, scope, out.annotate));
  }
  PIPER_TRY(read_directives(sections.directives, scope, out));
  return out;
}

}  // namespace piper
