// One function for each top-level key of a strategy file.
#pragma once

#include <set>

#include "errors.h"
#include "fields.h"

namespace piper {

// Holds a file; those that it includes come before it.
struct StrategyFile {
  struct Path {  // with params inserted
    yaml::Node node;
    std::string text;
  };
  std::string path, text;
  SourceSpan from;  // where it is included first
  yaml::Node root;
  std::set<size_t> below;   // the files that it includes, also through others
  std::vector<Path> paths;  // of `include`, those that insert params
};
// Wrong top-level keys join the errors; what cannot be read at all is returned.
Result<std::vector<StrategyFile>> load_files(const std::string& path,
                                             const std::vector<Definition>& defines,
                                             const std::vector<std::string>& folders,
                                             ErrorList& errors);
// Errors: paths of `include` that would be others with the params of all files.
void check_paths(const std::vector<StrategyFile>& files, const Scope& scope, ErrorList& errors);

// Holds what a file says of one thing.
struct Given {
  size_t file = 0;
  const yaml::Node* key = nullptr;
  const yaml::Node* value = nullptr;  // null: that it is dropped
};
// Chooses between what several files say of one thing: the file that includes the others counts.
// Files of which neither includes the other must agree.
class Choice {
 public:
  Choice(const std::vector<StrategyFile>& files, ErrorList& errors)
      : files_(files), errors_(errors) {}
  // Returns the index of what counts. Where files do not agree, the first time for each two: an
  // error.
  size_t among(const std::vector<Given>& given, std::string_view what);
  bool clashed() const { return !clashes_.empty(); }

 private:
  void clash(const Given& first, const Given& second, std::string_view what);
  void note_includer(size_t file, Error& error, std::vector<std::string>& help) const;
  const std::vector<StrategyFile>& files_;
  ErrorList& errors_;
  std::set<std::pair<size_t, size_t>> clashes_;
};

// Holds what the files say together: maps joined by key, lists one after the other, the rest once.
struct Sections {
  struct Item {  // of a list
    size_t file = 0;
    yaml::Node node;
  };
  std::vector<const yaml::Entry*> params;
  std::vector<const yaml::Entry*> overridden_params;
  std::vector<const yaml::Node*> overridden;  // values of other maps
  std::vector<yaml::Entry> once;
  std::vector<yaml::Entry> annotate;  // of each file
  std::vector<Item> directives, require, parameters;
  std::vector<LeftOut> left_out;
  const yaml::Entry* find(std::string_view name) const;  // of `once`
};
Sections join_files(const std::vector<StrategyFile>& files, Choice& choice, ErrorList& errors);
// Takes `when` out of the entries of lists, and those out of which it says that they do not count;
// then `name` and `drop` out of the directives. What is taken out is noted. Requires mesh sizes in
// the scope.
void choose_entries(Sections& sections, const std::vector<StrategyFile>& files, Choice& choice,
                    const Scope& scope, ErrorList& errors);

// Returns the scope that params and definitions give. Params may refer to each other in any order.
Scope read_params(const std::vector<StrategyFile>& files, const Sections& sections,
                  const std::vector<Definition>& defines, ErrorList& errors);
// Returns a path with params inserted; `params` are all that there are.
Result<std::string> read_path(const yaml::Node& path, std::vector<const yaml::Entry*> params,
                              const std::vector<Definition>& defines);
// Notes the words of a value that does not count: each may name a param, which then is used.
void note_words(const yaml::Node& value, const Scope& scope);
// Errors: params that nothing named while all sections were read.
void check_used(const Sections& sections, const Scope& scope,
                const std::vector<Definition>& defines, ErrorList& errors);
// Error: params of which a `require` entry does not hold. Requires mesh sizes in the scope.
Status check_required(const Sections& sections, const Scope& scope,
                      const std::vector<Definition>& defines);
// Axes join the scope, those without a size as failed.
std::vector<MeshAxis> read_mesh(const yaml::Entry& entry, Scope& scope, ErrorList& errors);
Result<std::vector<InputBinding>> read_inputs(const yaml::Entry& entry, const Scope& scope);
Result<std::vector<DimSize>> read_dims(const yaml::Entry& entry, const Scope& scope);
Result<std::vector<ParamRule>> read_parameters(const std::vector<Sections::Item>& entries,
                                               const Scope& scope);
Status read_loss(const yaml::Entry& entry, const Scope& scope, Strategy& out);
// `entry` may be null: everything has a default.
Status read_train(const yaml::Entry* entry, const Scope& scope, Strategy& out);
Status read_annotate(const yaml::Entry& entry, const Scope& scope, Annotate& out);
Status read_versions(const yaml::Entry& entry, const Scope& scope, Strategy& out);

// Shares what precision directives say of all gradients and of the loss: one type each, one scale.
Status share_precision(Strategy& out);
// Error: conditions of `directive`, which chooses ops, on what ops do not have.
Status check_where_of_ops(const Where& where, std::string_view directive,
                          std::initializer_list<std::string_view> not_by);
// Returns what directives may name after what is read so far: axes, and tags of ops.
Names names_of(const Strategy& read);
Status read_directives(const std::vector<Sections::Item>& entries, const Scope& scope,
                       Strategy& out);
// Returns what values beside the conditions may name: what these bind, and M.
std::vector<std::string> variables_of(const Where& where);
Result<Where> read_where(const yaml::Node& node, const Scope& scope, const Names& names);

}  // namespace piper
