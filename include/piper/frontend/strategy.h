// The strategy file: YAML -> Strategy, with the place of every value kept for later errors.
// formats/strategy.md is the user's page. Expressions are evaluated here, except those over tags
// and captures, which the directives evaluate per match (Expr).
//
// Refused, each with file:line:column and what would be right: anchors, aliases, tags, merge keys,
// duplicate keys, second documents, YAML 1.1 booleans and octals (no, yes, on, off, 010), unknown
// keys (with the nearest), wrong types, files > 8 MiB.
#pragma once

#include "piper/frontend/directive_lists.h"
#include "piper/frontend/model.h"

namespace piper {

// ---- annotate -----------------------------------------------------------------------------------
struct AnnotateRule {
  Glob match;
  std::vector<std::pair<std::string, SourceSpan>> ops;  // names of the op table; empty: all
  // Expressions over params, captures, <capture>s = number of values seen ("layers"), `call`, the
  // number of the call of what is matched, and `calls`.
  std::vector<std::pair<std::string, Expr>> tags;
  SourceSpan at;
};
struct BalanceRule {  // annotate: - balance: {tag: stage, into: $stages}
  enum class By : uint8_t { kTime, kMemory, kWeights };
  std::string tag;
  int64_t into = 1;
  By by = By::kTime;
  SourceSpan at;
};
struct Annotate {
  std::vector<std::variant<AnnotateRule, BalanceRule>> rules;  // later rules override earlier ones
  bool strict = false;
  SourceSpan at;
};

struct MeshAxis {
  std::string name;
  int64_t size = 1;
  SourceSpan at;
  std::string twins_of;  // join_axes: the axis whose devices with one stage it numbers
};

struct LeftOut {  // an entry that does not count
  SourceSpan at;
  std::string what, why;  // "recompute", "its 'when' is 0"
};
struct WeightVersions {  // - {where: {stage: s}, versions: "stages - s"}
  static constexpr int64_t kMost = 64;
  Where where;    // over tags of the ops that read parameters; empty: all
  Expr versions;  // k: their gradients are taken at the weights before the last k - 1 updates
  SourceSpan at;
};
struct RampStage {  // of a batch that grows
  int64_t steps = 0, global_batch = 0;
  SourceSpan at;
};

struct Strategy : DirectiveLists {
  std::string path;
  Variables params;  // with -D applied
  std::vector<LeftOut> left_out;
  std::vector<MeshAxis> mesh;  // row-major ranks; empty: one device
  // 0: not given. What one does not divide is refused by apply_split, naming the nearest numbers.
  int64_t global_batch = 0, microbatch_size = 0;
  SourceSpan global_batch_at, microbatch_size_at, rampup_at;
  std::vector<RampStage> rampup;  // the first steps of a job, before global_batch holds
  std::vector<InputBinding> inputs;
  std::vector<DimSize> dims;
  std::vector<ParamRule> parameters;
  std::vector<LossTerm> loss;  // empty: the model's own
  SourceSpan loss_at;
  TrainSpec train;
  bool has_optimizer = false;                   // train: {optimizer: …} is given
  std::vector<WeightVersions> weight_versions;  // empty: one of each parameter
  uint64_t seed = 0;
  Annotate annotate;
};

struct Definition {  // -D name=value
  std::string name, value;
};
// Reads the file, a path or a name of the library such as "<numerics/bf16>", and its includes.
// `defines` override `params`; a name that no params section has is an error with the nearest, and
// so is a param that nothing names. Names of the library are looked for in the folders `library`,
// those of the variable PIPER_STRATEGIES, and share/piper/strategies beside the program's folder.
Result<Strategy> parse_strategy(const std::string& name, const std::vector<Definition>& defines,
                                const std::vector<std::string>& library = {});

// Returns the strategy that counts, after includes, definitions and expressions: one file without
// params, sections and keys in one order, numbers with their defaults. Read again it is the same,
// and prints the same. Strategies that differ in comments and names of params alone print alike.
std::string print_strategy(const Strategy& strategy);

// Returns the JSON Schema (draft-07) of a strategy file, made from the same table of keys that the
// parser reads: formats/strategy.schema.json is this text.
std::string strategy_schema();
// Returns what may be under `directives`, from that table: name, and what it does.
std::vector<std::pair<std::string_view, std::string_view>> known_directives();

}  // namespace piper
