// piper-checkpoint VERB …: what checkpoints hold, whether they are whole, how two differ, and
// parameters for and from other programs.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "flag_checks.h"
#include "piper/base/process.h"
#include "piper/runtime/checkpoint_tools.h"
#include "version.h"

namespace piper {
namespace {

enum Exit { kGood = 0, kDifferent = 1, kDiffError = 2 };

struct Flags {
  std::string verb, from, to, prefix, added, dtype, shard = "5GB";
  bool tensors = false, json = false, huggingface = false, dcp = false, force = false,
       averages = false;
};

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }

// Returns whether a checkpoint of a folder was removed after it was listed, as a job does that
// keeps some of them.
bool is_gone(const std::string& folder, const Flags& flags) {
  std::error_code ignored;
  if (folder == flags.from || std::filesystem::exists(folder, ignored)) return false;
  std::fputs(fmt::format("{}: removed meanwhile\n", folder).c_str(), stderr);
  return true;
}

Result<int> inspect(const Flags& flags) {
  PIPER_ASSIGN(const auto folders, find_checkpoints(flags.from));
  for (const std::string& folder : folders) {
    const auto text = describe_checkpoint(folder, flags.tensors, flags.json);
    if (!text && is_gone(folder, flags)) continue;
    if (!text) return text.error();
    print(*text);
  }
  return kGood;
}

Result<int> verify(const Flags& flags) {
  PIPER_ASSIGN(const auto folders, find_checkpoints(flags.from));
  int code = kGood;
  for (const std::string& folder : folders) {
    const auto damage = find_damage(folder);
    if (!damage && is_gone(folder, flags)) continue;
    if (!damage) {
      std::fputs(print_error(damage.error()).c_str(), stderr);
      code = std::max(code, static_cast<int>(ExitCode::kStorage));  // it cannot be read at all
      continue;
    }
    for (const std::string& one : *damage) print(fmt::format("{}: {}\n", folder, one));
    if (damage->empty()) print(fmt::format("{}: whole\n", folder));
    if (!damage->empty()) code = std::max(code, static_cast<int>(ExitCode::kRefused));
  }
  return code;
}

Result<int> diff(const Flags& flags) {
  PIPER_ASSIGN(const CheckpointReader a, open_newest(flags.from));
  PIPER_ASSIGN(const CheckpointReader b, open_newest(flags.to));
  PIPER_ASSIGN(const CheckpointDiff found, diff_checkpoints(a, b));
  print(print_checkpoint_diff(found, flags.json));
  return found.same() ? kGood : kDifferent;
}

Result<int> export_parameters(const Flags& flags) {
  ExportOptions options{flags.huggingface, flags.prefix};
  if (!flags.dtype.empty()) options.dtype = parse_dtype(flags.dtype);
  options.replace = flags.force;
  options.averages = flags.averages;
  PIPER_ASSIGN(options.shard_bytes, parse_bytes(flags.shard));
  PIPER_ASSIGN(const CheckpointReader reader, open_newest(flags.from));
  PIPER_ASSIGN(const std::string text, export_checkpoint(reader, options, flags.to));
  print(text);
  return kGood;
}

Result<int> import_tensors(const Flags& flags) {
  const CheckpointImport options{flags.dcp, flags.prefix, flags.added, flags.force};
  PIPER_ASSIGN(const std::string text, import_parameters(flags.from, options, flags.to));
  print(text);
  return kGood;
}

struct Verb {
  const char* name;
  bool has_two;  // paths
  Result<int> (*run)(const Flags&);
  std::vector<std::string> flags;  // that it takes
};

const std::vector<Verb>& verbs() {
  static const std::vector<Verb> kVerbs = {
      {"inspect", false, inspect, {"--tensors", "--json"}},
      {"verify", false, verify, {}},
      {"diff", true, diff, {"--json"}},
      {"export",
       true,
       export_parameters,
       {"--hf", "--ema", "--strip-prefix", "--dtype", "--shard-size", "--force"}},
      {"import", true, import_tensors, {"--dcp", "--strip-prefix", "--add-prefix", "--force"}},
  };
  return kVerbs;
}

void add_flags(CLI::App& app, Flags& flags) {
  std::vector<std::string> names;
  for (const Verb& verb : verbs()) names.emplace_back(verb.name);
  app.add_option("VERB", flags.verb, "inspect, verify, diff, export or import")
      ->required()
      ->check(CLI::IsMember(names));
  app.add_option("FROM", flags.from,
                 "a checkpoint, or a folder of checkpoints, of which inspect and verify take all, "
                 "diff and export the newest. For diff it may be a safetensors file; for import it "
                 "is a folder of another program")
      ->required();
  app.add_option(
      "TO", flags.to,
      "for diff the other checkpoint; for export and import the file or folder to write");
  app.add_flag("--tensors", flags.tensors,
               "inspect: list each state, and which parts of it the files hold");
  app.add_flag("--json", flags.json, "inspect, diff: print a JSON object for each checkpoint");
  app.add_flag("--hf", flags.huggingface,
               "export: write a Hugging Face folder of shards and their index");
  app.add_flag("--dcp", flags.dcp,
               "import: read a folder that torch.distributed.checkpoint wrote (default: a Hugging "
               "Face folder)");
  app.add_option("--strip-prefix", flags.prefix,
                 "export: remove this prefix of names, as model.; import: take only tensors with "
                 "this prefix, and remove it")
      ->type_name("TEXT");
  app.add_option("--dtype", flags.dtype,
                 "export: convert all floats to this type (default: keep their types)")
      ->check(CLI::IsMember({"f32", "bf16", "f16", "f64"}));
  app.add_option("--shard-size", flags.shard, "export --hf: largest size of a file")
      ->type_name("SIZE")
      ->capture_default_str();
  app.add_flag("--ema", flags.averages,
               "export: write the averages of the parameters (train: ema in the strategy)");
  app.add_flag("--force", flags.force, "export, import: overwrite an existing file");
  app.add_option("--add-prefix", flags.added, "import: add this prefix to all names")
      ->type_name("TEXT");
  suggest_flags(app);
  app.set_version_flag("--version", fmt::format("piper-checkpoint {}", version()));
}

// Refuses paths and flags that the verb has no use for.
const Verb& check_usage(const CLI::App& app, const Flags& flags) {
  const Verb& verb = *std::find_if(verbs().begin(), verbs().end(),
                                   [&](const Verb& one) { return one.name == flags.verb; });
  if (verb.has_two && flags.to.empty()) throw CLI::RequiredError("TO (for " + flags.verb + ")");
  if (!verb.has_two && !flags.to.empty())
    throw CLI::ValidationError("TO", flags.verb + " takes one path");
  for (const Verb& other : verbs())
    for (const std::string& flag : other.flags)
      if (app.count(flag) > 0 &&
          std::find(verb.flags.begin(), verb.flags.end(), flag) == verb.flags.end())
        throw CLI::ValidationError(flag, flags.verb + " does not take it");
  return verb;
}

}  // namespace
}  // namespace piper

int main(int argc, char** argv) {
  using namespace piper;
  prepare_process();
  Flags flags;
  CLI::App app(
      "Says what checkpoints hold and whether they are whole, and exchanges parameters.\n\n"
      "  piper-checkpoint inspect DIR                            what there is\n"
      "  piper-checkpoint verify DIR                             digests, and that nothing is "
      "missing\n"
      "  piper-checkpoint diff A B                               settings, and tensors bit by bit\n"
      "  piper-checkpoint export DIR out/ --hf --dtype bf16      for Hugging Face\n"
      "  piper-checkpoint export DIR out.safetensors             parameters and buffers\n"
      "  piper-checkpoint import llama/ init.safetensors         for piper-run --init\n"
      "  piper-checkpoint import --dcp step-1000/ init.safetensors --strip-prefix model.",
      "piper-checkpoint");
  app.footer(
      "\nExit codes: 0 good, 1 what was asked for cannot be done, 2 wrong usage, 3 damaged (verify "
      "prints what), 12 no checkpoint can be read, or the system refused; of diff: 0 the same, 1 "
      "different, 2 error.\nPage: tools/README.md, Checkpoints");
  add_flags(app, flags);
  const Verb* verb = nullptr;
  try {
    app.parse(argc, argv);
    verb = &check_usage(app, flags);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kGood : static_cast<int>(ExitCode::kUsage);
  }
  Result<int> code = verb->run(flags);
  if (const Status printed = flush_output(); code && !printed) code = printed.error();
  if (code) return *code;
  std::fputs(print_error(code.error()).c_str(), stderr);
  return flags.verb == "diff" ? kDiffError : static_cast<int>(code.error().code);
}
