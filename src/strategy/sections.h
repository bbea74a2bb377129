// One function for each top-level key of a strategy file.
#pragma once

#include "errors.h"
#include "fields.h"

namespace piper {

// A file and, before it, the files that it includes.
struct StrategyFile {
  std::string path, text;
  yaml::Node root;
};
// Wrong top-level keys join the errors; what cannot be read at all is returned.
Result<std::vector<StrategyFile>> load_files(const std::string& path, ErrorList& errors);

// What the files say together: params by name, the last file first to be heard; lists joined; the
// rest once.
struct Sections {
  std::vector<const yaml::Entry*> params;      // of a name, the entry that counts
  std::vector<const yaml::Entry*> overridden;  // and those that do not
  std::vector<std::pair<std::string, const yaml::Entry*>> once;
  // The top-level entries of all files.
  std::vector<const yaml::Entry*> annotate, directives, require;
  const yaml::Entry* find(std::string_view name) const;
};
Sections gather_sections(const std::vector<StrategyFile>& files, ErrorList& errors);

// Params and definitions -> scope. Params may refer to each other in any order.
Scope read_params(const Sections& sections, const std::vector<Definition>& defines,
                  ErrorList& errors);
// Errors: params that nothing named while all sections were read.
void check_used(const Sections& sections, const Scope& scope,
                const std::vector<Definition>& defines, ErrorList& errors);
// Error: params of which a `require` entry does not hold. Requires mesh sizes in the scope.
Status check_required(const Sections& sections, const Scope& scope,
                      const std::vector<Definition>& defines);
// Axes join the scope, those without a size as failed.
std::vector<MeshAxis> read_mesh(const yaml::Entry& entry, Scope& scope, ErrorList& errors);
Result<std::vector<InputBinding>> read_inputs(const yaml::Entry& entry, const Scope& scope);
Result<std::vector<std::pair<std::string, int64_t>>> read_dims(const yaml::Entry& entry,
                                                               const Scope& scope);
Result<std::vector<ParamRule>> read_parameters(const yaml::Entry& entry, const Scope& scope);
Status read_loss(const yaml::Entry& entry, const Scope& scope, Strategy& out);
// `entry` may be null: everything has a default.
Status read_train(const yaml::Entry* entry, const Scope& scope, Strategy& out);
Status read_annotate(const yaml::Entry& entry, const Scope& scope, Annotate& out);

// What directives may name: mesh axes and tags.
struct Names {
  std::vector<std::string> axes, tags;
  bool kinds = false;  // conditions may choose by kind of task
};
Status check_axis(std::string_view name, const SourceSpan& at, const Names& names);
Status read_replicate(const fields::Fields& map, const Scope& scope, const Names& names,
                      Strategy& out);
// `reduce` of precision is that of all replicate directives.
Status share_reduce_type(Strategy& out);
// `accumulate` is one type, wherever it stands.
Status check_accumulate_types(const Strategy& strategy);
Status read_precision(const fields::Fields& map, const Scope& scope, const Names& names,
                      Strategy& out);
// A list of names of ops.
Result<std::vector<std::pair<std::string, SourceSpan>>> read_ops(const yaml::Node& node,
                                                                 const Scope& scope);
// Error: conditions of `directive`, which chooses ops, on what ops do not have.
Status check_where_of_ops(const Where& where, std::string_view directive,
                          std::initializer_list<std::string_view> not_by);
Status read_stream(const fields::Fields& map, const Scope& scope, Names names, Strategy& out);
Status read_offload(const fields::Fields& map, const Scope& scope, const Names& names,
                    Strategy& out);
Status read_prefetch(const fields::Fields& map, const Scope& scope, Names names, Strategy& out);
Status read_fuse(const fields::Fields& map, const Scope& scope, Names names, Strategy& out);
Status read_directives(const std::vector<const yaml::Entry*>& entries, const Scope& scope,
                       Strategy& out);
Status check_axis(std::string_view name, const SourceSpan& at, const Names& names);
Status read_order(const fields::Fields& map, const Scope& scope, const Names& names, Strategy& out);
Result<Where> read_where(const yaml::Node& node, const Scope& scope, const Names& names);

}  // namespace piper
