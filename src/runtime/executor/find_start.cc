// Finds the checkpoint that a run begins with: the newest one that is whole, or the one asked for.
// Called before the ranks load.
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <thread>

#include "holders.h"
#include "piper/ir/optimizers.h"
#include "resume.h"

namespace piper {
namespace {

namespace fs = std::filesystem;
using How = StartOptions::How;
constexpr const char* kChoice = "choice of a checkpoint";

void warn_user(const std::string& line) { say(fmt::format("warning: {}\n", line)); }
bool is_rank_0(Control* control) { return control == nullptr || control->rank() == 0; }

// Returns rank 0's text on all ranks.
Result<std::string> share_choice(Control* control, std::string text) {
  if (control == nullptr) return text;
  if (const auto up = control->parent()) {
    PIPER_ASSIGN(text, hear_text(*control, *up, kChoice));
  }
  for (const int64_t child : control->children()) PIPER_TRY(tell_text(*control, child, text));
  return text;
}

// Opens a checkpoint, and verifies this process's share of its files.
Result<CheckpointReader> open_verified(Storage& storage, const std::string& folder, size_t first,
                                       size_t step) {
  PIPER_ASSIGN(CheckpointReader reader, CheckpointReader::open(storage, folder));
  for (size_t k = first; k < reader.about().files.size(); k += step) PIPER_TRY(reader.verify(k));
  return reader;
}

// Holds the result of verifying a checkpoint, which ranks share while they do so.
struct Verdict {
  uint64_t digest = 0;  // of what it says of itself; 0: not known
  bool is_busy = false, is_bad = false;
  void add(const Verdict& other) {
    is_busy |= other.is_busy;
    is_bad |= other.is_bad || (digest != 0 && other.digest != 0 && digest != other.digest);
    digest = std::max(digest, other.digest);
  }
};

// Lets each rank verify its share, however long that takes, and returns whether all is well on all
// of them. A rank that is heard of no more ends the job meanwhile.
Result<bool> verify_together(Control& control, const std::string& folder,
                             std::optional<CheckpointReader>& reader) {
  std::atomic<bool> done{false};
  std::optional<Result<CheckpointReader>> opened;
  std::thread worker([&] {
    opened = open_verified(file_storage(), folder, static_cast<size_t>(control.rank()),
                           static_cast<size_t>(control.world()));
    done.store(true, std::memory_order_release);
  });
  Verdict verdict;
  Status told = ok_status();
  do {
    verdict = {};
    verdict.is_busy = !done.load(std::memory_order_acquire);
    if (!verdict.is_busy && *opened)
      verdict.digest = number_of(digest(print_checkpoint((*opened)->about())));
    verdict.is_bad = !verdict.is_busy && !*opened;
    told = control.merge(std::as_writable_bytes(std::span(&verdict, 1)), kChoice,
                         [&](std::span<const std::byte> theirs) {
                           Verdict other;
                           std::memcpy(&other, theirs.data(), sizeof other);
                           verdict.add(other);
                         });
    if (told && verdict.is_busy) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  } while (told && verdict.is_busy);
  worker.join();
  PIPER_TRY(std::move(told));
  if (!*opened && opened->error().code == ExitCode::kInput) return opened->error();
  if (!*opened) warn_user(print_error(opened->error()));
  if (!verdict.is_bad) reader = *std::move(*opened);
  return !verdict.is_bad;
}

Status set_aside(const RunOptions& options, Storage& storage, const std::string& folder) {
  const fs::path path(folder);
  std::error_code ignored;
  const auto& written = options.job.checkpoint;
  if (!written || !fs::equivalent(path.parent_path(), written->folder, ignored)) return ok_status();
  const std::string aside = (path.parent_path() / ("damaged-" + path.filename().string())).string();
  PIPER_TRY(storage.publish(folder, aside));
  warn_user(fmt::format("it is kept as {}", aside));
  return ok_status();
}

// Returns the folders of checkpoints that may be taken, newest first, as rank 0 finds them.
Result<std::vector<std::string>> find_candidates(const std::string& from, Storage& storage,
                                                 Control* control, int64_t least) {
  std::vector<std::string> folders;
  std::error_code ignored;
  if (!is_rank_0(control)) {
  } else if (fs::exists(from + "/checkpoint.json", ignored)) {
    folders.push_back(from);
  } else {
    PIPER_ASSIGN(const std::vector<int64_t> steps, list_checkpoints(storage, from));
    for (const int64_t step : steps)
      if (step >= least) folders.push_back(from + "/" + checkpoint_name(step));
  }
  PIPER_ASSIGN(const std::string shared, share_choice(control, pack(folders)));
  return unpack(shared);
}

// Opens the newest checkpoint that is whole. `newer`: gets those that are newer than it.
Result<std::optional<CheckpointReader>> take_newest(const RunOptions& options, Control* control,
                                                    const StartChoice& choice,
                                                    std::vector<std::string>& newer) {
  Storage& storage = file_storage();
  PIPER_ASSIGN(const std::vector<std::string> folders,
               find_candidates(checkpoints_in(options.start.from), storage, control, choice.least));
  std::vector<size_t> order(folders.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_partition(order, [&](size_t k) {
    return choice.tried < 0 || fs::path(folders[k]).filename() != checkpoint_name(choice.tried);
  });
  for (const size_t k : order) {
    const std::string& folder = folders[k];
    std::optional<CheckpointReader> reader;
    bool good = false;
    if (control != nullptr) {
      PIPER_ASSIGN(good, verify_together(*control, folder, reader));
    } else {
      Result<CheckpointReader> opened = open_verified(storage, folder, 0, 1);
      // The error of a checkpoint that another version wrote ends the search: it is not damaged.
      if (!opened && opened.error().code == ExitCode::kInput) return std::move(opened).error();
      if (!opened) warn_user(print_error(opened.error()));
      if ((good = opened.ok())) reader = *std::move(opened);
    }
    if (!good && is_rank_0(control))
      warn_user(fmt::format("{} is damaged: it is not taken", folder));
    if (!good) continue;
    newer.assign(folders.begin(), folders.begin() + static_cast<ptrdiff_t>(k));
    return reader;
  }
  if (folders.empty()) return std::optional<CheckpointReader>();
  return fail("none of the {} checkpoint{} in '{}' can be read", folders.size(),
              folders.size() == 1 ? "" : "s", options.start.from)
      .with_code(ExitCode::kStorage);
}

Status check_averages(const CheckpointReader& reader, bool speaks) {
  const int64_t count = std::ranges::count_if(
      reader.types(), [](const auto& state) { return state.first.ends_with(kAverage); });
  if (count == 0)
    return usage(fmt::format("--eval-ema: '{}' holds no averages of parameters", reader.folder()))
        .with_note(
            "help: checkpoints of jobs whose strategy says 'train: {ema: {decay: 0.999}}' do");
  if (speaks) tell_user(fmt::format("{} parameters are evaluated at their averages", count));
  return ok_status();
}

// Says what to do about a folder without a checkpoint.
std::string help_without_checkpoint(const StartOptions& asked) {
  if (asked.how == How::kResume) return "help: --resume-or-start begins at step 0 if there is none";
  std::error_code ignored;
  for (const char* file : {"model.safetensors", "model.safetensors.index.json"})
    if (asked.how == How::kInit && fs::exists(asked.from + "/" + file, ignored))
      return fmt::format(
          "help: it looks like a folder of Hugging Face: 'piper-checkpoint import {} "
          "FILE.safetensors' makes a file of it for --init",
          asked.from);
  return "help: expected a checkpoint, or a folder of checkpoints that --checkpoint wrote";
}

}  // namespace

Result<bool> CheckpointStates::fill(const Tensor& tensor, std::span<const std::string> names,
                                    const Held& held, std::byte* to) const {
  // A tensor of the model has an initial value; states of an optimizer are filled.
  if ((weights_only_ && tensor.init.empty()) || left_out_.contains(names[0])) return false;
  // An older version begins as its parameter does.
  if (weights_only_ && tensor.previous_of >= 0)
    names = names.subspan(static_cast<size_t>(age_of_state(names[0])));
  for (const std::string& own : names) {
    // A copy in 16 bits has its parameter's names, and so its average.
    const bool is_averaged = averages_ && reader_.types().contains(average_of(own));
    const std::string name = is_averaged ? average_of(own) : own;
    if (!reader_.types().contains(name)) continue;
    PIPER_TRY(reader_.read(name, held, to));
    return true;
  }
  return false;
}

namespace {

Result<Start> start_of(const RunOptions& options, Control* control, CheckpointReader reader) {
  const StartOptions& asked = options.start;
  Start start;
  start.reader = std::make_unique<const CheckpointReader>(std::move(reader));
  const bool averages = options.evaluate_averages && options.evaluate_only;
  start.states =
      std::make_unique<CheckpointStates>(*start.reader, asked.how == How::kInit, averages);
  if (averages) PIPER_TRY(check_averages(*start.reader, is_rank_0(control)));
  if (asked.how != How::kInit) start.step = start.reader->about().step;
  if (asked.how == How::kResume || asked.how == How::kResumeOrStart)
    start.samples = start.reader->about().samples, start.skipped = start.reader->about().skipped;
  return start;
}

}  // namespace

// Callers have read a checkpoint: where none can be read, a file system may be missing, and nothing
// is damaged.
Status set_newer_aside(const RunOptions& options, const Start& start) {
  for (const std::string& each : start.newer) PIPER_TRY(set_aside(options, file_storage(), each));
  return ok_status();
}

Result<std::optional<Start>> find_newest(const RunOptions& options, Control* control,
                                         const StartChoice& choice) {
  std::vector<std::string> newer;
  PIPER_ASSIGN(std::optional<CheckpointReader> reader,
               take_newest(options, control, choice, newer));
  if (!reader) return std::optional<Start>();
  PIPER_ASSIGN(Start start, start_of(options, control, *std::move(reader)));
  start.newer = std::move(newer);
  return std::optional(std::move(start));
}

Result<std::optional<Start>> find_start(const RunOptions& options, Control* control) {
  const StartOptions& asked = options.start;
  if (asked.how == How::kFresh) return std::optional<Start>();
  std::error_code ignored;
  if (asked.how != How::kResumeOrStart && !fs::exists(asked.from, ignored))
    return usage(fmt::format("'{}' does not exist", asked.from))
        .with_note(
            "help: expected a checkpoint, or a folder of checkpoints that --checkpoint wrote");
  if (asked.how != How::kInit && fs::is_regular_file(asked.from, ignored))
    return usage(fmt::format("'{}' is a file, not a checkpoint or a folder of checkpoints",
                             asked.from))
        .with_note("help: --init takes the parameters of a safetensors file");
  if (asked.how == How::kInit && fs::is_regular_file(asked.from, ignored)) {
    PIPER_ASSIGN(CheckpointReader reader, CheckpointReader::open_tensors(asked.from));
    PIPER_ASSIGN(Start start, start_of(options, control, std::move(reader)));
    return std::optional(std::move(start));
  }
  PIPER_ASSIGN(std::optional<Start> start, find_newest(options, control, {}));
  if (start) return start;
  if (asked.how == How::kResumeOrStart) {
    if (is_rank_0(control))
      tell_user(
          fmt::format("'{}' holds no checkpoint: training starts from the beginning", asked.from));
    return std::optional<Start>();
  }
  return usage(fmt::format("'{}' holds no checkpoint", asked.from))
      .with_note(help_without_checkpoint(asked));
}

}  // namespace piper
