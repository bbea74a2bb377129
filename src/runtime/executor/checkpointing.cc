// Writes checkpoints while a job goes on. The loop over steps calls it after each step.
#include "checkpointing.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <system_error>

#include "faults.h"
#include "piper/base/folders.h"

namespace piper {
namespace {

constexpr const char* kWritingPart = "exchange of parts of the checkpoint";
constexpr const char* kPartialEnding = ".partial";
constexpr std::chrono::milliseconds kWritingLook{1};
constexpr double kSlowDisk = 1e8;  // bytes a second, as long as nothing was measured

Error storage_error(std::string text) { return Error{ExitCode::kStorage, {}, std::move(text), {}}; }

template <class Work>
Status start_thread(std::thread& thread, Work work) {
  try {
    thread = std::thread(std::move(work));
  } catch (const std::system_error& problem) {
    return storage_error(fmt::format("no thread to write the checkpoint: {}", problem.what()));
  }
  return ok_status();
}

Checkpoint about_step(Checkpoint about, int64_t done, int64_t skipped, std::optional<double> loss,
                      std::optional<double> evaluation_loss) {
  about.step = done;
  about.skipped = skipped;
  about.loss = loss;
  about.evaluation_loss = evaluation_loss;
  return about;
}

}  // namespace

// ---- One rank's file ----------------------------------------------------------------------------

RankWriter::RankWriter(const CheckpointOptions& options, const PlanSet& set, int64_t rank,
                       Executor& executor)
    : storage_(*options.storage), rank_(rank), executor_(executor) {
  const RoleProgram& role = executor.role();
  const std::vector<int64_t> coordinates = coordinates_of(role.mesh, rank);
  const std::vector<bool> writes = states_to_write(set, rank);
  int64_t bytes = 0;
  for (size_t b = 0; b < writes.size(); ++b) {
    if (!writes[b]) continue;
    const Tensor& tensor = role.tensor(role.buffers[b]);
    const Held held = held_of(role, tensor, coordinates);
    const int64_t elements = stored_elements(held);
    if (elements == 0 && num_elements(held.whole.shape) > 0) continue;  // all of it is padding
    own_.push_back({static_cast<int32_t>(b), names_of_state(role, tensor)[0], held, bytes});
    bytes += tensor.type.bytes();
    stored_ += elements * info(held.whole.dtype).bytes;
  }
  staging_.resize(static_cast<size_t>(bytes));
  if (rank == 0) untouched_ = untouched_of(set);
  for (const NamedTensor& tensor : untouched_) stored_ += tensor.type.bytes();
}

RankWriter::~RankWriter() {
  if (thread_.joinable()) thread_.join();
}

Status RankWriter::begin(const std::string& folder, int64_t step) {
  if (own_.empty() && untouched_.empty()) return ok_status();
  std::vector<std::pair<int32_t, std::byte*>> copies;
  for (const Own& own : own_) copies.emplace_back(own.buffer, staging_.data() + own.at);
  PIPER_TRY(executor_.copy_out(copies));
  writing_.store(true, std::memory_order_release);
  Status started = start_thread(thread_, [this, folder, step] { write(folder, step); });
  if (started) return ok_status();
  writing_.store(false);
  written_ = std::move(started).error();  // as what the thread would have said
  return ok_status();
}

void RankWriter::write(const std::string& folder, int64_t step) {
  try {
    const Status fault = inject_fault("write", rank_, step);
    written_ = fault ? write_pieces(folder) : fault.error();
  } catch (const std::exception& problem) {
    written_ = storage_error(problem.what());
  }
  writing_.store(false, std::memory_order_release);
}

Result<CheckpointFile> RankWriter::write_pieces(const std::string& folder) {
  std::vector<OwnPiece> pieces;
  std::vector<Bytes> made;  // until they are written
  for (const Own& own : own_) {
    std::byte* data = staging_.data() + own.at;
    pack_held(own.held, data, data);
    pieces.push_back({own.name, own.held, data, stored_elements(own.held)});
  }
  for (const NamedTensor& tensor : untouched_) {
    const int64_t elements = num_elements(tensor.type.shape);
    made.push_back(tensor.data.made());
    pieces.push_back({tensor.name, {tensor.type, {}, 0, elements}, made.back().data, elements});
  }
  return write_rank_file(storage_, folder, rank_, pieces);
}

Result<CheckpointFile> RankWriter::finish() {
  if (thread_.joinable()) thread_.join();
  return std::exchange(written_, CheckpointFile{});
}

// ---- All ranks ----------------------------------------------------------------------------------

Checkpointing::Checkpointing(const CheckpointOptions& options, const PlanSet& set,
                             Executor& executor, Control& control, int64_t first_step)
    : options_(options),
      executor_(executor),
      control_(control),
      writer_(options, set, control.rank(), executor),
      step_(first_step) {}

Checkpointing::~Checkpointing() {
  if (committer_.joinable()) committer_.join();
}

Result<std::unique_ptr<Checkpointing>> Checkpointing::open(const CheckpointOptions& options,
                                                           const PlanSet& set, Executor& executor,
                                                           Control& control, int64_t first_step,
                                                           double longest_s) {
  std::unique_ptr<Checkpointing> opened(
      new Checkpointing(options, set, executor, control, first_step));
  opened->longest_s_ = longest_s;
  int64_t bytes = opened->writer_.stored_bytes();
  PIPER_TRY(control.merge(std::as_writable_bytes(std::span(&bytes, 1)), "load",
                          [&](std::span<const std::byte> theirs) {
                            int64_t more = 0;
                            std::memcpy(&more, theirs.data(), sizeof more);
                            bytes += more;
                          }));
  opened->bytes_ = bytes;
  // A writer of a killed job may still be at work on another host: it writes somewhere else.
  int64_t& id = opened->id_;
  if (control.rank() == 0) id = Clock::now().time_since_epoch().count();
  PIPER_TRY(control.merge(std::as_writable_bytes(std::span(&id, 1)), "load",
                          [&](std::span<const std::byte> theirs) {
                            int64_t other = 0;
                            std::memcpy(&other, theirs.data(), sizeof other);
                            id = std::max(id, other);
                          }));
  if (control.rank() == 0) PIPER_TRY(opened->take_folder(bytes));
  PIPER_TRY(opened->check_shared());
  return opened;
}

// Checks that all ranks write into one folder: rank 0 leaves a file there, which the others find.
Status Checkpointing::check_shared() {
  const std::string marker = fmt::format(".job-{:x}", id_), path = options_.folder + "/" + marker;
  if (control_.rank() == 0) {
    const std::string_view nothing[] = {""};
    PIPER_TRY(options_.storage->write(path, nothing));
  }
  PIPER_TRY(control_.barrier());
  PIPER_ASSIGN(const std::vector<std::string> there, options_.storage->list(options_.folder));
  const bool is_there = std::binary_search(there.begin(), there.end(), marker);
  PIPER_TRY(is_there ? ok_status()
                     : storage_error(fmt::format("rank {} does not see in '{}' what rank 0 writes "
                                                 "there: ranks need a folder that they share",
                                                 control_.rank(), options_.folder)));
  PIPER_TRY(control_.barrier());
  return control_.rank() == 0 ? options_.storage->remove(path) : ok_status();
}

// Takes over the folder, which this job has locked: what killed jobs left half done goes.
Status Checkpointing::take_folder(int64_t bytes) {
  Storage& storage = *options_.storage;
  const std::string& folder = options_.folder;
  PIPER_ASSIGN(const std::vector<std::string> names, storage.list(folder));
  for (const std::string& name : names)
    if (name.starts_with(".removed-") || name.starts_with(".job-") ||
        (name.starts_with(".step-") && name.ends_with(kPartialEnding)))
      PIPER_TRY(storage.remove(folder + "/" + name));
  PIPER_ASSIGN(const std::vector<int64_t> steps, list_checkpoints(storage, folder));
  for (const int64_t step : steps) {
    const std::string path = fmt::format("{}/{}/checkpoint.json", folder, checkpoint_name(step));
    std::optional<double>& loss = losses_[step];
    if (const auto text = storage.read(path))
      if (const auto about = parse_checkpoint(as_text(text->span()), path)) loss = ranked(*about);
  }
  if (const Status room = check_room(folder, bytes, "a checkpoint"); !room) {
    Error error = room.error();
    error.notes.push_back(
        "help: remove old checkpoints, or write to another folder; a new one is written before "
        "--keep removes any");
    if (!options_.goes_on || !options_.on_loss) return error;
    options_.on_loss(error);
  }
  std::string when;
  if (options_.every > 0)
    when += options_.every == 1 ? "every step, " : fmt::format("every {} steps, ", options_.every);
  if (options_.minutes > 0)
    when += options_.minutes == 1 ? "every minute, "
                                  : fmt::format("every {:g} minutes, ", options_.minutes);
  note(fmt::format("checkpoints of {} {}at the end: {}; rank 0 stages {} for them in host memory",
                   human_bytes(bytes), when, folder, human_bytes(writer_.staged_bytes())));
  return ok_status();
}

void Checkpointing::note(const std::string& line) const {
  if (options_.note) options_.note(line);
}

Words Checkpointing::word() const {
  if (writer_.is_writing() || committing_.load(std::memory_order_acquire)) return kStillWrites;
  return phase_ == Phase::kCommitting && !committed_ ? kNotWritten : 0;
}

bool Checkpointing::asks() const {
  return options_.minutes > 0 && phase_ == Phase::kIdle &&
         std::chrono::duration<double>(Clock::now() - last_).count() >= options_.minutes * 60;
}

bool Checkpointing::is_due(int64_t done, Words words) const {
  return (options_.every > 0 && done % options_.every == 0) || (words & kSave) != 0;
}

std::string Checkpointing::built_folder(int64_t step) const {
  return fmt::format("{}/.{}.{:x}{}", options_.folder, checkpoint_name(step), id_, kPartialEnding);
}

Status Checkpointing::begin(int64_t done, int64_t skipped, std::optional<double> loss,
                            std::optional<double> evaluation_loss) {
  if (done == step_) return ok_status();  // it is there, or on its way
  const Clock::time_point asked = Clock::now();
  PIPER_TRY(drain());
  began_ = Clock::now();
  step_ = done;
  if (control_.rank() == 0) {
    about_ = about_step(options_.about, done, skipped, loss, evaluation_loss);
    about_.ranks = control_.world();
    options_.count_samples(done + left_out_, about_);
  }
  PIPER_TRY(executor_.settle());
  PIPER_TRY(inject_fault("copy", control_.rank(), done));
  PIPER_TRY(writer_.begin(built_folder(done), done));
  held_s_ = std::chrono::duration<double>(Clock::now() - asked).count();
  phase_ = Phase::kWriting;
  return ok_status();
}

void Checkpointing::go_back(int64_t done, int64_t left_out) {
  step_ = done;
  left_out_ = left_out;
  losses_.erase(losses_.upper_bound(done), losses_.end());  // they were damaged, and set aside
}

Status Checkpointing::advance(Words words) {
  if ((words & kStillWrites) != 0 || phase_ == Phase::kIdle) return ok_status();
  if (phase_ == Phase::kWriting) {
    phase_ = Phase::kCommitting;
    return gather_files();
  }
  phase_ = Phase::kIdle;
  if ((words & kNotWritten) != 0) lost_step_ = std::exchange(step_, -1);
  return control_.rank() == 0 ? end_commit() : ok_status();
}

Status Checkpointing::drain() {
  while (phase_ != Phase::kIdle) {
    std::this_thread::sleep_for(kWritingLook);
    Words words = word();
    PIPER_TRY(merge_words(control_, words, kWritingPart));
    PIPER_TRY(advance(words));
  }
  return ok_status();
}

// Rank 0 learns what all have written: three texts for each, of which the name is empty where it
// failed.
Status Checkpointing::gather_files() {
  std::vector<std::string> all;
  const Result<CheckpointFile> own = writer_.finish();
  if (!own)
    all = {"", fmt::format("rank {}: {}", control_.rank(), own.error().message), ""};
  else if (!own->name.empty())
    all = {own->name, own->digest, std::to_string(own->bytes)};
  for (const int64_t child : control_.children()) {
    PIPER_ASSIGN(const std::string theirs, hear_text(control_, child, kWritingPart));
    for (std::string& text : unpack(theirs)) all.push_back(std::move(text));
  }
  if (const auto up = control_.parent()) return tell_text(control_, *up, pack(all));
  committed_ = ok_status();
  for (size_t k = 0; k + 2 < all.size(); k += 3) {
    if (all[k].empty() && committed_) committed_ = storage_error(all[k + 1]);
    about_.files.push_back({all[k], all[k + 1], std::strtoll(all[k + 2].c_str(), nullptr, 10)});
  }
  if (!committed_) return ok_status();
  std::sort(about_.files.begin(), about_.files.end(),
            [](const CheckpointFile& a, const CheckpointFile& b) { return a.name < b.name; });
  committing_.store(true, std::memory_order_release);
  Status started = start_thread(committer_, [this] {
    try {
      committed_ = commit();
    } catch (const std::exception& problem) {
      committed_ = storage_error(problem.what());
    }
    committing_.store(false, std::memory_order_release);
  });
  if (started) return ok_status();
  committing_.store(false);
  committed_ = std::move(started);
  return ok_status();
}

// Gives the checkpoint its name, as all files are there. Runs on rank 0's own thread.
Status Checkpointing::commit() {
  Storage& storage = *options_.storage;
  const std::string built = built_folder(step_);
  PIPER_TRY(inject_fault("commit", control_.rank(), step_));
  PIPER_ASSIGN(const std::vector<std::string> there, storage.list(built));
  for (const CheckpointFile& file : about_.files)
    if (!std::binary_search(there.begin(), there.end(), file.name))
      return storage_error(
          fmt::format("{} was written on another host and is not in '{}' here: ranks need a folder "
                      "that they share",
                      file.name, options_.folder));
  const std::string text = print_checkpoint(about_);
  const std::string_view parts[] = {text};
  PIPER_TRY(storage.write(built + "/checkpoint.json", parts));
  PIPER_TRY(inject_fault("publish", control_.rank(), step_));
  PIPER_TRY(storage.publish(built, options_.folder + "/" + checkpoint_name(step_)));
  losses_[step_] = ranked(about_);
  removed_ = remove_surplus();
  return ok_status();
}

// Older checkpoints go only after the new one was read back.
Status Checkpointing::remove_surplus() {
  const std::vector<std::pair<int64_t, std::optional<double>>> all(losses_.begin(), losses_.end());
  for (const int64_t step : surplus_checkpoints(options_.keep, all)) {
    PIPER_TRY(options_.storage->remove(options_.folder + "/" + checkpoint_name(step)));
    losses_.erase(step);
  }
  return ok_status();
}

Status Checkpointing::end_commit() {
  if (committer_.joinable()) committer_.join();
  const double took = std::chrono::duration<double>(Clock::now() - began_).count();
  longest_s_ = std::max(longest_s_, took);
  last_ = Clock::now();
  if (committed_) {
    note(fmt::format("{}: training was held up for {:.1f} ms, written after {:.1f} s",
                     checkpoint_name(step_), held_s_ * 1e3, took));
    if (!removed_) note("warning: an old checkpoint stays: " + removed_.error().message);
    removed_ = ok_status();
    return ok_status();
  }
  return lose_commit(std::move(committed_).error());
}

// Ends what could not be committed: an error, where training does not go on without it.
Status Checkpointing::lose_commit(Error error) {
  error.message = fmt::format("{} is not written: {}", checkpoint_name(lost_step_), error.message);
  committed_ = ok_status();
  static_cast<void>(options_.storage->remove(built_folder(lost_step_)));  // it takes room
  if (!options_.goes_on)
    error.notes.push_back("help: --checkpoint-errors ignore lets training go on without it");
  if (!options_.on_loss) return error;
  options_.on_loss(error);
  has_failed_ = !options_.goes_on;  // the job ends, and what it has trained is saved
  return ok_status();
}

double Checkpointing::likely_s() const {
  const double one = longest_s_ > 0 ? longest_s_ : static_cast<double>(bytes_) / kSlowDisk;
  return phase_ == Phase::kIdle ? one : 2 * one;
}

}  // namespace piper
