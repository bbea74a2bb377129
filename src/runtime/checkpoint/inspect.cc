// Which checkpoints there are, what they say of themselves, and whether they are whole. Called by
// piper-checkpoint.
#include <algorithm>
#include <cstring>
#include <filesystem>

#include "boxes.h"
#include "piper/base/counted.h"
#include "piper/runtime/checkpoint_tools.h"

namespace piper {
namespace {

using Json = nlohmann::ordered_json;

bool is_checkpoint(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path + "/checkpoint.json", ignored);
}

Result<Checkpoint> read_about(const std::string& folder) {
  const std::string path = folder + "/checkpoint.json";
  PIPER_ASSIGN(const Bytes text, file_storage().read(path));
  return parse_checkpoint(as_text(text.span()), path);
}

std::string print_json(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

int64_t bytes_of_files(const Checkpoint& about) {
  int64_t bytes = 0;
  for (const CheckpointFile& file : about.files) bytes += file.bytes;
  return bytes;
}

// ---- Text ---------------------------------------------------------------------------------------

std::string head_text(const std::string& folder, const Checkpoint& about) {
  std::string text =
      fmt::format("{}\n  step {}, {}", folder, about.step, counted(about.samples, "sample"));
  if (about.loss) text += fmt::format(", loss {:.6g}", *about.loss);
  if (about.evaluation_loss) text += fmt::format(", {:.6g} when evaluated", *about.evaluation_loss);
  text += fmt::format("\n  {} in {}, written by {}\n", human_bytes(bytes_of_files(about)),
                      counted(std::ssize(about.files), "file"), counted(about.ranks, "rank"));
  for (const auto& [source, samples] : about.sources)
    text += fmt::format("  source {}: {}\n", quote_control(source), counted(samples, "sample"));
  text +=
      fmt::format("  data seed {}, shuffle {}\n", about.data_seed, about.shuffle ? "on" : "off");
  text += fmt::format("  plans of {}, set {}, model {}\n", quote_control(about.compiler),
                      quote_control(about.set_id), quote_control(about.model_digest));
  int64_t of_kind[kStateKinds] = {};
  for (const CheckpointState& state : about.states) ++of_kind[static_cast<size_t>(state.kind)];
  text += fmt::format("  states: {} parameters, {} buffers, {} of the optimizer, {} previous\n",
                      of_kind[0], of_kind[1], of_kind[2], of_kind[3]);
  for (const auto& [setting, none, value] : changed_settings("", about.strategy_text))
    text += fmt::format("  train {}: {}\n", quote_control(setting), quote_control(value));
  return text;
}

std::string state_text(const CheckpointState& state, const CheckpointReader& reader) {
  std::string text = fmt::format("  {} {} {}", name_of(state.kind), quote_control(state.name),
                                 to_string(state.type));
  for (const std::string& alias : state.aliases)
    text += fmt::format(", also {}", quote_control(alias));
  text += "\n";
  if (!reader.types().contains(state.name)) return text;
  for (const CheckpointReader::Piece& piece : reader.pieces(state.name))
    if (!piece.held.is_whole()) text += fmt::format("    {}\n", to_string(piece.held));
  return text;
}

// ---- JSON ---------------------------------------------------------------------------------------

Json head_json(const std::string& folder, const Checkpoint& about) {
  // What checkpoint.json has, and what follows from it.
  Json json = parse_json(print_checkpoint(about));
  json["folder"] = folder;
  json["bytes"] = bytes_of_files(about);
  json["train"] = Json::object();
  for (const auto& [setting, none, value] : changed_settings("", about.strategy_text))
    json["train"][setting] = value;
  return json;
}

void add_parts(const CheckpointReader& reader, Json& json) {
  json["parts"] = Json::object();
  for (const auto& [name, type] : reader.types()) {
    Json& parts = json["parts"][name] = Json::array();
    for (const CheckpointReader::Piece& piece : reader.pieces(name)) {
      Json blocks = Json::array();
      for (const auto& [dim, outer, size, index] : piece.held.blocks)
        blocks.push_back({dim, outer, size, index});
      parts.push_back({{"blocks", blocks}, {"range", {piece.held.first, piece.held.count}}});
    }
  }
}

}  // namespace

Result<std::vector<std::string>> find_checkpoints(const std::string& path) {
  if (is_checkpoint(path)) return std::vector<std::string>{path};
  const std::string folder = checkpoints_in(path);
  PIPER_ASSIGN(const std::vector<int64_t> steps, list_checkpoints(file_storage(), folder));
  std::vector<std::string> folders;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step)
    folders.push_back(folder + "/" + checkpoint_name(*step));
  if (folders.empty())
    return fail("'{}' is no checkpoint, and no folder of checkpoints", quote_control(path))
        .with_code(ExitCode::kStorage);
  return folders;
}

Result<CheckpointReader> open_newest(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) return CheckpointReader::open_tensors(path);
  for (;;) {
    PIPER_ASSIGN(const std::vector<std::string> folders, find_checkpoints(path));
    Result<CheckpointReader> reader = CheckpointReader::open(file_storage(), folders.back());
    if (reader || folders.back() == path || std::filesystem::exists(folders.back(), ignored))
      return reader;
  }  // the job that writes there has removed it meanwhile, and has a newer one
}

Result<std::string> describe_checkpoint(const std::string& folder, bool tensors, bool json) {
  PIPER_ASSIGN(const Checkpoint about, read_about(folder));
  if (!tensors) return json ? print_json(head_json(folder, about)) : head_text(folder, about);
  PIPER_ASSIGN(const CheckpointReader reader, CheckpointReader::open(file_storage(), folder));
  if (json) {
    Json all = head_json(folder, about);
    add_parts(reader, all);
    return print_json(all);
  }
  std::string text = head_text(folder, about);
  for (const CheckpointState& state : about.states) text += state_text(state, reader);
  return text;
}

// ---- Damage -------------------------------------------------------------------------------------

namespace {

// Adds the first element that no piece has, or the begin of the first elements that two have and
// that differ.
void check_runs(const std::string& name, const TensorType& type, const CheckpointReader& reader,
                std::vector<std::string>& damage) {
  struct Run {
    int64_t whole = 0, count = 0;
    const std::byte* data = nullptr;
  };
  const int64_t size = info(type.dtype).bytes, elements = num_elements(type.shape);
  std::vector<Run> runs;
  for (const CheckpointReader::Piece& piece : reader.pieces(name))
    for (const ElementRun& run : runs_of(piece.held, /*packed=*/true))
      runs.push_back({run.whole, run.count, piece.data.data + run.at * size});
  std::stable_sort(runs.begin(), runs.end(),
                   [](const Run& a, const Run& b) { return a.whole < b.whole; });
  Run furthest;  // the run that reaches furthest so far
  for (const Run& run : runs) {
    const int64_t end = furthest.whole + furthest.count;
    if (run.whole > end) break;
    const int64_t common = std::min(end, run.whole + run.count) - run.whole;
    if (common > 0 && std::memcmp(run.data, furthest.data + (run.whole - furthest.whole) * size,
                                  static_cast<size_t>(common * size)) != 0)
      return damage.push_back(fmt::format("'{}': two files differ in elements from {} on",
                                          quote_control(name), run.whole));
    if (run.whole + run.count > end) furthest = run;
  }
  const int64_t known = furthest.whole + furthest.count;
  if (known < elements)
    damage.push_back(fmt::format("'{}' is {}: no file has its element {}", quote_control(name),
                                 to_string(type), known));
}

}  // namespace

Result<std::vector<std::string>> find_damage(const std::string& folder) {
  PIPER_ASSIGN(const Checkpoint about, read_about(folder));
  std::vector<std::string> damage;
  const auto reader = CheckpointReader::open(file_storage(), folder);
  if (std::error_code ignored; !reader && !std::filesystem::exists(folder, ignored))
    return fail("'{}' was removed while it was read", quote_control(folder))
        .with_code(ExitCode::kStorage)
        .with_note("help: a job keeps the checkpoints in its folder that --keep names");
  if (!reader)
    return std::vector<std::string>{reader.error().at.file + ": " + reader.error().message};
  for (size_t k = 0; k < about.files.size(); ++k)
    if (const Status good = reader->verify(k); !good)
      damage.push_back(good.error().at.file + ": " + good.error().message);
  for (const CheckpointState& state : about.states) {
    const auto found = reader->types().find(state.name);
    if (found == reader->types().end())
      damage.push_back(fmt::format("'{}': no file has it", quote_control(state.name)));
    else if (found->second != state.type)
      damage.push_back(fmt::format("'{}' is {}, its files have {}", quote_control(state.name),
                                   to_string(state.type), to_string(found->second)));
    else
      check_runs(state.name, state.type, *reader, damage);
  }
  if (about.states.size() < reader->types().size())
    damage.push_back("its files have tensors that checkpoint.json does not name");
  return damage;
}

}  // namespace piper
