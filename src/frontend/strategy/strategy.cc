// Reads a strategy file: the list of its sections.
#include "piper/frontend/strategy.h"

#include "errors.h"
#include "sections.h"

namespace piper {
namespace {

// Takes the value, or notes its error.
template <class T>
void keep(Result<T> value, T& out, ErrorList& errors) {
  if (value)
    out = *std::move(value);
  else
    errors.add(std::move(value).error());
}

void read_model_sections(const Sections& sections, const Scope& scope, Strategy& out,
                         ErrorList& errors) {
  if (const yaml::Entry* inputs = sections.find("inputs"))
    keep(read_inputs(*inputs, scope), out.inputs, errors);
  if (const yaml::Entry* dims = sections.find("dims"))
    keep(read_dims(*dims, scope), out.dims, errors);
  keep(read_parameters(sections.parameters, scope), out.parameters, errors);
  if (const yaml::Entry* loss = sections.find("loss")) errors.add(read_loss(*loss, scope, out));
  errors.add(read_train(sections.find("train"), scope, out));
}

}  // namespace

Result<Strategy> parse_strategy(const std::string& name, const std::vector<Definition>& defines,
                                const std::vector<std::string>& library) {
  ErrorList errors;
  PIPER_ASSIGN(const std::vector<StrategyFile> files, load_files(name, defines, library, errors));
  const std::string& path = files.back().path;
  Choice choice(files, errors);
  Sections sections = join_files(files, choice, errors);
  Strategy out;
  out.path = path;
  Scope scope = read_params(files, sections, defines, errors);
  check_paths(files, scope, errors);
  out.params = scope.integers;
  bool named = true;  // axes and tags
  if (const yaml::Entry* mesh = sections.find("mesh")) {
    out.mesh = read_mesh(*mesh, scope, errors);
    named = mesh->value.is(yaml::Node::Kind::kMap);
  }
  choose_entries(sections, files, choice, scope, errors);
  out.left_out = std::move(sections.left_out);
  // Errors after a clash may be due to it, so they are not listed.
  if (choice.clashed()) return errors.status().error();
  // What a strategy asks of its params is said only: further errors may come of them.
  if (errors.empty()) PIPER_TRY(check_required(sections, scope, defines));
  read_model_sections(sections, scope, out, errors);
  out.annotate.at = {path};
  for (const yaml::Entry& entry : sections.annotate) {
    Status read = read_annotate(entry, scope, out.annotate);
    named = named && read.ok();
    errors.add(std::move(read));
  }
  // What follows may only name axes and tags that are there.
  if (const yaml::Entry* versions = sections.find("weight_versions"); versions && named)
    errors.add(read_versions(*versions, scope, out));
  if (named) errors.add(read_directives(sections.directives, scope, out));
  if (errors.empty()) check_used(sections, scope, defines, errors);
  PIPER_TRY(errors.status());
  return out;
}

}  // namespace piper
